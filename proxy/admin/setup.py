"""The setup of the proxy: models, tenants and their policies, the store, the config in force."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from policies.decision.budget import usable_tokens
from policies.model_profile import ModelProfile
from policies.price import Price
from policies.settings import DEFAULTS, PolicySettings
from proxy.admin.overview import SpanPart
from proxy.admin.totals import Totals
from proxy.callers.key_usage import KeyRow
from proxy.config.document import parse
from proxy.config.loading import digest_of, notes
from proxy.config.presets import origins
from proxy.config.reloading import Reloader
from proxy.config.settings import Config
from proxy.config.shown import as_yaml, bare, masked_values
from proxy.models.table import Window
from proxy.models.windows import ModelKey, Sources
from proxy.sessions.stores import CircuitBreaker, Sealer
from proxy.sessions.stores.base import Facts
from proxy.telemetry.histograms import Histogram, Histograms


class TenantModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model as a tenant's requests know it.

    window: None if unknown. usable: tokens for a prompt. price: US dollars for a million tokens, of prompts and of
    responses. configured, learned, asked, listed: from the config, refusals, the upstream and the table; None if
    absent. calibration: the upstream's tokens per estimated token.
    """

    place: ModelKey
    upstream: str
    window: Window | None
    usable: int | None
    configured: int | None
    learned: int | None
    asked: int | None
    listed: int | None
    calibration: float
    experience: ModelProfile
    price: tuple[float, float] | None


class TenantRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant.

    requests to unpriced: as in `Totals`, of a span of time. policy: None if the config does not have the tenant.
    budget_used: the share of today's tokens for summaries, of this process.
    """

    name: str
    policy: str | None
    requests: int
    failed: int
    passed_on: int
    kept_alive: int
    received: int
    net: int
    cost: float | None
    saved: float | None
    cost_of_summaries: float | None
    unpriced: bool
    in_flight: int
    max_requests: int | None
    budget_used: float | None
    inspect: bool


class Setting(msgspec.Struct, frozen=True):
    """A setting of a policy.

    origin: a policy of the config, a preset, or the default.
    """

    name: str
    value: object
    origin: str
    default: object


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant and its policy.

    models: its usage by model. parts: by hour or day. keys, viewer_keys: their number in the config. issued: issued
    keys, the newest first. more_issued: the number of older ones.
    """

    row: TenantRow
    models: list[Totals]
    parts: list[SpanPart]
    keys: int
    viewer_keys: int
    issued: list[KeyRow]
    more_issued: int
    upstream: str | None
    policies: list[str]
    settings: list[Setting]


class Operation(msgspec.Struct, frozen=True):
    """An operation of the store: its number, its errors, and its average seconds."""

    name: str
    number: int
    errors: int
    mean: float | None


class StoreView(msgspec.Struct, frozen=True, kw_only=True):
    """The store.

    address: without credentials. reason: why it is unavailable. since: when it became so, or available, in Unix
    seconds. ttl, timeout: in seconds.
    entries: by kind. size, most: used and available bytes. eviction: the policy of a full server. None if the store
    does not report it.
    keys: ids of encryption keys, the one in use first; empty without encryption.
    """

    kind: str
    address: str
    available: bool
    reason: str
    operations: list[Operation]
    unreadable: int
    keys: list[str]
    ttl: float
    timeout: float
    since: float
    entries: dict[str, int] | None
    size: int | None
    most: int | None
    eviction: str | None


class Probe(msgspec.Struct, frozen=True):
    """The result of writing, reading and erasing an entry, in milliseconds."""

    is_well: bool
    write: float
    read: float
    erase: float


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading the config's file again.

    changed: True if the config in force changed. problems: their number; if there are any, the old config stays.
    refusals: the problems. notes: as in `concertina check`.
    """

    taken: bool
    changed: bool
    problems: int
    refusals: list[str]
    needs_restart: list[str]
    notes: list[str]


class ConfigView(msgspec.Struct, frozen=True, kw_only=True):
    """The config in force, without secrets.

    file: None for the built-in defaults. taken: when it was loaded, in Unix seconds. digest: equal on replicas with the
    same config. problems: of a refused file.
    """

    file: str | None
    taken: float
    digest: str
    yaml: str
    problems: int
    refusals: list[str]
    needs_restart: list[str]


def models(
    sources: Iterable[Sources], config: Config, price: Callable[[str], Price | None], is_exact: Callable[[str], bool]
) -> list[TenantModel]:
    """Return one row per tenant, upstream and model, since several keys of a tenant may know one."""
    sources_by_key = {(each.place.tenant, each.place.base_url, each.place.model): each for each in sources}
    return [
        _model(each, config, price(each.place.model), exact=is_exact(each.place.model))
        for _, each in sorted(sources_by_key.items())
    ]


def _model(source: Sources, config: Config, price: Price | None, *, exact: bool) -> TenantModel:
    window = source.window
    return TenantModel(
        place=source.place,
        upstream=upstream_of(source.place, config),
        window=window,
        usable=usable_tokens(window.tokens, None, exact=exact, of_prompt=window.of_prompt) if window else None,
        configured=source.configured,
        learned=source.learned,
        asked=source.asked,
        listed=source.listed,
        calibration=source.calibration,
        experience=source.experience,
        price=(1e6 * price.prompt, 1e6 * price.completion) if price else None,
    )


def upstream_of(model: ModelKey, config: Config) -> str:
    """Return the upstream's name in the config for this address."""
    names = (name for name, upstream in config.upstreams.items() if upstream.base_url == model.base_url)
    return next(names, model.base_url)


