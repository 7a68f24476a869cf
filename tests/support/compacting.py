"""A compactor with all it needs, before a summarizer that answers by script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO

import msgspec

from policies.conversation.prefix_digests import Chain
from policies.decision.budget import budget_of
from policies.decision.plan import Compact, decide, limits_of
from policies.model_profile import ModelProfile
from policies.record.record import Record
from policies.record.texts import texts_for
from policies.settings import DEFAULTS, PolicySettings
from proxy.callers.spending import Spending
from proxy.callers.tenants import Caller
from proxy.compaction.checkpoints import Checkpoints
from proxy.compaction.compactor import Compactor
from proxy.compaction.job import Job
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.prompt_view import PromptView
from proxy.compaction.record_builder import RecordBuilder
from proxy.compaction.stability import Stability
from proxy.compaction.summary_writer import SummaryWriter
from proxy.config.settings import Upstream
from proxy.dialects.reader import CountedRequest, RequestReader
from proxy.dialects.table import CHAT
from proxy.memory import Memory
from proxy.models.table import ModelTable
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.models.windows import Windows, place_of
from proxy.runtime import workers as threads
from proxy.runtime.background import Background
from proxy.runtime.workers import Workers
from proxy.sessions.record_store import RecordStore
from proxy.sessions.sessions import Sessions
from proxy.sessions.stores import Sealer
from proxy.sessions.stores.base import Store
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.sealing import SealedStore
from proxy.telemetry.log import Log
from proxy.telemetry.log_lines import LogLines
from proxy.upstreams.http import UpstreamClient
from proxy.upstreams.routes import Route, SummaryTarget
from proxy.upstreams.summarizer import Summarizer
from proxy.wiring import read_prompts
from tests.support.conversations import Json, body_of, rounds, system, user
from tests.support.servers import serve

SCOPE = b"caller"
TOKENIZER = Tokenizer()
HEADINGS = texts_for("en").headings
GOOD = "\n".join(f"## {heading}\n- the task goes on as the user asked for it" for heading in HEADINGS)
TASK = "Fix the login. Never touch config/prod.yaml."


def completion(text: object, finish_reason: str | None = "stop", **message: object) -> tuple[int, bytes]:
    choice = {"message": {"role": "assistant", "content": text, **message}, "finish_reason": finish_reason}
    return 200, msgspec.json.encode({"choices": [choice]})


def error(status: int, message: str = "no", code: str | None = None) -> tuple[int, bytes]:
    return status, msgspec.json.encode({"error": {"message": message, "type": "x", "code": code}})


OVERFLOW = error(400, "This model's maximum context length is 3000 tokens. However, …", "context_length_exceeded")


@dataclass
class Model:
    """A summarizer as an ASGI app: answers by script, notes what it was asked."""

    answer: Callable[[Json], tuple[int, bytes]] = lambda _: completion(GOOD)
    asked: list[Json] = field(default_factory=list)
    gate: asyncio.Event | None = None

    async def __call__(self, scope: Json, receive: Callable[..., object], send: Callable[..., object]) -> None:
        body = b""
        more = True
        while more:
            event = await receive()  # type: ignore[misc]
            body += event["body"]
            more = event.get("more_body", False)
        request = msgspec.json.decode(body)
        self.asked.append(request)
        if self.gate is not None:
            await self.gate.wait()
        status, content = self.answer(request)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})  # type: ignore[misc]
        await send({"type": "http.response.body", "body": content})  # type: ignore[misc]


@dataclass
class Replica:
    """One process's compactor, and the address of its summarizer."""

    compactor: Compactor
    builder: RecordBuilder
    records: RecordStore
    summarizer: Summarizer
    url: str

    def target(self, *, window: int | None = None) -> SummaryTarget:
        upstream = Upstream(base_url=f"{self.url}/v1")
        return SummaryTarget(
            place=place_of("default", SCOPE, upstream.base_url, "gpt-4o"),
            name="main",
            upstream=upstream,
            headers=[],
            encoding=DEFAULT_ENCODING,
            window=window,
            calibration=1.0,
            dialect=CHAT,
            output_key="max_tokens",
            temperature=None,
        )


@asynccontextmanager
async def replica(
    model: Model,
    store: Store | None = None,
    clock: Callable[[], float] = lambda: 1e9,
    log: BytesIO | None = None,
) -> AsyncIterator[Replica]:
    async with serve(model) as url, UpstreamClient() as client:
        with ThreadPoolExecutor(2) as executor:
            sessions = Sessions(SealedStore(store or MemoryStore(), Sealer(None), 3600.0), Memory())
            lines = LogLines(Log("info", clock, log or BytesIO()))
            summarizer = Summarizer(client, clock, lines)
            windows = Windows(ModelTable(), SealedStore(MemoryStore(), Sealer(None), 600.0), clock)
            spending, workers = Spending(clock), Workers(executor)
            records = sessions.records
            writer = SummaryWriter(records, summarizer, TOKENIZER, read_prompts(), windows, spending, workers, clock)
            builder = RecordBuilder(summarizer, writer, spending, TOKENIZER, workers, lines, clock)
            background = Background(lambda *_: None)
            compactor = Compactor(Checkpoints(sessions), builder, Stability(sessions), sessions, background)
            yield Replica(compactor, builder, records, summarizer, url)


async def job(
    target: SummaryTarget | None,
    *,
    must: bool = False,
    number: int = 40,
    size: int = 600,
    policy: PolicySettings = DEFAULTS,
    parent: Record | None = None,
    summary_tokens_per_day: int | None = None,
) -> Job:
    """Return a compaction of a session of `number` rounds, as a request would decide on it, with a cut that stays."""
    messages = [system(), user(TASK), *rounds(number, size=size)]
    with ThreadPoolExecutor(1) as workers:
        request = await RequestReader(TOKENIZER, threads.Workers(workers)).read(
            body_of(messages), SCOPE, lambda _: DEFAULT_ENCODING, CHAT
        )
    assert isinstance(request, CountedRequest)
    budget = budget_of(8_192, min(7_000, request.tokens))
    plan = decide(request.conversation, limits_of(budget, policy, 0), policy, None)
    assert isinstance(plan, Compact)
    chain = Chain(SCOPE, request.conversation.body, link=b"l" * 32)
    caller = Caller("default", "default", policy, frozenset(), SCOPE, None, summary_tokens_per_day)
    upstream = Upstream(base_url="http://127.0.0.1:1/v1")
    place = place_of(caller.tenant, caller.scope, upstream.base_url, request.settings.model)
    route = Route("elsewhere", upstream, [], place)
    case = PlanInput(request, caller, "on", route, chain, "", ModelProfile(), None, target)
    plan = replace(plan, must=must, budget=budget, target=None)
    cooled = PromptView(request.conversation)
    return Job(case, cooled, plan, parent, target, started=1e9, deadline=policy.summarizer.timeout)
