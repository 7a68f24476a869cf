"""The command line: its commands and their validation."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from importlib.metadata import version as installed_version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Literal
from urllib.error import HTTPError

from cyclopts import App, Parameter
from cyclopts.validators import Number

from proxy.cli.common import (
    caller_of,
    console,
    count_settings,
    err,
    fail,
    find_config,
    load_config,
    name_of,
    output,
    plain,
)
from proxy.cli.parameters import AsJson, ConfigPath, DialectName, Flag
from proxy.cli.session_commands import sessions
from proxy.cli.usage import HelpLines, error_console, usage_error
from proxy.config.errors import suggest
from proxy.config.extras import missing_extra
from proxy.config.loading import Config, json_schema, notes, preset_names, unshared_problem
from proxy.config.settings import DEFAULT
from proxy.server.addresses import address, leading_back, named_url

VERSION = f"concertina {installed_version('concertina')}"

app = App(
    name="concertina",
    help="Keeps long conversations inside the model's context window.",
    help_epilogue="Example: concertina init && concertina doctor && concertina serve",
    version=VERSION,
    version_flags=["--version"],
    console=console(),
    help_formatter=HelpLines(),
    error_formatter=usage_error,
    error_console=error_console(),
)
keys = App(name="keys", help="Keys of tenants.")
app.command(keys)
app.command(sessions)
app.command(
    "proxy.cli.doctor.command:doctor",
    name="doctor",
    help_epilogue="Example: concertina doctor --spend gpt-4o-mini",
    help="Check the upstreams, keys, models and store of a config, a line each.",
)
app.command(
    "proxy.cli.watching.tail:tail",
    name="tail",
    help_epilogue="Example: concertina tail deploy",
    help="Print the running proxy's requests as they end, in sentences.",
)
app.command(
    "proxy.cli.watching.opening:open_dashboard",
    name="open",
    help_epilogue="Example: concertina open --show",
    help="Open the running proxy's dashboard in the browser.",
)
app.command(
    "proxy.cli.init:init",
    name="init",
    help_epilogue="Example: concertina init --agent claude-code",
    help="Write a short config.yaml, and print what agents need.",
)
app.command(
    "proxy.cli.printing:print_file",
    name="print",
    help_epilogue="Example: concertina print client codex",
    help="Print a dashboard, alerts, or what a client needs.",
)

_REMOVED = {
    ("top", ""): "`concertina open` opens the Live page, and `concertina tail` prints requests as they end",
    ("replay", "--memory"): "`python -m benchmarks.memory FOLDER` of the repository measures it",
    ("demo", "--dialect"): "the demo sends chat completions; for another API point your client at `concertina serve`",
}
"""Removed commands and options of earlier releases, with their replacements."""

_LEAST_WINDOW = 256
_MOST_NAME = 64

Port = Annotated[int | None, Parameter(validator=Number(gte=0, lte=65535))]
Amount = Annotated[int | None, Parameter(validator=Number(gt=0, lte=10**15))]
Dollars = Annotated[float | None, Parameter(validator=Number(gt=0, lte=1e9))]
Workers = Annotated[int | None, Parameter(validator=Number(gte=1, lte=256))]


@app.command(help_epilogue="Example: concertina serve config.yaml --host 0.0.0.0 --workers 4")
def serve(config: ConfigPath = None, *, host: str | None = None, port: Port = None, workers: Workers = None) -> None:
    """Run the proxy.

    :param host: Address to listen on, instead of server.host.
    :param port: Port to listen on, instead of server.port; 0: any free port.
    :param workers: Processes that serve, instead of server.workers.
    """
    from proxy.callers import store_secret
    from proxy.cli.running import announce
    from proxy.cli.serve import run_workers
    from proxy.config.reloading import source
    from proxy.server.process import inherited_sockets, listen, listen_apart
    from proxy.sessions.stores import StoreError, check_file

    read_from = source(find_config(config), os.environ)
    written = load_config(config)
    loaded = _with_command_line(written, host=host, port=port, workers=workers)
    if (problem := unshared_problem(loaded)) is not None:
        fail(problem)
    for note in notes(loaded):
        err(f"note: {note}")
    store_secret.make(loaded)  # before the store is created, which would otherwise have no secret
    try:
        check_file(loaded.store.url, loaded.store.timeout)
    except StoreError as error:
        fail(str(error))
    host, port, number = loaded.server.host, loaded.server.port, loaded.server.workers
    try:
        if inherited := inherited_sockets():
            listeners, listens = inherited, lambda: inherited
        elif number == 1:
            listeners = [listen(host, port)]
            listens = partial(list, listeners)
        else:
            listener, listens = listen_apart(host, port)
            listeners = [listener]
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        way_out = "choose another with --port or --host, or with server.port and server.host in the config"
        fail(f"cannot listen on {address(host, port)}: {reason}; {way_out}")
    for listener in listeners:
        _refuse_itself(loaded, *listener.getsockname()[:2])
    host, port, *_ = listeners[0].getsockname()
    # What is shown without a sign-in depends on the address. Commands must know which free port it is.
    loaded = _with_command_line(loaded, host=host, port=port) if inherited else _with_command_line(loaded, port=port)
    with announce(written, loaded.server, find_config(config)):
        code = run_workers(loaded, name_of(config), listens, console(), read_from)
    sys.exit(code)


@app.command(help_epilogue="Example: concertina demo --once")
def demo(*, once: bool = False) -> None:
    """Play a session of 60 requests against a small window, directly and through the proxy, and link to its page.

    :param once: End with the session, and show no page; exit code 1 if any step failed.
    """
    from proxy.cli.demo import run_demo

    try:
        sys.exit(asyncio.run(run_demo(once=once, console=console())))
    except KeyboardInterrupt:
        sys.exit(130)


@app.command(help_epilogue="Example: concertina check deploy/config.yaml")
def check(config: ConfigPath = None) -> None:
    """Validate a config file: one line per problem with file, line, YAML path and remedy; exit code 0 or 1."""
    loaded = load_config(config)
    _refuse_itself(loaded, loaded.server.host, loaded.server.port)
    if (problem := unshared_problem(loaded)) is not None:
        fail(problem)
    for note in notes(loaded):
        print(f"note: {note}")
    print(f"{name_of(config)}: ok ({count_settings(loaded)})")


@app.command(help_epilogue="Example: concertina config config.yaml --all")
def config(config: ConfigPath = None, *, all_settings: Annotated[Flag, Parameter(name="--all")] = False) -> None:
    """Print the settings that differ from the defaults, without secrets.

    :param all_settings: Print all settings.
    """
    from proxy.config.shown import as_yaml, changed_values, masked_values

    loaded = load_config(config)
    values = masked_values(loaded) if all_settings else changed_values(loaded)
    if values:
        print(as_yaml(values), end="")
    else:
        err(f"{name_of(config)}: no setting differs from its default")


@app.command(help_epilogue="Example: concertina models gpt-4o claude-sonnet-4 --ask")
def models(
    names: tuple[str, ...] = (),
    /,
    *,
    config: ConfigPath = None,
    tenant: str = DEFAULT,
    ask: Flag = False,
    as_json: AsJson = False,
) -> None:
    """Print the context windows of models and their sources. What the running proxy knows comes first.

    :param names: Models; default: those that the config names without wildcards, or else those that the proxy has seen.
    :param tenant: Tenant whose requests use the models.
    :param ask: Ask the upstreams too, with their own keys.
    :param as_json: Print all facts as JSON.
    """
    from proxy.cli.models import merge_models, named_models, of_running, show, sources

    loaded = load_config(config)
    caller_of(loaded, tenant)
    running = of_running(loaded, tenant)
    model_names = names or tuple(named_models(loaded)) or tuple(dict.fromkeys(each.place.model for each in running))
    if not model_names:
        fail("the config names no model, and none was requested yet; name models, as in `concertina models gpt-4o`")
    sources_by_model = merge_models(running, asyncio.run(sources(loaded, model_names, tenant, err, ask=ask)))
    output(sources_by_model, show, as_json=as_json)


@app.command(help_epilogue="Example: concertina explain request.json --policy coding-agent")
def explain(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    config: ConfigPath = None,
    policy: str | None = None,
    tenant: str = DEFAULT,
    dialect: DialectName | None = None,
    force: Flag = False,
    session: str | None = None,
    as_json: AsJson = False,
) -> None:
    """Print which messages of a request would be kept, summarised, shortened, pinned or dropped, and why.

    Nothing is sent.

    :param file: A body of POST /v1/chat/completions, /v1/responses or /v1/messages; - reads standard input.
    :param policy: Policy to explain it under, instead of the tenant's.
    :param tenant: Tenant whose request it is.
    :param dialect: API of the request; default: by its fields, or else chat.
    :param force: As with `x-compaction: force`.
    :param session: Label or id of the stored session that it continues, whose records are used.
    :param as_json: Print the whole explanation as JSON.
    """
    from proxy.cli.admin_client import AdminError, open_client
    from proxy.cli.explain import explain as explained
    from proxy.cli.explain import read_request, show
    from proxy.cli.sessions import find_session
    from proxy.dialects.table import DEFAULT_DIALECT, dialect_named, dialect_of_body
    from proxy.errors import InvalidJSONError
    from proxy.sessions.stores import StoreError

    loaded = load_config(config)
    caller = caller_of(loaded, tenant, policy)
    name, body = read_request(file)
    spoken = dialect_named(dialect) if dialect else dialect_of_body(body) or DEFAULT_DIALECT
    mode = "force" if force else caller.policy.mode
    try:
        stored = None
        if session is not None:
            with open_client(loaded, caller) as client:
                stored = find_session(client, session)
        explanation = asyncio.run(explained(loaded, body, caller, mode, spoken, stored))
    except InvalidJSONError as error:
        fail(f"{name}: {error.message}")
    except (AdminError, StoreError) as error:
        fail(str(error))
    if explanation is None:
        array = spoken.array.name
        fail(f"{name}: not a {spoken.name} request; it must be a JSON object with a list of objects as {array}")
    output(explanation, partial(show, session=stored), as_json=as_json, indent=2)


@app.command(help_epilogue="Example: concertina replay sessions/ --policy chat --policy cost")
def replay(
    path: Path,
    *,
    policy: Annotated[list[str] | None, Parameter(negative=())] = None,
    model: str | None = None,
    window: Annotated[int | None, Parameter(validator=Number(gte=_LEAST_WINDOW))] = None,
    config: ConfigPath = None,
    as_json: AsJson = False,
) -> None:
    """Play recorded sessions under several policies and compare tokens, compactions, prefix reuse and cost, offline.

    :param path: A request body, a list of messages, JSON lines of either, or a directory of such files.
    :param policy: Policy to play them under; may be repeated. Without it: every preset.
    :param model: Model to price and count for, instead of the recorded one.
    :param window: Its context window in tokens, instead of the known one.
    :param as_json: Print the figures as JSON.
    """
    from proxy.cli.replay.command import find_recordings, run, show

    loaded = load_config(config)
    callers = [caller_of(loaded, DEFAULT, name) for name in dict.fromkeys(policy or preset_names())]

    def skipped(why: str) -> None:
        err(f"skipped {why}")

    recordings = find_recordings(path, model, skipped if path.is_dir() else fail)
    replayed = run(loaded, recordings, callers, window, console(stderr=True), skipped)
    if not replayed.sessions:
        forms = "a request body, a list of messages, JSON lines of either, or a folder of such files"
        fail(f"{path}: nothing to replay; name {forms}")
    output(replayed, show, as_json=as_json, indent=2)


@app.command(help_epilogue="Example: claude mcp add concertina -- concertina mcp")
def mcp(*, tenant: str = DEFAULT, config: ConfigPath = None) -> None:
    """Serve an MCP server over standard input and output, with which agents search stored conversations.

    :param tenant: Tenant whose conversations are searched.
    """
    try:
        from proxy.cli.mcp_server import serve_mcp
    except ImportError as error:  # it is missing, or older
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        fail(missing_extra("mcp"))
    loaded = load_config(config)
    serve_mcp(loaded, caller_of(loaded, tenant))


@app.command(help_epilogue="Example: concertina schema > config.schema.json")
def schema() -> None:
    """Print the JSON Schema of the config file."""
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))


@keys.command(name="new", help_epilogue="Example: concertina keys new acme")
def new_key(tenant: str, *, viewer: Flag = False) -> None:
    """Make a key for a tenant and print it once, with the config lines for its hash. Only the hash is stored.

    :param viewer: A key for a person who reads the tenant's pages under /admin, and sends no requests.
    """
    from proxy.callers.issued_keys import new_secret

    if not viewer:
        _refuse_default(tenant)
    key, digest = new_secret()
    setting = "viewer_keys" if viewer else "keys"
    print(f"The key of tenant {tenant}, shown this once:\n\n  {key}\n")
    print(f'Put its hash into the config:\n\ntenants:\n  {tenant}:\n    {setting}: ["sha256:{digest}"]')


@keys.command(name="add", help_epilogue="Example: concertina keys add acme --name ci --expires 90d --usd-per-month 200")
def add_key(
    tenant: str,
    *,
    name: str = "",
    expires: str | None = None,
    tokens_per_day: Amount = None,
    tokens_per_month: Amount = None,
    usd_per_day: Dollars = None,
    usd_per_month: Dollars = None,
    requests_per_minute: Amount = None,
    tokens_per_minute: Amount = None,
    config: ConfigPath = None,
) -> None:
    """Issue a key for a tenant in the store and print it once. Replicas accept it within 2 s.

    Keys in the config stay valid. Limits count tokens and list prices of prompts, responses and summaries. Days and
    months are in UTC.

    :param name: Name of the key in lists.
    :param expires: Duration, such as 12h, 30d or 2w, or the last day, such as 2027-01-31.
    """
    from proxy.callers import store_secret
    from proxy.callers.issued_keys import LOOK_EVERY, KeyLimits
    from proxy.cli.keys import add, expiry
    from proxy.sessions.stores import StoreError, file_of

    _refuse_default(tenant)
    loaded = load_config(config)
    _refuse_unknown(loaded, tenant)
    limits = KeyLimits(
        tokens_per_day=tokens_per_day,
        tokens_per_month=tokens_per_month,
        usd_per_day=usd_per_day,
        usd_per_month=usd_per_month,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
    )
    if len(name) > _MOST_NAME or plain(name) != name:
        fail(f"--name: must have at most {_MOST_NAME} characters, all printable")
    file = file_of(loaded.store.url)
    is_new = file is not None and not file.exists()
    store_secret.make(loaded)  # before the store is created, which would otherwise have no secret
    try:
        until = expiry(expires, time.time())
    except ValueError as error:
        fail(f"--expires {expires}: {error}")
    try:
        key, key_id = asyncio.run(add(loaded, tenant, name=name, expires=until, limits=limits))
    except StoreError as error:
        fail(str(error))
    print(f"The key {key_id} of tenant {tenant}, shown this once:\n\n  {key}\n")
    if file is not None:
        print(f"It is stored in {file.absolute()}{', a new file' if is_new else ''}.")
    print(f"Running proxies with this store accept it within {LOOK_EVERY:g} s.")
    without = [where for where, upstream in loaded.upstreams.items() if not upstream.api_key.get_secret_value()]
    if without and not loaded.tenants[tenant].api_key.get_secret_value():
        way_out = f"set tenants.{tenant}.api_key or upstreams.{without[0]}.api_key if it requires one"
        err(f"note: its requests go to {' and '.join(without)} without a key; {way_out}")


@keys.command(name="list", help_epilogue="Example: concertina keys list acme")
def list_keys(tenant: str | None = None, *, config: ConfigPath = None, as_json: AsJson = False) -> None:
    """List the issued keys with their usage and limits. Keys in the config are not listed.

    :param tenant: Only keys of this tenant.
    :param as_json: Print them as JSON.
    """
    from proxy.cli.keys import list_issued, show
    from proxy.sessions.stores import StoreError

    loaded = load_config(config)
    if tenant is not None:
        _refuse_unknown(loaded, tenant)
    try:
        listed = asyncio.run(list_issued(loaded, tenant))
        if not listed:
            err(f"no key is listed; `concertina keys add {tenant or 'TENANT'}` issues one")
        output(listed, show, as_json=as_json)
    except StoreError as error:
        fail(str(error))


@keys.command(name="revoke", help_epilogue="Example: concertina keys revoke acme ci")
def revoke_key(tenant: str, key: str, *, config: ConfigPath = None) -> None:
    """Revoke an issued key. Every replica refuses it within 2 s, and its sessions are kept.

    :param key: Its id, the beginning of its id, or its name.
    """
    from proxy.cli.keys import revoke
    from proxy.sessions.stores import StoreError

    loaded = load_config(config)
    _refuse_unknown(loaded, tenant)
    if not key:
        fail("name the key to revoke; `concertina keys list` lists them")
    try:
        gone = asyncio.run(revoke(loaded, tenant, key))
    except StoreError as error:
        fail(str(error))
    print(f"revoked {gone.id}{f' ({gone.name})' if gone.name else ''}")


@app.command(help_epilogue="Example: source <(concertina completion bash)")
def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print a script that completes the commands in a shell: `source <(concertina completion bash)`.

    :param shell: The shell; for fish `concertina completion fish | source`.
    """
    print(app.generate_completion(shell=shell))


