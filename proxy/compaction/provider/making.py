"""Making a compaction item: a record of older messages, and the newest messages word for word."""

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
from proxy.compaction.prompt import active_checkpoint
from proxy.compaction.prompt_view import PromptView
from proxy.compaction.provider.expansion import Settled
from proxy.compaction.provider.sealed_items import VERSION, CompactionItem, ItemSealer, text_digest
from proxy.compaction.record_builder import RecordBuilder
from proxy.compaction.short_forms import ShortForms
from proxy.dialects.json_array import split_items
from proxy.sessions.lineages import Lineages

# Tokens of an expanded item, as a share of the request's without its head. The client asks again when its own window,
# which may be far smaller than the proxy's, is as full again. Of these tokens, names and the rest of a record take
# `_RECORD`, and files of rules `_RULES`. The tail takes the rest.
_SHARE = 1 / 4
_RECORD, _RULES = 0.5, 0.25
# Share of the same tokens for pinned texts, in addition. All together are less than the request's.
_PINS = 1 / 4
# Least tokens. A smaller record has no room for the user's words.
_LEAST_RECORD, _LEAST_TAIL = 1_000, 200
# The most tokens of the tail, as a share of M and as a number.
_TAIL_SHARE, _MOST_TAIL = 0.1, 8_000
# An item longer than this many characters, and than so many for each expanded token, loses names.
_LONG, _PER_TOKEN = 21_000, 8
# The most sessions that an item names: one for each generation, if a client starts a session after each.
_MOST_PLACES = 16
# The most characters of a client's own instructions for a summary.
_MOST_INSTRUCTIONS = 20_000


@dataclass(frozen=True, slots=True)
class MadeItem:
    """A compaction item of the proxy.

    text:   its readable text.
    tokens: those it expands into.
    spent:  tokens and cost of the calls made for it.
    """

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
    """Makes items. One per process. `clock` returns Unix seconds."""

    _checkpoints: Checkpoints
    _compactor: Compactor
    _builder: RecordBuilder
    _short_forms: ShortForms
    _lineages: Lineages
    _items: ItemSealer
    _clock: Callable[[], float] = time.time

    def fits_in_tail(self, plan_input: PlanInput, record: Record) -> bool:
        """Return True if all messages after a record fit into a tail."""
        room = _room_of(plan_input)
        return _with_rooms(plan_input.conversation, room).kept_tokens(record.covered) <= room.tail

    async def make(self, plan_input: PlanInput, settled: Settled, instructions: str = "") -> MadeItem:
        """Return an item for the history of a request.

        instructions: replace the policy's own prompt for the summarizer; empty for none.
        """
        started = self._clock()
        if instructions:
            plan_input = _with_instructions(plan_input, instructions)
        standing = await self._checkpoints.newest(plan_input)
        room = _room_of(plan_input)
        view = PromptView(_with_rooms(plan_input.conversation, room))
        record = await self._record(plan_input, view, room, standing or plan_input.carried)
        tail, anchors = await self._tail(
            plan_input, view, record.covered, max(_LEAST_TAIL, room.all - record.text_tokens)
        )
        text = self._readable(plan_input, view, record, room)
        conversation = view.conversation
        indexes = [*conversation.indexes[: conversation.head_length]]
        indexes += [conversation.index(at) for at in conversation.covered_instructions(record.covered)]
        head = [
            bytes(plan_input.request.message_bytes(at))
            for at in indexes
            if conversation.messages[at].role in INSTRUCTION_ROLES
        ]
        item = CompactionItem(
            VERSION,
            plan_input.request.dialect.name,
            started,
            record,
            _raws(head),
            _raws(tail),
            anchors,
            settled.covers,
            text_digest(text),
            (*settled.places, (plan_input.chain.session, plan_input.chain.own_link))[-_MOST_PLACES:],
        )
        tokens = record.text_tokens + sum(self._short_forms.tokens(plan_input, raw) for raw in tail)
        sealed, item = self._seal_item(plan_input, item, tokens)
        spent = record.making.spent if record.compacted >= started else Spent()
        return MadeItem(item, text, sealed, tokens, spent)

    async def _record(self, plan_input: PlanInput, view: PromptView, room: _Room, parent: Record | None) -> Record:
        covered = parent.covered if parent else 0
        if parent is not None and view.conversation.kept_tokens(covered) <= room.tail:
            return parent
        cut = _cut_of(view.conversation, covered, room.tail)
        if cut is None and parent is not None:
            return parent
        tokens = tokens_with(
            plan_input.conversation, active_checkpoint(parent if parent is not plan_input.carried else None)
        )
        position = 0 if cut is None else cut
        cut_made = Cut(position, "L1", "round-boundary", view.conversation.kept_tokens(position))
        plan = Compact(cut_made, room.budget, active_checkpoint(parent), True, "client", tokens)
        started, deadline = (
            self._lineages.first_seen(plan_input.chain.first_link),
            plan_input.caller.policy.summarizer.timeout,
        )
        job = Job(plan_input, view, plan, parent, plan_input.summarizer if cut is not None else None, started, deadline)
        # Nothing of an erased session is stored (it has mode `off`). No other request can use an empty record.
        is_published = cut is not None and plan_input.mode != "off"
        return await (self._compactor.checkpoint(job) if is_published else self._builder.build(job))

    async def _tail(self, plan_input: PlanInput, view: PromptView, covered: int, most: int) -> tuple[list[bytes], int]:
        """Return the messages after the record, unchanged or cut to fit, and how many of them were before the cut."""
        conversation, request = view.conversation, plan_input.request
        anchors = _anchors(conversation, covered)
        positions = [*anchors, *range(covered, len(conversation.body))]
        weight = sum(conversation.body[position].tokens for position in positions)
        if weight > most:
            limits = limits_for(conversation, positions, most, request.harness_shares(positions))
            view = await self._short_forms.cut(plan_input, view, limits)
        raws = []
        for position in positions:
            index = conversation.index(position)
            raw = bytes(view.replaced.get(index) or request.message_bytes(index))
            if (
                position in anchors
                and conversation.body[position].results
                and position not in conversation.loading(covered)
            ):
                raw = request.dialect.items.words(raw)
            if conversation.body[position].signed == "bound":
                raw = request.dialect.rewrite_items(raw, request.dialect.items.without_thinking)
            raws.append(raw)
        # Each item separately: a message may have several.
        anchor_items = [item for raw in raws[: len(anchors)] if raw for item in split_items(raw)]
        return [*anchor_items, *(item for raw in raws[len(anchors) :] if raw for item in split_items(raw))], len(
            anchor_items
        )

    def _readable(self, plan_input: PlanInput, view: PromptView, record: Record, room: _Room) -> str:
        """Return the record's text with the user's words in the tail.

        Some clients send back nothing else of an item.
        """
        conversation, covered = view.conversation, record.covered
        utterances = plan_input.utterances(covered, len(conversation.body))
        utterances = [replace(entries, position=plan_input.absolute(entries.position)) for entries in utterances]
        first_user = None if plan_input.shift else conversation.first_spoken()
        newer = ledger.said_in(utterances, plan_input.caller.policy.ledger.directives, first_user=first_user).entries
        positions = {*map(plan_input.absolute, _anchors(conversation, covered)), *(entry.position for entry in newer)}
        entries = [entry for entry in ledger.merge(record.entries, newer) if entry.position in positions]
        return text_with(record, entries, room.all, self._short_forms.counter(plan_input))

    def _seal_item(self, plan_input: PlanInput, item: CompactionItem, tokens: int) -> tuple[str, CompactionItem]:
        """Return the sealed item. An item that is long for its expanded tokens loses names and left-out texts."""
        tenant = plan_input.caller.tenant
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


