"""The fate of every message of a request, and the reason, for explanations and pages."""

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

# Why a message is sent unchanged, by the reason of a request without a new record.
_AS_IT_CAME = {
    "several_choices": "n > 1: relayed unchanged",
    "body_too_large": "it is too large to parse: relayed unchanged",
    "too_many_values": "it has too many values to parse: relayed unchanged",
    "unknown_shape": "its shape is not supported: relayed unchanged",
    "previous_response_id": "the upstream stores the history: relayed unchanged",
    "conversation": "the upstream stores the history: relayed unchanged",
    "stored_items": "only the provider has the messages to summarise: relayed unchanged",
    "provider_compaction": "the provider is asked to compact it: relayed unchanged",
    "provider_context_management": "the provider shortens it: compacted only after an overflow",
    "bound_body": "it depends on the bytes sent before: relayed unchanged",
    "refused": "the upstream rejected a rewritten request recently: sent unchanged",
    "below_floor": "the request is small: sent unchanged",
    "below_threshold": "the request fits",
    "unknown_window": "the model's window is unknown: sent unchanged",
    "nothing_to_compact": "there is no place to cut",
    "gain_too_small": "a summary would free too little",
    "irreducible": "the parts that must stay fill the window: no summary helps",
    "ineffective": "the last summaries did not help: none is made for now",
    "output_lowered": "the request fits with less output: sent unchanged",
    "no_gain": "a summary of it gained nothing: none is made until the history has grown",
    "separator": "after the separator",
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

    covered: messages that a record or a note (`PromptBuilder.halve`) replaces.
    plan:    the plan of a record that is not made yet.
    """

    prompt: Prompt
    covered: int = 0
    record: Record | None = None
    plan: Compact | None = None


def sent_with(prompt: Prompt) -> SentPrompt:
    """Return a prompt that was sent upstream."""
    return SentPrompt(prompt) if prompt.copy is None else SentPrompt(prompt, prompt.copy.covered, prompt.record)


def indexes_of(plan_input: PlanInput, received: CountedRequest) -> list[int]:
    """Return the index in the received request for each message of the plan input.

    Before a separator only the head and instructions stay.
    """
    first = len(received.messages) - len(plan_input.conversation.body)
    always = received.conversation.head_length
    head = [i for i in range(first) if i < always or received.messages[i].role in INSTRUCTION_ROLES]
    return [*head, *range(first, len(received.messages))]


def fates(
    plan_input: PlanInput, received: CountedRequest, sent: SentPrompt, indexes: Sequence[int]
) -> Iterator[explanation.MessageFate]:
    """Yield the fate of each message in the received request."""
    conversation = received.conversation
    head = conversation.head_length
    case_positions = {index: case_position for case_position, index in enumerate(indexes)}
    staying = _fates_of_covered(plan_input.conversation, sent.covered)
    for index, message in enumerate(received.messages):
        case_position = case_positions.get(index)
        if case_position is None:
            fate, after, why = _DROPPED
        else:
            fate, after, why = _fate(plan_input, sent, staying, case_position)
        results = conversation.tools_answered[index - head] if index >= head else ()
        tool = ", ".join(filter(None, results)) or ", ".join(call.tool for call in message.calls) or None
        yield explanation.MessageFate(index, message.role, tool, message.tokens, fate, after, why)


_DROPPED: tuple[explanation.Fate, int, str] = ("dropped", 0, "before the separator")


def _fates_of_covered(conversation: Conversation, cut: int) -> dict[int, tuple[explanation.Fate, str]]:
    """Return the fates of covered messages that are still sent, or dropped without a record, by position."""
    body = conversation.body
    covered = conversation.instructions_covered
    instructions = [i for i in range(cut) if body[i].role in INSTRUCTION_ROLES and (body[i].loads or not covered)]
    fates = {i: _LAPSED if body[i].lapses else _SUPERSEDED for i in instructions}
    fates |= {i: ("kept", f"{body[i].role} message: always sent") for i in conversation.covered_instructions(cut)}
    fates |= dict.fromkeys(conversation.rules(cut), ("kept", "its files of rules are always sent"))
    fates |= dict.fromkeys(
        conversation.anchors(cut), ("anchor", "the user's words for the task in progress at the cut")
    )
    return fates | dict.fromkeys(conversation.loading(cut), ("kept", "it defines tools in use"))


_HALVED = "left out after a refusal for its size: a note replaces it"
_SUPERSEDED: tuple[explanation.Fate, str] = ("dropped", "a newer message repeats it")
_LAPSED: tuple[explanation.Fate, str] = ("dropped", "it has expired")
_COMPACTED = "the provider has compacted it: sent unchanged"


def _fate(
    plan_input: PlanInput,
    sent: SentPrompt,
    fates_of_covered: Mapping[int, tuple[explanation.Fate, str]],
    case_position: int,
) -> tuple[explanation.Fate, int, str]:
    """Return the fate of the plan input's message at this index, its tokens then, and the reason."""
    conversation = plan_input.conversation
    position = case_position - conversation.head_length
    message = conversation.messages[case_position]
    if position < 0:
        is_ours = message.role in INSTRUCTION_ROLES
        return "head", message.tokens, f"{message.role} message: always sent" if is_ours else _COMPACTED
    view, cut = sent.prompt.view, sent.covered
    steps = _steps(sent, MessageIndex(case_position))
    tokens = view.conversation.messages[case_position].tokens if view is not None and steps else message.tokens
    if position < cut:
        if position not in fates_of_covered:
            return _fate_of_replaced(sent, position)
        fate, why = fates_of_covered[position]
        if message.words and position in conversation.repeated_messages(cut):
            tokens = message.words
        return fate, 0 if fate == "dropped" else tokens, why
    if not steps or view is None:
        return "kept", tokens, _why_kept(sent)
    quotation = view.quotations.get(MessageIndex(case_position))
    hot, passages = plan_input.caller.policy.large_messages.hot_rounds, len(quotation.passages) if quotation else 0
    reasons = [step.value.format(hot_rounds=hot, passages=passages) for step in steps]
    if shorter_steps := _SHORTER & {*steps}:
        return "left_out" if shorter_steps == {Step.MEDIA} else "cooled", tokens, ", ".join(reasons)
    return "kept", tokens, ", ".join([_why_kept(sent), *reasons])


_SHORTER = {Step.SHORT_FORM, Step.CUT, Step.MEDIA, Step.LOSSLESS}


def _steps(sent: SentPrompt, index: MessageIndex) -> tuple[Step, ...]:
    """Return the steps that change a message. Quotations depend on the record, which may not exist yet."""
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
