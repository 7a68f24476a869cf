"""Results of tools in a request: the calls that they answer, and other texts in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import xxhash

from policies.conversation.conversation import MessageIndex
from policies.conversation.transcript import ToolCall
from policies.pointers import Exchange, Place
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.prompt_view import PromptView, Step
from proxy.dialects import json_array

# Messages between a call and its result at most.
_FAR = 256


def call_of(case: PlanInput, position: int, number: int) -> tuple[int, ToolCall] | None:
    """Return the call that a result answers, and the position of its message."""
    body = case.conversation.body
    name = body[position].results[number]
    for made in range(position - 1, max(-1, position - _FAR), -1):
        if any(call.id == name for call in body[made].calls):
            calls = (call for said in case.request.utterances(made, made + 1) for call in said.calls)
            found = next((call for call in calls if call.id == name), None)
            return None if found is None else (made, found)
    return None


def exchanges_at(case: PlanInput, made: int) -> Iterator[Exchange]:
    """Yield the calls of a message with their results."""
    request, body = case.request, case.conversation.body
    near = range(made + 1, min(len(body), made + _FAR))
    for call in (call for said in request.utterances(made, made + 1) for call in said.calls):
        at = next((at for at in near if call.id in body[at].results), None)
        if at is None:
            yield Exchange(call, made, made, -1, None)
            continue
        number = body[at].results.index(call.id)
        answer = None if body[at].media else request.contents_at(at)[number]
        yield Exchange(call, made, at, number, answer)


def mark_of(case: PlanInput, positions: Sequence[int]) -> int:
    """Return a hash of the bytes of these messages. Digests leave out clock times in results."""
    hashed = xxhash.xxh3_64()
    for position in positions:
        hashed.update(case.request.readable_bytes(case.conversation.index(position)))
    return hashed.intdigest()


def with_results(case: PlanInput, view: PromptView, step: Step, forms: Mapping[Place, tuple[str, int]]) -> PromptView:
    """Return the view with these texts in the place of results, each of so many more tokens."""
    by_message: dict[MessageIndex, dict[int, tuple[str, int]]] = {}
    for place, form in forms.items():
        by_message.setdefault(case.conversation.index(place.position), {})[place.number] = form
    others = {}
    for index, found in by_message.items():
        raw = view.replaced.get(index) or bytes(case.request.message_bytes(index))
        *silent, said = json_array.split_items(raw)
        results = len(case.request.messages[index].results)
        texts = [found[number][0] if number in found else None for number in range(results)]
        written = b",".join([*silent, case.request.dialect.items.with_texts(said, texts)])
        if written == raw:  # its dialect has no place for a text there
            continue
        tokens = view.conversation.messages[index].tokens + sum(gain for _, gain in found.values())
        others[index] = written, max(1, tokens)
    return view.rewritten(step, others) if others else view
