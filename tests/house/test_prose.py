"""The lint of docstrings and names finds what it counts."""

from __future__ import annotations

import ast

import pytest

from tests.house.prose import _habits_in, higher


@pytest.mark.parametrize(
    ("source", "habits"),
    [
        (
            'def parse():\n    """What it says where nothing is there."""',
            ["begins with a question", "where for if", "tell or say"],
        ),
        ('"""The same as above, for somebody."""', ["begins with a reference", "somebody"]),
        ('class Reader:\n    """A reader of requests."""', []),
        ("def told(one):\n    found = one", ["vague name"] * 3),
        ("def parse(body):\n    event = body", []),
    ],
)
def test_habits_are_counted(source: str, habits: list[str]) -> None:
    assert sorted(_habits_in(ast.parse(source))) == sorted(habits)


def test_a_count_may_fall_and_never_rise() -> None:
    most = {"proxy": {"ours": 2}}
    assert higher({"proxy": {"ours": 1}}, most) == []
    assert higher({"proxy": {"ours": 3, "somebody": 1}}, most) == [
        "proxy: ours: 3, at most 2",
        "proxy: somebody: 1, at most 0",
    ]
