"""Puts back what results only point to, where it is no longer in the prompt (policies/pointers.py).

Nothing is stored: what is remembered here saves work, and every replica sends the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from operator import itemgetter

import msgspec

from policies.conversation.conversation import Conversation, Span
from policies.conversation.transcript import ToolCall, Utterance
from policies.decision.budget import Budget, usable_input
from policies.pointers import (
    HOLDS,
    Exchange,
    Place,
    Pointer,
    Referent,
    Weighed,
    block_in,
    choose,
    needle_of,
    pointer_in,
    referent_of,
    short_text,
    whole_text,
)
from policies.record.record import Record
from policies.settings import Secrets
from policies.tool_calls.calls import Done, judge_call
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.prompt_view import PromptView, Restored, Step
from proxy.compaction.results import call_of, exchanges_at, mark_of, with_results
from proxy.dialects import json_array
from proxy.memory import Cache
from proxy.models.tokenizer import Tokenizer
from proxy.runtime.fail_open import FailOpen
from proxy.runtime.workers import Workers

_MOST_POINTERS = 500
_KEY_BYTES = 500

_Key = tuple[bytes, str, Secrets]


class _Text(msgspec.Struct, frozen=True):
    """What may stand in a pointer's place."""

    weighed: Weighed
    whole: str
    short: str


class _Pointers(msgspec.Struct, frozen=True):
    """The pointers of one message. mark: of the messages that the texts are from."""

    texts: tuple[_Text, ...] = ()
    unresolved: int = 0
    sources: tuple[int, ...] = ()
    mark: int = 0


class PointerResolver:
    """Resolves pointers; one per engine."""

    def __init__(
        self, tokenizer: Tokenizer, workers: Workers, found: Cache[_Key, _Pointers], fail_open: FailOpen
    ) -> None:
        self._tokenizer = tokenizer
        self._workers = workers
        self._found = found
        self._fail_open = fail_open

    async def restore(self, case: PlanInput, record: Record | None, view: PromptView) -> PromptView:
        """Return the view with the texts that its pointers point to, as far as these are not in the prompt.

        The same view if it has no pointer, and after a fault of ours.
        """
        if case.caller.policy.dereference == "off":
            return view
        none: Sequence[int] = ()
        covered = record.covered if record else 0
        suspects = self._fail_open.call(lambda: _suspects(case, covered), none)
        if not suspects:
            return view
        return await self._fail_open.run(self._workers.run(self._restore, case, record, view, suspects), view)

    def _restore(self, case: PlanInput, record: Record | None, view: PromptView, suspects: Sequence[int]) -> PromptView:
        earlier = _Earlier(case)
        found = [self._pointers_at(case, position, earlier) for position in suspects]
        covered = record.covered if record else 0
        unresolved = sum(one.unresolved for one in found)
        texts = {(text.weighed.position, text.weighed.number): text for one in found for text in one.texts}
        if not texts:
            return replace(view, unresolved=unresolved) if unresolved else view
        conversation = view.conversation
        kept = conversation.kept_tokens(covered) + (record.text_tokens if record else 0)
        before = conversation.fixed_tokens + kept

        def sent_before(position: int) -> int:
            return before - conversation.tokens_from[position]

        gone = _Gone(case, view, covered)
        weighed = [text.weighed for text in texts.values()]
        chosen = choose(weighed, covered, gone, sent_before, _room(case))
        plain = replace(view, unresolved=unresolved)
        if not (chosen.wholes or chosen.shorts):
            return replace(plain, conversation=conversation.with_spans(chosen.spans))
        everything = (*chosen.wholes, *chosen.shorts)
        short = _with_texts(case, plain, {one: (texts[one[:2]].short, one.short) for one in everything}, chosen.spans)
        small = replace(short, smaller=plain)
        if not chosen.wholes:
            return small
        forms = {one: (texts[one[:2]].whole, one.whole) for one in chosen.wholes}
        forms |= {one: (texts[one[:2]].short, one.short) for one in chosen.shorts}
        return replace(_with_texts(case, plain, forms, chosen.spans), smaller=small)

    def _pointers_at(self, case: PlanInput, position: int, earlier: _Earlier) -> _Pointers:
        """Return the pointers among the results of a message, remembered by all that stands up to it."""
        key = case.chain.digests[position + 1], case.request.encoding, case.caller.policy.secrets
        known = self._found.get(key)
        # Digests leave out clock times in results, which are put back as they are now.
        if known is not None and known.mark == mark_of(case, known.sources):
            return known
        texts: list[_Text] = []
        sources: list[int] = []
        unresolved = 0
        for number, said in enumerate(case.request.contents_at(position)):
            made = None if said.answers is None or said.error else call_of(case, position, number)
            pointer = None if made is None else pointer_in(said.text, made[1])
            if made is None or pointer is None:
                continue
            referent = earlier.referent(Place(position, number), made, pointer)
            if referent is None:
                unresolved += 1
            elif referent.place.position >= 0:
                texts.append(self._text(case, position, number, said.text, pointer, referent))
                sources += referent.sources
        made_now = _Pointers(tuple(texts), unresolved, tuple(sources), mark_of(case, sources))
        size = _KEY_BYTES + sum(2 * len(text.whole) + 2 * len(text.short) for text in texts)
        self._found.keep(key, made_now, size)
        return made_now

    def _text(
        self, case: PlanInput, position: int, number: int, text: str, pointer: Pointer, referent: Referent
    ) -> _Text:
        count = partial(self._tokenizer.count, encoding=case.request.encoding)
        whole, short = whole_text(referent, pointer.rest), short_text(referent, pointer.rest)
        short = whole if short == whole else case.allowed_text(short)
        own = count(text)
        weighed = Weighed(position, number, referent.place, count(whole) - own, count(short) - own)
        return _Text(weighed, whole, short)


