"""Dates and clock times in a text, and text that agents' harnesses add to a user's words.

Both change from request to request although the conversation is the same (docs/design.md, "Digests and keys").
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
# A time has seconds, a half of the day or a zone, or the context of a log. Two numbers alone may be a ratio.
_CLOCK = rf"{_TIME}(?:{_SECONDS}(?:{_HALF})?{_ZONE}?|{_HALF}{_ZONE}?|{_ZONE})"
_LOGGED = rf"(?:(?<=[\[(]){_TIME}(?=[\])])|(?<=[Tt]ime: ){_TIME})"
_DATE = (
    r"(?:\d{4}[-/](?:0?[1-9]|1[0-2])[-/](?:0?[1-9]|[12]\d|3[01])"
    rf"|(?<!ersion )(?:0?[1-9]|[12]\d|3[01])[./](?:0?[1-9]|1[0-2])[./]{_YEAR}"
    rf"|(?:0?[1-9]|1[0-2])/(?:0?[1-9]|[12]\d|3[01])/{_YEAR}"
    rf"|(?:{_DAY},?\s)?(?:\d{{1,2}}\s{_MONTH},?\s{_YEAR}|{_MONTH}\s{{1,2}}\d{{1,2}},?\s{_YEAR})"
    r"|\d{4}年\d{1,2}月\d{1,2}日)"
)
# The formats of `date` and `ls -l`.
_PRINTED = rf"(?:{_DAY}\s)?{_MONTH}\s{{1,2}}\d{{1,2}}\s{_TIME}(?:{_SECONDS})?{_ZONE}?(?:\s{_YEAR})?"
# A digit, or the first letter of a day or month. Checking it first takes a quarter of the time.
_BEGIN = r"(?=[\dMTWFSJAOND])"
_STAMP = re.compile(
    # Not part of a path, version or number, nor the line and column after a file's name.
    rf"{_BEGIN}(?:(?<![\w./:+-])(?:{_PRINTED}|{_DATE}(?:(?:T|,?\s{{1,2}}){_TIME}(?:{_SECONDS})?(?:{_HALF})?{_ZONE}?)?"
    rf"|{_CLOCK}|{_LOGGED})(?![\w:/-])"
    r"|\d{1,2}[时點点]\d{1,2}分(?:\d{1,2}秒)?)"
)
_MARK = "\N{WATCH}"
# Text without a match contains neither a timestamp nor a year with the name of a month. Most texts have none, and this
# is faster than searching for a timestamp.
_HINT = re.compile(r"\d(?::[0-5]|分|\d[-/.年])")
_HINT_OR_YEAR = re.compile(r"\d(?::[0-5]|分|\d[-/.年]|(?<=1)9\d\d|(?<=2)0\d\d)")
# A search blocks the process for ten milliseconds a megabyte, so it is done in pieces.
_PIECE = 64 * 1024
# Longer than any timestamp with its context.
_LONGEST = 128
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# Elements in which a harness speaks in a user's name.
_ELEMENTS = "|".join(name for name, voice in ELEMENTS.items() if voice in ("harness", "instructions"))
_TAG = re.compile(rf"<({_ELEMENTS})>|# AGENTS\.md instructions[^\n]{{0,400}}+\s{{0,20}}+<(INSTRUCTIONS)>")
_harness = _TAG.finditer


def without_stamps(text: str) -> str:
    """Return the text with one character in place of every literal date and clock time."""
    if not _is_hinted(text):
        return text
    if len(text) <= _PIECE:
        return _STAMP.sub(_MARK, text)
    parts, end = [], 0
    for start, stop in _stamps(text):
        parts += [text[end:start], _MARK]
        end = stop
    return "".join([*parts, text[end:]])


def _stamps(text: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges of timestamps in a long text."""
    at = 0
    while at < len(text):
        piece_end = at + _PIECE
        for match in _STAMP.finditer(text, at, piece_end + _LONGEST):
            if match.start() >= piece_end:
                break
            yield match.span()
            at = match.end()
        at = max(at, piece_end)


def _is_hinted(text: str) -> bool:
    if not _holds(_HINT_OR_YEAR, text):
        return False
    for month in _MONTHS:  # a generator would take twice as long
        if month in text:
            return True
    return _holds(_HINT, text)


def _holds(pattern: re.Pattern[str], text: str) -> bool:
    if len(text) <= _PIECE:
        return pattern.search(text) is not None
    return any(pattern.search(text, at, at + _PIECE + _LONGEST) for at in range(0, len(text), _PIECE))


def harness_spans(text: str) -> list[tuple[int, int]]:
    """Return the ranges of a harness's text between its tags."""
    spans: list[tuple[int, int]] = []
    for opening in _harness(text):
        end = text.find(f"</{opening[1] or opening[2]}>", opening.end())
        if end >= 0 and (not spans or opening.start() >= spans[-1][1]):
            spans.append((opening.end(), end))
    return spans
