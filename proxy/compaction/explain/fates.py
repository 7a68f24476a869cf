"""What becomes of every message of a request, and why: for those who explain one, and for those who look at one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from policies.conversation.conversation import Conversation, MessageIndex
from policies.conversation.message import INSTRUCTION_ROLES
from policies.decision.plan import Compact
from policies.record.record import Record
from proxy.compaction.explain import explanation
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.prompt import Prompt
from proxy.compaction.prompt_view import Step
from proxy.dialects.reader import CountedRequest

# Why a message is sent as it is, by the reason of a request that goes on without a new record.
_AS_IT_CAME = {
    "several_choices": "n > 1: relayed as it came",
    "body_too_large": "it is too large to be read: relayed as it came",
    "too_many_values": "it holds too many values to be read: relayed as it came",
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
    "output_lowered": "the request fits beside less output: sent as it came",
    "no_gain": "a summary of it gained nothing: none is made until the history has grown",
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


@dataclass(frozen=True, slots=True)
class SentPrompt:
    """The prompt that is sent, or would be.

    covered: messages that a record or a note (`PromptBuilder.halve`) replaces. plan: of a record that is not made yet.
    """

    prompt: Prompt
    covered: int = 0
    record: Record | None = None
    plan: Compact | None = None


def sent_with(prompt: Prompt) -> SentPrompt:
    """What went upstream."""
    return SentPrompt(prompt) if prompt.copy is None else SentPrompt(prompt, prompt.copy.covered, prompt.record)


def indexes_of(case: PlanInput, received: CountedRequest) -> list[int]:
    """Return the index in the received request for each message of the case.

    Before a separator only the head and instructions stay.
    """
    first = len(received.messages) - len(case.conversation.body)
    always = received.conversation.head_length
    head = [i for i in range(first) if i < always or received.messages[i].role in INSTRUCTION_ROLES]
    return [*head, *range(first, len(received.messages))]


def fates(
    case: PlanInput, received: CountedRequest, sent: SentPrompt, indexes: Sequence[int]
) -> Iterator[explanation.MessageFate]:
    conversation = received.conversation
    head = conversation.head_length
    places = {index: place for place, index in enumerate(indexes)}
    staying = _staying(case.conversation, sent.covered)
    for index, message in enumerate(received.messages):
        place = places.get(index)
        if place is None:
            fate, after, why = _DROPPED
        else:
            fate, after, why = _fate(case, sent, staying, place)
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
    found |= dict.fromkeys(conversation.rules(cut), ("kept", "its files of rules are always sent"))
    found |= dict.fromkeys(conversation.anchors(cut), ("anchor", "what the user said that is at work at the cut"))
    return found | dict.fromkeys(conversation.loading(cut), ("kept", "tools are there because of it"))


_HALVED = "left out after a refusal for its size: a note stands in its place"
_SUPERSEDED: tuple[explanation.Fate, str] = ("dropped", "a newer one says the same")
_LAPSED: tuple[explanation.Fate, str] = ("dropped", "it has lapsed")
_COMPACTED = "the provider has compacted it: sent as it came"


def _fate(
    case: PlanInput, sent: SentPrompt, staying: Mapping[int, tuple[explanation.Fate, str]], place: int
) -> tuple[explanation.Fate, int, str]:
    """What becomes of the case's message at this place, what it weighs then, and why."""
    conversation = case.conversation
    position = place - conversation.head_length
    message = conversation.messages[place]
    if position < 0:
        is_ours = message.role in INSTRUCTION_ROLES
        return "head", message.tokens, f"{message.role} message: always sent" if is_ours else _COMPACTED
    view, cut = sent.prompt.view, sent.covered
    steps = _steps(sent, MessageIndex(place))
    tokens = view.conversation.messages[place].tokens if view is not None and steps else message.tokens
    if position < cut:
        if position not in staying:
            return _fate_of_replaced(sent, position)
        fate, why = staying[position]
        if message.words and position in conversation.repeated_messages(cut):
            tokens = message.words
        return fate, 0 if fate == "dropped" else tokens, why
    if not steps or view is None:
        return "kept", tokens, _why_kept(sent)
    quotation = view.quotations.get(MessageIndex(place))
    hot, passages = case.caller.policy.large_messages.hot_rounds, len(quotation.passages) if quotation else 0
    whys = [step.value.format(hot_rounds=hot, passages=passages) for step in steps]
    if shorter := _SHORTER & {*steps}:
        return "left_out" if shorter == {Step.MEDIA} else "cooled", tokens, ", ".join(whys)
    return "kept", tokens, ", ".join([_why_kept(sent), *whys])


_SHORTER = {Step.SHORT_FORM, Step.CUT, Step.MEDIA, Step.LOSSLESS}


def _steps(sent: SentPrompt, index: MessageIndex) -> tuple[Step, ...]:
    """What changes a message; quotations depend on the record, which may not be made yet."""
    view = sent.prompt.view
    if view is None or not (sent.covered or sent.prompt.copy or sent.prompt.outcome == "cooled"):
        return ()
    steps = view.steps.get(index, ())
    return steps if sent.plan is None else tuple(step for step in steps if step is not Step.QUOTATION)


def _fate_of_replaced(sent: SentPrompt, position: int) -> tuple[explanation.Fate, int, str]:
    record, plan = sent.record, sent.plan
    if record is not None and position < record.covered:
        return "covered", 0, f"in checkpoint {record.digest[:16]}"
    return ("dropped", 0, _HALVED) if plan is None else ("summarised", 0, _OLDER[plan.cut.strategy])


def _why_kept(sent: SentPrompt) -> str:
    if sent.plan is not None:
        return _NEWEST[sent.plan.cut.strategy]
    if sent.covered:
        return "after the checkpoint" if sent.record is not None else "newer than what was left out"
    reason = sent.prompt.reason
    return _AS_IT_CAME.get(reason, reason)
