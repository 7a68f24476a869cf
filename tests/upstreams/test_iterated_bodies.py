"""Bodies that an iterator yields: taken piece by piece, given back, and left in the middle."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from proxy.upstreams.response import IteratedBody, TruncatedError, whole_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


class Sink:
    """Takes two pieces before it has to be resumed."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, bool]] = []

    def take(self, chunk: bytes, *, is_last: bool) -> bool:
        self.taken.append((chunk, is_last))
        return len(self.taken) != 2


async def pieces(*given: bytes) -> AsyncIterator[bytes]:
    for piece in given:
        yield piece


async def test_what_is_given_back_comes_before_anything_else() -> None:
    body = IteratedBody(pieces(b"a", b"b"))
    assert await body.more(None)
    body.untake(body.take())
    assert await body.more(None)
    assert body.take() == b"ab"
    assert not await body.more(None)
    assert body.is_complete


async def test_a_sink_without_room_is_waited_for() -> None:
    body, sink = IteratedBody(pieces(b"a", b"b", b"c")), Sink()
    pouring = asyncio.create_task(body.pour(sink))
    for _ in range(10):
        await asyncio.sleep(0)
    assert [chunk for chunk, _ in sink.taken] == [b"a", b"b"]
    body.resume()
    await pouring
    assert [chunk for chunk, _ in sink.taken] == [b"a", b"b", b"c"]


async def test_what_is_there_is_the_last_of_it() -> None:
    sink = Sink()
    await whole_body(b"all").pour(sink)
    assert sink.taken == [(b"all", True)]


async def test_what_fails_after_it_was_waited_for_too_long_is_raised_later() -> None:
    late = asyncio.Event()

    async def failing() -> AsyncIterator[bytes]:
        await late.wait()
        raise TruncatedError("reset")
        yield b""

    body = IteratedBody(failing())
    assert not await body.more(0.0)
    late.set()
    with pytest.raises(TruncatedError):
        await body.more(None)


@pytest.mark.usefixtures("only_new_objects")
async def test_what_fails_when_it_is_wanted_no_more_is_no_error_of_the_loop() -> None:
    loop, late = asyncio.get_running_loop(), asyncio.Event()
    reported: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))

    async def failing() -> AsyncIterator[bytes]:
        await late.wait()
        raise TruncatedError("reset")
        yield b""

    body = IteratedBody(failing())
    assert not await body.more(0.0)
    late.set()
    for _ in range(5):
        await asyncio.sleep(0)
    body.close()
    del body
    gc.collect()
    await asyncio.sleep(0)
    assert not reported