class _Gone:
    """Tells whether a referent is no longer in the prompt as it was."""

    def __init__(self, case: PlanInput, view: PromptView, covered: int) -> None:
        self._case = case
        self._view = view
        self._covered = covered
        conversation = case.conversation
        self._sent = {*conversation.rules(covered), *conversation.repeated_messages(covered)} if covered else set()

    def __call__(self, place: Place) -> bool:
        if place.position < self._covered:
            # What is sent again of a covered message are its words and rules, and no result.
            return place.number >= 0 or place.position not in self._sent
        raw = self._view.replaced.get(self._case.conversation.index(place.position))
        if raw is None or place.number < 0:
            return False
        return _result_in(self._case, raw, place) != self._case.request.contents_at(place.position)[place.number].text


def _result_in(case: PlanInput, raw: bytes, place: Place) -> str | None:
    """Return the text of a result in a message with other bytes, None without it."""
    read = case.request.dialect.items.utterances
    tools = case.request.conversation.tools_answered[place.position]
    items = json_array.split_items(raw)
    said = [one for item in items for one in read(json_array.decode(item), place.position, tools)]
    results = [one.text for one in said if one.answers is not None]
    return results[place.number] if place.number < len(results) else None


def _suspects(case: PlanInput, covered: int) -> Sequence[int]:
    """Return the positions of messages with results that may hold a pointer, ascending; the newest of very many.

    Those of covered messages are not sent.
    """
    request = case.request
    text, spans, head = request.parsed.text, request.parsed.spans, case.conversation.head_length
    if head + covered >= len(spans):
        return []
    body = case.conversation.body
    found: set[int] = set()
    for piece in HOLDS:
        at = text.find(piece, spans[head + covered][0])
        while at >= 0:
            index = _index_at(spans, at)
            if body[index - head].results:
                found.add(index - head)
            at = text.find(piece, max(at + 1, spans[index][1]))
    return sorted(found)[-_MOST_POINTERS:]


def _index_at(spans: Sequence[tuple[int, int]], offset: int) -> int:
    return bisect_right(spans, offset, key=itemgetter(0)) - 1


