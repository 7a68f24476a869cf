"""`python -m benchmarks.pointers`: is what a client points to in the prompt, with and without `dereference`?

Generated sessions (`benchmarks.grown`) 2.2 windows long, in which files are read, and read again .2 to 1.6 windows
later: the client answers that with a line that points to the first reading. No model summarizes. Then the same with
one such line in 265,000 tokens, as often as recorded agents read a file again unchanged. Then the CPU of a request with
2,600 messages and ten such lines.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.grown import grown
from proxy.dialects.table import CHAT
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from tests.support.engines import config_of, processes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.fresh.wire import Message

_WINDOWS = (16_000, 32_000, 64_000, 128_000, 200_000)
_KINDS = ("opencode-en", "ops-it", "aider-en")
_LENGTH = 2.2
# Files in a session, the share of the window that one takes, and how many windows later it is read again.
_FILES = 6
_SIZE = 0.03
_LATER = (0.2, 0.7, 1.6)
# Tokens of recorded sessions for each file that is read again unchanged, and sessions with that, in such readings.
_RARE = 265_000
_RARE_LENGTH = 3
_RARE_WINDOWS = (16_000, 64_000, 200_000)
# Requests that are played for each window of history.
_REQUESTS = 12
_MESSAGES = 2_600
_ROUNDS = 15
_LINE = "Wasted call — file unchanged since your last Read. Refer to that earlier tool_result instead."
_WORDS = ("total", "cents", "round", "parse", "ledger", "refund", "offset", "batch", "queue", "commit", "record", "key")


class _Asked(NamedTuple):
    """A second reading: the messages up to it, and lines of the text that it points to."""

    length: int
    lines: Sequence[str]


class _Chat:
    """A session of a client that speaks chat completions."""

    dialect = CHAT

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def body(self) -> bytes:
        return json.dumps({"model": "gpt-4o", "messages": self._messages}).encode()


def code(seed: int, tokens: int) -> list[str]:
    """Return the lines of a file of about so many tokens."""
    chance = random.Random(seed)
    lines = [f"def part_{seed}():"]
    while 13 * len(lines) < tokens:
        lines.append(f"    {chance.choice(_WORDS)}_{len(lines)} = {chance.choice(_WORDS)}({chance.randrange(9_999)})")
    return lines


def reading(call: str, path: str, text: str) -> list[Message]:
    """Return a call that reads a file, and its result."""
    function = {"name": "Read", "arguments": json.dumps({"file_path": path})}
    made = [{"id": call, "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": None, "tool_calls": made},
        {"role": "tool", "tool_call_id": call, "content": text},
    ]


def _often() -> list[tuple[float, int, str]]:
    """Return what is read and when, in windows: each file, and later the line that points to it."""
    starts = [0.1 + at * (_LENGTH - 0.4) / _FILES for at in range(_FILES)]
    due = [(start, at, "") for at, start in enumerate(starts)]
    return sorted(due + [(start + later, at, _LINE) for at, start in enumerate(starts) for later in _LATER])


def _rarely(window: int) -> list[tuple[float, int, str]]:
    """Return the same for sessions of `_RARE_LENGTH` such lines, a window behind the file each."""
    starts = [(at + 0.5) * _RARE / window for at in range(_RARE_LENGTH)]
    due = [(start, at, "") for at, start in enumerate(starts)]
    return sorted(due + [(start + 1, at, _LINE) for at, start in enumerate(starts)])


def with_readings(
    messages: Sequence[Message], window: int, due: list[tuple[float, int, str]]
) -> tuple[list[Message], list[_Asked]]:
    """Return the session with files that are read, and read again; and the second readings."""
    count = Tokenizer().count
    found: list[Message] = []
    asked: list[_Asked] = []
    tokens = 0
    for at, message in enumerate(messages):
        found.append(message)
        tokens += count(json.dumps(message, ensure_ascii=False), DEFAULT_ENCODING)
        ends = message["role"] in ("tool", "assistant") and not message.get("tool_calls")
        if not ends or (at + 1 < len(messages) and messages[at + 1]["role"] == "tool"):
            continue
        while due and due[0][0] * window <= tokens:
            _, number, line = due.pop(0)
            lines = code(number, int(_SIZE * window))
            found += reading(f"read{len(found)}", f"/work/src/part_{number}.py", line or "\n".join(lines))
            if line:
                asked.append(_Asked(len(found), lines))
    return found, asked


async def measured(window: int, mode: str, *, rare: bool = False) -> tuple[int, int, int, int]:
    """Return second readings, those with the whole text and with a part of it in the prompt, and compactions."""
    windows = _RARE_LENGTH * _RARE / window + 1 if rare else _LENGTH
    readings = whole = part = compactions = 0
    for number, name in enumerate(_KINDS):
        times = max(1, int(windows * window / _LENGTH) // 20_000)
        body = grown(name, int(windows * window), times, 100 * number + 7, 0)
        messages, asked = with_readings(body["messages"], window, _rarely(window) if rare else _often())
        step = max(1, int(len(messages) / (windows * _REQUESTS)))
        lengths = {
            length for length in range(step, len(messages) + 1, step) if messages[length - 1]["role"] != "assistant"
        }
        wanted = {one.length: one for one in asked}
        async with processes(config_of(window, dereference=mode), io.BytesIO(), 1) as (process,):
            for length in sorted(lengths | wanted.keys()):
                prompt = await process.prompt(_Chat(messages[:length]))
                compactions += prompt.outcome == "applied"
                if length in wanted:
                    text = prompt.body.decode()
                    held = sum(json.dumps(line)[1:-1] in text for line in wanted[length].lines)
                    readings += 1
                    whole += held == len(wanted[length].lines)
                    part += 10 < held < len(wanted[length].lines)
    return readings, whole, part, compactions


async def cpu(mode: str, pointers: int) -> tuple[float, float]:
    """Return milliseconds of CPU of a request with 2,600 messages: the median, and of the first."""
    messages: list[Message] = [{"role": "user", "content": "Move the totals to cents."}]
    for number in range(pointers):
        messages += reading(f"first{number}", f"/work/src/part_{number}.py", "\n".join(code(number, 1_500)))
    while len(messages) < _MESSAGES - 2 * pointers:
        made = reading(f"other{len(messages)}", f"/work/docs/{len(messages)}.md", " ".join(code(len(messages), 90)))
        messages += made
    for number in range(pointers):
        messages += reading(f"again{number}", f"/work/src/part_{number}.py", _LINE)
    spent = []
    async with processes(config_of(200_000, dereference=mode), io.BytesIO(), 1) as (process,):
        await process.prompt(_Chat(messages[: -2 * pointers or None]))
        for _ in range(_ROUNDS):
            began = time.process_time()
            await process.prompt(_Chat(messages))
            spent.append(1_000 * (time.process_time() - began))
    return statistics.median(spent), spent[0]


async def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.pointers", description=__doc__)
    parser.add_argument("--windows", type=int, nargs="*", default=_WINDOWS)
    options = parser.parse_args()
    table = Table("window", "read again", "text in the prompt", "part of it", "compactions", "without", "compactions")
    rows = [(window, False) for window in options.windows]
    rows += [(window, True) for window in options.windows if window in _RARE_WINDOWS]
    for window, rare in rows:
        readings, whole, part, compactions = await measured(window, "on", rare=rare)
        _, without, _, usual = await measured(window, "off", rare=rare)
        name = f"{window:,}, rarely" if rare else f"{window:,}"
        table.add_row(name, *map(str, (readings, whole, part, compactions, without, usual)))
    Console(width=110).print(table)
    table = Table("CPU, 2,600 messages", "ms a request", "ms of the first")
    for pointers, switched in ((10, "off"), (10, "on"), (0, "off"), (0, "on")):
        median, first = await cpu(switched, pointers)
        table.add_row(f"{pointers} pointers, dereference {switched}", f"{median:.1f}", f"{first:.1f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    asyncio.run(main())
