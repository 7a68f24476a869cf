"""What a visitor may see of the running proxy: one value a view, the same for pages and the API."""

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar

from starlette.requests import Request

from policies.chain import mark_of
from proxy.admin import overview, records, sessions, setup, words
from proxy.admin.access import Visitor
from proxy.admin.overview import Figures, Health, Overview, Span
from proxy.admin.recent import Filter, Recent
from proxy.admin.sessions import ID_DIGITS, Listing, SessionView, Wishes
from proxy.admin.setup import Model, Probe, StoreView, TenantRow, TenantView
from proxy.admin.trails import Trails
from proxy.callers.tenants import Caller
from proxy.config.reloading import Reloader
from proxy.config.settings import DEFAULT, Config
from proxy.engine.engine import Engine
from proxy.errors import InvalidRequestError, NotAllowedError, NotFoundError, StoreUnavailableError
from proxy.observing.events import AdminActed, CompactionEnded
from proxy.records.index import Session, Target
from proxy.records.kept_figures import KeptFigures
from proxy.records.replicas import Replicas
from proxy.stores import CircuitBreaker, StoreError
from proxy.upstream.active import Active


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The parts of the running proxy. openmetrics: None where several workers answer as one. in_flight: requests
    under way by tenant. name: this replica's. started: Unix seconds."""

    store: CircuitBreaker
    engine: Engine
    active: Callable[[], Active]
    is_draining: Callable[[], bool]
    reloader: Reloader
    in_flight: Mapping[str, int]
    exposition: Callable[[], Awaitable[bytes]]
    openmetrics: Callable[[], Awaitable[bytes]] | None
    recent: Recent
    trails: Trails
    figures: KeptFigures
    replicas: Replicas
    name: str
    started: float

    @property
    def config(self) -> Config:
        """In force now."""
        return self.reloader.config


_T = TypeVar("_T")
_PROBE_TTL = 10.0


def tenant_of(request: Request, visitor: Visitor, opened: Opened) -> Caller:
    """The tenant that `?tenant=` names; unsaid, a viewer's own, else the default one."""
    return named_tenant(request.query_params.get("tenant", ""), visitor, opened)


def named_tenant(name: str, visitor: Visitor, opened: Opened) -> Caller:
    """The tenant of this name; without one a viewer's own, else the default one."""
    name = name or visitor.tenant or DEFAULT
    caller = opened.active().tenants.named(name)
    if not visitor.sees(name):
        raise NotAllowedError("Your key opens another tenant's pages.", param="tenant")
    if caller is None:
        raise NotFoundError("No tenant has this name; say which by ?tenant=NAME.", param="tenant")
    return caller


def viewed_tenant(request: Request, visitor: Visitor, opened: Opened) -> str | None:
    """The tenant that `?tenant=` names, a viewer's own, else None for all."""
    if visitor.tenant is None and not request.query_params.get("tenant"):
        return None
    return tenant_of(request, visitor, opened).tenant


def asked_of(request: Request, visitor: Visitor) -> tuple[Filter, int | None]:
    """Which requests are wanted, and before which cursor; a viewer gets its own tenant's."""
    asked = {name: request.query_params.get(name, "") for name in Filter._fields}
    if visitor.tenant is not None:
        asked["tenant"] = visitor.tenant
    cursor = request.query_params.get("cursor", "")
    if cursor and not (cursor.isascii() and cursor.isdigit()):
        raise InvalidRequestError("A cursor is a number that a page before has told.", param="cursor")
    return Filter(**asked), int(cursor) if cursor else None


async def answered(look: Awaitable[_T]) -> _T:
    """What the store says of its sessions; raises StoreUnavailableError where it says nothing."""
    try:
        return await look
    except StoreError:
        raise StoreUnavailableError(
            "The store could not say which sessions there are; none was erased. Try again."
        ) from None


async def list_sessions(opened: Opened, visitor: Visitor, wishes: Wishes) -> Listing:
    """A page of the sessions of one tenant, or of all that the visitor sees."""
    names = [name for name in opened.config.tenants if visitor.sees(name) and wishes.tenant in ("", name)]
    trails = [trail for trail in opened.trails.newest() if trail.key.tenant in names]
    stored, is_answered = await _stored(opened, names)
    found = sessions.listing(trails, stored, wishes)
    return found if is_answered else Listing(found.sessions, found.cursor, store=False)


