"""The health of this replica and the others: a short text per part, with a link to details.

The line of every page, the overview, `/readyz?verbose` and the gauge `health` use `health_of`.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import Literal

import msgspec

from proxy.admin import words
from proxy.admin.access import Visitor
from proxy.admin.context import AdminContext
from proxy.admin.endpoints import find_endpoint, find_page
from proxy.sessions.replicas import Replica
from proxy.telemetry.events import RequestEnded

Level = Literal["good", "warn", "bad"]
_LEVELS: tuple[Level, ...] = ("good", "warn", "bad")

# Requests of the last so many seconds count.
_SPAN_SECONDS = 300.0
# The shares of failures that are a warning, and bad. Fewer failures than the minimum are never bad.
_WARN_SHARE = 0.05
_BAD_SHARE = 0.5
_MIN_BAD = 3
# The maximum number of upstreams, summarizers and tenants to name.
_MAX_NAMED = 5


class HealthPart(msgspec.Struct, frozen=True):
    """The health of one part.

    link: the page with details, below /admin/; empty if the visitor may not open it. kind: upstreams, requests,
    overflows, faults, summarizers, budgets, keys, prompts, store, replicas or config. advice: what to do; empty if the
    part is good, and for viewers of a tenant.
    """

    text: str
    level: Level = "good"
    link: str = ""
    kind: str = ""
    advice: str = ""


class Health(msgspec.Struct, frozen=True):
    """The health of the process.

    level: the worst of its parts. parts: the worst first. words: their texts.
    """

    level: Level
    words: list[str]
    parts: list[HealthPart] = []


ADVICE: Mapping[str, str] = MappingProxyType(
    {
        "upstreams": "Open a failed request: its page names the cause. docs/runbooks.md: ConcertinaUpstreamUnreachable",
        "requests": "Open the failed requests: each page shows how it ended and why.",
        "overflows": "Set models[].context_window to the upstream's real limit."
        " docs/runbooks.md: ConcertinaOverflowPassedOn",
        "faults": "The log has the reason. docs/runbooks.md: ConcertinaFailingOpen",
        "summarizers": "It is tried again automatically. Until then, records are made without a model."
        " docs/runbooks.md: ConcertinaSummarizerFailing",
        "budgets": "Records are made without a model until midnight UTC, or raise the budget."
        " docs/runbooks.md: ConcertinaSummaryBudget",
        "keys": "Their requests are refused. `concertina keys` shows the limits and changes them.",
        "prompts": "Raise the window of the server (num_ctx, --ctx-size). docs/runbooks.md: ConcertinaPromptsCutOff",
        "store": "Requests are served; records are made again by each replica. docs/runbooks.md: ConcertinaStoreDown",
        "replicas": "Give all replicas the same config file and the same store.secret."
        " docs/runbooks.md: ConcertinaConfigsDiffer",
        "config": "The last valid config is in force. Correct the file. docs/runbooks.md: ConcertinaConfigRefused",
    }
)
"""What to do about a part, by its kind."""


async def newest_health(context: AdminContext, visitor: Visitor, now: float) -> Health:
    """Return the health for the line of every page. The list of replicas may be some seconds old."""
    return health_of(context, visitor, visitor.tenant, await context.replicas.recent(), now)


def health_of(
    context: AdminContext, visitor: Visitor, tenant: str | None, replicas: Sequence[Replica], now: float
) -> Health:
    """Return the health of this replica and the others, the worst part first.

    Requests and budgets are those of one tenant, or of all. Requests are those of the last five minutes.
    """
    entries = takewhile(lambda entry: entry.event.at > now - _SPAN_SECONDS, context.recent.newest())
    requests = [
        entry.event
        for entry in entries
        if isinstance(entry.event, RequestEnded) and tenant in (None, entry.event.tenant)
    ]
    parts = [
        *_upstream_parts(requests),
        *_request_parts(requests),
        *(_summarizer_parts(context) if visitor.tenant is None else ()),
        *_budget_parts(context, tenant),
        *_setup_parts(context, now),
        *_replica_parts(replicas),
        HealthPart(f"up {words.span(round(now - context.started))}", kind="replicas"),
    ]
    shown = sorted((_part_for(visitor, part) for part in parts), key=lambda part: -_LEVELS.index(part.level))
    return Health(_worst(part.level for part in shown), [part.text for part in shown], shown)


def health_samples(context: AdminContext | None) -> list[tuple[tuple[str], float]]:
    """Return the level of each kind of part for the gauge `health`: 0, 1 or 2. The store is not read."""
    if context is None:
        return []
    health = health_of(context, Visitor("nobody"), None, context.replicas.known(), time.time())
    return [((kind,), _LEVELS.index(level)) for kind, level in levels_of(health).items()]


def levels_of(health: Health) -> dict[str, Level]:
    """Return the worst level of each kind of part, without names of tenants, upstreams and models."""
    kinds = sorted({part.kind for part in health.parts})
    return {kind: _worst(part.level for part in health.parts if part.kind == kind) for kind in kinds}


def _part_for(visitor: Visitor, part: HealthPart) -> HealthPart:
    """Return a part for a visitor, with a link only if the visitor may open the page."""
    link = part.link if _may_open(visitor, part.link) else ""
    advice = "" if part.level == "good" or visitor.tenant is not None else ADVICE[part.kind]
    return HealthPart(part.text, part.level, link, part.kind, advice)


def _worst(levels: Iterable[Level]) -> Level:
    return max(levels, key=_LEVELS.index)


def _may_open(visitor: Visitor, link: str) -> bool:
    """Return True if the visitor's role may open a page and its section."""
    page, _, section = link.partition("#")
    path, _, _ = page.partition("?")
    if not path or visitor.role not in find_page(path).roles:
        return False
    return not section or visitor.role in find_endpoint(section).roles


