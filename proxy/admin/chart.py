"""Where things lie in the pictures: sizes become coordinates here, and SVG in a template."""

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
# A limit far above everything is out of the picture: it would press the rest flat.
_FAR = 4.0
# Runs of one conversation that are told apart.
_BRANCHES = 8


class Sized(Protocol):
    """A request of a session, as far as it is drawn."""

    @property
    def number(self) -> int: ...

    @property
    def received(self) -> int: ...

    @property
    def sent(self) -> int: ...

    @property
    def messages(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PlotArea:
    """A picture's size, and what is kept free around the plot."""

    width: int
    height: int
    left: int = 44
    right: int = 12
    top: int = 14
    bottom: int = 22

    @property
    def across(self) -> int:
        return self.width - self.left - self.right

    @property
    def floor(self) -> int:
        """The y of zero."""
        return self.height - self.bottom


WIDE = PlotArea(960, 300)
LOW = PlotArea(960, 190)
HALF = PlotArea(480, 180)
NARROW = PlotArea(380, 260)


class Tick(NamedTuple):
    """A place on an axis, and what is written there."""

    at: float
    text: str


class Limit(NamedTuple):
    """A line across, with its name."""

    y: float
    kind: str
    text: str


class Spot(NamedTuple):
    """A mark on a line. place: of what it marks, in the order that was given."""

    x: float
    y: float
    kind: str
    place: int


class Column(NamedTuple):
    """A stretch of the plot that tells what lies there when it is pointed at. place: of its last point."""

    x: float
    width: float
    place: int


@dataclass(frozen=True, slots=True)
class Saw:
    """The picture of a session; paths are in SVG's words, one a branch."""

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
    """The tokens of a session's requests, one after the other.

    limits: kind and tokens of each line across. marks: the place of a point in the sequence, and the kind of its mark.
    """
    biggest = max([1, *(max(point.received, point.sent) for point in points)])
    shown = [(kind, tokens) for kind, tokens in limits if tokens <= _FAR * biggest]
    top = 1.06 * max([biggest, *(tokens for _, tokens in shown)])
    first, last = points[0].number, points[-1].number
    width = frame.across / max(1, last - first)

    def x(point: Sized) -> float:
        return round(frame.left + (point.number - first) * width, 1)

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
        across=[Tick(round(frame.left + (at - first) * width, 1), words.exact(at)) for at in _numbers(first, last)],
        up=[Tick(y(tokens), words.round_number(tokens)) for tokens in ticks(top)],
        limits=[Limit(y(tokens), kind, words.short(tokens)) for kind, tokens in shown],
        spots=[Spot(x(points[index]), y(points[index].sent), kind, index) for index, kind in marks],
        columns=_columns(points, [x(point) for point in points], frame),
    )


def branches(points: Sequence[Sized]) -> list[list[Sized]]:
    """The runs of a session: each point goes on from the longest history that is not longer than its own, so that
    forks, rewinds and runs side by side are lines of their own."""
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
    """A part of a bar. x, width: of 1,000. tokens: what it stands for."""

    kind: str
    x: float
    width: float
    tokens: int


def stack_parts(parts: Iterable[tuple[str, int]]) -> list[BarPart]:
    """Parts side by side, which are the whole together; what is empty is left out."""
    parts = [*parts]
    whole = max(1, sum(tokens for _, tokens in parts))
    found, x = [], 0.0
    for kind, tokens in parts:
        width = 1_000 * tokens / whole
        if tokens > 0:
            found.append(BarPart(kind, round(x, 2), round(width, 2), tokens))
        x += max(0.0, width)
    return found


class Cell(NamedTuple):
    """Messages side by side that met one fate. x, width: of 1,000. first, last: their places in the request."""

    x: float
    width: float
    fate: str
    first: int
    last: int
    tokens: int


class Fated(Protocol):
    """A message, as far as it is drawn."""

    @property
    def place(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def fate(self) -> str: ...


def strip(messages: Sequence[Fated]) -> list[Cell]:
    """The messages in their order, each as wide as its tokens; of many, neighbours of one fate are joined."""
    whole = max(1, sum(message.tokens for message in messages))
    size = max(1, ceil(len(messages) / _CELLS))
    cells: list[Cell] = []
    x = 0.0
    for fate, run in groupby(messages, key=lambda message: message.fate):
        alike = [*run]
        for some in (alike[at : at + size] for at in range(0, len(alike), size)):
            tokens = sum(message.tokens for message in some)
            width = 1_000 * tokens / whole
            cells.append(Cell(round(x, 2), round(width, 2), fate, some[0].place, some[-1].place, tokens))
            x += width
    return cells


class Pair(NamedTuple):
    """Two bars, one before the other: a span of time. place: of it, in the order that was given."""

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
    """Two numbers in each of the spans, such as tokens received and sent; `labels` says when each was, empty for no
    word. The axis goes to `least` at any rate, and its numbers are `written` so."""
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
    """Round numbers from zero on, about five, below `top`, and no nearer to each other than `least`."""
    size = 10.0 ** floor(log10(max(least, top / _LINES)))
    step = next(size * factor for factor in _STEPS if size * factor >= top / _LINES)
    return [step * at for at in range(int(top / step) + 1)]


def _numbers(first: int, last: int) -> list[int]:
    """Numbers of requests that are written below the plot."""
    step = max(1, int(ticks(max(_LINES, last - first))[1]))
    return [first, *range(ceil((first + step / 2) / step) * step, last + 1, step)]


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in places)


def _columns(points: Sequence[Sized], places: Sequence[float], frame: PlotArea) -> list[Column]:
    return [*_gapless_columns(places, frame, max(1, ceil(len(points) / _COLUMNS)))]


def _gapless_columns(places: Sequence[float], frame: PlotArea, size: int) -> Iterator[Column]:
    """Columns of so many points that lie side by side without a gap."""
    left = float(frame.left)
    for at in range(size - 1, len(places) + size - 1, size):
        index = min(at, len(places) - 1)
        behind = places[index + 1] if index + 1 < len(places) else places[index]
        right = round((places[index] + behind) / 2, 1) if index + 1 < len(places) else float(frame.left + frame.across)
        yield Column(left, max(1.0, round(right - left, 1)), index)
        left = right
