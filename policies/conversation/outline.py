"""The outline of a conversation: the facts about its messages that no later message changes.

An agent repeats its history with every request. The outline of a longer history therefore extends that of its
beginning, and costs only as much as is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from policies.authorship.parts import is_foreign
from policies.authorship.speech import Speech
from policies.conversation.message import INSTRUCTION_ROLES, Message

# Shared names of calls: thousands of messages have a result of the first call in their round.
_ORDINALS = [b"%d" % ordinal for ordinal in range(16)]


class Outline(msgspec.Struct):
    """The outline of `head` messages and a body. Positions are those in the body, ascending. It is never changed later.

    barrier:  index of the newest message that is a provider's own compaction; 0 without one.
    units:    the start of every unit: a user message, a round (a model's message with its tool results), or a stray
              instruction. A message that joins the previous one starts none, except at the beginning.
    cuttable: the start of every unit whose previous unit ends with no user message and has a result for every call.
    users:    messages in the user role. prompts: those that follow no other one.
    heard:    messages in which a person speaks, as far as known. spoken: those for which this is certain.
    turns:    the spoken messages that follow no other one. openers: those not said while the agent worked. tasks: the
              openers that make a request.
    summaries, rules: messages with the client's own summary, and with files of rules.
    signed, loading, instructions: messages with signatures, messages that load tools, and instructions.
    stored:   the first message that refers to content that only the provider has; None without one.
    parted:   for every position, the number of pairs of call and result on either side of it, minus the number for the
              previous position. Ids may repeat. A result belongs to the oldest waiting call with its id, so that no
              other pairing would be separated. If none waits, it belongs to the newest call.
    answers:  for every message, the tools of its results in order; None for a result without a call.
    links:    for every message, the calls of its results for digests: by ordinals instead of ids.
    """

    head: int = 0
    barrier: int = 0
    length: int = 0
    units: list[int] = []
    cuttable: list[int] = []
    users: list[int] = []
    prompts: list[int] = []
    heard: list[int] = []
    spoken: list[int] = []
    turns: list[int] = []
    openers: list[int] = []
    tasks: list[int] = []
    summaries: list[int] = []
    rules: list[int] = []
    signed: list[int] = []
    loading: list[int] = []
    instructions: list[int] = []
    stored: int | None = None
    parted: list[int] = msgspec.field(default_factory=lambda: [0])
    answers: list[tuple[str | None, ...]] = []
    links: list[bytes] = []
    foreign: list[int] = []
    """Positions of shell results that may show strangers' text."""

    _calls: dict[str, tuple[str, int, bool]] = {}
    """id -> tool and message of its newest call, and True if it may show strangers' text."""

    _waiting: dict[str, int] = {}
    _made: dict[str, tuple[int, int]] = {}
    _answer: int = 0
    _answers: dict[tuple[str | None, ...], tuple[str | None, ...]] = {}
    """The distinct values of `answers`. Most messages have results of the same few tools."""

    _is_known: bool = False
    _is_bare: bool = False
    """True if a message in the user role consisted of plain words."""

    _elements: dict[str, bool] = {}
    """The names of unknown elements that made up messages."""

    _seen_patterns: dict[bytes, bool] = {}
    """The patterns of texts in the user role after a tool's result."""

    def longer(self, messages: Sequence[Message]) -> Outline:
        """Return the outline of these messages, which begin with those of this outline."""
        if self.length and len(messages) == self.head + self.length:
            return self
        if may_change_head(self.head, self.head + self.length, messages):
            head, barrier = head_of(messages)
            outline = Outline(head, barrier)
            outline._is_known = any(message.is_known for message in messages[:head])
        else:
            outline = Outline(*map(_copy_value, msgspec.structs.astuple(self)))
        outline._extend(messages[outline.head :])
        return outline

    def _extend(self, body: Sequence[Message]) -> None:
        for position in range(self.length, len(body)):
            message = body[position]
            self._add_form(body, position, message)
            self._add_calls(position, message)
            self._add_link(position, message)
            self._add_voices(body, position, message)
        self.length = len(body)

    def _add_form(self, body: Sequence[Message], position: int, message: Message) -> None:
        if not position or not joins(body, position):
            if self.units and _is_cuttable(body[self.units[-1] : position]):
                self.cuttable.append(position)
            self.units.append(position)
        if message.is_user:
            self.users.append(position)
            if not position or not body[position - 1].is_user:
                self.prompts.append(position)
        if message.signed != "none":
            self.signed.append(position)
        if message.role in INSTRUCTION_ROLES:
            self.instructions.append(position)
        elif message.loads:
            self.loading.append(position)
        if message.stored and self.stored is None:
            self.stored = position

    def _add_voices(self, body: Sequence[Message], position: int, message: Message) -> None:
        self._is_known = self._is_known or message.is_known
        if message.is_summary:
            self.summaries.append(position)
        if message.rules:
            self.rules.append(position)
        while_working = "tool" in (message.role, body[position - 1].role if position else "")
        is_output = message.text_tool == "result" and position > 0 and body[position - 1].text_tool == "call"
        is_spoken = message.is_user and not is_output
        speech = self._speech(message, while_working=while_working) if is_spoken else "none"
        if speech == "none":
            return
        self.heard.append(position)
        if speech == "unsure":
            return
        if message.role == "user" and not (self.spoken and self.spoken[-1] == position - 1):
            self.turns.append(position)
        self.spoken.append(position)
        if not while_working:
            self.openers.append(position)
            if speech == "full":
                self.tasks.append(position)

    def _speech(self, message: Message, *, while_working: bool) -> Speech:
        """Return a person's speech in the message, given the messages before it.

        An unknown client may also write after a tool's result. Unmarked text there is a person's, unless the same text
        with masked digits has followed a result before.
        """
        is_again = message.opens in self._elements and self._is_bare
        if message.opens:
            self._elements[message.opens] = True
        self._is_bare = self._is_bare or (message.said in ("brief", "full") and not message.opens)
        is_new_text = any(pattern not in self._seen_patterns for pattern in message.patterns)
        if while_working:
            self._seen_patterns.update(dict.fromkeys(message.patterns, True))
        if is_again or (message.is_typed and self._is_foreign(len(self.answers) - 1)):
            return "none"
        if message.said == "unsure":
            return "none" if self.spoken else "full"
        if while_working and not self._is_known and message.said != "none" and not is_new_text:
            return "unsure"
        return message.said

    def _is_foreign(self, position: int) -> bool:
        """Return True if a result in the message may show strangers' text."""
        return self.foreign[-1:] == [position] or any(map(is_foreign, self.answers[position]))

    def _add_calls(self, position: int, message: Message) -> None:
        self.parted.append(0)
        for call in message.calls:
            self._calls[call.id] = call.tool, position, call.is_foreign
            self._waiting.setdefault(call.id, position)
        tools: list[str | None] = []
        for result in message.results:
            tool, newest, is_brought = self._calls.get(result, (None, -1, False))
            if is_brought and self.foreign[-1:] != [position]:
                self.foreign.append(position)
            tools.append(tool)
            if newest >= 0:
                self.parted[self._waiting.pop(result, newest) + 1] += 1
                self.parted[position + 1] -= 1
        for script in message.scripts:  # its own result may still be missing
            if 0 <= (script_position := self._calls.get(script, (None, -1, False))[1]) < position:
                self.parted[script_position + 1] += 1
                self.parted[position + 1] -= 1
        tools_of_results = tuple(tools)
        self.answers.append(self._answers.setdefault(tools_of_results, tools_of_results))

    def _add_link(self, position: int, message: Message) -> None:
        """Add the link of a message. Ids count only as ordinals, so renaming them changes nothing."""
        link = b""
        if message.role == "assistant":
            self._answer = position
            # Store the first occurrence of each id: thousands of results must not each search thousands of calls.
            for ordinal, call in reversed([*enumerate(message.calls)]):
                self._made[call.id] = (position, ordinal)
        elif message.results:
            link = b",".join([self._link(self._made.get(result)) for result in message.results])
        self.links.append(link)

    def _link(self, call_place: tuple[int, int] | None) -> bytes:
        """Return the link to a call, by its place in the latest round or in an earlier one."""
        if call_place is None:
            return b"-"
        position, ordinal = call_place
        if position == self._answer and ordinal < len(_ORDINALS):
            return _ORDINALS[ordinal]
        return b"%d" % ordinal if position == self._answer else b"%d of %d" % (ordinal, position)


def links_of(body: Sequence[Message]) -> list[bytes]:
    """Return for every message the calls of its results."""
    outline = Outline()
    outline._extend(body)  # noqa: SLF001 - of its own class
    return outline.links


def joins(messages: Sequence[Message], at: int) -> bool:
    """Return True if a message continues the round of the previous one."""
    message = messages[at]
    return message.joins or (message.continues and messages[at - 1].role == "assistant")


def may_change_head(head: int, known: int, messages: Sequence[Message]) -> bool:
    """Return True if the head of these messages may differ from that of the first `known` messages."""
    return head == known or any(message.barrier for message in messages[known:])


def head_of(messages: Sequence[Message]) -> tuple[int, int]:
    """Return the length of the head, and the index of the barrier at its beginning."""
    for barrier in range(len(messages) - 1, -1, -1):
        if messages[barrier].barrier:
            later_indexes = range(barrier + 1, len(messages))
            return next((i for i in later_indexes if not joins(messages, i)), len(messages)), barrier
    for head, message in enumerate(messages):
        if message.role not in INSTRUCTION_ROLES:
            return head, 0
    return len(messages), 0


def _is_cuttable(unit: Sequence[Message]) -> bool:
    """Return True if the unit does not end with a user message and all its calls have results."""
    speaking = (m for m in reversed(unit) if m.role not in INSTRUCTION_ROLES)  # joining instructions do not count
    if (last_message := next(speaking, None)) is not None and last_message.is_user:
        return False
    calls = [call.id for message in unit for call in message.calls]
    return not calls or {result for message in unit for result in message.results}.issuperset(calls)


def _copy_value(value: Any) -> Any:
    return value.copy() if isinstance(value, list | dict) else value
