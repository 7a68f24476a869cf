"""A model that works through a script of tool calls, for agents that run them, and refuses whatever is not in order.

Each round it orders one command, and the next request must end with what that command printed. Requests for summaries
are told by our own prompts and answered as the tests' model server does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from proxy.cli.demo.prompt import Chat, Function, PromptCall, count_tokens
from proxy.cli.demo.replies import asks_for_summary
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from tests.agents.running import received
from tests.support.model_server import answers
from tests.support.model_server.answers import Answer, ReplyUsage
from tests.support.model_server.prompt import defects, read
from tests.support.model_server.replies import Reply, summary

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_FIELDS = frozenset(
    {
        *(
            "model",
            "messages",
            "tools",
            "tool_choice",
            "stream",
            "stream_options",
            "max_tokens",
            "temperature",
            "top_p",
        ),
        *("max_completion_tokens", "parallel_tool_calls", "n", "stop", "seed", "user", "metadata", "reasoning_effort"),
    }
)
# What messages have, and what LiteLLM writes into those of an assistant.
_OF_MESSAGES = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls", "provider_specific_fields", "reasoning_content", "function_call"},
    "tool": {"role", "content", "tool_call_id"},
}


@dataclass
class StrictUpstream:
    """An ASGI app.

    call:   makes the tool call of a round, counted from 1; `last` is said, or called, after the last one.
    marker: what the result of a round must hold.
    problems: whatever was not in order, of any request. rounds: how many were ordered.
    """

    window: int
    rounds: int
    call: Callable[[int], Function]
    marker: Callable[[int], str]
    last: Function | str
    problems: list[str] = field(default_factory=list)
    done: int = 0
    overflows: int = 0
    summaries: int = 0
    excerpts: int = 0
    prompt_tokens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._count = lru_cache(8_192)(partial(Tokenizer().count, encoding=DEFAULT_ENCODING))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer(scope["method"], scope["path"], await received(receive))
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        for chunk in answer.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _answer(self, method: str, path: str, body: bytes) -> Answer:
        chat = read(body) if (method, path) == ("POST", "/v1/chat/completions") else None
        if chat is None:
            return answers.error(404, f"There is no {method} {path} here.", kind="invalid_request_error")
        tokens = count_tokens(chat, self._count)
        if tokens + chat.output > self.window:
            self.overflows += 1
            return answers.too_long(self.window, tokens, chat.output)
        usage, is_summary = ReplyUsage(tokens, 60), asks_for_summary(chat)
        found = [*self._wrong(chat, json.loads(body)), *(() if is_summary else self._out_of_order(chat))]
        if found:
            self.problems += found
            return answers.error(400, found[0], kind="invalid_request_error")
        if is_summary:
            reply = summary(chat, "faithful")
            self.summaries += "\n## " in reply.text
            self.excerpts += "\n## " not in reply.text
            return answers.completion(reply, chat.model, 0, usage)
        self.prompt_tokens.append(tokens)
        return self._next(chat, usage)

    def _next(self, chat: Chat, usage: ReplyUsage) -> Answer:
        self.done += 1
        ordered: Function | str = self.call(self.done) if self.done <= self.rounds else self.last
        reply = Reply(ordered) if isinstance(ordered, str) else Reply(call=PromptCall(f"call_{self.done}", ordered))
        if chat.stream:
            return answers.stream(reply, chat.model, self.done, usage if chat.wants_usage else None)
        return answers.completion(reply, chat.model, self.done, usage)

    def _wrong(self, chat: Chat, request: dict[str, object]) -> Iterator[str]:
        yield from (f"unknown field {name}" for name in request.keys() - _FIELDS)
        messages = request["messages"]
        assert isinstance(messages, list)
        for message in messages:
            yield from (
                f"unknown {name} in {message['role']}" for name in message.keys() - _OF_MESSAGES[message["role"]]
            )
        yield from defects(chat.messages)

    def _out_of_order(self, chat: Chat) -> Iterator[str]:
        roles = [message.role for message in chat.messages]
        if roles[:2] != ["system", "user"] or "system" in roles[1:]:
            yield f"it begins with {roles[:3]}, or a system message comes later"
        last = chat.messages[-1]
        if not self.done:
            if last.role != "user":
                yield "the first request ends with no user message"
        elif (last.role, last.tool_call_id) != ("tool", f"call_{self.done}") or self.marker(self.done) not in last.text:
            yield f"after round {self.done} the last message is {last.role} {last.tool_call_id}: {last.text[:200]}"
