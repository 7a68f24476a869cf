"""Whether an upstream's error says that the context window overflowed, and what it says about the limit.

Layers, in this order: codes that suffice, vetoes (rate limits, billing, output caps …), wordings. Only the error part
of an answer is read, never generated text or an echoed prompt. Any doubt is "no": the error is passed on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from policies.ladder import StatedLimit

MAX_ERROR_BYTES = 64 * 1024
_MAX_TEXT = 4_000
_MAX_UNWRAP = 4

# Statuses with which no true overflow was ever seen.
_NEVER = frozenset({401, 402, 403, 407, 408, 429, 499, 529})

# Values of code, type or status that mean an overflow whatever else is said, and in no other case.
_SUFFICIENT = frozenset(
    {
        "context_length_exceeded",
        "exceed_context_size_error",
        "context_exceeded",
        "context_window_exceeded",
        "model_max_prompt_tokens_exceeded",
        "tokens_limit_reached",
        "token_quantity_exceeded",
        "outofcontexterror",
        "contextwindowexceedederror",
        "model_context_window_exceeded",
    }
)

_VETO = re.compile(
    r"tokens? per (?:minute|day|hour)|\b[TR]P[MD]\b|rate.?limit|retry after|quota|credits?\b|billing|balance|afford|"
    r"budget|overloaded|deadline|timed? ?out|cancell?ed|api key|unauthorized|permission|not found|content.?filter|"
    r"array too long|tool_call_id|tool_use|image|pdf|minimum token|"
    r"max(?:imum)? output tokens|fewer output tokens|max_tokens is too large|max_tokens must be|"
    r"速率|余额|频率|限流|鉴权",
    re.IGNORECASE,
)

# How overflows are worded, one row a family. `limit` and `input` name the numbers a sentence states.
_WORDINGS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"max(?:imum)? (?:\w+ ){0,2}(?:context|sequence|prompt|input|model)[ _](?:length|size|window)[^.]{0,60}?"
        r"(?P<limit>\d[\d,]{2,})",
        r"(?P<limit>\d[\d,]{2,}) max(?:imum)? context length",
        r"max(?:imum)? input tokens[^\d]{0,5}(?P<limit>\d[\d,]{2,})",
        r"input token count[^.]{0,40}supports up to (?P<limit>\d[\d,]{2,})",
        r"context (?:limit|window|length)(?: is|:)? (?P<limit>\d[\d,]{2,})|exceed context limit|ContextWindowExceeded",
        r"tokens in request more than max tokens",
        r"max_(?:model|seq|position)_?len\w*[^.\d]{0,30}(?P<limit>\d[\d,]{2,})",
        r"(?P<input>\d[\d,]*) tokens?\)? exceeds? (?:the )?(?:available |maximum )?context (?:size|length|window)"
        r"[^\d]{0,20}(?P<limit>\d[\d,]{2,})?",
        r"(?:prompt|input|request|messages?|conversation)[^.]{0,40} too (?:long|large)[^\d]{0,20}"
        r"(?:(?P<input>\d[\d,]*) tokens? > (?P<limit>\d[\d,]{2,}))?",
        r"(?:prompt|input|tokens?|length|request|messages?)[^.]{0,60}exceed(?:s|ed|ing)?[^.]{0,40}"
        r"(?:context|window|max\w*[^.]{0,20}(?:length|tokens?|size)|token limit)[^\d]{0,40}(?P<limit>\d[\d,]{2,})?",
        r"context (?:size|length|window)[^.]{0,30}(?:exceeded|overflow|too small)",
        r"(?:longer|greater|larger) than[^.]{0,40}(?:context|max\w*)[ _](?:length|size|window|len)"
        r"[^\d]{0,20}(?P<limit>\d[\d,]{2,})?",
        r"must (?:be <=|have less than|be less than)[^\d]{0,20}(?P<limit>\d[\d,]{2,})[^.]{0,20}",
        r"range of input length should be \[\d+, ?(?P<limit>\d[\d,]{2,})\]",
        r"reduce the length of (?:the|your) (?:messages|input|prompt)",
        r"(?:超出|超过|超限).{0,8}上下文|上下文.{0,12}(?:过长|超出|超过|压缩|超限)|(?:输入|提示词?).{0,8}(?:过长|超出|超过).{0,12}(?:长度|token|上限)?",
    )
)
_LIMITS = (
    re.compile(r"(?P<n>\d[\d,]{2,}) max(?:imum)? context length", re.IGNORECASE),
    re.compile(r"(?:tokens?|\+ \d+) > (?P<n>\d[\d,]{2,})", re.IGNORECASE),
    re.compile(r"context (?:length|limit|window)(?: is|:)? (?P<n>\d[\d,]{2,})", re.IGNORECASE),
    re.compile(r"max(?:imum)? input tokens[^\d]{0,5}(?P<n>\d[\d,]{2,})", re.IGNORECASE),
    re.compile(r"supports up to (?P<n>\d[\d,]{2,})", re.IGNORECASE),
    re.compile(r"max(?:imum)? (?:\w+ ){0,3}(?:length|size|window)[^.\d]{0,60}(?P<n>\d[\d,]{2,})", re.IGNORECASE),
    re.compile(r"available context size \((?P<n>\d[\d,]{2,})", re.IGNORECASE),
    re.compile(r"limit(?: of| is|:)? (?P<n>\d[\d,]{2,})", re.IGNORECASE),
)
_INPUTS = (
    re.compile(r"\((?P<n>\d[\d,]*) in (?:the|your) (?:messages|prompt)", re.IGNORECASE),
    re.compile(r"(?:messages|prompt|input|request)[^.\d]{0,30}?(?P<n>\d[\d,]+) (?:input )?tokens", re.IGNORECASE),
    re.compile(r"resulted in (?P<n>\d[\d,]+) tokens", re.IGNORECASE),
    re.compile(r"\((?P<n>\d[\d,]+) tokens\)", re.IGNORECASE),
    re.compile(r"(?P<n>\d[\d,]+) tokens? > ", re.IGNORECASE),
)
# Servers that stop counting at the limit say so; their number is a lower bound and calibrates nothing.
_LOWER_BOUND = re.compile(r"at least", re.IGNORECASE)


def classify(status: int, body: bytes) -> StatedLimit | None:
    """What an overflow error states (each part may be None), or None where the answer is no overflow."""
    if status in _NEVER or len(body) > MAX_ERROR_BYTES:
        return None
    error = error_part(body)
    if error is None:
        return None
    fields = list(_strings(error, 0))
    text = "\n".join(value[:_MAX_TEXT] for _, value in fields if not value.isdecimal())[: 4 * _MAX_TEXT]
    if any(value.lower() in _SUFFICIENT for key, value in fields if key in ("code", "type", "status", "error_type")):
        return _stated(error, text)
    if _VETO.search(text) or status >= 502:
        return None
    return _stated(error, text) if any(wording.search(text) for wording in _WORDINGS) else None


def error_part(body: bytes) -> object:
    """The part of an answer that reports an error; None where it is an ordinary answer."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        text = body.decode("utf-8", "replace")
        return None if "data:" in text else text
    if isinstance(answer, list):
        return answer[0] if answer else None
    if not isinstance(answer, dict) or "choices" in answer or "output" in answer:
        return None
    for key in ("error", "errors", "detail"):
        if answer.get(key):
            return answer[key]
    return answer


