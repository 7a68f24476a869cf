"""An upstream that knows every conversation and judges each request that reaches it: a wrong summary cannot hide.

Every message carries a mark, who it belongs to and its number. The oracle's summarizer signs what it was shown: the
number of the last message, and a chain over the marks of all of them. What arrives upstream is held against the true
history: whose marks are in it, whether the signature is that of exactly the covered prefix, whether the rest is the
client's own, word for word.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from dataclasses import dataclass, field

from policies.record.texts import texts_for
from policies.transcript import CLOSING, OPENING
from proxy.demo import answers
from proxy.demo.answers import Usage
from proxy.demo.model_server import Fault, ModelServer, Received
from proxy.demo.replies import Reply
from tests.support.conversations import Json, pairing_defects
from tests.support.scenarios import prose

CHAT_MODEL = "chat"
SUMMARIZER = "signer"

_MARK = re.compile(r"mark-(\w+)-(\w+)-(\d+)-(\d+)\b")
_REQUEST = re.compile(r"request-(\w+)-(\w+)-(\d+)\b")
_SIGNATURE = re.compile(r"signed (\w+) (\w+) (\d+) ([a-z]{16}) by number (\d+)\b")
_RECORD = "<conversation_record>"
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
    """A client's conversation: it grows, and now and then its user changes something that was said before."""

    tenant: str
    name: str
    messages: list[Json] = field(default_factory=list)
    _revision: int = 0
    _requests: int = 0

    @property
    def key(self) -> str:
        return f"ck-{self.tenant}"

    def mark(self, number: int) -> str:
        return f"mark-{self.tenant}-{self.name}-{number}-{self._revision}"

    def grow(self, chance: random.Random) -> None:
        """A user's message, or a round of one or two tool calls."""
        if not self.messages:
            self.messages.append({"role": "system", "content": f"You work for {self.tenant}. {self.mark(0)}"})
        if len(self.messages) == 1 or chance.random() < 0.2:
            self._say("user")
            return
        calls = chance.choice((1, 2))
        self._say("assistant", calls)
        for call in self.messages[-1]["tool_calls"]:  # type: ignore[attr-defined]
            number = len(self.messages)
            content = f"{self.mark(number)} {odd(number)} {prose(self.mark(number), 120)}"
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    def rewrite(self, chance: random.Random) -> None:
        """Go back to a user's message and say something else there."""
        spoken = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        self._revision += 1
        del self.messages[chance.choice(spoken[1:] or spoken) :]
        self._say("user")

    def request(self) -> tuple[str, bytes]:
        """The name and the body of the next request."""
        self._requests += 1
        name = f"request-{self.tenant}-{self.name}-{self._requests}"
        return name, json.dumps({"model": CHAT_MODEL, "messages": self.messages, "user": name}).encode()

    def _say(self, role: str, calls: int = 0) -> None:
        number = len(self.messages)
        message: Json = {"role": role, "content": f"{self.mark(number)} {odd(number)} {prose(self.mark(number), 60)}"}
        if calls:
            function = {"name": "read", "arguments": "{}"}
            message["tool_calls"] = [
                {"id": f"c{self._revision}-{number}-{i}", "type": "function", "function": function}
                for i in range(calls)
            ]
        self.messages.append(message)


