"""Units, turns and anchors."""

from __future__ import annotations

import pytest

from tests.support.conversations import assistant, conversation, rounds, system, tool, user


@pytest.mark.requirement("R2 Format workspace")
def test_the_head_is_the_leading_instructions_only() -> None:
    view = conversation([system(), {"role": "developer", "content": "x"}, user("hi"), system("later")])
    assert view.head_length == 2
    assert view.covered_instructions(2) == [1]


@pytest.mark.requirement("R0 2.1", "R0 3.1")
def test_a_round_is_one_unit_with_all_its_results() -> None:
    view = conversation([user("go"), assistant(None, "a", "b"), tool("b"), tool("a"), assistant("done"), user("next")])
    assert view.units == [0, 1, 4, 5]


@pytest.mark.requirement("R0 2.1")
def test_consecutive_user_messages_are_one_turn() -> None:
    view = conversation([user("a"), user("b"), assistant("x"), user("c")])
    assert view.turns == [0, 3]


@pytest.mark.requirement("R0 1.2 across")
def test_the_anchors_are_the_request_at_work_and_what_opened_the_turn() -> None:
    view = conversation([user("task"), *rounds(3), assistant("so"), user("next"), *rounds(1, start=3)])
    assert view.anchors(3) == [0]
    assert view.anchors(8) == [0]  # "next" is no request of its own
    assert view.anchors(9) == [0, 8]
    assert view.anchors(0) == []


def test_what_is_said_behind_the_cut_changes_no_anchor() -> None:
    """Before it only words stand of which nobody knows whose they are."""
    before = [*rounds(2), user("0"), *rounds(1, start=2), user("1")]
    longer = conversation([*before, assistant("so"), user("Build it.")])
    assert [conversation(before).anchors(cut) for cut in range(8)] == [longer.anchors(cut) for cut in range(8)]


@pytest.mark.requirement("R3 4.1 tokens")
def test_totals_count_tools_head_and_body() -> None:
    view = conversation([system("s" * 40), user("u" * 40)], tools_tokens=7)
    assert view.total_tokens == 7 + 14 + 14
    assert view.kept_tokens(0) == 14


@pytest.mark.requirement("R0 1.3 L3")
def test_a_conversation_of_instructions_only_has_an_empty_body() -> None:
    view = conversation([system(), system()])
    assert (view.body, view.units, view.turns, view.first_spoken()) == ([], [], [], None)


def test_a_late_result_is_named_after_the_call_it_answers() -> None:
    messages = [assistant(None, "a", name="read"), user("x"), assistant(None, "b", name="grep"), tool("a"), tool("b")]
    assert conversation([*messages, tool("c")]).tools_answered == [(), (), (), ("read",), ("grep",), (None,)]
