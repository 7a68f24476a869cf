"""Refusals of prompts that are longer than an account may send, though the model takes them.

Waiting does not help, a shorter prompt does. The same words also come to small prompts, or where an account has sent
much lately: only numbers, ours or theirs, tell those apart. What no rule here names stays as the upstream answered it.
"""

import re
from collections.abc import Iterator

from policies.decision.overflow_retries import StatedLimit
from proxy.upstreams.refusals import error_parts
from proxy.upstreams.refusals.rules import matches, patterns

# 200: an error in a stream. 413: Groq's.
_STATUSES = frozenset({200, 400, 403, 413, 429})
# What every account may send (platform.claude.com, "Context windows"); a click in its settings changes that.
_WINDOW, _HOLDS = 200_000, 3600.0
# Share of it from which on a prompt is refused for its size.
_FROM = 0.9
_UNPAID = frozenset({403, 429})
_REFUSALS = patterns(
    r"\b(?:extra usage|usage credits?|credits|a long context entitlement)\b.{0,40}\b(?:required|needed|necessary)\b"
    r".{0,40}\blong.context\b",
    r"\blong.context\b.{0,40}\b(?:requests?|prompts?)\b.{0,40}\b(?:needs?|requires?)\b.{0,20}"
    r"\b(?:extra usage|usage credits?)\b",
    r"\bout of extra usage\b",
)
# OpenAI's and its kin: a request that no minute has room for, what it asks for as an answer counted in.
_TOO_LARGE = re.compile(
    r"request too large\b.{0,200}?(?:\btpm\b|tokens per min).{0,40}?\blimit:? (\d+)\b.{0,10}?\brequested:? (\d+)"
)
# Anthropic's: a minute's input, of which what its cache serves does not count.
_PER_MINUTE = re.compile(r"\bwould exceed\b.{0,80}?\brate limit of (\d+) input tokens per minute")
# Gemini's, by its name of the quota.
_QUOTA = re.compile(r"(?:input ?tokens?|tokens?)\w{0,40}per ?minute", re.IGNORECASE)
_QUOTA_FIELDS = ("quotaId", "quotaValue")


def account_limit(status: int, body: bytes) -> StatedLimit | None:
    """The limit of such a refusal, to be looked at beside what was sent; None for any other."""
    if status not in _STATUSES:
        return None
    error = error_parts.error_part(body, failed=status != 200)
    said = error_parts.strings_of(error)
    if status in _UNPAID and any(matches(_REFUSALS, sentence) for sentence in error_parts.sentences(said)):
        return StatedLimit(_WINDOW, kind="input", action="inspect", from_share=_FROM, holds=_HOLDS)
    for _, text in said:
        plain = error_parts.plain(text[:2_000])
        if (found := _TOO_LARGE.search(plain)) is not None and int(found[1]) < int(found[2]):
            return StatedLimit(int(found[1]), kind="tier")
        if (found := _PER_MINUTE.search(plain)) is not None:
            return _of_a_minute(int(found[1]))
    limits = [limit for limit in _quotas(error, 0) if limit > 0]
    return _of_a_minute(min(limits)) if limits else None


def _of_a_minute(limit: int) -> StatedLimit:
    """Hopeless for a prompt that alone is more, unless a cache serves it; a summarizer would be refused too."""
    return StatedLimit(
        limit, kind="tier", learnable=False, action="inspect", from_share=1.0, is_uncached=True, with_model=False
    )


def _quotas(value: object, depth: int) -> Iterator[int]:
    """What violated quotas of tokens a minute allow, as Google's APIs list them."""
    if depth > 8:
        return
    if isinstance(value, list):
        for each in value[:20]:
            yield from _quotas(each, depth + 1)
    elif isinstance(value, dict):
        name, allowed = (value.get(field) for field in _QUOTA_FIELDS)
        if isinstance(name, str) and _QUOTA.search(name) and str(allowed).isascii() and str(allowed).isdigit():
            yield int(str(allowed))
        for each in value.values():
            yield from _quotas(each, depth + 1)
