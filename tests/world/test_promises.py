"""Promises that are counts: how often a summarizer fails, a client leaves, bytes pass, a rate limit is met.

CONCERTINA_CHAOS says how much of each is played: all of it by 20, a twentieth in the suite.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import re
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise, product, repeat
from typing import TYPE_CHECKING

import pytest

from policies.record.texts import texts_for
from proxy.app import App
from proxy.upstreams.summarizer import Summarizer
from tests.support.clock import Clock
from tests.support.long_conversations import LONG, SMALL_WINDOW, SUMMARY, is_summary
from tests.support.oracle import SUMMARIZER, Oracle, Session
from tests.support.scenarios import chinese
from tests.support.servers import configured, serve
from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    HOST,
    JSON,
    OK_BODY,
    Call,
    Client,
    Header,
    Script,
    always,
    answer,
    ask,
    chat,
    chunk,
    config_for,
    connected,
    delta,
    head,
    proxied,
    request,
    upstream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SHARE = int(os.environ.get("CONCERTINA_CHAOS", "1")) / 20
WINDOW = 8_192
# Nobody measures by it: it only ends what hangs.
PATIENCE = 120


def times(whole: int) -> int:
    """How many of so many are played."""
    return max(1, round(whole * SHARE))


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a summarizer's two tries."""
    monkeypatch.setattr("proxy.upstreams.summarizer._PAUSE", 0.0)


def completion(content: object, finish: str | None = "stop", **message: object) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    return answer(200, json.dumps({"choices": [choice]}).encode(), JSON)


def error(status: int, message: str = "no", code: str | None = None, *headers: Header) -> bytes:
    return answer(status, json.dumps({"error": {"message": message, "code": code}}).encode(), JSON, *headers)


async def hang(call: Call) -> None:
    await call.read()
    await call.gone()


async def reset(call: Call) -> None:
    await call.read()
    call.reset()


async def cut_off(call: Call) -> None:
    await call.read()
    await call.send(completion("## Goal\n" + "words " * 100)[:-200])
    call.close()


async def echo(call: Call) -> None:
    await call.send(completion(json.loads(await call.read())["messages"][-1]["content"]))


async def longer(call: Call) -> None:
    asked = json.loads(await call.read())["messages"]
    headings = [line for line in asked[0]["content"].splitlines() if line.startswith("## ")]
    said = asked[-1]["content"].replace("<", "")
    await call.send(completion("\n".join(f"{heading}\n{said}" for heading in headings)))


