"""What would be done with one request, and why: nothing is sent anywhere, and nothing is written to the store."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from policies.conversation import Conversation, MessageIndex
from policies.half_window import Cut
from policies.ledger import ledger
from policies.ledger.entries import Entry
from policies.message import INSTRUCTION_ROLES
from policies.plan import Compact, Forward, Reuse
from policies.record import working_set
from policies.record.actions import file_changes, key_actions
from policies.record.record import Record, RoundCounts
from policies.trail import left_out
from policies.transcript import CountTokens
from proxy.dialects.reader import CountedRequest
from proxy.engine import explanation
from proxy.engine.case import Case
from proxy.engine.cooler import Cooler
from proxy.engine.decider import Decider, Decision, bypass_reason
from proxy.engine.draft import Draft, untouched
from proxy.engine.job import Job
from proxy.engine.quoter import Quoter
from proxy.engine.standing import StandingRecords
from proxy.engine.thinking import Thinking
from proxy.engine.trails import Trails
from proxy.memory import Cache, Memory
from proxy.models.tokenizer import Tokenizer
from proxy.records.checkpoints import Checkpoints
from proxy.records.erasures import Erasures
from proxy.records.lineages import Lineages
from proxy.records.siblings import Siblings
from proxy.runtime.workers import Workers
from proxy.stores.base import Store
from proxy.stores.sealing import Sealer

# Why a message is sent as it is, by the reason of a request that goes on without a new record.
# For what is looked at only, as when tokens are counted: a part of what serves requests.
_REMEMBERED_BYTES = 8 * 1024 * 1024
_AS_IT_CAME = {
    "several_choices": "n > 1: relayed as it came",
    "unknown_shape": "its shape is not understood: relayed as it came",
    "previous_response_id": "the upstream holds the history: relayed as it came",
    "conversation": "the upstream holds the history: relayed as it came",
    "stored_items": "only the provider has what would be summarised: relayed as it came",
    "provider_compaction": "the provider is asked to compact it: relayed as it came",
    "provider_context_management": "the provider shortens it: compacted after an overflow only",
    "bound_body": "it counts on the bytes sent before: relayed as it came",
    "refused": "a copy was refused there lately: sent as it came",
    "below_floor": "the request is small: sent as it came",
    "below_threshold": "the request fits",
    "unknown_window": "the model's window is unknown: sent as it came",
    "nothing_to_compact": "there is no place to cut",
    "gain_too_small": "a summary would free too little",
    "irreducible": "what must stay fills the window alone: no summary helps",
    "ineffective": "the last summaries did not help: none is made for now",
    "no_gain": "the checkpoint weighs more than what it covers",
    "separator": "behind the separator",
}
_NEWEST = {
    "turn-boundary": "newest half of the window",
    "round-boundary": "newest rounds that fit the target",
    "best-effort": "the least that must stay",
}
_OLDER = {
    "turn-boundary": "older half of the window",
    "round-boundary": "older than the rounds that fit the target",
    "best-effort": "older than the least that must stay",
}


class LookOnly:
    """A store that is read and never written; itself a `Store`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        return await self._store.get_many(keys)

    async def put_new(self, key: str, value: bytes, ttl: float) -> bytes | None:
        """As if it were stored."""

    async def put(self, key: str, value: bytes, ttl: float) -> None: ...

    async def erase(self, _tag: str, _mark: bytes, _ttl: float) -> bytes | None:
        """Nothing is."""

    async def enroll(self, index: str, member: str, ttl: float) -> None: ...

    async def members(self, index: str) -> list[str] | None:
        return await self._store.members(index)

    async def strike(self, index: str, member: str) -> None: ...

    async def touch(self, keys: Sequence[str], ttl: float) -> None: ...

    async def acquire(self, _key: str, _token: str, _ttl: float) -> bool:
        return True

    async def release(self, key: str, token: str) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What would be sent. covered: messages that a record stands for; record_tokens: what that weighs."""

    draft: Draft
    decision: Decision
    covered: int = 0
    record_tokens: int | None = None

    @property
    def plan(self) -> Compact | None:
        return self.decision.plan if isinstance(self.decision.plan, Compact) else None

    @property
    def record(self) -> Record | None:
        return self.decision.record


class Explainer:
    """Explains requests; one per process."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        erasures: Erasures,
        lineages: Lineages,
        sealer: Sealer,
        ttl: float,
        tokenizer: Tokenizer,
        workers: Workers,
        is_answered: Callable[[], bool],
    ) -> None:
        # Its own: what is only looked at must not count as done, nor push out what is.
        memory = Memory(_REMEMBERED_BYTES)
        self._store = LookOnly(checkpoints.store)
        looked_at = checkpoints.over(self._store)
        self._standing = StandingRecords(looked_at, Siblings(looked_at, erasures, sealer, ttl), is_answered)
        self._trails = Trails(looked_at, self._standing, erasures, sealer, ttl, memory)
        self._erasures = erasures
        self._lineages = lineages
        self._sealer = sealer
        self._ttl = ttl
        self._tokenizer = tokenizer
        self._workers = workers
        self._quoter = Quoter(tokenizer, workers, lambda _: None, Cache(memory, "quotations"), Cache(memory, "indexes"))

    async def explain(self, case: Case, received: CountedRequest) -> explanation.Explanation:
        """`received` is the request as it came; the case's may begin behind a separator."""
        case = await self._placed(case)
        live = replace(case, mode="on") if case.mode in ("off", "shadow") else case
        outlook = await _outlook(live, self._decider())
        count = partial(self._tokenizer.count, encoding=case.request.encoding)
        explained = await self._workers.run(_explanation, case, received, outlook, count)
        if outlook.record is None:
            return explained
        return msgspec.structs.replace(explained, lineage=await self._lineages.of(case.chain.tag, outlook.record))

    async def standing(self, case: Case) -> Draft:
        """What is sent for a request with what there is already."""
        case = await self._placed(case)
        decision = await self._decider().decide(case)
        if case.mode == "shadow" and decision.view is not None:
            return untouched(case.request, "shadow", decision.would)
        plan = decision.plan
        if isinstance(plan, Compact):
            plan = Forward("counted") if plan.standing is None else Reuse(plan.standing, "counted")
        return decision.standing_draft(case, plan)

    async def _placed(self, case: Case) -> Case:
        link = await self._erasures.link(case.chain.session)
        case = replace(case, chain=replace(case.chain, link=link))
        return case if bypass_reason(case) is not None else await self._trails.resumed(case)

    def _decider(self) -> Decider:
        """What is not frozen yet may look otherwise when it is: a cooler must not remember it."""
        cooler = Cooler(self._store, self._sealer, self._ttl, self._tokenizer, self._workers, Memory())
        thinking = Thinking(self._store, self._sealer, self._ttl, cooler, Memory())
        return Decider(self._standing, cooler, thinking, self._quoter, self._lineages)


