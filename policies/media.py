"""Which pictures and papers of a history are left out, where an upstream takes so many bytes or so many of them.

In batches, as large results are in the cool zone: moving the front with every picture breaks the provider's cache with
every request, and costs more than keeping all. What is left out follows from the history and from what was learned at
which place of it, and a longer history never takes back what was left out of a shorter one.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

# Shares of a limit at which a batch begins, and at which it ends; and down to which a user's own media go.
VALVE, RELIEF, USERS_RELIEF = 0.80, 0.40, 0.60
# Down to which share of so many as make wide pictures too many a batch goes.
WIDE_RELIEF = 0.50
MANY = 20
"""Pictures beside which none may be wide, if a refusal for that does not state it (platform.claude.com, "Vision")."""
# A limit of so few has no room for shares: a batch begins when it is reached, and takes half.
_FEW = 10

Axis = Literal["bytes", "pictures", "wide", "pages"]
"""What there may be too much of. `wide`: pictures of which a side is too long, beside so many others."""
Why = Literal["refused", "tokens", "bytes", "pictures", "wide", "pages"]
"""Why a medium is left out: its provider refuses it by itself, it has cooled down, or there is too much."""
AXES: tuple[Axis, ...] = ("bytes", "pictures", "wide", "pages")
_COOLED: Why = "tokens"


class Medium(NamedTuple):
    """One in a message. position: of the message in the body; number: among its media. size: bytes as it is sent, 0
    for one that is only named. is_of_tool: whether it is a tool's. is_refused: whether a provider takes it at all.
    side: the longer one, in pixels, 0 if that is not known. pages: of a paper.
    gone_from: messages of the body from which on it is left out for its tokens; None for never."""

    position: int
    number: int
    size: int
    is_of_tool: bool
    is_refused: bool = False
    side: int = 0
    pages: int = 0
    gone_from: int | None = None

    @property
    def place(self) -> tuple[int, int]:
        return self.position, self.number


class MediaLimits(NamedTuple):
    """What an upstream takes of one request; None for anything. bytes: of the whole body. pictures: media in it.
    many, side: once there are more than so many, none of which a side has more pixels. pages: of all papers."""

    bytes: int | None = None
    pictures: int | None = None
    many: int | None = None
    side: int | None = None
    pages: int | None = None

    @property
    def is_any(self) -> bool:
        return self != NO_MEDIA_LIMITS

    def at_most(self, other: "MediaLimits") -> "MediaLimits":
        """What both allow."""
        if other is self or other == NO_MEDIA_LIMITS:
            return self
        pairs = zip(self, other, strict=True)
        return MediaLimits(*(min((one for one in pair if one is not None), default=None) for pair in pairs))

    def of(self, axis: Axis) -> int | None:
        if axis == "wide":
            return self.many if self.side is not None else None
        limit: int | None = getattr(self, axis)
        return limit

    def is_wide(self, medium: Medium) -> bool:
        return self.side is not None and medium.side > self.side


NO_MEDIA_LIMITS = MediaLimits()


class MediaOutline(NamedTuple):
    """What of a body decides which media go.

    sizes: bytes of every message; fixed: of all around them. ends: positions of messages at which requests ended, those
    of the last one among them. hot: for each of these, the position from which on media of tools are needed; users:
    for each, that of the user's last message.
    """

    sizes: Sequence[int]
    fixed: int
    ends: Sequence[int]
    hot: Sequence[int]
    users: Sequence[int]


class Lesson(NamedTuple):
    """What was learned when the body had so many messages, and holds from then on in place of the lesson before it;
    older batches stay as they were."""

    length: int
    limits: MediaLimits


class _Load:
    """The media that are still sent of a body, and what they and all else weigh."""

    def __init__(self, weight: int, media: Sequence[Medium] = ()) -> None:
        self.bytes = weight
        self.there = [*media]

    def take(self, gone: set[Medium]) -> None:
        self.bytes -= sum(medium.size for medium in self.there if medium in gone)
        self.there = [medium for medium in self.there if medium not in gone]

    def on(self, axis: Axis, limits: MediaLimits) -> int:
        match axis:
            case "bytes":
                return self.bytes
            case "pages":
                return sum(medium.pages for medium in self.there)
            case "wide" if not any(map(limits.is_wide, self.there)):
                return 0
            case _:
                return len(self.there)


def reasons(
    media: Sequence[Medium], outline: MediaOutline, limits: MediaLimits, lessons: Sequence[Lesson] = ()
) -> dict[Medium, Why]:
    """What is left out of the newest request, by what every request before it was, and why; `media` in their order.

    limits: those that held from the beginning; `lessons`: in the order in which they were learned.
    """
    gone: dict[Medium, Why] = dict.fromkeys(_refused_media(media, outline), "refused")
    if not (limits.is_any or lessons):
        cooled_down = (one for one in media if one.gone_from is not None and one.gone_from <= len(outline.sizes))
        return {**dict.fromkeys(cooled_down, _COOLED), **gone}
    always = limits
    weights = [*accumulate(outline.sizes, initial=outline.fixed)]
    later = sorted((one.gone_from, one) for one in media if one.gone_from is not None and not one.is_refused)
    load = _Load(0)
    seen = cooled = taught = left_out = 0
    for end, hot, user in zip(outline.ends, outline.hot, outline.users, strict=True):
        while taught < len(lessons) and lessons[taught].length <= end + 1:
            limits, taught = always.at_most(lessons[taught].limits), taught + 1
        first = seen
        while seen < len(media) and media[seen].position <= end:
            seen += 1
        left_out += sum(medium.size for medium in media[first:seen] if medium in gone)
        load.there += [medium for medium in media[first:seen] if medium not in gone]
        load.bytes = weights[end + 1] - left_out
        batch: set[Medium] = set()
        while cooled < len(later) and later[cooled][0] <= end + 1:
            batch.add(later[cooled][1])
            cooled += 1
        before = load.bytes
        load.take(batch - gone.keys())
        gone = {**dict.fromkeys(batch, _COOLED), **gone}
        for axis in AXES:
            if (limit := limits.of(axis)) is None or load.on(axis, limits) <= _valve(limit, axis):
                continue
            batch = {*_batch(load, axis, limits, limit, _hot(load.there, hot, limits), user)}
            load.take(batch)
            gone |= dict.fromkeys(batch, axis)
        left_out += before - load.bytes
    return gone


def shed(media: Sequence[Medium], outline: MediaOutline, most: MediaLimits, *, hot_too: bool) -> set[Medium]:
    """What is left out of the newest request to come below these, whatever was sent before; with `hot_too` all but the
    newest result's, and what the user sent last."""
    gone = {*_refused_media(media, outline)}
    load = _Load(outline.fixed + sum(outline.sizes), media)
    load.take(gone)
    user = outline.users[-1] if outline.users else 0
    hot = _newest(load.there) if hot_too else outline.hot[-1] if outline.hot else 0
    for axis in AXES:
        if (limit := most.of(axis)) is not None:
            batch = {*_down_to(load, axis, most, hot, user, limit, limit)}
            load.take(batch)
            gone |= batch
    return gone


