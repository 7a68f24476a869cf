"""Which media are left out: in batches that never change, and never what is needed now."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.media import Lesson, MediaLimits, MediaOutline, Medium, reasons, shed

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = st.sampled_from(["tool", "tool", "user", "both", "text"])
LIMITS = st.builds(
    MediaLimits,
    *(st.none() | st.integers(500, 20_000), st.none() | st.integers(1, 40), st.none() | st.integers(1, 40)),
    *(st.none() | st.integers(500, 2_500), st.none() | st.integers(1, 100)),
).filter(lambda limits: limits.is_any)
HOT = 3


def session(kinds: list[str], sizes: list[int]) -> tuple[list[Medium], MediaOutline]:
    """For each kind an assistant's message, then what came of it. `both`: a user's picture beside a result. A side is
    as long as a medium is large, and every third one has pages."""
    media, ends, hot, users, weights = [], [], [], [], []
    said = 0
    for number, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        position = 2 * number + 1
        if kind in ("user", "both"):
            said = position
            media.append(Medium(position, 0, size, is_of_tool=False, side=size, pages=size % 3))
        if kind in ("tool", "both"):
            media.append(Medium(position, int(kind == "both"), size, is_of_tool=True, side=size, pages=size % 3))
        there = sum(one.size for one in media if one.position == position)
        weights += [20, 20 + there]
        ends.append(position)
        hot.append(max(0, position - 2 * HOT + 1))
        users.append(said)
    return media, MediaOutline(weights, 100, ends, hot, users)


def aged(
    media: list[Medium], outline: MediaOutline, limits: MediaLimits, lessons: Sequence[Lesson] = ()
) -> set[Medium]:
    return {*reasons(media, outline, limits, lessons)}


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


def test_what_the_user_has_just_sent_stays_until_the_next_message_even_if_it_is_refused() -> None:
    media, outline = session(["user", "tool", "user"], [100] * 3)
    media = [medium._replace(is_refused=True) for medium in media]
    assert aged(media, outline, MediaLimits()) == {*media[:2]}
    assert aged(media, outline, MediaLimits(pictures=1)) == {*media[:2]}
    assert shed(media, outline, MediaLimits(pictures=0), hot_too=True) == {*media[:2]}


LESSONS = st.lists(st.tuples(st.integers(0, 80), LIMITS), max_size=8).map(
    lambda told: [Lesson(*each) for each in sorted(told, key=lambda each: each[0])]
)


@given(sessions, st.just(MediaLimits()) | LIMITS, LESSONS, st.data())
def test_a_lesson_adds_and_never_rewrites(
    told: tuple[list[Medium], MediaOutline], limits: MediaLimits, lessons: list[Lesson], data: st.DataObject
) -> None:
    """In whatever order stricter ones and laxer ones come: what requests before one left out is what they left out."""
    media, outline = told
    rounds = data.draw(st.integers(1, len(outline.ends)))
    length = outline.ends[rounds - 1] + 1
    known = [lesson for lesson in lessons if lesson.length <= length]
    before = aged(*shorter(media, outline, rounds), limits, known)
    assert before <= aged(media, outline, limits, lessons)


@given(sessions, LIMITS, LESSONS)
def test_what_is_no_news_changes_nothing(
    told: tuple[list[Medium], MediaOutline], limits: MediaLimits, lessons: list[Lesson]
) -> None:
    lax = [Lesson(lesson.length, MediaLimits(*(10**9 for _ in lesson.limits))) for lesson in lessons]
    known = MediaLimits(*(10**9 if limit is None else limit for limit in limits))
    assert aged(*told, known, lax) == aged(*told, known)


@pytest.mark.parametrize(
    ("sides", "limits", "left"),
    [
        # No more than 20: wide ones are taken.
        ([2_560] * 20, MediaLimits(many=20, side=2_000), 20),
        # All of them are wide: as if no more than 20 were taken at all.
        ([2_560] * 21, MediaLimits(many=20, side=2_000), 10),
        # A few old ones: these alone.
        ([*[2_560] * 3, *[1_280] * 27], MediaLimits(many=20, side=2_000), 27),
        # The newest one: so many others that it is taken.
        ([*[1_280] * 29, 2_560], MediaLimits(many=20, side=2_000), 10),
        ([1_280] * 60, MediaLimits(many=20, side=2_000), 60),
        # How wide is not known of what is only named.
        ([0] * 60, MediaLimits(many=20, side=2_000), 60),
        ([2_560] * 60, MediaLimits(many=20), 60),
    ],
)
def test_wide_pictures_beside_many_others(sides: list[int], limits: MediaLimits, left: int) -> None:
    media, outline = session(["tool"] * len(sides), [100] * len(sides))
    media = [medium._replace(side=side) for medium, side in zip(media, sides, strict=True)]
    assert len(media) - len(aged(media, outline, limits)) == left


def test_pages_of_all_papers_together() -> None:
    """A picture has none, so it stays."""
    media, outline = session(["tool"] * 12, [100] * 12)
    media = [medium._replace(pages=10 if number % 2 else 0) for number, medium in enumerate(media)]
    gone = aged(media, outline, MediaLimits(pages=60))
    assert [medium.position for medium in gone if not medium.pages] == []
    assert sum(medium.pages for medium in media if medium not in gone) == 30  # what is hot stays
    assert aged(media, outline, MediaLimits(pages=100)) == set()


def test_one_request_may_be_over_several_limits() -> None:
    media, outline = session(["tool"] * 30, [1_000] * 30)
    gone = aged(media, outline, MediaLimits(), [Lesson(60, MediaLimits(bytes=28_000, pictures=8))])
    assert len(media) - len(gone) == 4


def test_what_has_cooled_down_is_left_out_from_then_on() -> None:
    media, outline = session(["tool"] * 12, [1_000] * 12)
    cooled = [medium._replace(gone_from=14) if medium.position < 6 else medium for medium in media]
    for limits in (MediaLimits(), MediaLimits(bytes=10**9)):
        assert aged(*shorter(cooled, outline, 6), limits) == set()
        assert aged(*shorter(cooled, outline, 7), limits) == {*cooled[:3]}
    assert len(aged(cooled, outline, MediaLimits(pictures=15))) == 3, "they count no more"
