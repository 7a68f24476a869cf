"""What our own part costs, without any network: reading a seen history, planning, assembling."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks.bodies import SEQUENCE, SIZES, body
from policies.conversation.conversation import Conversation
from policies.conversation.message import Call, Message
from policies.conversation.outline import Outline
from policies.conversation.prefix_digests import prefix_digests
from policies.conversation.transcript import ToolCall, Utterance
from policies.decision.assemble import assemble
from policies.decision.budget import budget_of, usable_input
from policies.decision.cut import Cut
from policies.decision.large_results import zone_of
from policies.decision.legal_cuts import legal_cuts
from policies.decision.plan import decide, limits_of
from policies.record import record as records
from policies.record.record import Occasion, Record, RecordContext, Span
from policies.settings import DEFAULTS
from proxy.dialects.base import Dialect
from proxy.dialects.reader import CountedRequest, RequestReader
from proxy.dialects.table import CHAT
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.runtime import workers as threads

_SCOPE = b"benchmark"
_REPEATS = 30
# Whole histories take longer; the first warms up.
_HISTORIES = 8
_PROSE = (
    "we the port service host region team review build release table index queue always use check with from about "
    "before and should move change number file module test report error cache time budget limit name"
)


def measure() -> dict[str, float]:
    """Name to milliseconds, medians of 30; of whole histories, of 7."""
    found = {f"reading a seen history, {name}": reading(body(size, stream=False), CHAT) for name, size in SIZES.items()}
    for rounds in (50, 500):
        found[f"planning {rounds} rounds ({2 * rounds + 1:,} messages)"] = _planning(rounds)
    found["following 1,001 messages with 50 large results"] = _cooling(500)
    for name, shape in (("an agent's 200k tokens", (4, 10, 22)), ("a chat's 200k tokens", (900, 4, 0))):
        found[f"record without a model of {name}"], found[f"… and of its next message ({name})"] = _record(*shape)
    found["digests, cut, plan and assembly of 400 kB from a known checkpoint"] = _assembling()
    return found


def reading(template: bytes, dialect: Dialect) -> float:
    """Parsing, digesting and counting a request whose last message alone is new, in milliseconds."""
    tokenizer = Tokenizer()
    tokenizer.warm(DEFAULT_ENCODING)

    async def run() -> float:
        with ThreadPoolExecutor(2) as workers:
            reader = RequestReader(tokenizer, threads.Workers(workers))
            times = []
            for i in range(_REPEATS + 3):
                request = template.replace(SEQUENCE.encode(), b"SEQ%08d" % i)
                started = time.perf_counter()
                await reader.read(request, _SCOPE, lambda _: DEFAULT_ENCODING, dialect)
                times.append(time.perf_counter() - started)
            return 1000 * statistics.median(times[3:])

    return asyncio.run(run())


def _planning(rounds: int) -> float:
    messages = [Message("user", 100, b"u" * 32)]
    for i in range(rounds):
        messages += [
            Message("assistant", 60, b"a" * 32, calls=(Call(f"c{i}", "bash"),)),
            Message("tool", 140, b"t" * 32, results=(f"c{i}",), joins=True),
        ]
    limits = limits_of(budget_of(rounds * 200, rounds * 200), DEFAULTS, 0)
    known = Outline().longer(messages[:-1])  # of the request before
    return _median(lambda: decide(Conversation(messages, outline=known.longer(messages)), limits, DEFAULTS, None))


def _cooling(rounds: int) -> float:
    """Following a conversation of which every tenth result is large."""
    messages = [Message("user", 100, b"u" * 32)]
    for i in range(rounds):
        size = 8_000 if i % 10 == 0 else 140
        messages += [
            Message("assistant", 60, b"a" * 32, calls=(Call(f"c{i}", "bash"),)),
            Message("tool", size, b"t" * 32, results=(f"c{i}",), joins=True),
        ]
    return _median(lambda: zone_of(Conversation(messages), 128_000, DEFAULTS))


def _record(users: int, sentences: int, results: int) -> tuple[float, float]:
    """The deterministic record of some 200,000 tokens, and of the same with one message more, in milliseconds.

    `users` messages of so many sentences that all hold a value, each answered by `results` long tool results. Every
    history is another one: no sentence of it was read before.
    """
    numbers = random.Random(7)

    def words(count: int) -> str:
        return " ".join(
            f"{' '.join(numbers.choices(_PROSE.split(), k=11))} {numbers.randrange(9999)}." for _ in range(count)
        )

    def history() -> list[Utterance]:
        said: list[Utterance] = []
        for _ in range(users):
            said.append(Utterance(len(said), "user", words(sentences)))
            for _ in range(results):
                call = ToolCall("bash", '{"command": "ls"}')
                said.append(Utterance(len(said), "assistant", words(1), (call,)))
                said.append(Utterance(len(said), "tool", words(60), tool="bash"))
            said.append(Utterance(len(said), "assistant", words(6)))
        return said

    def message(position: int) -> list[Utterance]:
        return [Utterance(position, "user", words(sentences)), Utterance(position + 1, "assistant", words(6))]

    tokenizer = Tokenizer()
    tokenizer.warm(DEFAULT_ENCODING)
    count = partial(tokenizer.count, encoding=DEFAULT_ENCODING)

    def build(utterances: Sequence[Utterance], parent: Record | None) -> Record:
        cut = Cut(utterances[-1].position + 1, "L0", "turn-boundary", 100)
        span = Span(tuple(utterances), cut, "digest", "first", "last", first_user=0)
        context = RecordContext(
            span=span,
            parent=parent,
            statements=records.statements_of(span, parent, DEFAULTS.ledger),
            budget=usable_input(200_000, None, exact=True),
            settings=DEFAULTS.ledger,
            segments=3,
            count=count,
        )
        return records.build(context, None, Occasion("proactive", 200_000, 0, "", 0.0, 0.0))

    histories = [history() for _ in range(_HISTORIES)]
    first = build(histories[0], None)
    messages = [message(len(histories[0])) for _ in range(_REPEATS)]
    following = _median_of([partial(build, more, first) for more in messages])
    return _median_of([partial(build, said, None) for said in histories[1:]]), following


def _assembling() -> float:
    request = _read(body(SIZES["400 kB"], stream=False))
    cut = legal_cuts(request.conversation)[-10]

    def work() -> None:
        conversation = Conversation(request.messages, request.tools_tokens)
        prefix_digests(_SCOPE, conversation.body)
        legal_cuts(conversation)
        decide(conversation, limits_of(budget_of(10**6, 10**6), DEFAULTS, 0), DEFAULTS, None)
        CHAT.rebuild(request.body, request.parsed, assemble(conversation, cut, "record " * 500), {})

    return _median(work)


def _read(content: bytes) -> CountedRequest:
    async def run() -> CountedRequest | None:
        with ThreadPoolExecutor(1) as workers:
            return await RequestReader(Tokenizer(), threads.Workers(workers)).read(
                content, _SCOPE, lambda _: DEFAULT_ENCODING, CHAT
            )

    request = asyncio.run(run())
    if request is None:
        raise ValueError("the benchmark's own body is not understood")
    return request


def _median(work: Callable[[], object]) -> float:
    return _median_of([work] * _REPEATS)


def _median_of(works: Sequence[Callable[[], object]]) -> float:
    times = []
    for work in works:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)
