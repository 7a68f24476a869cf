"""What to do about a request that failed, by what is known of it, and which runbook says more."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from proxy.telemetry.events import RequestEnded

_RUNBOOKS = "docs/runbooks.md"
_REFUSED = 'docs/troubleshooting.md, "401, 403, 429, 502, 503"'


class Remedy(msgspec.Struct, frozen=True):
    """What to do. runbook: the section of a document that says more."""

    text: str
    runbook: str


class _Rule(NamedTuple):
    holds: Callable[[RequestEnded], bool]
    text: str
    runbook: str


# The first that holds; the last one always does.
_RULES = (
    _Rule(
        lambda event: event.overflow == "passed_on",
        "Set the model's context_window to what the upstream takes, or send a smaller newest message.",
        f"{_RUNBOOKS}: ConcertinaOverflowPassedOn",
    ),
    _Rule(
        lambda event: event.end == "client_gone",
        "The client disconnected. If many do, raise its timeout, or look for what was slow below.",
        f"{_RUNBOOKS}: ConcertinaSummaryWaits",
    ),
    _Rule(
        lambda event: event.code == "compaction_failed",
        "Mend the summarizer or the store, or let the policy fail open.",
        f"{_RUNBOOKS}: ConcertinaSummarizerFailing",
    ),
    _Rule(
        lambda event: event.cause is not None,
        "Mend the name, the network or the certificate; concertina doctor tries each step.",
        f"{_RUNBOOKS}: ConcertinaUpstreamUnreachable",
    ),
    _Rule(
        lambda event: event.code in ("server_overloaded", "too_many_open_files", "request_deadline"),
        "Add workers or replicas, or raise the limit that the code names.",
        f"{_RUNBOOKS}: ConcertinaLoopLag",
    ),
    _Rule(
        lambda event: event.code is not None,
        "The proxy refused it; the table has what each code means, and the setting behind it.",
        _REFUSED,
    ),
    _Rule(
        lambda event: event.status in (401, 403),
        "Check the key that the upstream got: the client's own, or api_key of the upstream in the config.",
        f"{_RUNBOOKS}: ConcertinaUpstreamUnreachable",
    ),
    _Rule(
        lambda event: event.status == 429,
        "The upstream limits this key: send less at once, or ask the provider for more.",
        f"{_RUNBOOKS}: ConcertinaUpstreamUnreachable",
    ),
    _Rule(
        lambda event: event.status >= 500 or event.status == 0,
        "The upstream failed. Look at the provider's status page; the client may send it again.",
        f"{_RUNBOOKS}: ConcertinaUpstreamUnreachable",
    ),
    _Rule(
        lambda event: event.compaction == "failed-open",
        "A fault of the proxy's came first: the log has its line.",
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
