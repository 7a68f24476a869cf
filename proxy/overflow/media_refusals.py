"""Refusals of a request's bytes or pictures, though its tokens fit: what there was too much of, and how much may be.

The words are those of Anthropic, Bedrock, OpenAI, Azure, Copilot, vLLM and what stands in front of servers, as of
November 2026. Only the part of an answer that reports an error is read.
"""

import re
from dataclasses import dataclass
from typing import Literal

from policies.media_notes import quotable
from proxy.overflow import error_parts, rules
from proxy.overflow.rules import normal_code

What = Literal["bytes", "pictures", "wide", "one", "pages"]
"""`wide`: pictures over a side, once there are many. `one`: a medium by itself. `pages`: of all papers."""

TOO_LARGE = 413
_FAILED = 400
# vLLM's and others' say it with a fault of theirs.
_STATUSES = frozenset({400, 413, 422, 500})
_MOST_READ = 64 * 1024
_UNITS = {"kb": 10**3, "kib": 2**10, "mb": 10**6, "mib": 2**20, "gb": 10**9, "gib": 2**30}
_SIZE = r"(?P<limit>\d+(?:\.\d+)?) ?(?P<unit>bytes|[kmg]i?b|b)\b"
# The first that fits; `limit` and `given` where a refusal states them.
_ROWS: tuple[tuple[What, str], ...] = (
    ("wide", r"dimensions? exceeds? max allowed size for many.image requests:? (?P<limit>\d+)"),
    ("one", r"(?:image )?dimensions? exceeds? max allowed size:? (?P<limit>\d+)"),
    ("one", rf"\bimage exceeds {_SIZE} max"),
    ("one", r"\bimage exceeds .{0,40}max(?:imum)?:? (?P<given>\d+) bytes > (?P<limit>\d+) bytes"),
    ("pages", r"\bmax(?:imum)? of (?P<limit>\d+) pdf pages"),
    ("pages", r"\btoo much media:? (?P<given>[1-9]\d*) document pages \+ \d+ images > (?P<limit>\d+)"),
    ("pictures", r"\btoo much media:? \d+ document pages \+ (?P<given>\d+) images > (?P<limit>\d+)"),
    ("pictures", r"\btoo many images and documents:? (?P<given>\d+) \+ \d+ > (?P<limit>\d+)"),
    ("pictures", r"\bexceeded max(?:imum)? number of images \(?(?P<limit>\d+)"),
    ("pictures", r"\bat most (?P<limit>\d+) (?:image|picture|photo)"),
    ("pictures", r"\btoo many images\b.{0,40}?(?P<given>\d+) images? provided.{0,60}?max(?:imum)? of (?P<limit>\d+)"),
    ("pictures", r"\bmax(?:imum)? (?:of|is|number of images is)? ?(?P<limit>\d+) images"),
    ("pictures", r"\btoo many images\b.{0,40}?\bmax(?:imum)?(?: is| of|:)? (?P<limit>\d+)"),
    ("pictures", r"\bimages?\b.{0,60}\bmax(?:imum)? allowed is (?P<limit>\d+)|\btoo many (?:images|pictures|media)\b"),
    ("bytes", r"\bmax(?:imum)? bytes to request body ?:? (?P<limit>\d+)"),
    ("bytes", rf"\bimages? content cannot exceed {_SIZE}"),
    ("bytes", rf"\b(?:request|body|payload)\b.{{0,60}}\b(?:exceeds?|larger than|over|limit)\b.{{0,30}}?{_SIZE}"),
    ("bytes", r"\brequest exceeds the max(?:imum)? (?:allowed )?size|\brequest entity too large|\bpayload too large"),
    ("bytes", r"\b(?:request |body )?(?:body|entity|payload|content) (?:is )?too large|\blength limit exceeded"),
)
_PATTERNS = tuple((what, re.compile(pattern)) for what, pattern in _ROWS)
# What is said of a medium only beside the place where it stands: of which else would not be known.
_MEDIUM = r"(?:image|picture|pdf|document)"
_BAD = r"(?:invalid|unsupported|corrupt(?:ed)?|damaged|malformed)"
_OF_ONE = (
    rf"\b(?:could not|unable to|failed to|cannot) (?:process|decode|read|load|parse) (?:the |this )?{_MEDIUM}",
    rf"\b{_BAD} {_MEDIUM}|\b{_MEDIUM}\b.{{0,40}}\b(?:{_BAD}|not (?:valid|supported))",
)
_OF_A_PLACE = (*_PATTERNS, *(("one", re.compile(pattern)) for pattern in _OF_ONE))
_CODES = frozenset({"requesttoolarge", "payloadtoolarge", "requestentitytoolarge", "contenttoolarge"})
_STATUS_FIELDS = ("error", "code", "status", "status_code", "statusCode", "http_status")
_PLACE = re.compile(r"\b(?:messages|input)[.\[](?P<at>\d+)\]?")


