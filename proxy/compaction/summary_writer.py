"""Writing a summary by a model in as many calls as needed. Each response is validated, and parts are stored."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from policies.conversation.transcript import Block, CountTokens, newest_within, render
from policies.decision.assemble import Injected, Item, MergedMessage, Rules, UserWords, assemble
from policies.decision.plan import tokens_with
from policies.price import Price, Tokens
from policies.record import record as records
from policies.record.bisect import BisectOutcome, Call, MergeCall, Overflow, Result, SummarizeCall, bisect, part_length
from policies.record.prompting import Continuity, Prompt, Prompts, fill, fill_aligned
from policies.record.record import Segment, Spent, WrittenSummary
from policies.record.texts import Texts, texts_for
from policies.record.validation import Invalid, SummaryAnswer, Valid, split_timeline, validate
from policies.statements import ledger
from proxy.callers.api_headers import for_questions
from proxy.callers.spending import Spending
from proxy.compaction.job import Job
from proxy.compaction.prompt import active_checkpoint
from proxy.dialects.cache_marks import may_be_cached
from proxy.models.tokenizer import Tokenizer
from proxy.models.windows import Windows
from proxy.runtime.deadlines import within
from proxy.runtime.workers import Workers
from proxy.sessions.record_store import RecordStore
from proxy.telemetry.events import CallResult
from proxy.upstreams.routes import SummaryTarget
from proxy.upstreams.summarizer import FormRefusedError, Kind, Summarizer, SummarizerError, SummarizerOverflowError

_THOUGHT_SHARE = 1 / 8
_PARALLEL_CALLS = 8
_LEAST_ANSWER = 1_024
# The least response if the window is too small for that: half of the prompt's tokens, but at least this.
_SMALL_ANSWER = 400
_ANSWER_SHARE = 1 / 2
# Tokens of a response for each token of the requested summary.
_SLACK = 1.3
# Usable share of a summarizer's window. Its template and estimation errors take the rest.
_USED_WINDOW = 0.95
# Below it the prompt's instructions are most of what is read.
_LEAST_CAPACITY = 500
# Share of a summarizer's window for the user's numbered statements.
_STATEMENTS_SHARE = 0.1


@dataclass(slots=True)
class Bill:
    """The usage of a job's calls so far, and the reasons why responses were unusable.

    price:        that of the model; None if no model is called or its price is unknown.
    reason:       why the record was made without a model.
    asks_aligned: True while the response to a question after the session's prompt is awaited.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0
    refused: list[str] = field(default_factory=list)
    price: Price | None = None
    reason: str | None = None
    asks_aligned: bool = False

    @property
    def spent(self) -> Spent:
        """Return the tokens and the cost so far."""
        usd = None if self.price is None else round(self.usd, 6)
        return Spent(self.prompt_tokens, self.completion_tokens, usd)

    def add(self, used: Tokens, verdict: Valid | Invalid) -> None:
        """Add the usage of one call."""
        self.calls += 1
        self.prompt_tokens += used.prompt
        self.completion_tokens += used.output
        self.usd += 0.0 if self.price is None else self.price.of(used)
        if isinstance(verdict, Invalid):
            self.refused.append(verdict.reason)


@dataclass(slots=True)
class _SharedWork:
    """The state that the calls of one job share.

    window:   that of the summarizer in its own tokens, if known or stated by an overflow.
    is_tight: True if a prompt overflowed without a stated limit, so responses get less room.
    """

    job: Job
    target: SummaryTarget
    texts: Texts
    continuity: Continuity
    count: CountTokens
    bill: Bill
    deadline: within
    window: int | None
    is_tight: bool = False

    @property
    def length(self) -> int:
        """Return the tokens that the summary should have."""
        return self.job.policy.summarizer.target_tokens or self.job.plan.budget.summary

    @property
    def longest(self) -> int:
        """Return the most tokens of the whole span's summary, from a single call or the last merge."""
        return max(self.length, self.job.policy.summarizer.merge_target_tokens or 0)

    def length_of(self, call: Call, room: int) -> int:
        """Return the tokens that a call's summary should have, if its response may have `room` tokens."""
        fits = max(1, int(room / (_SLACK * self.target.calibration)))
        match call:
            case MergeCall():
                return min(fits, self.job.policy.summarizer.merge_target_tokens or self.length)
            case SummarizeCall(parts=1):
                return min(fits, self.length)
            case SummarizeCall():
                return min(fits, part_length(_content_tokens(call, self.count), self.length))


