"""Play recorded sessions through the engine, offline: tokens, prefix reuse and cost of each policy."""

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import count, takewhile
from typing import Protocol

from policies.decision.overflow_retries import Retry, StatedLimit, next_retry, retries
from policies.decision.plan import AHEAD, Trigger
from policies.price import Tokens, continued_prompt
from proxy.callers.api_head import ApiHead
from proxy.callers.tenants import Caller
from proxy.cli.replay.figures import LEAST_CACHED, NO_PROXY, Replayed, ReplayTally, session_of, total_of
from proxy.cli.replay.recordings import Recording, RecordingError
from proxy.cli.replay.stand_in import ModelCall, StandIn
from proxy.compaction.engine import Engine
from proxy.compaction.plan_input import PlanInput, plan_input_of, with_newest_lessons
from proxy.compaction.prefetch import is_worth_following
from proxy.compaction.prompt import Prompt
from proxy.config.loading import Config
from proxy.config.settings import ModelRule
from proxy.dialects.base import Dialect, Usage
from proxy.dialects.reader import CountedRequest
from proxy.errors import InvalidJSONError
from proxy.models.tokenizer import Tokenizer
from proxy.telemetry.events import CompactionEnded, Event, Hook
from proxy.upstreams.routes import Router
from proxy.upstreams.summarizer import Summarizer

_SEALED = (
    "it contains a compaction item that this config's store.encryption_key does not open, or of another proxy; it"
    " counts with its sealed size"
)


class Paid(Protocol):
    """Called for each model call under a policy, with its tokens, including those in the provider's cache."""

    def __call__(self, policy: str, call: Tokens, *, is_summary: bool) -> None:
        """Take a call under this policy."""


class Answered(Protocol):
    """Called with a request of a session, the prompt sent for it, and the next request, which repeats its response."""

    def __call__(self, session: str, case: PlanInput, sent: CountedRequest, following: CountedRequest, /) -> None:
        """Take an answered request."""


Opens = Callable[[Config, Summarizer, Hook], AbstractAsyncContextManager[Engine]]


def with_window(config: Config, window: int | None) -> Config:
    """Return the config with this window in tokens for all models."""
    if window is None:
        return config
    rules = [rule.model_copy(update={"context_window": window}) for rule in config.models]
    rules.append(ModelRule(match="*", context_window=window))
    return config.model_copy(update={"models": tuple(rules)})


async def replay(
    opens: Opens,
    config: Config,
    recordings: Sequence[Recording],
    callers: Sequence[Caller],
    advance: Callable[[], None],
    skipped: Callable[[str], None],
    *,
    paid: Paid | None = None,
    answered: Answered | None = None,
) -> Replayed:
    """Play every recording under the policy of every caller, and without a proxy.

    opens:   returns an engine that stores nothing, and uses this summarizer and this hook.
    advance: called after every request. skipped: called with the reason for each recording that cannot be played.
    paid:    called for every prompt, and for every summarizer call. answered: called for every answered request of a
    policy that is not off.
    """
    off = callers[0].policy.model_copy(update={"mode": "off"})
    everyone = (replace(callers[0], policy_name=NO_PROXY, policy=off), *callers)
    stand_in, triggers = StandIn(Tokenizer()), list[Trigger]()

    def count(event: Event) -> None:
        if isinstance(event, CompactionEnded) and event.digest is not None:
            triggers.append(event.trigger)

    async with opens(config, stand_in, count) as engine:
        player = _Player(engine, engine.router(config), stand_in, triggers, paid, answered)
        played: list[tuple[str, Mapping[str, ReplayTally]]] = []
        for recording in recordings:
            try:
                tallies = {caller.policy_name: await player.play(recording, caller, advance) for caller in everyone}
            except RecordingError as error:
                skipped(f"{recording.name}: {error}")
            else:
                played.append((recording.name, tallies))
            if player.has_sealed:
                skipped(f"{recording.name}: {_SEALED}")
                player.has_sealed = False
    names = [caller.policy_name for caller in everyone]
    total = {name: sum((tallies[name] for _, tallies in played), ReplayTally()) for name in names}
    return Replayed(
        windows=player.windows,
        sessions=[session_of(name, tallies) for name, tallies in played],
        total=total_of(total) if len(played) > 1 else None,
        unpriced=sorted(player.unpriced),
        watching=[caller.policy_name for caller in callers if caller.policy.mode == "shadow"],
    )


