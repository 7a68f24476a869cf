"""Records behind a beginning that has changed or vanished, and conversations that no record holds for. Best effort.

A trail lies under its conversation's tag and is erased with it. A pointer to it, by the last messages that it covers,
holds the conversation's first link and a digest, and leads nowhere once that is erased.
"""

import hashlib
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from policies.chain import Origin, hash_tag
from policies.record.record import Record
from policies.trail import (
    LONGEST,
    Restarts,
    Trail,
    began_anew,
    changed_at,
    is_unstable,
    left_out,
    resumed,
    spoken_suffix_of,
    suffix_of,
    trail_of,
)
from proxy.engine.case import Case
from proxy.engine.standing import StandingRecords
from proxy.memory import Cache, Memory
from proxy.records.checkpoints import Checkpoints
from proxy.records.erasures import Erasures
from proxy.records.shelf import Shelf
from proxy.stores.sealing import Sealer

_LOOKED_UP = 128
# Of so many pointers the first that leads to a trail counts: conversations may have been erased since.
_FOLLOWED = 3


class _Pointer(msgspec.Struct, frozen=True):
    first: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class Instability:
    """A history in which messages change that were sent before: since `root`, by the message of this index."""

    root: str
    index: int


class Trails:
    """Notes and follows trails; one per process."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        standing: StandingRecords,
        erasures: Erasures,
        sealer: Sealer,
        ttl: float,
        memory: Memory,
    ) -> None:
        self._checkpoints = checkpoints
        self._standing = standing
        self._erasures = erasures
        self._pointers = Shelf(checkpoints.store, sealer, ttl, _Pointer)
        self._trails = Shelf(checkpoints.store, sealer, ttl, Trail, Cache(memory, "trails"))
        self._restarts = Shelf(checkpoints.store, sealer, ttl, Restarts, Cache(memory, "restarts"))

    async def resumed(self, case: Case) -> Case:
        """The case as a part of the conversation that it goes on from, where a summary of it would be made and there is
        no record for it; as it is where it goes on from none."""
        if not _is_due(case) or await self._standing.newest(case) is not None:
            return case
        body = case.conversation.body
        cuts = sorted(case.cuts, reverse=True)[:_LOOKED_UP]
        exact = [(cut, _pointer(case, name)) for cut in cuts if (name := suffix_of(body, cut)) is not None]
        spoken = [(cut, _pointer(case, name)) for cut in cuts if (name := spoken_suffix_of(body, cut)) is not None]
        keys = list(dict.fromkeys(key for _, key in [*exact, *spoken]))
        pointers = dict(zip(keys, await self._pointers.look_up(keys), strict=True))
        kin = ""
        for cut, key in [(cut, key) for cut, key in exact if pointers[key] is not None][:_FOLLOWED]:
            found, tag = await self._followed(case, cut, pointers[key])
            if found is not None:
                return found
            kin = kin or tag
        for _, key in [(cut, key) for cut, key in spoken if pointers[key] is not None][: 0 if kin else _FOLLOWED]:
            _, tag = await self._followed(case, None, pointers[key])
            kin = kin or tag
        return replace(case, kin=kin) if kin else case

    async def _followed(self, case: Case, cut: int | None, pointer: _Pointer | None) -> tuple[Case | None, str]:
        """The case behind what a pointer leads to, None where it does not go on from there; and the tag of that."""
        if pointer is None:
            return None, ""
        link = await self._erasures.link(pointer.first + case.chain.mark)
        tag = hash_tag(case.chain.digests_under(link)[1])
        trail = await self._trails.get(_key(tag, pointer.digest.hex()))
        if trail is None:
            return None, ""
        found = None if cut is None else resumed(trail, case.conversation.body, cut)
        if found is None or cut is None:
            return None, tag
        origin = Origin(pointer.first, cut, pointer.digest, found)
        there = replace(case, chain=replace(case.chain, link=link, origin=origin))
        # Without its record the trail names what nobody has: another one must not lie under that name.
        known = await self._checkpoints.known(there.chain.digests, [cut])
        return (None if known is None else there), tag

    async def note(self, case: Case, record: Record) -> None:
        """See to it that a record is found again, and that a conversation is known in which none ever is."""
        body = case.conversation.body
        names = {suffix_of(body, record.covered), spoken_suffix_of(body, record.covered)} - {None}
        if names and record.covered <= LONGEST:
            came = case.resumed
            trail = trail_of(body[: record.covered], came, left_out(case.conversation, record.covered, came))
            await self._trails.put(_key(case.chain.tag, record.digest), trail)
            pointer = _Pointer(case.chain.first_link, bytes.fromhex(record.digest))
            for name in filter(None, names):
                await self._pointers.put(_pointer(case, name), pointer)
        known = await self._known(case.kin or case.chain.tag, record.parent)
        by_model = record.making.model is not None
        began = began_anew(known, case.chain.tag, record.digest, body, tokens=case.request.tokens, by_model=by_model)
        await self._restarts.put(_restarts(case.chain.tag, record.parent), began)

    async def unstable(self, case: Case, standing: Record | None) -> Instability | None:
        """Why summaries that go on from this record would be lost as soon as they are made; None where they are not."""
        tag = case.kin or case.chain.tag
        known = await self._known(tag, standing.digest if standing else None)
        if not is_unstable(known, case.conversation.body, case.limits.budget, tokens=case.request.tokens):
            return None
        trail = await self._trails.get(_key(tag, known.digest))
        at = None if trail is None else changed_at(trail, case.conversation.body)
        return None if at is None else Instability(known.root, case.conversation.head_length + at)

    async def _known(self, tag: str, parent: str | None) -> Restarts:
        key = _restarts(tag, parent)
        return await self._restarts.get(key) or self._restarts.keep(key, Restarts(tag))


def _is_due(case: Case) -> bool:
    """Whether a summary of a case is made, now or ahead of need, unless there is a record for it."""
    policy = case.caller.policy
    due = case.limits.budget.at(min(policy.soft_threshold, policy.compaction_threshold))
    return case.mode == "force" or case.request.tokens >= due


def _key(tag: str, digest: str) -> str:
    return f"lineage:{{{tag}}}:trail:{digest}"


def _restarts(tag: str, parent: str | None) -> str:
    return f"lineage:{{{tag}}}:restarts:{parent or 'none'}"


def _pointer(case: Case, suffix: bytes) -> str:
    """Of one caller and one label; what covers instructions never meets what keeps them."""
    covers = b"+" if case.conversation.instructions_covered else b"-"
    return f"index:trail:{hashlib.sha256(case.caller.scope + covers + suffix + case.chain.mark).hexdigest()}"
