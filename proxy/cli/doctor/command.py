"""The command `concertina doctor`: it checks everything that a config names and prints a line for each finding."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from urllib.parse import urlsplit

from rich.console import Console
from rich.text import Text

from proxy.admin.health import ADVICE
from proxy.cli import running
from proxy.cli.common import count_settings, find_config, name_of, output, plain
from proxy.cli.doctor import store, upstreams
from proxy.cli.doctor.finding import Finding, ok, warning, wrong
from proxy.cli.doctor.upstreams import UpstreamCheck
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
    """Check the upstreams, keys, models and store of a config, a line each; exit code 1 if something is wrong.

    :param spend: Model to send one request for one token, with the key in the config.
    :param as_json: Print the findings as JSON.
    """
    try:
        loaded = load(find_config(config), os.environ)
    except ConfigError as error:
        findings = [_of_problem(str(problem)) for problem in error.problems]
    else:
        findings = asyncio.run(examine_config(loaded, name_of(config), spend))
    output(findings, show, as_json=as_json, indent=2)
    sys.exit(any(finding.state == "wrong" for finding in findings))


async def examine_config(config: Config, name: str, spend: str | None) -> list[Finding]:
    """Return the findings for a valid config. `name` is the config's name in them."""
    findings = [*examine_settings(config, name), *check_proxy(config)]
    loops = {name: list(_loop_findings(config, name)) for name in config.upstreams}
    reachable = {name: each for name, each in config.upstreams.items() if not loops[name]}
    checked = {name: UpstreamCheck(back[0]) for name, back in loops.items() if back}
    checked |= await upstreams.check_upstreams(config.model_copy(update={"upstreams": reachable}))
    findings += [finding for name in config.upstreams for finding in checked[name].findings]
    findings += [*upstreams.summarizers(config, checked), *upstreams.clock(checked)]
    findings += await _windows(config, ask=not any(each.is_wrong for each in checked.values()))
    findings += await store.check_store(config.store)
    findings += await collector(config.telemetry.traces.endpoint)
    return findings if spend is None else [*findings, await upstreams.spend_token(config, spend)]


async def collector(endpoint: str) -> list[Finding]:
    """Return a finding if the collector of traces does not accept connections. Nothing is sent to it."""
    if not endpoint:
        return []
    parts, about = urlsplit(endpoint), "telemetry.traces.endpoint"
    try:
        async with within(_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme, 80))
    except (OSError, TimeoutError) as error:
        problem = f"{endpoint}: {getattr(error, 'strerror', None) or 'no response'}"
        return [wrong(about, problem, "start the collector, or empty the setting: requests do not depend on it")]
    writer.close()
    return [ok(about, f"{endpoint} accepts connections")]


def examine_settings(config: Config, name: str) -> Iterator[Finding]:
    """Yield findings for the config itself."""
    yield ok("config", f"{name}: {count_settings(config)}")
    if (problem := unshared_problem(config)) is not None:
        yield wrong(*_split_problem(problem))
    for note in notes(config):
        yield warning(*_split_problem(note))


def check_proxy(config: Config) -> Iterator[Finding]:
    """Yield findings for the port, and for the proxy that runs there."""
    running_config = running.as_running(config)
    server, url = running_config.server, of_proxy(running_config)
    if url is None:
        yield ok("server.port", "any free port")
        return
    try:
        state = json.loads(running.readiness(url, "?verbose"))
    except (OSError, ValueError, HTTPException):
        yield _port(server.host, server.port)
        return
    yield _running(config, url, is_refused=state.get("config") == "failed")
    for part, level in state.get("parts", {}).items():
        if level != "good":
            report = wrong if level == "bad" else warning
            yield report("proxy", f"its health: {part} {level}", ADVICE.get(part, "open its pages"))


def _running(config: Config, url: str, *, is_refused: bool) -> Finding:
    try:
        version, digest = running.version_and_digest(config, url)
    except (OSError, ValueError, LookupError, HTTPException):
        way_out = "run this with its config, as its user, or set server.admin_token for both"
        return warning("proxy", f"one answers at {url}, but refuses to show its version and config", way_out)
    version_text = f"concertina {version} runs at {url}"
    if is_refused:
        return wrong(
            "proxy", f"{version_text} and has refused its config file", "run `concertina check` for the problems"
        )
    if digest != digest_of(config):
        problem = f"{version_text} with another config ({digest}) or environment"
        return warning("proxy", problem, "restart it with this config if it should use it")
    return ok("proxy", f"{version_text} with this config ({digest})")


def _port(host: str, port: int) -> Finding:
    try:
        listen(host, port).close()
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        return wrong(
            "server.port",
            f"{address(host, port)}: {reason}",
            "choose another port, or stop the process that listens there",
        )
    return ok("server.port", f"{address(host, port)} is free")


def _loop_findings(config: Config, name: str) -> Iterator[Finding]:
    alone = config.model_copy(update={"upstreams": {name: config.upstreams[name]}})
    for problem in leading_back(alone, config.server.host, config.server.port):
        yield wrong(*_split_problem(problem))


async def _windows(config: Config, *, ask: bool) -> list[Finding]:
    names = named_models(config)
    if not names:
        return []
    findings = {}
    # Problems of the store are reported by its own check.
    for model in await sources(config, names, DEFAULT, lambda _: None, ask=ask):
        about = f"models.{model.place.model}"
        if model.window is None:
            way_out = "set its context_window; until then a compaction follows only an overflow"
            findings[about] = warning(about, "its context window is unknown", way_out)
        else:
            findings[about] = ok(about, f"{model.window.tokens:,} tokens ({model.window.source})")
    return [*findings.values()]


def _of_problem(text: str) -> Finding:
    """Return the finding for a config that cannot be read. Many problems contain the remedy."""
    problem, _, way_out = text.partition("; ")
    return wrong("config", problem, way_out or "correct it; `concertina schema` helps editors")


def _split_problem(text: str) -> tuple[str, str, str]:
    """Return the subject of a problem or note, its text and its remedy."""
    about, _, remainder = text.partition(": ")
    problem, _, way_out = remainder.partition("; ")
    return about, problem, way_out


def show(findings: Sequence[Finding], console: Console) -> None:
    """Print a line for each finding."""
    for finding in findings:
        way_out = f"; {finding.way_out}" if finding.way_out else ""
        line = Text(f"{finding.state:8}", style=_STYLES[finding.state])
        line.append(f"{finding.about}: {plain(finding.found)}{way_out}", style="default")
        console.print(line, soft_wrap=True)