TOO_LONG = "This model's maximum context length is 1000 tokens. However, your messages resulted in 9000 tokens."
CALLS = [{"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}]
NINE = "\n".join(f"## {heading}\nIt went on as it was asked for." for heading in texts_for("en").headings)
# Seconds for which it is then left alone, by failures in a row (docs/design.md, "When to compact").
DOWN = (60, 300, 900)
UNUSABLE = (30,)
FAILURES: dict[str, tuple[Script, tuple[int, ...]]] = {
    "timeout": (hang, DOWN),
    "429, long": (always(error(429, "slow down", "rate_limit_exceeded", (b"Retry-After", b"3600"))), DOWN),
    "500": (always(error(500)), DOWN),
    "503": (always(error(503)), DOWN),
    "refusal": (always(completion("I'm sorry, but I can't help with that.")), UNUSABLE),
    "empty": (always(completion("")), UNUSABLE),
    "whitespace": (always(completion(" \n\t\n ")), UNUSABLE),
    "truncated": (always(completion(NINE, "length")), UNUSABLE),
    "longer": (longer, UNUSABLE),
    "junk": (always(completion(chinese("junk", 900))), UNUSABLE),
    "echo": (echo, UNUSABLE),
    "json": (always(completion(json.dumps({"summary": "It went on.", "next": ["step"] * 20}))), UNUSABLE),
    "end of text": (always(completion("<|endoftext|>" * 40)), UNUSABLE),
    "tool call": (always(completion(None, "tool_calls", tool_calls=CALLS)), UNUSABLE),
    "1 MB": (always(completion("words of a very long summary " * 36_000)), UNUSABLE),
    "unfinished": (always(completion(NINE, None)), UNUSABLE),
    "null": (always(completion(None)), UNUSABLE),
    "reset": (reset, DOWN),
    "cut off": (cut_off, DOWN),
    "200 with an error": (always(error(200, "The server had an error.", "server_error")), DOWN),
    "html": (always(answer(200, b"<html><body>Bad gateway</body></html>", (b"Content-Type", b"text/html"))), DOWN),
}
OVERFLOW = always(error(400, TOO_LONG, "context_length_exceeded"))
_OWNER = re.compile(rb"mark-(\w+?)-one-")


@dataclass
class Trouble:
    """Conversations of as many callers, judged by the oracle, whose summarizer always fails."""

    oracle: Oracle
    address: str
    clock: Clock
    calls: Counter[bytes] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    outcomes: Counter[bytes | None] = field(default_factory=Counter)

    async def play(self, conversations: int, requests: int, *, pace: float) -> None:
        """Every conversation sends so many requests near its limit, and `pace` seconds pass between two of them."""
        chance = random.Random(1)
        sessions = [Session(f"t{number}", "one") for number in range(conversations)]
        for session in sessions:
            while len(session.items) < 35:
                session.grow(chance)
        for _ in range(requests):
            for session in sessions:
                session.grow(chance)
            await asyncio.gather(*(self._send(session) for session in sessions))
            self.oracle.judge()
            self.clock.now += pace

    async def _send(self, session: Session) -> None:
        name, body = session.request()
        self.oracle.expect(name, session)
        headers = [JSON, (b"Authorization", f"Bearer {session.key}".encode())]
        reply = await ask(self.address, "POST", CHAT, headers, body)
        self.statuses[reply.status] += 1
        self.outcomes[reply.header(b"x-compaction")] += 1

    def check(self, conversations: int, requests: int) -> None:
        """Nobody was refused, nothing wrong went upstream; every conversation wanted summaries, and none was used."""
        assert self.statuses == {200: conversations * requests}
        assert (self.oracle.wrong, self.oracle.judged.total()) == ([], conversations * requests)
        assert min(self.outcomes[b"applied"], self.outcomes[b"failed-open"]) >= conversations
        assert len(self.calls) >= conversations

    def failing(self, script: Script) -> Script:
        """Whose conversation a call was about is in its transcript."""

        async def counted(call: Call) -> None:
            try:
                await script(call)
            finally:
                owner = _OWNER.search(call.body)
                self.calls[owner[1] if owner else b""] += 1

        return counted


@asynccontextmanager
async def trouble(
    directory: Path, script: Script, monkeypatch: pytest.MonkeyPatch, **summarizer: object
) -> AsyncIterator[Trouble]:
    clock = Clock()
    monkeypatch.setattr("proxy.wiring.Summarizer", lambda client, _, observe: Summarizer(client, clock, observe))
    played = Trouble(Oracle(WINDOW), "", clock)
    async with serve(played.oracle.model) as main, upstream(played.failing(script)) as other:
        settings = {
            "store": {"url": "memory://"},
            "upstreams": {"main": {"base_url": f"{main}/v1"}, "other": {"base_url": f"{other.address}/v1"}},
            "models": [
                {"match": SUMMARIZER, "context_window": 1_000_000},
                {"match": "*", "context_window": WINDOW, "encoding": "o200k_base"},
            ],
            "policies": {
                "default": {"soft_threshold": 1, "summarizer": {"model": SUMMARIZER, "upstream": "other", **summarizer}}
            },
            "logging": {"level": "error"},
        }
        async with serve(App(configured(directory, settings)), lifespan="on") as played.address:
            yield played


def attempts(pauses: Sequence[int], seconds: float) -> int:
    """How often a failing summarizer may be tried in so many seconds."""
    begun = list(accumulate(chain(pauses, repeat(pauses[-1], int(seconds))), initial=0))
    return sum(at < seconds for at in begun)


@pytest.mark.parametrize("kind", FAILURES)
async def test_a_summarizer_may_fail_in_any_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    conversations, requests, pace = times(40), 25, 10.0
    script, pauses = FAILURES[kind]
    patience = {"timeout": "1s"} if kind == "timeout" else {}
    async with trouble(tmp_path, script, monkeypatch, **patience) as played:
        await played.play(conversations, requests, pace=pace)
    played.check(conversations, requests)
    assert all(calls <= 2 * attempts(pauses, requests * pace) for calls in played.calls.values()), played.calls


async def test_a_summarizer_that_finds_everything_too_long_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations, requests, pace = times(40), 25, 1.0
    async with trouble(tmp_path, OVERFLOW, monkeypatch) as played:
        await played.play(conversations, requests, pace=pace)
    played.check(conversations, requests)
    most_calls = 16  # of one compaction (`bisect.max_calls`)
    assert played.calls.total() <= conversations * most_calls * attempts(UNUSABLE, requests * pace)


async def test_under_rate_limits_a_summarizer_costs_a_tenth_more_requests_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations, requests = times(20), 50
    async with trouble(tmp_path, always(error(429)), monkeypatch) as played:
        await played.play(conversations, requests, pace=1.0)
    played.check(conversations, requests)
    assert played.calls.total() <= 2 * conversations
    assert played.oracle.judged.total() + played.calls.total() <= 1.1 * conversations * requests


def counted(app: App) -> int:
    """Requests that the proxy still counts as under way, and upstream connections in use."""
    assert app._opened is not None
    pipeline = app._pipeline
    in_use = sum(pool.in_use for pool in pipeline._client._pools.values())
    return len(pipeline.open_requests._open) + pipeline.admission.in_flight.total() + in_use


@dataclass
class Leaving:
    """Clients of an upstream that ends no answer but summaries, each known by its key."""

    address: str = ""
    calls: dict[bytes, list[Call]] = field(default_factory=lambda: defaultdict(list))
    arrived: dict[bytes, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    left: dict[bytes, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))

    async def script(self, call: Call) -> None:
        await call.read()
        key = call.header(b"authorization") or b""
        self.calls[key].append(call)
        self.arrived[key].set()
        if is_summary(call):
            await self.left[key].wait()
            await call.send(answer(200, SUMMARY, JSON))
            return
        if b"begun" in key:
            streamed = b'"stream": true' in call.body
            await call.send(head(200, EVENTS if streamed else JSON, CHUNKED))
            await call.send(chunk(delta("a") if streamed else OK_BODY[:-20]))
        await call.gone()

    async def leave(self, number: int, stage: str, *, stream: bool, leave: Callable[[Client], None]) -> None:
        """Ask, come as far as `stage`, leave, and see every connection to the upstream closed; but a summary that was
        begun is finished."""
        key = f"Bearer {stage} {number}".encode()
        body = LONG.replace(b'"model"', b'"stream": true, "model"') if stream else LONG
        if stage != "compacting":
            body = chat("hi", stream=stream)
        async with connected(self.address) as client:
            await client.send(request("POST", CHAT, [HOST, JSON, (b"Authorization", key)], body))
            await self.arrived[key].wait()
            if stage == "begun":
                await client.head()
                await anext(client.chunks())
            leave(client)
            self.left[key].set()
            for call in self.calls[key]:
                if not is_summary(call):
                    await call.closed.wait()


async def test_every_client_that_leaves_stops_costing(tmp_path: Path) -> None:
    leaving = Leaving()
    cases = list(product(("waiting", "compacting", "begun"), (True, False), (Client.close, Client.reset)))
    whole = times(1_000)
    async with upstream(leaving.script) as behind, asyncio.timeout(PATIENCE):
        app = App(config_for(tmp_path, behind.address, **SMALL_WINDOW))
        async with serve(app, lifespan="on") as leaving.address:
            for start in range(0, whole, 25):
                batch = ((number, *cases[number % len(cases)]) for number in range(start, min(start + 25, whole)))
                await asyncio.gather(
                    *(leaving.leave(n, stage, stream=stream, leave=leave) for n, stage, stream, leave in batch)
                )
            while counted(app):  # noqa: ASYNC110 - nothing tells when the last count sinks
                await asyncio.sleep(0)
    assert len(leaving.calls) == whole
    assert {len(calls) for calls in leaving.calls.values()} == {1}


def spaced(chance: random.Random) -> str:
    return "".join(chance.choices(" \n\t\r", k=chance.choice((0, 0, 0, 1, 3))))


def text_of(chance: random.Random) -> str:
    """A JSON string in one of the many ways to write it."""
    signs = (
        chance.choice(
            ("\\u00e9", "\\ud83d\\ude00", "\\/", '\\"', "\\n", "é", "中文", "😀", "a", "word ", "\u2028", "\x7f")
        )
        for _ in range(chance.randrange(12))
    )
    return f'"{"".join(signs)}"'


def value_of(chance: random.Random, depth: int = 0) -> str:
    kind = chance.randrange(9 if depth < 4 else 6)
    if kind < 6:
        number = str(chance.randrange(10 ** chance.randrange(1, 40)))
        return (text_of(chance), number, "true", "null", f"-{number}.0e+{chance.randrange(9)}", "1E5")[kind]
    return array(chance, depth) if kind == 6 else object_of(chance, depth)


def array(chance: random.Random, depth: int) -> str:
    return joined(chance, "[]", [value_of(chance, depth + 1) for _ in range(chance.randrange(4))])


def object_of(chance: random.Random, depth: int) -> str:
    keys = [text_of(chance) for _ in range(chance.randrange(4))]
    return members(chance, [(key, value_of(chance, depth + 1)) for key in keys])


def members(chance: random.Random, pairs: Iterable[tuple[str, str]]) -> str:
    return joined(chance, "{}", [f"{key}{spaced(chance)}:{spaced(chance)}{value}" for key, value in pairs])


def joined(chance: random.Random, ends: str, parts: Sequence[str]) -> str:
    return ends[0] + ",".join(f"{spaced(chance)}{part}{spaced(chance)}" for part in parts) + ends[1]


def message_of(chance: random.Random, role: str) -> list[tuple[str, str]]:
    return [('"role"', f'"{role}"'), ('"content"', text_of(chance)), (text_of(chance), value_of(chance))]


def body_of(chance: random.Random) -> bytes:
    """A chat request as nobody's library writes it: doubled keys, odd order and spaces, further fields."""
    messages = [
        members(chance, chance.sample(message_of(chance, role), 3))
        for role in ("system", *chance.choices(("user", "assistant", "user"), k=chance.randrange(6)), "user")
    ]
    fields = [
        ('"model"', '"m"'),
        ('"messages"', joined(chance, "[]", messages)),
        ('"stream"', chance.choice(("true", "false"))),
        ('"temperature"', chance.choice(("1", "0.70", "1e0"))),
        ('"seed"', str(chance.randrange(10**30))),
        *((text_of(chance), value_of(chance)) for _ in range(chance.randrange(4))),
    ]
    if chance.random() < 0.2:
        fields.append(chance.choice(fields))
    return f"{spaced(chance)}{members(chance, chance.sample(fields, len(fields)))}{spaced(chance)}".encode()


def pieces_of(chance: random.Random) -> list[bytes]:
    """An event stream cut anywhere: events, comments, all kinds of line ends."""
    ends = chance.choice(("\n", "\n", "\r\n", "\r"))
    lines = chance.choices((": comment", "event: x", "id: 7", "retry: 10", "data: [DONE]", ""), k=chance.randrange(9))
    lines += [f"data: {value_of(chance)}{ends}" for _ in range(chance.randrange(1, 9))]
    content = ends.join(chance.sample(lines, len(lines))).encode() or b"\n"
    cuts = sorted(chance.sample(range(len(content)), min(len(content) - 1, chance.randrange(12))))
    return [part for start, end in pairwise([0, *cuts, len(content)]) if (part := content[start:end])]


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def test_bodies_and_answers_pass_as_they_are(tmp_path: Path) -> None:
    got: dict[bytes, str] = {}

    async def script(call: Call) -> None:
        number = call.header(b"x-number") or b""
        got[number] = sha(await call.read())
        pieces = pieces_of(random.Random(f"answer {number.decode()}"))
        await call.send(head(200, EVENTS, CHUNKED), *map(chunk, pieces), chunk(b""))

    async def ask_for(numbers: Iterable[int], address: str) -> None:
        async with connected(address) as client:
            for number in numbers:
                name, body = b"%d" % number, body_of(random.Random(f"request {number}"))
                expected = sha(b"".join(pieces_of(random.Random(f"answer {number}"))))
                reply = await client.ask("POST", CHAT, [JSON, (b"X-Number", name)], body)
                assert (reply.status, reply.complete) == (200, True)
                assert (got.pop(name), sha(reply.body)) == (sha(body), expected)
                done.add(number)

    done: set[int] = set()
    whole = times(10_000)
    async with proxied(tmp_path, script) as (address, _):
        await asyncio.gather(*(ask_for(range(start, whole, 8), address) for start in range(8)))
    assert len(done) == whole


WAITS: list[list[Header]] = [
    [],
    [(b"Retry-After", b"7")],
    [(b"retry-after", b"3600")],
    [(b"Retry-After", b"-1")],
    [(b"Retry-After", b"soon; maybe")],
    [(b"Retry-After", b"Wed, 21 Oct 2026 07:28:00 GMT")],
    [(b"Retry-After-Ms", b"1500"), (b"Retry-After", b"2")],
    [(b"X-RateLimit-Reset-Requests", b"1m12.5s"), (b"X-RateLimit-Remaining-Tokens", b"0")],
]
WAITING = (b"retry-", b"x-ratelimit-", b"x-should-retry")
VERDICTS: list[list[Header]] = [[], [(b"X-Should-Retry", b"true")], [(b"x-should-retry", b"false")]]


async def test_a_rate_limit_is_met_once_and_told_as_it_came(tmp_path: Path) -> None:
    cases = [[*wait, *verdict] for wait, verdict in product(WAITS, VERDICTS)]
    wanted = [[(name.lower(), value) for name, value in case] for case in cases]
    whole = times(1_000)

    async def script(call: Call) -> None:
        await call.read()
        number = int(call.header(b"x-number") or b"0")
        await call.send(
            answer(429, b'{"error": {"message": "slow  down %d"}}' % number, JSON, *cases[number % len(cases)])
        )

    async with proxied(tmp_path, script) as (address, behind), connected(address) as client:
        for number in range(whole):
            reply = await client.ask("POST", CHAT, [JSON, (b"X-Number", b"%d" % number)], chat("hi"))
            assert (reply.status, reply.body) == (429, b'{"error": {"message": "slow  down %d"}}' % number)
            told = [(name.lower(), value) for name, value in reply.headers]
            assert [pair for pair in told if pair[0].startswith(WAITING)] == wanted[number % len(cases)]
    assert len(behind.calls) == whole


async def test_where_everything_is_limited_a_long_conversation_is_asked_for_once_and_summarized_twice_at_most(
    tmp_path: Path,
) -> None:
    whole = times(1_000)
    async with proxied(tmp_path, always(error(429)), **SMALL_WINDOW) as (address, behind), connected(address) as client:
        for _ in range(whole):
            assert (await client.ask("POST", CHAT, [JSON], LONG)).status == 429
    summaries = sum(is_summary(call) for call in behind.calls)
    assert 1 <= summaries <= 2
    assert len(behind.calls) == whole + summaries
