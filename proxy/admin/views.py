"""The views of the running proxy for a visitor, shared by pages and API."""

import secrets
import time
from itertools import pairwise

import msgspec
from msgspec import structs
from starlette.requests import Request

from proxy.admin import overview, setup
from proxy.admin.access import Visitor
from proxy.admin.context import AdminContext
from proxy.admin.health import health_of
from proxy.admin.overview import Overview, TimeSpan
from proxy.admin.sessions.asking import newest_compactions
from proxy.admin.setup import Probe, Reloaded, StoreView, TenantModel, TenantRow, TenantView
from proxy.admin.totals import COLUMNS, Totals, order_rows, totals, totals_of
from proxy.callers.key_usage import key_rows
from proxy.errors import InvalidRequestError, NotFoundError
from proxy.sessions.kept_figures import Sums
from proxy.telemetry.events import CompactionEnded, note

_PROBE_TTL = 10.0
# The maximum number of issued keys to show for a tenant: the usage of each is looked up.
_MOST_KEYS = 100


def span_of(request: Request) -> TimeSpan:
    """Return the span of `?range=`, by default a day. Raises InvalidRequestError."""
    name = request.query_params.get("range", "") or overview.DAY.name
    span = next((span for span in overview.SPANS if span.name == name), None)
    if span is None:
        names = ", ".join(span.name for span in overview.SPANS)
        raise InvalidRequestError(f"range must be one of {names}.", param="range")
    return span


async def overview_of(
    context: AdminContext, visitor: Visitor, tenant: str | None, span: TimeSpan, now: float
) -> Overview:
    """Return the overview of one tenant, or of all that the visitor sees."""
    engine, names_sessions = context.engine, visitor.role != "nobody"
    histories = [each for each in context.histories.newest() if tenant in (None, each.key.tenant)]
    newest = (entry.event for entry in context.recent.newest())
    in_memory = [event for event in newest if isinstance(event, CompactionEnded) and tenant in (None, event.tenant)]
    stored = await newest_compactions(context, visitor, tenant, overview.MOST_ROWS) if names_sessions else []
    sums = await context.figures.last(span.hours, span.step)
    shown = overview.figures_of(sums.of, engine.tallies, tenant, engine.windows.price)
    return Overview(
        health=health_of(context, visitor, tenant, await context.replicas.every(), now),
        since=context.started,
        span=span.name,
        is_whole=sums.is_whole,
        figures=shown,
        parts=overview.parts(sums.parts, tenant, span, now, engine.windows.price),
        minutes=overview.minutes(engine.tallies.minutes(tenant), now),
        near=overview.near(histories) if names_sessions else None,
        compactions=overview.newest_compactions(in_memory, stored) if names_sessions else None,
        advice=[*overview.advice(shown)],
    )


def models_of(context: AdminContext) -> list[TenantModel]:
    """Return the windows of models with their sources."""
    router, windows = context.active().router, context.engine.windows
    sources = [windows.sources(model, router.configured_window(model.model)) for model in windows.places()]
    return setup.models(sources, context.config, windows.price, router.is_exact)


async def forget_learned(context: AdminContext, visitor: Visitor, tenant: str, upstream: str, model: str) -> None:
    """Forget what was learned of a model at an upstream, for a tenant. Raises NotFoundError."""
    windows = context.engine.windows
    wanted = (tenant, upstream, model)
    places = [
        place
        for place in windows.places()
        if (place.tenant, setup.upstream_of(place, context.config), place.model) == wanted
    ]
    if not places:
        raise NotFoundError("Nothing was learned of this model, at this upstream and for this tenant.")
    for place in places:
        windows.forget(place)
        await windows.share(place)
    context.engine.observe(note("admin", tenant, who=visitor.role, what="learned_forgotten"))


class UsageTable(msgspec.Struct, frozen=True):
    """The usage in a span, as sorted rows.

    is_whole: True if it is of all replicas, False if of this one since the store does not respond.
    """

    rows: list[Totals]
    all: Totals
    is_whole: bool


def sort_of(request: Request) -> str:
    """Return the column of `?sort=`, by default cost. Raises InvalidRequestError."""
    column = request.query_params.get("sort", "") or "cost"
    if column not in COLUMNS:
        raise InvalidRequestError(f"sort must be one of {', '.join(COLUMNS)}.", param="sort")
    return column


