"""Verdict lines of known tools, from `verdicts.toml`: what a line proves about a run."""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, cast

from policies.tables import read_table

Proof = Literal["ok", "failed"]
Scope = Literal["run", "error", "last", "change", "tool", "any"]
# Maximum characters of a line. Longer lines prove nothing.
_LONGEST = 400


class Verdict(NamedTuple):
    """A form of verdict lines. The fields are those of `verdicts.toml`; patterns match a whole line."""

    tool: str
    has: str
    line: re.Pattern[str]
    result: Proof | None
    failed: re.Pattern[str] | None
    passed: re.Pattern[str] | None
    zero: Proof | None
    after: re.Pattern[str] | None
    runs: tuple[str, ...]
    scope: Scope


class Proven(NamedTuple):
    """The proof in a line."""

    result: Proof
    line: str
    scope: Scope


def _verdict(row: Mapping[str, str | list[str]]) -> Verdict:
    texts = {key: value for key, value in row.items() if isinstance(value, str)}
    failed, passed = (re.compile(texts[key]) if key in texts else None for key in ("failed", "passed"))
    return Verdict(
        tool=texts["tool"],
        has=texts["has"],
        line=re.compile(rf"\A(?:{texts['line']})\Z"),
        result=cast("Proof | None", texts.get("result")),
        failed=failed,
        passed=passed,
        zero=cast("Proof | None", texts.get("zero")),
        after=re.compile(rf"\A(?:{texts['after']})\Z") if "after" in texts else None,
        runs=tuple(f" {program} " for program in row.get("runs", ())),
        scope=cast("Scope", texts.get("scope", "run")),
    )


_FILE = read_table("policies.tool_calls", "verdicts")
EXIT_CODE_NAMES = "|".join(row["name"] for row in _FILE["exit_codes"])
"""A case-insensitive regular expression for the text before an exit code."""
EXIT_CODE_STEMS = tuple(stem for row in _FILE["exit_codes"] for stem in row["has"])
"""Every such name contains one of these texts."""
VERDICTS = tuple(_verdict(row) for row in _FILE["verdicts"])
"""The forms, in the order of the file."""
_OF_RUNS = tuple(verdict for verdict in VERDICTS if verdict.scope in ("run", "error", "last"))
_OF_FIRST_LINES = {
    scope: tuple(verdict for verdict in VERDICTS if verdict.scope in scopes)
    for scope, scopes in (
        ("change", ("change", "tool", "any")),
        ("tool", ("tool", "any")),
        ("any", ("any",)),
    )
}


def proof_of(verdict: Verdict, line: str, before: str = "") -> Proof | None:
    """Return what a line proves by one form; None if nothing. before: the last line before it that is not blank."""
    if verdict.has not in line or len(line) > _LONGEST or verdict.line.match(line) is None:
        return None
    if verdict.after is not None and verdict.after.match(before) is None:
        return None
    if _count(verdict.failed, line):
        return "failed"
    if verdict.passed is not None:
        return "ok" if _count(verdict.passed, line) else None
    return verdict.zero if verdict.failed is not None else verdict.result


def _count(pattern: re.Pattern[str] | None, line: str) -> int:
    return sum(map(int, pattern.findall(line))) if pattern is not None else 0


def proven_in(lines: Sequence[str], ran: str) -> list[Proven]:
    """Return the proofs in lines, which are not blank. ran: the commands, with every word between spaces."""
    text = "\n".join(lines)
    proofs: list[Proven] = []
    for verdict in _OF_RUNS:
        if verdict.has not in text or (verdict.runs and not any(program in ran for program in verdict.runs)):
            continue
        for at, line in enumerate(lines):
            if verdict.scope == "last" and at < len(lines) - 1:
                continue
            if proof := proof_of(verdict, line, lines[at - 1] if at else ""):
                proofs.append(Proven(proof, line, verdict.scope))
    return proofs


def proven_first(line: str, scope: Literal["change", "tool", "any"]) -> Proven | None:
    """Return the proof in the first line of a result for a call of this scope; None if there is none."""
    for verdict in _OF_FIRST_LINES[scope]:
        if proof := proof_of(verdict, line):
            return Proven(proof, line, verdict.scope)
    return None
