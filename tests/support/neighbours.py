"""Conversations of one key that resemble each other, and clients that change them: what is sent must stay their own.

Every message that is nobody else's holds a word of its own. An upstream request may hold the words of its own client's
request; and those of messages over which that client's window was seen to slide, in two requests that follow each
other.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec.structs import replace as changed

from proxy.callers.api_head import ApiHead
from proxy.compaction.plan_input import plan_input_of, with_newest_lessons
from proxy.compaction.prefetch import is_worth_following
from proxy.dialects.base import Usage
from tests.support.dialects import PLAIN, Called, Entry, Writer, model, request_body, user
from tests.support.scenarios import prose

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from proxy.callers.tenants import Caller
    from proxy.cli.replay.stand_in import StandIn
    from proxy.compaction.engine import Engine
    from proxy.upstreams.routes import Router

# Of one length, so that none is what another one was cut to.
WORDS = re.compile(r"\bword\d{5}\b")
# Messages of a history as it begins, and requests of one world of them.
_LENGTHS = (36, 80)
_REQUESTS = 26


@dataclass
class Client:
    """One conversation, and how its client changes it.

    most: messages that its window holds, if that slides. before: what it sent last; slides: so often in a row the
    window has slid, is_seen: whether twice; slid: words of what has slid away; lately: in these requests in a row.
    """

    system: str
    label: str
    entries: list[Entry]
    most: int | None = None

    def fork(self, start: int, end: int) -> Client:
        """Another client that begins with these."""
        return Client(self.system, self.label, self.entries[start:end])


class World:
    """Some conversations of one key; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._words = 0
        self.clients = [self._client() for _ in range(self.chance.randrange(2, 4))]

    def requests(self) -> list[tuple[Client, list[Entry]]]:
        """Who sends what, one after the other."""
        found: list[tuple[Client, list[Entry]]] = []
        for _ in range(_REQUESTS):
            client = self.chance.choice(self.clients)
            for _ in range(self.chance.choice((1, 1, 1, 2, 5))):  # a client goes on for some requests
                self._changed(client)
                found.append((client, [*client.entries]))
        return found

    def _client(self) -> Client:
        chance = self.chance
        system = chance.choice(("You watch.", "You watch.", f"You are {self._word()}."))
        label = chance.choice(("", "", "", "one", "two"))
        entries: list[Entry] = []
        for _ in range(chance.randrange(3)):
            entries += self._exchange()
        likeness = chance.random()
        while len(entries) < chance.randrange(*_LENGTHS):
            entries += self._watched() if chance.random() < likeness else self._exchange()
        return Client(system, label, entries, chance.choice((None, None, 24, 32, 44)))

    def _changed(self, client: Client) -> None:
        """What the client does until its next request: nearly always it goes on."""
        chance, entries = self.chance, client.entries
        if chance.random() < 0.1:
            client.label = chance.choice(("", "one", "two", "three"))
        match chance.randrange(16):
            case 0 if client.most is None and entries:  # its user deletes an exchange, anywhere
                at, size = chance.randrange(len(entries)), chance.choice((1, 2, 4, 10))
                at = chance.choice((0, 1, at))
                del entries[at : at + size]
            case 1 if client.most is None and entries:  # its user writes something else
                at = chance.randrange(len(entries))
                entries[at] = replace(entries[at], text=self._text() if entries[at].text else "")
            case 2 if entries:
                self.clients.append(client.fork(0, chance.randrange(len(entries)) + 1))
            case 3 if client.most is None and entries:  # another one begins with what stands in the middle of this one
                start = chance.randrange(len(entries))
                self.clients.append(client.fork(start, chance.randrange(start, len(entries))))
            case 4 if client.most is None:
                client.most = chance.choice((24, 32, 44))
            case 5 if entries:
                return  # a retry
            case _:
                pass
        entries += self._watched() if chance.random() < 0.3 else self._exchange()
        while client.most is not None and len(entries) > client.most:
            first = next((at for at, entry in enumerate(entries) if at and entry.role == "user"), len(entries))
            del entries[:first]
        while not entries or entries[-1].role == "assistant":
            entries += self._exchange()

    def _watched(self) -> list[Entry]:
        """What every watcher sends and gets."""
        called = model("", Called("status", "status"))
        answers = [called, Entry("tool", results=(("status", "ok"),)), model(f"Everything is up. {prose('up', 25)}")]
        return [*answers, user("Check the status.")]

    def _exchange(self) -> list[Entry]:
        """An answer with a call or none, and what follows it."""
        if self.chance.random() < 0.3:
            return [model(self._text()), user(self._text())]
        name = self._word()
        called = model(self._text(), Called(name, "read", f"src/{name}.py"))
        return [called, Entry("tool", results=((name, self._text()),))]

    def _text(self) -> str:
        word = self._word()
        return f"The {word} must never be forgotten. {prose(word, self.chance.choice((40, 80)))}"

    def _word(self) -> str:
        self._words += 1
        return f"word{self._words:05}"


class Judge:
    """Sends the requests of worlds through an engine, in this process, and judges what would go upstream.

    wrong: what was found. histories: conversations played. compacted: requests with a record.
    """

    def __init__(self, engine: Engine, router: Router, stand_in: StandIn, caller: Caller, writer: Writer) -> None:
        self._engine, self._router, self._stand_in = engine, router, stand_in
        self._caller, self._writer = caller, writer
        self.wrong: list[str] = []
        self.histories = self.requests = self.compacted = 0

    async def watch(self, seed: int) -> None:
        """Play one world."""
        world = World(seed)
        await self.play(f"world {seed}", world.requests())
        self.histories += len(world.clients)

    async def play(self, name: str, requests: Iterable[tuple[Client, list[Entry]]]) -> None:
        """Send requests of one key that no others share."""
        caller = replace(self._caller, scope=hashlib.sha256(name.encode()).digest())
        for number, (client, entries) in enumerate(requests):
            body = self._body(client, entries)
            head = ApiHead("POST", "/", [(b"x-session-id", client.label.encode())] if client.label else [])
            sent = await self._sent(caller, body, head.asking(self._writer.dialect))
            self._judge(f"{name}, request {number}", sent, set(WORDS.findall(body.decode())))

    async def _sent(self, caller: Caller, body: bytes, head: ApiHead) -> bytes:
        engine = self._engine
        request = await engine.reader.read(body, caller.scope, self._router.encoding, self._writer.dialect)
        assert request is not None, body[:300]
        case = await engine.prompt_builder.place(plan_input_of(head, self._router, caller, "on", request))
        prompt = await engine.prompt_builder.build_first(case)
        self.requests += 1
        self.compacted += prompt.record is not None
        if is_worth_following(case, prompt):
            await engine.prefetch.follow_up(
                with_newest_lessons(case, self._router), changed(prompt), Usage(prompt.tokens, 30)
            )
        return prompt.body

    def _judge(self, name: str, sent: bytes, allowed: set[str]) -> None:
        found = set(WORDS.findall(sent.decode()))
        if strange := found - allowed:
            self.wrong.append(f"{name}: {sorted(strange)} went upstream")
        for call in self._stand_in.take_calls():
            if strange := set(WORDS.findall(call.body.decode())) - allowed:
                self.wrong.append(f"{name}: {sorted(strange)} was shown to a summarizer")

    def _body(self, client: Client, entries: Sequence[Entry]) -> bytes:
        writer = self._writer
        items = [item for entry in entries for item in writer.items(entry, PLAIN)]
        return json.dumps(request_body(writer.dialect, client.system, items, writer.fields())).encode()
