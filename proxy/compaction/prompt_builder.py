"""Building the prompt for a request: the client's bytes, or a rewritten copy of them."""

import time
from dataclasses import dataclass, replace

from msgspec import structs

from policies import numbers
from policies.decision import overflow_retries as ladder
from policies.decision.oversize import kept_positions, limits_for
from policies.decision.plan import Compact
from policies.record.record import Record
from policies.record.texts import texts_for
from proxy.compaction.checkpoints import Checkpoints
from proxy.compaction.compactor import Compactor
from proxy.compaction.job import Job
from proxy.compaction.media import media_left
from proxy.compaction.pins import PinFinder
from proxy.compaction.plan_input import Outcome, PlanInput, RoutedRequest
from proxy.compaction.planner import Bypass, Decision, Planner, bypass_reason, prompt_or_original, small_reason
from proxy.compaction.prompt import (
    Copy,
    Prompt,
    active_checkpoint,
    body_of,
    build_prompt,
    unsealed_prompt,
    untouched_prompt,
    with_output,
)
from proxy.compaction.prompt_view import PromptView
from proxy.compaction.record_builder import CompactionError
from proxy.compaction.shortener import Shortener
from proxy.dialects import bounds
from proxy.models.tokenizer import Tokenizer
from proxy.runtime.workers import Workers
from proxy.sessions.sessions import Sessions
from proxy.telemetry.events import Hook, note

# Reasons for sending a request unchanged.
_PLAIN = ("below_floor", "below_threshold", "unknown_window")


