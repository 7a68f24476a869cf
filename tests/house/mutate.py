"""Breaks lines that matter, one by one, in a copy, and names those that no test notices: `make mutate`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("policies", "proxy", "tests")


def mutants() -> list[dict[str, str]]:
    """Return the rows of mutants.toml: `file`, the text `before` and `after`, the `tests` that must fail, and why."""
    rows: list[dict[str, str]] = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text("utf-8"))["mutants"]
    return rows


def is_noticed(folder: Path, row: dict[str, str]) -> bool:
    """Return True if a test fails with the mutant. folder: a copy of the repository."""
    file = folder / row["file"]
    text = file.read_text("utf-8")
    file.write_text(text.replace(row["before"], row["after"]), "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", *row["tests"].split()]
    ended = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False
    )
    file.write_text(text, "utf-8")
    if ended.returncode not in (0, 1):
        raise SystemExit(f"{row['file']}: the tests did not run: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    return ended.returncode == 1


def main() -> None:
    missed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in FOLDERS:
            shutil.copytree(ROOT / each, folder / each, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
        for file in ("pyproject.toml", "config.yaml"):
            shutil.copy(ROOT / file, folder / file)
        for row in mutants():
            seen = is_noticed(folder, row)
            print(f"{'noticed' if seen else 'MISSED '}  {row['file']}: {row['why']}", flush=True)  # noqa: T201
            missed += [] if seen else [row]
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
