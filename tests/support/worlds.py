"""Conversations of every dialect on one stage: a strict provider, proxies before it, and a client of these."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import aiohttp

from proxy.dialects.table import CHAT, MESSAGES, RESPONSES
from tests.support import strict_messages, strict_responses
from tests.support.conversations import Json, pairing_defects
from tests.support.dialects import PLAIN, Called, Entry, Style, Writer, key_of, model, path_of, request_body, user
from tests.support.model_server import Fault, ModelServer, ReceivedRequest, Script
from tests.support.model_server.apis import CHAT as CHAT_API
from tests.support.model_server.apis import MESSAGES as MESSAGES_API
from tests.support.model_server.apis import RESPONSES as RESPONSES_API
from tests.support.scenarios import FIRST, MODEL, WINDOW, Reply, defaults, prose
from tests.support.servers import configured, proxy, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from proxy.dialects.base import Dialect
    from tests.support.model_server.apis import Api

History = Sequence[Entry | Json]
"""Entries, and items that only one dialect has, as they are."""

MARKS = ("cache_control", "prompt_cache_breakpoint")
SYSTEM = "You are a careful coding agent."


def _chat_defects(body: Json) -> list[str]:
    messages = body["messages"]
    assert isinstance(messages, list)
    return list(pairing_defects(messages))


DEFECTS: Mapping[str, Callable[[Json], Sequence[str]]] = {
    "chat": _chat_defects,
    "responses": strict_responses.defects,
    "messages": strict_messages.defects,
}
_APIS: Mapping[str, Api] = {"chat": CHAT_API, "responses": RESPONSES_API, "messages": MESSAGES_API}


@dataclass
class Provider:
    """What a provider refuses that takes nothing for granted; `signer`: whose thinking is bound to its prompt.

    invalid: what it had to refuse; never anything, that is the first bound of every scenario.
    """

    dialect: Dialect
    signer: strict_messages.Signer | None = None
    more: Script | None = None
    invalid: list[str] = field(default_factory=list)
    thinking_refused: int = 0

    @property
    def api(self) -> Api:
        return _APIS[self.dialect.name]

    def script(self, number: int, body: bytes) -> Fault | None:
        read = json.loads(body)
        found = DEFECTS[self.dialect.name](read)
        self.invalid += found
        if found:
            return Fault(self.api.refused(400, found[0]))
        if self.signer and (refused := self.signer.refused(read)):
            self.thinking_refused += 1
            return Fault(self.api.refused(400, refused[0]))
        return self.more(number, body) if self.more else None


@dataclass
class Talk:
    """A client's history, told in words of no dialect; it grows, and goes out whole with every request."""

    name: str = "agent"
    words: int = 150
    write: Callable[[object, int], str] = prose
    history: list[Entry | Json] = field(default_factory=list)

    def says(self, text: str) -> History:
        """The request after the user said something."""
        last = self.history[-1] if self.history else None
        if isinstance(last, Entry) and last.results:
            self.history.append(model(f"Done with {self.name} so far."))
        self.history.append(user(text))
        return self.history

    def works(self, calls: int = 1) -> History:
        """The request after another round of tool calls; the results of parallel ones come in another order."""
        number = len(self.history)
        made = [Called(f"call_{number}_{at}", "read_file", f"src/{self.name}/part_{number}.py") for at in range(calls)]
        results = [(call.id, self.write((self.name, number, call.id), self.words)) for call in made]
        self.history += [model("I read on.", *made), Entry("tool", results=tuple(reversed(results)))]
        return self.history

    def fork(self, name: str) -> Talk:
        return Talk(name, self.words, self.write, [*self.history])


def session(talk: Talk, *, task: str = FIRST, requests: int = 50, turn: int = 10) -> Iterator[History]:
    """Tools and user turns."""
    for number in range(requests):
        if number == 0:
            yield talk.says(task)
        elif number % turn == 0:
            yield talk.says(f"Good. Go on with part {number // turn}, please.")
        else:
            yield talk.works(calls=1 + number % 2)


def one_user(talk: Talk, rounds: int = 200) -> Iterator[History]:
    """One user message, then nothing but rounds of tool calls."""
    yield talk.says(FIRST)
    for _ in range(rounds):
        yield talk.works()


@dataclass(frozen=True)
class Sent:
    """One request as the provider got it."""

    received: ReceivedRequest
    key: str

    @property
    def body(self) -> Json:
        decoded: Json = json.loads(self.received.body)
        return decoded

    @property
    def items(self) -> list[Json]:
        items = self.body[self.key]
        assert isinstance(items, list)
        return items

    @property
    def texts(self) -> str:
        return json.dumps(self.body[self.key], ensure_ascii=False)


