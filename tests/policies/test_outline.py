"""What is carried from a shorter history to a longer one is what the longer one says itself."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.message import Call, Message
from policies.conversation.outline import Outline
from policies.conversation.prefix_digests import Chain, Digests

IDS = st.sampled_from("abc")
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "assistant", "tool", "tool"]),
    tokens=st.integers(1, 9),
    digest=st.sampled_from([b"x" * 32, b"y" * 32]),
    calls=st.lists(st.builds(Call, IDS, st.sampled_from(["read", "write"])), max_size=2).map(tuple),
    results=st.lists(IDS, max_size=2).map(tuple),
    words=st.sampled_from([0, 0, 3]),
    joins=st.booleans(),
    continues=st.booleans(),
    signed=st.sampled_from(["none", "none", "bound"]),
    loads=st.sampled_from([(), (), ("tool",)]),
    stored=st.sampled_from([False, False, False, True]),
    barrier=st.sampled_from([False, False, False, False, True]),
)
HISTORIES = st.lists(MESSAGES, max_size=12)


@given(HISTORIES, st.lists(st.integers(0, 12), max_size=4))
def test_an_outline_that_grew_is_that_of_the_whole(messages: list[Message], lengths: list[int]) -> None:
    grown = Outline()
    for length in sorted(lengths):
        grown = grown.longer(messages[:length])
    assert grown.longer(messages) == Outline().longer(messages)


@given(HISTORIES, st.lists(st.integers(0, 12), max_size=4))
def test_an_outline_stays_as_it_is_when_a_longer_one_is_made_of_it(messages: list[Message], lengths: list[int]) -> None:
    lengths = [*sorted(lengths), len(messages)]
    outlines = [Outline().longer(messages[: lengths[0]])]
    for _, length in pairwise(lengths):
        outlines.append(outlines[-1].longer(messages[:length]))
    assert outlines == [Outline().longer(messages[:length]) for length in lengths]


@given(HISTORIES, HISTORIES, HISTORIES, st.booleans())
def test_forks_share_digests_of_what_they_share_alone(
    shared: list[Message], one: list[Message], other: list[Message], is_labelled: bool
) -> None:
    """Of each other's messages they see nothing, whoever of them comes first."""
    link = b"l" * 32 if is_labelled else None
    seen = Digests(len(shared))
    for messages in ([*shared, *one], [*shared, *other], [*shared, *one]):
        alone = Chain(b"scope", messages, link=link).digests
        assert Chain(b"scope", messages, link=link, seen=seen).digests == alone
        assert Chain(b"other", messages, link=link, seen=seen).digests != alone
        longer = seen.longer(len(messages))
        assert Chain(b"scope", messages, link=link, seen=longer).digests == alone
        assert Chain(b"scope", messages, link=link, seen=longer).digests == alone
