"""`python -m benchmarks.scenarios [PART OF A NAME]`: what sessions of many kinds cost, over the real proxy.

Each is played against a model server with a hard window. For every one: calls to the summarizer (and those of them for
single large results), prompts that were refused, requests that waited for a summary, the largest prompt sent, and which
share of a request's messages the next one repeats byte for byte, the price of a provider's prompt cache.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.support.model_server import ModelServer
from tests.support.scenarios import (
    FIRST,
    ROUND_WORDS,
    TOOLS,
    Agent,
    Change,
    Message,
    Stage,
    chinese,
    in_first,
    large_head,
    one_user,
    prefix_reuse,
    prose,
    session,
    sliding,
    sliding_behind_the_task,
    stage,
    stamped_first,
    stamped_results,
)

_EXCERPT = b"Write the summary now."
_MODEL = "gpt-4o"


@dataclass(frozen=True)
class _Scenario:
    """Requests, how the client changes them, what it asks for besides, and the server's window and tokens."""

    requests: Callable[[], Iterable[Sequence[Message]]]
    change: Change = field(default=lambda messages, _: list(messages))
    window: int = 8_192
    token_ratio: float = 1.0
    more: Mapping[str, object] = field(default_factory=dict)


def _rounds(agent: Agent, number: int, first: str = FIRST) -> Iterator[list[Message]]:
    yield agent.says(first)
    for _ in range(number):
        yield agent.works()


def _cold(times: float) -> list[list[Message]]:
    agent = Agent()
    *_, whole = _rounds(agent, int(times * 8_192 / 190))
    return [list(whole), *([*agent.works()] for _ in range(3))]


def _forks() -> Iterator[list[Message]]:
    trunk = Agent()
    yield from session(trunk, requests=50)
    for name in ("left", "right"):
        yield trunk.fork(name).says(f"Go on with the {name} part.")


def _pasted() -> Iterator[list[Message]]:
    agent = Agent(words=300)
    yield agent.says(FIRST)
    yield agent.works()
    yield agent.says("Find the fault in this:\n" + prose("paste", 52_000))
    for _ in range(8):
        yield agent.works()


def _mixed(words: Sequence[int], rounds: int) -> Iterator[list[Message]]:
    agent, chance = Agent(), random.Random(1)
    yield agent.says(FIRST)
    for _ in range(rounds):
        agent.words = chance.choice(words)
        yield agent.works()


def _headed(window: int) -> _Scenario:
    return _Scenario(lambda: _rounds(large_head(), 66), window=window, more={"tools": TOOLS, "max_tokens": 8_000})


def _asking(window: int, output: int) -> _Scenario:
    return _Scenario(lambda: _rounds(Agent(words=ROUND_WORDS), 66), window=window, more={"max_tokens": output})


def _numbered(messages: Sequence[Message], number: int) -> list[Message]:
    return in_first(f"This is request {number}.", messages)


_SCENARIOS = {
    "50 requests, tools and turns": _Scenario(lambda: session(Agent())),
    "one user message, 200 rounds": _Scenario(lambda: one_user(Agent())),
    "Chinese": _Scenario(lambda: session(Agent(write=chinese))),
    "4k window": _Scenario(lambda: session(Agent(words=100)), window=4_096),
    "32k window, rounds of 5 kB": _Scenario(lambda: _rounds(Agent(words=ROUND_WORDS), 66), window=32_768),
    "128k window, rounds of 5 kB": _Scenario(lambda: _rounds(Agent(words=ROUND_WORDS), 200), window=131_072),
    "tokens 1.33 times the estimate": _Scenario(lambda: session(Agent(words=100)), token_ratio=1.33),
    "tokens 4 times the estimate": _Scenario(lambda: session(Agent(words=100)), token_ratio=4),
    "first request 2.7 windows": _Scenario(lambda: _cold(2.7)),
    "first request 10 windows": _Scenario(lambda: _cold(10)),
    "two forks after 50 requests": _Scenario(_forks),
    **{f"head of 17k in {window // 1024}k": _headed(window) for window in (32_768, 40_960, 49_152, 65_536)},
    "asks for 32,000 in 48k": _asking(49_152, 32_000),
    "asks for 16,384 in 40k": _asking(40_960, 16_384),
    "a time in the first message": _Scenario(lambda: session(Agent(words=200), requests=41), stamped_first),
    "times in old results": _Scenario(lambda: session(Agent(words=200), requests=41), stamped_results),
    "the newest 30 messages": _Scenario(lambda: one_user(Agent(words=420), 40), sliding),
    "the first and the newest 30": _Scenario(lambda: one_user(Agent(words=420), 40), sliding_behind_the_task),
    "a number in the first message": _Scenario(lambda: session(Agent(words=200), requests=41), _numbered),
    "a paste of 300 kB in 48k": _Scenario(_pasted, window=49_152),
    "large results in 32k": _Scenario(lambda: _mixed((100, 200, 200, 2_200), 90), window=32_768),
    "large results in 64k": _Scenario(lambda: _mixed((2_500,), 60), window=65_536),
    "very large results in 64k": _Scenario(lambda: _mixed((6_000,), 50), window=65_536),
    "very large results in 128k": _Scenario(lambda: _mixed((6_000,), 50), window=131_072),
}


async def _row(scenario: _Scenario) -> tuple[str, ...]:
    model = ModelServer(window=scenario.window, token_ratio=scenario.token_ratio, remember=10_000)
    models = [{"match": "*", "context_window": scenario.window}]
    settings: dict[str, object] = {"store": {"url": "memory://"}, "models": models, "logging": {"level": "error"}}
    with tempfile.TemporaryDirectory() as folder:
        async with stage(Path(folder), model, **settings) as play:
            for number, messages in enumerate(scenario.requests()):
                await play.post(scenario.change(messages, number), model=_MODEL, **scenario.more)
                # What is done behind an answer has the time that a model takes for the next one.
                await asyncio.sleep(0.01)
            return _figures(play)


def _figures(play: Stage) -> tuple[str, ...]:
    asked = [received for received in play.model.received if received.is_summary]
    others = [received for received in play.model.received if received.method == "POST" and not received.is_summary]
    return (
        str(len(play.replies)),
        str(sum(reply.status != 200 for reply in play.replies)),
        f"{len(asked)} ({sum(_EXCERPT in received.body for received in asked)})",
        str(sum(received.status != 200 for received in others)),
        str(sum(reply.headers.get("x-compaction") == "applied" for reply in play.replies)),
        f"{max(sent.received.prompt_tokens for sent in play.sent):,}",
        f"{prefix_reuse(play.sent):.3f}",
    )


async def _main(part: str) -> None:
    table = Table("scenario", "requests", "failed", "calls (results)", "refused", "waited", "largest", "prefix reuse")
    for name, scenario in _SCENARIOS.items():
        if part in name:
            table.add_row(name, *await _row(scenario))
    Console(width=140).print(table)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1] if len(sys.argv) > 1 else ""))