@dataclass(eq=False, repr=False)
class PromptBuilder:
    """Executes plans. One per engine. The builder of a read-only engine makes no record."""

    _planner: Planner
    _shortener: Shortener
    _read_only: "PromptBuilder | None"
    """The builder of the read-only engine, which plans in shadow mode. None in the read-only engine itself."""
    _checkpoints: Checkpoints
    _compactor: Compactor
    _sessions: Sessions
    _tokenizer: Tokenizer
    _workers: Workers
    _observe: Hook
    _pins: PinFinder

    @property
    def _is_read_only(self) -> bool:
        return self._read_only is None

    async def place(self, plan_input: PlanInput) -> PlanInput:
        """Return the plan input with the link of its session. The store is read only if the plan needs it."""
        if bypass_reason(plan_input) is not None:
            return plan_input
        if small_reason(plan_input) == "below_floor" and not plan_input.binds_thinking:
            return await self._pins.find(plan_input)
        return await self._place_case(plan_input)

    async def _place_case(self, plan_input: PlanInput) -> PlanInput:
        stores = not (self._is_read_only or plan_input.is_let_through)
        chain = await self._sessions.epochs.place(plan_input.chain, stores=stores)
        return await self._pins.find(
            plan_input if chain is plan_input.chain else structs.replace(plan_input, chain=chain)
        )

    def plain(self, routed: RoutedRequest) -> Prompt:
        """Return the prompt of a request that is sent unchanged (`RoutedRequest.is_plain`)."""
        self._sessions.lineages.first_seen(routed.chain.first_link)
        return untouched_prompt(routed.request, "none", "below_floor")

    async def decision(self, plan_input: PlanInput) -> Decision:
        """Return the plan for a request. In shadow mode nothing is stored."""
        if plan_input.mode == "shadow" and self._read_only is not None:
            return await self._read_only.decision(plan_input)
        return await self._planner.check_stability(plan_input, await self._planner.plan(plan_input))

    async def build_first(self, plan_input: PlanInput) -> Prompt:
        """Return the first prompt to send. Its output limit fits next to it if the window is known."""
        started = time.perf_counter()
        decision = await self.decision(plan_input)
        planned = time.perf_counter() - started
        if not isinstance(decision.plan, Bypass):
            self._sessions.lineages.first_seen(plan_input.chain.first_link)
        prompt = self.fit_output(plan_input, await self.build(plan_input, decision))
        return structs.replace(await self.with_pins(plan_input, prompt), planned=planned)

    async def with_pins(self, plan_input: PlanInput, prompt: Prompt) -> Prompt:
        """Return the prompt with the pinned texts that its body has."""
        is_original = prompt.copy is None and plan_input.carried is None
        return (
            prompt if is_original else structs.replace(prompt, pins=await self._pins.find_kept(plan_input, prompt.body))
        )

    async def place_and_build(self, plan_input: PlanInput) -> Prompt:
        """Return the prompt of a request without a link yet, as `build` does."""
        plan_input = await self.place(plan_input)
        return await self.build(plan_input, await self.decision(plan_input))

    async def build(self, plan_input: PlanInput, decision: Decision) -> Prompt:
        """Return the prompt of a plan, with the client's output limit.

        In shadow mode or in a read-only engine no compaction is made: the prompt uses only stored records.
        """
        plan = decision.plan
        if isinstance(plan, Compact):
            if not self._is_read_only and plan_input.mode != "shadow":
                return await self._compacted_prompt(plan_input, decision, plan)
        elif plan.reason == "irreducible" and plan_input.mode != "shadow":
            self._observe(note("irreducible", plan_input.caller.tenant, plan_input.chain.name))
        if len(plan_input.request.body) < bounds.MOST_SKIPPED or decision.view is None:
            return decision.standing_prompt(plan_input)
        # Joining such a large body would block the event loop.
        return await self._workers.run(decision.standing_prompt, plan_input)

    async def _compacted_prompt(self, plan_input: PlanInput, decision: Decision, plan: Compact) -> Prompt:
        """Return the prompt with a new record."""
        root = decision.unstable_root
        if root is not None:
            self._observe(note("unstable_history", plan_input.caller.tenant, plan_input.chain.name, root=root))
        prompt = prompt_or_original(plan_input, await self._compact(plan_input, decision, plan))
        return prompt if root is None else structs.replace(prompt, warning="unstable_history")

    async def retry(
        self, plan_input: PlanInput, refused: Prompt, stated: ladder.StatedLimit, *, attempt: int
    ) -> Prompt | None:
        """Return the next smaller prompt after an overflow; None without one (docs/design.md, "The ladder")."""
        route = plan_input.route
        if plan_input.is_let_through:
            return None
        window = route.window.tokens if route.window else None
        output = plan_input.reserved_output(stated.limit or window)
        budget = ladder.refused_budget(
            stated, sent_tokens=refused.tokens, window=window, max_output=output, exact=route.exact
        )
        if budget is None:
            return None
        calibration = plan_input.calibration
        room = ladder.stated_room(
            stated, sent_tokens=refused.tokens, max_output=output, exact=route.exact, calibration=calibration
        )
        plan_input = await self._place_case(plan_input)
        budget = replace(budget, pins=plan_input.pins_tokens)
        since = self._sessions.lineages.now()
        record = refused.record or await self._checkpoints.newest(plan_input)
        view = refused.view or await self._shortener.shorten(plan_input, record)
        retry_plan = ladder.next_rung(
            view.conversation,
            budget,
            plan_input.caller.policy,
            active_checkpoint(record),
            attempt=attempt,
            smallest_sent=refused.tokens,
            room=room,
        )
        waited = 0.0
        if retry_plan.cut is not None:
            with_model = retry_plan.with_model and stated.with_model
            standing = active_checkpoint(record)
            plan = Compact(
                retry_plan.cut, retry_plan.budget, standing, True, "overflow_retry", refused.tokens, with_model
            )
            started = time.perf_counter()
            record = await self._compactor.checkpoint(self.job(plan_input, view, plan, record))
            waited = time.perf_counter() - started
            if plan_input.binds_thinking:
                view = await self._shortener.shorten(plan_input, record)
            else:
                view = await self._shortener.resolve(plan_input, record, view)
        outcome = _outcome_after_record(record, since, refused)
        prompt = build_prompt(plan_input, view, record, outcome, "overflow_retry", retry_plan.most)
        prompt = structs.replace(prompt, waited=waited)
        if retry_plan.tail_tokens is not None:
            prompt = await self._cut_contents(plan_input, view, prompt, record, retry_plan)
        prompt = self.fit_output(plan_input, prompt, stated.limit if stated.kind in (None, "window") else None)
        return await self.with_pins(plan_input, prompt) if prompt.tokens <= retry_plan.most else None

    async def without_thinking(self, plan_input: PlanInput, refused: Prompt) -> Prompt | None:
        """Return a prompt that was rejected for bound thinking, without any thinking.

        None if no prompt of the session was ever rewritten. Then the client's own request was rejected, and the client
        gets the error.
        """
        if plan_input.is_let_through or not any(message.signed == "bound" for message in plan_input.conversation.body):
            return None
        plan_input = await self._place_case(plan_input)
        record = refused.record
        if refused.copy is None and await self._checkpoints.newest(plan_input) is None:
            return None
        prompt = build_prompt(
            plan_input, await self._shortener.remove_thinking(plan_input, record), record, "applied", refused.reason
        )
        prompt = structs.replace(prompt, max_output=None, warning="thinking_removed")
        return await self.with_pins(plan_input, prompt)

    async def without_sealed(self, routed: RoutedRequest, prompt: Prompt) -> Prompt | None:
        """Return the prompt without sealed reasoning; None if it has none or may not be changed."""
        return None if routed.is_let_through else await self._workers.run(unsealed_prompt, routed, prompt)

    async def with_fewer_media(self, plan_input: PlanInput, refused: Prompt) -> Prompt | None:
        """Return the rejected prompt within the media limits of the plan input; None if it has no fewer media."""
        if plan_input.is_let_through or not plan_input.ages_media:
            return None
        plan_input, record = await self.place(plan_input), refused.record
        if record is None and small_reason(plan_input) is not None:
            view = await self._shortener.shorten_small(plan_input) or PromptView(plan_input.conversation)
        else:
            view = await self._shortener.shorten(plan_input, record)
        outcome: Outcome = "cooled" if record is None else refused.outcome
        prompt = build_prompt(plan_input, view, record, outcome, "media_shed")
        is_smaller = len(media_left(prompt, view.media)) < len(media_left(refused, view.media))
        return self.fit_output(plan_input, await self.with_pins(plan_input, prompt)) if is_smaller else None

    def fit_output(self, plan_input: PlanInput, prompt: Prompt, stated: int | None = None) -> Prompt:
        """Return the prompt with a lower output limit if prompt and output together exceed the window.

        stated: the window that the upstream has just named.
        """
        stated_before = (
            plan_input.route.window.tokens if plan_input.route.window and plan_input.may_lower_output else None
        )
        window, limit = stated or stated_before, plan_input.request.settings.max_output
        if window is None or limit is None or plan_input.real_tokens(prompt.tokens) + limit <= window:
            return prompt
        return self.with_less_output(plan_input, prompt, ladder.StatedLimit(window)) or prompt

    def with_less_output(self, plan_input: PlanInput, refused: Prompt, stated: ladder.StatedLimit) -> Prompt | None:
        """Return the prompt with less room for the output; None if that does not make it fit."""
        request, window = plan_input.request, plan_input.route.window
        if plan_input.is_let_through:
            return None
        room = ladder.lowered_output(
            stated,
            sent_tokens=plan_input.real_tokens(refused.tokens),
            window=window.tokens if window else None,
            max_output=refused.max_output or request.settings.max_output,
            floor=plan_input.output_floor,
            margin=numbers.EXACT_MARGIN if plan_input.route.exact else numbers.ESTIMATE_MARGIN,
        )
        return None if room is None else _with_output(plan_input, refused, room)

    def with_capped_output(self, plan_input: PlanInput, refused: Prompt, most: int) -> Prompt | None:
        """Return the prompt with the upstream's highest output limit; None if something else was rejected."""
        if plan_input.is_let_through:
            return None
        room = ladder.capped_output(
            most, max_output=plan_input.request.settings.max_output, floor=plan_input.output_floor
        )
        return None if room is None else _with_output(plan_input, refused, room)

    async def halve(self, plan_input: PlanInput, refused: Prompt) -> Prompt | None:
        """Return the rejected prompt with a note in place of its older half, used if no record can be made (R1).

        None if there is no cut, or if the prompt gets hardly smaller.
        """
        record = refused.record
        if plan_input.is_let_through:
            return None
        view = refused.view.without_references if refused.view else None
        conversation = view.conversation if view else plan_input.conversation
        covered = record.covered if record else 0
        half = conversation.kept_tokens(covered) // 2
        cut = next((c for c in plan_input.cuts if c > covered and conversation.kept_tokens(c) <= half), None)
        if cut is None:
            return None
        text = _note(record, cut - covered)
        copy = Copy(cut, text, view.replaced if view else {})
        note_tokens = self._tokenizer.count(text, plan_input.request.encoding)
        tokens = conversation.fixed_tokens + conversation.kept_tokens(cut) + note_tokens
        if tokens > numbers.RETRY_SHRINKS * refused.tokens:
            return None
        prompt = Prompt(
            body_of(plan_input, copy, plan_input.experience.shape), tokens, "applied", "halved", None, view, copy
        )
        return await self.with_pins(plan_input, prompt)

    async def _compact(self, plan_input: PlanInput, decision: Decision, plan: Compact) -> Prompt:
        """Return the request with a record that is made now, here or by another request."""
        record, view = decision.record, decision.cooled
        job = self.job(plan_input, view, plan, record)
        started, since = time.perf_counter(), self._sessions.lineages.now()
        try:
            new_record = await self._compactor.checkpoint(job)
        except CompactionError as error:
            prompt = build_prompt(plan_input, view, record, _outcome_after_failure(error, decision), str(error))
            return structs.replace(prompt, waited=time.perf_counter() - started)
        waited = time.perf_counter() - started
        outcome = _outcome_after_record(new_record, since)
        prompt = build_prompt(
            plan_input, await self._shortener.shorten(plan_input, new_record), new_record, outcome, plan.trigger
        )
        prompt = structs.replace(prompt, waited=waited)
        if new_record.covered >= plan.cut.position or not _is_too_large(plan_input, prompt):
            return prompt
        # The record was made for a shorter request. The messages since then need another one that continues it.
        decision = await self._planner.plan(plan_input)
        if (
            not isinstance(decision.plan, Compact)
            or decision.record is None
            or decision.record.covered < new_record.covered
        ):
            return prompt
        with_model = plan.with_model and decision.plan.with_model
        longer = await self._compact(plan_input, decision, replace(decision.plan, with_model=with_model))
        return structs.replace(longer, waited=waited + longer.waited)

    def job(self, plan_input: PlanInput, view: PromptView, plan: Compact, record: Record | None) -> Job:
        """Return the compaction that a plan asks for, after this record."""
        target = plan_input.summarizer if plan.with_model else None
        started = self._sessions.lineages.first_seen(plan_input.chain.first_link)
        return Job(
            plan_input,
            view,
            plan,
            record or plan_input.carried,
            target,
            started,
            plan_input.caller.policy.summarizer.timeout,
        )

    async def _cut_contents(
        self, plan_input: PlanInput, view: PromptView, prompt: Prompt, record: Record | None, retry_plan: ladder.Rung
    ) -> Prompt:
        """Return the prompt with its largest contents cut, so that its tail has `retry_plan.tail_tokens`."""
        covered, view = record.covered if record else 0, view.without_references
        assert retry_plan.tail_tokens is not None  # noqa: S101 - the caller's condition
        positions = kept_positions(view.conversation, covered)
        limits = limits_for(
            view.conversation, positions, retry_plan.tail_tokens, plan_input.request.harness_shares(positions)
        )
        shorter = await self._shortener.cut(plan_input, record, view, limits)
        cut = build_prompt(plan_input, shorter, record, prompt.outcome, prompt.reason)
        return structs.replace(cut, view=view, waited=prompt.waited)


