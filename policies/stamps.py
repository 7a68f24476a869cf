"""Dates and clock times written out in a text, and what agents' harnesses wrap around a user's words.

Both change from request to request without anybody having said anything else (docs/design.md, section 8).
"""

from __future__ import annotations

import re

_CLOCK = r"(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?(?:\s?[AaPp]\.?[Mm]\b\.?)?"
_ZONE = r"(?:\s?(?:Z|UTC|GMT|[ECMP][SD]T|CES?T)\b|\s?[+-]\d{2}:?\d{2}\b)?"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_DATE = (
    r"(?:\d{4}[-/](?:0?[1-9]|1[0-2])[-/](?:0?[1-9]|[12]\d|3[01])"
    r"|(?:0?[1-9]|[12]\d|3[01])[./](?:0?[1-9]|1[0-2])[./]\d{4}"
    r"|(?:0?[1-9]|1[0-2])/(?:0?[1-9]|[12]\d|3[01])/\d{4}"
    rf"|(?:{_DAY},?\s)?(?:\d{{1,2}}\s{_MONTH}\.?(?!\s\d{{1,2}}\s)|{_MONTH}\.?\s{{1,2}}\d{{1,2}})(?:,?\s\d{{4}}\b)?"
    r"|\d{4}年\d{1,2}月\d{1,2}日)"
)
_STAMP = re.compile(
    # Neither a part of a path, a version or a number, nor the line and column behind a file's name.
    rf"(?<![\w./:+-])(?:{_DATE}(?:(?:T|,?\s{{1,2}}){_CLOCK}{_ZONE})?(?:\s\d{{4}}\b)?|{_CLOCK}{_ZONE})(?![\w:/-])"
    r"|\d{1,2}[时點点]\d{1,2}分(?:\d{1,2}秒)?"
)
_MARK = "\N{WATCH}"
# Only what holds one of these can hold a stamp; most texts hold none, and looking for one takes longer.
_HINT = re.compile(r"(?:\d(?::[0-5]|分)|\d\d[-/.年])\d?")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WRAPPERS = ("system-reminder", "environment_context", "environment_details", "env")


def without_stamps(text: str) -> str:
    """The text with a sign in place of every literal date and clock time."""
    hinted = any(month in text for month in _MONTHS) or _HINT.search(text)
    return _STAMP.sub(_MARK, text) if hinted else text


def without_wrappers(text: str) -> str:
    """The text without what stands in the tags of a harness."""
    for name in _WRAPPERS:
        opening, closing = f"<{name}>", f"</{name}>"
        kept, at = [], 0
        while (start := text.find(opening, at)) >= 0 and (end := text.find(closing, start)) >= 0:
            kept.append(text[at:start])
            at = end + len(closing)
        text = "".join([*kept, text[at:]]) if kept else text
    return text
