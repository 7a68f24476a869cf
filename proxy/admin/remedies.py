"""Advice about a failed request, and the runbook with more."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from proxy.telemetry.events import RequestEnded

_RUNBOOKS = "docs/runbooks.md"
_REFUSED = 'docs/troubleshooting.md, "401, 403, 429, 502, 503"'


class Remedy(msgspec.Struct, frozen=True):
    """Advice about a failed request.

    runbook: a section of a document with more.
    """

    text: str
    runbook: str


class _Rule(NamedTuple):
    holds: Callable[[RequestEnded], bool]
    text: str
    runbook: str


# The first matching rule wins. The last one always matches.
_RULES = (
    _Rule(
        lambda event: event.overflow == "passed_on",
        "Set the model's context_window to the upstream's real limit, or send a smaller newest message.",
        f"{_RUNBOOKS}: ConcertinaOverflowPassedOn",
    ),
    _Rule(
        lambda event: event.end == "client_gone",
        "The client disconnected. If many do, raise the client's timeout, or see below which stage was slow.",
        f"{_RUNBOOKS}: ConcertinaSummaryWaits",
    ),
    _Rule(
        lambda event: event.code == "compaction_failed",
        "Repair the summarizer or the store, or let the policy fail open.",
        f"{_RUNBOOKS}: ConcertinaSummarizerFailing",
    ),
    _Rule(
        lambda event: event.cause is not None,
        "Correct the name, the network or the certificate; `concertina doctor` tries each step.",
        f"{_RUNBOOKS}: ConcertinaUpstreamUnreachable",
    ),
    _Rule(
        lambda event: event.code in ("server_overloaded", "too_many_open_files", "request_deadline"),
        "Add workers or replicas, or raise the limit that the code names.",
        f"{_RUNBOOKS}: ConcertinaLoopLag",
    ),
    _Rule(
        lambda event: event.code is not None,
        "The proxy refused it; the table has the meaning of each code, and its setting.",
        _REFUSED,
    ),
    _Rule(
        lambda event: event.status in (401, 403),
        "Check the key sent to the upstream: the client's own, or api_key of the upstream in the config.",
        f"{_RUNBOOKS}: ConcertinaUpstreamUnreachable",
    ),
    _Rule(
        lambda event: event.status == 429,
        "The upstream limits this key: send fewer requests at once, or ask the provider for a higher limit.",
        f"{_RUNBOOKS}: ConcertinaUpstreamUnreachable",
    ),
    _Rule(
        lambda event: event.status >= 500 or event.status == 0,
        "The upstream failed. Check the provider's status page; the client may retry.",
        f"{_RUNBOOKS}: ConcertinaUpstreamUnreachable",
    ),
    _Rule(
        lambda event: event.compaction == "failed-open",
        "A fault of the proxy came first; see the log.",
        f"{_RUNBOOKS}: ConcertinaFailingOpen",
    ),
    _Rule(
        lambda _: True,
        "The upstream refused what the client sent; its error text names the field.",
        _REFUSED,
    ),
)


def remedy_of(event: RequestEnded) -> Remedy:
    """Return what to do about a request that failed."""
    rule = next(rule for rule in _RULES if rule.holds(event))
    return Remedy(rule.text, rule.runbook)
