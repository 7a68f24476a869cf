"""Records of the same conversation under other labels: who goes on under a new one need not pay for them again.

Sessions share nothing, so that each can be erased. But what the client sends again it may have summarized by the same
record: a copy, which is its own once it is used again. Where a session's records lie is noted by content, under the
session without a label; a note holds the mark of a label and nothing else.
"""

from collections.abc import Sequence

from policies.chain import Chain, hash_tag
from policies.record.record import Record
from proxy.records.checkpoints import Checkpoints, is_of
from proxy.records.erasures import Erasures

_LOOKED_UP = 256
# Of so many notes the first that leads to a record counts: labels may have been erased since.
_FOLLOWED = 3


class SharedCheckpoints:
    """Notes and finds records across labels; one per process."""

    def __init__(self, checkpoints: Checkpoints, erasures: Erasures) -> None:
        self._checkpoints = checkpoints
        self._sealed = checkpoints.sealed
        self._erasures = erasures

    def is_borrowed(self, chain: Chain, record: Record) -> bool:
        """Whether this is a copy that is not stored: where a session's own lies, this process remembers it."""
        return self._checkpoints.recall(chain.digests, [record.covered]) is None

    async def keep(self, chain: Chain, record: Record, *, again: bool) -> None:
        """See to the record of a session that is listed: it is found from other labels, too. Not to one of another
        prefix, as after an erasure meanwhile.

        A copy is stored once it is used `again`, so that labels which change with each request cost none.
        """
        if not is_of(record, chain.digests, record.covered):
            return
        if self.is_borrowed(chain, record):
            if not again:
                return
            await self._checkpoints.publish(chain.digests, record)
        await self._note(chain, record)

    async def _note(self, chain: Chain, record: Record) -> None:
        """One without a label is found where it lies."""
        if chain.mark:
            key = _note(await self._shared_digests(chain), record.covered)
            await self._sealed.put(key, chain.mark)

    async def find(self, chain: Chain, cuts: Sequence[int]) -> Record | None:
        """The longest record of one of these prefixes under any other label, as it lies there."""
        cuts = sorted(cuts, reverse=True)[:_LOOKED_UP]
        if not cuts:
            return None
        shared = await self._shared_digests(chain)
        unlabelled = await self._checkpoints.find(shared, cuts) if chain.mark else None
        keys = [_note(shared, cut) for cut in cuts]
        values = await self._sealed.store.get_many(keys)
        noted = [(cut, key, value) for cut, key, value in zip(cuts, keys, values, strict=True) if value is not None]
        for cut, key, value in noted[:_FOLLOWED]:
            mark = self._sealed.sealer.open(key, value)
            if mark is None or mark == chain.mark or (unlabelled and unlabelled.covered >= cut):
                continue
            digests = chain.digests_under(await self._erasures.link(chain.first_link + mark))
            if (record := await self._checkpoints.find(digests, [cut])) is not None:
                return record
        return unlabelled

    async def _shared_digests(self, chain: Chain) -> list[bytes]:
        return chain.digests_under(await self._erasures.link(chain.first_link))


def _note(digests: Sequence[bytes], cut: int) -> str:
    return f"session:{{{hash_tag(digests[1])}}}:at:{digests[cut].hex()}"
