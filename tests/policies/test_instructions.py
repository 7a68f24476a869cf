"""Instructions inside of a conversation that stay in force: which go upstream beside a record, and what they weigh."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.conversation import Conversation, Order, Rooms
from policies.conversation.message import Call, Message

BEHIND = Order("free", "behind")


def said(role: str, name: str, **more: object) -> Message:
    return Message(role, len(name), name.encode(), **more)  # type: ignore[arg-type]


def told(name: str, **more: object) -> Message:
    return said("system", name, joins=True, **more)


USER, MODEL = said("user", "task"), said("assistant", "did", continues=True)
LEFT = [told(f"{number} left", loose=b"# left") for number in range(3)]
LAPSING = told("for now", lapses=True)
TOOLS = told("more tools", loads=("+grep",))


@pytest.mark.requirement("D 4")
@pytest.mark.parametrize(
    ("body", "cut", "kept"),
    [
        ([USER, LEFT[0], MODEL, LEFT[1], MODEL, LEFT[2], MODEL], 6, [5]),
        ([USER, LEFT[0], MODEL, LEFT[1], MODEL], 2, [1]),
        ([USER, told("a"), MODEL, told("b"), MODEL, told("a"), MODEL], 6, [1, 3, 5]),
        ([USER, LAPSING, MODEL, MODEL], 3, [1]),
        ([USER, LAPSING, MODEL, USER, MODEL], 3, []),
        ([USER, LAPSING, MODEL, USER, MODEL], 4, []),
        ([USER, TOOLS, MODEL, TOOLS, MODEL], 4, [1, 3]),
    ],
    ids=["the newest", "only what is covered", "others", "in force", "lapsed at the cut", "lapsed", "tools, in order"],
)
def test_what_stays_in_force(body: list[Message], cut: int, kept: list[int]) -> None:
    conversation = Conversation(body, order=BEHIND)
    assert conversation.covered_instructions(cut) == kept
    covered = Conversation(body, order=BEHIND, instructions_covered=True)
    assert covered.covered_instructions(cut) == [i for i in kept if body[i].loads]


MESSAGES = st.sampled_from([USER, MODEL, *LEFT, LAPSING, TOOLS, told("rule"), said("tool", "result", joins=True)])


@given(st.lists(MESSAGES, min_size=1, max_size=30), st.booleans())
def test_the_weight_is_that_of_what_goes_upstream(rest: list[Message], covered: bool) -> None:
    conversation = Conversation([USER, *rest], order=BEHIND, instructions_covered=covered)
    for cut in range(len(conversation.body) + 1):
        sent = {
            *conversation.covered_instructions(cut),
            *range(cut, len(conversation.body)),
            *conversation.repeated_messages(cut),
        }
        assert conversation.kept_tokens(cut) == sum(conversation.body[i].tokens for i in sent)


def loader(name: str, *tools: str) -> list[Message]:
    call = said("assistant", f"search {name}", calls=(Call(name, "ToolSearch"),), continues=True)
    return [call, said("tool", f"found {name}", results=(name,), joins=True, loads=tools)]


@pytest.mark.parametrize(
    ("room", "loading"),
    [(None, [1, 2, 5, 6]), (1_000, [1, 2, 5, 6]), (20, [5, 6]), (0, [])],
)
def test_of_every_tool_the_newest_message_that_loads_it_goes_with_its_call(
    room: int | None, loading: list[int]
) -> None:
    body = [USER, *loader("a", "grep", "edit"), *loader("b", "edit"), *loader("c", "edit"), MODEL, USER, MODEL]
    conversation = Conversation(body, order=BEHIND, rooms=Rooms(loading=room))
    assert conversation.loading(8) == loading
    assert conversation.loading(3) == [i for i in (1, 2) if room != 0]
    sent = {*loading, *range(8, len(body)), *conversation.repeated_messages(8)}
    assert conversation.kept_tokens(8) == sum(body[i].tokens for i in sent)