class _Earlier:
    """The messages of one request that pointers may lead to, each read and judged once."""

    def __init__(self, case: PlanInput) -> None:
        self._case = case
        self._exchanges: dict[int, list[Exchange]] = {}
        self._judged: dict[tuple[int, str], tuple[Done, ...]] = {}

    def referent(self, place: Place, made: tuple[int, ToolCall], pointer: Pointer) -> Referent | None:
        """Return what a pointer points to; None if that is not in the request. In the head it has no position.

        place: where the pointer stands. made: the position of its call, and the call.
        """
        case = self._case
        if pointer.block is None:
            needle = needle_of(pointer.asked)
            return referent_of(pointer.asked, self._before(place, *made, needle), self._judge)
        for at in _holding(case, place.position, b"Contents of ", from_head=True):
            for said in case.request.utterances(at, at + 1):
                if (block := block_in(said.text, pointer.block)) is not None:
                    return Referent(Place(at, -1), "shown", block, (at,))
        return None

    def _before(self, place: Place, made: int, last: ToolCall, needle: bytes) -> Iterator[Exchange]:
        """Yield the calls before one which name the same, the newest first, with the results that stood before it."""
        name, body = needle.decode(), self._case.conversation.body
        for at in _holding(self._case, made + 1, needle):
            if not body[at].calls:
                continue
            if at not in self._exchanges:
                self._exchanges[at] = [*exchanges_at(self._case, at)]
            exchanges = self._exchanges[at]
            if at == made:
                exchanges = [*takewhile(lambda exchange: exchange.call.id != last.id, exchanges)]
            for exchange in reversed(exchanges):
                if name in exchange.call.arguments or name == exchange.call.name:
                    stood = (exchange.position, exchange.number) < place
                    yield exchange if stood else exchange._replace(answer=None)

    def _judge(self, call: ToolCall, position: int, answer: Utterance | None) -> tuple[Done, ...]:
        if answer is None:
            return judge_call(call, position, None)
        if (key := (position, call.id)) not in self._judged:
            self._judged[key] = judge_call(call, position, answer)
        return self._judged[key]


def _holding(case: PlanInput, before: int, needle: bytes, *, from_head: bool = False) -> Iterator[int]:
    """Yield the positions of messages before one that hold some bytes, the newest first; all of them for none."""
    head, spans, text = case.conversation.head_length, case.request.parsed.spans, case.request.parsed.text
    if not needle:
        yield from range(before - 1, -1, -1)
        return
    first, end = spans[0 if from_head else head][0], spans[head + before][0]
    while (at := text.rfind(needle, first, end)) >= 0:
        index = _index_at(spans, at)
        end = spans[index][0]
        yield index - head


def _room(case: PlanInput) -> int:
    """Return the tokens that a prompt may have with a text that is put back.

    As for other frozen contents, neither a stated maximum output nor a calibration moves it.
    """
    window, policy = case.route.window, case.caller.policy
    budget: Budget = case.limits.budget if window is None else usable_input(window.tokens, None, exact=True)
    return budget.with_fixed(case.conversation.fixed_tokens).at(policy.overflow_threshold)


def _with_texts(
    case: PlanInput, view: PromptView, forms: Mapping[Weighed, tuple[str, int]], spans: Sequence[Span]
) -> PromptView:
    """Return the view with these texts in the place of pointers, each of so many more tokens."""
    wholes = {Place(one.position, one.number): form for one, form in forms.items()}
    changed = with_results(case, view, Step.RESTORED, wholes)
    told = tuple(
        Restored(case.conversation.index(one.position), case.conversation.index(one.referent.position), gain)
        for one, (_, gain) in sorted(forms.items())
        if Step.RESTORED in changed.steps.get(case.conversation.index(one.position), ())
    )
    conversation: Conversation = changed.conversation.with_spans(spans)
    return replace(changed, conversation=conversation, restored=told)
