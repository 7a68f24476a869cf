"""The sort of a call in a record: a check, a change, a file that was read, a plan, or none of these."""

import re
from collections.abc import Iterator
from typing import Literal

from policies.authorship.arguments import path_of
from policies.tool_calls.attempts import SIDE, program_of
from policies.tool_calls.calls import Done
from policies.tool_calls.shell import UNKNOWN, Command
from policies.tool_calls.tools import reads_file
from policies.tool_calls.wording import readable
from policies.vocabulary import words_of_sort

Sort = Literal["", "read", "look", "change", "check", "plan"]
"""read: of an existing file. look: at anything else, by a shell. change: of files or a repository. check: of the work.
plan: of future work.
"""

# Words in the names of programs, verbs, scripts and tools that only check: tests, builds, lint, types.
_TOOL_CHECKING = words_of_sort("check")
_CHECKING_NAMES = """
assemble bazel biome check clippy coverage ctest cypress e2e eslint flake8 gcc golangci gradle gradlew javac jest ktlint
linter make mocha msbuild mvn mvnw mypy ninja nox phpstan phpunit playwright pylint pyright pytest rspec rubocop ruff
rustc shellcheck spec specs stylelint tox tsc validate verify vet vitest xcodebuild
"""
_CHECKING = _TOOL_CHECKING.union(_CHECKING_NAMES.split())
# Other verbs of these programs, and programs whose verbs or images may have such a name, are no check.
_NO_CHECK = frozenset({"install", "clean", "format", "fmt", "fix", "init", "add", "serve", "dev", "start", "deploy"})
_NO_CHECKERS = frozenset({"git", "gh", "test", "[", "kubectl"})
_RUNNING = frozenset({"go", "cargo", "docker", "podman", "dotnet", "make"})
_SCRIPTED = frozenset({"ruby", "perl", "php", "bash", "sh", "zsh", "pwsh", "tsx", "py", "deno"})
# Different ways to call the same check.
_CALLED = re.compile(
    r"\A(?:(?:uv|poetry|pipenv|hatch|rye|pdm) run |npx |bunx |(?:pnpm|yarn|bun) (?:exec|dlx) |python3? -m )"
    r"|(?<=\Anpm )run |(?<=\Abun )run |(?<=\Apnpm )run |(?<=\Ayarn )run "
)
_WORD = re.compile(r"[^\W_]+")
# Verbs of git that change a repository. Other verbs show something or change files.
_COMMITTING = frozenset(
    {
        "commit",
        "push",
        "merge",
        "rebase",
        "reset",
        "revert",
        "cherry-pick",
        "tag",
        "pull",
        "checkout",
        "switch",
        "stash",
    }
)
_PRINTING = frozenset({"cat", "head", "tail", "less", "more", "bat", "nl", "sed", "get-content", "gc", "type"})
# Programs that may accompany a reading, since they show nothing of a file.
_ACCOMPANYING = SIDE - _PRINTING - {"grep", "wc", "sort", "tee"}
# Line numbers that `sed` is to print.
_LINE_NUMBERS = re.compile(r"(?:(?:\d{1,7}|\$)(?:,[+~]?(?:\d{1,7}|\$))?[pq]?[; ]{0,2}){1,9}")
_MOST_CHARACTERS = 400
# Programs and verbs that only show something, and options with which `curl` sends something.
_LOOKING = frozenset({"curl", "ps", "df", "du", "env", "which", "ping", "dig", "netstat", "ss", "lsof", "jq", "tree"})
_LOOKING_VERBS = frozenset(
    {"logs", "log", "status", "view", "show", "list", "describe", "diff", "inspect", "get", "info"}
)
_SENDING = frozenset({"-X", "--request", "-d", "--data", "-F", "--form", "-T", "--data-raw", "--json"})


def sort_of(done: Done) -> tuple[Sort, str]:
    """Return the sort of a call and its object: the file that it reads, or what it checks (see `covers`)."""
    if checks := [*_checks(done)]:
        return "check", "\n".join(dict.fromkeys(checks))[:_MOST_CHARACTERS]
    if done.kind == "read":
        return "read", _file_read(done)
    if done.kind == "plan":
        return "plan", ""
    if done.kind == "change" or done.effects or any(map(_commits, done.commands)):
        return "change", ""
    return ("look" if _only_looks(done) else ""), ""


def _only_looks(done: Done) -> bool:
    """Return True if every command only shows something, by its verb or its program."""
    shown = [command for command in done.commands if command.program and command.program not in SIDE]
    return bool(shown) and all(map(_looks, shown))


def _looks(command: Command) -> bool:
    verbs = {word.lower() for word in command.words[1:4]}
    changes = command.program == "curl" and not _SENDING.isdisjoint(command.words)
    return (command.program in _LOOKING and not changes) or not _LOOKING_VERBS.isdisjoint(verbs)


def covers(later: str, earlier: str) -> bool:
    """Return True if a run covers all checks of an earlier one: with the same operands, or without operands."""
    run = set(later.split("\n"))
    return all(check in run or check.partition("\t")[0] in run for check in earlier.split("\n"))


def _checks(done: Done) -> Iterator[str]:
    """Yield each check with its operands."""
    if not done.commands:
        if done.kind in ("other", "read") and not _TOOL_CHECKING.isdisjoint(done.words):
            yield "\t".join((done.call.name, readable(done.arguments))) if done.arguments else done.call.name
        return
    for command in done.commands:
        if command.program and command.program not in SIDE and (name := _check_of(command)):
            _, start = program_of(command)
            operands = [word for word in command.words[start:] if not word.startswith("-") and UNKNOWN not in word]
            yield "\t".join((name, *(" ".join(operand.split()) for operand in operands)))


def _check_of(command: Command) -> str:
    """Return the name of a command if it is a check; else an empty text."""
    name, _ = program_of(command)
    program, verb = command.program, next(iter(command.words[1:2]), "")
    if program in _NO_CHECKERS or verb in _NO_CHECK or (program in _RUNNING and verb == "run"):
        return ""
    if program in _SCRIPTED and not verb.startswith("-"):
        name = f"{program} {verb}"
    words = {word.lower() for word in _WORD.findall(name)}
    return _CALLED.sub("", name) if not _CHECKING.isdisjoint(words) and _NO_CHECK.isdisjoint(words) else ""


def _commits(command: Command) -> bool:
    return command.program == "git" and not _COMMITTING.isdisjoint(command.words[1:4])


def _file_read(done: Done) -> str:
    """Return the only file whose text a call shows, as a whole or by range; empty for any other call."""
    if not done.commands:
        return path_of(done.arguments) or "" if reads_file(done.words, done.arguments) else ""
    printing = [command for command in done.commands if command.program and command.program not in _ACCOMPANYING]
    if not printing or not all(map(_shows_range, printing)) or not all(command.piped for command in printing[:-1]):
        return ""
    if any(_files_of(command) for command in printing[1:]):
        return ""
    files = _files_of(printing[0])
    path = printing[0].path(files[0]) if len(files) == 1 else None
    return path or ""


def _shows_range(command: Command) -> bool:
    """Return True if a command shows lines as they are, all of them or those of some numbers."""
    if command.program not in _PRINTING:
        return False
    return command.program != "sed" or any(map(_LINE_NUMBERS.fullmatch, command.words[1:]))


def _files_of(command: Command) -> list[str]:
    return [word for word in command.words[1:] if "." in word or "/" in word if not word.startswith("-")]
