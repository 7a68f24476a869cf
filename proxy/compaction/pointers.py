"""Replacement of results that only point to another text, if that is no longer in the prompt (policies/pointers.py).

Nothing is stored. The cache only saves work, and every replica sends the same.
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
    """The texts that may replace a pointer."""

    weighed: Weighed
    whole: str
    short: str


class _Pointers(msgspec.Struct, frozen=True):
    """The pointers of one message. mark: that of the messages with the texts."""

    texts: tuple[_Text, ...] = ()
    unresolved: int = 0
    sources: tuple[int, ...] = ()
    mark: int = 0


class PointerResolver:
    """Resolves pointers; one per engine."""

    def __init__(
        self, tokenizer: Tokenizer, workers: Workers, cache: Cache[_Key, _Pointers], fail_open: FailOpen
    ) -> None:
        """Create a resolver. cache: the cache of earlier results."""
        self._tokenizer = tokenizer
        self._workers = workers
        self._cache = cache
        self._fail_open = fail_open

    async def restore(self, plan_input: PlanInput, record: Record | None, view: PromptView) -> PromptView:
        """Return the view with the texts that its pointers refer to and that the prompt does not have.

        The same view is returned if it has no pointer, or after an internal error.
        """
        if plan_input.caller.policy.dereference == "off":
            return view
        no_suspects: Sequence[int] = ()
        covered = record.covered if record else 0
        suspects = self._fail_open.call(lambda: _suspects(plan_input, covered), no_suspects)
        if not suspects:
            return view
        return await self._fail_open.run(self._workers.run(self._restore, plan_input, record, view, suspects), view)

    def _restore(
        self, plan_input: PlanInput, record: Record | None, view: PromptView, suspects: Sequence[int]
    ) -> PromptView:
        earlier = _Earlier(plan_input)
        pointers = [self._pointers_at(plan_input, position, earlier) for position in suspects]
        covered = record.covered if record else 0
        unresolved = sum(of_message.unresolved for of_message in pointers)
        texts = {
            (text.weighed.position, text.weighed.number): text for of_message in pointers for text in of_message.texts
        }
        if not texts:
            return replace(view, unresolved=unresolved) if unresolved else view
        conversation = view.conversation
        kept_tokens = conversation.kept_tokens(covered) + (record.text_tokens if record else 0)
        tokens_before = conversation.fixed_tokens + kept_tokens

        def sent_before(position: int) -> int:
            return tokens_before - conversation.tokens_from[position]

        is_gone = _GonePredicate(plan_input, view, covered)
        weighed = [text.weighed for text in texts.values()]
        chosen = choose(weighed, covered, is_gone, sent_before, _room(plan_input))
        without_texts = replace(view, unresolved=unresolved)
        if not (chosen.wholes or chosen.shorts):
            return replace(without_texts, conversation=conversation.with_spans(chosen.spans))
        chosen_pointers = (*chosen.wholes, *chosen.shorts)
        short = _with_texts(
            plan_input,
            without_texts,
            {of_message: (texts[of_message[:2]].short, of_message.short) for of_message in chosen_pointers},
            chosen.spans,
        )
        small = replace(short, smaller=without_texts)
        if not chosen.wholes:
            return small
        forms = {of_message: (texts[of_message[:2]].whole, of_message.whole) for of_message in chosen.wholes}
        forms |= {of_message: (texts[of_message[:2]].short, of_message.short) for of_message in chosen.shorts}
        return replace(_with_texts(plan_input, without_texts, forms, chosen.spans), smaller=small)

    def _pointers_at(self, plan_input: PlanInput, position: int, earlier: _Earlier) -> _Pointers:
        """Return the pointers among the results of a message. They are cached by all messages up to it."""
        key = plan_input.chain.digests[position + 1], plan_input.request.encoding, plan_input.caller.policy.secrets
        cached = self._cache.get(key)
        # Digests omit clock times in results, which are restored as they are now.
        if cached is not None and cached.mark == mark_of(plan_input, cached.sources):
            return cached
        texts: list[_Text] = []
        sources: list[int] = []
        unresolved = 0
        for number, result in enumerate(plan_input.request.contents_at(position)):
            call = None if result.answers is None or result.error else call_of(plan_input, position, number)
            pointer = None if call is None else pointer_in(result.text, call[1])
            if call is None or pointer is None:
                continue
            referent = earlier.referent(Place(position, number), call, pointer)
            if referent is None:
                unresolved += 1
            elif referent.place.position >= 0:
                texts.append(self._text(plan_input, position, number, result.text, pointer, referent))
                sources += referent.sources
        made_now = _Pointers(tuple(texts), unresolved, tuple(sources), mark_of(plan_input, sources))
        size = _KEY_BYTES + sum(2 * len(text.whole) + 2 * len(text.short) for text in texts)
        self._cache.keep(key, made_now, size)
        return made_now

    def _text(
        self, plan_input: PlanInput, position: int, number: int, text: str, pointer: Pointer, referent: Referent
    ) -> _Text:
        count = partial(self._tokenizer.count, encoding=plan_input.request.encoding)
        full, short = whole_text(referent, pointer.rest), short_text(referent, pointer.rest)
        short = full if short == full else plan_input.allowed_text(short)
        pointer_tokens = count(text)
        weighed = Weighed(position, number, referent.place, count(full) - pointer_tokens, count(short) - pointer_tokens)
        return _Text(weighed, full, short)


class _GonePredicate:
    """A predicate: True if a referent is no longer unchanged in the prompt."""

    def __init__(self, plan_input: PlanInput, view: PromptView, covered: int) -> None:
        """Create a predicate for this view, after a record of `covered` messages."""
        self._case = plan_input
        self._view = view
        self._covered = covered
        conversation = plan_input.conversation
        self._sent = {*conversation.rules(covered), *conversation.repeated_messages(covered)} if covered else set()

    def __call__(self, place: Place) -> bool:
        """Return True if the referent at this place is no longer unchanged in the prompt."""
        if place.position < self._covered:
            # Only words and rules of a covered message are sent again, not its results.
            return place.number >= 0 or place.position not in self._sent
        raw = self._view.replaced.get(self._case.conversation.index(place.position))
        if raw is None or place.number < 0:
            return False
        return _result_in(self._case, raw, place) != self._case.request.contents_at(place.position)[place.number].text


def _result_in(plan_input: PlanInput, raw: bytes, place: Place) -> str | None:
    """Return the text of a result in a message with other bytes; None without it."""
    read = plan_input.request.dialect.items.utterances
    tools = plan_input.request.conversation.tools_answered[place.position]
    items = json_array.split_items(raw)
    utterances = [utterance for item in items for utterance in read(json_array.decode(item), place.position, tools)]
    results = [utterance.text for utterance in utterances if utterance.answers is not None]
    return results[place.number] if place.number < len(results) else None


def _suspects(plan_input: PlanInput, covered: int) -> Sequence[int]:
    """Return the positions of sent messages with results that may hold a pointer, ascending.

    Only the newest `_MOST_POINTERS` are returned.
    """
    request = plan_input.request
    text, spans, head = request.parsed.text, request.parsed.spans, plan_input.conversation.head_length
    if head + covered >= len(spans):
        return []
    body = plan_input.conversation.body
    positions: set[int] = set()
    for piece in HOLDS:
        offset = text.find(piece, spans[head + covered][0])
        while offset >= 0:
            index = _index_at(spans, offset)
            if body[index - head].results:
                positions.add(index - head)
            offset = text.find(piece, max(offset + 1, spans[index][1]))
    return sorted(positions)[-_MOST_POINTERS:]


def _index_at(spans: Sequence[tuple[int, int]], offset: int) -> int:
    return bisect_right(spans, offset, key=itemgetter(0)) - 1


class _Earlier:
    """The messages of one request that pointers may refer to, each read and judged once."""

    def __init__(self, plan_input: PlanInput) -> None:
        """Create a reader of this request's messages."""
        self._case = plan_input
        self._exchanges: dict[int, list[Exchange]] = {}
        self._judged: dict[tuple[int, str], tuple[Done, ...]] = {}

    def referent(self, place: Place, made: tuple[int, ToolCall], pointer: Pointer) -> Referent | None:
        """Return the referent of a pointer; None if it is not in the request. A referent in the head has no position.

        place: the position of the pointer. made: the position of its call, and the call.
        """
        plan_input = self._case
        if pointer.block is None:
            needle = needle_of(pointer.asked)
            return referent_of(pointer.asked, self._calls_before(place, *made, needle), self._judge)
        for position in _positions_with(plan_input, place.position, b"Contents of ", from_head=True):
            for utterance in plan_input.request.utterances(position, position + 1):
                if (block := block_in(utterance.text, pointer.block)) is not None:
                    return Referent(Place(position, -1), "shown", block, (position,))
        return None

    def _calls_before(self, place: Place, position_of_call: int, call: ToolCall, needle: bytes) -> Iterator[Exchange]:
        """Yield earlier calls with the same name or path, the newest first, each with its result before the pointer."""
        name, body = needle.decode(), self._case.conversation.body
        for position in _positions_with(self._case, position_of_call + 1, needle):
            if not body[position].calls:
                continue
            if position not in self._exchanges:
                self._exchanges[position] = [*exchanges_at(self._case, position)]
            exchanges = self._exchanges[position]
            if position == position_of_call:
                exchanges = [*takewhile(lambda exchange: exchange.call.id != call.id, exchanges)]
            for exchange in reversed(exchanges):
                if name in exchange.call.arguments or name == exchange.call.name:
                    is_before = (exchange.position, exchange.number) < place
                    yield exchange if is_before else exchange._replace(answer=None)

    def _judge(self, call: ToolCall, position: int, answer: Utterance | None) -> tuple[Done, ...]:
        if answer is None:
            return judge_call(call, position, None)
        if (key := (position, call.id)) not in self._judged:
            self._judged[key] = judge_call(call, position, answer)
        return self._judged[key]