def _strings(value: object, depth: int, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string of an error with its key; JSON inside a string is unwrapped."""
    if depth > 2 * _MAX_UNWRAP:
        return
    if isinstance(value, str):
        yield key, value
        start = value.find("{")
        if 0 <= start < _MAX_TEXT and depth < _MAX_UNWRAP:
            inner = _embedded(value[start:])
            if inner is not None:
                yield from _strings(inner, depth + 1)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _strings(item, depth + 1, str(name))
    elif isinstance(value, list):
        for item in value[:20]:
            yield from _strings(item, depth + 1, key)


def _embedded(text: str) -> object:
    end = text.rfind("}")
    try:
        return msgspec.json.decode(text[: end + 1]) if end > 0 else None
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def _stated(error: object, text: str) -> StatedLimit:
    structured = error if isinstance(error, dict) else {}
    limit = _number(structured.get("n_ctx")) or _search(_LIMITS, text) or _limit_of_wording(text)
    given = _number(structured.get("n_prompt_tokens")) or _search(_INPUTS, text)
    if _LOWER_BOUND.search(text) or (limit and given and given <= limit):
        given = None
    return StatedLimit(limit, given)


def _limit_of_wording(text: str) -> int | None:
    for wording in _WORDINGS:
        match = wording.search(text)
        if match and "limit" in wording.groupindex and match["limit"]:
            return _number(match["limit"])
    return None


def _search(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    return next((_number(match["n"]) for pattern in patterns if (match := pattern.search(text))), None)


def _number(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if 0 < value < 1_000_000_000 else None
    if isinstance(value, str):
        digits = value.replace(",", "")
        return int(digits) if digits.isdecimal() and 0 < len(digits) < 10 else None
    return None
