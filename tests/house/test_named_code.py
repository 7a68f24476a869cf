"""Files define the names that architecture.md and extend.md attribute to them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PATH = r"`((?:policies|proxy|tests)/[\w/.-]+\.py)`"
_NAMES = r"((?:`[A-Za-z_][\w.]*`(?:, | and | or )?)+)"
_FILE_FIRST = re.compile(rf"{_PATH}: {_NAMES}")
_FILE_LAST = re.compile(rf"{_NAMES} (?:of |in |\(){_PATH}")
_CODE = re.compile(r"`([A-Za-z_][\w.]*)`")


@cache
def defined_in(path: Path) -> frozenset[str]:
    """What a module defines: classes, functions and fields, with and without their class, and names of its own."""

    def names(body: list[ast.stmt], prefix: str) -> list[str]:
        found = []
        for node in body:
            match node:
                case ast.ClassDef(name=name, body=inner):
                    found += [name, *names(inner, f"{name}.")]
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found += [name, prefix + name]
                case ast.Assign(targets=targets):
                    found += [prefix + each.id for each in targets if isinstance(each, ast.Name)]
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found += [name, prefix + name]
        return found

    return frozenset(names(ast.parse(path.read_text("utf-8")).body, ""))


def pairs(text: str) -> list[tuple[str, str]]:
    """Files and names that a text says they define."""
    text = " ".join(text.split())
    found = [*_FILE_FIRST.findall(text), *((file, names) for names, file in _FILE_LAST.findall(text))]
    return [(file, name) for file, names in found for name in _CODE.findall(names)]


@pytest.mark.parametrize(("document", "least"), [("docs/architecture.md", 15), ("docs/extend.md", 10)])
def test_a_file_defines_what_is_said_to_stand_in_it(document: str, least: int) -> None:
    found = pairs((ROOT / document).read_text("utf-8"))
    assert len(found) >= least
    assert not [f"{file}: {name}" for file, name in found if name not in defined_in(ROOT / file)]
