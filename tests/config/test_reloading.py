"""The config is taken again while requests are served: by signal and by change, whole or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml

from proxy.admin.setup import Reloaded
from proxy.app import App
from proxy.config.loading import Config, ConfigError, load, load_text
from proxy.config.reloading import keep_fixed_settings, litellm_problems, source
from proxy.telemetry.log import open_log
from tests.support.admin import played
from tests.support.long_conversations import long_request, refused
from tests.support.operating import BEARER, TOKEN, Running, settings, write
from tests.support.servers import serve
from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    JSON,
    OK_BODY,
    Call,
    always,
    answer,
    ask,
    chat,
    chunk,
    connected,
    delta,
    head,
    in_turn,
    upstream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

SECRET = "sk-very-secret-0123456789"
NEVER = 3600.0
OTHER_BODY = OK_BODY.replace(b'"hi"', b'"other"')


@asynccontextmanager
async def running(file: Path, env: Mapping[str, str] | None = None) -> AsyncIterator[Running]:
    log = io.BytesIO()
    read_from = source(file, env or {})
    app = App(load(file, env or {}), open_log("info", time.time, log), read_from, NEVER)
    async with serve(app, lifespan="on") as address:
        yield Running(app, address, file, log)


@asynccontextmanager
async def standing(directory: Path) -> AsyncIterator[tuple[Running, str, str]]:
    """A proxy in front of one upstream, the other upstream's address, and the first one's."""
    one, two = always(answer(200, OK_BODY, JSON)), always(answer(200, OTHER_BODY, JSON))
    async with upstream(one) as first, upstream(two) as other:
        write(file := directory / "config.yaml", settings(first.address))
        async with running(file) as run:
            yield run, first.address, other.address


async def test_a_signal_takes_the_file_for_the_next_request(tmp_path: Path) -> None:
    async with standing(tmp_path) as (run, _, other):
        assert (await run.chat()).body == OK_BODY
        digest = hashlib.sha256(b"acme-key").hexdigest()
        more = {"closed": True, "tenants": {"acme": {"keys": [f"sha256:{digest}"]}}, "logging": {"level": "debug"}}
        write(run.file, settings(other, **more))
        await run.reloader.reload()
        assert (await run.chat()).status == 401
        assert (await run.chat((b"Authorization", b"Bearer acme-key"))).body == OTHER_BODY
        (line,) = run.events("reload")
        assert (line["trigger"], line["changed"], line["needs_restart"], line["notes"]) == ("signal", True, [], [])
        assert await run.counted() == (1, 0)
        assert await run.ready() == (200, {"status": "ready", "store": "up"})


RELOAD = "/admin/api/config/reload"


async def test_a_page_has_the_file_taken_and_is_told_what_came_of_it(tmp_path: Path) -> None:
    async with standing(tmp_path) as (run, _, other):
        same = msgspec.json.decode((await ask(run.address, "POST", RELOAD, [BEARER], b"")).body, type=Reloaded)
        assert (same.taken, same.changed, same.problems) == (True, False, 0)
        since = run.reloader.taken_at
        write(run.file, settings(other, store={"url": "memory://", "ttl": "1h"}))
        told = (await ask(run.address, "POST", RELOAD, [BEARER], b"")).json()
        assert (told["taken"], told["changed"], told["needs_restart"]) == (True, True, ["store.ttl"])
        assert (await run.chat()).body == OTHER_BODY
        shown = (await ask(run.address, "GET", "/admin/api/config", [BEARER])).json()
        assert since < shown["taken"] == run.reloader.taken_at  # type: ignore[operator]
        assert [line["trigger"] for line in run.events("reload")] == ["page", "page"]
        assert [line["what"] for line in run.events("admin")] == ["config_reloaded"] * 2


async def test_a_page_is_told_why_the_file_was_not_taken_and_no_secret(tmp_path: Path) -> None:
    async with standing(tmp_path) as (run, first, _):
        write(run.file, settings(first, tenants={"default": {"api_key": SECRET, "policy": "nothing"}}))
        told = (await ask(run.address, "POST", RELOAD, [BEARER], b"")).json()
        assert (told["taken"], told["changed"], told["problems"]) == (False, False, 1)
        assert "tenants.default.policy" in str(told["refusals"])
        html = (b"Accept", b"text/html")
        page = (await ask(run.address, "POST", "/admin/config/reload", [BEARER, html], b"")).body.decode()
        assert "The file was refused" in page
        assert "tenants.default.policy" in page
        assert SECRET not in page + str(told)
        write(run.file, settings(first))
        page = (await ask(run.address, "POST", "/admin/config/reload", [BEARER, html], b"")).body.decode()
        assert "it is unchanged" in page


async def test_without_a_file_there_is_nothing_to_read_again(tmp_path: Path) -> None:
    async with played(tmp_path, TOKEN) as play:
        reply = await play.send("POST", RELOAD, BEARER, body=b"")
        assert (reply.status, "There is no file" in reply.body.decode()) == (400, True)
        assert (await play.send("POST", RELOAD, body=b"")).status == 401


async def test_what_a_reload_is_asked_for_happens_soon(tmp_path: Path) -> None:
    async with standing(tmp_path) as (run, _, other):
        write(run.file, settings(other))
        run.app.reload()
        async with asyncio.timeout(30):
            while not run.events("reload"):  # noqa: ASYNC110 - nothing tells it but the log
                await asyncio.sleep(0)
        assert (await run.chat()).body == OTHER_BODY


def in_place(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


def renamed_over(file: Path, text: str) -> None:
    new = file.with_name("new")
    new.write_text(text, encoding="utf-8")
    new.replace(file)


def removed_and_made_anew(file: Path, text: str) -> None:
    file.unlink()
    file.write_text(text, encoding="utf-8")


def same_size_and_time(file: Path, text: str) -> None:
    """As within one tick of the file system's clock."""
    before = file.stat()
    file.write_text(text, encoding="utf-8")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [in_place, renamed_over, removed_and_made_anew, same_size_and_time])