def _replica_parts(replicas: Sequence[Replica]) -> Iterator[HealthPart]:
    if len({each.digest for each in replicas}) > 1:
        yield HealthPart("replicas have different configs", "warn", "status#replicas", "replicas")
    if len({each.secret for each in replicas if each.secret}) > 1:
        text = "replicas have different store secrets, and cannot find each other's sessions"
        yield HealthPart(text, "warn", "status#replicas", "replicas")
    yield HealthPart(words.plural(len(replicas), "replica"), link="status#replicas", kind="replicas")


def _setup_parts(context: AdminContext, now: float) -> Iterator[HealthPart]:
    store, reloader = context.store, context.reloader
    kind = context.config.store.url.partition("://")[0]
    if store.available:
        yield HealthPart(f"store ({kind}) up", link="status#store", kind="store")
    else:
        since = words.clock(now - store.seconds_so)
        yield HealthPart(f"the store ({kind}) does not respond since {since}", "bad", "status#store", "store")
    if reloader.problems:
        text = f"the config file has {words.plural(reloader.problems, 'problem')}"
        yield HealthPart(text, "warn", "status#config", "config")
    else:
        yield HealthPart(f"config loaded {words.ago(reloader.taken_at, now)}", link="status#config", kind="config")


def _request_parts(requests: Sequence[RequestEnded]) -> Iterator[HealthPart]:
    """Yield the parts about requests. Relayed requests do not count: they fail for reasons of the client."""
    counted = [event for event in requests if event.wire != "relay"]
    failed = sum(not event.is_answered for event in counted)
    text = f"{_of(failed, len(counted))} failed in five minutes" if failed else "no request failed in five minutes"
    yield HealthPart(text, _level(failed, len(counted)), "live", "requests")
    too_long = sum(event.overflow == "passed_on" for event in counted)
    text = f"{words.plural(too_long, 'client')} got the error that a conversation is too long"
    if not too_long:
        text = "no client got the error that a conversation is too long"
    yield HealthPart(text, "bad" if too_long else "good", "sessions?state=failed", "overflows")
    if untouched := sum(event.compaction == "failed-open" for event in counted):
        text = f"{words.plural(untouched, 'request')} sent unchanged after a fault of the proxy"
        yield HealthPart(text, "warn", "live?outcome=failed-open", "faults")
    if refused := sum(event.code == "insufficient_quota" and not event.attempts for event in counted):
        text = f"{words.plural(refused, 'request')} of keys that are over their budget"
        yield HealthPart(text, "warn", "status#tenants", "keys")


def _upstream_parts(requests: Sequence[RequestEnded]) -> Iterator[HealthPart]:
    """Yield a part for each upstream that failed: unreachable, truncated, or with a 5xx response."""
    sent = [event for event in requests if event.attempts and event.upstream is not None]
    counts = Counter(event.upstream or "" for event in sent)
    failed = Counter(event.upstream or "" for event in sent if event.cause is not None or event.status >= 500)
    for name, number in failed.most_common(_MAX_NAMED):
        text = f"upstream {words.name(name)} failed {_of(number, counts[name])}"
        yield HealthPart(text, _level(number, counts[name]), "live?status=5xx", "upstreams")
    if counts and not failed:
        yield HealthPart(f"{words.plural(len(counts), 'upstream')} up", link="status#models", kind="upstreams")
    cut_off = Counter(event.upstream or "" for event in sent if event.warning == "prompt_cut_off")
    for name, number in cut_off.most_common(_MAX_NAMED):
        text = f"upstream {words.name(name)} cut off {words.plural(number, 'prompt')}"
        yield HealthPart(text, "warn", "status#models", "prompts")


def _summarizer_parts(context: AdminContext) -> Iterator[HealthPart]:
    for upstream, model in sorted(context.engine.summarizer.cooling_down())[:_MAX_NAMED]:
        text = f"summarizer {words.name(model)} of upstream {upstream} is paused after failures"
        yield HealthPart(text, "warn", "status#models", "summarizers")


def _budget_parts(context: AdminContext, tenant: str | None) -> Iterator[HealthPart]:
    shares = context.engine.spending.used_shares()
    spent = {name: share for name, share in shares.items() if share >= 1 and tenant in (None, name)}
    for name, share in sorted(spent.items(), key=lambda each: -each[1])[:_MAX_NAMED]:
        text = f"tenant {name} has used {words.share(share)} of its budget for summaries"
        yield HealthPart(text, "warn", "status#tenants", "budgets")


def _of(number: int, total: int) -> str:
    return f"{words.exact(number)} of {words.plural(total, 'request')}"


def _level(failed: int, total: int) -> Level:
    if failed >= _MIN_BAD and failed >= _BAD_SHARE * total:
        return "bad"
    return "warn" if failed and failed >= _WARN_SHARE * total else "good"