@app.command(help_epilogue="Example: concertina healthcheck http://127.0.0.1:8795")
def healthcheck(url: str | None = None, *, config: ConfigPath = None) -> None:
    """Check that a running proxy is ready; exit code 0 or 1.

    :param url: Its address, instead of server.host and server.port of the config.
    """
    from proxy.cli.running import configured_url, readiness, reason_of, way_to_a_proxy

    try:
        address = configured_url(config) if url is None else named_url(url)
    except ValueError as error:
        fail(f"not ready: {error}")
    try:
        print(readiness(address))
    except HTTPError as error:
        fail(f"not ready: {error}")
    except (OSError, ValueError, HTTPException) as error:
        fail(f"not ready: {reason_of(error)}; {way_to_a_proxy()}")


@app.command
def version() -> None:
    """Print the version."""
    print(VERSION)


def _refuse_default(tenant: str) -> None:
    if tenant == DEFAULT:
        fail(f"tenant {DEFAULT} has no keys: it serves clients without a known key; name another tenant")


def _refuse_unknown(config: Config, tenant: str) -> None:
    if tenant not in config.tenants:
        way_out = f"add it to the config, as in `tenants: {{{tenant}: {{}}}}`"
        fail(f"tenant {tenant} is not in the config; {suggest(tenant, config.tenants, 'known names')}; {way_out}")


