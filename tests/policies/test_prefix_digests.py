"""Digests: equal for the same meaning, different for any other (invariants 10, 11 and 12)."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.message import Call, Message
from policies.conversation.prefix_digests import digest_of, prefix_digests
from tests.support.conversations import Json, assistant, described, histories, renamed_ids, tool, user

SCOPE = b"scope"


def test_a_result_is_tied_to_the_call_it_answers() -> None:
    calls = assistant(None, "a", "b")
    straight = prefix_digests(SCOPE, described([calls, tool("a", "1"), tool("b", "2")]))
    crossed = prefix_digests(SCOPE, described([calls, tool("b", "1"), tool("a", "2")]))
    assert straight[2] != crossed[2]


def test_a_late_result_is_tied_to_the_call_it_answers() -> None:
    calls = [assistant(None, "a", "b"), assistant(None, "c"), user("x")]
    links = {
        call: prefix_digests(SCOPE, described([*calls, tool(call), user("y")]))[-1]
        for call in ("a", "b", "c", "nobody's")
    }
    assert len(set(links.values())) == len(links)


@given(histories())
def test_renamed_call_ids_change_no_digest(messages: list[Json]) -> None:
    assert prefix_digests(SCOPE, described(messages)) == prefix_digests(SCOPE, described(renamed_ids(messages)))


@pytest.mark.requirement("R4 3.1 last")
@given(histories(min_units=2), st.data())
def test_an_edit_changes_every_digest_from_there_on_and_none_before(messages: list[Json], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(messages) - 1))
    edited = deepcopy(messages)
    edited[index] = {**edited[index], "content": json.dumps(edited[index].get("content")) + "!"}
    before, after = prefix_digests(SCOPE, described(messages)), prefix_digests(SCOPE, described(edited))
    assert before[: index + 1] == after[: index + 1]
    assert all(one != other for one, other in zip(before[index + 1 :], after[index + 1 :], strict=True))


@given(histories(), histories())
def test_digests_of_a_history_are_a_prefix_of_those_of_its_continuation(one: list[Json], more: list[Json]) -> None:
    assert prefix_digests(SCOPE, described([*one, *more]))[: len(one) + 1] == prefix_digests(SCOPE, described(one))


def test_a_form_has_another_digest_in_another_dialect() -> None:
    assert len({digest_of(seed, ["user", "hi"]) for seed in (b"", b"one", b"another")}) == 3


@pytest.mark.requirement("R4 3.1 conversation")
@given(histories(min_units=1))
def test_two_scopes_share_no_digest(messages: list[Json]) -> None:
    body = described(messages)
    assert not set(prefix_digests(b"one", body)) & set(prefix_digests(b"other", body))


def test_results_do_not_search_the_calls_they_answer() -> None:
    compared = 0

    class Id(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)  # type: ignore[no-any-return]

    calls = Message("assistant", 1, b"calls", calls=tuple(Call(Id(f"c{i}"), "bash") for i in range(300)))
    results = [Message("tool", 1, b"result", results=(Id(f"x{i}"),)) for i in range(300)]
    digests = prefix_digests(SCOPE, [calls, *results])
    assert compared < 3 * len(results)
    assert len(set(digests)) == len(digests)


def test_a_result_answers_the_first_of_the_calls_with_its_id() -> None:
    def link(*calls: str) -> bytes:
        made = tuple(Call(call, "bash") for call in calls)
        return prefix_digests(
            SCOPE, [Message("assistant", 1, b"c", calls=made), Message("tool", 1, b"r", results=("a",))]
        )[-1]

    assert link("a", "a") == link("a", "b")
    assert link("a", "a") != link("b", "a")
