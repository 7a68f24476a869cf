"""An upstream that knows every conversation and judges each request that reaches it: a wrong summary cannot hide.

Every message carries a mark, who it belongs to and its number. The oracle's summarizer signs what it was shown: the
number of the last message, and a chain over the marks of all of them. What arrives upstream is held against the true
history: whose marks are in it, whether the signature is that of exactly the covered prefix, whether the rest is the
client's own, word for word, but for quotations of what is covered.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from policies.conversation.transcript import CLOSING, OPENING
from policies.record.texts import texts_for
from proxy.dialects import table
from tests.support.conversations import Json
from tests.support.dialects import (
    PLAIN,
    WRITERS,
    Called,
    Entry,
    Writer,
    model,
    path_of,
    request_body,
    taken_apart,
    user,
)
from tests.support.model_server import Fault, ModelServer, ReceivedRequest
from tests.support.model_server.answers import ReplyUsage
from tests.support.model_server.apis import CHAT, MESSAGES, RESPONSES
from tests.support.model_server.replies import Reply
from tests.support.scenarios import prose
from tests.support.worlds import DEFECTS

CHAT_MODEL = "chat"
SUMMARIZER = "signer"

_MARK = re.compile(r"mark-(\w+)-(\w+)-(\d+)-(\d+)\b")
_SIGNATURE = re.compile(r"signed (\w+) (\w+) (\d+) ([a-z]{16}) by number x(\d+)\b")
_RECORD = "<conversation_record>"
_QUOTATION = re.compile(r"<recalled>\n.*?\n</recalled>(?:\n\n)?", re.DOTALL)
_MOST_TOLD = 2_000
_ODD = ("", "half \ud83d of it", "\x00", "\U0001f468\u200d\U0001f469", "e\u0301\u0323", "\udc4d", "\u202e")
_LETTERS = "abcdefghijklmnop"


def odd(number: int) -> str:
    """What texts hold that were cut inside an emoji, or come from anywhere."""
    return _ODD[number % len(_ODD)]


def link(before: str, mark: str) -> str:
    """The chain after one more mark; letters only, so that nothing takes it for an invented hash."""
    digest = hashlib.sha256(f"{before} {mark}".encode()).hexdigest()[:16]
    return "".join(_LETTERS[int(digit, 16)] for digit in digest)


@dataclass
class Session:
    """A client's conversation: it grows, and now and then its user changes or deletes something that was said before.

    most: entries that its window holds; None for all. What has slid out of it is in no record.
    """

    tenant: str
    name: str
    writer: Writer = WRITERS[0]
    history: list[Entry] = field(default_factory=list)
    most: int | None = None
    _has_deleted: bool = False
    _gone: int = 0
    """Texts that are no longer in the history, so that each has a number of its own."""
    _revision: int = 0
    _requests: int = 0

    @property
    def key(self) -> str:
        return f"ck-{self.tenant}"

    @property
    def owner(self) -> tuple[str, str]:
        return self.tenant, self.name

    @property
    def path(self) -> str:
        return path_of(self.writer.dialect)

    @property
    def instructions(self) -> str:
        return f"You work for {self.tenant}. {self.mark(0)}"

    @property
    def items(self) -> list[Json]:
        """As its client writes them, behind the instructions."""
        return [item for entry in self.history for item in self.writer.items(entry, PLAIN)]

    def mark(self, number: int) -> str:
        return f"mark-{self.tenant}-{self.name}-{number}-{self._revision if number else 0}"

    def grow(self, chance: random.Random) -> None:
        """A user's message, or a round of one or two tool calls."""
        if not self.history or chance.random() < 0.2:
            self.history.append(user(self._text(60)))
            return
        number, calls = self._next, chance.choice((1, 2))
        made = [Called(f"c{self._revision}-{number}-{i}", "read") for i in range(calls)]
        self.history.append(model(self._text(60), *made))
        self.history.append(Entry("tool", results=tuple((call.id, self._text(120, i)) for i, call in enumerate(made))))

    def change(self, chance: random.Random) -> None:
        """Say something else, or delete something once: no model summarizes a history that changes more often."""
        if not self._has_deleted and chance.random() < 0.5:
            self._has_deleted = True
            self.delete(chance)
        else:
            self.rewrite(chance)

    def rewrite(self, chance: random.Random) -> None:
        """Go back to a user's message and say something else there."""
        spoken = [i for i, entry in enumerate(self.history) if entry.role == "user"]
        self._revision += 1
        del self.history[chance.choice(spoken[1:] or spoken) :]
        self.history.append(user(self._text(60)))

    def delete(self, chance: random.Random) -> None:
        """What a user said, or a round, wherever it stands; then go on."""
        at = chance.randrange(len(self.history))
        self._drop(at - (self.history[at].role == "tool"))
        self._begin_with_a_user()
        self.history.append(user(self._text(60)))

    def slide(self) -> None:
        """Forget the oldest of what the window does not hold."""
        if self.most is not None and len(self.history) > self.most:
            self._drop(0)
            self._begin_with_a_user()
            if not self.history:
                self.history.append(user(self._text(60)))

    def _begin_with_a_user(self) -> None:
        """Leave out what is before the first user message, as every history does."""
        while self.history and self.history[0].role != "user":
            self._drop(0)

    def _drop(self, at: int) -> None:
        """Leave out the entry here, with the results of its calls."""
        end = at + 1 + (self.history[at + 1 : at + 2] != [] and self.history[at + 1].role == "tool")
        self._gone += sum(len(entry.results) or 1 for entry in self.history[at:end])
        del self.history[at:end]

    def request(self) -> tuple[str, bytes]:
        """The name and the body of the next request."""
        self._requests += 1
        name = f"request-{self.tenant}-{self.name}-{self._requests}"
        return name, json.dumps(self.body(name, self.items, self.instructions)).encode()

    def body(self, name: str, items: Sequence[Json], instructions: str) -> Json:
        """Of a request with these. A limit for the answer is said only where it must be."""
        limit = {"max_tokens": 1_024} if self.writer.dialect is table.MESSAGES else {}
        return request_body(self.writer.dialect, instructions, items, {"model": CHAT_MODEL, "user": name, **limit})

    @property
    def _next(self) -> int:
        """The number of the next text; the instructions have the first."""
        return 1 + self._gone + sum(len(entry.results) or 1 for entry in self.history)

    def _text(self, words: int, behind: int = 0) -> str:
        number = self._next + behind
        return f"{self.mark(number)} {odd(number)} {prose(self.mark(number), words)}"


