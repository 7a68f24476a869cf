"""A project that real agents work on, and the script of their work: reads, edits, searches and test runs, with talk.

All is made from one seed, and a step depends on its number alone, so that every run is the same session.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TASK = (
    "This is the billing service. Move every module in src/ from the old ledger to the new one, one module at a time. "
    "Read a module and what it imports before you change it, raise its REVISION with every change, and run "
    "`sh check.sh N` after each third change. Never change a public name, never touch migrations that are applied, and "
    "keep amounts in cents: floats were tried in March and lost money. Where two modules disagree about rounding, the "
    "one that talks to the bank is right. Tell in a sentence or two what you found before each step. Do not ask me; "
    "when all is done say what changed and what is left."
)
_FILES = 40
_VERBS = ("settle", "book", "reverse", "match", "split", "merge", "close", "reopen", "accrue", "allocate", "audit")
_NOUNS = ("invoice", "payment", "refund", "credit", "account", "period", "statement", "tax", "fee", "dispute", "batch")
_KINDS = ("int", "str", "Money", "Entry", "Account", "date", "list[Entry]", "dict[str, int]")
_TALK = (
    "The {noun} path still {verb}s through the old ledger, so the caller has to change first",
    "Rounding happens before the {noun} is stored, which is what the bank's side does as well",
    "I will {verb} it in the new ledger and leave the public name where it is",
    "Nothing else reads the {noun} table here; the import at the top is only for a type",
    "The check names one {noun} that is off by a cent, and that comes from the split above it",
    "It looks as if the order of {noun} and entry was swapped in the last change, on purpose",
)


@dataclass(frozen=True, slots=True)
class Step:
    """What the model does in one round: a command, or where an agent has tools of its own, a read or an edit."""

    kind: Literal["read", "edit", "run"]
    talk: str
    command: str
    path: str = ""
    old: str = ""
    new: str = ""


def make_project(folder: Path, steps: int, size: int = 1) -> tuple[Path, Path]:
    """Modules of 1 to 8 kB, or `size` times that, and what the check prints after each step: where they are, and a home
    beside them."""
    work, home = folder / "work", folder / "home"
    for each in (home, work / "src", work / ".checks"):
        each.mkdir(parents=True)
    for number in range(_FILES):
        (work / _path(number)).write_text(_module(number, size))
    for number in range(steps + 1):
        (work / ".checks" / f"{number}.txt").write_text(_check(number))
    (work / "check.sh").write_text('cat ".checks/$1.txt"\n')
    return work, home


def step(number: int) -> Step:
    """Counted from 1."""
    made = random.Random(number)
    talk = talk_of(made, made.choice((1, 1, 2, 3)))
    path = _path(_order(number))
    match number % 10:
        case 3 | 6 | 8:
            change = number // 10 * 3 + (number % 10 - 3) // 3 + (number % 10 == 8)
            path = _path(_order(number - 1))
            old, new = f"# revised {path}: start", f"# revised {path}: start, {change}: {talk_of(made, 1)}"
            order = f"sed -i 's|{old}.*|{new}|' {path} && grep -n -B3 -A12 revised {path}"
            return Step("edit", talk, order, path, old, new)
        case 5:
            word = made.choice(_NOUNS)
            return Step("run", talk, f"grep -n '{word}' src/*.py | head -n {made.randrange(15, 60)}")
        case 9:
            return Step("run", talk, f"sh check.sh {number}")
        case _:
            return Step("read", talk, f"cat {path}", path)


def _order(number: int) -> int:
    return number * 7 % _FILES


def _path(number: int) -> str:
    return f"src/{_VERBS[number % len(_VERBS)]}_{_NOUNS[number % 7]}_{number}.py"


def talk_of(made: random.Random, sentences: int) -> str:
    lines = made.sample(_TALK, min(sentences, len(_TALK)))
    return ". ".join(line.format(noun=made.choice(_NOUNS), verb=made.choice(_VERBS)) for line in lines) + "."


def _module(number: int, size: int) -> str:
    made = random.Random(1_000 + number)
    characters = size * made.randrange(1_000, 8_000)
    others = made.sample(range(_FILES), 3)
    lines = [f'"""The {made.choice(_NOUNS)} side of the ledger: {talk_of(made, 1)}"""', ""]
    lines += [f"from {_path(other)[:-3].replace('/', '.')} import {made.choice(_VERBS)}_{other}" for other in others]
    lines += ["", f"# revised {_path(number)}: start", f"REVISION = {made.randrange(100)}", ""]
    while sum(map(len, lines)) < characters:
        lines += [*_function(made), ""]
    return "\n".join(lines)


def _function(made: random.Random) -> Iterator[str]:
    verb, noun, other = made.choice(_VERBS), made.choice(_NOUNS), made.choice(_NOUNS)
    name, kind = f"{verb}_{noun}_{made.randrange(1_000)}", made.choice(_KINDS)
    yield f"def {name}({noun}: {kind}, {other}_id: int, *, force: bool = False) -> {made.choice(_KINDS)}:"
    yield f'    """{talk_of(made, 1)}"""'
    for _ in range(made.randrange(2, 7)):
        field, cents = made.choice(_NOUNS), made.randrange(100_000)
        match made.randrange(4):
            case 0:
                yield f"    if {noun}.{field}_total > {cents} and not force:"
                yield f'        raise ValueError(f"{{{noun}}} is over the {field} limit of {cents} cents")'
            case 1:
                yield f"    for entry in ledger.{verb}({other}_id, since={cents}):"
                yield f"        {field} = entry.amount - {made.randrange(900)}  # {made.choice(_NOUNS)} first"
            case 2:
                yield f"    {field}_key = ({other}_id, {cents}, '{made.randrange(16**6):06x}')"
            case _:
                yield f"    assert {noun}_id not in closed_{field}s, {cents}"
    yield f"    return {verb}({noun}, {made.randrange(10_000)})"


def _check(number: int) -> str:
    made = random.Random(2_000 + number)
    lines = [f"collected {made.randrange(200, 400)} items"]
    for at in range(made.randrange(20, 70)):
        verb, noun = made.choice(_VERBS), made.choice(_NOUNS)
        lines.append(f"tests/test_{noun}_{at}.py::test_{verb}_{noun} PASSED [{made.randrange(1, 900)} ms]")
    lines.append(f"E   assert {made.randrange(10_000)} == {made.randrange(10_000)}  # {made.choice(_NOUNS)}, in cents")
    lines.append(f"1 failed, {len(lines)} passed in {made.randrange(3, 40)} s")
    return "\n".join([*lines, ""])
