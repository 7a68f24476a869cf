"""Dates and clock times written out in a text, and what agents' harnesses wrap around a user's words.

Both change from request to request without anybody having said anything else (docs/design.md, "Digests and keys").
"""

import re
from collections.abc import Iterator

from policies.authorship.wrappers import ELEMENTS

_TIME = r"(?:[01]?\d|2[0-3]):[0-5]\d"
_SECONDS = r":[0-5]\d(?:[.,]\d{1,9})?"
_HALF = r"\s?[AaPp]\.?[Mm]\b\.?"
_ZONE = r"(?:\s?(?:Z|UTC|GMT|[ECMP][SD]T|CES?T)\b|\s?[+-]\d{2}:?\d{2}\b)"
_DAY = r"(?:Mon(?:day)?|Tue(?:sday)?|Wed(?:nesday)?|Thu(?:rsday)?|Fri(?:day)?|Sat(?:urday)?|Sun(?:day)?)"
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?)\b\.?"
)
_YEAR = r"(?:19|20)\d{2}\b"
# A time is one with seconds, a half of the day or a zone, or where logs have it: two numbers alone may be a ratio.
_CLOCK = rf"{_TIME}(?:{_SECONDS}(?:{_HALF})?{_ZONE}?|{_HALF}{_ZONE}?|{_ZONE})"
_LOGGED = rf"(?:(?<=[\[(]){_TIME}(?=[\])])|(?<=[Tt]ime: ){_TIME})"
_DATE = (
    r"(?:\d{4}[-/](?:0?[1-9]|1[0-2])[-/](?:0?[1-9]|[12]\d|3[01])"
    rf"|(?<!ersion )(?:0?[1-9]|[12]\d|3[01])[./](?:0?[1-9]|1[0-2])[./]{_YEAR}"
    rf"|(?:0?[1-9]|1[0-2])/(?:0?[1-9]|[12]\d|3[01])/{_YEAR}"
    rf"|(?:{_DAY},?\s)?(?:\d{{1,2}}\s{_MONTH},?\s{_YEAR}|{_MONTH}\s{{1,2}}\d{{1,2}},?\s{_YEAR})"
    r"|\d{4}年\d{1,2}月\d{1,2}日)"
)
# What `date` and `ls -l` print.
_PRINTED = rf"(?:{_DAY}\s)?{_MONTH}\s{{1,2}}\d{{1,2}}\s{_TIME}(?:{_SECONDS})?{_ZONE}?(?:\s{_YEAR})?"
# A digit, or the first letter of a day or a month: asked first, it takes a quarter of the time.
_BEGIN = r"(?=[\dMTWFSJAOND])"
_STAMP = re.compile(
    # Neither a part of a path, a version or a number, nor the line and column behind a file's name.
    rf"{_BEGIN}(?:(?<![\w./:+-])(?:{_PRINTED}|{_DATE}(?:(?:T|,?\s{{1,2}}){_TIME}(?:{_SECONDS})?(?:{_HALF})?{_ZONE}?)?"
    rf"|{_CLOCK}|{_LOGGED})(?![\w:/-])"
    r"|\d{1,2}[时點点]\d{1,2}分(?:\d{1,2}秒)?)"
)
_MARK = "\N{WATCH}"
# Only what holds one of these can hold a stamp, or a year and the name of a month; most texts hold none, and looking
# for a stamp takes longer.
_HINT = re.compile(r"\d(?::[0-5]|分|\d[-/.年])")
_HINT_OR_YEAR = re.compile(r"\d(?::[0-5]|分|\d[-/.年]|(?<=1)9\d\d|(?<=2)0\d\d)")
# While a pattern is looked for nothing else of the process runs, ten milliseconds a megabyte: so it is done in pieces.
_PIECE = 64 * 1024
# No stamp is as long, with what stands around it.
_LONGEST = 128
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# Elements in which a harness speaks, in a user's name.
_ELEMENTS = "|".join(name for name, voice in ELEMENTS.items() if voice in ("harness", "instructions"))
_TAG = re.compile(rf"<({_ELEMENTS})>|# AGENTS\.md instructions[^\n]{{0,400}}+\s{{0,20}}+<(INSTRUCTIONS)>")
_harness = _TAG.finditer


def without_stamps(text: str) -> str:
    """The text with a sign in place of every literal date and clock time."""
    if not _is_hinted(text):
        return text
    if len(text) <= _PIECE:
        return _STAMP.sub(_MARK, text)
    kept, end = [], 0
    for start, stop in _stamps(text):
        kept += [text[end:start], _MARK]
        end = stop
    return "".join([*kept, text[end:]])


def _stamps(text: str) -> Iterator[tuple[int, int]]:
    """Where they stand in a long text."""
    at = 0
    while at < len(text):
        begun = at + _PIECE
        for found in _STAMP.finditer(text, at, begun + _LONGEST):
            if found.start() >= begun:
                break
            yield found.span()
            at = found.end()
        at = max(at, begun)


def _is_hinted(text: str) -> bool:
    if not _holds(_HINT_OR_YEAR, text):
        return False
    for month in _MONTHS:  # a generator would take as long again
        if month in text:
            return True
    return _holds(_HINT, text)


def _holds(pattern: re.Pattern[str], text: str) -> bool:
    if len(text) <= _PIECE:
        return pattern.search(text) is not None
    return any(pattern.search(text, at, at + _PIECE + _LONGEST) for at in range(0, len(text), _PIECE))


def harness_spans(text: str) -> list[tuple[int, int]]:
    """Where a harness speaks in a text: what stands between its tags."""
    spans: list[tuple[int, int]] = []
    for found in _harness(text):
        end = text.find(f"</{found[1] or found[2]}>", found.end())
        if end >= 0 and (not spans or found.start() >= spans[-1][1]):
            spans.append((found.end(), end))
    return spans