class _Player:
    """Play sessions one by one, and collect the windows of their models and the models without a price."""

    def __init__(
        self,
        engine: Engine,
        router: Router,
        stand_in: StandIn,
        triggers: list[Trigger],
        paid: Paid | None,
        answered: Answered | None,
    ) -> None:
        self.windows: dict[str, int | None] = {}
        self.unpriced: set[str] = set()
        self.has_sealed = False
        self._engine = engine
        self._router = router
        self._stand_in = stand_in
        self._triggers = triggers
        self._paid = paid
        self._answered = answered
        self._numbers = count()

    async def play(self, recording: Recording, caller: Caller, advance: Callable[[], None]) -> ReplayTally:
        """Play one session under one policy. Its own scope hides the records of other runs."""
        scope = hashlib.sha256(b"%d" % next(self._numbers)).digest()
        caller = replace(caller, scope=scope, summary_tokens_per_day=None)
        tally, cooled, previous = ReplayTally(), set[int](), None
        self._triggers.clear()
        head = _HEAD.asking(recording.dialect)
        async for request, following in self._exchanges(recording, caller):
            case = plan_input_of(head, self._router, caller, caller.policy.mode, request)
            prompt = await self._final_prompt(case)
            sent = await self._as_sent(case, prompt)
            self._add(tally, case, sent, previous)
            new = _shortened_messages(case, prompt) - cooled
            tally.batches += bool(new)
            cooled |= new
            if self._answered is not None and following is not None and case.mode != "off":
                self._answered(recording.name, case, sent, following)
            answered = _answer_in(following, request) if following is not None else 0
            await self._follow_up(case, prompt, Usage(prompt.tokens, answered))
            for call in self._stand_in.take_calls():
                await self._add_call(tally, call, case, sent, previous)
            previous = sent
            advance()
        tally.background = sum(trigger in AHEAD for trigger in self._triggers)
        tally.inline = len(self._triggers) - tally.background
        return tally

    async def _exchanges(
        self, recording: Recording, caller: Caller
    ) -> AsyncIterator[tuple[CountedRequest, CountedRequest | None]]:
        """Yield every request with the next one, which repeats its response; None after the last."""
        current: CountedRequest | None = None
        for number, body in enumerate(recording.bodies(), 1):
            following = await self._read(body, caller, recording.dialect)
            if following is None:
                raise RecordingError(f"request {number} is no {recording.dialect.name} request; remove it")
            if current is not None:
                yield current, following
            current = following
        if current is not None:
            yield current, None

    async def _read(self, body: bytes, caller: Caller, dialect: Dialect) -> CountedRequest | None:
        try:
            request = await self._engine.read(body, caller, self._router, dialect)
        except InvalidJSONError:
            return None
        self.has_sealed = self.has_sealed or (request is not None and request.history.compacts)
        return request

    async def _final_prompt(self, case: PlanInput) -> Prompt:
        """Return the final prompt. After an overflow, smaller ones are tried as in the pipeline."""
        first_prompt = await self._engine.prompt_builder.build_first(case)
        if (stated := _refusal(case, first_prompt)) is None:
            return first_prompt
        ladder, refusal = retries(first_prompt, stated, case.retries), None
        while (step := next_retry(ladder, refusal)) is not None:
            prompt, refusal = await self._smaller(case, step), None
            if prompt is not None:
                if (stated := _refusal(case, prompt)) is None:
                    return prompt
                refusal = prompt, stated
        return first_prompt

    async def _smaller(self, case: PlanInput, step: Retry[Prompt]) -> Prompt | None:
        if step.lowers_output:
            return self._engine.prompt_builder.with_less_output(case, step.refused, step.stated)
        return await self._engine.prompt_builder.retry(case, step.refused, step.stated, attempt=step.attempt)

    async def _as_sent(self, case: PlanInput, prompt: Prompt) -> CountedRequest:
        if prompt.body is case.request.body:
            return case.request
        sent = await self._read(prompt.body, case.caller, case.request.dialect)
        assert sent is not None  # noqa: S101 - the engine builds valid requests
        return sent

    def _add(self, tally: ReplayTally, case: PlanInput, sent: CountedRequest, previous: CountedRequest | None) -> None:
        window = case.route.window
        self.windows[case.request.settings.model] = window.tokens if window else None
        tally.requests += 1
        tally.received += case.request.received_tokens
        tally.sent += sent.tokens
        tally.unmeasured += window is None
        self._pay(tally, case, sent, previous)
        if previous is not None:
            tally.reuse.append(_reused_share(previous, sent))
        if _overflows(case, sent.tokens):
            tally.over.append(tally.requests)

    async def _follow_up(self, case: PlanInput, prompt: Prompt, usage: Usage) -> None:
        """Do the background work of the gateway. Here it ends before the next request."""
        if case.mode != "off" and not _overflows(case, prompt.tokens) and is_worth_following(case, prompt):
            self._engine.prefetch.learn(case, prompt, usage)
            await self._engine.prefetch.follow_up(with_newest_lessons(case, self._router), prompt, usage)

    async def _add_call(
        self,
        tally: ReplayTally,
        call: ModelCall,
        case: PlanInput,
        sent: CountedRequest,
        previous: CountedRequest | None,
    ) -> None:
        """Add a summarizer's call, right after the prompt, or right before it if the request waited."""
        request = await self._read(call.body, case.caller, call.dialect)
        assert request is not None  # noqa: S101 - the engine builds valid requests
        tally.calls += 1
        self._pay(tally, case, request, previous, sent, written=call.written)

    def _pay(
        self,
        tally: ReplayTally,
        case: PlanInput,
        sent: CountedRequest,
        *previous: CountedRequest | None,
        written: int | None = None,
    ) -> None:
        """Add the price of a prompt. The cached part is the longest prefix that a previous prompt has.

        written: tokens by a summarizer; None if no summarizer was called.
        """
        cached = max((_cached_tokens(prompt, sent) for prompt in previous if prompt is not None), default=0)
        if self._paid is not None:
            call = Tokens(sent.tokens, written or 0, cached)
            self._paid(case.caller.policy_name, call, is_summary=written is not None)
        price = self._engine.windows.price(sent.settings.model)
        if price is None:
            self.unpriced.add(sent.settings.model)
            tally.unpriced += 1
            return
        call = continued_prompt(cached, sent.tokens, price=price, caches=sent.tokens >= LEAST_CACHED, is_warm=True)
        tally.cost += price.of(call.with_answer(written or 0))


