"""The command line: serve, demo, check, models, explain, replay, sessions, schema, keys, healthcheck, version."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import sys
import urllib.request
from dataclasses import replace
from http.client import HTTPException
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console

from proxy.config import Config, ConfigError, json_schema, load, notes, preset_names
from proxy.config_errors import suggest
from proxy.config_models import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from proxy.tenants import Caller

app = App(name="concertina", help="Keeps long conversations inside the model's context window.", version_flags=[])
keys = App(name="keys", help="Keys of tenants.")
app.command(keys)
sessions = App(name="sessions", help="Conversations of which something is stored.")
app.command(sessions)

_T = TypeVar("_T")

_CONFIG = Path("config.yaml")
_STDIN = Path("-")
_KEY_PREFIX = "ck-"
_HEALTH_TIMEOUT = 3.0
_LEAST_WINDOW = 256

ConfigPath = Annotated[
    Path | None, Parameter(help="Config file; without it ./config.yaml, else the built-in defaults.")
]
Port = Annotated[int | None, Parameter(validator=Number(gte=0, lte=65535))]


@app.command
def serve(config: ConfigPath = None, *, host: str | None = None, port: Port = None) -> None:
    """Run the proxy.

    Parameters
    ----------
    host
        Address to listen on, instead of server.host.
    port
        Port to listen on, instead of server.port; 0 takes any free one.
    """
    from proxy.reloading import source
    from proxy.server import address, inherited, listen, run

    read_from = source(_chosen(config), os.environ)
    loaded = _load(config)
    for note in notes(loaded):
        _err(f"note: {note}")
    host, port = host or loaded.server.host, loaded.server.port if port is None else port
    try:
        listeners = inherited() or [listen(host, port)]
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        way_out = "choose another with --port or --host, or with server.port and server.host in the config"
        _fail(f"cannot listen on {address(host, port)}: {reason}; {way_out}")
    sys.exit(run(loaded, listeners, _console(), read_from))


@app.command
def demo(*, once: bool = False) -> None:
    """Play a long tool-using session against a small window, directly and through the proxy.

    Parameters
    ----------
    once
        End when the session is over; exit code 1 if any step failed.
    """
    from proxy.demo import run_demo

    try:
        sys.exit(asyncio.run(run_demo(once=once, console=_console())))
    except KeyboardInterrupt:
        sys.exit(130)


@app.command
def check(file: ConfigPath = None) -> None:
    """Validate a config file: one line a problem with file, line, YAML path and the way out; exit code 0 or 1."""
    loaded = _load(file)
    for note in notes(loaded):
        print(f"note: {note}")
    print(f"{_chosen(file) or 'built-in defaults'}: ok ({_counted(loaded)})")


@app.command
def models(
    names: tuple[str, ...] = (),
    /,
    *,
    config: ConfigPath = None,
    tenant: str = DEFAULT,
    ask: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Say how large the windows of models are taken to be, and which source says so.

    Parameters
    ----------
    names
        Models; without any, those that the config names without wildcards.
    tenant
        Tenant whose requests would ask for them.
    ask
        Ask the upstreams too, with their own keys.
    as_json
        Print everything that is known as JSON.
    """
    import msgspec

    from proxy.models_command import named_models, show, sources

    loaded = _load(config)
    _caller(loaded, tenant, None)
    chosen = names or tuple(named_models(loaded))
    if not chosen:
        _fail("no models to tell of; name some, as in `concertina models gpt-4o`")
    found = asyncio.run(sources(loaded, chosen, tenant, ask=ask))
    if as_json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    else:
        show(found, _console())


@app.command
def explain(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    config: ConfigPath = None,
    policy: str | None = None,
    tenant: str = DEFAULT,
    force: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Say what would be kept, summarised, cooled, pinned and dropped of a request, and why; nothing is sent anywhere.

    Parameters
    ----------
    file
        A body of POST /v1/chat/completions; - reads standard input.
    policy
        Policy to explain it under, instead of the tenant's.
    tenant
        Tenant whose request it is.
    force
        As with `x-compaction: force`.
    as_json
        Print the whole explanation as JSON.
    """
    import msgspec

    from proxy.errors import InvalidJSONError
    from proxy.explain_command import explain as explained
    from proxy.explain_command import show

    loaded = _load(config)
    caller = _caller(loaded, tenant, policy)
    name, body = _request(file)
    try:
        explanation = asyncio.run(explained(loaded, body, caller, "force" if force else caller.policy.mode))
    except InvalidJSONError as error:
        _fail(f"{name}: {error.message}")
    if explanation is None:
        _fail(f"{name}: not a chat request; it must be a JSON object whose messages are a list of objects with a role")
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(explanation)).decode())
    else:
        show(explanation, _console())


@app.command
def replay(
    path: Path,
    *,
    policy: Annotated[list[str] | None, Parameter(negative=())] = None,
    model: str | None = None,
    window: Annotated[int | None, Parameter(validator=Number(gte=_LEAST_WINDOW))] = None,
    config: ConfigPath = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Play recorded sessions under several policies and compare tokens, compactions, prefix reuse and cost, offline.

    Parameters
    ----------
    path
        A request body, a list of messages, JSON lines of either, or a directory of such files.
    policy
        Policy to play them under; may be repeated. Without it: every preset.
    model
        Model to price and count for, instead of the recorded one.
    window
        Its context window in tokens, instead of the known one.
    as_json
        Print the figures as JSON.
    """
    import msgspec

    from proxy.replay_command import found, run, show

    loaded = _load(config)
    callers = [_caller(loaded, DEFAULT, name) for name in dict.fromkeys(policy or preset_names())]
    recordings = found(path, model, _skipped)
    replayed = run(loaded, recordings, callers, window, _console(stderr=True), _skipped)
    if not replayed.sessions:
        _fail(f"{path}: nothing to replay")
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(replayed)).decode())
    else:
        show(replayed, _console())


