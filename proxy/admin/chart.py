"""Coordinates of the charts. Templates turn them into SVG."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, floor, log10
from typing import NamedTuple, Protocol

from proxy.admin import words

_COLUMNS = 120
_CELLS = 240
_STEPS = (1, 2, 2.5, 5, 10)
_LINES = 5
# A limit far above all values is not drawn: the values would look flat.
_FAR = 4.0
# The maximum number of separate runs in a session.
_BRANCHES = 8


class Sized(Protocol):
    """A request of a session, as far as it is drawn."""

    @property
    def number(self) -> int:
        """Return the request's number in its session."""

    @property
    def received(self) -> int:
        """Return the received tokens."""

    @property
    def sent(self) -> int:
        """Return the sent tokens."""

    @property
    def messages(self) -> int:
        """Return the number of messages."""


@dataclass(frozen=True, slots=True)
class PlotArea:
    """The size of a chart, and the margins around its plot."""

    width: int
    height: int
    left: int = 44
    right: int = 12
    top: int = 14
    bottom: int = 22

    @property
    def across(self) -> int:
        """Return the width of the plot."""
        return self.width - self.left - self.right

    @property
    def floor(self) -> int:
        """Return the y coordinate of zero."""
        return self.height - self.bottom


WIDE = PlotArea(960, 300)
LOW = PlotArea(960, 190)
HALF = PlotArea(480, 180)
NARROW = PlotArea(380, 260)


class Tick(NamedTuple):
    """A position on an axis, and its label."""

    at: float
    text: str


class Limit(NamedTuple):
    """A horizontal line with its name."""

    y: float
    kind: str
    text: str


class Spot(NamedTuple):
    """A mark on a line.

    place: the index of the marked point.
    """

    x: float
    y: float
    kind: str
    place: int


class Column(NamedTuple):
    """A vertical stretch of the plot with a tooltip.

    place: the index of its last point.
    """

    x: float
    width: float
    place: int


@dataclass(frozen=True, slots=True)
class Saw:
    """The chart of a session. Paths are in SVG's syntax, one per branch."""

    frame: PlotArea
    received: list[str]
    sent: list[str]
    areas: list[str]
    across: list[Tick]
    up: list[Tick]
    limits: list[Limit]
    spots: list[Spot]
    columns: list[Column]


def saw(
    points: Sequence[Sized], limits: Sequence[tuple[str, int]], marks: Sequence[tuple[int, str]], frame: PlotArea
) -> Saw:
    """Draw the tokens of a session's requests.

    limits: kind and tokens of each horizontal line. marks: the index of a point, and the kind of its mark.
    """
    biggest = max([1, *(max(point.received, point.sent) for point in points)])
    shown = [(kind, tokens) for kind, tokens in limits if tokens <= _FAR * biggest]
    top = 1.06 * max([biggest, *(tokens for _, tokens in shown)])
    first_number, last_number = points[0].number, points[-1].number
    width = frame.across / max(1, last_number - first_number)

    def x(point: Sized) -> float:
        return round(frame.left + (point.number - first_number) * width, 1)

    def y(tokens: float) -> float:
        return round(frame.floor - tokens / top * (frame.floor - frame.top), 1)

    runs = branches(points)
    sent = [_path([(x(point), y(point.sent)) for point in run]) for run in runs]
    return Saw(
        frame,
        received=[_path([(x(point), y(point.received)) for point in run]) for run in runs],
        sent=sent,
        areas=[
            f"{path}L{x(run[-1])} {frame.floor}L{x(run[0])} {frame.floor}Z"
            for path, run in zip(sent, runs, strict=True)
        ],
        across=[
            Tick(round(frame.left + (at - first_number) * width, 1), words.exact(at))
            for at in _numbers(first_number, last_number)
        ],
        up=[Tick(y(tokens), words.round_number(tokens)) for tokens in ticks(top)],
        limits=[Limit(y(tokens), kind, words.short(tokens)) for kind, tokens in shown],
        spots=[Spot(x(points[index]), y(points[index].sent), kind, index) for index, kind in marks],
        columns=_columns(points, [x(point) for point in points], frame),
    )


def branches(points: Sequence[Sized]) -> list[list[Sized]]:
    """Split the requests of a session into runs.

    Each point continues the longest history that is not longer than its own. Forks, rewinds and parallel runs get their
    own lines.
    """
    runs: list[list[Sized]] = []
    for point in points:
        fitting = [run for run in runs if run[-1].messages <= point.messages]
        if fitting:
            max(fitting, key=lambda run: (run[-1].messages, run[-1].number)).append(point)
        elif len(runs) < _BRANCHES:
            runs.append([point])
        else:
            min(runs, key=lambda run: run[-1].messages).append(point)
    return runs


