"""A prompt as it was sent, message by message, with its changed messages and those that the record replaces."""

from collections.abc import Iterable, Sequence

from policies.conversation.conversation import MessageIndex
from policies.conversation.transcript import Utterance
from policies.decision.assemble import Injected, Item, MergedMessage, Rules, UserWords, assemble
from proxy.compaction.explain.explanation import MessageFate
from proxy.compaction.explain.fates import fates, indexes_of, sent_with
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.prompt import Copy, Prompt
from proxy.compaction.sent_prompts import ShownMessage, ShownPrompt
from proxy.dialects import json_array
from proxy.dialects.surrogates import readable
from proxy.errors import InvalidJSONError

# Characters of one message, and of all messages of one prompt, sent or replaced: the newest.
_MOST_OF_MESSAGE = 20_000
_MOST_OF_PROMPT = 400_000
# Characters of one message that are masked, and of the longest secret. A secret cut at the end may be missed.
_MOST_MASKED = 100_000
_LONGEST_SECRET = 25_000
_CUT = "\n[… {number:,} characters are not kept …]\n"
# Fates of messages that are sent in another form.
_CHANGED = ("cooled", "left_out")


def shown_prompt(plan_input: PlanInput, prompt: Prompt, now: float) -> ShownPrompt:
    """Return a prompt for a page, masked as records are. Texts are cut after they are masked."""
    copy, covered = prompt.copy, prompt.copy.covered if prompt.copy else 0
    reader = _Texts(plan_input, copy)
    message_fates = fates(plan_input, plan_input.request, sent_with(prompt), indexes_of(plan_input, plan_input.request))
    by_index = {fate.index: fate for fate in message_fates}
    head_length, items = plan_input.conversation.head_length, _items_of(plan_input, copy)
    sent = [reader.message(item, by_index) for item in reversed(items)][::-1]
    replaced = []
    if prompt.record is not None:
        indexes = range(head_length + min(covered, len(plan_input.conversation.body)) - 1, head_length - 1, -1)
        covered_indexes = (index for index in indexes if by_index[index].fate == "covered")
        replaced = [reader.original(MessageIndex(index), by_index[index]) for index in covered_indexes][::-1]
    return ShownPrompt(
        at=now,
        model=plan_input.request.settings.model,
        tokens=prompt.tokens,
        received=plan_input.request.received_tokens,
        covered=covered,
        messages=sent,
        record=plan_input.allowed_text(copy.text) if copy and copy.text else "",
        replaced=replaced,
        is_cut=reader.is_cut,
    )


def _items_of(plan_input: PlanInput, copy: Copy | None) -> Sequence[Item]:
    """Return the items of a prompt."""
    if copy is None or copy.text is None:
        return plan_input.conversation.indexes
    return assemble(plan_input.conversation, copy.covered, copy.text, plan_input.experience.shape)


class _Texts:
    """Reads the texts of one prompt, the newest first, within the bounds."""

    def __init__(self, plan_input: PlanInput, copy: Copy | None) -> None:
        self._case = plan_input
        self._replaced = copy.replaced if copy else {}
        self._room = _MOST_OF_PROMPT
        self.is_cut = False

    def message(self, item: Item, fates: dict[int, MessageFate]) -> ShownMessage:
        """Return one message as it was sent."""
        if isinstance(item, int):
            return self._client_message(MessageIndex(item), fates[item])
        text = self._cut(self._injected_text(item))
        match item:
            case Injected(role=role):
                return ShownMessage(role, text, change="record" if role == "user" else "acknowledgement")
            case MergedMessage():
                return ShownMessage("user", text, change="record before the message")
            case UserWords(of=index):
                return ShownMessage("user", text, self._number(index), "the user's words in it, without its results")
            case Rules(of=index):
                return ShownMessage("user", text, self._number(index), "its files of rules")
            case _:
                raise TypeError(item)

    def original(self, index: MessageIndex, fate: MessageFate) -> ShownMessage:
        """Return a message as the client wrote it."""
        text = self._cut(self._read(self._case.request.readable_bytes(index), fate))
        return ShownMessage(fate.role, text, self._number(index))

    def _number(self, index: MessageIndex) -> int | None:
        """Return the number of a message as records count them; None for one in the head."""
        position = index - self._case.request.conversation.head_length
        return position if position >= 0 else None

    def _client_message(self, index: MessageIndex, fate: MessageFate) -> ShownMessage:
        new_bytes = self._replaced.get(index)
        if new_bytes is None:
            return self.original(index, fate)
        text = self._cut(self._read(memoryview(readable(new_bytes)), fate))
        original = self._cut(self._read(self._case.request.readable_bytes(index), fate))
        kind = "shortened" if fate.fate in _CHANGED else "changed"
        return ShownMessage(fate.role, text, self._number(index), f"{kind}: {fate.why}", original)

    def _injected_text(self, item: Item) -> str:
        """Return the text of an item that the proxy made, as it is in the body."""
        request = self._case.request
        body = readable(request.dialect.rebuild(request.body, request.parsed, [item], self._replaced))
        parsed = json_array.parse(body, request.dialect.array)
        spans = parsed.spans if parsed is not None else ()
        return "\n".join(self._text(memoryview(body)[start:end], ()) for start, end in spans)

    def _read(self, raw: memoryview, fate: MessageFate) -> str:
        return self._text(raw, (fate.tool,) if fate.tool else ())

    def _text(self, raw: memoryview, tools: Sequence[str | None]) -> str:
        read = self._case.request.dialect.items.utterances
        try:
            items = [json_array.decode(item) for item in json_array.split_items(raw)]
        except (InvalidJSONError, json_array.HugeNumberError):
            return ""
        return _join_texts(utterance for item in items for utterance in read(item, 0, tools))

    def _cut(self, text: str) -> str:
        most = max(0, min(_MOST_OF_MESSAGE, self._room))
        masked = self._case.allowed_text(text[:_MOST_MASKED]) if most else ""
        if len(text) > _MOST_MASKED:
            masked = masked[: max(0, len(masked) - _LONGEST_SECRET)]
        self._room -= min(len(masked), most)
        if most and len(text) <= _MOST_MASKED and len(masked) <= most:
            return masked
        self.is_cut = self.is_cut or bool(text)
        return masked[:most] + _CUT.format(number=len(text) - len(masked[:most])) if masked else ""


def _join_texts(utterances: Iterable[Utterance]) -> str:
    parts = []
    for utterance in utterances:
        parts += [utterance.text] if utterance.text else []
        parts += [f"{call.name}({call.arguments})" for call in utterance.calls]
    return "\n".join(parts)
