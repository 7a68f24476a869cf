"""Carrying out a plan to compact: one record a cut, made once for everybody who needs it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Literal, Protocol, TypeVar

from policies.assembly import Injected, Item, Merged, Shape, assemble
from policies.budget import Budget
from policies.conversation import INSTRUCTION_ROLES, Conversation
from policies.half_window import Cut
from policies.ledger import ledger
from policies.ledger.ledger import Entry
from policies.plan import Trigger
from policies.record import record as records
from policies.record.bisect import Call, MergeCall, Outcome, Overflow, Result, SummarizeCall, bisect
from policies.record.prompting import Continuity, Prompt, Prompts, fill, fill_aligned
from policies.record.record import Record, Segment, Span, Spent, Written
from policies.record.texts import Texts, texts_for
from policies.record.validation import Answer, Invalid, Valid, split_timeline, validate
from policies.settings import PolicySettings
from policies.trail import Resumed, left_out
from policies.transcript import Block, CountTokens, Utterance, newest_within, render
from proxy.callers.spending import Spending
from proxy.dialects import json_array
from proxy.dialects.reader import ChatRequest
from proxy.engine.summarizer import Summarizer, SummarizerError, SummarizerOverflowError, SummaryTarget
from proxy.models.tokenizer import Tokenizer
from proxy.models.windows import Place, Windows, place_of
from proxy.records.checkpoints import Checkpoints, hash_tag, key_of
from proxy.records.locks import LOCK_SECONDS, poll, renewed
from proxy.runtime.deadlines import within

_PARALLEL_CALLS = 8
_LEAST_ANSWER = 1_024
# Share of a summarizer's window that is planned with: its own template and our miscounting take the rest.
_USED_WINDOW = 0.95
_LEAST_CAPACITY = 200
# A record that leaves more than this beside tools and head is not worth keeping (docs/design.md, section 6).
_MOST_LEFT = 0.9
# Share of a summarizer's window for the numbered statements of the user.
_STATEMENTS_SHARE = 0.1
# What of a session's request does not go with a question of ours.
_NOT_ALIGNED = ("stream", "stream_options", "response_format", "functions", "function_call", "logprobs", "top_logprobs")

_T = TypeVar("_T")


class CompactionError(Exception):
    """No record could be made, and none was owed: the request goes on without it. The text is the reason."""


@dataclass(frozen=True)
class Job:
    """One compaction that was decided on.

    conversation: of the request, as it is sent; replaced: the bytes of its messages that are sent in a short form.
    digests: of the request's prefixes. parent: the standing record that this one continues.
    must:    fall back to a deterministic record rather than fail.
    target:  which model summarizes; None for the deterministic record only. aligned: that is the request's own model.
    deadline: seconds that all calls together may take. started: when the conversation was first seen.
    rebuild: summarize the whole history anew instead of going on from the parent's summary.
    session: its conversation's name for people.
    shape:   in which the session's requests carry a record.
    resumed: where messages vanished from the conversation, None where none did.
    """

    request: ChatRequest
    conversation: Conversation
    replaced: Mapping[int, bytes]
    digests: Sequence[bytes]
    cut: Cut
    parent: Record | None
    trigger: Trigger
    must: bool
    tokens_before: int
    budget: Budget
    policy: PolicySettings
    target: SummaryTarget | None
    tenant: str
    session: str
    daily_tokens: int | None
    deadline: float
    started: float
    aligned: bool = False
    rebuild: bool = False
    shape: Shape = "separate"
    resumed: Resumed | None = None

    @property
    def tag(self) -> str:
        """Under which everything of the conversation is stored."""
        return hash_tag(self.digests[1])

    @property
    def covered(self) -> int:
        return self.parent.covered if self.parent else 0

    @cached_property
    def span(self) -> Span:
        """The newly covered messages, decoded once; instructions among them go upstream as they are."""
        conversation = self.conversation
        covered, cut = self.covered, self.cut.position
        return Span(
            utterances=self._utterances(covered),
            cut=self.cut,
            digest=self.digests[cut].hex(),
            first_digest=self.digests[min(covered + 1, cut)].hex(),
            last_digest=self.digests[cut].hex(),
            first_user=self._first_user,
            anchor=left_out(conversation, cut, self.resumed),
        )

    @cached_property
    def source(self) -> tuple[Utterance, ...]:
        """What the summarizer is to read: the span, or the whole history."""
        return self._utterances(0) if self.rebuild else self.span.utterances

    @cached_property
    def entries(self) -> list[Entry]:
        """The user's statements so far, as data."""
        return records.entries_of(self.span, self.parent, self.policy.ledger)

    def _utterances(self, start: int) -> tuple[Utterance, ...]:
        found = self.request.utterances(start, self.cut.position)
        if not self.conversation.instructions_covered:
            found = [u for u in found if u.role not in INSTRUCTION_ROLES]
        if self.resumed is None:
            return tuple(found)
        return tuple(replace(u, position=self.resumed.absolute(u.position)) for u in found)

    @property
    def _first_user(self) -> int | None:
        """The message with the task; None where it is none of those that are left."""
        first = self.conversation.first_user()
        vanished = self.resumed is not None and first is not None and self.resumed.absolute(first) != first
        return None if vanished else first


