"""Every requirement is held by a test that is marked with it."""

from __future__ import annotations

import pytest

from tests.house import requirements

pytestmark = pytest.mark.slow

ROWS = {number: row for document in requirements.documents().values() for number, row in document.requirements.items()}


def test_every_requirement_has_a_test_or_says_why_it_has_none() -> None:
    marked = requirements.marked_tests()
    assert len(ROWS) > 100
    assert not [number for number, row in ROWS.items() if row.tested and number not in marked]
    assert not [number for number, row in ROWS.items() if not row.tested and (number in marked or not row.instead)]


def test_every_mark_names_a_requirement() -> None:
    assert not requirements.marked_tests().keys() - ROWS.keys()


def test_the_list_has_every_requirement_with_its_tests() -> None:
    page = requirements.page()
    assert all(f"\n| {number} | {row.asks}" in page for number, row in ROWS.items())
    assert "test_requirements.py" not in page
