"""Issued keys at the gateway: known, limited and revoked while the proxy runs, by all replicas, in each dialect."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from proxy.callers.issued_keys import IssuedKey, KeyLimits, KeyShelf, as_revoked, key_prefix, new_key
from proxy.callers.key_usage import Used, used_by
from proxy.sessions.stores import open_store
from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    JSON,
    Call,
    Client,
    Header,
    Reply,
    Script,
    answer,
    ask,
    chat,
    chunk,
    config_for,
    connected,
    delta,
    head,
    request,
    serving,
    upstream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from proxy.config.loading import Config

pytestmark = pytest.mark.anyio

BILLED = json.dumps({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}})
BODIES = {
    "chat": (CHAT, chat("hi")),
    "responses": ("/v1/responses", b'{"model":"m","input":"hi"}'),
    "messages": ("/v1/messages", b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}'),
}


async def billed(call: Call) -> None:
    await call.read()
    await call.send(answer(200, BILLED.encode(), JSON))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.app.LOOK_FOR_KEYS_EVERY", 0.01)
    monkeypatch.setattr("proxy.app.COUNT_EVERY", 0.01)


class Fleet:
    """Replicas over one store, each with a connection that is kept."""

    def __init__(self, config: Config, clients: list[Client], addresses: tuple[str, str]) -> None:
        self.clients = clients
        self.addresses = addresses
        self.address = addresses[0]
        self._config = config

    async def put(self, key: IssuedKey) -> None:
        store = open_store(self._config.store.url)
        await KeyShelf(self._config.store.seal(store)).put(key)
        await store.close()

    async def until(self, secret: str, status: int, *, replica: int = 0, body: bytes | None = None) -> Reply:
        """Ask until the answer has this status."""
        while True:
            reply = await asked(self.clients[replica], secret, body=body)
            if reply.status == status:
                return reply
            await asyncio.sleep(0.005)

    async def used(self, key: IssuedKey, *, than: Used | None = None) -> Used:
        """What the store has counted, once it is something, and other than this."""
        store = open_store(self._config.store.url)
        try:
            while (found := await used_by(store, key, time.time())) in (None, than) or not found.tokens_today:  # noqa: ASYNC110 - asks
                await asyncio.sleep(0.005)
        finally:
            await store.close()
        return found


async def asked(client: Client, secret: str, path: str = CHAT, body: bytes | None = None) -> Reply:
    return await client.ask("POST", path, [JSON, (b"Authorization", f"Bearer {secret}".encode())], body or chat("hi"))


@asynccontextmanager
async def fleet(folder: Path, replicas: int = 1, script: Script | None = None, **more: object) -> AsyncIterator[Fleet]:
    async with upstream(script or billed) as behind, asyncio.timeout(30):
        store = {"url": f"sqlite:///{folder}/store.db", "secret": "pepper"}
        rest = {"tenants": {"acme": {}}, "closed": True, "models": [{"match": "*", "context_window": 100_000}], **more}
        config = config_for(folder, behind.address, store=store, **rest)
        async with (
            serving(config) as first,
            serving(config) as second,
            connected(first) as one,
            connected(second) as two,
        ):
            yield Fleet(config, [one, two][:replicas], (first, second))


async def test_a_key_is_taken_and_revoked_while_the_proxy_runs(tmp_path: Path) -> None:
    """On a connection that is kept, too, whose head comes again."""
    secret, key = new_key("acme", time.time())
    async with fleet(tmp_path, replicas=2) as played:
        assert (await asked(played.clients[0], secret)).status == 401
        await played.put(key)
        for replica in (0, 1):
            await played.until(secret, 200, replica=replica)
        await played.put(as_revoked(key, time.time()))
        for replica in (0, 1):
            refused = await played.until(secret, 401, replica=replica)
            assert b"revoked" in refused.body


async def test_what_is_passed_through_needs_a_good_key_too(tmp_path: Path) -> None:
    secret, key = new_key("acme", time.time(), expires=time.time() - 1)
    async with fleet(tmp_path) as played:
        await played.put(key)
        head = [(b"Authorization", f"Bearer {secret}".encode())]
        while b"expired" not in (await played.clients[0].ask("GET", "/v1/models", head)).body:  # noqa: ASYNC110 - asks
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
async def test_a_rate_is_refused_in_the_dialects_words_by_all_replicas(tmp_path: Path, dialect: str) -> None:
    secret, key = new_key("acme", time.time(), limits=KeyLimits(requests_per_minute=2))
    async with fleet(tmp_path, replicas=2) as played:
        await played.put(key)
        for replica in (0, 1):
            await played.until(secret, 200, replica=replica)
        await played.until(secret, 429)
        await played.until(secret, 429, replica=1)
        reply = await asked(played.clients[1], secret, *BODIES[dialect])
        assert reply.status == 429
        wait = int(dict(reply.headers)[b"retry-after"])
        error = json.loads(reply.body)["error"]
        assert error["type"] == "rate_limit_error"
        assert f"limited to 2 requests a minute; try again in {wait} s" in error["message"]
        assert 0 < wait <= 120


async def test_a_budget_is_counted_from_what_was_billed(tmp_path: Path) -> None:
    secret, key = new_key("acme", time.time(), limits=KeyLimits(tokens_per_month=240))
    async with fleet(tmp_path) as played:
        await played.put(key)
        await played.until(secret, 200)
        assert (await asked(played.clients[0], secret)).status == 200
        reply = await asked(played.clients[0], secret)
        assert (reply.status, json.loads(reply.body)["error"]["code"]) == (429, "insufficient_quota")
        assert (b"x-should-retry", b"false") in reply.headers


EMBEDDED = (
    b'{"object":"list","data":[{"embedding":[' + b"0.5," * 40_000 + b'0.5]}],"model":"text-embedding-3-small",'
    b'"usage":{"prompt_tokens":1000,"total_tokens":1000}}'
)
COMPLETED = (
    b'data: {"model":"gpt-3.5-turbo-instruct","choices":[],"usage":null}\n\n'
    b'data: {"model":"gpt-3.5-turbo-instruct","choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":100}}\n\n'
)


@pytest.mark.parametrize(
    ("path", "body", "headers", "tokens", "usd"),
    [
        ("/v1/embeddings", EMBEDDED, [JSON], 1000, 1000 * 0.02e-6),
        ("/v1/embeddings", gzip.compress(EMBEDDED), [JSON, (b"content-encoding", b"gzip")], 1000, 1000 * 0.02e-6),
        ("/v1/completions", COMPLETED, [EVENTS], 1100, 1000 * 1.5e-6 + 100 * 2e-6),
        ("/v1/images/generations", b'{"data":[],"usage":{"input_tokens":50,"output_tokens":4000}}', [JSON], 4050, None),
        ("/v1/rerank", b'{"results":[],"usage":{"total_tokens":70}}', [JSON], 70, None),
        # 25 bytes of a request, without usage in the answer.
        ("/v1/audio/speech", b"\xff\xfb sound", [(b"content-type", b"audio/mpeg")], 7, None),
        ("/v1/completions", b'data: {"model":"gpt-4o"}\n\n' * 9, [EVENTS], 9, 7 * 2.5e-6 + 2 * 10e-6),
        ("/api/generate", b'{"response":"a"}\n' * 15, [(b"content-type", b"application/x-ndjson")], 10, None),
        ("/api/generate", b'{"response":"a word"}', [JSON], 13, None),
        ("/v1/images/generations", b'{"data":["' + b"a" * 90_000 + b'"]}', [JSON], 7 + 4_096, None),
    ],
)
async def test_answers_that_are_no_conversations_count_by_what_they_report_else_by_their_size(
    tmp_path: Path, path: str, body: bytes, headers: list[Header], tokens: int, usd: float | None
) -> None:
    async def script(call: Call) -> None:
        await call.read()
        is_chat = call.target == CHAT
        await call.send(answer(200, BILLED.encode(), JSON) if is_chat else answer(200, body, *headers))

    secret, key = new_key("acme", time.time(), limits=KeyLimits(usd_per_day=1.0))
    async with fleet(tmp_path, script=script) as played:
        await played.put(key)
        await played.until(secret, 200)
        before = await played.used(key)
        reply = await asked(played.clients[0], secret, path, b'{"model":"m","input":"hi"}')
        assert (reply.status, reply.body) == (200, body)
        used = await played.used(key, than=before)
    assert used.tokens_today - before.tokens_today == tokens
    assert used.usd_today - before.usd_today == pytest.approx(usd or 0)
    assert used.unpriced - before.unpriced == (usd is None)


MESSAGE = '{"role":"user","content":"hi"}'
USED = '{"prompt_tokens":1000,"completion_tokens":100,"total_tokens":1100}'
PLAIN = f'{{"model":"gpt-4o-2024-08-06","choices":[],"usage":{USED}}}'.encode()
TOLD = f'data: {{"model":"gpt-4o-2024-08-06","choices":[]}}\n\ndata: {{"choices":[],"usage":{USED}}}\n\n'.encode()
REFUSED_READING: dict[str, tuple[bytes, list[Header]]] = {
    "repeated, the last empty": (f'{{"model":"gpt-4o","messages":[{MESSAGE}],"messages":[]}}'.encode(), []),
    "repeated, the first no list": (f'{{"model":"gpt-4o","messages":1,"messages":[{MESSAGE}]}}'.encode(), []),
    "repeated": (f'{{"model":"gpt-4o","messages":[],"messages":[{MESSAGE}]}}'.encode(), []),
    "escaped": (f'{{"model":"gpt-4o","mess\\u0061ges":[{MESSAGE}]}}'.encode(), []),
    "another case": (f'{{"model":"gpt-4o","Messages":[{MESSAGE}]}}'.encode(), []),
    "many messages": (f'{{"model":"gpt-4o","messages":[{",".join([MESSAGE] * 10_001)}]}}'.encode(), []),
    "many values": (b'{"model":"gpt-4o","messages":[{}],"x":[' + b"1," * 300_000 + b"1]}", []),
    "a huge number": (b'{"model":"gpt-4o","messages":[{"role":"user","content":"x","y":1e999}]}', []),
    "an unknown coding": (b"\x01\x02" * 50, [(b"Content-Encoding", b"lzma")]),
    "two codings": (gzip.compress(gzip.compress(chat("hi"))), [(b"Content-Encoding", b"gzip, gzip")]),
    "a coding that is not what it says": (b"no gzip", [(b"Content-Encoding", b"gzip")]),
}


@pytest.mark.parametrize(("body", "headers"), REFUSED_READING.values(), ids=REFUSED_READING)
@pytest.mark.parametrize("answered", [PLAIN, TOLD], ids=["whole", "as a stream"])
async def test_what_a_request_used_counts_whatever_could_be_read_of_it(
    tmp_path: Path, body: bytes, headers: list[Header], answered: bytes
) -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(answer(200, answered, JSON if answered is PLAIN else EVENTS))

    secret, key = new_key("acme", time.time(), limits=KeyLimits(tokens_per_day=5_000))
    async with fleet(tmp_path, script=script) as played:
        await played.put(key)
        await played.until(secret, 200)
        before = await played.used(key)
        sent = [JSON, (b"Authorization", f"Bearer {secret}".encode()), *headers]
        reply = await played.clients[0].ask("POST", CHAT, sent, body)
        assert (reply.status, reply.body) == (200, answered)
        used = await played.used(key, than=before)
    assert used.tokens_today - before.tokens_today == 1_100
    assert used.usd_today - before.usd_today == pytest.approx(1_000 * 2.5e-6 + 100 * 10e-6)
    assert used.unpriced == before.unpriced


@pytest.mark.parametrize(
    ("name", "of_request"), [("many values", 600_050 // 4), ("an unknown coding", 250), ("another case", 17)]
)
async def test_a_request_that_was_not_read_counts_by_its_size_if_no_usage_is_reported(
    tmp_path: Path, name: str, of_request: int
) -> None:
    async def script(call: Call) -> None:
        is_first = b'"messages":[{"role":"user","content":"hi"}]' in (await call.read()).replace(b" ", b"")
        events = b"".join([*PIECES, b"data: [DONE]\n\n"])
        await call.send(answer(200, BILLED.encode(), JSON) if is_first else answer(200, events, EVENTS))

    secret, key = new_key("acme", time.time(), limits=KeyLimits(tokens_per_day=5_000_000))
    body, headers = REFUSED_READING[name]
    async with fleet(tmp_path, script=script) as played:
        await played.put(key)
        await played.until(secret, 200)
        before = await played.used(key)
        sent = [JSON, (b"Authorization", f"Bearer {secret}".encode()), *headers]
        assert (await played.clients[0].ask("POST", CHAT, sent, body)).status == 200
        used = await played.used(key, than=before)
    of_answer = len(b"".join(PIECES)) // 120
    assert used.tokens_today - before.tokens_today == pytest.approx(of_request + of_answer, abs=6)


@pytest.mark.parametrize(
    ("path", "limits", "most"),
    [
        (CHAT, KeyLimits(tokens_per_day=1_000), 2),
        (CHAT, KeyLimits(requests_per_minute=10), 10),
        ("/v1/embeddings", KeyLimits(tokens_per_day=1_000), 1),  # how long an answer may get is not known there
        ("/v1/embeddings", KeyLimits(requests_per_minute=10), 10),
    ],
)
async def test_requests_at_once_at_two_replicas_hold_a_limit(
    tmp_path: Path, path: str, limits: KeyLimits, most: int
) -> None:
    """Each is billed 500 tokens, and nothing is known of it before."""
    has_refused = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read()
        await has_refused.wait()
        usage = {"prompt_tokens": 400, "completion_tokens": 100, "total_tokens": 500}
        await call.send(answer(200, json.dumps({"choices": [], "usage": usage}).encode(), JSON))

    secret, key = new_key("acme", time.time(), limits=limits)
    async with fleet(tmp_path, script=script, replicas=2) as played:
        await played.put(key)
        head = [JSON, (b"Authorization", f"Bearer {secret}".encode())]
        for replica in (0, 1):  # what is refused for its form counts for nothing
            await played.until(secret, 400, replica=replica, body=b"no JSON")

        async def sent(number: int) -> int:
            body = json.dumps({"model": "m", "max_tokens": 500, "messages": [{"role": "user", "content": "hi"}]})
            reply = await ask(played.addresses[number % 2], "POST", path, head, body.encode())
            if reply.status == 429:
                assert int(dict(reply.headers)[b"retry-after"]) > 0
                refused.append(number)
                if len(refused) >= 60 - most:
                    has_refused.set()
            return reply.status

        refused = list[int]()
        statuses = await asyncio.gather(*map(sent, range(60)))
    assert (statuses.count(200), statuses.count(429)) == (most, 60 - most)


async def test_what_a_refused_request_had_reserved_is_free_again(tmp_path: Path) -> None:
    """By its upstream, and by us for its form; also what a client left before it was answered."""

    async def script(call: Call) -> None:
        await call.read()
        await call.send(answer(400, b'{"error":{"message":"no"}}', JSON))

    secret, key = new_key("acme", time.time(), limits=KeyLimits(tokens_per_day=100))
    async with fleet(tmp_path, script=script) as played:
        await played.put(key)
        await played.until(secret, 400)
        for body in (chat("hi"), b"no JSON", chat("hi", max_tokens=10**20), b'{"model":"m","messages":[]}') * 2:
            assert (await asked(played.clients[0], secret, body=body)).status == 400


@pytest.mark.parametrize("name", [b"Authorization", b"x-api-key"])
async def test_a_key_of_ours_never_goes_upstream(tmp_path: Path, name: bytes) -> None:
    """In whichever header, mistyped, or before it is known here; what the client has for the upstream itself does, a
    key of a Concertina behind this one among it, and a key that the config names."""
    secret, key = new_key("acme", time.time(), prefix=key_prefix(b"pepper"))
    heads = list[list[Header]]()

    async def script(call: Call) -> None:
        await call.read()
        heads.append(call.headers)
        await call.send(answer(200, BILLED.encode(), JSON))

    theirs, named = new_key("acme", time.time())[0], "ck-of-the-config"
    known = {"acme": {"keys": [f"sha256:{hashlib.sha256(named.encode()).hexdigest()}"]}}
    async with fleet(tmp_path, script=script, closed=False, tenants=known) as played:
        await played.put(key)
        await played.until(secret, 200)
        for sent in (secret, secret[:-1], theirs, named):
            value = f"Bearer {sent}".encode() if name == b"Authorization" else sent.encode()
            mine = (b"api-key", b"theirs")
            for path, body in ((CHAT, chat("hi")), ("/v1/embeddings", b"{}")):
                for headers in ([(name, value)], [(name, value), (b"x-api-key", sent.encode()), mine][::2]):
                    await played.clients[0].ask("POST", path, [JSON, *headers], body)
        for stray in (f'"{secret}"', f"Token {secret}", f"a; session={secret}"):
            before = len(heads)
            for path in (CHAT, "/v1/embeddings"):
                reply = await played.clients[0].ask("POST", path, [JSON, (name, stray.encode())], chat("hi"))
                assert (reply.status, len(heads)) == (401, before)
            for path in (f"{CHAT}?key={secret}", CHAT):
                reply = await played.clients[0].ask("POST", path, [JSON, (b"X-My-Key", secret.encode())], chat("hi"))
                assert (reply.status, len(heads)) == (401, before)
    seen = [value.decode() for headers in heads for _, value in headers]
    assert len(heads) >= 12
    assert not any(secret[:-1] in value for value in seen)
    assert all(any(value.endswith(passed) for value in seen) for passed in (theirs, named, "theirs"))


PIECES = [delta("word ") for _ in range(30)]
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120}}\n\n'


@pytest.mark.parametrize("knows_usage", [True, False])
async def test_a_stream_whose_usage_was_not_asked_for_is_counted(tmp_path: Path, *, knows_usage: bool) -> None:
    """As reported, which the client does not see, else as estimated; with its price."""
    secret, key = new_key("acme", time.time(), limits=KeyLimits(usd_per_day=1.0))
    plain, without_limit = new_key("acme", time.time())
    asked_for = list[object]()

    async def script(call: Call) -> None:
        body = json.loads(await call.read())
        asked_for.append(body.get("stream_options"))
        if body.get("stream_options") and not knows_usage:
            await call.send(answer(400, b'{"error":{"message":"unknown field stream_options"}}', JSON))
            return
        usage = [USAGE] if body.get("stream_options") else []
        await call.send(answer(200, b"".join([*PIECES, *usage, b"data: [DONE]\n\n"]), EVENTS))

    async with fleet(tmp_path, script=script) as played:
        for each in (key, without_limit):
            await played.put(each)
        body = json.dumps({"model": "gpt-4o", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
        for sent in (secret, plain):
            await played.until(sent, 200)
        used_before = await played.used(key)
        for sent in (secret, plain):
            reply = await asked(played.clients[0], sent, body=body)
            assert (reply.status, reply.body) == (200, b"".join([*PIECES, b"data: [DONE]\n\n"]))
        used = await played.used(key, than=used_before)
    assert asked_for[-1] is None
    tokens, usd = used.tokens_today - used_before.tokens_today, used.usd_today - used_before.usd_today
    if knows_usage:
        assert (asked_for[-2], tokens) == ({"include_usage": True}, 120)
        assert usd == pytest.approx(100 * 2.5e-6 + 20 * 10e-6)
    else:
        assert tokens == pytest.approx(30, rel=0.9)
        assert usd > 0
    assert used.unpriced == used_before.unpriced


async def test_a_compressed_stream_that_must_not_be_asked_goes_out_as_it_came(tmp_path: Path) -> None:
    """With half an emoji in it."""
    secret, key = new_key("acme", time.time(), limits=KeyLimits(tokens_per_day=100_000))
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"half \\ud83d of it"}]}'
    seen = list[tuple[bytes, bytes | None]]()

    async def script(call: Call) -> None:
        seen.append((await call.read(), call.header(b"content-encoding")))
        is_asked = b"include_usage" in seen[-1][0]
        refused = answer(400, b'{"error":{"message":"unknown field stream_options"}}', JSON)
        await call.send(refused if is_asked else answer(200, b"".join([*PIECES, b"data: [DONE]\n\n"]), EVENTS))

    async with fleet(tmp_path, script=script) as played:
        await played.put(key)
        await played.until(secret, 200)
        before = len(seen)
        packed = gzip.compress(body)
        headers = [JSON, (b"Authorization", f"Bearer {secret}".encode()), (b"Content-Encoding", b"gzip")]
        for _ in range(2):
            assert (await played.clients[0].ask("POST", CHAT, headers, packed)).status == 200
    first, *rest = seen[before:]
    assert (b"include_usage" in first[0], first[1]) == (True, None)
    assert b"half \\ud83d of it" in first[0]
    assert rest == [(packed, b"gzip")] * 2, "once refused, it is asked no more"


async def test_a_stream_that_its_client_leaves_is_counted(tmp_path: Path) -> None:
    secret, key = new_key("acme", time.time(), limits=KeyLimits(tokens_per_day=100_000))
    left = asyncio.Event()

    async def script(call: Call) -> None:
        if b'"stream": true' not in await call.read():
            await call.send(answer(200, BILLED.encode(), JSON))
            return
        await call.send(head(200, EVENTS, CHUNKED), *map(chunk, PIECES))
        await left.wait()

    async with fleet(tmp_path, script=script) as played:
        await played.put(key)
        await played.until(secret, 200)
        before = await played.used(key)
        headers = [(b"Host", b"proxy"), JSON, (b"Authorization", f"Bearer {secret}".encode())]
        async with connected(played.address) as client:
            await client.send(request("POST", CHAT, headers, chat("hi", stream=True)))
            assert await client.head() == 200
            await anext(client.chunks())
        used = await played.used(key, than=before)
        left.set()
    assert 10 <= used.tokens_today - before.tokens_today <= 300


async def test_keys_of_the_config_have_no_limits(tmp_path: Path) -> None:
    known = {"acme": {"keys": [f"sha256:{hashlib.sha256(b'mine').hexdigest()}"]}}
    async with fleet(tmp_path, tenants=known) as played:
        for _ in range(5):
            assert (await asked(played.clients[0], "mine")).status == 200
