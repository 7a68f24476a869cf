"""What a conversation knows of its upstream's limits of media, and from which message on.

A lesson adds and never rewrites: batches that were cut before it stay as they were sent, and replicas that have not
heard of it cut alike, since it stands with the conversation. What was put once is never changed.
"""

from __future__ import annotations

from itertools import takewhile

import msgspec

from policies.chain import Chain
from policies.media import MediaLimits
from proxy.memory import Cache
from proxy.records.shelf import Shelf
from proxy.stores.sealing import SealedStore

MOST = 8
"""Of a conversation."""


class MediaMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What held from the request on whose body had `length` messages of this digest, in place of the mark before it.

    at: Unix seconds at which its limits were learned, or forgotten. refused: media that are taken in no request, by
    their digests, with the sentences that said so.
    """

    length: int
    digest: str
    at: float = 0.0
    bytes: int | None = None
    pictures: int | None = None
    many: int | None = None
    side: int | None = None
    pages: int | None = None
    refused: dict[str, str] = {}

    @property
    def limits(self) -> MediaLimits:
        return MediaLimits(self.bytes, self.pictures, self.many, self.side, self.pages)

    def is_of(self, chain: Chain) -> bool:
        """Whether the conversation begins with these messages."""
        return self.length < len(chain.digests) and chain.digests[self.length].hex() == self.digest


class MediaMarks:
    """Marks by conversation; one per process."""

    def __init__(self, sealed: SealedStore, memory: Cache[str, MediaMark]) -> None:
        self._shelf = Shelf(sealed, MediaMark, memory)

    async def of(self, chain: Chain) -> list[MediaMark]:
        """Those of a conversation, and of what has branched off it, in the order in which they were put."""
        keys = [_key(chain, number) for number in range(MOST)]
        known = [*takewhile(lambda mark: mark is not None, map(self._shelf.recall, keys))]
        found = await self._shelf.look_up(keys[len(known) :]) if len(known) < MOST else []
        for key, mark in zip(keys[len(known) :], found, strict=False):
            if mark is None:
                break
            known.append(self._shelf.keep(key, mark))
        return [mark for mark in known if mark is not None]

    async def add(self, chain: Chain, number: int, mark: MediaMark) -> MediaMark:
        """Put a mark behind so many, unless another replica was first; returns the one that stands there."""
        key = _key(chain, number)
        return self._shelf.keep(key, await self._shelf.put_new(key, mark))


def _key(chain: Chain, number: int) -> str:
    return f"media:{{{chain.tag}}}:{number}"