class Oracle:
    """The model server's script, and the judge of what it received. `wrong` says what was found.

    loses: its store loses records and keeps the notes of them. So a record may continue a summary without a model.
    """

    def __init__(self, window: int, *, loses: bool = False) -> None:
        self._loses = loses
        self.model = ModelServer(window=window, windows={SUMMARIZER: 1_000_000}, script=self._script)
        self.truth: dict[str, Session] = {}
        self.erased: dict[tuple[str, str], int] = {}
        """Of conversations that were erased: the number of the last summary that must not be seen again."""
        self._oldest: dict[str, int] = {}
        self.wrong: list[str] = []
        self.judged: Counter[str] = Counter()
        """By dialect; `signed`: those of them with a summary."""
        self.signed: Counter[str] = Counter()
        self.summaries = 0

    def expect(self, name: str, session: Session) -> None:
        """Take down what the client is about to send."""
        self.truth[name] = replace(session, history=[*session.history])
        self._oldest[name] = self.erased.get(session.owner, 0)

    def judge(self) -> None:
        """Look at everything that arrived since the last time, and forget it."""
        while self.model.received:
            received = self.model.received.popleft()
            body = json.loads(received.body) if received.body else {}
            if body.get("model") == CHAT_MODEL and received.status == 200:
                self.wrong += [f"{body.get('user')}: {found}" for found in self._defects(received, body)]

    def _script(self, number: int, content: bytes) -> Fault | None:
        request = json.loads(content) if content else {}
        if request.get("model") != SUMMARIZER:
            return None
        self.summaries += 1
        api = RESPONSES if "input" in request else MESSAGES if "system" in request else CHAT
        reply = Reply(_summary(_text(request.get("input", request.get("messages"))[-1]), self.summaries))
        return Fault(api.whole(reply, SUMMARIZER, number, ReplyUsage(100, 100)))

    def _defects(self, received: ReceivedRequest, body: Json) -> list[str]:
        name = str(body["user"])
        truth = self.truth.get(name)
        if truth is None:
            return ["nobody's request"]
        if received.path != truth.path:
            return ["another dialect's path"]
        found = []
        headers = {key.lower(): value for key, value in received.headers}
        if headers.get(b"authorization") != f"Bearer {truth.key}".encode():
            found.append("another tenant's key")
        if any(key.startswith(b"x-compaction") for key in headers):
            found.append("a control header came through")
        text = received.body.decode()
        strangers = {mark.groups()[:2] for mark in _MARK.finditer(text)} - {truth.owner}
        found += [f"a mark of {stranger}" for stranger in strangers]
        theirs = {mark[0] for item in truth.items for mark in _MARK.finditer(_text(item))}
        theirs.add(truth.mark(0))
        own = {mark[0] for mark in _MARK.finditer(text) if mark.groups()[:2] == truth.owner}
        found += [f"{mark}, which was deleted" for mark in sorted(own - theirs)[:3]]
        dialect = truth.writer.dialect
        self.judged[dialect.name] += 1
        found += [f"invalid: {defect}" for defect in DEFECTS[dialect.name](body)]
        instructions, items = taken_apart(dialect, body)
        given, sent = taken_apart(dialect, truth.body(name, truth.items, truth.instructions))
        if instructions != given:
            return [*found, "the instructions were changed"]
        return found + self._against(items, sent, truth, self._oldest[name])

    def _against(self, items: list[Json], truth: list[Json], session: Session, oldest: int) -> list[str]:
        """Record, anchors and tail held against the true history."""
        record = next((i for i, item in enumerate(items) if _text(item).startswith(_RECORD)), None)
        if record is None:
            return [] if items == truth else ["no record, and not the client's items"]
        read = [_unquoted(item) for item in items[record + 1 :]]
        tail, quoted = [item for item, _ in read], "".join(quotation for _, quotation in read)
        # As many as have room: what a person said while the agent works is an anchor too.
        spoken = next((k for k, item in enumerate(tail) if item.get("role") != "user"), len(tail))
        starts: list[int] = []
        for anchors in range(spoken + 1):
            start = len(truth) - len(tail) + anchors
            rest = iter(truth[: max(0, start)])
            if start >= 0 and truth[start:] == tail[anchors:] and all(item in rest for item in tail[:anchors]):
                starts.append(start)
        if not starts or record:
            return [f"the tail is not the client's: {json.dumps(items)[:_MOST_TOLD]}"]
        if _SIGNATURE.search(_text(items[record])):
            self.signed[session.writer.dialect.name] += 1
        # Anchors right before the cut may as well stand behind an earlier one.
        cuts = (
            [*self._quoted(quoted, truth[:at]), *self._signature(_text(items[record]), truth[:at], session, oldest)]
            for at in starts
        )
        return min(cuts, key=len)

    def _quoted(self, quoted: str, covered: Sequence[Json]) -> list[str]:
        said = {mark[0] for item in covered for mark in _MARK.finditer(_text(item))}
        strange = {mark[0] for mark in _MARK.finditer(quoted)} - said
        return [f"a quotation of what no record covers: {strange}"] if strange else []

    def _signature(self, record: str, covered: Sequence[Json], session: Session, oldest: int) -> list[str]:
        signatures = _SIGNATURE.findall(record)
        if not signatures:
            return []  # a record without a model
        *whose, number, chain, summary = signatures[-1]
        if int(summary) <= oldest:
            return ["a summary that was erased"]
        if tuple(whose) != session.owner:
            return [f"a summary of {whose}"]
        marks = [mark for item in covered for mark in _MARK.finditer(_text(item))]
        ends = range(1, len(marks) + 1) if self._loses else [len(marks)]
        # A summary after a record without a model, as of an unstable history, is of the texts since then.
        chains = (
            _chain([mark[0] for mark in marks[at:end]])
            for end in ends
            if marks and marks[end - 1][3] == number
            for at in range(end)
        )
        last = max((at for at, mark in enumerate(marks) if mark[3] == number), default=-1)
        gapped = _chains_with_a_gap([mark[0] for mark in marks[: last + 1]]) if self._loses else iter(())
        if chain not in chains and chain not in gapped:
            return [f"a summary up to {number}, which is not that of the {len(marks)} texts covered"]
        return []


