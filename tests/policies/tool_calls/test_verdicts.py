"""The rows of `verdicts.toml`: each proves with its own examples what it says."""

from __future__ import annotations

import re
from datetime import date

import pytest

from policies.tables import read_table
from policies.tool_calls.reasons import CODE
from policies.tool_calls.verdicts import VERDICTS, Verdict, proof_of, proven_in

FILE = read_table("policies.tool_calls", "verdicts")
ROWS = FILE["verdicts"]
_KEYS = {"tool", "has", "line", "result", "failed", "passed", "zero", "after", "runs", "scope", "examples"}


@pytest.mark.parametrize(
    ("verdict", "row"),
    [*zip(VERDICTS, ROWS, strict=True)],
    ids=[f"{row['tool']}:{row['examples'][0][0]}" for row in ROWS],
)
def test_a_row_proves_what_its_examples_say(verdict: Verdict, row: dict[str, object]) -> None:
    assert row.keys() <= _KEYS | {"source", "date"}
    assert row["source"]
    assert isinstance(row["date"], date)
    assert ("result" in row) != ("failed" in row or "passed" in row)
    examples = row["examples"]
    assert isinstance(examples, list)
    for line, proof in examples:
        assert (proof_of(verdict, line) or "unknown") == proof, line
    proofs = {proof for _, proof in examples}
    assert "after" in row or proofs & {"ok", "failed"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["examples"][0][0])
def test_a_mention_of_a_line_in_a_sentence_proves_nothing(row: dict[str, list[list[str]]]) -> None:
    line = row["examples"][0][0]
    assert proven_in([f"The log says: {line} and then more"], "") == []


def test_a_line_may_need_the_one_before_it() -> None:
    assert proven_in(["Ran 0 tests in 0.000s", "OK"], "") == []
    assert [each.result for each in proven_in(["Ran 2 tests in 0.001s", "OK"], "")] == ["ok"]


def test_a_line_may_need_the_program_that_prints_it() -> None:
    assert proven_in(["fatal: no such ref"], " echo ") == []
    assert [each.result for each in proven_in(["fatal: no such ref"], " git push origin ")] == ["failed"]


@pytest.mark.parametrize("row", FILE["exit_codes"], ids=lambda row: row["example"])
def test_an_exit_code_is_read_under_the_name_of_its_row(row: dict[str, str]) -> None:
    assert row.keys() == {"name", "has", "language", "example", "source", "date"}
    assert re.search(row["name"], row["example"], re.IGNORECASE)
    assert any(stem in row["example"].lower() for stem in row["has"])
    match = CODE.search(row["example"])
    assert match is not None
    assert match[1] == "1"
