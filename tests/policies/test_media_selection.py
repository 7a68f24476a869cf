"""Which media are left out: the oldest, in batches that stay, and never those of the newest turn."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decision.media import MediaLimits, Medium, select_left_out, select_older

LIMITS = st.builds(
    MediaLimits,
    *(st.none() | st.integers(500, 20_000), st.none() | st.integers(1, 40), st.none() | st.integers(1, 100)),
    *(st.none() | st.integers(1, 40), st.integers(500, 2_500)),
)
Session = tuple[list[Medium], list[int]]


def session(turns: list[list[int]]) -> Session:
    """For each turn an assistant's message, then one message for each size: a picture, or text if it is 0.

    A side is as long as a picture is large. Every third picture has pages, and every fourth cools down.
    """
    media: list[Medium] = []
    sizes: list[int] = []
    for turn, of_turn in enumerate(turns, 1):
        sizes.append(20)
        for size in of_turn:
            position = len(sizes)
            sizes.append(20 + size)
            cooled_at = position + 7 if size % 4 == 3 else None
            if size:
                media.append(Medium(position, 0, turn, size, True, size, size % 3, cooled_at))
    return media, sizes


def left_out(of: Session, limits: MediaLimits, length: int | None = None) -> set[Medium]:
    """The media that the first messages of a session leave out."""
    media, sizes = of
    length = len(sizes) if length is None else length
    return {*select_left_out([one for one in media if one.position < length], sizes[:length], limits)}


SESSIONS = st.lists(st.lists(st.integers(0, 2_000), max_size=3), min_size=1, max_size=40).map(session)


@given(SESSIONS, LIMITS, st.data())
def test_longer_histories_leave_out_what_shorter_ones_did(
    of: Session, limits: MediaLimits, data: st.DataObject
) -> None:
    length = data.draw(st.integers(0, len(of[1])))
    assert left_out(of, limits, length) <= left_out(of, limits)


@given(SESSIONS, LIMITS)
def test_the_newest_turn_keeps_its_media(of: Session, limits: MediaLimits) -> None:
    media = [one._replace(cooled_at=None) for one in of[0]]
    newest = {one for one in media if one.turn == media[-1].turn}
    assert not newest & left_out((media, of[1]), limits)
    assert {*select_older(media)} == {*media} - newest


@given(SESSIONS, LIMITS)
def test_what_is_sent_is_within_the_limits_or_of_the_newest_turn(of: Session, limits: MediaLimits) -> None:
    media, sizes = of
    sent = [one for one in media if one not in left_out(of, limits)]
    size = sum(sizes) - sum(one.size for one in media) + sum(one.size for one in sent)
    has_wide = any(map(limits.is_wide, sent))
    for axis, load in (("bytes", size), ("pictures", len(sent)), ("pages", sum(one.pages for one in sent))):
        limit = limits.of(axis, has_wide=has_wide)
        older = [one for one in sent if one.turn != media[-1].turn and one.weight(axis)]
        assert limit is None or load <= limit or not older


@given(SESSIONS)
def test_without_a_limit_only_what_cools_down_goes(of: Session) -> None:
    media, sizes = of
    cooled = {one for one in media if one.cooled_at is not None and one.cooled_at <= len(sizes)}
    assert left_out(of, MediaLimits()) == cooled
    assert {*select_left_out(media, sizes, MediaLimits()).values()} <= {"tokens"}


@pytest.mark.parametrize(
    ("limits", "size", "counts", "cuts"),
    [
        (MediaLimits(pictures=100), 1, [60, 60], 0),
        (MediaLimits(pictures=20), 1, [16, 8], 5),
        (MediaLimits(pictures=5), 1, [4, 2], 19),
        (MediaLimits(pictures=1), 1, [1, 1], 59),
        (MediaLimits(bytes=32_000), 1_000, [24, 10], 3),
        (MediaLimits(many=20, side=999), 1_000, [16, 8], 5),
        (MediaLimits(many=20, side=1_000), 1_000, [60, 60], 0),
        (MediaLimits(pages=20), 1_000, [16, 8], 5),
    ],
)
def test_batches_begin_and_end_where_they_should(limits: MediaLimits, size: int, counts: list[int], cuts: int) -> None:
    """The most and, after a batch, the fewest media that a session of results sends."""
    media, sizes = session([[size]] * 60)
    media = [one._replace(cooled_at=None, pages=1) for one in media]
    shown = [
        sum(one.position < length for one in media) - len(left_out((media, sizes), limits, length))
        for length in range(2, len(sizes) + 1, 2)
    ]
    most = max(shown)
    assert [most, min(shown[shown.index(most) + 1 :], default=most)] == counts
    assert sum(after <= before for before, after in pairwise(shown)) == cuts


def test_texts_count_for_bytes_and_media_that_are_only_named_do_not() -> None:
    media, sizes = session([[1_000], [1_000], [1_000]])
    named = [media[0]._replace(size=0), *media[1:]]
    sizes[1], sizes[3] = 20, 30_000
    assert left_out((named, sizes), MediaLimits(bytes=32_000)) == {media[1]}