@sessions.command(name="ls")
def list_sessions(
    *,
    tenant: str = DEFAULT,
    config: ConfigPath = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List a tenant's conversations of which something is stored, the last used first.

    Parameters
    ----------
    tenant
        Tenant whose conversations to list.
    as_json
        Print them as JSON.
    """
    import msgspec

    from proxy.sessions_command import listed, show

    loaded = _load(config)
    found = _stored(listed(loaded, _caller(loaded, tenant, None)))
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        show(found, _console())


@sessions.command(name="rm")
def erase_sessions(
    names: tuple[str, ...] = (),
    /,
    *,
    tenant: str = DEFAULT,
    config: ConfigPath = None,
    every: Annotated[bool, Parameter(name="--all", negative=())] = False,
) -> None:
    """Erase what is stored of conversations, for all replicas; conversations may go on and are summarized anew.

    Parameters
    ----------
    names
        Labels, or ids or their first eight digits or more.
    tenant
        Tenant whose conversations these are.
    every
        Erase all of the tenant.
    """
    from proxy.sessions_command import erase

    loaded = _load(config)
    if every == bool(names):
        _fail("name the sessions to erase, or say --all; `concertina sessions ls` lists them")
    erased = _stored(erase(loaded, _caller(loaded, tenant, None), names, all_of_them=every))
    if not erased and not every:
        _fail(f"tenant {tenant} has no such session; `concertina sessions ls` lists them")
    print(f"erased {len(erased)} of tenant {tenant}")


@app.command
def schema() -> None:
    """Print the JSON Schema of the config file."""
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))


@keys.command(name="new")
def new_key(tenant: str) -> None:
    """Make a key for a tenant and print it once, with the line that makes it known; only its hash is kept."""
    if tenant == DEFAULT:
        _fail(f"tenant {DEFAULT} has no keys: it stands for callers without a known one; name another")
    key = _KEY_PREFIX + secrets.token_urlsafe(32)
    digest = hashlib.sha256(key.encode()).hexdigest()
    print(f"The key of tenant {tenant}, shown this once:\n\n  {key}\n")
    print(f'Put its hash into the config:\n\ntenants:\n  {tenant}:\n    keys: ["sha256:{digest}"]')


@app.command
def healthcheck(url: str = "http://127.0.0.1:8795") -> None:
    """Ask a running proxy whether it is ready; exit code 0 or 1."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever HTTP_PROXY says
    try:
        with direct.open(f"{url.rstrip('/')}/readyz", timeout=_HEALTH_TIMEOUT) as answer:
            print(answer.read().decode())
    except (OSError, ValueError, HTTPException) as error:
        _fail(f"not ready: {error}")


@app.command
def version() -> None:
    """Print the version."""
    print(f"concertina {installed_version('concertina')}")


def _load(path: Path | None) -> Config:
    """The config, or its problems on standard error and exit code 1."""
    try:
        return load(_chosen(path), os.environ)
    except ConfigError as error:
        for problem in error.problems:
            _err(str(problem))
        sys.exit(1)


def _stored(work: Coroutine[None, None, _T]) -> _T:
    """What comes of work on the store, or its trouble and exit code 1."""
    from proxy.stores import StoreError

    try:
        return asyncio.run(work)
    except StoreError as error:
        _fail(str(error))


def _request(file: Path) -> tuple[str, bytes]:
    """What to call a request's file, and its bytes."""
    if file == _STDIN:
        return "standard input", sys.stdin.buffer.read()
    try:
        return str(file), file.read_bytes()
    except OSError as error:
        _fail(f"{file}: {error.strerror}; name a file that holds one request body, or - for standard input")


def _caller(config: Config, tenant: str, policy: str | None) -> Caller:
    """A caller of this tenant, under another policy if one is named."""
    from proxy.tenants import Tenants

    caller = Tenants(config).named(tenant)
    if caller is None:
        _fail(f"--tenant {tenant}: no tenant has this name; {suggest(tenant, config.tenants, 'known names')}")
    if policy is None:
        return caller
    if policy not in config.policies:
        _fail(f"--policy {policy}: no policy has this name; {suggest(policy, config.policies, 'known names')}")
    return replace(caller, policy_name=policy, policy=config.policies[policy])


def _chosen(path: Path | None) -> Path | None:
    return _CONFIG if path is None and _CONFIG.is_file() else path


def _counted(config: Config) -> str:
    counts = {"upstream": config.upstreams, "policy": config.policies, "tenant": config.tenants}
    plurals = {"policy": "policies"}
    return ", ".join(
        f"{len(items)} {name if len(items) == 1 else plurals.get(name, name + 's')}" for name, items in counts.items()
    )


def _console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, no_color=bool(os.environ.get("NO_COLOR")), highlight=False, markup=False)


def _skipped(why: str) -> None:
    _err(f"skipped {why}")


def _err(line: str) -> None:
    print(line, file=sys.stderr)


def _fail(line: str) -> NoReturn:
    _err(line)
    sys.exit(1)


def main() -> None:
    app()
