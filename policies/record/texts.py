"""The fixed wording of a record in each language, from `texts.toml`."""

import re
from collections.abc import Iterable, Mapping

import msgspec

from policies.tables import read_table
from policies.tool_calls.files import Change
from policies.tool_calls.outcomes import Result

Language = str
"""The name of a table of `texts.toml`."""
DEFAULT_LANGUAGE: Language = "en"

# A Chinese or Japanese conversation about code is half ASCII. One character carries about as much as an English word.
_OWN_SHARE = 0.1
_MOST_OF_A_TEXT, _MOST = 2_000, 20_000
# Quotations and names of code may be in any language.
_QUOTED = re.compile(
    r"```[^`]{0,2000}```|`[^`\n]{0,200}`|\"[^\"\n]{0,200}\"|“[^”\n]{0,200}”|‘[^’\n]{0,200}’|「[^」\n]{0,200}」"
    r"|『[^』\n]{0,200}』"
)
_NAME = re.compile(
    r"(?<![\w./~-])[\w~-]{0,80}+[./_-][\w./~-]{1,160}+|(?<![A-Za-z0-9])[A-Za-z]{0,40}+\d[A-Za-z0-9]{0,40}+", re.ASCII
)


class MediaTexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wording of a note in the place of a medium.

    kinds: names of media. Another kind keeps the client's name.
    """

    left_out: str
    comma: str
    result_of: str
    result: str
    again: str
    ask_again: str
    users: str
    kinds: Mapping[str, str]


class Texts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fixed wording of a record in one language.

    headings: the nine sections that a summarizer writes, in order.
    letters: ranges of letters by which the language is recognized.
    share: minimum share of them among the letters of all languages.
    """

    letters: str
    share: float
    opening: str
    closing: str
    numbers: str
    headings: tuple[str, ...]
    timeline: str
    said: str
    unsaid: str
    reported: str
    rules: str
    rules_left_out: str
    briefs: str
    pinned: str
    pins_left_out: str
    actions: str
    files: str
    names: str
    recent: str
    claims: str
    segment: str
    left_out: str
    insights: str
    superseded: str
    name: str
    plan: str
    plan_left_out: str
    plan_text: str
    plan_stale: str
    active: str
    dropped: str
    tried: str
    times: str
    running: str
    agent: str
    browsed: str
    typed: str
    next_goal: str
    outcomes: Mapping[Result, str]
    changes: Mapping[Change, str]
    overwritten: str
    unsure: str
    files_left_out: str
    told: str
    says: str
    asked: str
    read: str
    calls_left_out: str
    unchecked: str
    not_rerun: str
    recalled: str
    media: MediaTexts


_TABLES = read_table("policies.record", "texts")
_BY_LANGUAGE: Mapping[Language, Texts] = {name: msgspec.convert(table, Texts) for name, table in _TABLES.items()}
_LETTERS = {name: re.compile(f"[{texts.letters}]") for name, texts in _BY_LANGUAGE.items() if texts.letters}
_LETTER = re.compile(r"[^\W\d_]")
ALL_TEXTS = tuple(_BY_LANGUAGE.values())
ALL_LANGUAGES = tuple(_BY_LANGUAGE)


def texts_for(language: Language) -> Texts:
    """Return the wording of a language; the English one for a language without a table."""
    return _BY_LANGUAGE.get(language, _BY_LANGUAGE[DEFAULT_LANGUAGE])


def language_of(texts: Iterable[str]) -> Language:
    """Return the language of the texts by their script. Records and summaries are written in it.

    Quotations and names of code do not count, unless there is no other text.
    """
    sample = "\n".join(text[:_MOST_OF_A_TEXT] for text in texts)[:_MOST]
    plain = _NAME.sub(" ", _QUOTED.sub(" ", sample))
    sample = plain if _LETTER.search(plain) else sample
    counts = {name: len(letters.findall(sample)) for name, letters in _LETTERS.items()}
    recognized = sum(counts.values())
    if recognized and recognized >= _OWN_SHARE * len(_LETTER.findall(sample)):
        for name, number in counts.items():
            if number >= _BY_LANGUAGE[name].share * recognized:
                return name
    return DEFAULT_LANGUAGE
