"""The calls of a span with their results. Each call is judged once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from policies.authorship.parts import is_asking
from policies.conversation.transcript import ToolCall, Utterance
from policies.tool_calls.code_mode import exit_codes, inner_calls, script_in, script_result
from policies.tool_calls.effects import Effect
from policies.tool_calls.outcomes import NOT_KNOWN, OK, Ground, Outcome, outcome_of
from policies.tool_calls.shell import Command
from policies.tool_calls.tools import (
    Kind,
    arguments_of,
    commands_in,
    effects_of,
    ends_by_showing,
    ends_something,
    kind_of,
    looks_up,
    main_commands,
    shows_text,
    words_of,
)


@dataclass(frozen=True, slots=True)
class Done:
    """A call and its outcome.

    position: of its message.
    arguments: parsed. words: of the tool's name.
    result: None if there is none.
    commands: the shell commands that it runs.
    effects: on files, unless the call failed.
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


def judge_call(call: ToolCall, position: int, answer: Utterance | None) -> tuple[Done, ...]:
    """Return a call with its result. For a script, also return the calls in it."""
    if script_in(call.name, call.arguments) is not None:
        return tuple(_judge_script(call, position, answer))
    return (_judge(call, position, answer),)


def _judge_script(call: ToolCall, position: int, answer: Utterance | None) -> Iterator[Done]:
    """Yield the calls in a script, then the script itself with its result.

    If there is only one call, yield that call with the result instead.
    """
    state, output = script_result(answer.text) if answer is not None else ("", "")
    error = True if state == "failed" or (answer is not None and answer.error) else None
    inner = inner_calls(call)
    if len(inner) == 1:
        result = replace(answer, text=output, error=error) if answer is not None and state != "running" else None
        yield _judge(inner[0], position, result, is_complete=state == "completed")
        return
    for inner_call in inner:
        done = _judge(inner_call, position, None)
        is_certain = state == "completed" and not error and done.kind in ("change", "plan")
        yield replace(done, outcome=OK) if is_certain else done
    outcome = NOT_KNOWN
    if state != "running" and answer is not None:
        outcome = outcome_of("other", output, True if any(exit_codes(output)) else error, Ground(is_shell=True))
        outcome = OK if outcome.result == "unknown" and not outcome.why and state == "completed" else outcome
    yield Done(call, position, script_in(call.name, call.arguments), words_of(call.name), (), "other", output, outcome)


def _judge(call: ToolCall, position: int, answer: Utterance | None, *, is_complete: bool = False) -> Done:
    """Return one call with its result. is_complete: True if the tool is known to have succeeded."""
    words = words_of(call.name)
    arguments = arguments_of(call.arguments)
    commands = commands_in(words, arguments)
    kind = kind_of(words, arguments, commands)
    result, outcome = None, NOT_KNOWN
    if answer is not None:
        result = answer.text
        shows = shows_text(commands) if kind == "read" else kind == "shell" and ends_by_showing(commands)
        main = main_commands(commands)
        ground = Ground(
            bool(commands) or kind == "other", shows, ends_something(words, arguments, commands),
            looks=not commands and looks_up(words), ran=" ".join(map(_program_words, commands)), is_one=len(main) < 2,
        )  # fmt: skip
        outcome = outcome_of(kind, result, answer.error, ground)
        if is_complete and kind in ("change", "plan") and outcome.result == "unknown":
            outcome = OK
        if outcome.result != "failed" and is_asking(call.name):
            outcome = outcome._replace(why="")  # the record has the person's response as a statement of theirs
    changes = kind != "read" and outcome.result != "failed"
    effects = effects_of(words, arguments, commands) if changes else ()
    return Done(call, position, arguments, words, commands, kind, result, outcome, effects)


def _program_words(command: Command) -> str:
    """Return a program and its first words that are no options, each between spaces."""
    words = (word for word in command.words[1:5] if not word.startswith("-"))
    return " ".join(("", command.program, *words, ""))


Judge = Callable[[ToolCall, int, Utterance | None], tuple[Done, ...]]
"""`judge_call`, or a version of it with a cache."""


def done_in(utterances: Sequence[Utterance], judge: Judge = judge_call) -> list[Done]:
    """Return every call of the span, oldest first.

    A result belongs to the call with its id. If ids repeat, it belongs to the first pending call of the newest message.
    """
    calls: list[tuple[ToolCall, int]] = []
    results: dict[int, Utterance] = {}
    waiting: dict[str, list[int]] = {}
    for utterance in utterances:
        waiting |= {call.id: [] for call in utterance.calls}
        for call in utterance.calls:
            waiting[call.id].append(len(calls))
            calls.append((call, utterance.position))
        call_id = utterance.answers or ("" if utterance.role == "tool" else None)
        if call_id is not None and (pending_indexes := waiting.get(call_id)):
            results[pending_indexes.pop(0)] = utterance
    return [done for at, (call, position) in enumerate(calls) for done in judge(call, position, results.get(at))]