async def _stored(opened: Opened, tenants: Sequence[str]) -> tuple[list[tuple[str, Session]], bool]:
    """What the store has of these tenants, and whether it could say."""
    found: list[tuple[str, Session]] = []
    for name in tenants:
        caller = opened.active().tenants.named(name)
        try:
            found += [(name, session) for session in await opened.engine.sessions.of(caller)] if caller else []
        except StoreError:
            return found, False
    return found, True


async def session_view(opened: Opened, caller: Caller, name: str, label: str | None) -> SessionView:
    """The session of this conversation and label; without a label the one that was used last. Raises NotFoundError."""
    trails = opened.trails.of(caller.tenant, name)
    chosen = [trail for trail in trails if label in (None, trail.key.label)]
    stored = await stored_session(opened, caller, name, chosen[0].key.label if chosen else label or "")
    if chosen:
        others = [trail.key.label for trail in trails if trail is not chosen[0]]
        return sessions.view(
            chosen[0], opened.trails.prompt(chosen[0].key), is_stored=stored is not None, labels=others
        )
    if stored is None:
        raise NotFoundError("No session is known by this id and label: it was erased, or has expired.")
    return sessions.view_of_stored(caller.tenant, stored)


async def stored_session(opened: Opened, caller: Caller, name: str, label: str) -> Session | None:
    """What the store has of a session; None also where it does not answer."""
    try:
        return await opened.engine.sessions.find(caller, name, label)
    except StoreError:
        return None


async def record_rows(opened: Opened, caller: Caller, name: str, label: str) -> list[records.Row]:
    """The records of a session, the newest first."""
    session = await stored_session(opened, caller, name, label)
    return [records.row_of(record) for record in await records.lineage(opened.engine.checkpoints, session)]


async def record_view(
    opened: Opened, caller: Caller, name: str, label: str, digest: str, against: str | None
) -> records.View:
    """One record beside another of its session: unsaid, the one that it continues. Raises NotFoundError."""
    session = await stored_session(opened, caller, name, label)
    found = await records.lineage(opened.engine.checkpoints, session)
    record = next((each for each in found if each.digest == digest), None)
    if record is None:
        raise NotFoundError("The session has no such record: it was erased, or has expired.")
    other = next((each for each in found if each.digest == (against or record.parent)), None)
    return await opened.engine.workers.run(records.view_of, record, other)


async def erase_named(opened: Opened, visitor: Visitor, caller: Caller, name: str) -> list[Target]:
    """Erase the sessions that this label or id names (`SessionIndex.named`), everywhere. Raises NotFoundError where
    there is none, and StoreUnavailableError."""
    found = await answered(opened.engine.sessions.named(caller, name))
    if not found:
        raise NotFoundError("No session of this tenant has this label or id; GET /admin/api/sessions lists them.")
    return await erase(opened, visitor, caller, found)


async def erase(opened: Opened, visitor: Visitor, caller: Caller, found: Sequence[Target]) -> list[Target]:
    """Erase these, and what this process saw of them."""
    erased = await opened.engine.sessions.erase(caller, found)
    for target in found[:erased]:
        opened.trails.forget(caller.tenant, target.id[:ID_DIGITS], partial(_is_named, caller, target))
        opened.recent.forget(caller.tenant, target.id[:ID_DIGITS], partial(_is_named, caller, target))
        opened.engine.observe(AdminActed(visitor.role, "session_erased", caller.tenant, target.id[:ID_DIGITS]))
    if erased < len(found):
        raise StoreUnavailableError("The store could not erase it; nothing is promised. Try again.")
    return [*found]


def _is_named(caller: Caller, target: Target, label: str) -> bool:
    """Whether a session of the target's conversation with this label is meant."""
    return target.mark is None or target.mark == mark_of(caller.labels, label)


def span_of(request: Request) -> Span:
    """The span that `?span=` names; unsaid, a day."""
    name = request.query_params.get("span", "") or overview.SPANS[0].name
    found = next((span for span in overview.SPANS if span.name == name), None)
    if found is None:
        names = ", ".join(span.name for span in overview.SPANS)
        raise InvalidRequestError(f"There is no such span of time; say one of {names}.", param="span")
    return found


