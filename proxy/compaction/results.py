"""Tool results in a request: the calls that they answer, and rewritten results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import xxhash

from policies.conversation.conversation import MessageIndex
from policies.conversation.transcript import ToolCall
from policies.pointers import Exchange, Place
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.prompt_view import PromptView, Step
from proxy.dialects import json_array

# The most messages between a call and its result.
_FAR = 256


def call_of(plan_input: PlanInput, position: int, number: int) -> tuple[int, ToolCall] | None:
    """Return the call that a result answers, and the position of its message; None if there is none."""
    body = plan_input.conversation.body
    name = body[position].results[number]
    for call_position in range(position - 1, max(-1, position - _FAR), -1):
        if any(call.id == name for call in body[call_position].calls):
            calls = (
                call
                for utterance in plan_input.request.utterances(call_position, call_position + 1)
                for call in utterance.calls
            )
            answered = next((call for call in calls if call.id == name), None)
            return None if answered is None else (call_position, answered)
    return None


def exchanges_at(plan_input: PlanInput, call_position: int) -> Iterator[Exchange]:
    """Yield the calls of a message with their results."""
    request, body = plan_input.request, plan_input.conversation.body
    near = range(call_position + 1, min(len(body), call_position + _FAR))
    for call in (
        call for utterance in request.utterances(call_position, call_position + 1) for call in utterance.calls
    ):
        result_position = next(
            (result_position for result_position in near if call.id in body[result_position].results), None
        )
        if result_position is None:
            yield Exchange(call, call_position, call_position, -1, None)
            continue
        number = body[result_position].results.index(call.id)
        answer = None if body[result_position].media else request.contents_at(result_position)[number]
        yield Exchange(call, call_position, result_position, number, answer)


def mark_of(plan_input: PlanInput, positions: Sequence[int]) -> int:
    """Return a hash of the bytes of these messages. Digests omit clock times in results."""
    hashed = xxhash.xxh3_64()
    for position in positions:
        hashed.update(plan_input.request.readable_bytes(plan_input.conversation.index(position)))
    return hashed.intdigest()


def with_results(
    plan_input: PlanInput, view: PromptView, step: Step, forms: Mapping[Place, tuple[str, int]]
) -> PromptView:
    """Return the view with these texts in place of results. Each form is a text and the tokens it adds."""
    by_message: dict[MessageIndex, dict[int, tuple[str, int]]] = {}
    for place, form in forms.items():
        by_message.setdefault(plan_input.conversation.index(place.position), {})[place.number] = form
    rewritten = {}
    for index, forms_by_number in by_message.items():
        raw = view.replaced.get(index) or bytes(plan_input.request.message_bytes(index))
        *silent, main_item = json_array.split_items(raw)
        results = len(plan_input.request.messages[index].results)
        texts = [forms_by_number[number][0] if number in forms_by_number else None for number in range(results)]
        new_bytes = b",".join([*silent, plan_input.request.dialect.items.with_texts(main_item, texts)])
        if new_bytes == raw:  # its dialect has no place for a text there
            continue
        tokens = view.conversation.messages[index].tokens + sum(gain for _, gain in forms_by_number.values())
        rewritten[index] = new_bytes, max(1, tokens)
    return view.with_rewrites(step, rewritten) if rewritten else view
