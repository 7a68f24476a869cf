"""Legal cuts, one case a rule."""

from __future__ import annotations

import pytest

from policies.cuts import legal_cuts
from tests.conversations import Json, assistant, conversation, rounds, tool, user

SIGNED = {**assistant(None, "a"), "reasoning_content": "because"}

CASES: dict[str, tuple[list[Json], list[int]]] = {
    "between rounds and at turns": ([user("a"), *rounds(2), user("b")], [3, 5]),
    "never right after a user message: cutting before it is better": ([user("a"), assistant("x"), user("b")], [2]),
    "never inside a round": ([user("a"), assistant(None, "a", "b"), tool("a"), tool("b"), user("b")], [4]),
    "never after an unanswered call": (
        [user("a"), assistant(None, "a", "b"), tool("a"), user("b"), assistant("y")],
        [],
    ),
    "an unanswered call further back is covered whole": (
        [user("a"), assistant(None, "a"), user("b"), assistant("y"), user("c")],
        [4],
    ),
    "never between consecutive user messages": ([user("a"), assistant("x"), user("b"), user("c"), assistant("y")], [2]),
    "never where only the earlier part of a loop is signed": (
        [user("a"), SIGNED, tool("a"), *rounds(2), user("b")],
        [7],
    ),
    "inside a loop that is signed throughout": (
        [user("a"), SIGNED, tool("a"), {**SIGNED}, tool("a"), user("b")],
        [3, 5],
    ),
    "shuffled parallel results": ([user("a"), assistant(None, "a", "b"), tool("b"), tool("a"), assistant("y")], [4]),
    "an orphan result belongs to what stands before it": ([user("a"), tool("z"), assistant("x"), user("b")], [2, 3]),
    "one message": ([user("a")], []),
    "nothing": ([], []),
}


@pytest.mark.parametrize(("messages", "expected"), CASES.values(), ids=CASES.keys())
def test_a_cut_is_legal(messages: list[Json], expected: list[int]) -> None:
    assert legal_cuts(conversation(messages)) == expected
