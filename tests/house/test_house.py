"""Where things lie: tests mirror the source, what they share is in tests/support, and README's map is the tree."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
# Beside the folders that mirror the source: helpers, the whole under load, real programs, and the repository itself.
OTHERS = {"support", "world", "agents", "real", "sdk", "house"}


def folders(package: str) -> set[str]:
    """Every folder of a package that holds modules, by its path from the repository."""
    return {str(file.parent.relative_to(ROOT)) for file in (ROOT / package).rglob("*.py")}


@pytest.mark.parametrize("file", TESTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_module_imports_a_test_module(file: Path) -> None:
    nodes = [*ast.walk(ast.parse(file.read_text("utf-8")))]
    imported = [alias.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    imported += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    assert not [name for name in imported if any(part.startswith("test_") for part in name.split("."))]


def test_every_folder_of_tests_mirrors_one_of_the_source() -> None:
    mirrored = {folder.removeprefix("proxy/") for folder in folders("proxy") | folders("policies")}
    found = {str(file.parent.relative_to(ROOT / "tests")) for file in TESTS} - {"."}
    assert {folder for folder in found if folder.partition("/")[0] not in OTHERS} <= mirrored