async def used_of(
    context: AdminContext, visitor: Visitor, span: TimeSpan, sort: str, *, by_model: bool, tenant: str | None = None
) -> UsageTable:
    """Return the usage by tenant or model, of one tenant or of all that the visitor sees."""
    return _used_in(await context.figures.last(span.hours), context, visitor, sort, by_model=by_model, tenant=tenant)


async def used_by_both(
    context: AdminContext, visitor: Visitor, span: TimeSpan, sort: str
) -> tuple[UsageTable, UsageTable]:
    """Return the usage by tenant and by model from one read of the store."""
    sums = await context.figures.last(span.hours)
    by_tenant, by_model = (_used_in(sums, context, visitor, sort, by_model=by_model) for by_model in (False, True))
    return by_tenant, by_model


def _used_in(
    sums: Sums, context: AdminContext, visitor: Visitor, sort: str, *, by_model: bool, tenant: str | None = None
) -> UsageTable:
    price = context.engine.windows.price
    visible_sums = {key: tally for key, tally in sums.of.items() if visitor.sees(key[0]) and tenant in (None, key[0])}
    rows = totals(visible_sums, price, by_model=by_model)
    if not by_model:
        rows |= {name: totals_of(name, (), price) for name in context.config.tenants if name not in rows}
    shown = [row for name, row in rows.items() if by_model or visitor.sees(name)]
    all_totals = totals_of("all", ((model, tally) for (_, model), tally in visible_sums.items()), price)
    return UsageTable(order_rows(shown, sort), all_totals, sums.is_whole)


def tenants_of(context: AdminContext, used: UsageTable) -> list[TenantRow]:
    """Return the tenants with their usage."""
    return setup.tenants(context.config, used.rows, context.in_flight, context.engine.spending.used_shares())


async def tenant_view(context: AdminContext, visitor: Visitor, name: str, span: TimeSpan) -> TenantView:
    """Return one tenant and its policy. Raises NotFoundError."""
    if name not in context.config.tenants or not visitor.sees(name):
        raise NotFoundError("No tenant has this name.")
    sums = await context.figures.last(span.hours, span.step)
    models = _used_in(sums, context, visitor, "cost", by_model=True, tenant=name)
    parts = overview.parts(sums.parts, name, span, time.time(), context.engine.windows.price)
    usage = UsageTable([structs.replace(models.all, name=name)], models.all, models.is_whole)
    (row,) = tenants_of(context, usage)
    keys = context.keys.of(name) if visitor.role != "nobody" else []
    issued = await key_rows(context.store, keys[:_MOST_KEYS], time.time())
    return setup.tenant(row, models.rows, parts, issued, len(keys[_MOST_KEYS:]), context.reloader)


async def store_view(context: AdminContext) -> StoreView:
    """Return the state of the store."""
    facts = await context.store.facts()
    return setup.store(context.store, facts, context.engine.sessions.sealed.sealer, context.config, time.time())


async def reload_config(context: AdminContext, visitor: Visitor) -> Reloaded:
    """Read the config's file again for this process. Raises InvalidRequestError.

    Other replicas poll their files.
    """
    if context.reloader.file is None:
        raise InvalidRequestError("There is no file to read again: no regular file was named at the start.")
    context.engine.observe(note("admin", who=visitor.role, what="config_reloaded"))
    return await setup.reload(context.reloader)


async def probe_store(context: AdminContext) -> Probe:
    """Write, read and erase an entry, as requests do."""
    store, tag, value = context.store, secrets.token_hex(16), secrets.token_bytes(64)
    key = f"probe:{{{tag}}}"
    moments = [time.perf_counter()]
    await store.put(key, value, _PROBE_TTL)
    moments.append(time.perf_counter())
    (stored,) = await store.get_many([key])
    moments.append(time.perf_counter())
    await store.erase(tag, b"probe", _PROBE_TTL)
    moments.append(time.perf_counter())
    write, read, erase = (round(1_000 * (end - start), 2) for start, end in pairwise(moments))
    return Probe(stored == value, write, read, erase)