class Observer(Protocol):
    """Who is told how a compaction goes (R1's callbacks): its start, every call's end, and its own end."""

    def compaction_started(self, job: Job) -> None: ...

    def summary_received(self, job: Job, calls: int, refused: str | None) -> None: ...

    def compaction_ended(self, job: Job, record: Record | None, reason: str) -> None: ...


@dataclass(slots=True)
class _Bill:
    """What the calls of one job have used so far."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Work:
    """What the calls of one job share."""

    job: Job
    target: SummaryTarget
    texts: Texts
    continuity: Continuity
    count: CountTokens
    bill: _Bill = field(default_factory=_Bill)

    @property
    def length(self) -> int:
        """Tokens that the summary should have."""
        return self.job.policy.summarizer.target_tokens or self.job.budget.summary

    @property
    def segment(self) -> int:
        return self.job.policy.summarizer.segment_characters

    def length_of(self, call: Call) -> int:
        merging = self.job.policy.summarizer.merge_target_tokens if isinstance(call, MergeCall) else None
        return merging or self.length


class Compactor:
    """Makes records; one per process."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        summarizer: Summarizer,
        tokenizer: Tokenizer,
        prompts: Prompts,
        windows: Windows,
        spending: Spending,
        workers: Executor,
        observer: Observer,
        clock: Callable[[], float],
        ticks: Callable[[], float],
    ) -> None:
        """`clock` tells Unix seconds, `ticks` seconds that only go forward."""
        self._checkpoints = checkpoints
        self._summarizer = summarizer
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._spending = spending
        self._workers = workers
        self._observer = observer
        self._clock = clock
        self._ticks = ticks
        self._windows = windows

    async def compact(self, job: Job) -> Record:
        """The record of job.cut: found, made by another replica meanwhile, or made here. Raises CompactionError."""
        if job.target is None:
            found = await self._look(job)
            return found or await self._publish(job, await self._make(job))
        key = key_of(job.digests, job.cut.position)
        token = secrets.token_hex(8)
        turn = partial(self._turn, f"lock:{key}", token, job)
        wait = job.deadline if job.must else job.policy.join_wait
        taken = await turn() or await poll(turn, wait)
        if isinstance(taken, Record):
            return taken
        if taken is None:
            if not job.must:
                raise CompactionError("pending")
            return await self._publish(job, await self._make(job))
        try:
            async with renewed(self._checkpoints.store, f"lock:{key}"):
                return await self._publish(job, await self._make(job))
        finally:
            await asyncio.shield(self._checkpoints.store.release(f"lock:{key}", token))

    async def _look(self, job: Job) -> Record | None:
        return await self._checkpoints.find(job.digests, [job.cut.position])

    async def _turn(self, lock: str, token: str, job: Job) -> Record | Literal[True] | None:
        """The record, or the right to make it: whoever held the lock may have given up; None while it is held."""
        if (found := await self._look(job)) is not None:
            return found
        return True if await self._checkpoints.store.acquire(lock, token, LOCK_SECONDS) else None

    async def _publish(self, job: Job, record: Record) -> Record:
        return await self._checkpoints.publish(job.digests, record)

    async def _make(self, job: Job) -> Record:
        """The record, made here; its end is told whatever comes of it."""
        self._observer.compaction_started(job)
        try:
            record = await self._worthwhile(job)
        except BaseException as error:
            self._observer.compaction_ended(job, None, _reason(error))
            raise
        self._observer.compaction_ended(job, record, record.making.algorithm)
        return record

    async def _worthwhile(self, job: Job) -> Record:
        """One that saves next to nothing is thrown away."""
        record = await (self._build(job, None) if job.target is None else self._summarized(job, job.target))
        tokens, fixed = record.making.tokens, job.conversation.fixed_tokens
        if job.trigger != "overflow_retry" and tokens.after - fixed > _MOST_LEFT * (tokens.before - fixed):
            raise CompactionError("no_gain")
        return record

    async def _summarized(self, job: Job, target: SummaryTarget) -> Record:
        if not self._spending.allows(job.tenant, job.daily_tokens):
            return await self._without_model(job, "over_budget")
        if self._summarizer.is_cooling_down(target):
            return await self._without_model(job, "summarizer_cooling_down")
        try:
            async with within(job.deadline):
                written = await self._write(job, target)
        except TimeoutError:
            self._summarizer.failed(target, "transient")
            return await self._without_model(job, "summarizer_timeout")
        except SummarizerError as error:
            return await self._without_model(job, f"summarizer_{error.kind}")
        self._summarizer.succeeded(target)
        return await self._build(job, written)

    async def _without_model(self, job: Job, reason: str) -> Record:
        if not job.must:
            raise CompactionError(reason)
        return await self._build(job, None)

    async def _write(self, job: Job, target: SummaryTarget) -> Written:
        """Let the model write the summary, in as many calls as it takes."""
        started = self._ticks()
        count = partial(self._tokenizer.count, encoding=target.encoding)
        blocks = await self._off_loop(lambda: render(job.source, count, job.policy.parts_to_keep))
        texts = texts_for(records.language_for(job.parent, job.span))
        room = int(_STATEMENTS_SHARE * (target.window or job.budget.window) / target.calibration)
        work = _Work(job, target, texts, await self._off_loop(lambda: _continuity(job, room, count)), count)
        outcome = await self._drive(work, blocks)
        if outcome.text is None:
            self._summarizer.failed(target, "invalid")
            raise SummarizerError("invalid", "no part of the span could be summarized")
        summary, segment = split_timeline(ledger.without_superseded_section(outcome.text), texts, work.segment)
        latency = int(1000 * (self._ticks() - started))
        spent = self._spent(target.model, work.bill)
        named = outcome.text
        return Written(summary, segment, outcome, target.model, latency, spent, named, job.rebuild)

    def _spent(self, model: str, bill: _Bill) -> Spent:
        price = self._windows.price(model)
        usd = None
        if price is not None:
            usd = round(bill.prompt_tokens * price.prompt + bill.completion_tokens * price.completion, 6)
        return Spent(bill.prompt_tokens, bill.completion_tokens, usd)

    async def _drive(self, work: _Work, blocks: list[Block]) -> Outcome:
        """Run the bisection: every wave of calls side by side."""
        around = self._around(work)
        window = work.target.window
        capacity = None if window is None else _capacity(work, window, around, work.target.calibration)
        run = bisect(blocks, work.continuity.summary, capacity, work.job.policy.bisect, work.count)
        # Of this job alone: nobody's slow summarizer holds up another's.
        slots = asyncio.Semaphore(_PARALLEL_CALLS)
        results: tuple[Result, ...] | None = None
        while True:
            try:
                calls = next(run) if results is None else run.send(results)
            except StopIteration as finished:
                outcome: Outcome = finished.value
                return outcome
            results = await _side_by_side([self._result(work, call, around, slots) for call in calls])

    async def _result(self, work: _Work, call: Call, around: int, slots: asyncio.Semaphore) -> Result:
        try:
            async with slots:
                return await self._summarize(work, call)
        except SummarizerOverflowError as error:
            target, stated = work.target, error.stated
            estimated = around + _content_tokens(call, work.count)
            self._windows.saw_overflow(_place(work), stated, estimated)
            if stated.limit is None:
                return Overflow()
            calibration = max(1.0, stated.input_tokens / estimated) if stated.input_tokens else target.calibration
            return Overflow(_capacity(work, stated.limit, around, calibration))

    def _around(self, work: _Work) -> int:
        """Tokens of a prompt without its transcript."""
        empty = fill(self._templates(work), SummarizeCall((), 0), work.continuity, work.texts, work.length)
        return work.count(empty.system) + work.count(empty.user)

    async def _summarize(self, work: _Work, call: Call) -> str:
        """The summary of one call; a part of several is looked up first and kept afterwards."""
        prompt = fill(self._templates(work), call, work.continuity, work.texts, work.length_of(call), work.segment)
        if isinstance(call, SummarizeCall) and call.parts == 1:
            return await self._aligned(work, prompt) or await self._validated(work, prompt)
        content = b"\0".join(
            (work.target.owner, work.target.model.encode(), prompt.system.encode(), prompt.user.encode())
        )
        if (known := await self._checkpoints.recall_part(work.job.tag, content)) is not None:
            return known
        summary = await self._validated(work, prompt)
        await self._checkpoints.keep_part(work.job.tag, content, summary)
        return summary

    async def _validated(self, work: _Work, prompt: Prompt) -> str:
        """One validated answer; an unusable one gets a single reminder."""
        verdict = await self._ask(work, prompt)
        if isinstance(verdict, Invalid):
            reminder = self._prompts.reminder.replace("{reason}", verdict.reason)
            verdict = await self._ask(work, replace(prompt, user=f"{prompt.user}\n\n{reminder}"))
        if isinstance(verdict, Invalid):
            self._summarizer.failed(work.target, "invalid")
            raise SummarizerError("invalid", verdict.reason)
        return verdict.text

    async def _aligned(self, work: _Work, prompt: Prompt) -> str | None:
        """The summary asked for at the end of the session's own prompt, None where that is not wanted or fails."""
        job = work.job
        if not (job.aligned and job.policy.summarizer.cache_aligned) or job.rebuild:
            return None
        instruction = fill_aligned(self._templates(work), work.texts, work.length, work.segment)
        body = await self._off_loop(partial(_aligned_body, job, instruction, _answer_room(work)))
        try:
            answer = await self._summarizer.send(work.target, body)
        except (SummarizerError, SummarizerOverflowError):
            return None
        verdict = await self._off_loop(partial(self._validate, work, prompt, answer))
        return verdict.text if isinstance(verdict, Valid) else None

    def _templates(self, work: _Work) -> Prompts:
        own = work.job.policy.summarizer.prompt
        if own is None:
            return self._prompts
        prompts = self._prompts
        return replace(
            prompts,
            summarize=f"{prompts.summarize}\n{own}",
            merge=f"{prompts.merge}\n{own}",
            aligned=f"{prompts.aligned}\n{own}",
        )

    async def _ask(self, work: _Work, prompt: Prompt) -> Valid | Invalid:
        answer = await self._summarizer.ask(work.target, prompt, _answer_room(work))
        return await self._off_loop(partial(self._validate, work, prompt, answer))

    def _validate(self, work: _Work, prompt: Prompt, answer: Answer) -> Valid | Invalid:
        tokens = work.count(prompt.user)
        used = answer.usage or (tokens, work.count(answer.text[:100_000]))
        self._spending.add(work.job.tenant, sum(used))
        bill = work.bill
        bill.calls, bill.prompt_tokens, bill.completion_tokens = (
            bill.calls + 1,
            bill.prompt_tokens + used[0],
            bill.completion_tokens + used[1],
        )
        verdict = validate(
            answer,
            source=prompt.user,
            source_tokens=tokens,
            cap=2 * max(work.length, work.job.policy.summarizer.merge_target_tokens or 0),
            headings=work.texts.headings,
            count=work.count,
            target=prompt.target,
        )
        self._observer.summary_received(work.job, bill.calls, verdict.reason if isinstance(verdict, Invalid) else None)
        return verdict

    async def _build(self, job: Job, written: Written | None) -> Record:
        return await self._off_loop(partial(self._build_now, job, written))

    def _build_now(self, job: Job, written: Written | None) -> Record:
        now = self._clock()
        return records.build(
            job.span,
            job.parent,
            job.entries,
            written,
            budget=job.budget,
            settings=job.policy.ledger,
            trigger=job.trigger,
            tokens_before=job.tokens_before,
            tokens_kept=job.conversation.fixed_tokens + job.cut.kept,
            segments=job.policy.summarizer.history_segments,
            title=_title(job.started, now),
            started=job.started,
            now=now,
            count=partial(self._tokenizer.count, encoding=job.request.encoding),
        )

    async def _off_loop(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)