def _outcome_after_record(record: Record | None, since: float, refused: Prompt | None = None) -> Outcome:
    """Return `applied` if the record was made for this request or for its rejected prompt; else `reused`.

    since: the time when the request began to wait, in the record's clock.
    """
    if record is None or record.compacted >= since:
        return "applied"
    is_refused = refused is not None and refused.record is not None and refused.record.digest == record.digest
    return "applied" if refused is not None and is_refused and refused.outcome == "applied" else "reused"


def _with_output(plan_input: PlanInput, refused: Prompt, room: int) -> Prompt:
    is_plain = refused.copy is None and refused.reason in _PLAIN
    reason = "output_lowered" if is_plain else refused.reason
    return structs.replace(refused, body=with_output(plan_input, refused.body, room), reason=reason, max_output=room)


def _is_too_large(plan_input: PlanInput, prompt: Prompt) -> bool:
    """Return True if a prompt reaches `overflow_threshold`, from which a compaction must succeed."""
    real = plan_input.limits.real
    return real is not None and prompt.tokens >= real.at(plan_input.caller.policy.overflow_threshold)


def _note(record: Record | None, messages: int) -> str:
    texts = texts_for(record.language if record else "en")
    note = texts.left_out.format(messages=messages)
    if record is None:
        return f"{texts.opening}\n\n{note}\n{texts.closing}"
    return f"{record.text.removesuffix(texts.closing)}\n{note}\n{texts.closing}"


def _outcome_after_failure(error: CompactionError, decision: Decision) -> Outcome:
    standing = decision.standing_outcome
    outcomes: dict[str, Outcome] = {"pending": "pending", "no_gain": standing, "over_budget": standing}
    return outcomes.get(str(error), "failed-open")