async def _outlook(case: Case, decider: Decider) -> _Outlook:
    """What `Drafter.first` would come to, with an estimate of the record where one is to be made."""
    decision = await decider.decide(case)
    plan, record = decision.plan, decision.record
    if isinstance(plan, Compact):
        view = decision.cooled
        rest = view.conversation.fixed_tokens + plan.cut.kept
        record_tokens = min(plan.budget.injected, plan.tokens_before - rest)
        draft = Draft(b"", rest + record_tokens, "applied", plan.trigger, view=view)
        return _Outlook(draft, decision, plan.cut.position, record_tokens)
    draft = decision.standing_draft(case, plan)
    if draft.record is None or record is None:
        return _Outlook(draft, decision)
    return _Outlook(draft, decision, record.covered, record.text_tokens)


def _explanation(
    case: Case, received: CountedRequest, outlook: _Outlook, count: CountTokens
) -> explanation.Explanation:
    window, budget, policy = case.route.window, case.limits.budget, case.caller.policy
    expected = explanation.Verdict(outlook.draft.outcome, outlook.draft.reason)
    verdict = _verdict(case, outlook, expected)
    real = case.limits.real
    indexes = _indexes(case, received)
    pinned, actions, files = _carried(case, outlook, count)
    head = case.conversation.head_length
    return explanation.Explanation(
        model=case.request.settings.model,
        policy=case.caller.policy_name,
        outcome=verdict.outcome,
        reason=verdict.reason,
        dialect=case.request.dialect.name,
        would=None if verdict == expected else expected,
        window=None if window is None else explanation.Window(window.tokens, window.source),
        usable=budget.usable,
        thresholds=explanation.Thresholds(
            budget.at(policy.apply_floor),
            budget.at(policy.soft_threshold),
            budget.at(policy.compaction_threshold),
            None if real is None else real.at(policy.overflow_threshold),
        ),
        tokens_received=case.request.received_tokens,
        tokens_sent=outlook.draft.tokens,
        tokens_tools=case.request.tools_tokens,
        record_tokens=outlook.record_tokens,
        cut=None if outlook.plan is None else _cut(outlook.plan.cut, indexes[head + outlook.plan.cut.position]),
        checkpoint=None if outlook.record is None else _checkpoint(outlook.record),
        messages=list(_messages(case, received, outlook, indexes)),
        recalled=list(_recalled(outlook, indexes)),
        pinned=[explanation.Pinned(entry.kind, _index(case, indexes, entry.position), entry.text) for entry in pinned],
        actions=actions,
        files=files,
    )