class World:
    """A client of one dialect, proxies, and the model server behind a strict provider."""

    def __init__(
        self, writer: Writer, provider: Provider, server: ModelServer, addresses: Sequence[str], client: Client
    ) -> None:
        self.writer = writer
        self.provider = provider
        self.model = server
        self.addresses = addresses
        self.system = SYSTEM
        self.replies: list[Reply] = []
        self._client = client

    @property
    def key(self) -> str:
        return key_of(self.writer.dialect)

    def items(self, history: History, style: Style = PLAIN) -> list[Json]:
        return [
            item
            for entry in history
            for item in (self.writer.items(entry, style) if isinstance(entry, Entry) else [entry])
        ]

    def body(self, history: History, style: Style = PLAIN, **more: object) -> Json:
        return request_body(
            self.writer.dialect,
            self.system,
            self.items(history, style),
            {**self.writer.fields(), "model": MODEL, **more},
        )

    async def send(self, history: History, style: Style = PLAIN, *, replica: int = 0, **more: object) -> Reply:
        """The next request, with everything checked that must hold for every single one."""
        body = self.body(history, style, **more)
        reply = await self.post(body, replica=replica)
        self.check(body, reply)
        return reply

    async def post(
        self, body: Json | bytes, *, replica: int = 0, path: Sequence[str] = (), headers: Mapping[str, str] = {}
    ) -> Reply:
        url = "/".join((self.addresses[replica], "v1", *(path or self.writer.dialect.path)))
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **headers}
        async with self._client.post(url, data=content, headers=sent) as response:
            got = {key.lower(): value for key, value in response.headers.items()}
            reply = Reply(response.status, got, await response.read())
        self.replies.append(reply)
        return reply

    async def metrics(self, *, replica: int = 0) -> str:
        async with self._client.get(f"{self.addresses[replica]}/metrics") as response:
            return await response.text()

    def check(self, body: Json, reply: Reply) -> None:
        """No error, nothing invalid; the task and the newest item are there, and what is left alone is byte-equal."""
        assert reply.status == 200, reply.body[:500]
        assert self.provider.invalid == []
        assert self.model.defects == 0
        sent, items = self.sent[-1], body[self.key]
        assert isinstance(items, list)
        task = next(item for item in items if item.get("role") == "user")
        assert json.dumps(_text(task).splitlines()[0], ensure_ascii=False)[1:-1] in sent.texts
        assert sent.items[-1] == items[-1]
        if reply.headers["x-compaction"] in ("none", "bypass"):
            assert sent.received.body == json.dumps(body).encode()

    async def play(self, requests: Iterable[History], style: Style = PLAIN, **more: object) -> list[Reply]:
        return [await self.send(history, style, **more) for history in requests]

    @property
    def sent(self) -> list[Sent]:
        """What the model answered, summaries and counts left out."""
        path = path_of(self.writer.dialect)
        return [
            Sent(received, self.key)
            for received in self.model.received
            if received.path == path and not received.is_summary and received.status == 200
        ]

    @property
    def calls(self) -> int:
        return self.model.summary_calls

    @property
    def outcomes(self) -> set[tuple[str, str]]:
        return {told(reply) for reply in self.replies}


Client = aiohttp.ClientSession


def told(reply: Reply) -> tuple[str, str]:
    """What became of a request, and why."""
    return reply.headers.get("x-compaction", ""), reply.headers.get("x-compaction-reason", "")


def _text(item: Json) -> str:
    content = item["content"]
    if isinstance(content, str):
        return content
    assert isinstance(content, list)
    return "\n".join(str(part["text"]) for part in content)


@asynccontextmanager
async def world(
    directory: Path,
    writer: Writer,
    server: ModelServer | None = None,
    /,
    *,
    replicas: int = 1,
    signer: strict_messages.Signer | None = None,
    more: Script | None = None,
    native: str = "auto",
    **settings: object,
) -> AsyncIterator[World]:
    """A world with one proxy, or several replicas; `settings` are sections of the config. `native`: whether the
    upstream answers compactions itself."""
    async with AsyncExitStack() as opened:
        server = server or ModelServer(window=WINDOW)
        provider = Provider(writer.dialect, signer, more)
        server._script = provider.script
        upstream = await opened.enter_async_context(serve(server))
        upstreams = {"main": {"base_url": f"{upstream}/v1", "native_compaction": native}}
        config = configured(directory, defaults(directory, upstream) | {"upstreams": upstreams} | settings)
        addresses = [await opened.enter_async_context(proxy(config)) for _ in range(replicas)]
        client = await opened.enter_async_context(Client())
        yield World(writer, provider, server, addresses, client)


def unmarked(value: object) -> object:
    """A body without marks; a text in a list of its own is the same as a text."""
    if isinstance(value, dict):
        return {key: unmarked(item) for key, item in value.items() if key not in MARKS}
    return [unmarked(item) for item in value] if isinstance(value, list) else value


def prefix_reuse(sent: Sequence[Sent]) -> float:
    """The share of a request's items that the next one repeats from the start, marks left out, on average."""
    arrays = [[json.dumps(unmarked(item)) for item in one.items] for one in sent]
    return sum(_shared(a, b) / sum(map(len, a)) for a, b in pairwise(arrays)) / (len(arrays) - 1)


def _shared(a: Sequence[str], b: Sequence[str]) -> int:
    total = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        total += len(x)
    return total


__all__ = ["CHAT", "MESSAGES", "RESPONSES", "Provider", "Sent", "Talk", "World", "one_user", "session", "world"]
