"""A provider for one real agent's session: the next step for every request, its window, its cache and its bill."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.agent_bill import Bill, Cache, Kind, MarkedCache, PrefixCache
from benchmarks.agent_project import Step, step, talk_of
from proxy.cli.demo.prompt import Chat
from proxy.cli.demo.replies import asks_for_summary
from proxy.models.table import ModelTable
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from tests.agents.running import received
from tests.agents.speaking import Messages, Said, Speech
from tests.agents.working import Answered, answered, chat_of, nothing_at, refused, sent
from tests.support.conversations import Json
from tests.support.model_server.replies import summary

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_OWN_SUMMARY = 3_000
# Of what our summarizer is allowed, what it writes.
_FILLED = 0.85
_AT_MOST = re.compile(r"At most ([\d,]+) tokens")
# Tokens from which a request without tools is no title, but an agent's own compaction of a transcript.
_LARGE = 4_000
# What Claude Code, codex and qwen-code ask for when they compact by themselves, behind the session's own prompt.
_OWN = re.compile(r"create a detailed summary of|CONTEXT CHECKPOINT COMPACTION|<state_snapshot>")

Tool = Callable[[Step, str], tuple[str, Json]]
"""An agent's call for a step, in a folder: the tool's name and its arguments."""


@dataclass
class PricedServer:
    """An ASGI app.

    again: tokens of files that are read again behind an agent's own summary, by steps beside the script's; an agent's
        model does so, and a script that does not lets it forget for nothing. folder: where the project is.
    overflows: requests that were refused for their size. odd: whatever was not in order. Requests without tools are
        about other things, such as titles.
    """

    speech: Speech
    window: int
    rounds: int
    tool: Tool
    folder: str
    again: int = 0
    done: int = 0
    extra: list[Step] = field(default_factory=list)
    overflows: int = 0
    odd: list[str] = field(default_factory=list)
    trace: list[Json] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.count = lru_cache(20_000)(partial(Tokenizer().count, encoding=DEFAULT_ENCODING))
        is_marked = isinstance(self.speech, Messages)
        self.cache: Cache = MarkedCache(self.count) if is_marked else PrefixCache(self.count, self.speech.array)
        self.bill = Bill(ModelTable().price)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await received(receive)
        await sent(self._answered(scope["method"], scope["path"], raw), send)

    def _answered(self, method: str, path: str, raw: bytes) -> Answered:
        if (method, path) != ("POST", self.speech.path):
            return nothing_at(method, path)
        body: Json = json.loads(raw)
        tokens = self.cache.size(body)
        if tokens > self.window:
            self.overflows += 1
            self._note("refused", body, tokens)
            return refused(self.speech.too_long(tokens, self.window))
        self.odd += self.speech.defects(body)
        kind, said = self._said(body, tokens)
        billed = self.cache.take(body).with_answer(self.count(said.text + json.dumps([said.arguments, said.thought])))
        self.bill.add(kind, str(body["model"]), billed)
        self._note(kind, body, tokens)
        return answered(self.speech, said, billed, streams=bool(body.get("stream")))

    def _note(self, kind: str, body: Json, tokens: int) -> None:
        call = self.bill.calls[-1] if self.bill.calls and kind != "refused" else None
        found: Json = {"cached": call.tokens.cached, "lost": call.lost, "output": call.tokens.output} if call else {}
        items = body[self.speech.array]
        assert isinstance(items, list)
        self.trace.append({"round": self.done, "kind": kind, "prompt": tokens, "items": len(items), **found})

    def _said(self, body: Json, tokens: int) -> tuple[Kind, Said]:
        chat = chat_of(body, self.speech.array)
        if asks_for_summary(chat):
            return "our summary", Said(0, self._our_summary(chat))
        has_tools = bool(body.get("tools"))
        if _asks_for_own(chat) or (not has_tools and tokens >= _LARGE):
            self.extra = [*self._read_again()]
            text = _text(self.done, _OWN_SUMMARY, self.count)
            return "own summary", Said(0, f"<summary>\n{text}\n</summary>", thought=self._thought(body))
        if not has_tools:
            return "beside", Said(0, "Ledger migration")
        if self.extra:
            return "work", self._ordered(self.extra.pop(0), 10_000 * self.done + len(self.extra), body)
        self.done += 1
        if self.done > self.rounds:
            last = "All modules are moved; the check of the last cents is left."
            return "work", Said(self.done, last, thought=self._thought(body))
        return "work", self._ordered(step(self.done), self.done, body)

    def _ordered(self, now: Step, number: int, body: Json) -> Said:
        name, arguments = self.tool(now, self.folder)
        return Said(number, now.talk, name, arguments, self._thought(body))

    def _read_again(self) -> Iterator[Step]:
        """What was read last, newest first, as long as there is room."""
        left, seen = self.again, set()
        for number in range(self.done - 1, 0, -1):
            now = step(number)
            if now.kind != "read" or now.path in seen:
                continue
            left -= self.count(Path(self.folder, now.path).read_text())
            if left < 0:
                return
            seen.add(now.path)
            yield now

    def _thought(self, body: Json) -> Json | None:
        asked = body.get("thinking")
        if not isinstance(asked, dict) or asked["type"] not in ("enabled", "adaptive"):
            return None
        thinking = talk_of(random.Random(-self.done), 3)
        return {"type": "thinking", "thinking": thinking, "signature": f"signed{self.done}"}

    def _our_summary(self, chat: Chat) -> str:
        """As long as it may be: a summary in fewer tokens would be cheaper than a real model's."""
        text = summary(chat, "faithful").text
        asked = _AT_MOST.search("\n".join(message.text for message in (chat.messages[0], *chat.messages[-3:])))
        target = int(_FILLED * int(asked[1].replace(",", ""))) if asked else 0
        more = _text(self.done, target - self.count(text), self.count)
        return text.replace("\n\n## ", f"\n{more}\n\n## ", 1) if "\n## " in text else f"{text}\n{more}"


def _asks_for_own(chat: Chat) -> bool:
    """By the newest message, or a system prompt of its own."""
    return any(_OWN.search(message.text) for message in (chat.messages[0], chat.messages[-1]))


def _text(seed: int, tokens: int, count: Callable[[str], int]) -> str:
    def lines(left: int) -> Iterator[str]:
        made = random.Random(seed)
        while left > 0:
            line = f"- {talk_of(made, 2)}"
            left -= count(line)
            yield line

    return "\n".join(lines(tokens))
