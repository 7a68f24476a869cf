"""The calls of a span with their results, each judged once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policies.transcript import ToolCall, Utterance
from policies.voices.parts import is_asking
from policies.work.effects import Effect
from policies.work.outcomes import NOT_KNOWN, Outcome, outcome_of
from policies.work.shell import Command
from policies.work.tools import (
    Kind,
    arguments_of,
    commands_in,
    effects_of,
    ends_by_showing,
    ends_something,
    kind_of,
    words_of,
)


@dataclass(frozen=True, slots=True)
class Done:
    """A call and what came of it. position: of its message. arguments: read; words: of the tool's name.

    result: None if none came. commands: that it runs in a shell. effects: on files, of one that did not fail.
    """

    call: ToolCall
    position: int
    arguments: object
    words: tuple[str, ...]
    commands: tuple[Command, ...]
    kind: Kind
    result: str | None = None
    outcome: Outcome = NOT_KNOWN
    effects: Sequence[Effect] = ()


def judge_call(call: ToolCall, position: int, answer: Utterance | None) -> Done:
    """One call and the result that answers it."""
    words = words_of(call.name)
    arguments = arguments_of(call.arguments)
    commands = commands_in(words, arguments)
    kind = kind_of(words, arguments, commands)
    result, outcome = None, NOT_KNOWN
    if answer is not None:
        result = answer.text
        shows = kind == "shell" and ends_by_showing(commands)
        is_shell = bool(commands) or kind == "other"
        stops = ends_something(words, commands)
        outcome = outcome_of(kind, result, answer.error, is_shell=is_shell, shows=shows, stops=stops)
        if outcome.result != "failed" and is_asking(call.name):
            outcome = outcome._replace(why="")  # a person's answer is told as that, for as long as it holds
    changes = kind != "read" and outcome.result != "failed"
    effects = effects_of(words, arguments, commands) if changes else ()
    return Done(call, position, arguments, words, commands, kind, result, outcome, effects)


Judge = Callable[[ToolCall, int, Utterance | None], Done]
"""`judged`, or the same that remembers what it found."""


def done_in(utterances: Sequence[Utterance], judge: Judge = judge_call) -> list[Done]:
    """Every call of the span, oldest first. A result answers the call with its id; where ids are used again, of the
    newest message that has one waiting, the first."""
    calls: list[tuple[ToolCall, int]] = []
    results: dict[int, Utterance] = {}
    waiting: dict[str, list[int]] = {}
    for utterance in utterances:
        waiting |= {call.id: [] for call in utterance.calls}
        for call in utterance.calls:
            waiting[call.id].append(len(calls))
            calls.append((call, utterance.position))
        answered = utterance.answers or ("" if utterance.role == "tool" else None)
        if answered is not None and (asked := waiting.get(answered)):
            results[asked.pop(0)] = utterance
    return [judge(call, position, results.get(at)) for at, (call, position) in enumerate(calls)]
