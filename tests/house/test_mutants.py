"""Every mutant changes one place of the code, so that `make mutate` can play it."""

from __future__ import annotations

from tests.house.mutate import ROOT, mutants


def test_every_mutant_changes_one_place() -> None:
    places = {row["why"]: (ROOT / row["file"]).read_text("utf-8").count(row["before"]) for row in mutants()}
    assert {why: number for why, number in places.items() if number != 1} == {}


def test_the_tests_of_every_mutant_are_there() -> None:
    assert [name for row in mutants() for name in row["tests"].split() if not (ROOT / name).exists()] == []