def _chain(marks: Sequence[str]) -> str:
    chain = ""
    for mark in marks:
        chain = link(chain, mark)
    return chain


def _chains_with_a_gap(marks: Sequence[str]) -> Iterator[str]:
    """Return the chains of texts between which a record without a model stands, made while no summarizer was there."""
    for end in range(1, len(marks)):
        before = _chain(marks[:end])
        for start in range(end + 1, len(marks)):
            chain = before
            for mark in marks[start:]:
                chain = link(chain, mark)
            yield chain


def _unquoted(item: Json) -> tuple[Json, str]:
    """An item as its client wrote it, a text as a string, and what is quoted in front of it."""
    content = item.get("content")
    if isinstance(content, str) and (found := _QUOTATION.match(content)):
        return {**item, "content": content[found.end() :]}, found[0]
    if isinstance(content, list) and len(content) > 1 and (found := _QUOTATION.fullmatch(_text(content[0]))):
        rest = content[1:]
        return {**item, "content": _text(rest[0]) if len(rest) == 1 else rest}, found[0]
    return item, ""


def _text(item: Json) -> str:
    return "\n".join(_texts(item))


def _texts(value: object) -> Iterator[str]:
    """What is said in an item of any dialect: contents, results, and parts of either."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, dict):
        for key in ("content", "output", "text"):
            yield from _texts(value.get(key))


def _summary(asked: str, serial: int) -> str:
    """Nine sections, signed for what the transcript shows behind what the previous summary was signed for."""
    before = _SIGNATURE.findall(asked.partition(OPENING)[0])
    shown = asked.partition(OPENING)[2].partition(CLOSING)[0]
    tenant, session, number, chain, _ = before[-1] if before else ("", "", "0", "", "")
    for mark in dict.fromkeys(match[0] for match in _MARK.finditer(shown)):
        tenant, session, number, _ = _MARK.fullmatch(mark).groups()  # type: ignore[union-attr]
        chain = link(chain, mark)
    signature = f"signed {tenant} {session} {number} {chain} by number x{serial}"
    first, *others = texts_for("en").headings
    said = "The work went on as it was asked for."
    return "\n".join([f"## {first}\n{said}\n{signature}", *(f"## {heading}\n{said}" for heading in others)])
