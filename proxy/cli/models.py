"""`concertina models`: the context window of each model, and its source."""

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

# Timeout of the running proxy's response, in seconds.
_TIMEOUT = 3.0
_WILDCARDS = frozenset("*?[")


class _KnownModels(msgspec.Struct):
    """The admin API's response."""

    models: list[Sources]


def named_models(config: Config) -> list[str]:
    """Return the models that the config names without wildcards."""
    return [rule.match for rule in config.models if not _WILDCARDS & set(rule.match)]


async def sources(
    config: Config, names: Sequence[str], tenant: str, report: Callable[[str], None], *, ask: bool
) -> list[Sources]:
    """Return facts about these models without the running proxy: from the config, the store and the table.

    ask: also ask the upstreams. `report` gets the reason if the store cannot be read; the other sources still count.
    """
    table = ModelTable()
    await asyncio.to_thread(table.load)
    store = CircuitBreaker(_stored(config, report), time.monotonic)
    store.on_change = lambda is_available, reason: None if is_available else report(reason)
    try:
        windows = Windows(table, config.store.seal(store), time.time)
        if ask:
            await _ask(config, names, tenant, windows)
        return [entry for name in names for entry in await _of_model(config, name, tenant, windows)]
    finally:
        await store.close()


def _stored(config: Config, report: Callable[[str], None]) -> OpenedStore:
    """Return the store; an empty one if it is a file that does not exist, or cannot be opened."""
    try:
        return open_existing(config.store.url, config.store.timeout, config.store.prefix) or MemoryStore()
    except StoreError as error:
        report(str(error))
        return MemoryStore()


def of_running(config: Config, tenant: str) -> list[Sources]:
    """Return the running proxy's facts about a tenant's models; an empty list if no proxy answers.

    They include facts from requests with the clients' own keys.
    """
    if of_proxy(as_running(config)) is None:
        return []
    try:
        text = b"".join(answer_lines(config, None, find_endpoint("models"), {}, _TIMEOUT))
        entries = msgspec.json.decode(text, type=_KnownModels).models
    except (UnansweredError, msgspec.DecodeError):
        return []
    return [entry for entry in entries if entry.place.tenant == tenant]


def merge_models(running: Sequence[Sources], own: Sequence[Sources]) -> list[Sources]:
    """Return the running proxy's facts about each model, or else those of this command, in the order of `own`."""
    order = list(dict.fromkeys(entry.place.model for entry in own))
    running_entries = [entry for entry in running if entry.place.model in order]
    models = {entry.place.model for entry in running_entries}
    entries = [*running_entries, *(entry for entry in own if entry.place.model not in models)]
    return sorted(entries, key=lambda entry: order.index(entry.place.model))


async def _ask(config: Config, names: Sequence[str], tenant: str, windows: Windows) -> None:
    async with UpstreamClient(config.upstreams, os.environ) as client:
        asker = WindowAsker(client, windows, time.monotonic)
        for name in names:
            _, upstream = config.upstream_for(tenant, name)
            if asker.is_due(upstream, name):
                key = upstream.api_key.get_secret_value()
                await asker.ask(upstream, [credential(key, upstream.auth)] if key else [], name)


async def _of_model(config: Config, name: str, tenant: str, windows: Windows) -> list[Sources]:
    """Return a model's facts for each key of a tenant. Keys without experience share one entry."""
    configured = Router(config, windows, Tokenizer()).configured_window(name)
    _, upstream = config.upstream_for(tenant, name)
    entries = []
    for caller in Tenants(config).all_of(tenant):
        location = place_of(tenant, caller.scope, upstream.base_url, name)
        await windows.look_up(location)
        entries.append(windows.sources(location, configured))
    return [entry for entry in entries if entry.experience != NOTHING] or entries[:1]


def show(entries: Sequence[Sources], console: Console) -> None:
    """Print a row for each model."""
    table = Table(box=None, pad_edge=False)
    table.add_column("model", overflow="fold")
    for name in ("window", "config", "learned", "asked", "table", "media", "counted"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("upstream", overflow="fold")
    for entry in entries:
        window = "unknown" if entry.window is None else f"{entry.window.tokens:,} ({entry.window.source})"
        stated = (entry.configured, entry.learned, entry.asked, entry.listed)
        sizes = ["-" if tokens is None else f"{tokens:,}" for tokens in stated]
        location, experience = entry.place, entry.experience
        table.add_row(
            plain(location.model), window, *sizes, _media(experience), f"x {entry.calibration:g}", location.base_url
        )
    print_table(table, console)


def _media(experience: ModelProfile) -> str:
    """Return the limits of a request's media that refusals have taught."""
    limits = [size(experience.media_bytes)] if experience.media_bytes is not None else []
    limits += [f"{experience.pictures:,} of them"] if experience.pictures is not None else []
    limits += [ago(experience.media_at, time.time())] if limits and experience.media_at else []
    return ", ".join(limits) or "-"