async def overview_of(opened: Opened, visitor: Visitor, tenant: str | None, span: Span, now: float) -> Overview:
    """Of one tenant, or of all that the visitor sees."""
    engine, names_sessions = opened.engine, visitor.role != "nobody"
    trails = [trail for trail in opened.trails.newest() if tenant in (None, trail.key.tenant)]
    newest = (entry.event for entry in opened.recent.newest())
    events = (event for event in newest if isinstance(event, CompactionEnded) and tenant in (None, event.tenant))
    sums = await opened.figures.last(span.hours)
    shown = overview.figures_of(sums.of, engine.tallies, tenant, engine.windows.price)
    return Overview(
        health=health_of(opened, shown, now),
        since=opened.started,
        span=span.name,
        is_whole=sums.is_whole,
        figures=shown,
        minutes=overview.minutes(engine.tallies.minutes(tenant), now),
        near=overview.near(trails) if names_sessions else None,
        compactions=overview.told(events) if names_sessions else None,
        advice=[*overview.advice(shown)],
    )


def health_of(opened: Opened, shown: Figures, now: float) -> Health:
    """How this replica is, in words."""
    is_up, problems = opened.store.available, opened.reloader.problems
    kind = opened.config.store.url.partition("://")[0]
    parts = [
        (is_up, f"store ({kind}) up" if is_up else f"the store ({kind}) does not answer"),
        (
            not problems,
            "config in force" if not problems else f"the config file has {words.plural(problems, 'problem')}",
        ),
        (not shown.passed_on, f"{words.exact(shown.passed_on) if shown.passed_on else 'nothing'} passed on"),
    ]
    level = "good" if all(is_well for is_well, _ in parts) else "warn" if is_up and not shown.passed_on else "bad"
    return Health(level, [f"up {words.span(round(now - opened.started))}", *(text for _, text in parts)])


def models_of(opened: Opened) -> list[Model]:
    """What is known of models, and who says so."""
    router, windows = opened.active().router, opened.engine.windows
    known = [windows.sources(place, router.configured_window(place.model)) for place in windows.places()]
    return setup.models(known, opened.config, windows.price)


async def forget_learned(opened: Opened, visitor: Visitor, tenant: str, upstream: str, model: str) -> None:
    """Forget what was learned of a model at an upstream, for a tenant. Raises NotFoundError."""
    windows = opened.engine.windows
    wanted = (tenant, upstream, model)
    places = [
        place
        for place in windows.places()
        if (place.tenant, setup.upstream_of(place, opened.config), place.model) == wanted
    ]
    if not places:
        raise NotFoundError("Nothing was learned of this model, at this upstream and for this tenant.")
    for place in places:
        windows.forget(place)
        await windows.share(place)
    opened.engine.observe(AdminActed(visitor.role, "learned_forgotten", tenant))


def tenants_of(opened: Opened, visitor: Visitor) -> list[TenantRow]:
    """The tenants that the visitor sees."""
    engine = opened.engine
    rows = setup.tenants(opened.config, engine.tallies, opened.in_flight, engine.spending.used())
    return [row for row in rows if visitor.sees(row.name)]


def tenant_view(opened: Opened, visitor: Visitor, name: str) -> TenantView:
    """One tenant and its policy. Raises NotFoundError."""
    row = next((row for row in tenants_of(opened, visitor) if row.name == name), None)
    if row is None:
        raise NotFoundError("No tenant has this name.")
    return setup.tenant(row, opened.reloader)


def store_view(opened: Opened) -> StoreView:
    return setup.store(opened.store, opened.engine.sealer, opened.config)


async def probe_store(opened: Opened) -> Probe:
    """Write, read and erase an entry of our own, as requests do."""
    store, tag, value = opened.store, secrets.token_hex(16), secrets.token_bytes(64)
    key = f"probe:{{{tag}}}"
    moments = [time.perf_counter()]
    await store.put(key, value, _PROBE_TTL)
    moments.append(time.perf_counter())
    (found,) = await store.get_many([key])
    moments.append(time.perf_counter())
    await store.erase(tag, b"probe", _PROBE_TTL)
    moments.append(time.perf_counter())
    write, read, erase = (round(1_000 * (after - before), 2) for before, after in pairwise(moments))
    return Probe(found == value, write, read, erase)
