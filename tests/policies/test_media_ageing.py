"""Which media are left out: in batches that never change, and never what is needed now."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.media import MediaLimits, MediaOutline, Medium, aged, shed

KINDS = st.sampled_from(["tool", "tool", "user", "both", "text"])
LIMITS = st.builds(
    MediaLimits, st.none() | st.integers(500, 20_000), st.none() | st.integers(1, 40)
).filter(lambda limits: limits.is_any)  # fmt: skip
HOT = 3


def session(kinds: list[str], sizes: list[int]) -> tuple[list[Medium], MediaOutline]:
    """For each kind an assistant's message, then what came of it. `both`: a user's picture beside a result."""
    media, ends, hot, users, weights = [], [], [], [], []
    said = 0
    for number, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        position = 2 * number + 1
        if kind in ("user", "both"):
            said = position
            media.append(Medium(position, 0, size, is_of_tool=False))
        if kind in ("tool", "both"):
            media.append(Medium(position, int(kind == "both"), size, is_of_tool=True))
        there = sum(one.size for one in media if one.position == position)
        weights += [20, 20 + there]
        ends.append(position)
        hot.append(max(0, position - 2 * HOT + 1))
        users.append(said)
    return media, MediaOutline(weights, 100, ends, hot, users)


def shorter(media: list[Medium], outline: MediaOutline, rounds: int) -> tuple[list[Medium], MediaOutline]:
    end = outline.ends[rounds - 1]
    first = slice(0, rounds)
    parts = outline.ends[first], outline.hot[first], outline.users[first]
    return [one for one in media if one.position <= end], MediaOutline(outline.sizes[: end + 1], outline.fixed, *parts)


sessions = st.lists(st.tuples(KINDS, st.integers(1, 2_000)), min_size=1, max_size=40).map(
    lambda rounds: session([kind for kind, _ in rounds], [size for _, size in rounds])
)


@given(sessions, LIMITS, st.data())
def test_a_longer_history_leaves_out_what_a_shorter_one_did(
    told: tuple[list[Medium], MediaOutline], limits: MediaLimits, data: st.DataObject
) -> None:
    media, outline = told
    rounds = data.draw(st.integers(1, len(outline.ends)))
    assert aged(*shorter(media, outline, rounds), limits) <= aged(media, outline, limits)


@given(sessions, LIMITS)
def test_what_is_needed_now_stays(told: tuple[list[Medium], MediaOutline], limits: MediaLimits) -> None:
    media, outline = told
    newest = max((one.position for one in media if one.is_of_tool), default=-1)
    for hot_too in (False, True):
        for gone in (aged(media, outline, limits), shed(media, outline, limits, hot_too=hot_too)):
            assert not any(one.is_of_tool and one.position == newest == outline.ends[-1] for one in gone)
            assert not any(not one.is_of_tool and one.position >= outline.users[-1] for one in gone)


@given(sessions, LIMITS)
def test_what_may_go_is_enough_where_there_is_enough_of_it(
    told: tuple[list[Medium], MediaOutline], limits: MediaLimits
) -> None:
    media, outline = told
    gone = shed(media, outline, limits, hot_too=True)
    left = [one for one in media if one not in gone]
    size = outline.fixed + sum(outline.sizes) - sum(one.size for one in gone)
    newest = max((one.position for one in media if one.is_of_tool), default=-1)
    may_go = [one for one in left if one.position < (newest if one.is_of_tool else outline.users[-1])]
    fits = size <= (limits.bytes or size) and len(left) <= (limits.pictures or len(left))
    assert fits or not may_go


@given(sessions)
def test_without_a_limit_nothing_goes(told: tuple[list[Medium], MediaOutline]) -> None:
    assert aged(*told, MediaLimits()) == set()


@pytest.mark.parametrize(
    ("limits", "size", "counts", "cuts"),
    [
        (MediaLimits(pictures=20), 1, [16, 8], 5),
        (MediaLimits(pictures=5), 1, [5, 2], 14),
        (MediaLimits(pictures=1), 1, [1, 1], 59),
        (MediaLimits(bytes=32_000), 1_000, [24, 10], 3),
    ],
)
def test_batches_begin_and_end_where_they_should(limits: MediaLimits, size: int, counts: list[int], cuts: int) -> None:
    """The most and, once a batch was cut, the fewest media that a session of results sends."""
    media, outline = session(["tool"] * 60, [size] * 60)
    shown = []
    for rounds in range(1, 61):
        now, told = shorter(media, outline, rounds)
        shown.append(len(now) - len(aged(now, told, limits)))
    most = max(shown)
    assert [most, min(shown[shown.index(most) + 1 :])] == counts
    assert sum(after <= before for before, after in pairwise(shown)) == cuts


def test_what_a_provider_refuses_goes_whatever_it_is() -> None:
    refused = Medium(1, 0, 100, is_of_tool=True, is_refused=True)
    _, outline = session(["tool"], [100])
    assert aged([refused], outline, MediaLimits()) == {refused}
