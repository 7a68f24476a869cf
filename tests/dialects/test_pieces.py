"""Large bodies are looked through piece by piece with the same result as at once."""

from __future__ import annotations

import re
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import pieces, surrogates

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNS = st.lists(st.sampled_from([b"\\", b"\\ud83d", b"\\ude00", b"u", b'"ccn1.', b"c", b"\\\\", b","]), max_size=12)
PATTERN = re.compile(rb"\\u[dD]8[0-9a-f]{2}(?:\\u[dD]e[0-9a-f]{2})?|ccn")


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "_PIECE", 5)
        yield


@given(SIGNS)
def test_what_is_found_in_pieces_is_what_is_there(signs: list[bytes]) -> None:
    body = b"".join(signs)
    assert pieces.holds(body, b'"ccn1.') == (b'"ccn1.' in body)
    assert pieces.count(body, b"\\", 1_000) == body.count(b"\\")
    assert (pieces.count(body, b",", 2) > 2) == (body.count(b",") > 2)
    found = [match.span() for match in pieces.matches(PATTERN, body, 12)]
    assert found == [match.span() for match in PATTERN.finditer(body)]
    assert pieces.join_pieces(signs, len(body)) == body


@given(SIGNS, st.integers(0, 3_000))
def test_lone_surrogates_are_told_from_pairs_wherever_a_piece_ends(signs: list[bytes], backslashes: int) -> None:
    body = b"\\" * backslashes + b"".join(signs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "_PIECE", 1 << 20)
        whole = surrogates.readable(body)
    assert surrogates.readable(body) == whole
    assert len(whole) == len(body)


def test_halves_of_emoji_take_no_more_room_than_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_PIECE", 1 << 20)
    body = b"\\ud83d" * 200_000
    tracemalloc.start()
    try:
        assert surrogates.readable(body) == b"\\ufffd" * 200_000
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()
