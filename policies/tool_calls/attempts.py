"""What was tried in vain: failed calls that no later success of the same kind made good."""

from collections.abc import Sequence

import msgspec

from policies.authorship.arguments import path_of, strings_in
from policies.tool_calls.calls import Done
from policies.tool_calls.patches import patch_effects
from policies.tool_calls.shell import UNKNOWN, Command
from policies.tool_calls.wording import readable

_MOST = 40
# Programs with verbs of their own; their next word belongs to what they are.
_WITH_VERBS = frozenset(
    [
        *("git", "npm", "pnpm", "yarn", "bun", "cargo", "go", "docker", "kubectl", "make", "pip"),
        *("pip3", "uv", "poetry", "mvn", "gradle", "./gradlew", "dotnet", "gh", "terraform", "apt"),
        *("apt-get", "brew", "npx", "python", "python3", "node"),
    ]
)
# Programs beside what a call is for.
SIDE = frozenset(
    [
        *("cd", "echo", "export", "set", "source", ".", "sleep", "true", "pwd", "mkdir", "tail"),
        *("head", "cat", "grep", "tee", "wc", "sort", "printf", "exit"),
    ]
)
_RUNS = frozenset({"run", "exec", "-m"})


class Attempt(msgspec.Struct, frozen=True):
    """A failed call. kind: what it did, by tool and program; target: what it did it to; times: how often it failed."""

    tool: str
    arguments: str
    why: str
    position: int
    kind: str
    target: tuple[str, ...] = ()
    times: int = 1


def attempts_in(older: Sequence[Attempt], done: Sequence[Done]) -> list[Attempt]:
    """What was tried in vain in everything covered, the newest last."""
    found = {(attempt.kind, attempt.target): attempt for attempt in older}
    for each in done:
        if each.outcome.result == "unknown" or (each.kind == "read" and each.outcome.why.startswith("exit code")):
            continue  # a search that found nothing
        kind, target = _kind(each)
        if each.outcome.result == "ok":
            for key in [key for key in found if _makes_good(kind, target, key)]:
                del found[key]
        else:
            before = found.pop((kind, target), None)
            found[kind, target] = Attempt(
                each.call.name, readable(each.arguments), each.outcome.why, each.position, kind, target,
                times=before.times + 1 if before else 1,
            )  # fmt: skip
    return [*found.values()][-_MOST:]


def _makes_good(kind: str, target: tuple[str, ...], failed: tuple[str, tuple[str, ...]]) -> bool:
    """Whether a success undoes a failure: the same kind, and of the same target, or of all there is."""
    return kind == failed[0] and (target == failed[1] or not target)


def _kind(done: Done) -> tuple[str, tuple[str, ...]]:
    if not done.commands:
        path = path_of(done.arguments)
        if done.kind == "change":
            return "change", (path,) if path else _patched(done) or (done.call.name,)
        return done.call.name, (path,) if path else _told_arguments(done.arguments)
    main = next((each for each in done.commands if each.program and each.program not in SIDE), done.commands[0])
    program, start = program_of(main)
    operands = [word for word in main.words[start:] if not word.startswith("-") and UNKNOWN not in word]
    return program, tuple(operands)


def _patched(done: Done) -> tuple[str, ...]:
    """Return the files that a patch was for."""
    texts = (done.arguments,) if isinstance(done.arguments, str) else tuple(strings_in(done.arguments))
    return tuple(sorted({effect.path for text in texts for effect in patch_effects(text)}))


def program_of(command: Command) -> tuple[str, int]:
    """A program with its verb, and how many words that takes."""
    words, program = command.words, command.program
    if program not in _WITH_VERBS or len(words) < 2:
        return program, 1
    at = 2
    if words[1] in _RUNS and len(words) > 2:
        at = 3
    if program.startswith("python") and words[1] == "-m" and len(words) > 2 and words[2] == "pytest":
        return "pytest", 3
    return " ".join((program, *words[1:at])), at


def _told_arguments(arguments: object) -> tuple[str, ...]:
    """What a call of no known kind was about: all it was given."""
    return (readable(arguments),) if arguments else ()
