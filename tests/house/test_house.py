"""Where things lie: tests mirror the source, shared parts are in tests/support, architecture.md names the folders."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
# Beside the folders that mirror the source: helpers, the whole under load, real programs, the repository itself, and
# files to run it with.
OTHERS = {"support", "world", "agents", "real", "sdk", "house", "browser", "deploy"}


def folders(package: str) -> set[str]:
    """Every folder of a package that holds modules, by its path from the repository."""
    return {str(file.parent.relative_to(ROOT)) for file in (ROOT / package).rglob("*.py")}


def test_no_module_imports_a_test_module() -> None:
    assert {file: names for file in TESTS if (names := [*imported_tests(file)])} == {}


def imported_tests(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
        yield from (name for name in names if any(part.startswith("test_") for part in name.split(".")))


def test_every_folder_of_tests_mirrors_one_of_the_source() -> None:
    mirrored = {folder.removeprefix("proxy/") for folder in folders("proxy") | folders("policies")}
    found = {str(file.parent.relative_to(ROOT / "tests")) for file in TESTS} - {"."}
    assert {folder for folder in found if folder.partition("/")[0] not in OTHERS} <= mirrored


def test_every_package_says_what_it_holds() -> None:
    packages = [file for package in ("policies", "proxy") for file in (ROOT / package).rglob("__init__.py")]
    assert [file for file in packages if not ast.get_docstring(ast.parse(file.read_text("utf-8")))] == []


def test_the_architecture_names_every_folder() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8").partition("## Folders")[2]
    named = set(re.findall(r"`((?:policies|proxy)/\w+)`", text))
    found = {"/".join(Path(folder).parts[:2]) for package in ("policies", "proxy") for folder in folders(package)}
    assert found - {"policies", "proxy"} <= named