async def test_a_changed_file_is_taken_once_it_rests(tmp_path: Path, change: Callable[[Path, str], None]) -> None:
    async with standing(tmp_path) as (run, first, other):
        await run.settle()
        assert run.events("reload") == [], "what the start has read is not read again"
        change(run.file, run.file.read_text("utf-8").replace(first, other))
        await run.reloader.poll()
        assert run.events("reload") == [], "half a file may be valid, too"
        await run.reloader.poll()
        assert [line["trigger"] for line in run.events("reload")] == ["file"]
        assert (await run.chat()).body == OTHER_BODY
        await run.settle()
        assert await run.counted() == (1, 0)


async def test_a_swapped_symlink_is_a_changed_file(tmp_path: Path) -> None:
    """Kubernetes: config.yaml -> ..data/config.yaml, ..data -> a directory; the link ..data is replaced."""
    one, two = always(answer(200, OK_BODY, JSON)), always(answer(200, OTHER_BODY, JSON))
    async with upstream(one) as first, upstream(two) as other:
        for name, behind in (("..1", first), ("..2", other)):
            (tmp_path / name).mkdir()
            write(tmp_path / name / "config.yaml", settings(behind.address))
        (tmp_path / "..data").symlink_to("..1")
        (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
        async with running(tmp_path / "config.yaml") as run:
            assert (await run.chat()).body == OK_BODY
            (tmp_path / "..tmp").symlink_to("..2")
            (tmp_path / "..tmp").rename(tmp_path / "..data")
            shutil.rmtree(tmp_path / "..1")
            await run.settle()
            assert (await run.chat()).body == OTHER_BODY


async def test_a_change_between_the_start_and_the_first_look_is_seen(tmp_path: Path) -> None:
    write(file := tmp_path / "config.yaml", settings("http://127.0.0.1:9"))
    read_from = source(file, {})
    config = load(file, {})
    write(file, settings("http://127.0.0.1:10"))
    async with serve(app := App(config, open_log("error", time.time, io.BytesIO()), read_from, NEVER), lifespan="on"):
        assert app.reloader is not None
        await app.reloader.poll()
        await app.reloader.poll()
        assert app.reloader.config.upstreams["main"].base_url == "http://127.0.0.1:10/v1"


async def test_a_broken_file_changes_nothing_and_says_so(tmp_path: Path) -> None:
    async with standing(tmp_path) as (run, _, other):
        good = run.file.read_text("utf-8")
        broken = settings(other, closed="maybe", tenants={"acme": {"keys": [SECRET]}}, models=[{"mach": SECRET}])
        write(run.file, broken)
        await run.settle()
        await run.settle()
        assert (await run.chat()).body == OK_BODY
        (line,) = run.events("reload_failed")
        assert (line["level"], line["trigger"], line["count"]) == ("warning", "file", 4)
        told = line["problems"]
        assert isinstance(told, list)
        for path in (
            "closed: must be",
            "tenants.acme.keys[0]: must be",
            "models[0].mach: unknown key",
            "models[0].match",
        ):
            assert any(f": {path}" in problem for problem in told), path
        assert SECRET not in run.log.getvalue().decode()
        assert await run.ready() == (200, {"status": "ready", "store": "up", "config": "failed", "problems": 4})
        assert await run.counted() == (0, 1)

        run.file.write_text(good, encoding="utf-8")
        await run.settle()
        assert await run.ready() == (200, {"status": "ready", "store": "up"})
        assert [line["changed"] for line in run.events("reload")] == [False]


async def test_variables_are_filled_in_as_at_the_start(tmp_path: Path) -> None:
    async with upstream(always(answer(200, OK_BODY, JSON))) as behind:
        write(file := tmp_path / "config.yaml", settings(behind.address))
        async with running(file, {"KEY": SECRET}) as run:
            main = {"base_url": f"{behind.address}/v1", "api_key": "${KEY}"}
            write(file, settings(behind.address, upstreams={"main": main}))
            await run.reloader.reload()
            assert (await run.chat()).status == 200
            assert SECRET not in run.log.getvalue().decode()
    assert behind.calls[0].header(b"authorization") == f"Bearer {SECRET}".encode()


async def test_a_request_under_way_keeps_what_it_began_with(tmp_path: Path) -> None:
    begun, going_on = asyncio.Event(), asyncio.Event()

    async def slow(call: Call) -> None:
        await call.read()
        begun.set()
        await call.send(head(200, EVENTS, CHUNKED) + chunk(delta("a")))
        await going_on.wait()
        await call.send(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async with upstream(slow) as behind:
        write(file := tmp_path / "config.yaml", settings(behind.address))
        async with running(file) as run, connected(run.address) as client:
            asking = asyncio.create_task(client.ask("POST", CHAT, [JSON], chat("a", stream=True)))
            await begun.wait()
            write(file, settings("http://127.0.0.1:9", closed=True))
            await run.reloader.reload()
            stranger = await run.chat()
            going_on.set()
            reply = await asking
    assert stranger.status == 401
    assert (reply.status, reply.complete) == (200, True)
    assert reply.body.endswith(b"data: [DONE]\n\n")


async def test_limits_the_token_and_the_log_level_follow(tmp_path: Path) -> None:
    async with standing(tmp_path) as (run, first, _):
        assert (await ask(run.address, "GET", "/metrics", [BEARER])).status == 200
        server = {"admin_token": "another" * 3, "max_body_bytes": 1024}
        write(run.file, settings(first, server=server, logging={"level": "error"}))
        await run.reloader.reload()
        assert (await ask(run.address, "GET", "/metrics", [BEARER])).status == 401
        assert (
            await ask(run.address, "GET", "/metrics", [(b"Authorization", b"Bearer " + b"another" * 3)])
        ).status == 200
        before = len(run.events("request"))
        assert (await ask(run.address, "POST", CHAT, [JSON], chat("a" * 2_000))).status == 413
        assert len(run.events("request")) == before


async def test_what_needs_a_restart_is_kept_and_named(tmp_path: Path) -> None:
    async with standing(tmp_path) as (run, _, other):
        before = run.reloader.config
        server = {"admin_token": TOKEN, "port": 1, "host": "0.0.0.0"}
        store = {"url": f"sqlite:///{tmp_path}/s.db", "secret": SECRET}
        write(run.file, settings(other, server=server, store=store, telemetry={"figures": "2d"}))
        await run.reloader.reload()
        (line,) = run.events("reload")
        assert line["needs_restart"] == ["server.host", "server.port", "store.url", "store.secret", "telemetry.figures"]
        assert run.reloader.config.telemetry == before.telemetry
        assert (run.reloader.config.store, run.reloader.config.server.port) == (before.store, before.server.port)
        assert (await run.chat()).body == OTHER_BODY


async def test_what_was_learned_survives_a_reload(tmp_path: Path) -> None:
    script = in_turn(refused(20_000, 0), answer(200, OK_BODY, JSON))
    policies = {"default": {"summarizer": {"model": "none"}}}
    async with upstream(script) as behind:
        write(file := tmp_path / "config.yaml", settings(behind.address, policies=policies))
        async with running(file) as run:
            assert (await ask(run.address, "POST", CHAT, [JSON], long_request())).status == 200
            write(file, settings(behind.address, policies=policies, logging={"level": "debug"}))
            await run.reloader.reload()
            reply = await ask(run.address, "POST", CHAT, [JSON], long_request())
            assert (reply.status, reply.header(b"x-compaction")) == (200, b"reused")
            (known,) = (await ask(run.address, "GET", "/admin/api/models", [BEARER])).json()["models"]  # type: ignore[misc]
    assert known["learned"] == 16_385


def config(**upstreams: dict[str, str]) -> Config:
    return load_text("c.yaml", yaml.safe_dump({"upstreams": upstreams}), {})


def test_litellm_that_was_not_loaded_at_the_start_needs_a_restart() -> None:
    plain = {"base_url": "http://h/v1"}
    gemini = {**plain, "provider": "litellm", "litellm_provider": "gemini"}
    groq = {**gemini, "litellm_provider": "groq"}
    named = {**plain, "provider": "litellm"}
    both = config(main=plain, other=gemini)

    def paths(start: Config, new: Config) -> list[str]:
        return [problem.path for problem in litellm_problems(start, new, "c.yaml")]

    assert paths(config(main=plain), both) == ["upstreams.other.provider"]
    assert paths(both, config(main=gemini, more=named)) == []
    assert paths(both, config(main=plain, other=groq)) == ["upstreams.other.litellm_provider"]
    assert paths(both, config(main=plain)) == []


def test_what_is_kept_is_only_what_differs() -> None:
    same = load(None, {})
    assert keep_fixed_settings(same, same) == (same, ())


async def test_without_a_file_there_is_nothing_to_take(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert source(None, {}) is None
    assert source(tmp_path / "pipe", {}) is None, "it was read at the start, and once only"
    assert source(tmp_path / "gone", {}) is None
    log = io.BytesIO()
    app = App(load(None, {"OPENAI_BASE_URL": "http://127.0.0.1:9"}), open_log("info", time.time, log))
    async with serve(app, lifespan="on") as address:
        run = Running(app, address, tmp_path, log)
        await run.settle()
        await run.reloader.reload()
        assert [line["reason"] for line in run.events("reload_skipped")]
        assert (await run.ready())[1].get("config") is None


GOOD = """\
server: {admin_token: the-operators-token, max_body_bytes: 100000}
store: {url: 'memory://', ttl: 7d}
upstreams:
  main: {base_url: 'ADDRESS/v1', api_key: '${KEY:-}', connect_timeout: 10s, max_connections: 10}
  other: {base_url: 'http://127.0.0.1:9/v1', idle_timeout: 5m}
models:
  - {match: 'gpt-*', upstream: main, context_window: 128000, encoding: o200k_base}
policies:
  own: {extends: cost, compaction_threshold: 0.7, summarizer: {model: none, timeout: 30s}}
tenants:
  default: {policy: own}
  acme: {keys: ['sha256:KEY'], policy: own, policies: [default], upstream: other, summary_tokens_per_day: 5}
closed: false
logging: {level: info}
"""


def leaves(value: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if at:
        yield at
    for key, inner in items:
        yield from leaves(inner, (*at, key))


def replaced(text: str, at: tuple[str | int, ...], new: object) -> bytes:
    values = yaml.safe_load(text)
    inside = values
    for key in at[:-1]:
        inside = inside[key]
    inside[at[-1]] = new
    return yaml.safe_dump(values, sort_keys=False).encode()


def broken_variants(text: str) -> Iterator[bytes]:
    """Files that are no valid config, each for one reason."""
    wrong: list[object] = [[[]], {"a": {"b": 1}}, "${GONE}", "\x07"]
    raw = text.encode()
    found = [raw[:end] for end in range(0, len(raw), 29)]
    found += [replaced(text, at, value) for at in leaves(yaml.safe_load(text)) for value in wrong]
    found += [replaced(text, (*at, "unknwon"), 1) for at in (("server",), ("store",), ("upstreams", "main"))]
    found += [replaced(text, (section,), value) for section in yaml.safe_load(text) for value in (1, "x", [1])]
    found += [
        replaced(text, ("unknwon",), {}),
        b"",
        b"\n",
        b"# nothing",
        b"- a\n- b",
        b"text",
        b"null",
        b"{",
        b"a: [",
        b"\t",
    ]
    found += [raw.replace(b": ", b":"), raw.replace(b"  ", b"\t"), raw + raw, raw + b"---\n" + raw, raw[::-1]]
    found += [bytes(range(256)), raw.decode().encode("utf-16"), b"\xff" + raw, raw + b"\0", raw + b"\x1b[2J"]
    found += [b"x: " * 100_000, b"[" * 100_000, raw + b"#" * 1_000_001, b"a: &a [*a, *a]\n", b"b: !!python/name:os.x\n"]
    found += [
        b"x0: &x0 [a]\n"
        + b"".join(b"x%d: &x%d [%b]\n" % (n, n, b",".join([b"*x%d" % (n - 1)] * 9)) for n in range(1, 9))
    ]
    for variant in found:
        try:
            load_text("c.yaml", variant.decode(), {})
        except (ConfigError, UnicodeDecodeError):
            yield variant


def unusable(file: Path) -> Iterator[str]:
    """Things that are no readable file, in the place of one."""
    yield "removed"
    file.mkdir()
    yield "a directory"
    file.rmdir()
    file.symlink_to(file.name)
    yield "a link to itself"
    file.unlink()
    file.symlink_to("nowhere")
    yield "a dead link"
    file.unlink()
    os.mkfifo(file)
    yield "a pipe"
    file.unlink()
    file.symlink_to("/dev/zero")
    yield "a device"
    file.unlink()
    file.write_text(GOOD)
    file.chmod(0)
    if not os.access(file, os.R_OK):
        yield "not to be read"
    file.chmod(0o600)


async def test_two_hundred_broken_files_are_refused_and_then_a_good_one_is_taken(tmp_path: Path) -> None:
    one, two = always(answer(200, OK_BODY, JSON)), always(answer(200, OTHER_BODY, JSON))
    async with upstream(one) as first, upstream(two) as other:
        good = GOOD.replace("sha256:KEY", "sha256:" + "0" * 64)
        (file := tmp_path / "config.yaml").write_text(good.replace("ADDRESS", first.address), encoding="utf-8")
        async with running(file) as run:
            in_force, tried = run.reloader.config, 0

            async def is_refused(what: object) -> None:
                nonlocal tried
                tried += 1
                await run.reloader.reload()
                assert run.reloader.problems, what
                assert run.reloader.config is in_force, what
                if tried % 10 == 0:
                    assert (await run.chat()).body == OK_BODY

            for variant in broken_variants(good.replace("ADDRESS", other.address)):
                file.write_bytes(variant)
                await is_refused(variant)
            file.unlink()
            for what in unusable(file):
                await is_refused(what)
            assert tried > 200
            assert len(run.events("reload_failed")) == tried
            assert run.events("reload_fault") == []
            assert (await run.ready())[1]["config"] == "failed"

            file.write_text(good.replace("ADDRESS", other.address), encoding="utf-8")
            await run.settle()
            assert (await run.chat()).body == OTHER_BODY
            assert await run.counted() == (1, tried)