async def _side_by_side(calls: Sequence[Coroutine[None, None, Result]]) -> tuple[Result, ...]:
    """All results in order; the first error ends the others and is raised unchanged."""
    tasks: list[asyncio.Task[Result]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks.extend(group.create_task(call) for call in calls)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return tuple(task.result() for task in tasks)


def _continuity(job: Job, room: int, count: CountTokens) -> Continuity:
    """What of earlier summaries the summarizer is shown (R2's switches), and the newest statements that fit `room`."""
    settings = job.policy.summarizer
    statements = tuple(newest_within(ledger.numbered(job.entries), room, count))
    if job.parent is None:
        return Continuity(statements=statements)
    segments = job.parent.segments[-settings.history_segments :] if settings.history_segments else ()
    if not settings.insights:
        segments = tuple(Segment(segment.text) for segment in segments)
    return Continuity(None if job.rebuild else job.parent.summary, segments, statements)


def _title(started: float, ended: float) -> str:
    start, end = (datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") for at in (started, ended))
    return f"Summary of conversation from {start} to {end}"


def _aligned_body(job: Job, instruction: str, max_tokens: int) -> bytes:
    """The session's prompt up to the cut and one instruction more, for the same model and tools."""
    conversation = job.conversation
    text = job.parent.text if job.parent else None
    items: Sequence[Item] = range(len(conversation.messages))
    if text is not None:
        items = assemble(conversation, job.covered, text, job.shape)
    end = conversation.head_length + job.cut.position
    upto = [item for item in items if isinstance(item, Injected | Merged) or item < end]
    body = json_array.rebuild(job.request.body, job.request.parsed, [*upto, Injected(instruction)], dict(job.replaced))
    fields: dict[str, object] = {job.request.output_key: max_tokens}
    if job.request.parsed.envelope.tools:
        fields["tool_choice"] = "none"
    return json_array.with_fields(body, fields, without=_NOT_ALIGNED)


def _place(work: _Work) -> Place:
    target = work.target
    return place_of(work.job.tenant, target.owner, target.upstream.base_url, target.model)


def _answer_room(work: _Work) -> int:
    """Tokens the summarizer may write, in its own; the length asked for is in ours."""
    return max(_LEAST_ANSWER, int(1.3 * work.length * work.target.calibration))


def _reason(error: BaseException) -> str:
    """Why a compaction ended without a record, for the log."""
    if isinstance(error, CompactionError):
        return str(error)
    return "cancelled" if isinstance(error, asyncio.CancelledError) else "internal_error"


def _capacity(work: _Work, window: int, around: int, calibration: float) -> int:
    """Tokens of transcript that fit one call, of our estimate; `window` is in the summarizer's own tokens."""
    prompt = int((_USED_WINDOW * window - _answer_room(work)) / calibration)
    return max(_LEAST_CAPACITY, prompt - around)


def _content_tokens(call: Call, count: CountTokens) -> int:
    match call:
        case SummarizeCall():
            return sum(block.tokens for block in call.blocks)
        case MergeCall():
            return sum(map(count, call.texts))