@dataclass(eq=False, repr=False)
class SummaryWriter:
    """Writes summaries. One per engine. `ticks` returns monotonic seconds."""

    _records: RecordStore
    _summarizer: Summarizer
    _tokenizer: Tokenizer
    _prompts: Prompts
    _windows: Windows
    _spending: Spending
    _workers: Workers
    _ticks: Callable[[], float]

    async def write(self, job: Job, target: SummaryTarget, bill: Bill, deadline: within) -> WrittenSummary:
        """Return the summary of a job, in as many calls as needed. Adds their usage to `bill`. Raises SummarizerError.

        deadline: ends the calls when the job's time is up.
        """
        started = self._ticks()
        bill.price = self._windows.price(target.model)
        count = partial(self._tokenizer.count, encoding=target.encoding)
        blocks = await self._workers.run(lambda: render(job.source, count, job.policy.parts_to_keep))
        texts = texts_for(records.language_for(job.parent, job.span))
        room = int(_STATEMENTS_SHARE * (target.window or job.plan.budget.window) / target.calibration)
        continuity = await self._workers.run(lambda: _continuity(job, room, count))
        work = _SharedWork(job, target, texts, continuity, count, bill, deadline, target.window)
        outcome = await self._drive(work, blocks)
        if outcome.text is None:
            # A summarizer that accepts no part in so many calls is skipped for a while. A depth limit is not its fault.
            if not outcome.is_bounded or 2 * outcome.calls >= job.policy.bisect.max_calls:
                self._summarizer.note_failure(target, "invalid")
            if outcome.is_bounded:
                raise SummarizerError("bounded", "no part of the span was small enough for a call")
            raise SummarizerError("invalid", "no part of the span could be summarized")
        summary, segment = split_timeline(ledger.without_superseded_section(outcome.text or ""), texts)
        latency = int(1000 * (self._ticks() - started))
        return WrittenSummary(
            summary, segment, outcome, target.model, latency, bill.spent, outcome.text or "", job.rebuild
        )

    async def _drive(self, work: _SharedWork, blocks: list[Block]) -> BisectOutcome:
        """Run the bisection. The calls of a wave run concurrently."""
        around, single_call_tokens = self._around(work)
        window, place = work.window, work.target.place
        capacity = None if window is None else _capacity(work, window, around, work.target.calibration)
        bounds, largest_part = work.job.policy.bisect, self._windows.largest_answered(place)
        run = bisect(
            blocks,
            work.continuity.summary,
            capacity,
            bounds,
            work.count,
            work.longest,
            single_call_tokens,
            largest_part,
        )
        # Per job, so that no slow summarizer delays another's calls.
        slots = asyncio.Semaphore(_PARALLEL_CALLS)
        results: tuple[Result, ...] | None = None
        while True:
            try:
                calls = next(run) if results is None else run.send(results)
            except StopIteration as finished:
                outcome: BisectOutcome = finished.value
                return outcome
            results = await _side_by_side([self._result(work, call, around, slots) for call in calls])

    async def _result(self, work: _SharedWork, call: Call, around: int, slots: asyncio.Semaphore) -> Result:
        tokens = around + _content_tokens(call, work.count)
        try:
            async with slots:
                text = await self._summarize(work, call, tokens)
        except SummarizerOverflowError as error:
            target, stated = work.target, error.stated
            self._windows.saw_overflow(target.place, stated, tokens, work.job.plan_input.chain.session)
            if stated.limit is None:
                work.is_tight = True
                return Overflow()
            work.window = min(stated.limit, work.window or stated.limit)
            calibration = max(1.0, stated.input_tokens / tokens) if stated.input_tokens else target.calibration
            return Overflow(_capacity(work, stated.limit, around, calibration))
        self._windows.saw_taken(work.target.place, tokens)
        return text

    def _around(self, work: _SharedWork) -> tuple[int, int]:
        """Return the tokens of a part's prompt without its transcript, and the additional tokens of a single call."""

        def tokens_of(call: Call) -> int:
            empty = fill(self._templates(work), call, work.continuity, work.texts, work.length)
            return work.count(empty.system) + work.count(empty.user)

        around = tokens_of(SummarizeCall((), 0, parts=2))
        return around, max(0, tokens_of(SummarizeCall((), 0)) - around)

    async def _summarize(self, work: _SharedWork, call: Call, tokens: int) -> str:
        """Return the summary of one call. A part of several is read from the store if it is there, else stored.

        tokens: those of the call's prompt.
        """
        room = _answer_room(work, tokens)
        prompt = fill(self._templates(work), call, work.continuity, work.texts, work.length_of(call, room))
        if isinstance(call, SummarizeCall) and call.parts == 1:
            return await self._validated_answer(work, prompt, room, await self._aligned_answer(work, prompt))
        content = b"\0".join(
            (work.job.plan_input.caller.scope, work.target.model.encode(), prompt.system.encode(), prompt.user.encode())
        )
        if (stored := await self._records.recall_part(work.job.plan_input.chain.tag, content)) is not None:
            return work.job.plan_input.allowed_text(stored)
        summary = await self._validated_answer(work, prompt, room)
        await self._records.keep_part(work.job.plan_input.chain.tag, content, summary)
        return summary

    async def _validated_answer(
        self, work: _SharedWork, prompt: Prompt, room: int, earlier: Valid | Invalid | None = None
    ) -> str:
        """Return a validated response of at most `room` tokens. An invalid one gets a single reminder.

        first: a verdict that another call already had. Raises SummarizerError.
        """
        verdict = earlier or await self._ask(work, prompt, room)
        if isinstance(verdict, Invalid):
            reminder = self._prompts.reminder.replace("{reason}", verdict.reason)
            verdict = await self._ask(work, replace(prompt, user=f"{prompt.user}\n\n{reminder}"), room, "reminded")
        if isinstance(verdict, Invalid):
            self._summarizer.note_failure(work.target, "invalid")
            raise SummarizerError("invalid", verdict.reason)
        # A session's own prompt, which may be the source, holds more than transcripts do.
        return work.job.plan_input.allowed_text(verdict.text)

    async def _aligned_answer(self, work: _SharedWork, prompt: Prompt) -> Valid | Invalid | None:
        """Return the response at the end of the session's own prompt; None if that is not used or failed."""
        if (body := await self._aligned_question(work)) is None:
            return None
        verdict, of_form = None, False
        kind: Kind = "invalid"
        work.bill.asks_aligned = True  # a timeout leaves it set
        try:
            verdict = await self._ask_aligned(work, prompt, body)
        except SummarizerOverflowError:
            kind = "refused"
        except SummarizerError as error:
            if error.kind == "cooling_down":
                raise
            if error.kind == "transient":
                self._summarizer.note_failure(work.target, error.kind, is_aligned=True)
                raise
            kind, of_form = error.kind, isinstance(error, FormRefusedError)
        work.bill.asks_aligned = False
        if isinstance(verdict, Valid):
            self._summarizer.note_success(work.target, is_aligned=True)
        else:
            self._summarizer.note_failure(work.target, kind, is_aligned=True, of_form=of_form)
        return verdict

    async def _aligned_question(self, work: _SharedWork) -> bytes | None:
        """Return the session's prompt with the summary question at its end; None if not wanted or too long."""
        job = work.job
        is_wanted = job.is_aligned and job.policy.summarizer.cache_aligned and not job.rebuild
        if not is_wanted or self._summarizer.is_cooling_down(work.target, is_aligned=True):
            return None
        templates = self._templates(work)
        instruction = fill_aligned(templates, work.continuity, work.texts, work.length)
        if not await self._workers.run(_has_room, work, instruction):
            return None
        return await self._workers.run(_aligned_body, work, instruction)

    async def _ask_aligned(self, work: _SharedWork, prompt: Prompt, body: bytes) -> Valid | Invalid:
        target = work.target
        headers = for_questions(work.job.plan_input.route.headers, target.dialect.questions.HEADERS, is_aligned=True)
        answer = await self._summarizer.send(replace(target, headers=headers), body, work.deadline, is_aligned=True)
        # Unlike the transcript, the prompt has complete results.
        seen = replace(prompt, user=f"{prompt.user}\n{body.decode(errors='replace')}")
        return await self._judge_answer(work, seen, answer)

    def _templates(self, work: _SharedWork) -> Prompts:
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

    async def _ask(self, work: _SharedWork, prompt: Prompt, room: int, fine: CallResult = "ok") -> Valid | Invalid:
        answer = await self._summarizer.ask(work.target, prompt, room, work.deadline)
        return await self._judge_answer(work, prompt, answer, fine)

    async def _judge_answer(
        self, work: _SharedWork, prompt: Prompt, answer: SummaryAnswer, fine: CallResult = "ok"
    ) -> Valid | Invalid:
        verdict, used = await self._workers.run(self._validate, work, prompt, answer)
        self._summarizer.note_answer(work.target, answer, used, "invalid" if isinstance(verdict, Invalid) else fine)
        return verdict

    def _validate(self, work: _SharedWork, prompt: Prompt, answer: SummaryAnswer) -> tuple[Valid | Invalid, Tokens]:
        tokens = work.count(prompt.user)
        used = answer.usage or Tokens(tokens, work.count(answer.text[:100_000]))
        self._spending.add(work.job.plan_input.caller.tenant, used.prompt + used.output)
        verdict = validate(
            answer,
            source=prompt.user,
            source_tokens=tokens,
            cap=2 * work.longest,
            headings=work.texts.headings,
            count=work.count,
            target=prompt.target,
        )
        work.bill.add(used, verdict)
        return verdict, used