def _positions_with(
    plan_input: PlanInput, end_position: int, needle: bytes, *, from_head: bool = False
) -> Iterator[int]:
    """Yield the positions of messages before one that hold these bytes, the newest first; all for no bytes."""
    head, spans, text = (
        plan_input.conversation.head_length,
        plan_input.request.parsed.spans,
        plan_input.request.parsed.text,
    )
    if not needle:
        yield from range(end_position - 1, -1, -1)
        return
    start, end = spans[0 if from_head else head][0], spans[head + end_position][0]
    while (offset := text.rfind(needle, start, end)) >= 0:
        index = _index_at(spans, offset)
        end = spans[index][0]
        yield index - head


def _room(plan_input: PlanInput) -> int:
    """Return the most tokens of a prompt with restored texts.

    Neither a requested maximum output nor a calibration changes it, as for other frozen contents.
    """
    window, policy = plan_input.route.window, plan_input.caller.policy
    budget: Budget = plan_input.limits.budget if window is None else usable_input(window.tokens, None, exact=True)
    return budget.with_fixed(plan_input.conversation.fixed_tokens).at(policy.overflow_threshold)


def _with_texts(
    plan_input: PlanInput, view: PromptView, forms: Mapping[Weighed, tuple[str, int]], spans: Sequence[Span]
) -> PromptView:
    """Return the view with these texts in place of pointers. Each form is a text and the tokens it adds."""
    results = {Place(pointer.position, pointer.number): form for pointer, form in forms.items()}
    changed = with_results(plan_input, view, Step.RESTORED, results)
    restored = tuple(
        Restored(
            plan_input.conversation.index(pointer.position),
            plan_input.conversation.index(pointer.referent.position),
            gain,
        )
        for pointer, (_, gain) in sorted(forms.items())
        if Step.RESTORED in changed.steps.get(plan_input.conversation.index(pointer.position), ())
    )
    conversation: Conversation = changed.conversation.with_spans(spans)
    return replace(changed, conversation=conversation, restored=restored)
