"""The requests of a session as points: a few bytes for each, in memory as in the store."""

from collections.abc import Iterator
from struct import Struct, error
from typing import NamedTuple

import msgspec

from proxy.observing.events import RequestEnded

# Words of a session: outcomes, reasons and checkpoints, each named by a number in its points.
_MOST_WORDS = 0xFFF0
_MOST = 0xFFFFFFFF
# Of a point: seconds since the session began and thousandths, tokens received and sent, the window, messages, three
# words, percent, status, bits.
_POINT = Struct("<IHIIIHHHHBHB")
_WORDS = slice(6, 9)
_UNKNOWN_SHARE = 255
_SOLVED, _PASSED_ON, _CUT_OFF = 1, 2, 4


class Point(NamedTuple):
    """A request of a session. at: Unix seconds. number: among all of its requests, from 1 on.

    cached: the share of the billed prompt that the provider had in its cache; None where it did not say.
    """

    number: int
    at: float
    received: int
    sent: int
    window: int | None
    messages: int
    outcome: str
    reason: str
    checkpoint: str
    cached: float | None
    status: int
    overflow: str | None
    is_cut_off: bool


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """Some points of a session, for the store. first: the number of the first of them.

    planes: first bytes of all points, then second ones: what hardly changes lies together, and compresses well.
    """

    first: int
    began: float
    words: list[str]
    planes: bytes


class Points:
    """The newest points of a session, so many at most."""

    def __init__(self, began: float, most: int) -> None:
        """`began` is in Unix seconds."""
        self._began = began
        self._most = most * _POINT.size
        self._packed = bytearray()
        self._words: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._packed) // _POINT.size

    def add(self, event: RequestEnded, received: int, sent: int) -> None:
        """In a few microseconds: every request comes by here."""
        share, bits, words = _UNKNOWN_SHARE, 0, self._words
        if event.billed and event.cached is not None:
            share = min(100, 100 * event.cached // event.billed)
        if event.overflow is not None:
            bits = _PASSED_ON if event.overflow in ("passed_on", "observed") else _SOLVED
        if event.warning == "prompt_cut_off":
            bits |= _CUT_OFF
        told = (event.compaction or "", event.reason or "", event.checkpoint or "")
        if len(words) < _MOST_WORDS:
            outcome, reason, checkpoint = (words.setdefault(word, len(words)) for word in told)
        else:
            outcome, reason, checkpoint = (words.get(word, 0) for word in told)
        since = max(0.0, event.at - self._began)
        seconds = int(since)
        sizes = (seconds, int(1000 * (since - seconds)), received, sent, event.window or 0)
        messages, rest = event.messages or 0, (outcome, reason, checkpoint, share, min(event.status, 999), bits)
        packed = self._packed
        try:
            packed += _POINT.pack(*sizes, messages, *rest)
        except error:  # a size that nothing has
            packed += _POINT.pack(*(max(0, min(size, _MOST)) for size in sizes), min(messages, 0xFFFF), *rest)
        if len(packed) > self._most:
            del packed[: _POINT.size]

    def unpack(self, first: int) -> list[Point]:
        """All of them, in the order in which they ended; the oldest gets the number `first`."""
        return [*_points(self._packed, [*self._words], self._began, first)]

    def part(self, start: int, stop: int, first: int) -> Packed:
        """Some of them, by their places; the oldest of these gets the number `first`."""
        words, known = [*self._words], dict[str, int]()
        chosen = bytearray()
        for point in _POINT.iter_unpack(self._packed[start * _POINT.size : stop * _POINT.size]):
            named = (known.setdefault(words[word], len(known)) for word in point[_WORDS])
            chosen += _POINT.pack(*point[: _WORDS.start], *named, *point[_WORDS.stop :])
        planes = b"".join(chosen[byte :: _POINT.size] for byte in range(_POINT.size))
        return Packed(first, self._began, [*known], planes)


def unpack_points(part: Packed) -> list[Point]:
    """The points that were packed. Raises ValueError for what is no such part."""
    count, rest = divmod(len(part.planes), _POINT.size)
    if rest:
        raise ValueError("not whole points")
    packed = b"".join(part.planes[place::count] for place in range(count))
    try:
        return [*_points(packed, part.words, part.began, part.first)]
    except IndexError:
        raise ValueError("a word that is not there") from None


def _points(packed: bytes | bytearray, words: list[str], began: float, first: int) -> Iterator[Point]:
    for number, point in enumerate(_POINT.iter_unpack(packed), first):
        seconds, thousandths, received, sent, window, messages, outcome, reason, checkpoint, share, status, bits = point
        cached = None if share == _UNKNOWN_SHARE else share / 100
        overflow = "solved" if bits & _SOLVED else "passed_on" if bits & _PASSED_ON else None
        told = (words[outcome], words[reason], words[checkpoint])
        sizes = (received, sent, window or None, messages)
        at = round(began + seconds + thousandths / 1000, 3)
        yield Point(number, at, *sizes, *told, cached, status, overflow, bool(bits & _CUT_OFF))
