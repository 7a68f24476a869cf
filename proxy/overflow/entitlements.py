"""Refusals of prompts that are longer than an account has paid for, though the model takes them.

Anthropic sends prompts of more than 200,000 tokens back with 403 or 429 to accounts without extra usage. Waiting does
not help; a shorter prompt does. The same words also come to small prompts, of which only their size tells that they
mean something else.
"""

from policies.ladder import StatedLimit
from proxy.overflow import error_parts
from proxy.overflow.rules import matches, patterns

_STATUSES = frozenset({403, 429})
# What every account may send (platform.claude.com, "Context windows").
_WINDOW = 200_000
_REFUSALS = patterns(
    r"\b(?:extra usage|usage credits?|credits|a long context entitlement)\b.{0,40}\b(?:required|needed|necessary)\b"
    r".{0,40}\blong.context\b",
    r"\blong.context\b.{0,40}\b(?:requests?|prompts?)\b.{0,40}\b(?:needs?|requires?)\b.{0,20}"
    r"\b(?:extra usage|usage credits?)\b",
    r"\bout of extra usage\b",
)


def unentitled_limit(status: int, body: bytes) -> StatedLimit | None:
    """The limit of such a refusal, to be looked at beside what was sent; None for any other."""
    if status not in _STATUSES:
        return None
    said = error_parts.strings_of(error_parts.error_part(body, failed=True))
    if not any(matches(_REFUSALS, sentence) for sentence in error_parts.sentences(said)):
        return None
    return StatedLimit(_WINDOW, kind="input", action="inspect")