def _refused_media(media: Sequence[Medium], outline: MediaOutline) -> Iterator[Medium]:
    """Those that are taken in no request; what the user has sent last is the user's to mend."""
    user = outline.users[-1] if outline.users else 0
    return (one for one in media if one.is_refused and (one.is_of_tool or one.position < user))


def is_within(media: Sequence[Medium], weight: int, most: MediaLimits) -> bool:
    """Whether a body of so many bytes with these media is within these limits."""
    load = _Load(weight, media)
    return all(limit is None or load.on(axis, most) <= limit for axis in AXES for limit in (most.of(axis),))


def _batch(load: _Load, axis: Axis, limits: MediaLimits, limit: int, hot: int, user: int) -> Iterator[Medium]:
    """The oldest of tools that are not hot, down to the relief; then a user's from before the last message."""
    relief = _relief(limit, axis)
    return _down_to(load, axis, limits, hot, user, relief, max(relief, int(USERS_RELIEF * limit)))


def _down_to(
    load: _Load, axis: Axis, limits: MediaLimits, hot: int, user: int, least: int, users_least: int
) -> Iterator[Medium]:
    there, wide = load.on(axis, limits), sum(map(limits.is_wide, load.there))
    for medium in _order(load.there, axis, limits, hot, user):
        if there <= (least if medium.is_of_tool else users_least) or (axis == "wide" and not wide):
            continue
        there -= _weight(medium, axis)
        wide -= limits.is_wide(medium)
        yield medium


def _order(there: Sequence[Medium], axis: Axis, limits: MediaLimits, hot: int, user: int) -> Iterator[Medium]:
    """Those that may go and weigh something, the first first: wide ones are what is too much where they are."""
    newest = _newest(there)
    weighty = [medium for medium in there if _weight(medium, axis)]
    first = [one for one in weighty if one.is_of_tool and one.position < hot and one.position != newest]
    then = [one for one in weighty if not one.is_of_tool and one.position < user]
    for some in (first, then):
        yield from sorted(some, key=lambda one: not limits.is_wide(one)) if axis == "wide" else some


def _weight(medium: Medium, axis: Axis) -> int:
    return medium.size if axis == "bytes" else medium.pages if axis == "pages" else 1


def _newest(there: Sequence[Medium]) -> int:
    """Where the newest result with media stands; -1 without one."""
    return max((medium.position for medium in there if medium.is_of_tool), default=-1)


def _hot(there: Sequence[Medium], hot: int, limits: MediaLimits) -> int:
    """From which position on media of tools are kept: fewer where those would take more than half of what may be."""
    number = 0
    taken = dict.fromkeys(AXES, 0)
    for medium in reversed(there):
        if not medium.is_of_tool or medium.position < hot:
            continue
        number += 1
        for axis in AXES:
            taken[axis] += _weight(medium, axis)
        if number > 1 and any(
            taken[axis] > most for axis in AXES if (most := _most_hot(limits.of(axis), axis)) is not None
        ):
            return medium.position + 1
    return hot


def _most_hot(limit: int | None, axis: Axis) -> int | None:
    if limit is None:
        return None
    return max(1, limit // 2) if axis in ("pictures", "wide") else int(RELIEF * limit)


def _valve(limit: int, axis: Axis) -> int:
    is_whole = axis == "wide" or (axis == "pictures" and limit <= _FEW)
    return limit if is_whole else int(VALVE * limit)


def _relief(limit: int, axis: Axis) -> int:
    if axis == "wide":
        return int(WIDE_RELIEF * limit)
    return max(1, limit // 2) if axis == "pictures" and limit <= _FEW else int(RELIEF * limit)