def _with_instructions(plan_input: PlanInput, instructions: str) -> PlanInput:
    """Return the plan input of a caller whose policy has these instructions."""
    policy = plan_input.caller.policy
    summarizer = policy.summarizer.model_copy(update={"prompt": instructions[:_MOST_INSTRUCTIONS]})
    caller = replace(plan_input.caller, policy=policy.model_copy(update={"summarizer": summarizer}))
    return structs.replace(plan_input, caller=caller)


def _room_of(plan_input: PlanInput) -> _Room:
    budget = plan_input.limits.budget
    weight = plan_input.conversation.tokens_from[0]
    most = max(min(_LEAST_RECORD, weight // 2) + _LEAST_TAIL, int(_SHARE * weight))
    injected = max(min(_LEAST_RECORD, weight // 2), int(_RECORD * most))
    record = min(budget.record, injected)
    budget = replace(budget, record=record, names=min(budget.names, injected - record), rules=int(_RULES * most))
    pins = min(plan_input.pins_tokens, int(_PINS * weight))
    budget = with_pins(budget, pins, plan_input.caller.policy.pins.budget_ratio)
    tail = min(most - injected, int(_TAIL_SHARE * budget.movable), _MOST_TAIL)
    return _Room(budget, most + budget.pins, max(_LEAST_TAIL, tail))


def _with_rooms(conversation: Conversation, room: _Room) -> Conversation:
    """Return the conversation with the shares of a tail for repeated messages. Files of rules are in the record."""
    half = room.tail // 2
    return conversation.with_rooms(Rooms(loading=half, task=half, rules=0, oversize=half))


def _cut_of(conversation: Conversation, covered: int, room: int) -> int | None:
    """Return the oldest cut after which the messages fit into the room, else the newest; None without any."""
    cuts = [cut for cut in legal_cuts(conversation) if cut > covered]
    fitting = (cut for cut in cuts if conversation.kept_tokens(cut) <= room)
    return next(fitting, cuts[-1] if cuts else None)


def _anchors(conversation: Conversation, covered: int) -> list[int]:
    """Return the positions of covered messages that are sent next to the record."""
    return [*dict.fromkeys([*conversation.loading(covered), *conversation.repeated_messages(covered)])]


def _raws(items: Sequence[bytes]) -> tuple[msgspec.Raw, ...]:
    return tuple(map(msgspec.Raw, items))
