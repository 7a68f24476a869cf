"""Making a compaction item: a record of what is older, and word for word what the model needs to go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import structs

from policies.conversation.conversation import Conversation, Rooms
from policies.conversation.message import INSTRUCTION_ROLES
from policies.decision.budget import Budget, with_pins
from policies.decision.cut import Cut
from policies.decision.legal_cuts import legal_cuts
from policies.decision.oversize import limits_for
from policies.decision.plan import Compact, tokens_with
from policies.record import working_set
from policies.record.record import Record, Spent, text_with
from policies.statements import ledger
from proxy.compaction.checkpoints import Checkpoints
from proxy.compaction.compactor import Compactor
from proxy.compaction.job import Job
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.prompt import standing_of
from proxy.compaction.prompt_view import PromptView
from proxy.compaction.provider.expansion import Settled
from proxy.compaction.provider.sealed_items import VERSION, CompactionItem, ItemSealer, text_digest
from proxy.compaction.record_builder import RecordBuilder
from proxy.compaction.short_forms import ShortForms
from proxy.dialects.json_array import split_items
from proxy.sessions.lineages import Lineages

# What an item expands into, as a share of what asked for it beside its head: its client asks again as soon as its own
# window, which may be far below ours, is as full again. The parts of that: names and all else of a record, files of
# rules; what they leave is the tail's.
_SHARE = 1 / 4
_RECORD, _RULES = 0.5, 0.25
# What pinned texts may take beside that, as a share of the same: all together are less than what asked for it.
_PINS = 1 / 4
# Whatever else it weighs: a record of less has no room for what the user said.
_LEAST_RECORD, _LEAST_TAIL = 1_000, 200
# Of M, and tokens, that the tail takes at most.
_TAIL_SHARE, _MOST_TAIL = 0.1, 8_000
# Characters of an item, and how many for each token that it expands into, from which on names go.
_LONG, _PER_TOKEN = 21_000, 8
# Sessions that an item names: one for each generation, if a client begins anew behind each.
_MOST_PLACES = 16
# Characters of a client's own instructions for a summary.
_MOST_INSTRUCTIONS = 20_000


@dataclass(frozen=True, slots=True)
class MadeItem:
    """An item of ours. text: what can be read of it. tokens: that it expands into. spent: of the calls that were made
    for it."""

    item: CompactionItem
    text: str
    sealed: str
    tokens: int
    spent: Spent


@dataclass(frozen=True, slots=True)
class _Room:
    """Tokens that the parts of an item may take."""

    budget: Budget
    all: int
    tail: int


@dataclass(eq=False, repr=False)
class ItemMaker:
    """Makes items; one per process. `clock` tells Unix seconds."""

    _checkpoints: Checkpoints
    _compactor: Compactor
    _builder: RecordBuilder
    _short_forms: ShortForms
    _lineages: Lineages
    _items: ItemSealer
    _clock: Callable[[], float] = time.time

    def is_short_behind(self, case: PlanInput, record: Record) -> bool:
        """Whether all that stands behind a record fits into a tail."""
        room = _room_of(case)
        return _with_rooms(case.conversation, room).kept_tokens(record.covered) <= room.tail

    async def make(self, case: PlanInput, settled: Settled, instructions: str = "") -> MadeItem:
        """Return an item for the history of a request.

        instructions: for the summarizer, in place of the policy's own prompt; empty for none.
        """
        began = self._clock()
        if instructions:
            case = _with_instructions(case, instructions)
        standing = await self._checkpoints.newest(case)
        room = _room_of(case)
        view = PromptView(_with_rooms(case.conversation, room))
        record = await self._record(case, view, room, standing or case.carried)
        tail, anchors = await self._tail(case, view, record.covered, max(_LEAST_TAIL, room.all - record.text_tokens))
        text = self._readable(case, view, record, room)
        conversation = view.conversation
        told = [*conversation.indexes[: conversation.head_length]]
        told += [conversation.index(at) for at in conversation.covered_instructions(record.covered)]
        head = [
            bytes(case.request.message_bytes(at)) for at in told if conversation.messages[at].role in INSTRUCTION_ROLES
        ]
        item = CompactionItem(
            VERSION,
            case.request.dialect.name,
            began,
            record,
            _raws(head),
            _raws(tail),
            anchors,
            settled.covers,
            text_digest(text),
            (*settled.places, (case.chain.session, case.chain.own_link))[-_MOST_PLACES:],
        )
        tokens = record.text_tokens + sum(self._short_forms.tokens(case, raw) for raw in tail)
        sealed, item = self._seal_item(case, item, tokens)
        spent = record.making.spent if record.compacted >= began else Spent()
        return MadeItem(item, text, sealed, tokens, spent)

    async def _record(self, case: PlanInput, view: PromptView, room: _Room, parent: Record | None) -> Record:
        covered = parent.covered if parent else 0
        if parent is not None and view.conversation.kept_tokens(covered) <= room.tail:
            return parent
        cut = _cut_of(view.conversation, covered, room.tail)
        if cut is None and parent is not None:
            return parent
        now = tokens_with(case.conversation, standing_of(parent if parent is not case.carried else None))
        position = 0 if cut is None else cut
        chosen = Cut(position, "L1", "round-boundary", view.conversation.kept_tokens(position))
        plan = Compact(chosen, room.budget, standing_of(parent), True, "client", now)
        started, deadline = self._lineages.first_seen(case.chain.first_link), case.caller.policy.summarizer.timeout
        job = Job(case, view, plan, parent, case.summarizer if cut is not None else None, started, deadline)
        # Nothing is stored of an erased session, which has mode `off`. No other request can use a record of no message.
        is_published = cut is not None and case.mode != "off"
        return await (self._compactor.checkpoint(job) if is_published else self._builder.build(job))

    async def _tail(self, case: PlanInput, view: PromptView, covered: int, most: int) -> tuple[list[bytes], int]:
        """What is sent behind the record, each as it was written or cut to fit; and how many stood before the cut."""
        conversation, request = view.conversation, case.request
        before = _anchors(conversation, covered)
        positions = [*before, *range(covered, len(conversation.body))]
        weight = sum(conversation.body[at].tokens for at in positions)
        if weight > most:
            limits = limits_for(conversation, positions, most, request.harness_shares(positions))
            view = await self._short_forms.cut(case, view, limits)
        raws = []
        for at in positions:
            index = conversation.index(at)
            raw = bytes(view.replaced.get(index) or request.message_bytes(index))
            if at in before and conversation.body[at].results and at not in conversation.loading(covered):
                raw = request.dialect.items.words(raw)
            if conversation.body[at].signed == "bound":
                raw = request.dialect.rewritten(raw, request.dialect.items.without_thinking)
            raws.append(raw)
        # One by one: a message may be several items.
        first = [one for raw in raws[: len(before)] if raw for one in split_items(raw)]
        return [*first, *(one for raw in raws[len(before) :] if raw for one in split_items(raw))], len(first)

    def _readable(self, case: PlanInput, view: PromptView, record: Record, room: _Room) -> str:
        """The record's text with what the user says in the tail: some clients bring back nothing else of an item."""
        conversation, covered = view.conversation, record.covered
        told = case.utterances(covered, len(conversation.body))
        told = [replace(said, position=case.absolute(said.position)) for said in told]
        first = None if case.shift else conversation.first_spoken()
        newer = ledger.said_in(told, case.caller.policy.ledger.directives, first_user=first).entries
        beside = {*map(case.absolute, _anchors(conversation, covered)), *(entry.position for entry in newer)}
        said = [entry for entry in ledger.merge(record.entries, newer) if entry.position in beside]
        return text_with(record, said, room.all, self._short_forms.counter(case))

    def _seal_item(self, case: PlanInput, item: CompactionItem, tokens: int) -> tuple[str, CompactionItem]:
        """The item as it is sent. One that is long for what it expands into has fewer names to go on with, and fewer
        of the things that its record leaves out."""
        tenant = case.caller.tenant
        sealed = self._items.seal(tenant, item)
        names = working_set.unpack_names(item.record.uses)
        left_out = item.record.left_out
        while len(sealed) > max(_LONG, _PER_TOKEN * tokens) and (names or left_out):
            names = names[len(names) - len(names) // 2 :] if len(names) > 1 else []
            left_out = left_out[len(left_out) - len(left_out) // 2 :] if len(left_out) > 1 else ()
            record = structs.replace(item.record, uses=working_set.pack_names(names), left_out=left_out)
            item = structs.replace(item, record=record)
            sealed = self._items.seal(tenant, item)
        return sealed, item


def _with_instructions(case: PlanInput, instructions: str) -> PlanInput:
    """The case of a caller whose policy has this prompt."""
    policy = case.caller.policy
    summarizer = policy.summarizer.model_copy(update={"prompt": instructions[:_MOST_INSTRUCTIONS]})
    caller = replace(case.caller, policy=policy.model_copy(update={"summarizer": summarizer}))
    return structs.replace(case, caller=caller)


def _room_of(case: PlanInput) -> _Room:
    budget = case.limits.budget
    weight = case.conversation.tokens_from[0]
    most = max(min(_LEAST_RECORD, weight // 2) + _LEAST_TAIL, int(_SHARE * weight))
    injected = max(min(_LEAST_RECORD, weight // 2), int(_RECORD * most))
    record = min(budget.record, injected)
    budget = replace(budget, record=record, names=min(budget.names, injected - record), rules=int(_RULES * most))
    pins = min(case.pins_tokens, int(_PINS * weight))
    budget = with_pins(budget, pins, case.caller.policy.pins.budget_ratio)
    tail = min(most - injected, int(_TAIL_SHARE * budget.movable), _MOST_TAIL)
    return _Room(budget, most + budget.pins, max(_LEAST_TAIL, tail))


def _with_rooms(conversation: Conversation, room: _Room) -> Conversation:
    """The conversation, of which a record repeats what has room in a tail; files of rules are in the record."""
    half = room.tail // 2
    return conversation.with_rooms(Rooms(loading=half, task=half, rules=0, oversize=half))


def _cut_of(conversation: Conversation, covered: int, room: int) -> int | None:
    """The oldest cut behind which no more stays than has room, else the newest; None without any."""
    cuts = [cut for cut in legal_cuts(conversation) if cut > covered]
    fitting = (cut for cut in cuts if conversation.kept_tokens(cut) <= room)
    return next(fitting, cuts[-1] if cuts else None)


def _anchors(conversation: Conversation, covered: int) -> list[int]:
    """What is sent beside the record of what it covers."""
    return [*dict.fromkeys([*conversation.loading(covered), *conversation.repeated_messages(covered)])]


def _raws(items: Sequence[bytes]) -> tuple[msgspec.Raw, ...]:
    return tuple(map(msgspec.Raw, items))
