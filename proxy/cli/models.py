"""`concertina models`: how large each model's window is taken to be, and who says so."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from policies.model_profile import ModelProfile
from proxy.admin.endpoints import find_endpoint
from proxy.admin.words import ago, size
from proxy.callers.api_headers import credential
from proxy.callers.tenants import Tenants
from proxy.cli.common import plain, print_table
from proxy.cli.running import as_running
from proxy.cli.watching.running_proxy import UnansweredError, answer_lines
from proxy.config.loading import Config
from proxy.models.table import ModelTable
from proxy.models.tokenizer import Tokenizer
from proxy.models.windows import NOTHING, Sources, Windows, place_of
from proxy.server.addresses import of_proxy
from proxy.sessions.stores import CircuitBreaker, StoreError, open_existing
from proxy.sessions.stores.base import OpenedStore
from proxy.sessions.stores.memory import MemoryStore
from proxy.upstreams.asker import WindowAsker
from proxy.upstreams.http import UpstreamClient
from proxy.upstreams.routes import Router

# Seconds that the running proxy may take.
_PATIENCE = 3.0
_WILDCARDS = frozenset("*?[")


class _KnownModels(msgspec.Struct):
    """What its admin API answers."""

    models: list[Sources]


def named_models(config: Config) -> list[str]:
    """The models that the config names without wildcards."""
    return [rule.match for rule in config.models if not _WILDCARDS & set(rule.match)]


async def sources(
    config: Config, names: Sequence[str], tenant: str, report: Callable[[str], None], *, ask: bool
) -> list[Sources]:
    """What is known of these models here and now: the config, the store, the table and, if wished, the upstreams.

    `report` is told why the store says nothing, and the rest is known without it.
    """
    table = ModelTable()
    await asyncio.to_thread(table.load)
    store = CircuitBreaker(_stored(config, report), time.monotonic)
    store.on_change = lambda is_available, reason: None if is_available else report(reason)
    try:
        windows = Windows(table, config.store.seal(store), time.time)
        if ask:
            await _ask(config, names, tenant, windows)
        return [one for name in names for one in await _of_model(config, name, tenant, windows)]
    finally:
        await store.close()


def _stored(config: Config, report: Callable[[str], None]) -> OpenedStore:
    """The store; an empty one if it is a file that is not there, or cannot be opened."""
    try:
        return open_existing(config.store.url, config.store.timeout, config.store.prefix) or MemoryStore()
    except StoreError as error:
        report(str(error))
        return MemoryStore()


def of_running(config: Config, tenant: str) -> list[Sources]:
    """What the proxy that runs with this config knows of a tenant's models, by its callers' own keys too; empty if none
    answers."""
    if of_proxy(as_running(config)) is None:
        return []
    try:
        text = b"".join(answer_lines(config, None, find_endpoint("models"), {}, _PATIENCE))
        known = msgspec.json.decode(text, type=_KnownModels).models
    except (UnansweredError, msgspec.DecodeError):
        return []
    return [one for one in known if one.place.tenant == tenant]


def merge_models(running: Sequence[Sources], here: Sequence[Sources]) -> list[Sources]:
    """In the order of what is known here, what the running proxy knows of each model, else that alone."""
    order = list(dict.fromkeys(one.place.model for one in here))
    known = [one for one in running if one.place.model in order]
    models = {one.place.model for one in known}
    found = [*known, *(one for one in here if one.place.model not in models)]
    return sorted(found, key=lambda one: order.index(one.place.model))


async def _ask(config: Config, names: Sequence[str], tenant: str, windows: Windows) -> None:
    async with UpstreamClient(config.upstreams, os.environ) as client:
        asker = WindowAsker(client, windows, time.monotonic)
        for name in names:
            _, upstream = config.upstream_for(tenant, name)
            if asker.is_due(upstream, name):
                key = upstream.api_key.get_secret_value()
                await asker.ask(upstream, [credential(key, upstream.auth)] if key else [], name)


async def _of_model(config: Config, name: str, tenant: str, windows: Windows) -> list[Sources]:
    """Each of a tenant's keys learns by itself; those that know nothing are told of once."""
    configured = Router(config, windows, Tokenizer()).configured_window(name)
    _, upstream = config.upstream_for(tenant, name)
    told = []
    for caller in Tenants(config).all_of(tenant):
        place = place_of(tenant, caller.scope, upstream.base_url, name)
        await windows.look_up(place)
        told.append(windows.sources(place, configured))
    return [one for one in told if one.experience != NOTHING] or told[:1]


def show(found: Sequence[Sources], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("model", overflow="fold")
    for name in ("window", "config", "learned", "asked", "table", "media", "counted"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("upstream", overflow="fold")
    for one in found:
        window = "unknown" if one.window is None else f"{one.window.tokens:,} ({one.window.source})"
        stated = (one.configured, one.learned, one.asked, one.listed)
        sizes = ["-" if tokens is None else f"{tokens:,}" for tokens in stated]
        place, known = one.place, one.experience
        table.add_row(plain(place.model), window, *sizes, _media(known), f"x {one.calibration:g}", place.base_url)
    print_table(table, console)


def _media(known: ModelProfile) -> str:
    """What refusals have taught of a request's media."""
    told = [size(known.media_bytes)] if known.media_bytes is not None else []
    told += [f"{known.pictures:,} of them"] if known.pictures is not None else []
    told += [ago(known.media_at, time.time())] if told and known.media_at else []
    return ", ".join(told) or "-"