def _refusal(case: PlanInput, prompt: Prompt) -> StatedLimit | None:
    """Return the limit that the upstream would state for a prompt; None if it fits, or the window is unknown."""
    window = case.route.window
    if window is None or not _overflows(case, prompt.tokens):
        return None
    return StatedLimit(window.tokens, prompt.tokens)


def _overflows(case: PlanInput, tokens: int) -> bool:
    """Return True if prompt and response exceed the window. A response counts with at most the budget's reserve."""
    window = case.route.window
    if window is None:
        return False
    return tokens + min(case.request.settings.max_output or 0, window.tokens // 2) > window.tokens


def _answer_in(following: CountedRequest, request: CountedRequest) -> int:
    """Return the tokens of the response that the next request repeats after the messages of this one."""
    answer = takewhile(lambda message: message.role == "assistant", following.messages[len(request.messages) :])
    return sum(message.tokens for message in answer)


def _shortened_messages(case: PlanInput, prompt: Prompt) -> set[int]:
    """Return the indexes of messages that were sent in short forms."""
    if prompt.view is None or prompt.body is case.request.body:
        return set()
    return {*(prompt.view.replaced.keys() - prompt.view.quotations.keys())}


def _reused_share(previous: CountedRequest, sent: CountedRequest) -> float:
    """Return the share of the previous messages that the next request repeats byte for byte from the start."""
    a, b = (request.body[request.parsed.array[0] : request.parsed.array[1] - 1] for request in (previous, sent))
    same, most = 0, min(len(a), len(b))
    while same < most:
        middle = (same + most + 1) // 2
        same, most = (middle, most) if a[:middle] == b[:middle] else (same, middle - 1)
    return same / len(a)


def _cached_tokens(previous: CountedRequest, sent: CountedRequest) -> int:
    """Return the tokens at the start of a prompt that equal the previous one: tools first, then messages."""
    if previous.settings.model != sent.settings.model or previous.settings.definitions != sent.settings.definitions:
        return 0
    pairs = zip(previous.messages, sent.messages, strict=False)
    alike = takewhile(lambda pair: pair[0] == pair[1], pairs)
    tokens = sent.tools_tokens + sum(message.tokens for _, message in alike)
    return tokens if tokens >= LEAST_CACHED else 0


_HEAD = ApiHead("POST", "/", [])
