"""Execution of a client's edit that clears old tool results (`policies/decision/clearing.py`)."""

from dataclasses import dataclass

from policies.conversation.conversation import MessageIndex
from policies.decision.budget import Budget
from policies.decision.clearing import STEP, ToolUse, cleared_uses
from proxy.dialects import json_array
from proxy.dialects.compaction import Clearing
from proxy.dialects.reader import CountedRequest

# Approximate tokens of a result and a call without their content.
_LEFT = 12


@dataclass(frozen=True, slots=True)
class Cleared:
    """A request without some results. uses: their number. tokens: the tokens freed."""

    body: bytes
    uses: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _ResultPlace:
    """The message of a result, its number among the message's results, the id of its call, and the tool."""

    index: MessageIndex
    number: int
    call: str
    tool: str | None


def clear(request: CountedRequest, clearing: Clearing, budget: Budget) -> Cleared | None:
    """Return the request with results cleared as the client wants; None if none are."""
    conversation = request.conversation
    places: list[_ResultPlace] = []
    uses: list[ToolUse] = []
    inputs: dict[str, int] = {}
    for position, message in enumerate(conversation.body):
        for call in message.calls:
            inputs[call.id] = message.tokens // max(1, len(message.calls)) if _loses_input(clearing, call.tool) else 0
        if not message.results:
            continue
        texts = [len(utterance.text) for utterance in request.contents_at(position)]
        tokens = message.tokens - message.words
        for number, (call_id, tool) in enumerate(
            zip(message.results, conversation.tools_answered[position], strict=True)
        ):
            share = texts[number] / max(1, sum(texts)) if len(texts) > number else 0
            frees = int(tokens * share) - _LEFT + max(0, inputs.get(call_id, 0) - _LEFT)
            places.append(_ResultPlace(conversation.index(position), number, call_id, tool))
            uses.append(ToolUse(frees, tool in clearing.excluded))
    amount = request.tokens if clearing.counts == "input_tokens" else len(uses)
    if amount < clearing.at:
        return None
    step = clearing.at_least or int(STEP * budget.movable)
    cleared = cleared_uses(uses, clearing.keep, step)
    if not cleared:
        return None
    return Cleared(
        _without(request, clearing, [places[at] for at in cleared]), len(cleared), sum(uses[at].frees for at in cleared)
    )


def _loses_input(clearing: Clearing, tool: str) -> bool:
    return clearing.inputs if isinstance(clearing.inputs, bool) else tool in clearing.inputs


def _without(request: CountedRequest, clearing: Clearing, places: list[_ResultPlace]) -> bytes:
    forms, messages = request.dialect.clearing, request.messages
    assert forms is not None  # noqa: S101 - only a dialect with them has clearings
    results: dict[MessageIndex, set[int]] = {}
    for place in places:
        results.setdefault(place.index, set()).add(place.number)
    calls = {place.call for place in places if place.tool is not None and _loses_input(clearing, place.tool)}
    changed: dict[MessageIndex, bytes] = {}
    for at, message in enumerate(messages):
        index = MessageIndex(at)
        numbers = results.get(index, set())
        cleared_calls = calls.intersection(call.id for call in message.calls)
        if numbers or cleared_calls:
            changed[index] = forms.clear(bytes(request.message_bytes(index)), numbers, cleared_calls)
    items = (changed.get(index, index) for index in request.conversation.indexes)
    return json_array.rebuild(request.body, request.parsed, items)
