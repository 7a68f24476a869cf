"""Rejections of prompts that are longer than an account may send, though the model accepts them.

Waiting does not help, but a shorter prompt does. The same texts also come for small prompts, or if an account has
recently sent much. Only numbers, the proxy's or the upstream's, distinguish these. An error that no rule here matches
stays unchanged.
"""

import re
from collections.abc import Iterator

from policies.decision.overflow_retries import StatedLimit
from proxy.upstreams.refusals import error_parts
from proxy.upstreams.refusals.rules import matches, patterns

# 200: an error in a stream. 413: Groq's status.
_STATUSES = frozenset({200, 400, 403, 413, 429})
# The limit of every account (platform.claude.com, "Context windows"). A setting of the account changes it.
_WINDOW, _HOLDS = 200_000, 3600.0
# Share of it from which a prompt is rejected for its size.
_FROM = 0.9
_UNPAID = frozenset({403, 429})
_REFUSALS = patterns(
    r"\b(?:extra usage|usage credits?|credits|a long context entitlement)\b.{0,40}\b(?:required|needed|necessary)\b"
    r".{0,40}\blong.context\b",
    r"\blong.context\b.{0,40}\b(?:requests?|prompts?)\b.{0,40}\b(?:needs?|requires?)\b.{0,20}"
    r"\b(?:extra usage|usage credits?)\b",
    r"\bout of extra usage\b",
)
# OpenAI and similar: a request larger than a minute's tokens, including the requested output.
_TOO_LARGE = re.compile(
    r"request too large\b.{0,200}?(?:\btpm\b|tokens per min).{0,40}?\blimit:? (\d+)\b.{0,10}?\brequested:? (\d+)"
)
# Anthropic: the input of a minute, without the tokens served by its cache.
_PER_MINUTE = re.compile(r"\bwould exceed\b.{0,80}?\brate limit of (\d+) input tokens per minute")
# Gemini: the name of its quota.
_QUOTA = re.compile(r"(?:input ?tokens?|tokens?)\w{0,40}per ?minute", re.IGNORECASE)
_QUOTA_FIELDS = ("quotaId", "quotaValue")


def account_limit(status: int, body: bytes) -> StatedLimit | None:
    """Return the limit of such a rejection, to be compared with the sent prompt; None for any other error."""
    if status not in _STATUSES:
        return None
    error = error_parts.error_part(body, failed=status != 200)
    strings = error_parts.strings_of(error)
    if status in _UNPAID and any(matches(_REFUSALS, sentence) for sentence in error_parts.sentences(strings)):
        return StatedLimit(_WINDOW, kind="input", action="inspect", from_share=_FROM, holds=_HOLDS)
    for _, text in strings:
        plain = error_parts.plain(text[:2_000])
        if (match := _TOO_LARGE.search(plain)) is not None and int(match[1]) < int(match[2]):
            return StatedLimit(int(match[1]), kind="tier")
        if (match := _PER_MINUTE.search(plain)) is not None:
            return _minute_limit(int(match[1]))
    limits = [limit for limit in _quotas(error, 0) if limit > 0]
    return _minute_limit(min(limits)) if limits else None


def _minute_limit(limit: int) -> StatedLimit:
    """Return the limit of a minute. A larger prompt never succeeds, unless a cache serves it, nor does a summarizer."""
    return StatedLimit(
        limit, kind="tier", learnable=False, action="inspect", from_share=1.0, is_uncached=True, with_model=False
    )


def _quotas(value: object, depth: int) -> Iterator[int]:
    """Yield the token limits per minute of violated quotas, as Google's APIs list them."""
    if depth > 8:
        return
    if isinstance(value, list):
        for item in value[:20]:
            yield from _quotas(item, depth + 1)
    elif isinstance(value, dict):
        name, allowed = (value.get(field) for field in _QUOTA_FIELDS)
        if isinstance(name, str) and _QUOTA.search(name) and str(allowed).isascii() and str(allowed).isdigit():
            yield int(str(allowed))
        for item in value.values():
            yield from _quotas(item, depth + 1)
