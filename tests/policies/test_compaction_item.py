"""What an item covers, which messages are sent where the client sends some of them itself, and what is cleared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.message import Message
from policies.decision.clearing import ToolUse, cleared_uses
from policies.record.compaction_item import history_digest, without_kept, without_tail

A, B, C, D = (Message("user", 10, name.encode()) for name in "abcd")
CALL, RESULT = Message("assistant", 10, b"call"), Message("tool", 10, b"result")
THOUGHT = Message("assistant", 5, b"reasoning", silent=True)
RULE = Message("developer", 10, b"rule")


def test_what_an_item_covers_is_named_whatever_its_instructions_are() -> None:
    named = history_digest([RULE, A, CALL, RESULT])
    assert named == history_digest([A, CALL, RESULT, RULE]) == history_digest([A, CALL, RESULT])
    assert (
        len({named, history_digest([A, RESULT, CALL]), history_digest([A, CALL]), history_digest([A, CALL, RESULT, B])})
        == 4
    )


@pytest.mark.parametrize(
    ("tail", "anchors", "kept", "behind", "sent"),
    [
        ([A, CALL, RESULT], 1, [], [], [0, 1, 2]),
        ([A, CALL, RESULT], 1, [A], [], [1, 2]),  # repeated from before the cut, and there already
        ([A, CALL, RESULT], 0, [A], [], [0, 1, 2]),  # in its place: the client's goes (`without_tail`)
        ([A, CALL, RESULT], 1, [], [CALL, RESULT], [0]),  # a client that went on behind a pause
        ([A, THOUGHT, CALL, RESULT], 1, [], [CALL, RESULT], [0]),  # what was thought goes with its answer
        ([A, THOUGHT, CALL, RESULT], 1, [A], [], [1, 2, 3]),
        ([], 0, [A], [B], []),
    ],
)
def test_of_a_tail_nothing_is_sent_twice(
    tail: list[Message], anchors: int, kept: list[Message], behind: list[Message], sent: list[int]
) -> None:
    digests = {each.digest for each in kept}, {each.digest for each in behind}
    assert without_kept(tail, anchors, *digests) == sent


def test_what_a_client_kept_gives_way_to_a_tail_that_has_it_in_its_place() -> None:
    assert without_tail([A, B, C, RULE], [A, CALL, RESULT, C], 1) == [0, 1, 3]


USES = st.lists(st.builds(ToolUse, st.integers(0, 2_000), st.booleans()), max_size=40)


@given(USES, st.integers(0, 5), st.integers(1, 5_000))
def test_what_is_cleared_is_the_oldest_and_grows_by_whole_steps(uses: list[ToolUse], keep: int, step: int) -> None:
    gone = cleared_uses(uses, keep, step)
    able = [at for at in range(max(0, len(uses) - keep)) if not uses[at].is_excluded and uses[at].frees > 0]
    assert gone == able[: len(gone)]
    freed, total = sum(uses[at].frees for at in gone), sum(uses[at].frees for at in able)
    assert freed >= total // step * step
    assert not gone or freed - uses[gone[-1]].frees < total // step * step
    longer = cleared_uses([*uses, ToolUse(1)], keep, step)
    assert longer[: len(gone)] == gone, "a boundary never goes back"