def _verdict(case: Case, outlook: _Outlook, expected: explanation.Verdict) -> explanation.Verdict:
    if (reason := bypass_reason(case)) is not None:
        return explanation.Verdict("bypass", reason)
    if case.mode == "shadow" and outlook.decision.view is not None:
        return explanation.Verdict("shadow", outlook.decision.would)
    return expected


def _indexes(case: Case, received: CountedRequest) -> list[int]:
    """Which message of the received request each of the case's is: behind a separator, instructions are all of the
    rest that stays."""
    first = len(received.messages) - len(case.conversation.body)
    head = [i for i in range(first) if received.messages[i].role in INSTRUCTION_ROLES]
    return [*head, *range(first, len(received.messages))]


def _index(case: Case, indexes: Sequence[int], position: int) -> int | None:
    """Of a message of the body by its place in the conversation; None where the client sends it no more."""
    place = position if case.chain.origin is None else case.chain.origin.resumed.relative(position)
    return None if place is None else indexes[case.conversation.head_length + place]


def _cut(cut: Cut, index: int) -> explanation.CutMade:
    rounds = RoundCounts(cut.units_total, cut.units_total - cut.units_kept, cut.units_kept)
    return explanation.CutMade(index, cut.level, cut.strategy, cut.adjustment, cut.adjustment_delta, rounds)


def _checkpoint(record: Record) -> explanation.Checkpoint:
    return explanation.Checkpoint(
        digest=record.digest[:16],
        covered=record.covered,
        tokens=record.text_tokens,
        generation=record.generation,
        trigger=record.making.trigger,
        title=record.title,
        timeline=tuple(segment.text for segment in record.segments),
        names=len(working_set.unpacked(record.uses)),
    )


def _messages(
    case: Case, received: CountedRequest, outlook: _Outlook, indexes: Sequence[int]
) -> Iterator[explanation.MessageFate]:
    conversation = received.conversation
    head = conversation.head_length
    places = {index: place for place, index in enumerate(indexes)}
    staying = _staying(case.conversation, outlook.covered)
    for index, message in enumerate(received.messages):
        place = places.get(index)
        if place is None:
            fate, after, why = _DROPPED
        else:
            fate, after, why = _fate(case, outlook, staying, place)
        results = conversation.tools_answered[index - head] if index >= head else ()
        tool = ", ".join(filter(None, results)) or ", ".join(call.tool for call in message.calls) or None
        yield explanation.MessageFate(index, message.role, tool, message.tokens, fate, after, why)


_DROPPED: tuple[explanation.Fate, int, str] = ("dropped", 0, "before the separator")


def _staying(conversation: Conversation, cut: int) -> dict[int, tuple[explanation.Fate, str]]:
    """What becomes of those of the covered messages that no record stands for, by position."""
    body = conversation.body
    covered = conversation.instructions_covered
    theirs = [i for i in range(cut) if body[i].role in INSTRUCTION_ROLES and (body[i].loads or not covered)]
    found = {i: _LAPSED if body[i].lapses else _SUPERSEDED for i in theirs}
    found |= {i: ("kept", f"{body[i].role} message: always sent") for i in conversation.covered_instructions(cut)}
    found |= dict.fromkeys(conversation.pinned, ("kept", "it has changed since it was summarized"))
    if (anchor := conversation.anchor(cut)) is not None:
        found[anchor] = ("anchor", "user message of the turn that the cut falls into")
    return found | dict.fromkeys(conversation.loading(cut), ("kept", "tools are there because of it"))