def tenants(
    config: Config, sums: Sequence[Totals], in_flight: Mapping[str, int], budgets: Mapping[str, float]
) -> list[TenantRow]:
    """Return the tenants in the order of their sums."""
    return [_tenant(each, config, in_flight, budgets.get(each.name)) for each in sums]


def _tenant(used: Totals, config: Config, in_flight: Mapping[str, int], budget: float | None) -> TenantRow:
    name, tenant = used.name, config.tenants.get(used.name)
    return TenantRow(
        name=name,
        policy=tenant.policy if tenant else None,
        requests=used.requests,
        failed=used.failed,
        passed_on=used.passed_on,
        kept_alive=used.kept_alive,
        received=used.received,
        net=used.net,
        cost=used.cost,
        saved=used.saved,
        cost_of_summaries=used.cost_of_summaries,
        unpriced=used.unpriced,
        in_flight=in_flight.get(name, 0),
        max_requests=tenant.max_requests if tenant else None,
        budget_used=budget,
        inspect=tenant is not None and config.shows_content(name),
    )


def tenant(
    row: TenantRow,
    models: list[Totals],
    parts: list[SpanPart],
    issued: list[KeyRow],
    more_issued: int,
    reloader: Reloader,
) -> TenantView:
    """Return a tenant with its policy."""
    settings = reloader.config.tenants[row.name]
    return TenantView(
        row=row,
        models=models,
        parts=parts,
        keys=len(settings.keys),
        viewer_keys=len(settings.viewer_keys),
        issued=issued,
        more_issued=more_issued,
        upstream=settings.upstream,
        policies=[*settings.policies],
        settings=policy(settings.policy, reloader),
    )


def policy(name: str, reloader: Reloader) -> list[Setting]:
    """Return the effective settings of a policy with their origins."""
    where = origins(name, _policies_of(reloader))
    defaults = dict(_flat(DEFAULTS))
    return [
        Setting(each, value, where.get(each, "default"), defaults.get(each))
        for each, value in _flat(reloader.config.policies[name])
    ]


def _policies_of(reloader: Reloader) -> Mapping[str, object]:
    """Return the policies as the file has them."""
    if reloader.text is None:
        return {}
    policies = parse(reloader.text, "config", {}).values.get("policies")
    return cast("Mapping[str, object]", policies) if isinstance(policies, dict) else {}


def _flat(settings: PolicySettings) -> Iterator[tuple[str, object]]:
    yield from _flatten(settings.model_dump(mode="json", by_alias=True), "")


def _flatten(values: Mapping[str, Any], front: str) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{front}{name}.")
        else:
            yield f"{front}{name}", value


def store(breaker: CircuitBreaker, facts: Facts, sealer: Sealer, config: Config, now: float) -> StoreView:
    """Return the view of the store."""
    return StoreView(
        kind=config.store.url.partition("://")[0],
        address=bare(config.store.url),
        available=breaker.available,
        reason="" if breaker.available else breaker.reason,
        operations=[*_operations(breaker.seconds, breaker.errors)],
        unreadable=sealer.unreadable,
        keys=sealer.key_ids,
        ttl=config.store.ttl,
        timeout=config.store.timeout,
        since=now - breaker.seconds_so,
        entries=facts.entries,
        size=facts.size,
        most=facts.most,
        eviction=facts.eviction,
    )


def _operations(seconds: Histograms, errors: Mapping[str, int]) -> Iterator[Operation]:
    histograms = {labels[0]: histogram for labels, histogram in seconds.of.items()}
    for name in sorted({*histograms, *errors}):
        histogram = histograms.get(name) or Histogram(len(seconds.bounds))
        number = sum(histogram.counts)
        yield Operation(name, number, errors.get(name, 0), histogram.sum / number if number else None)


def config(reloader: Reloader) -> ConfigView:
    """Return the view of the config in force."""
    return ConfigView(
        file=str(reloader.file) if reloader.file else None,
        taken=reloader.taken_at,
        digest=digest_of(reloader.config),
        yaml=as_yaml(masked_values(reloader.config)),
        problems=reloader.problems,
        refusals=reloader.refusals,
        needs_restart=[*reloader.needs_restart],
    )


async def reload(reloader: Reloader) -> Reloaded:
    """Read the config's file again, and load it if it is valid."""
    old_config = reloader.config
    await reloader.reload("page")
    return Reloaded(
        taken=not reloader.problems,
        changed=reloader.config != old_config,
        problems=reloader.problems,
        refusals=reloader.refusals,
        needs_restart=[*reloader.needs_restart],
        notes=[*notes(reloader.config)],
    )
