"""A model that has agents of any dialect work through a script of commands, and refuses whatever is not in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from policies.price import Tokens
from proxy.cli.demo.prompt import Chat, PromptMessage
from proxy.cli.demo.replies import asks_for_summary
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from tests.agents.running import received
from tests.agents.speaking import Said, Speech
from tests.support.conversations import Json
from tests.support.model_server.replies import summary
from tests.support.strict_messages import Signer

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

Answered = tuple[int, list[tuple[bytes, bytes]], list[bytes]]
"""Status, headers and pieces of the body."""

_JSON, _EVENTS = (b"content-type", b"application/json"), (b"content-type", b"text/event-stream")


@dataclass
class WorkingServer:
    """An ASGI app.

    tool:   a command as the agent's call: the tool's name and its arguments.
    marker: what the result of a round must hold. task: what the user asks for; requests without it are about other
            things, such as titles.
    signer: binds what the model thinks to its prompt; unbound: requests that were refused for such thinking.
    problems: whatever was not in order. received: bodies of the requests that were answered about the task.
    """

    speech: Speech
    window: int
    rounds: int
    tool: Callable[[str], tuple[str, Json]]
    command: Callable[[int], str]
    marker: Callable[[int], str]
    task: str
    problems: list[str] = field(default_factory=list)
    received: list[Json] = field(default_factory=list)
    done: int = 0
    overflows: int = 0
    summaries: int = 0
    excerpts: int = 0
    beside: int = 0
    signer: Signer | None = None
    unbound: int = 0

    def __post_init__(self) -> None:
        self._count = lru_cache(8_192)(partial(Tokenizer().count, encoding=DEFAULT_ENCODING))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await received(receive)
        await sent(self._answered(scope["method"], scope["path"], raw), send)

    def _answered(self, method: str, path: str, raw: bytes) -> Answered:
        if (method, path) != ("POST", self.speech.path):
            return nothing_at(method, path)
        body: Json = json.loads(raw)
        tokens = self._tokens(body)
        if tokens > self.window:
            self.overflows += 1
            return refused(self.speech.too_long(tokens, self.window))
        if self.signer is not None and (found := self.signer.refused(body)):
            self.unbound += 1
            return refused(self.speech.refusal(found[0]))
        said = self._said(raw.decode(), body)
        return answered(self.speech, said, Tokens(tokens, 60), streams=bool(body.get("stream")))

    def _tokens(self, body: Json) -> int:
        items = body[self.speech.array]
        assert isinstance(items, list)
        beside = [body[name] for name in ("system", "instructions", "tools") if name in body]
        return sum(self._count(json.dumps(item, ensure_ascii=False)) for item in [*beside, *items])

    def _said(self, raw: str, body: Json) -> Said:
        self.problems += self.speech.defects(body)
        chat = chat_of(body, self.speech.array)
        if asks_for_summary(chat):
            text = summary(chat, "faithful").text
            self.summaries += "\n## " in text
            self.excerpts += "\n## " not in text
            return Said(0, text)
        if self.task not in raw or not body.get("tools"):
            self.beside += 1
            return Said(0, "Reading parts")
        self.received.append(body)
        if (said := self._worked(body)) is not None:
            return said
        self.done += 1
        asked = body.get("thinking")
        thought: Json | None = None
        if isinstance(asked, dict) and asked["type"] in ("enabled", "adaptive"):
            thought = {"type": "thinking", "thinking": "What is next?", "signature": f"s{self.done}"}
            thought = self.signer.sign(body, f"After round {self.done}.") if self.signer else thought
        if self.done > self.rounds:
            return Said(self.done, "All parts are read.", thought=thought)
        name, arguments = self.tool(self.command(self.done))
        return Said(self.done, tool=name, arguments=arguments, thought=thought)

    def _worked(self, body: Json) -> Said | None:
        """Check that the result of the round before is there; what is said to it, if not the next call."""
        last = body[self.speech.array][-3:]  # type: ignore[index]
        if self.done and self.marker(self.done) not in json.dumps(last):
            self.problems.append(f"after round {self.done} its result is not at the end: {json.dumps(last)[-300:]}")
        return None


def answered(speech: Speech, said: Said, tokens: Tokens, *, streams: bool) -> Answered:
    if streams:
        return 200, [_EVENTS], [*map(speech.frame, speech.events(said, tokens))]
    return 200, [_JSON], [json.dumps(speech.answer(said, tokens)).encode()]


def refused(body: Json) -> Answered:
    return 400, [_JSON], [json.dumps(body).encode()]


def nothing_at(method: str, path: str) -> Answered:
    return 404, [_JSON], [json.dumps({"error": {"message": f"There is no {method} {path} here."}}).encode()]


async def sent(answer: Answered, send: Send) -> None:
    status, headers, chunks = answer
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def chat_of(body: Json, array: str) -> Chat:
    """What is said in a body of any dialect, as a chat."""
    system = body.get("system") or body.get("instructions")
    items: list[Json] = [*([{"role": "system", "text": system}] if system else []), *body[array]]  # type: ignore[misc]
    return Chat([PromptMessage(str(item.get("role", "tool")), text) for item in items for text in _texts(item)])


def _texts(value: object) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [text for one in value for text in _texts(one)]
        case dict():
            return [text for key in ("text", "content", "output", "input") for text in _texts(value.get(key))]
        case _:
            return []
