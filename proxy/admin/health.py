"""The health of this replica and of the others: each part in a few words, with a link to the page with details."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from proxy.admin import words
from proxy.admin.access import Visitor
from proxy.admin.context import AdminContext
from proxy.admin.endpoints import find_page
from proxy.admin.overview import Health, HealthPart, Level
from proxy.sessions.replicas import Replica
from proxy.telemetry.events import RequestEnded

_LEVELS: tuple[Level, ...] = ("good", "warn", "bad")

# Requests of so many seconds are looked at.
_LOOKED_BACK = 300.0
# Shares of them from which on failures are worth a look, and bad; the latter not of fewer failures than this.
_SOME = 0.05
_MANY = 0.5
_LEAST = 3
# Upstreams, summarizers and tenants that are named.
_MOST_NAMED = 5


def health_of(
    context: AdminContext, visitor: Visitor, tenant: str | None, passed_on: int, replicas: Sequence[Replica], now: float
) -> Health:
    """Return the health of this replica and those beside it. Requests and budgets are of one tenant, or of all.

    passed_on: overflows that reached clients in the span that is shown.
    """
    entries = takewhile(lambda entry: entry.event.at > now - _LOOKED_BACK, context.recent.newest())
    requests = [
        entry.event
        for entry in entries
        if isinstance(entry.event, RequestEnded) and tenant in (None, entry.event.tenant)
    ]
    parts = [
        HealthPart(words.plural(len(replicas), "replica"), link="replicas"),
        HealthPart(f"up {words.span(round(now - context.started))}"),
        *_replica_parts(replicas),
        *_setup_parts(context, now),
        *_request_parts(requests),
        *_upstream_parts(requests),
        HealthPart(
            f"{words.exact(passed_on) if passed_on else 'nothing'} passed on",
            "bad" if passed_on else "good",
            "sessions?state=failed",
        ),
        *(_summarizer_parts(context) if visitor.tenant is None else ()),
        *_budget_parts(context, tenant),
    ]
    shown = [part if _may_open(visitor, part.link) else HealthPart(part.text, part.level) for part in parts]
    return Health(_worst(part.level for part in shown), [part.text for part in shown], shown)


def _worst(levels: Iterable[Level]) -> Level:
    return max(levels, key=_LEVELS.index)


def _may_open(visitor: Visitor, link: str) -> bool:
    path, _, _ = link.partition("?")
    return bool(path) and visitor.role in find_page(path).roles


def _replica_parts(replicas: Sequence[Replica]) -> Iterator[HealthPart]:
    if len({each.digest for each in replicas}) > 1:
        yield HealthPart("replicas have different configs", "warn", "replicas")
    if len({each.secret for each in replicas if each.secret}) > 1:
        text = "replicas have different store secrets, and find no sessions of each other"
        yield HealthPart(text, "warn", "replicas")


def _setup_parts(context: AdminContext, now: float) -> Iterator[HealthPart]:
    store, reloader = context.store, context.reloader
    kind = context.config.store.url.partition("://")[0]
    if store.available:
        yield HealthPart(f"store ({kind}) up", link="store")
    else:
        since = words.clock(now - store.seconds_so)
        yield HealthPart(f"the store ({kind}) does not answer since {since}", "bad", "store")
    if reloader.problems:
        text = f"the config file has {words.plural(reloader.problems, 'problem')}"
        yield HealthPart(text, "warn", "config")
    else:
        yield HealthPart(f"config taken {words.ago(reloader.taken_at, now)}", link="config")


def _request_parts(requests: Sequence[RequestEnded]) -> Iterator[HealthPart]:
    """Yield the parts about requests. Relayed requests are not counted: they fail for reasons of the client."""
    asked = [event for event in requests if event.wire != "relay"]
    failed = sum(not event.is_answered for event in asked)
    text = f"{_of(failed, len(asked))} failed in five minutes"
    yield HealthPart(text if failed else "no request failed in five minutes", _level(failed, len(asked)), "live")
    if untouched := sum(event.compaction == "failed-open" for event in asked):
        text = f"{words.plural(untouched, 'request')} sent unchanged after a fault of the proxy"
        yield HealthPart(text, "warn", "live?outcome=failed-open")
    if refused := sum(event.code == "insufficient_quota" and not event.attempts for event in asked):
        text = f"{words.plural(refused, 'request')} of keys that have used their budget"
        yield HealthPart(text, "warn", "tenants")


def _upstream_parts(requests: Sequence[RequestEnded]) -> Iterator[HealthPart]:
    """Return a part for each upstream that failed: it was not reached, broke off, or answered 5xx."""
    sent = [event for event in requests if event.attempts and event.upstream is not None]
    asked = Counter(event.upstream or "" for event in sent)
    failed = Counter(event.upstream or "" for event in sent if event.cause is not None or event.status >= 500)
    for name, number in failed.most_common(_MOST_NAMED):
        text = f"upstream {words.name(name)} failed {_of(number, asked[name])}"
        yield HealthPart(text, _level(number, asked[name]), "live?status=5xx")
    if asked and not failed:
        yield HealthPart(f"{words.plural(len(asked), 'upstream')} up", link="models")
    cut_off = Counter(event.upstream or "" for event in sent if event.warning == "prompt_cut_off")
    for name, number in cut_off.most_common(_MOST_NAMED):
        yield HealthPart(f"upstream {words.name(name)} cut off {words.plural(number, 'prompt')}", "warn", "models")


def _summarizer_parts(context: AdminContext) -> Iterator[HealthPart]:
    for upstream, model in sorted(context.engine.summarizer.cooling_down())[:_MOST_NAMED]:
        text = f"summarizer {words.name(model)} of upstream {upstream} rests after failures"
        yield HealthPart(text, "warn", "models")


def _budget_parts(context: AdminContext, tenant: str | None) -> Iterator[HealthPart]:
    shares = context.engine.spending.used_shares()
    spent = {name: share for name, share in shares.items() if share >= 1 and tenant in (None, name)}
    for name, share in sorted(spent.items(), key=lambda each: -each[1])[:_MOST_NAMED]:
        text = f"tenant {name} has used {words.share(share)} of its budget for summaries"
        yield HealthPart(text, "warn", "tenants")


def _of(number: int, total: int) -> str:
    return f"{words.exact(number)} of {words.plural(total, 'request')}"


def _level(failed: int, total: int) -> Level:
    if failed >= _LEAST and failed >= _MANY * total:
        return "bad"
    return "warn" if failed and failed >= _SOME * total else "good"
