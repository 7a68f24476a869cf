"""A compaction of a plan, and the messages that its record is made from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cache
from typing import ClassVar

from msgspec import structs

from policies.cached import cached_property
from policies.conversation.message import INSTRUCTION_ROLES
from policies.conversation.transcript import CountTokens, Utterance
from policies.decision.plan import AHEAD, Compact, most_names
from policies.record import record as records
from policies.record.names import NamesOf, names_in
from policies.record.pins import SeparatePositions, SpanPins, carried_text, is_sent_separately
from policies.record.record import Record, RecordContext, Span, Statements
from policies.record.rules import FileReadBy, file_read_by
from policies.settings import PolicySettings
from policies.tool_calls.calls import Judge, judge_call
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.prompt_view import PromptView
from proxy.upstreams.routes import SummaryTarget


@dataclass(frozen=True)
class Job:
    """A compaction of a plan.

    plan_input:            the request with its lessons.
    cooled:                the conversation as it is sent.
    parent:                the record that this one continues: the one in use, else the one that the client carries.
    target:                the model that summarizes; None for a record without a model.
    started:               the time when the conversation was first seen, in Unix seconds.
    deadline:              the seconds that all calls together may take.
    rebuild:               True if the whole history is summarized anew instead of continuing the parent's summary.
    names, judge, read_by: cached names in texts, outcomes of calls, and files that calls read.
    counted:               cached tokens of texts.
    JOIN_WAIT:             the seconds that a request which still fits waits for a record of another request.
    """

    JOIN_WAIT: ClassVar[float] = 2.0

    plan_input: PlanInput
    cooled: PromptView
    plan: Compact
    parent: Record | None
    target: SummaryTarget | None
    started: float
    deadline: float
    rebuild: bool = False
    names: NamesOf = field(default_factory=lambda: cache(names_in), compare=False)
    judge: Judge = field(default_factory=lambda: cache(judge_call), compare=False)
    read_by: FileReadBy = field(default_factory=lambda: cache(file_read_by), compare=False)
    counted: dict[str, int] = field(default_factory=dict, compare=False)

    @property
    def policy(self) -> PolicySettings:
        """Return the policy of the caller."""
        return self.plan_input.caller.policy

    @property
    def join_timeout(self) -> float:
        """Return the seconds that the request may wait for a record of another request."""
        return self.deadline if self.plan.must else self.JOIN_WAIT

    @property
    def most_names(self) -> int:
        """Return the tokens that the working set may take of the room left by the rest of the record."""
        budget = self.plan.budget
        return budget.names if self.plan.trigger in AHEAD else most_names(budget, self.policy)

    @property
    def covered(self) -> int:
        """Return the number of messages that the parent covers."""
        return self.parent.covered if self.parent else 0

    @property
    def digest(self) -> bytes:
        """Return the digest of the prefix that the record will cover."""
        return self.plan_input.chain.digests[self.plan.cut.position]

    @property
    def is_aligned(self) -> bool:
        """Return True if the request's own model summarizes, so that its cache holds the prompt."""
        plan_input, target = self.plan_input, self.target
        return target is not None and (target.name, target.model) == (
            plan_input.route.name,
            plan_input.request.settings.model,
        )

    @cached_property
    def span(self) -> Span:
        """Return the newly covered messages, decoded once. Instructions among them are sent unchanged."""
        digests, cut, conversation = self.plan_input.chain.digests, self.plan.cut.position, self.cooled.conversation
        ruled = conversation.rules(cut)
        return Span(
            utterances=self._utterances(self.covered),
            cut=self.plan.cut,
            digest=digests[cut].hex(),
            first_digest=digests[min(self.covered + 1, cut)].hex(),
            last_digest=digests[cut].hex(),
            first_user=self._first_user,
            repeated=self._anchors(cut),
            ruled=[self.plan_input.absolute(at) for at in ruled],
            rules_sent=sum(conversation.body[i].rule_tokens for i in ruled),
            request=self._request(cut),
            pins=self._pins(cut),
        )

    @cached_property
    def source(self) -> tuple[Utterance, ...]:
        """Return the utterances that the summarizer reads: the span, or the whole history."""
        return self._utterances(0) if self.rebuild else self.span.utterances

    @cached_property
    def statements(self) -> Statements:
        """Return the statements of the span."""
        return records.statements_of(self.span, self.parent, self.policy.ledger)

    @property
    def kept_texts(self) -> list[str]:
        """Return the texts and calls of the messages that are sent next to the record."""
        plan_input, cut = self.plan_input, self.plan.cut.position
        utterances = [
            utterance
            for at in self.cooled.conversation.repeated_messages(cut)
            for utterance in plan_input.utterances(at, at + 1)
        ]
        utterances += plan_input.utterances(cut, len(plan_input.conversation.body))
        return [
            text for utterance in utterances for text in (utterance.text, *(call.arguments for call in utterance.calls))
        ]

    def context(self, count: CountTokens) -> RecordContext:
        """Return the inputs that the record is built from."""
        return RecordContext(
            span=self.span,
            parent=self.parent,
            statements=self.statements,
            budget=self.plan.budget,
            settings=self.policy.ledger,
            segments=self.policy.summarizer.history_segments,
            count=count,
            kept=self.kept_texts,
            most_names=self.most_names,
            names=self.names,
            judge=self.judge,
            read_by=self.read_by,
        )

    def _request(self, cut: int) -> int | None:
        """Return the position of the message with which the newest covered request begins; None if there is none."""
        openers = self.cooled.conversation.outline.openers
        at = bisect_left(openers, cut)
        return self.plan_input.absolute(openers[at - 1]) if at else None

    def _utterances(self, start: int) -> tuple[Utterance, ...]:
        utterances = self.plan_input.utterances(start, self.plan.cut.position, answered=True)
        if not self.cooled.conversation.instructions_covered:
            utterances = [u for u in utterances if u.role not in INSTRUCTION_ROLES]
        if not self.plan_input.shift:
            return tuple(utterances)
        return tuple(replace(u, position=self.plan_input.absolute(u.position)) for u in utterances)

    def _pins(self, cut: int) -> SpanPins:
        """Return the pins of the covered messages, without secrets unless the policy keeps them."""
        plan_input = self.plan_input
        # The tail of an item may be cut, and the client has no other copy.
        is_item = self.plan.trigger == "client"
        pins = [pin for pin in plan_input.pinned.pins if is_item or pin.position < plan_input.absolute(cut)]
        allowed = [
            structs.replace(
                pin, source=plan_input.allowed_text(pin.source), text=carried_text(plan_input.allowed_text(pin.text))
            )
            for pin in pins
        ]
        carried_covered = plan_input.carried.covered if plan_input.carried else 0
        separate = SeparatePositions(
            *(self._absolute_from(carried_covered, positions) for positions in self._separate_positions(cut))
        )
        sent = [is_sent_separately(pin, separate) for pin in pins]
        return SpanPins(
            tuple(pin for pin, is_sent in zip(allowed, sent, strict=True) if not is_sent),
            tuple(pin for pin, is_sent in zip(allowed, sent, strict=True) if is_sent),
        )

    def _separate_positions(self, cut: int) -> SeparatePositions:
        """Return the positions of covered messages that are partly sent next to the record."""
        conversation = self.cooled.conversation
        whole_messages = {*conversation.loading(cut), *conversation.covered_instructions(cut)}
        words = {*conversation.repeated_messages(cut)}
        rules = {*conversation.rules(cut), *(at for at in words if not conversation.body[at].results)}
        return SeparatePositions(frozenset(whole_messages), frozenset(words), frozenset(rules))

    def _absolute_from(self, least: int, positions: Collection[int]) -> frozenset[int]:
        return frozenset(self.plan_input.absolute(at) for at in positions if at >= least)

    def _anchors(self, cut: int) -> list[int]:
        """Return the anchors, which the record leaves out. Those that a carried record covers are unknown."""
        plan_input, positions = self.plan_input, self.cooled.conversation.anchors(cut)
        if plan_input.carried is None:
            return positions
        return [plan_input.absolute(at) for at in positions if at >= plan_input.carried.covered]

    @property
    def _first_user(self) -> int | None:
        """Return the position of the message with the task; None if the request no longer has it."""
        return None if self.plan_input.shift else self.cooled.conversation.first_spoken()
