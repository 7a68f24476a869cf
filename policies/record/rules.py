"""Files of rules for agents (CLAUDE.md, AGENTS.md and similar) that no sent message contains, word for word.

Rules that a client puts into a user message are sent unchanged (`Conversation.rules`). This module has the files that a
tool has read, and those too large for that.
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import msgspec

from policies.authorship.arguments import path_of
from policies.authorship.wrappers import RULE_FILES
from policies.conversation.transcript import CountTokens, ToolCall, Utterance, escape
from policies.record.call_lines import in_line
from policies.record.left_out import LeftOut
from policies.record.texts import Texts
from policies.statements.ledger import rank_of
from policies.tool_calls.code_mode import answered_call, printed_text, script_in
from policies.tool_calls.shell import Command
from policies.tool_calls.tools import arguments_of, commands_in, reads_file, words_of
from policies.vocabulary import arguments_of_sort

_MOST_CHARACTERS = 120_000
_MOST_FILES = 20
_PRINTING = frozenset({"cat", "bat", "less", "more", "type", "get-content", "gc"})
_PRINTED = re.compile(r"\b(?:cat|bat|less|more|type|get-content|gc)\b", re.IGNORECASE)
_READ = 2_000
# Arguments that select a part of a file, in lower case without underscores.
_PARTLY = frozenset(arguments_of_sort("part"))
_NUMBER = re.compile(r"^[ \t]{0,9}\d{1,6}(?:→|\t|\| ?|: )", re.MULTILINE)
_FAILED = ("error", "<tool_use_error", "file does not exist", "cat:")
_REMINDER = "\n<system-reminder>"
_HEADING = re.compile(r"\s{0,3}#{1,6}\s")


class RuleFile(msgspec.Struct, frozen=True):
    """A file of rules.

    name: its path, or its name in the client's text.
    position: of the message that contains it.
    """

    name: str
    text: str
    position: int


def file_read_by(call: ToolCall) -> str | None:
    """Return the file that a call reads as a whole, by a tool or a shell; None for any other call."""
    call = answered_call(call)
    if script_in(call.name, call.arguments) is not None:
        return None
    words, arguments = words_of(call.name), arguments_of(call.arguments)
    if isinstance(arguments, dict) and any(
        value and key.replace("_", "").lower() in _PARTLY for key, value in arguments.items()
    ):
        return None
    if path := path_of(arguments):
        return path if reads_file(words, arguments) else None
    if _PRINTED.search(call.arguments[:_READ]) is None:  # much faster than parsing a command
        return None
    commands = commands_in(words, arguments)
    return next((path for command in commands if (path := _file_printed_by(command))), None)


def _file_printed_by(command: Command) -> str | None:
    """Return the file that a command prints to the output, alone and as a whole."""
    if command.program.lower() not in _PRINTING or command.piped or command.redirects:
        return None
    files = [word for word in command.words[1:] if not word.startswith("-")]
    return command.path(files[0]) if len(files) == 1 else None


FileReadBy = Callable[[ToolCall], str | None]
"""`file_read_by`, or a version of it with a cache."""


def rule_files(
    older: Sequence[RuleFile],
    utterances: Sequence[Utterance],
    sent: Collection[int],
    read_by: FileReadBy = file_read_by,
) -> tuple[RuleFile, ...]:
    """Return the newest reading of each file in everything covered, except those in messages that are `sent`."""
    files = {file.name: file for file in older if file.position not in sent}
    reading: dict[str, str] = {}
    for utterance in utterances:
        reading |= {call.id: name for call in utterance.calls if (name := read_by(call)) and RULE_FILES.search(name)}
        if utterance.role == "user" and utterance.voice == "instructions" and utterance.position not in sent:
            files |= {utterance.by: RuleFile(utterance.by, utterance.text[:_MOST_CHARACTERS], utterance.position)}
        name = reading.get(utterance.answers or "")
        if name is not None and utterance.role == "tool" and (text := content_of_file(utterance)):
            files |= {name: RuleFile(name, text[:_MOST_CHARACTERS], utterance.position)}
    return tuple([*files.values()][-_MOST_FILES:])


def content_of_file(utterance: Utterance) -> str:
    """Return the content of a file that was read, without line numbers and the client's additions; empty on failure."""
    text = printed_text(utterance.text).partition(_REMINDER)[0]
    if utterance.error or text.lstrip()[:40].lower().startswith(_FAILED):
        return ""
    lines = text.splitlines()
    numbered = sum(1 for line in lines if _NUMBER.match(line))
    return (_NUMBER.sub("", text) if numbered and numbered >= len(lines) - 3 else text).strip()


class FilesBlock(NamedTuple):
    """The lines of files under a title.

    left_out: the missing lines of every file that is shortened or missing.
    """

    lines: list[str]
    left_out: list[LeftOut]


def files_block(title: str, files: Sequence[RuleFile], texts: Texts, room: int, count: CountTokens) -> FilesBlock:
    """Return the files within `room` tokens: whole if they fit, else the most binding lines first."""
    lines: list[str] = []
    left_out: list[LeftOut] = []
    room -= count(f"## {title}") + 8
    for file in reversed(files):
        shown, missing = _lines_that_fit(file.text, room - count(file.name) - 8, texts, count)
        if missing:
            left_out.append(LeftOut("rules", file.position, "\n".join([f"{in_line(file.name)}:", *missing])))
        if shown:
            section = ["", f"### {escape(' '.join(file.name.split()))}", *shown]
            room -= count("\n".join(section))
            lines = [*section, *lines]
    return FilesBlock(["", f"## {title}", *lines[1:]] if lines else [], left_out)


def _lines_that_fit(text: str, room: int, texts: Texts, count: CountTokens) -> tuple[list[str], list[str]]:
    """Return the lines that fit, and the missing ones. Headings come first, then the most binding lines."""
    lines = [f"> {escape(line)}" for line in text.splitlines()]
    if count("\n".join(lines)) <= room:
        return lines, []
    nonempty = [at for at, line in enumerate(lines) if line != "> "]
    room -= count(texts.rules_left_out.format(lines=len(nonempty)))
    chosen: set[int] = set()
    for at in sorted(nonempty, key=lambda at: (_precedence(lines[at].removeprefix("> ")), at)):
        cost = count(lines[at]) + 1
        if cost <= room:
            chosen.add(at)
            room -= cost
    missing = [lines[at].removeprefix("> ") for at in nonempty if at not in chosen]
    if not chosen:
        return [], missing
    return [*(lines[at] for at in sorted(chosen)), texts.rules_left_out.format(lines=len(missing))], missing


def _precedence(line: str) -> int:
    if _HEADING.match(line):
        return 0
    rank = rank_of(line.strip().removeprefix("- "))
    return 4 if rank is None else 1 + rank