_SUPERSEDED: tuple[explanation.Fate, str] = ("dropped", "a newer one says the same")
_LAPSED: tuple[explanation.Fate, str] = ("dropped", "it has lapsed")
_COMPACTED = "the provider has compacted it: sent as it came"


def _fate(
    case: Case, outlook: _Outlook, staying: Mapping[int, tuple[explanation.Fate, str]], place: int
) -> tuple[explanation.Fate, int, str]:
    """What becomes of the case's message at this place, what it weighs then, and why."""
    conversation = case.conversation
    position = place - conversation.head_length
    message = conversation.messages[place]
    if position < 0:
        is_ours = message.role in INSTRUCTION_ROLES
        return "head", message.tokens, f"{message.role} message: always sent" if is_ours else _COMPACTED
    view, cut = outlook.draft.view, outlook.covered
    sent = view is not None and (cut or outlook.draft.outcome == "cooled") and view.replaced.get(MessageIndex(place))
    tokens = view.conversation.messages[place].tokens if view is not None and sent else message.tokens
    quotation = view.quotations.get(MessageIndex(place)) if view is not None and outlook.plan is None else None
    if position < cut:
        if position not in staying:
            return _replaced(outlook, position)
        fate, why = staying[position]
        if message.words and position in conversation.repeated(cut):
            tokens = message.words
        return fate, 0 if fate == "dropped" else tokens, why
    if quotation is not None:
        return "kept", tokens, f"{_why_kept(outlook)}, behind {len(quotation.passages)} quotations from before it"
    if sent:
        return "cooled", tokens, f"large, older than {case.caller.policy.large_messages.hot_rounds} rounds"
    return "kept", tokens, _why_kept(outlook)


def _replaced(outlook: _Outlook, position: int) -> tuple[explanation.Fate, int, str]:
    record, plan = outlook.record, outlook.plan
    if record is not None and position < record.covered:
        return "covered", 0, f"in checkpoint {record.digest[:16]}"
    return "summarised", 0, _OLDER[plan.cut.strategy] if plan else ""


def _why_kept(outlook: _Outlook) -> str:
    if outlook.plan is not None:
        return _NEWEST[outlook.plan.cut.strategy]
    if outlook.covered:
        return "after the checkpoint"
    reason = outlook.draft.reason
    return _AS_IT_CAME.get(reason, reason)


def _recalled(outlook: _Outlook, indexes: Sequence[int]) -> Iterator[explanation.Recalled]:
    """Nothing for a record that is not made yet: what it will hold is not known."""
    view = outlook.draft.view
    if view is not None and outlook.plan is None and outlook.draft.record is not None:
        for index, one in sorted(view.quotations.items()):
            yield explanation.Recalled(indexes[index], len(one.passages), one.tokens)


def _carried(case: Case, outlook: _Outlook, count: CountTokens) -> tuple[list[Entry], int, int]:
    """What the record shows of the user's statements, and how many tool calls and changed files it knows of."""
    record, plan = outlook.record, outlook.plan
    if plan is not None:
        job = Job(case, outlook.decision.cooled, plan, record, target=None, started=0.0, deadline=0.0)
        said, spoken, budget = job.statements.entries, job.span.utterances, plan.budget
    elif outlook.covered and record is not None:
        said, spoken, budget = list(record.entries), (), case.limits.budget
    else:
        return [], 0, 0
    anchor = left_out(case.conversation, outlook.covered, case.resumed)
    most = min(budget.record, case.caller.policy.ledger.max_tokens)
    pinned = ledger.fit([entry for entry in said if entry.position != anchor], most, count)
    actions = len(record.actions if record else ()) + len(key_actions(spoken))
    return pinned, actions, len(file_changes(record.files if record else (), spoken))
