"""Which pictures and papers of a history are left out, where an upstream takes so many bytes or so many of them.

In batches, as large results are in the cool zone: moving the front with every picture breaks the provider's cache with
every request, and costs more than keeping all. What is left out follows from the history alone, and a longer history
never takes back what was left out of a shorter one.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

# Shares of a limit at which a batch begins, and at which it ends; and down to which a user's own media go.
VALVE, RELIEF, USERS_RELIEF = 0.80, 0.40, 0.60
# A limit of so few has no room for shares: a batch begins when it is reached, and takes half.
_FEW = 10


class Medium(NamedTuple):
    """One in a message. position: of the message in the body; number: among its media. size: bytes as it is sent, 0
    for one that is only named. is_of_tool: whether it is a tool's. is_refused: whether a provider takes it at all."""

    position: int
    number: int
    size: int
    is_of_tool: bool
    is_refused: bool = False

    @property
    def place(self) -> tuple[int, int]:
        return self.position, self.number


class MediaLimits(NamedTuple):
    """What an upstream takes of one request; None for anything. bytes: of the whole body. pictures: media in it."""

    bytes: int | None = None
    pictures: int | None = None

    @property
    def is_any(self) -> bool:
        return self.bytes is not None or self.pictures is not None

    def at_most(self, other: "MediaLimits") -> "MediaLimits":
        """What both allow."""
        pairs = zip(self, other, strict=True)
        return MediaLimits(*(min((one for one in pair if one is not None), default=None) for pair in pairs))


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


def aged(media: Sequence[Medium], outline: MediaOutline, limits: MediaLimits) -> set[Medium]:
    """What is left out of the newest request, by what every request before it was; `media` in their order."""
    gone = {medium for medium in media if medium.is_refused}
    if not limits.is_any:
        return gone
    weights = [*accumulate(outline.sizes, initial=outline.fixed)]
    there: list[Medium] = []
    left_out = seen = 0
    for end, hot, user in zip(outline.ends, outline.hot, outline.users, strict=True):
        while seen < len(media) and (medium := media[seen]).position <= end:
            left_out += medium.size if medium in gone else 0
            there += [] if medium in gone else [medium]
            seen += 1
        load = MediaLimits(weights[end + 1] - left_out, len(there))
        for at, (limit, loaded) in enumerate(zip(limits, load, strict=True)):
            if limit is None or loaded is None or loaded <= _valve(limit, is_count=at == 1):
                continue
            batch = {*_batch(there, loaded, limit, _hot(there, hot, limits), user, is_count=at == 1)}
            there = [medium for medium in there if medium not in batch]
            left_out += sum(medium.size for medium in batch)
            gone |= batch
            break
    return gone


def shed(media: Sequence[Medium], outline: MediaOutline, most: MediaLimits, *, hot_too: bool) -> set[Medium]:
    """What is left out of the newest request to come below these, whatever was sent before; with `hot_too` all but the
    newest result's, and what the user sent last."""
    gone = {medium for medium in media if medium.is_refused}
    there = [medium for medium in media if medium not in gone]
    if not there:
        return gone
    user = outline.users[-1] if outline.users else 0
    newest = max((medium.position for medium in there if medium.is_of_tool), default=-1)
    hot = newest if hot_too else outline.hot[-1] if outline.hot else 0
    weight = outline.fixed + sum(outline.sizes) - sum(medium.size for medium in gone)
    load = MediaLimits(weight, len(there))
    for medium in _order(there, hot, user, newest):
        is_over = [
            limit is not None and have is not None and have > limit for limit, have in zip(most, load, strict=True)
        ]
        if not any(is_over):
            break
        gone.add(medium)
        load = MediaLimits((load.bytes or 0) - medium.size, (load.pictures or 0) - 1)
    return gone


def _hot(there: Sequence[Medium], hot: int, limits: MediaLimits) -> int:
    """From which position on media of tools are kept: fewer where those would take more than half of what may be."""
    size = number = 0
    for medium in reversed(there):
        if medium.is_of_tool and medium.position >= hot:
            size, number = size + medium.size, number + 1
            is_much = limits.bytes is not None and size > RELIEF * limits.bytes
            if number > 1 and (is_much or (limits.pictures is not None and number > max(1, limits.pictures // 2))):
                return medium.position + 1
    return hot


def _valve(limit: int, *, is_count: bool) -> int:
    return limit if is_count and limit <= _FEW else int(VALVE * limit)


def _batch(there: Sequence[Medium], load: int, limit: int, hot: int, user: int, *, is_count: bool) -> Iterator[Medium]:
    """The oldest of tools that are not hot, down to the relief; then a user's from before the last message."""
    relief = max(1, limit // 2) if is_count and limit <= _FEW else int(RELIEF * limit)
    newest = max((medium.position for medium in there if medium.is_of_tool), default=-1)
    for medium in _order(there, hot, user, newest):
        if load <= (relief if medium.is_of_tool else max(relief, int(USERS_RELIEF * limit))):
            continue
        load -= 1 if is_count else medium.size
        yield medium


def _order(there: Sequence[Medium], hot: int, user: int, newest: int) -> Iterator[Medium]:
    yield from (medium for medium in there if medium.is_of_tool and medium.position < hot and medium.position != newest)
    yield from (medium for medium in there if not medium.is_of_tool and medium.position < user)