@dataclass(frozen=True, slots=True)
class MediaRefusal:
    """limit, given: as stated; None where they are not. at: the item that an error names; None for none.

    is_certain: whether its words say so; else only a request of which media are a good part is refused for them.
    words: the sentence that says so, fit to be quoted.
    """

    what: What
    limit: int | None = None
    given: int | None = None
    at: int | None = None
    is_certain: bool = True
    words: str = ""


def media_refusal(status: int, body: bytes) -> MediaRefusal | None:
    """What such an error states; None for any other."""
    if status not in _STATUSES or len(body) > _MOST_READ:
        return None
    if not body.strip():
        return MediaRefusal("bytes", is_certain=False) if status == TOO_LARGE else None
    return _read(error_parts.error_part(body, failed=True), status)


def media_refusal_in(data: bytes, *, failed: bool) -> MediaRefusal | None:
    """The same of what an answer with another status reports: an event's data, or an object. failed: whether it is an
    error whatever it looks like."""
    if not data.strip() or len(data) > _MOST_READ:
        return None
    return _read(error_parts.error_part(data, failed=failed), _FAILED)


def _read(error: object, status: int) -> MediaRefusal | None:
    said = error_parts.strings_of(error)
    if _own_status(error) in rules.NEVER:
        return None
    if any(rules.matches(rules.VETOES, sentence) for sentence in error_parts.sentences(said)):
        return None
    texts = [text for _, text in said] or ([error] if isinstance(error, str) else [])
    for text in texts:
        plain = error_parts.plain(text[:2_000])
        place = _PLACE.search(text)
        for what, pattern in _PATTERNS if place is None else _OF_A_PLACE:
            if (found := pattern.search(plain)) is not None:
                return _stated(what, found, text, pattern)
    codes = {normal_code(value) for _, value in said}
    if status == TOO_LARGE or codes & _CODES:
        return MediaRefusal("bytes", is_certain=bool(codes & _CODES))
    return None


def _own_status(error: object) -> int | None:
    """That an error names itself, as gateways pass one on."""
    for value in map(error.get, _STATUS_FIELDS) if isinstance(error, dict) else ():
        if isinstance(value, dict):
            return _own_status(value)
        if isinstance(value, int | str) and str(value).isascii() and str(value).isdigit():
            return int(value)
    return None


def _stated(what: What, found: re.Match[str], text: str, pattern: re.Pattern[str]) -> MediaRefusal:
    groups = found.groupdict()
    limit, given = groups.get("limit"), groups.get("given")
    unit = _UNITS.get(groups.get("unit") or "", 1) if what == "bytes" else 1
    place = _PLACE.search(text)
    return MediaRefusal(
        what,
        int(float(limit) * unit) or None if limit else None,
        int(given) if given else None,
        int(place["at"]) if place else None,
        words=quotable(text, lambda sentence: pattern.search(error_parts.plain(sentence)) is not None),
    )
