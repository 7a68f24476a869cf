"""Counts habits of language that are hard to read, by folder. The counts only fall: `python -m tests.house.prose`.

It is a part of `make check`. `--write` writes lower counts into prose.json, and refuses higher ones.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
COUNTS = Path(__file__).with_suffix(".json")
# What is counted in docstrings.
HABITS = {
    "begins with a question": r"^(?:What|Whether|Where|Who|Whose|How|Why)\b",
    "begins with a reference": r"^(?:The same|As above|Likewise|Of |It |One |That |Those )",
    "where for if": r"\b(?:None|nothing|empty|False) where\b|, where it\b|\bwhere (?:nothing|that|it|there|one)\b",
    "tell or say": r"\b(?:told|tells?|says?|said)\b",
    "somebody": r"\b(?:[Ss]ome|[Nn]o|[Aa]ny|[Ee]very)body\b|\b[Ww]hoever\b",
    "ours": r"\bof ours\b|\b[Oo]urs\b|\btheirs\b",
    "beside or behind": r"\b(?:beside|behind)\b",
    "lies or stands": r"\bunder way\b|\bgoes? on\b|\bstands?\b|\blies?\b",
}
# Names of functions, parameters and variables that do not say what they are.
VAGUE = frozenset(
    {
        *(
            "told",
            "said",
            "found",
            "known",
            "asked",
            "named",
            "kept",
            "left",
            "made",
            "begun",
            "seen",
            "held",
            "looked",
        ),
        *("taken", "given", "others", "there", "here", "one", "what", "which", "before", "after", "beside", "behind"),
        *("again", "whole", "rest", "way", "place", "first", "last", "once", "ahead", "lighter"),
    }
)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def counts() -> dict[str, dict[str, int]]:
    """Return the count of each habit in each folder; habits that do not occur are left out."""
    found: dict[str, Counter[str]] = {}
    for package in ("policies", "proxy"):
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).parts
            folder = "/".join(parts[:2]) if len(parts) > 2 else package
            found.setdefault(folder, Counter()).update(_habits_in(ast.parse(file.read_text("utf-8"))))
    return {folder: dict(sorted(row.items())) for folder, row in found.items()}


def _habits_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *_DEFINITIONS)) and (text := ast.get_docstring(node)):
            yield from (habit for habit, pattern in HABITS.items() if re.search(pattern, text))
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield from ["vague name"] if name in VAGUE else []
            case ast.Name(id=name, ctx=ast.Store()) if name in VAGUE:
                yield "vague name"


def higher(now: dict[str, dict[str, int]], most: dict[str, dict[str, int]]) -> list[str]:
    """Return a line for each count above its maximum."""
    return [
        f"{folder}: {habit}: {number}, at most {most.get(folder, {}).get(habit, 0)}"
        for folder, row in now.items()
        for habit, number in row.items()
        if number > most.get(folder, {}).get(habit, 0)
    ]


def main() -> None:
    now, most = counts(), json.loads(COUNTS.read_text("utf-8"))
    if lines := higher(now, most):
        sys.exit(
            "\n".join([*lines, "Rewrite what you added in plain English (CONTRIBUTING.md, Rules of the language)."])
        )
    if "--write" in sys.argv:
        COUNTS.write_text(json.dumps(now, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