class Oracle:
    """The model server's script, and the judge of what it received. `wrong` says what was found."""

    def __init__(self, window: int) -> None:
        self.model = ModelServer(window=window, windows={SUMMARIZER: 1_000_000}, script=self._script)
        self.truth: dict[str, list[Json]] = {}
        self.erased: dict[tuple[str, str], int] = {}
        """Of conversations that were erased: the number of the last summary that must not be seen again."""
        self._oldest: dict[str, int] = {}
        self.wrong: list[str] = []
        self.judged = 0
        self.signed = 0
        self.summaries = 0

    def expect(self, name: str, session: Session) -> None:
        """Take down what the client is about to send."""
        self.truth[name] = list(session.messages)
        self._oldest[name] = self.erased.get((session.tenant, session.name), 0)

    def judge(self) -> None:
        """Look at everything that arrived since the last time, and forget it."""
        while self.model.received:
            received = self.model.received.popleft()
            body = json.loads(received.body) if received.body else {}
            if body.get("model") == CHAT_MODEL and received.status == 200:
                self.judged += 1
                self.wrong += [f"{body.get('user')}: {found}" for found in self._defects(received, body)]

    def _script(self, number: int, content: bytes) -> Fault | None:
        request = json.loads(content) if content else {}
        if request.get("model") != SUMMARIZER:
            return None
        self.summaries += 1
        reply = Reply(_summary(str(request["messages"][-1]["content"]), self.summaries))
        return Fault(answers.completion(reply, SUMMARIZER, number, Usage(100, 100)))

    def _defects(self, received: Received, body: Json) -> list[str]:
        name = str(body["user"])
        match = _REQUEST.fullmatch(name)
        truth = self.truth[name]
        if match is None:
            return ["nobody's request"]
        tenant, session = match[1], match[2]
        found = []
        headers = {key.lower(): value for key, value in received.headers}
        if headers.get(b"authorization") != f"Bearer ck-{tenant}".encode():
            found.append("another tenant's key")
        if any(key.startswith(b"x-compaction") for key in headers):
            found.append("a control header came through")
        text = received.body.decode()
        strangers = {mark.groups()[:2] for mark in _MARK.finditer(text)} - {(tenant, session)}
        found += [f"a mark of {stranger}" for stranger in strangers]
        messages: list[Json] = body["messages"]  # type: ignore[assignment]
        found += [f"pairing: {defect}" for defect in pairing_defects(messages)]
        return found + self._against(messages, truth, (tenant, session), self._oldest[name])

    def _against(self, messages: list[Json], truth: list[Json], owner: tuple[str, str], oldest: int) -> list[str]:
        """Head, record, anchor and tail held against the true history."""
        if messages[0] != truth[0]:
            return ["the system message was changed"]
        record = next((i for i, m in enumerate(messages) if str(m["content"]).startswith(_RECORD)), None)
        if record is None:
            return [] if messages == truth else ["no record, and not the client's messages"]
        tail = messages[record + 1 :]
        start = next((k for k in range(len(truth)) if truth[k:] == tail), None)
        if start is None and tail and tail[0] in truth[: len(truth) - len(tail) + 1]:  # the anchor
            start = next((k for k in range(len(truth)) if truth[k:] == tail[1:]), None)
        if start is None:
            return ["the tail is not the client's"]
        return self._signature(str(messages[record]["content"]), truth[:start], owner, oldest)

    def _signature(self, record: str, covered: list[Json], owner: tuple[str, str], oldest: int) -> list[str]:
        signatures = _SIGNATURE.findall(record)
        if not signatures:
            return []  # a record without a model
        self.signed += 1
        *whose, number, chain, summary = signatures[-1]
        if int(summary) <= oldest:
            return ["a summary that was erased"]
        if tuple(whose) != owner:
            return [f"a summary of {whose}"]
        expected = ""
        for message in covered[1:]:
            expected = link(expected, _MARK.search(str(message["content"]))[0])  # type: ignore[index]
        if int(number) != len(covered) - 1 or chain != expected:
            return [f"a summary of {number} other messages than the {len(covered) - 1} covered"]
        return []


def _summary(asked: str, serial: int) -> str:
    """Nine sections, signed for what the transcript shows behind what the previous summary was signed for."""
    before = _SIGNATURE.findall(asked.partition(OPENING)[0])
    shown = asked.partition(OPENING)[2].partition(CLOSING)[0]
    tenant, session, number, chain, _ = before[-1] if before else ("", "", "0", "", "")
    for mark in dict.fromkeys(match[0] for match in _MARK.finditer(shown)):
        tenant, session, number, _ = _MARK.fullmatch(mark).groups()  # type: ignore[union-attr]
        chain = link(chain, mark)
    signature = f"signed {tenant} {session} {number} {chain} by number {serial}"
    first, *others = texts_for("en").headings
    said = "The work went on as it was asked for."
    return "\n".join([f"## {first}\n{said}\n{signature}", *(f"## {heading}\n{said}" for heading in others)])
