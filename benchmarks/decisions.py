"""What our own part costs, without any network: reading a seen history, planning, assembling."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks.bodies import SEQUENCE, SIZES, body
from policies.assembly import assemble
from policies.budget import budget_of
from policies.conversation import Conversation, Message
from policies.cuts import legal_cuts
from policies.fingerprint import prefix_digests
from policies.plan import decide
from policies.settings import DEFAULTS
from proxy.reader import ChatRequest, RequestReader
from proxy.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.wire import chat

_SCOPE = b"benchmark"
_REPEATS = 30


def measure() -> dict[str, float]:
    """Name to milliseconds, medians of 30."""
    found = {f"reading a seen history, {name}": _reading(size) for name, size in SIZES.items()}
    for rounds in (50, 500):
        found[f"planning {rounds} rounds ({2 * rounds + 1:,} messages)"] = _planning(rounds)
    found["digests, cut, plan and assembly of 400 kB from a known checkpoint"] = _assembling()
    return found


def _reading(size: int) -> float:
    """Parsing, digesting and counting a request whose last message alone is new."""
    template = body(size, stream=False)
    tokenizer = Tokenizer()
    tokenizer.warm(DEFAULT_ENCODING)

    async def run() -> float:
        with ThreadPoolExecutor(2) as workers:
            reader = RequestReader(tokenizer, workers)
            times = []
            for i in range(_REPEATS + 3):
                request = template.replace(SEQUENCE.encode(), b"SEQ%08d" % i)
                started = time.perf_counter()
                await reader.read(request, _SCOPE, lambda _: DEFAULT_ENCODING)
                times.append(time.perf_counter() - started)
            return 1000 * statistics.median(times[3:])

    return asyncio.run(run())


def _planning(rounds: int) -> float:
    messages = [Message("user", 100, b"u" * 32)]
    for i in range(rounds):
        messages += [
            Message("assistant", 60, b"a" * 32, calls=(f"c{i}",)),
            Message("tool", 140, b"t" * 32, answers=f"c{i}"),
        ]
    budget = budget_of(rounds * 200, rounds * 200)
    return _median(lambda: decide(Conversation(messages), budget, DEFAULTS, None))


def _assembling() -> float:
    request = _read(body(SIZES["400 kB"], stream=False))
    cut = legal_cuts(request.conversation)[-10]

    def work() -> None:
        conversation = Conversation(request.messages, request.tools_tokens)
        prefix_digests(_SCOPE, conversation.body)
        legal_cuts(conversation)
        decide(conversation, budget_of(10**6, 10**6), DEFAULTS, None)
        chat.rebuild(request.body, request.parsed, assemble(conversation, cut, "record " * 500), {})

    return _median(work)


def _read(content: bytes) -> ChatRequest:
    async def run() -> ChatRequest | None:
        with ThreadPoolExecutor(1) as workers:
            return await RequestReader(Tokenizer(), workers).read(content, _SCOPE, lambda _: DEFAULT_ENCODING)

    request = asyncio.run(run())
    if request is None:
        raise ValueError("the benchmark's own body is not understood")
    return request


def _median(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)