class BarPart(NamedTuple):
    """A part of a bar.

    x, width: in thousandths. tokens: that it represents.
    """

    kind: str
    x: float
    width: float
    tokens: int


def stack_parts(parts: Iterable[tuple[str, int]]) -> list[BarPart]:
    """Return the parts of a bar that fills the width. Empty parts are left out."""
    parts = [*parts]
    total = max(1, sum(tokens for _, tokens in parts))
    bar_parts, x = [], 0.0
    for kind, tokens in parts:
        width = 1_000 * tokens / total
        if tokens > 0:
            bar_parts.append(BarPart(kind, round(x, 2), round(width, 2), tokens))
        x += max(0.0, width)
    return bar_parts


class Cell(NamedTuple):
    """Adjacent messages with one fate.

    x, width: in thousandths. first, last: their places in the request.
    """

    x: float
    width: float
    fate: str
    first: int
    last: int
    tokens: int


class Fated(Protocol):
    """A message, as far as it is drawn."""

    @property
    def place(self) -> int:
        """Return the message's place in the request."""

    @property
    def tokens(self) -> int:
        """Return the received tokens."""

    @property
    def fate(self) -> str:
        """Return the fate's code."""


def strip(messages: Sequence[Fated]) -> list[Cell]:
    """Return the messages as cells as wide as their tokens. With many messages, neighbours with one fate are joined."""
    total = max(1, sum(message.tokens for message in messages))
    size = max(1, ceil(len(messages) / _CELLS))
    cells: list[Cell] = []
    x = 0.0
    for fate, run in groupby(messages, key=lambda message: message.fate):
        alike = [*run]
        for group in (alike[at : at + size] for at in range(0, len(alike), size)):
            tokens = sum(message.tokens for message in group)
            width = 1_000 * tokens / total
            cells.append(Cell(round(x, 2), round(width, 2), fate, group[0].place, group[-1].place, tokens))
            x += width
    return cells


class Pair(NamedTuple):
    """Two bars for a span of time, one before the other.

    place: the index of the span.
    """

    x: float
    width: float
    received: float
    sent: float
    place: int


@dataclass(frozen=True, slots=True)
class Bars:
    """Pairs of bars over time, with heights in the frame's units."""

    frame: PlotArea
    pairs: list[Pair]
    up: list[Tick]
    across: list[Tick]


def bars(
    spans: Sequence[tuple[float, float]],
    labels: Sequence[str],
    frame: PlotArea,
    least: float = 1.0,
    written: Callable[[float], str] = words.round_number,
) -> Bars:
    """Draw two numbers per span, such as tokens received and sent.

    labels: of each span; empty for none. least: the minimum of the axis. written: formats the numbers of the axis.
    """
    top = 1.06 * max([least, *(max(pair) for pair in spans)])
    step = frame.across / max(1, len(spans))
    tall = frame.floor - frame.top
    pairs = [
        Pair(
            round(frame.left + at * step + step * 0.1, 1),
            round(step * 0.8, 1),
            round(received / top * tall, 1),
            round(sent / top * tall, 1),
            at,
        )
        for at, (received, sent) in enumerate(spans)
    ]
    up = [Tick(round(frame.floor - number / top * tall, 1), written(number)) for number in ticks(top, least)]
    across = [Tick(round(frame.left + (at + 0.5) * step, 1), label) for at, label in enumerate(labels) if label]
    return Bars(frame, pairs, up, across)


def ticks(top: float, least: float = 1.0) -> list[float]:
    """Return about five round numbers from zero up to `top`, with steps of at least `least`."""
    size = 10.0 ** floor(log10(max(least, top / _LINES)))
    step = next(size * factor for factor in _STEPS if size * factor >= top / _LINES)
    return [step * at for at in range(int(top / step) + 1)]


def _numbers(start: int, end: int) -> list[int]:
    """Return the numbers of requests to write below the plot."""
    step = max(1, int(ticks(max(_LINES, end - start))[1]))
    return [start, *range(ceil((start + step / 2) / step) * step, end + 1, step)]


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in places)


def _columns(points: Sequence[Sized], places: Sequence[float], frame: PlotArea) -> list[Column]:
    return [*_gapless_columns(places, frame, max(1, ceil(len(points) / _COLUMNS)))]


def _gapless_columns(places: Sequence[float], frame: PlotArea, size: int) -> Iterator[Column]:
    """Yield columns of so many points, without gaps between them."""
    start = float(frame.left)
    for at in range(size - 1, len(places) + size - 1, size):
        index = min(at, len(places) - 1)
        following = places[index + 1] if index + 1 < len(places) else places[index]
        right = (
            round((places[index] + following) / 2, 1) if index + 1 < len(places) else float(frame.left + frame.across)
        )
        yield Column(start, max(1.0, round(right - start, 1)), index)
        start = right
