"""Legal cuts, one case a rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.conversation import Conversation
from policies.conversation.message import Call, Message
from policies.decision.legal_cuts import legal_cuts
from tests.support.conversations import Json, assistant, conversation, histories, parted_pairs, rounds, tool, user

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
    "never before a result that comes late": (
        [user("a"), assistant(None, "1", "2", "3"), tool("1"), user("b"), tool("2"), user("c"), tool("3"), user("d")],
        [7],
    ),
    "never before a result that comes rounds later": (
        [user("a"), assistant(None, "1"), user("b"), *rounds(2), user("c"), tool("1"), *rounds(1), user("d")],
        [9, 11],
    ),
    "never before the result of an older call that still waits under an id used again": (
        [user("a"), assistant(None, "1"), assistant("x"), assistant(None, "1"), tool("1"), user("c")],
        [5],
    ),
    "between rounds that all use one id": (
        [user("a"), assistant(None, "1"), tool("1"), assistant(None, "1"), tool("1"), user("b")],
        [3, 5],
    ),
    "never before a second answer to the same call": (
        [user("a"), *rounds(2), user("b"), assistant("x"), tool("c1"), user("c")],
        [3, 8],
    ),
    "a call that is never answered holds up the next cut alone": (
        [user("a"), assistant(None, "1"), user("b"), *rounds(2), user("c")],
        [5, 7],
    ),
    "one message": ([user("a")], []),
    "nothing": ([], []),
}


_IDS = ("1", "2", "3")
_ANY = st.one_of(
    st.lists(st.sampled_from(_IDS), max_size=3).map(lambda ids: assistant("x", *ids)),
    st.sampled_from(_IDS).map(tool),
    st.just(user("a")),
    st.just({"role": "developer", "content": "d"}),
)


@pytest.mark.requirement("R1 4.3 pairs")
@pytest.mark.parametrize(("messages", "expected"), CASES.values(), ids=CASES.keys())
def test_a_cut_is_legal(messages: list[Json], expected: list[int]) -> None:
    assert legal_cuts(conversation(messages)) == expected


@given(st.one_of(histories(), st.lists(_ANY, max_size=14)))
def test_no_legal_cut_parts_a_call_from_its_result(messages: list[Json]) -> None:
    view = conversation(messages)
    for cut in legal_cuts(view):
        assert not parted_pairs(messages[view.head_length :], cut)


@given(st.lists(_ANY, max_size=14))
def test_what_is_forbidden_for_calls_alone_is_a_cut_behind_or_within_an_open_one(messages: list[Json]) -> None:
    view = conversation(messages)
    body, legal = messages[view.head_length :], set(legal_cuts(view))
    starts = [0, *view.units]
    for unit, cut in zip(starts, view.units, strict=False):
        if cut == 0 or cut in legal or body[cut - 1]["role"] == "user":
            continue
        answered = {result for message in view.body[unit:cut] for result in message.results}
        unanswered = {call.id for call in view.body[unit].calls} - answered
        assert unanswered or parted_pairs(body, cut)


def test_looking_for_cuts_takes_time_in_proportion_to_the_messages() -> None:
    hashed = 0

    class Id(str):
        __slots__ = ()

        def __hash__(self) -> int:
            nonlocal hashed
            hashed += 1
            return str.__hash__(self)

    ids = [Id(f"c{i}") for i in range(2_000)]
    calls = [Message("assistant", 1, b"c", calls=(Call(call, "bash"),)) for call in ids]
    results = [Message("tool", 1, b"r", results=(call,), joins=True) for call in reversed(ids)]
    assert legal_cuts(Conversation([*calls, *results, Message("user", 1, b"u")])) == [4_000]
    assert hashed < 10 * len(ids)
