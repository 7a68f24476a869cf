"""The form of a conversation: what its messages say about it that no later message changes.

An agent repeats its history with every request. So the outline of a longer history goes on from that of a shorter one
which it begins with, and costs what is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from policies.authorship.parts import is_foreign
from policies.authorship.speech import Speech
from policies.conversation.message import INSTRUCTION_ROLES, Message

# Thousands of messages answer the first call of the latest round: they share its name.
_ORDINALS = [b"%d" % ordinal for ordinal in range(16)]


class Outline(msgspec.Struct):
    """Of `head` messages and a body. Positions are those in the body, ascending; nothing is changed once it is made.

    barrier:  index of the newest message that is a provider's own compaction; 0 without one.
    units:    where every unit starts: a user message, a round (what a model says at once with its tool results), or a
              stray instruction. What joins the message before it starts none, save at the very beginning.
    cuttable: where units start behind one that no cut may follow for its own sake: it ends with no user message, and
              every tool call in it has its result.
    users:    messages in the user role. prompts: those that follow no other one.
    heard:    messages in which a person speaks, as far as can be told; spoken: those of which that is sure.
    turns:    of the spoken, those that follow no other one. openers: those not said while the agent worked; tasks:
              those of them that ask for something.
    summaries, rules: messages with the client's own summary, and with files of rules.
    signed, loading, instructions: messages that carry signatures, that load tools, and of instructions.
    stored:   the first message that refers to what only the provider has; None without one.
    parted:   for every position, how many more pairs of a call and its result lie on both sides of it than of the one
              before. Ids are used again, and answered again: a result belongs to the oldest call with its id that still
              waits for one, so that no other way to pair them would be parted; where none waits, to the newest.
    answers:  of every message, which tools its results are of, in their order; None where a result answers no call.
    links:    of every message, which calls its results answer, as digests have it: by ordinals instead of ids.
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
    """Positions of results of shells that may show what strangers wrote."""

    _calls: dict[str, tuple[str, int, bool]] = {}
    """Of every id the tool and the message of its newest call, and whether that brings what strangers wrote."""

    _waiting: dict[str, int] = {}
    _made: dict[str, tuple[int, int]] = {}
    _answer: int = 0
    _answers: dict[tuple[str | None, ...], tuple[str | None, ...]] = {}
    """Those in `answers`, each once: most messages answer the same few tools."""

    _is_known: bool = False
    _is_bare: bool = False
    """Whether a message in the user role was made of words alone."""

    _elements: dict[str, bool] = {}
    """The names of unknown elements of which messages were made."""

    _seen_patterns: dict[bytes, bool] = {}
    """The patterns of the texts in the user role that stood behind a tool's result."""

    def longer(self, messages: Sequence[Message]) -> Outline:
        """The outline of these messages, which begin with those of this one."""
        if self.length and len(messages) == self.head + self.length:
            return self
        if has_another_head(self.head, self.head + self.length, messages):
            head, barrier = head_of(messages)
            found = Outline(head, barrier)
            found._is_known = any(message.is_known for message in messages[:head])
        else:
            found = Outline(*map(_copy_value, msgspec.structs.astuple(self)))
        found._go_on(messages[found.head :])
        return found

    def _go_on(self, body: Sequence[Message]) -> None:
        for position in range(self.length, len(body)):
            message = body[position]
            self._see_form(body, position, message)
            self._see_calls(position, message)
            self._see_link(position, message)
            self._see_voices(body, position, message)
        self.length = len(body)

    def _see_form(self, body: Sequence[Message], position: int, message: Message) -> None:
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

    def _see_voices(self, body: Sequence[Message], position: int, message: Message) -> None:
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
        """Return what a person says in the message, given the messages before it.

        Behind a tool's result, a client that is not known may speak too. A bare text there is a person's, unless the
        same text, with its digits masked, has stood behind a result before.
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
        """Whether one of the results in a message may show what strangers wrote."""
        return self.foreign[-1:] == [position] or any(map(is_foreign, self.answers[position]))

    def _see_calls(self, position: int, message: Message) -> None:
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
        for script in message.scripts:  # its own result may not be there yet
            if 0 <= (begun := self._calls.get(script, (None, -1, False))[1]) < position:
                self.parted[begun + 1] += 1
                self.parted[position + 1] -= 1
        same = tuple(tools)
        self.answers.append(self._answers.setdefault(same, same))

    def _see_link(self, position: int, message: Message) -> None:
        """Ids enter only as ordinals, so renaming them changes nothing."""
        link = b""
        if message.role == "assistant":
            self._answer = position
            # Where every id stands first: thousands of results must not each search thousands of calls.
            for ordinal, call in reversed([*enumerate(message.calls)]):
                self._made[call.id] = (position, ordinal)
        elif message.results:
            link = b",".join([self._link(self._made.get(result)) for result in message.results])
        self.links.append(link)

    def _link(self, made: tuple[int, int] | None) -> bytes:
        """Which call a result answers: by its place in the latest round, or in one from before."""
        if made is None:
            return b"-"
        position, ordinal = made
        if position == self._answer and ordinal < len(_ORDINALS):
            return _ORDINALS[ordinal]
        return b"%d" % ordinal if position == self._answer else b"%d of %d" % (ordinal, position)


def links_of(body: Sequence[Message]) -> list[bytes]:
    """Of every message, which calls its results answer."""
    found = Outline()
    found._go_on(body)  # noqa: SLF001 - of its own class
    return found.links


def joins(messages: Sequence[Message], at: int) -> bool:
    """Whether a message goes on with the round of the one before it."""
    message = messages[at]
    return message.joins or (message.continues and messages[at - 1].role == "assistant")


def has_another_head(head: int, known: int, messages: Sequence[Message]) -> bool:
    """Whether the head of these messages may be another than that of the first `known` of them, which is so long."""
    return head == known or any(message.barrier for message in messages[known:])


def head_of(messages: Sequence[Message]) -> tuple[int, int]:
    """Length of the head, and the index of the barrier that it begins with."""
    for barrier in range(len(messages) - 1, -1, -1):
        if messages[barrier].barrier:
            after = range(barrier + 1, len(messages))
            return next((i for i in after if not joins(messages, i)), len(messages)), barrier
    for head, message in enumerate(messages):
        if message.role not in INSTRUCTION_ROLES:
            return head, 0
    return len(messages), 0


def _is_cuttable(unit: Sequence[Message]) -> bool:
    """Whether the last word of a unit is no user's, and all its calls have their results."""
    said = (m for m in reversed(unit) if m.role not in INSTRUCTION_ROLES)  # instructions that join it say nothing
    if (last := next(said, None)) is not None and last.is_user:
        return False
    calls = [call.id for message in unit for call in message.calls]
    return not calls or {result for message in unit for result in message.results}.issuperset(calls)


def _copy_value(value: Any) -> Any:
    return value.copy() if isinstance(value, list | dict) else value
