"""Prints what was asked for and the tests that hold it: `python -m tests.house.requirements`."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

HEAD = """\
# Requirements

Five documents (R0 to R4), written for other programs, say what was asked for. A row has the number of a rule
there, what it asks, in italics what holds instead, and its tests. docs/design.md says where the documents disagree.

Three differences hold for all of them. An API has no ids and times of messages: the digest of the covered prefix
takes the place of ids, positions that of turns. Times are those at which the proxy first saw a conversation. Nothing is
written into the client's history. There is no object to configure or reset: a policy is a value.
"""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One rule of a document; what holds instead, if something does; and whether a test has to hold it."""

    asks: str
    instead: str
    tested: bool


@dataclass(frozen=True, slots=True)
class Document:
    """A document of requirements: those of its own by their ids, such as `R0 3.2`."""

    title: str
    about: str
    requirements: dict[str, Requirement]


def documents() -> dict[str, Document]:
    """The documents of requirements.toml, by their short names."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    return {
        name: Document(
            table["title"],
            table["about"],
            _rows(name, table["asks"], True) | _rows(name, table.get("untested", {}), False),
        )
        for name, table in tables.items()
    }


def _rows(document: str, rows: dict[str, str | list[str]], tested: bool) -> dict[str, Requirement]:
    """A row is a sentence, or a sentence and what holds instead."""
    pairs = {number: [row, ""] if isinstance(row, str) else row for number, row in rows.items()}
    return {f"{document} {number}": Requirement(asks, instead, tested) for number, (asks, instead) in pairs.items()}


def marked_tests() -> dict[str, list[str]]:
    """The tests that are marked with each requirement, as file::name. They are parsed, not imported."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py"), key=lambda file: file.name):
        text = file.read_text("utf-8")
        functions = ast.walk(ast.parse(text)) if "mark.requirement(" in text else ()
        for function in functions:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for requirement in _ids(function):
                    found.setdefault(requirement, []).append(f"{file.name}::{function.name}")
    return found


def _ids(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The ids in its `@pytest.mark.requirement(…)`."""
    calls = [decorator for decorator in function.decorator_list if isinstance(decorator, ast.Call)]
    marks = [call for call in calls if ast.unparse(call.func) == "pytest.mark.requirement"]
    return [ast.literal_eval(argument) for mark in marks for argument in mark.args]


def page() -> str:
    """Return the list as Markdown."""
    tests = marked_tests()
    lines = [HEAD]
    for name, document in documents().items():
        lines += [f"## {name}: {document.title}", "", document.about, "", "| | what it asks | tests |", "|---|---|---|"]
        for number, row in document.requirements.items():
            asked = f"{row.asks} *{row.instead}*" if row.instead else row.asks
            lines.append(f"| {number} | {asked} | {', '.join(tests.get(number, ())) or '–'} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page())  # noqa: T201
