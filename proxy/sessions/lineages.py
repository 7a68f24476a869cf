"""The state of conversations, in this process and, for other replicas, in the store. It is best effort."""

from collections.abc import Callable

from policies.decision.budget import Budget
from policies.record.lineage import (
    Lineage,
    after_compaction,
    after_failure,
    after_showing,
    may_ask_model,
    may_gain,
    without_gain,
)
from policies.record.record import Record
from proxy.memory import Cache, Memory
from proxy.sessions.shelf import Shelf
from proxy.sessions.stores.sealing import SealedStore

# The size of the first link and time of a conversation.
_SEEN_BYTES = 100


class Lineages:
    """The state of every compacted conversation, by its first record. There is one instance per process.

    Two replicas that change one state concurrently may lose a count. Only statistics and pauses depend on it.
    """

    def __init__(self, sealed: SealedStore, clock: Callable[[], float], memory: Memory) -> None:
        """Create the lineages. `clock` returns Unix seconds."""
        self._shelf = Shelf(sealed, Lineage, Cache(memory, "lineages"))
        self._clock = clock
        self._first_seen: Cache[bytes, float] = Cache(memory, "conversations")

    def now(self) -> float:
        """Return the time in Unix seconds, as in records."""
        return self._clock()

    def first_seen(self, first_link: bytes) -> float:
        """Return when this process first saw the conversation with this first link."""
        stored = self._first_seen.get(first_link)
        return self._first_seen.keep(first_link, self._clock(), _SEEN_BYTES) if stored is None else stored

    async def of(self, tag: str, record: Record) -> Lineage:
        """Return the lineage of this record; a new one if it is unknown.

        `tag` is the conversation's, here and below.
        """
        key = _key(tag, record)
        return await self._shelf.get(key) or self._shelf.keep(key, Lineage(first_seen=record.started))

    async def look_up(self, tag: str, record: Record) -> Lineage | None:
        """Return the stored lineage of this record, without remembering it."""
        (lineage,) = await self._shelf.look_up([_key(tag, record)])
        return lineage

    async def note_compaction(self, tag: str, record: Record, messages: int) -> None:
        """Note a compaction of a request of so many messages. Many requests may have waited for it."""
        lineage = await self.of(tag, record)
        if all(entry.digest != record.digest for entry in lineage.history):
            await self.save(tag, record, after_compaction(lineage, record, messages=messages, now=record.compacted))

    async def note_failure(self, tag: str, standing: Record | None) -> None:
        """Note a failed compaction after a standing record."""
        if standing is not None:
            await self.save(tag, standing, after_failure(await self.of(tag, standing)))

    async def note_share(
        self, tag: str, record: Record, *, share: float, threshold: float, history_tokens: int
    ) -> None:
        """Note which share of the room a compacted request still took by the provider's count."""
        lineage = await self.of(tag, record)
        now = self._clock()
        await self.save(
            tag,
            record,
            after_showing(
                lineage, record.digest, share=share, threshold=threshold, history_tokens=history_tokens, now=now
            ),
        )

    async def may_ask_model(self, tag: str, standing: Record | None, budget: Budget, history_tokens: int) -> bool:
        """Return True if a model's summary may help a conversation that continues this record."""
        if standing is None:
            return True
        lineage = await self.of(tag, standing)
        return may_ask_model(lineage, budget, history_tokens=history_tokens, now=self._clock())

    async def gained_nothing(self, tag: str, standing: Record | None, history_tokens: int) -> None:
        """Note that a record of so many tokens of history, after a standing one, was discarded."""
        key = _next_key(tag, standing)
        lineage = await self._shelf.get(key) or Lineage(first_seen=self._clock())
        await self._shelf.put(key, without_gain(lineage, history_tokens))

    async def may_gain(self, tag: str, standing: Record | None, history_tokens: int) -> bool:
        """Return True if another record after this one may gain something."""
        lineage = await self._shelf.get(_next_key(tag, standing))
        return lineage is None or may_gain(lineage, history_tokens)

    async def save(self, tag: str, record: Record, lineage: Lineage) -> None:
        """Store a lineage if it has changed."""
        key = _key(tag, record)
        if self._shelf.recall(key) != lineage:
            await self._shelf.put(key, lineage)


def _next_key(tag: str, standing: Record | None) -> str:
    """Return the key of the state of the next record after a standing one, or of the first record."""
    return f"lineage:{{{tag}}}:after:{standing.digest[:32] if standing else ''}"


def _key(tag: str, record: Record) -> str:
    return f"lineage:{{{tag}}}:{record.root[:32]}"
