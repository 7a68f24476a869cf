"""Event streams split into events while they arrive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.table import CHAT
from proxy.pipeline.usage import WithoutUsage
from proxy.server.sse import EVENT_END, LONGEST_END, EventSplitter, data_of
from tests.support.timing import cpu_seconds

_PARTS = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"data: a", b": b", b"\n\n", b"\r\n\r\n"]), max_size=20)


def split(stream: bytes, ends: list[int], most: int) -> list[tuple[bytes, bool]]:
    splitter, chunks, start = EventSplitter(most), [], 0
    for end in [*sorted(ends), len(stream)]:
        chunks.append(stream[start:end])
        start = end
    return [event for at, chunk in enumerate(chunks) for event in splitter.feed(chunk, is_last=at == len(chunks) - 1)]


@given(_PARTS, st.lists(st.integers(0, 60), max_size=5), st.integers(LONGEST_END, 200))
def test_no_byte_is_lost_however_a_stream_is_cut(parts: list[bytes], ends: list[int], most: int) -> None:
    stream = b"".join(parts)
    assert b"".join(event for event, _ in split(stream, ends, most)) == stream


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 90), max_size=5))
def test_events_say_the_same_however_a_stream_is_cut(kinds: list[int], ends: list[int]) -> None:
    ending = [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\n"]
    stream = b"".join(b"data: %d" % at + ending[kind] for at, kind in enumerate(kinds))
    events = split(stream + b"data: end", ends, 200)
    assert [data for event, _ in events if (data := data_of(event))] == [
        *(b"%d" % at for at in range(len(kinds))),
        b"end",
    ]
    assert all(is_whole for _, is_whole in events)


def test_an_event_without_an_end_is_passed_on_in_pieces() -> None:
    splitter, chunk = EventSplitter(1_000), b"x" * 600
    passed = [list(splitter.feed(chunk)) for _ in range(4)]
    assert [is_whole for events in passed for _, is_whole in events] == [False, False]
    assert 0 <= 2_400 - sum(len(event) for events in passed for event, _ in events) <= 1_000
    *_, (rest, is_whole), after = [*splitter.feed(b"\n\ndata: y\n\n")]
    assert (EVENT_END.search(rest) is not None, is_whole, after) == (True, False, (b"data: y\n\n", True))


def read_event(size: int) -> None:
    without, chunk = WithoutUsage(CHAT.answers), b"y" * 4_096
    without(b"data: ", is_last=False)
    for _ in range(size // len(chunk)):
        without(chunk, is_last=False)


def test_a_large_event_costs_in_proportion_to_its_size() -> None:
    assert cpu_seconds(lambda: read_event(8_000_000), enough=0.5) <= 0.5
