"""`python -m benchmarks.memory_chats FOLDER`: what of a long chat is in the prompt when a question comes back to it.

Every file is one chat: `{"messages": [...], "qa": [{"question": ..., "evidence": text or texts}]}`. It is played
through the proxy, its window a quarter of the history, the summarizer of no use; then each question is asked at the
end. `words` is the share of the evidence's words in what goes upstream, `held` that of its sentences of which four
words in five stand in one line of that. Beside it: the newest messages of the same size, and as many as the window
takes. Of the files in their order, every second one is held out from tuning.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from policies.record.search import terms
from proxy.callers.api_head import ApiHead
from proxy.callers.tenants import Tenants
from proxy.compaction.plan_input import PlanInput, plan_input_of
from proxy.config.loading import load_text
from proxy.dialects.table import CHAT
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.sessions.stores.memory import MemoryStore
from proxy.telemetry.log import Log
from proxy.upstreams.http import UpstreamClient
from proxy.wiring import open_engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from proxy.compaction.prompt import Prompt

Message = dict[str, Any]

_QUARTER = 4
_MESSAGE_TOKENS = 4
_OF_SENTENCE = 0.8
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\.\.\.|…|\n+")
_WORD = re.compile(r"\w+")
_POLICIES = ("off", "quote")


@dataclass
class Tally:
    """Of one chat under one way to shorten it: per question, but for `reuse`, which is per request."""

    words: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    reuse: list[float] = field(default_factory=list)
    quoted: int = 0
    asked: int = 0

    def add(self, evidence: Sequence[str], prompt: str, tokens: int) -> None:
        there, lines = {*terms(prompt)}, [{*_WORD.findall(line.lower())} for line in prompt.splitlines()]
        wanted = {*terms("\n".join(evidence))}
        self.words.append(len(wanted & there) / len(wanted) if wanted else 1.0)
        sentences = [{*_WORD.findall(part.lower())} for text in evidence for part in _SENTENCE.split(text)]
        sentences = [words for words in sentences if len(words) > 2]
        found = [any(len(words & line) >= _OF_SENTENCE * len(words) for line in lines) for words in sentences]
        self.held.append(fmean(found) if found else 1.0)
        self.tokens.append(tokens)


async def measured(chat: dict[str, Any], recall: str) -> tuple[Tally, int]:
    """A chat with this mode of recall, and the window it had."""
    window = window_of(chat["messages"])
    config = load_text("measured", _config(window, recall), {})
    tally = Tally()
    with ThreadPoolExecutor(1) as workers:
        log = Log("error", time.time, io.BytesIO())
        engine = await open_engine(config, MemoryStore(), UpstreamClient(), workers, log)
        router, caller, head = engine.router(config), Tenants(config).identify(None), ApiHead("POST", "/", [])

        async def sent(messages: list[Message]) -> tuple[PlanInput, Prompt]:
            body = json.dumps({"model": "any", "messages": messages}, ensure_ascii=False).encode()
            request = await engine.reader.read(body, caller.scope, router.encoding, CHAT)
            assert request is not None
            case = await engine.prompt_builder.place(plan_input_of(head.asking(CHAT), router, caller, "on", request))
            return case, await engine.prompt_builder.build_first(case)

        before = b""
        for messages in _requests(chat["messages"]):
            _, prompt = await sent(messages)
            array = prompt.body.rstrip(b"]} ")
            if before and prompt.record is not None:
                tally.asked += 1
                tally.quoted += bool(prompt.view and prompt.view.quotations.keys() & {len(messages) - 1})
                tally.reuse.append(_same(before, array) / len(before))
            before = array
        for question in chat["qa"]:
            _, prompt = await sent([*chat["messages"], {"role": "user", "content": question["question"]}])
            text = "\n".join(_text(message) for message in json.loads(prompt.body)["messages"][:-1])
            last = _text(json.loads(prompt.body)["messages"][-1]).removesuffix(question["question"])
            tally.add(_evidence(question), f"{text}\n{last}", prompt.tokens)
    return tally, window


def shortened(chat: dict[str, Any], tokens: int) -> Tally:
    """The instructions and as many of the newest messages as so many tokens take."""
    messages, kept = chat["messages"], list[str]()
    first = [message for message in messages[:1] if message["role"] == "system"]
    left = tokens - sum(map(_tokens, first))
    for message in reversed(messages[len(first) :]):
        left -= _tokens(message)
        if left < 0:
            break
        kept.append(_text(message))
    tally, prompt = Tally(), "\n".join([*map(_text, first), *kept])
    for question in chat["qa"]:
        tally.add(_evidence(question), prompt, tokens - max(0, left))
    return tally


def window_of(messages: Sequence[Message]) -> int:
    return max(2_000, sum(map(_tokens, messages)) // _QUARTER)


def _config(window: int, recall: str) -> str:
    return json.dumps(
        {
            "upstreams": {"main": {"base_url": "http://127.0.0.1:9/v1"}},
            "models": [{"match": "*", "context_window": window}],
            "policies": {"default": {"summarizer": {"model": "none"}, "recall": recall}},
        }
    )


def _requests(messages: list[Message]) -> Iterator[list[Message]]:
    return (messages[: at + 1] for at, message in enumerate(messages) if message["role"] == "user")


def _evidence(question: dict[str, Any]) -> list[str]:
    evidence = question.get("evidence") or question["answer"]
    return [str(part) for part in evidence] if isinstance(evidence, list) else [str(evidence)]


def _text(message: Message) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


_count = Tokenizer().count


def _tokens(message: Message) -> int:
    return _count(_text(message), DEFAULT_ENCODING) + _MESSAGE_TOKENS


def _same(one: bytes, other: bytes) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.memory_chats", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=("tuning", "held_out"))
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.json"))
    files = files[{"tuning": 0, "held_out": 1}[options.half] :: 2] if options.half else files
    kinds: dict[str, dict[str, list[Tally]]] = {}
    for file in files:
        chat = json.loads(file.read_text("utf-8"))
        if not chat.get("qa"):
            continue
        ways = kinds.setdefault(re.split(r"[_\d]", file.stem)[0], {})
        window = 0
        for recall in _POLICIES:
            tally, window = asyncio.run(measured(chat, recall))
            ways.setdefault(f"recall: {recall}", []).append(tally)
        ways.setdefault("newest, same size", []).append(shortened(chat, round(fmean(tally.tokens))))
        ways.setdefault("newest, full window", []).append(shortened(chat, window))
    _show(kinds)


def _show(kinds: dict[str, dict[str, list[Tally]]]) -> None:
    table = Table(header_style="bold")
    for column in ("chats", "way", "questions", "words", "held", "tokens", "reuse", "quoted"):
        table.add_column(column, justify="left" if column in ("chats", "way") else "right")
    for kind, ways in kinds.items():
        for way, tallies in ways.items():
            asked = sum(tally.asked for tally in tallies)
            reuse = [share for tally in tallies for share in tally.reuse]
            table.add_row(
                f"{kind} ({len(tallies)})",
                way,
                str(sum(len(tally.words) for tally in tallies)),
                f"{fmean(share for tally in tallies for share in tally.words):.3f}",
                f"{fmean(share for tally in tallies for share in tally.held):.3f}",
                f"{fmean(tokens for tally in tallies for tokens in tally.tokens):,.0f}",
                f"{fmean(reuse):.3f}" if reuse else "",
                f"{sum(tally.quoted for tally in tallies) / asked:.0%}" if asked else "",
            )
        table.add_section()
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
