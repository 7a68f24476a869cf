"""Failed attempts: failed calls that no later success of the same kind resolved."""

from collections.abc import Sequence

import msgspec

from policies.authorship.arguments import path_of, strings_in
from policies.tool_calls.calls import Done
from policies.tool_calls.patches import patch_effects
from policies.tool_calls.shell import UNKNOWN, Command
from policies.tool_calls.wording import readable

_MOST = 40
# Programs with verbs. The next word belongs to the program's name.
_WITH_VERBS = frozenset(
    [
        *("git", "npm", "pnpm", "yarn", "bun", "cargo", "go", "docker", "kubectl", "make", "pip"),
        *("pip3", "uv", "poetry", "mvn", "gradle", "./gradlew", "dotnet", "gh", "terraform", "apt"),
        *("apt-get", "brew", "npx", "python", "python3", "node"),
    ]
)
# Auxiliary programs, which are not the purpose of a call.
SIDE = frozenset(
    [
        *("cd", "echo", "export", "set", "source", ".", "sleep", "true", "pwd", "mkdir", "tail"),
        *("head", "cat", "grep", "tee", "wc", "sort", "printf", "exit"),
    ]
)
_RUNS = frozenset({"run", "exec", "-m"})


class Attempt(msgspec.Struct, frozen=True):
    """A failed call.

    kind: its effect, by tool and program.
    target: the objects it was applied to.
    times: how often it failed.
    """

    tool: str
    arguments: str
    why: str
    position: int
    kind: str
    target: tuple[str, ...] = ()
    times: int = 1


def attempts_in(older: Sequence[Attempt], done: Sequence[Done]) -> list[Attempt]:
    """Return the failed attempts in everything covered, the newest last."""
    attempts = {(attempt.kind, attempt.target): attempt for attempt in older}
    for call in done:
        if call.outcome.result == "unknown" or (call.kind == "read" and call.outcome.why.startswith("exit code")):
            continue  # a search without matches
        kind, target = _kind(call)
        if call.outcome.result == "ok":
            for key in [key for key in attempts if _resolves(kind, target, key)]:
                del attempts[key]
        else:
            earlier = attempts.pop((kind, target), None)
            attempts[kind, target] = Attempt(
                call.call.name, readable(call.arguments), call.outcome.why, call.position, kind, target,
                times=earlier.times + 1 if earlier else 1,
            )  # fmt: skip
    return [*attempts.values()][-_MOST:]


def _resolves(kind: str, target: tuple[str, ...], failed: tuple[str, tuple[str, ...]]) -> bool:
    """Return True if a success resolves a failure: same kind, and the same target or everything."""
    return kind == failed[0] and (target == failed[1] or not target)


def _kind(done: Done) -> tuple[str, tuple[str, ...]]:
    if not done.commands:
        path = path_of(done.arguments)
        if done.kind == "change":
            return "change", (path,) if path else _patched_paths(done) or (done.call.name,)
        return done.call.name, (path,) if path else _whole_arguments(done.arguments)
    main = next(
        (command for command in done.commands if command.program and command.program not in SIDE), done.commands[0]
    )
    program, start = program_of(main)
    operands = [word for word in main.words[start:] if not word.startswith("-") and UNKNOWN not in word]
    return program, tuple(operands)


def _patched_paths(done: Done) -> tuple[str, ...]:
    """Return the files that a patch changes."""
    texts = (done.arguments,) if isinstance(done.arguments, str) else tuple(strings_in(done.arguments))
    return tuple(sorted({effect.path for text in texts for effect in patch_effects(text)}))


def program_of(command: Command) -> tuple[str, int]:
    """Return a program with its verb, and the number of words of both."""
    words, program = command.words, command.program
    if program not in _WITH_VERBS or len(words) < 2:
        return program, 1
    at = 2
    if words[1] in _RUNS and len(words) > 2:
        at = 3
    if program.startswith("python") and words[1] == "-m" and len(words) > 2 and words[2] == "pytest":
        return "pytest", 3
    return " ".join((program, *words[1:at])), at


def _whole_arguments(arguments: object) -> tuple[str, ...]:
    """Return the target of a call of an unknown kind: all its arguments."""
    return (readable(arguments),) if arguments else ()
