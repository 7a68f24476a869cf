"""The real engine at a pace of its own: summaries take seconds that nobody waits for, since time skips to the next."""

from __future__ import annotations

import asyncio
import io
import json
import selectors
import time
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from proxy.callers.api_head import ApiHead
from proxy.callers.tenants import Tenants
from proxy.cli.replay.stand_in import StandIn
from proxy.compaction.plan_input import Mode, PlanInput, plan_input_of
from proxy.compaction.prompt import Prompt
from proxy.dialects.base import Usage
from proxy.dialects.reader import CountedRequest
from proxy.dialects.table import CHAT
from proxy.models.tokenizer import Tokenizer
from proxy.sessions.stores.memory import MemoryStore
from proxy.telemetry.log import Log
from proxy.upstreams.http import UpstreamClient
from proxy.upstreams.routes import SummaryTarget
from proxy.upstreams.summarizer import SummarizerError
from proxy.wiring import Engine, open_engine
from tests.support.scenarios import MODEL, WINDOW
from tests.support.servers import configured

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from policies.record.prompting import Prompt as SummaryPrompt
    from policies.record.validation import SummaryAnswer
    from proxy.callers.tenants import Caller
    from proxy.sessions.stores.base import Store
    from proxy.upstreams.routes import Router
    from tests.support.scenarios import Message

_T = TypeVar("_T")
_P = ParamSpec("_P")
TOKENIZER = Tokenizer()


class SkippingLoop(asyncio.SelectorEventLoop):
    """Where there is nothing to do until a timer is due, it is due at once."""

    def __init__(self) -> None:
        self.skipped = 0.0
        self.skips = True
        self._started = time.monotonic()
        super().__init__(_Skipping(self))

    async def shutdown_default_executor(self, *timeout: float | None) -> None:
        """Threads take real time to end, and from Python 3.13 on it is bounded."""
        self.skips = False
        await super().shutdown_default_executor(*timeout)

    def time(self) -> float:
        """What is computed takes no time, so that a busy machine is none for a test."""
        return (self._started if self.skips else super().time()) + self.skipped


class _Skipping(selectors.DefaultSelector):
    def __init__(self, loop: SkippingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not timeout or timeout < 0 or not self._loop.skips:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self._loop.skipped += timeout
        return ready


class _Inline(Executor):
    """Works where it is asked: a thread would take real time."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        done: Future[_T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - as an executor hands it on
            done.set_exception(error)
        return done


class Summaries(StandIn):
    """A summarizer that takes `seconds` for an answer, and fails where `fails` says so of the number of a call."""

    def __init__(self, seconds: float, fails: Callable[[int], bool]) -> None:
        super().__init__(TOKENIZER)
        self._clock = asyncio.get_running_loop().time
        self._seconds = seconds
        self._fails = fails
        self.begun: list[str] = []
        self.ended = 0
        self.at_once = 0

    async def ask(self, target: SummaryTarget, prompt: SummaryPrompt, max_tokens: int, *_: object) -> SummaryAnswer:
        await self._take_time(target, prompt.user)
        return await super().ask(target, prompt, max_tokens)

    async def send(self, target: SummaryTarget, body: bytes, *_: object, **__: object) -> SummaryAnswer:
        await self._take_time(target, body.decode())
        return await super().send(target, body)

    async def _take_time(self, target: SummaryTarget, asked: str) -> None:
        number = len(self.begun)
        self.begun.append(asked)
        self.at_once = max(self.at_once, len(self.begun) - self.ended)
        await asyncio.sleep(self._seconds)
        self.ended += 1
        if self._fails(number):
            self.note_failure(target, "transient")
            raise SummarizerError("transient", "scripted")


class Play:
    """One caller's requests, played against the engine without a connection."""

    def __init__(self, engine: Engine, router: Router, caller: Caller, summaries: Summaries, log: io.BytesIO) -> None:
        self.engine = engine
        self.summaries = summaries
        self.stalls: list[float] = []
        self.prompts: list[Prompt] = []
        self._router = router
        self.caller = caller
        self._log = log
        self._following: set[asyncio.Task[None]] = set()

    async def prompt(self, messages: Sequence[Message], mode: Mode = "on") -> Prompt:
        """What is sent for these messages, and how long that took."""
        _, prompt = await self._next_prompt(messages, mode)
        return prompt

    async def round(self, messages: Sequence[Message], seconds: float = 0.3) -> Prompt:
        """A request, its answer after so many seconds, and what that sets off in the background."""
        case, prompt = await self._next_prompt(messages, "on")
        await asyncio.sleep(seconds)
        usage = Usage(prompt.tokens, 40)
        self.engine.prefetch.learn(case, prompt, usage)
        task = asyncio.create_task(self.engine.prefetch.follow_up(case, prompt, usage))
        self._following.add(task)
        task.add_done_callback(self._following.discard)
        return prompt

    async def settle(self) -> None:
        """Until nothing is under way in the background."""
        while self._following:
            await asyncio.wait(self._following)

    @property
    def paid(self) -> list[str]:
        """The checkpoints that a model's summary was paid for, in the order in which they were made."""
        lines = map(json.loads, self._log.getvalue().splitlines())
        return [line["checkpoint"] for line in lines if line["event"] == "compaction" and line.get("calls")]

    @property
    def sent(self) -> set[str]:
        """The checkpoints that went upstream."""
        return {prompt.record.digest[:16] for prompt in self.prompts if prompt.record is not None}

    async def _next_prompt(self, messages: Sequence[Message], mode: Mode) -> tuple[PlanInput, Prompt]:
        started = asyncio.get_running_loop().time()
        body = json.dumps({"model": MODEL, "messages": messages}).encode()
        request = await self.engine.reader.read(body, self.caller.scope, self._router.encoding, CHAT)
        assert isinstance(request, CountedRequest)
        case = plan_input_of(_HEAD, self._router, self.caller, mode, request)
        case = await self.engine.prompt_builder.place(case)
        prompt = await self.engine.prompt_builder.build_first(case)
        self.stalls.append(asyncio.get_running_loop().time() - started)
        self.prompts.append(prompt)
        return case, prompt


@asynccontextmanager
async def playing(
    directory: Path,
    *,
    seconds: float = 6.0,
    fails: Callable[[int], bool] = lambda _: False,
    store: Store | None = None,
    **settings: object,
) -> AsyncIterator[Play]:
    """A summarizer that takes so many seconds for every call; `settings` are sections of the config."""
    defaults = {
        "upstreams": {"main": {"base_url": "http://127.0.0.1:9/v1"}},
        "models": [{"match": MODEL, "context_window": WINDOW}],
    }
    config = configured(directory, defaults | settings)
    log, summaries = io.BytesIO(), Summaries(seconds, fails)
    written = Log("info", time.time, log)
    engine = await open_engine(
        config, store or MemoryStore(), UpstreamClient(), _Inline(), written, summarizer=summaries
    )
    caller = Tenants(config).identify(b"Bearer key")
    yield Play(engine, engine.router(config), caller, summaries, log)


_HEAD = ApiHead("POST", "/v1/chat/completions", [])
