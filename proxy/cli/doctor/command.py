"""The command: everything that a config names is looked at, one line each."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from urllib.parse import urlsplit

from rich.console import Console
from rich.text import Text

from proxy.cli import running
from proxy.cli.common import chosen, count_settings, name_of, output, plain
from proxy.cli.doctor import store, upstreams
from proxy.cli.doctor.finding import Finding, ok, warning, wrong
from proxy.cli.doctor.upstreams import Looked
from proxy.cli.models import named_models, sources
from proxy.cli.parameters import AsJson, ConfigPath
from proxy.config.loading import Config, ConfigError, digest_of, load, notes, unshared_problem
from proxy.config.proxies import DEFAULT_PORTS
from proxy.config.settings import DEFAULT
from proxy.runtime.deadlines import within
from proxy.server.addresses import address, leading_back, of_proxy
from proxy.server.process import listen

_SECONDS = 5.0
_STYLES = {"ok": "green", "warning": "yellow", "wrong": "bold red"}


def doctor(config: ConfigPath = None, *, spend: str | None = None, as_json: AsJson = False) -> None:
    """Look whether all that a config names is there and works, a line each; exit code 1 where something is wrong.

    :param spend: Model that is also sent one request for one token, with the key in the config.
    :param as_json: Print what was found as JSON.
    """
    try:
        loaded = load(chosen(config), os.environ)
    except ConfigError as error:
        found = [_of_problem(str(problem)) for problem in error.problems]
    else:
        found = asyncio.run(examine_config(loaded, name_of(config), spend))
    output(found, show, as_json=as_json, indent=2)
    sys.exit(any(finding.state == "wrong" for finding in found))


async def examine_config(config: Config, name: str, spend: str | None) -> list[Finding]:
    """What is to be said of a valid config; `name` is what it is called."""
    found = [*of_config(config, name), *of_proxy_there(config)]
    loops = {name: list(_leading_back(config, name)) for name in config.upstreams}
    others = {name: each for name, each in config.upstreams.items() if not loops[name]}
    looked = {name: Looked(back[0]) for name, back in loops.items() if back}
    looked |= await upstreams.looked_at(config.model_copy(update={"upstreams": others}))
    found += [finding for name in config.upstreams for finding in looked[name].findings]
    found += [*upstreams.summarizers(config, looked), *upstreams.clock(looked)]
    found += await _windows(config, ask=not any(each.is_wrong for each in looked.values()))
    found += await store.looked_at(config.store)
    found += await collector(config.telemetry.traces.endpoint)
    return found if spend is None else [*found, await upstreams.spent(config, spend)]


async def collector(endpoint: str) -> list[Finding]:
    """Whether something listens where traces go; nothing is sent to it."""
    if not endpoint:
        return []
    parts, about = urlsplit(endpoint), "telemetry.traces.endpoint"
    try:
        async with within(_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme, 80))
    except (OSError, TimeoutError) as error:
        said = f"{endpoint}: {getattr(error, 'strerror', None) or 'no answer'}"
        return [wrong(about, said, "start the collector, or empty the setting: requests go on without it")]
    writer.close()
    return [ok(about, f"something listens at {endpoint}")]


def of_config(config: Config, name: str) -> Iterator[Finding]:
    yield ok("config", f"{name}: {count_settings(config)}")
    if (problem := unshared_problem(config)) is not None:
        yield wrong(*_split_problem(problem))
    for note in notes(config):
        yield warning(*_split_problem(note))


def of_proxy_there(config: Config) -> Iterator[Finding]:
    """The port, and the proxy that runs there."""
    found = running.as_running(config)
    server, url = found.server, of_proxy(found)
    if url is None:
        yield ok("server.port", "any that is free")
        return
    try:
        state = json.loads(running.readiness(url))
    except (OSError, ValueError, HTTPException):
        yield _port(server.host, server.port)
        return
    yield _running(config, url, is_refused=state.get("config") == "failed")
    if state.get("store") == "down":
        yield wrong("proxy", "its store is down", "see store below, and store_down in its log")


def _running(config: Config, url: str, *, is_refused: bool) -> Finding:
    try:
        version, digest = running.version_and_digest(config, url)
    except (OSError, ValueError, LookupError, HTTPException):
        way_out = "run this with its config, as its user, or set server.admin_token for both"
        return warning("proxy", f"one answers at {url}, and does not tell its version and config to us", way_out)
    told = f"concertina {version} runs at {url}"
    if is_refused:
        return wrong("proxy", f"{told} and has refused its config file", "see what `concertina check` says of it")
    if digest != digest_of(config):
        found = f"{told} with another config ({digest}) or environment"
        return warning("proxy", found, "restart it with this one, if it is its")
    return ok("proxy", f"{told} with this config ({digest})")


def _port(host: str, port: int) -> Finding:
    try:
        listen(host, port).close()
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        return wrong("server.port", f"{address(host, port)}: {reason}", "name another, or end what listens there")
    return ok("server.port", f"{address(host, port)} is free")


def _leading_back(config: Config, name: str) -> Iterator[Finding]:
    alone = config.model_copy(update={"upstreams": {name: config.upstreams[name]}})
    for problem in leading_back(alone, config.server.host, config.server.port):
        yield wrong(*_split_problem(problem))


async def _windows(config: Config, *, ask: bool) -> list[Finding]:
    names = named_models(config)
    if not names:
        return []
    found = {}
    # What troubles the store is found where that is looked at.
    for one in await sources(config, names, DEFAULT, lambda _: None, ask=ask):
        about = f"models.{one.place.model}"
        if one.window is None:
            way_out = "set its context_window; until then only an overflow leads to a compaction"
            found[about] = warning(about, "its window is unknown", way_out)
        else:
            found[about] = ok(about, f"{one.window.tokens:,} tokens ({one.window.source})")
    return [*found.values()]


def _of_problem(told: str) -> Finding:
    """Of a config that cannot be read; many a problem says the way out by itself."""
    found, _, way_out = told.partition("; ")
    return wrong("config", found, way_out or "correct it; `concertina schema` helps editors")


def _split_problem(told: str) -> tuple[str, str, str]:
    """What a problem or note is about, what it says, and the way out."""
    about, _, rest = told.partition(": ")
    found, _, way_out = rest.partition("; ")
    return about, found, way_out


def show(found: Sequence[Finding], console: Console) -> None:
    for finding in found:
        way_out = f"; {finding.way_out}" if finding.way_out else ""
        line = Text(f"{finding.state:8}", style=_STYLES[finding.state])
        line.append(f"{finding.about}: {plain(finding.found)}{way_out}", style="default")
        console.print(line, soft_wrap=True)