def _with_command_line(config: Config, **chosen: str | int | None) -> Config:
    """Return the config with the server settings of the command line."""
    changes = {name: value for name, value in chosen.items() if value is not None}
    return config.model_copy(update={"server": config.server.model_copy(update=changes)})


def _refuse_itself(config: Config, host: str, port: int) -> None:
    """End the command if an upstream is the proxy that will listen at this address."""
    problems = list(leading_back(config, host, port)) if port else []
    for problem in problems:
        err(problem)
    if problems:
        sys.exit(1)


def _refuse_removed(arguments: Sequence[str]) -> None:
    """End the command if the arguments name a command or an option of an earlier release."""
    for (command, option), instead in _REMOVED.items():
        options = [argument.partition("=")[0] for argument in arguments]
        if arguments[:1] == [command] and (not option or option in options):
            fail(f"{f'{command} {option}'.strip()} was removed in 0.3.0: {instead} (docs/upgrading.md)")


def main() -> None:
    """Run the command line."""
    _refuse_removed(sys.argv[1:])
    if isinstance(sys.stdout, TextIOWrapper):  # a character that the terminal's encoding lacks must not end the command
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:  # closed by a shell's >&-
                sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough, such as head; nothing may be flushed again at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:  # such as a full disk
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        name = f"{error.filename}: " if error.filename else "this command failed: "
        fail(f"{name}{error.strerror or error}; check free space and permissions")