async def _side_by_side(calls: Sequence[Coroutine[None, None, Result]]) -> tuple[Result, ...]:
    """Return all results in order. The first error cancels the other calls and is raised unchanged."""
    tasks: list[asyncio.Task[Result]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks.extend(group.create_task(call) for call in calls)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return tuple(task.result() for task in tasks)


def _continuity(job: Job, room: int, count: CountTokens) -> Continuity:
    """Return the earlier summaries for the summarizer (R2's switches), and the newest statements that fit `room`."""
    settings = job.policy.summarizer
    statements = tuple(newest_within(ledger.numbered_lines(job.statements.entries), room, count))
    if job.parent is None:
        return Continuity(statements=statements)
    segments = job.parent.segments[-settings.history_segments :] if settings.history_segments else ()
    if not settings.insights:
        segments = tuple(Segment(segment.text) for segment in segments)
    return Continuity(None if job.rebuild else job.parent.summary, segments, statements)


def _aligned_body(work: _SharedWork, instruction: str) -> bytes | None:
    """Return the session's prompt up to the cut with an added instruction; None if it cannot be cached."""
    job = work.job
    request, conversation = job.plan_input.request, job.cooled.conversation
    if not may_be_cached(request.body, request.settings.model):
        return None
    items: Sequence[Item] = conversation.indexes
    if job.parent is not None and job.parent is not job.plan_input.carried:
        items = assemble(conversation, job.covered, job.parent.text, job.plan_input.experience.shape)
    end = conversation.index(job.plan.cut.position)
    upto = [item for item in items if isinstance(item, Injected | MergedMessage | UserWords | Rules) or item < end]
    body = request.dialect.rebuild(request.body, request.parsed, [*upto, Injected(instruction)], job.cooled.replaced)
    fields, limit = request.parsed.envelope.fields, (request.settings.output_key, _full_room(work))
    return request.dialect.questions.continuation(body, fields, limit, work.target.temperature)


def _has_room(work: _SharedWork, instruction: str) -> bool:
    """Return True if the window has room for the prompt up to the cut, the instruction and the response."""
    job, target = work.job, work.target
    conversation = job.cooled.conversation
    sent = tokens_with(conversation, active_checkpoint(job.parent)) - conversation.tokens_from[job.plan.cut.position]
    window = target.window or job.plan.budget.window
    return target.calibration * (sent + work.count(instruction)) + _full_room(work) <= _USED_WINDOW * window


def _full_room(work: _SharedWork) -> int:
    """Return the most tokens of the summarizer's response, in its own count.

    The requested length is in estimated ones.
    """
    answer = max(_LEAST_ANSWER, int(_SLACK * work.length * work.target.calibration))
    window = work.window or work.job.plan.budget.window
    # Reasoning besides the response must not take the room of the prompt.
    return min(work.target.dialect.questions.room(answer), max(answer, int(_THOUGHT_SHARE * window)))


def _answer_room(work: _SharedWork, tokens: int) -> int:
    """Return the tokens that the response may have after a prompt of `tokens`, in the summarizer's own count."""
    full, prompt, window = _full_room(work), int(work.target.calibration * tokens), work.window
    if not work.is_tight and (window is None or prompt + full <= _USED_WINDOW * window):
        return full
    return min(full, max(_SMALL_ANSWER, int(_ANSWER_SHARE * prompt)))


def _capacity(work: _SharedWork, window: int, around: int, calibration: float) -> int:
    """Return the tokens of transcript that fit one call, estimated. window: in the summarizer's own tokens."""
    usable = _USED_WINDOW * window
    prompt = int(max(usable - _full_room(work), usable / (1 + _ANSWER_SHARE)) / calibration)
    return max(_LEAST_CAPACITY, prompt - around)


def _content_tokens(call: Call, count: CountTokens) -> int:
    match call:
        case SummarizeCall():
            return sum(block.tokens for block in call.blocks)
        case MergeCall():
            return sum(map(count, call.texts))
