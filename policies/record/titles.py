"""Detection of lines that imitate the titles of a record, in any letters and markup."""

import re
import unicodedata

from policies.conversation.lookalikes import fold_lookalikes
from policies.record.texts import ALL_TEXTS

# Markup of a heading in Markdown and HTML, after any number or list sign, or in the line below.
_HEADED = re.compile(r"[\W\d_]{0,12}?(?:#|\*\*|__|<(?:h[1-6]|b|strong)\b)", re.IGNORECASE)
_UNDERLINE = re.compile(r"\s{0,3}(?:=+|-{2,})\s*")
_MARKUP = re.compile(r"</?[a-z][^<>]{0,80}>")
# A line with up to this many additional letters still counts as a title.
_BESIDE_TITLE = 12


def _letters(text: str) -> str:
    """Return the letters of a line in lower case, with similar letters folded into one, to compare titles."""
    folded_text = unicodedata.normalize("NFKC", _MARKUP.sub("", fold_lookalikes(text).lower()))
    return "".join(filter(str.isalpha, folded_text)).replace("l", "i")


# Titles of a record's blocks: the user's words in full, which is neither prose nor another title; how that title
# begins; and the other blocks.
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
    """Return True if a line reads as a title of a record's block, for itself or for the line below it."""
    title = _letters(line)
    if any(full_title in title and len(title) <= len(full_title) + _BESIDE_TITLE for full_title in _SAID):
        return True
    if not (_HEADED.match(fold_lookalikes(line)) or _UNDERLINE.fullmatch(below)):
        return False
    extra_letters = (len(title) - len(stem) for stem in _SAID_STEMS if stem in title)
    return title in _CARRIED or any(extra <= 2 * _BESIDE_TITLE for extra in extra_letters)
