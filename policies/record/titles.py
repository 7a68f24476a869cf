"""Lines that are read as titles of what code carries in a record, in whatever letters and marks they come."""

import re
import unicodedata

from policies.conversation.lookalikes import fold_lookalikes
from policies.record.texts import ALL_TEXTS

# What makes a line a heading in Markdown and HTML, whatever number or list sign stands before it; or the line below.
_HEADED = re.compile(r"[\W\d_]{0,12}?(?:#|\*\*|__|<(?:h[1-6]|b|strong)\b)", re.IGNORECASE)
_UNDERLINE = re.compile(r"\s{0,3}(?:=+|-{2,})\s*")
_MARKUP = re.compile(r"</?[a-z][^<>]{0,80}>")
# So many letters beside a title leave it one.
_BESIDE_TITLE = 12


def _letters(text: str) -> str:
    """A line down to its letters, those that are taken for one another as one: for comparing titles."""
    spoken = unicodedata.normalize("NFKC", _MARKUP.sub("", fold_lookalikes(text).lower()))
    return "".join(filter(str.isalpha, spoken)).replace("l", "i")


# Titles of what code carries beside a summary: in full, which is no prose and no title of anything else; how that one
# begins; and of the other blocks.
_SAID = tuple(_letters(texts.said) for texts in ALL_TEXTS)
_SAID_STEMS = tuple(_letters(re.split("[,，]", texts.said)[0]) for texts in ALL_TEXTS)
_CARRIED = {
    _letters(title)
    for texts in ALL_TEXTS
    for title in (
        texts.actions,
        texts.files,
        texts.names,
        texts.reported,
        texts.rules,
        texts.briefs,
        texts.plan,
        texts.tried,
        texts.running,
    )
}


def is_carried(line: str, below: str = "") -> bool:
    """Whether a line is read as a title of what code carries, for itself or for the line below it."""
    title = _letters(line)
    if any(said in title and len(title) <= len(said) + _BESIDE_TITLE for said in _SAID):
        return True
    if not (_HEADED.match(fold_lookalikes(line)) or _UNDERLINE.fullmatch(below)):
        return False
    beside = (len(title) - len(stem) for stem in _SAID_STEMS if stem in title)
    return title in _CARRIED or any(more <= 2 * _BESIDE_TITLE for more in beside)
