"""Selection of pictures and papers to leave out of a request whose upstream accepts fewer.

The oldest are left out first, in batches: a boundary that moves with every picture would invalidate the provider's
cache with every request, which costs more than all pictures. The selection depends only on the messages and the limits.
Longer requests leave out at least what shorter ones did.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

MANY = 20
"""Number of pictures from which Anthropic limits the sides of each (platform.claude.com, "Vision")."""

Axis = Literal["bytes", "pictures", "pages"]
_AXES: tuple[Axis, ...] = ("bytes", "pictures", "pages")
Why = Literal["bytes", "pictures", "pages", "tokens", "refused"]
"""Why a medium is left out. `tokens`: its result has cooled down. `refused`: the upstream refused the request."""


class Medium(NamedTuple):
    """A picture or paper of a message.

    position: of its message in the body.
    number: its index among the media of that message.
    turn: number of assistant messages before it.
    size: bytes sent; 0 if the request contains only a reference.
    side: the longer side in pixels; 0 if unknown.
    pages: of a paper.
    cooled_at: length of the body from which its result has cooled down; None for never.
    """

    position: int
    number: int
    turn: int
    size: int
    is_of_tool: bool
    side: int = 0
    pages: int = 0
    cooled_at: int | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Return the position of its message and its index in that message."""
        return self.position, self.number

    def weight(self, axis: Axis) -> int:
        """Return how much of a limit the medium takes."""
        return self.size if axis == "bytes" else self.pages if axis == "pages" else 1


class MediaLimits(NamedTuple):
    """The limits of an upstream for one request; None if unlimited.

    bytes: of the whole body.
    pictures: number of media.
    pages: of all papers.
    many: number of media if one of them has a side above `side` pixels.
    """

    bytes: int | None = None
    pictures: int | None = None
    pages: int | None = None
    many: int | None = None
    side: int = 0

    @property
    def is_any(self) -> bool:
        """Return True if there is any limit."""
        return self != NO_MEDIA_LIMITS

    def at_most(self, other: "MediaLimits") -> "MediaLimits":
        """Return these limits with the lower number of bytes and pictures of both."""
        return self._replace(bytes=_lower(self.bytes, other.bytes), pictures=_lower(self.pictures, other.pictures))

    def of(self, axis: Axis, *, has_wide: bool) -> int | None:
        """Return the limit of an axis. has_wide: True if a picture with a side above `side` is sent."""
        if axis == "bytes":
            return self.bytes
        if axis == "pages":
            return self.pages
        return _lower(self.pictures, self.many) if has_wide else self.pictures

    def is_wide(self, medium: Medium) -> bool:
        """Return True if a side of the medium is longer than `side` and the number of media is then limited."""
        return self.many is not None and medium.side > self.side


NO_MEDIA_LIMITS = MediaLimits()


class _Selection:
    """The media left out of the messages so far, and the totals of what is sent."""

    def __init__(self, media: Sequence[Medium], limits: MediaLimits) -> None:
        """Start before the first message."""
        self.gone: dict[Medium, Why] = {}
        self._media = media
        self._limits = limits
        self._sent: dict[Axis, int] = dict.fromkeys(_AXES, 0)
        self._wide = 0
        self._seen = self._newest = 0
        # For each axis, every medium before this index is left out or has no weight.
        self._oldest: dict[Axis, int] = dict.fromkeys(_AXES, 0)

    def add_message(self, position: int, size: int) -> None:
        """Add a message of `size` bytes with its media."""
        self._sent["bytes"] += size
        while self._seen < len(self._media) and (medium := self._media[self._seen]).position <= position:
            if medium.turn != self._media[self._newest].turn:
                self._newest = self._seen
            self._seen += 1
            self._sent["pictures"] += 1
            self._sent["pages"] += medium.pages
            self._wide += self._limits.is_wide(medium)

    def leave_out(self, medium: Medium, why: Why) -> None:
        """Leave out a medium unless it is left out already."""
        if medium in self.gone:
            return
        self.gone[medium] = why
        for axis in _AXES:
            self._sent[axis] -= medium.weight(axis)
        self._wide -= self._limits.is_wide(medium)

    def cut(self, axis: Axis) -> None:
        """Leave out a batch if the messages are near the limit."""
        limit = self._limits.of(axis, has_wide=self._wide > 0)
        if limit is None or self._sent[axis] <= limit - limit // 5:
            return
        relief, index = max(1, 2 * limit // 5), self._oldest[axis]
        while index < self._newest and self._sent[axis] > relief:
            if self._media[index].weight(axis):
                self.leave_out(self._media[index], axis)
            index += 1
        self._oldest[axis] = index


def select_left_out(media: Sequence[Medium], sizes: Sequence[int], limits: MediaLimits) -> dict[Medium, Why]:
    """Return the media to leave out, each with the reason.

    A batch begins above 80 % of a limit and ends at 40 %. The newest turn with media keeps them.
    media: in order. sizes: bytes of each message of the body; 0 if it is not sent.
    """
    selection = _Selection(media, limits)
    cooled = sorted((medium.cooled_at, medium) for medium in media if medium.cooled_at is not None)
    cooled.reverse()
    for position, size in enumerate(sizes):
        selection.add_message(position, size)
        while cooled and cooled[-1][0] <= position + 1:
            selection.leave_out(cooled.pop()[1], "tokens")
        for axis in _AXES:
            selection.cut(axis)
    return selection.gone


def select_older(media: Sequence[Medium]) -> dict[Medium, Why]:
    """Return all media except those of the newest turn with media."""
    return {medium: "refused" for medium in media if medium.turn != media[-1].turn}


def _lower(this_limit: int | None, other_limit: int | None) -> int | None:
    return min((limit for limit in (this_limit, other_limit) if limit is not None), default=None)
