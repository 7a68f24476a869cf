"""Records behind a beginning that has changed or slid away, and conversations that no record holds for. Best effort.

A trail lies under its conversation's tag and is erased with it. A pointer to it, by the last messages that it covers,
holds the conversation's first link and a digest, and leads nowhere once that is erased. Slides hold digests alone.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from policies.chain import Origin, hash_tag
from policies.plan import soft_share
from policies.record.record import Record
from policies.slide import Slide, follow_slides, slides_behind
from policies.trail import (
    LONGEST,
    Restarts,
    Trail,
    began_anew,
    beside,
    changed_at,
    find_resumption,
    is_unstable,
    spoken_suffix_of,
    suffix_of,
    trail_of,
)
from proxy.engine.case import CompactionContext
from proxy.engine.standing import StandingRecords
from proxy.lru import remember
from proxy.memory import Cache, Memory
from proxy.records.sessions import Sessions
from proxy.records.shelf import Shelf

_LOOKED_UP = 128
# Of so many pointers the first that leads to a trail counts: conversations may have been erased since.
_FOLLOWED = 3
# Conversations whose newest request is held; what of it is held takes a few kilobytes.
_HELD = 1_000


class _Pointer(msgspec.Struct, frozen=True):
    first: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class _RecordPlace:
    """Where a record lies: the tag and first link of its conversation, and how a request goes on from it."""

    tag: str
    link: bytes
    origin: Origin | None


@dataclass(frozen=True, slots=True)
class Instability:
    """A history in which messages change that were sent before: since `root`, by the message of this index."""

    root: str
    index: int


class Trails:
    """Notes and follows trails; one per process."""

    def __init__(self, sessions: Sessions, standing: StandingRecords, memory: Memory) -> None:
        self._sessions = sessions
        self._standing = standing
        self._pointers = Shelf(sessions.sealed, _Pointer)
        self._trails = Shelf(sessions.sealed, Trail, Cache(memory, "trails"))
        self._restarts = Shelf(sessions.sealed, Restarts, Cache(memory, "restarts"))
        self._slides = Shelf(sessions.sealed, list[Slide])
        self._held: OrderedDict[str, list[Slide]] = OrderedDict()
        """The newest request that each record held for, by its digest."""

    async def resume(self, case: CompactionContext) -> CompactionContext:
        """The case as a part of the conversation that it goes on from, where a summary of it would be made and there is
        no record for it; as it is where it goes on from none."""
        if not _is_due(case):
            return case
        if (record := await self._standing.newest(case)) is not None:
            remember(self._held, record.digest, slides_behind(case.conversation.body), _HELD)
            return case
        body = case.conversation.body
        cuts = sorted(case.cuts, reverse=True)[:_LOOKED_UP]
        ends = [(cut, _pointer(case, name, case.request.head_digest)) for cut in cuts if (name := suffix_of(body, cut))]
        spoken = [_pointer(case, name) for cut in cuts if (name := spoken_suffix_of(body, cut))]
        keys = list(dict.fromkeys([*(key for _, key in ends), *spoken]))
        pointers = dict(zip(keys, await self._pointers.look_up(keys), strict=True))
        places = [(cut, pointer) for cut, key in ends if (pointer := pointers[key]) is not None][:_FOLLOWED]
        found = [place for cut, pointer in places if (place := await self._place(case, cut, pointer)) is not None]
        if (there := await self._resume_behind(case, found)) is not None:
            return there
        kin = next((place.tag for place in found), "")
        for pointer in [pointer for key in spoken if (pointer := pointers[key]) is not None][: 0 if kin else _FOLLOWED]:
            place = await self._place(case, None, pointer)
            kin = kin or (place.tag if place else "")
        return replace(case, kin=kin) if kin else case

    async def _place(self, case: CompactionContext, cut: int | None, pointer: _Pointer) -> _RecordPlace | None:
        """What a pointer leads to, and how body[:cut] goes on from there; None if it leads nowhere."""
        link = await self._sessions.erasures.link(pointer.first + case.chain.mark)
        tag = hash_tag(case.chain.digests_under(link)[1])
        trail = await self._trails.get(_key(tag, pointer.digest.hex()))
        if trail is None:
            return None
        came = None if cut is None else find_resumption(trail, case.conversation.body, case.joined_digests, cut)
        origin = None if cut is None or came is None else Origin(pointer.first, cut, pointer.digest, came)
        return _RecordPlace(tag, link, origin)

    async def _resume_behind(self, case: CompactionContext, places: Sequence[_RecordPlace]) -> CompactionContext | None:
        """The case behind the one of these records that goes back furthest; None if none holds for it.

        Of a record whose front has vanished that is so only once the client's window was seen to slide.
        """
        held = [(place, place.origin) for place in places if place.origin is not None]
        slid = {origin.digest for _, origin in held if origin.resumed.shift}
        sliding = {digest for digest in slid if await self._is_sliding(case, digest.hex())}
        for place, origin in sorted(held, key=lambda each: -each[1].resumed.shift):
            if origin.resumed.shift and origin.digest not in sliding:
                continue
            there = replace(case, chain=replace(case.chain, link=place.link, origin=origin))
            # Without its record the trail names what nobody has: another one must not lie under that name.
            if await self._sessions.checkpoints.find_newest(there.chain.digests, [origin.cut]) is not None:
                return there
        return None

    async def _is_sliding(self, case: CompactionContext, digest: str) -> bool:
        """Whether the window of its client was seen to slide since the record of this digest held; takes this request
        down.

        That it held is known of the request it was made for, and of the newest one that this process has seen.
        """
        key = _slide(case, digest)
        (before,) = await self._slides.look_up([key])
        known = [*(before or ()), *self._held.get(digest, ())]
        slides = follow_slides(known, case.conversation.body)
        if slides and slides != before and not case.is_let_through:
            await self._slides.put(key, slides)
        return bool(slides) and slides[0].is_seen

    async def note(self, case: CompactionContext, record: Record) -> None:
        """See to it that a record is found again, and that a conversation is known in which none ever is."""
        body = case.conversation.body
        end, spoken = suffix_of(body, record.covered), spoken_suffix_of(body, record.covered)
        keys = [_pointer(case, end, case.request.head_digest)] if end else []
        keys += [_pointer(case, spoken)] if spoken else []
        if keys and record.covered <= LONGEST:
            came, digests = case.resumed, case.joined_digests
            anchor = next(iter(beside(case.conversation, record.covered, came)), None)
            trail = trail_of(body, digests, record.covered, came, anchor)
            await self._trails.put(_key(case.chain.tag, record.digest), trail)
            pointer = _Pointer(case.chain.first_link, bytes.fromhex(record.digest))
            for key in keys:
                await self._pointers.put(key, pointer)
            await self._slides.put(_slide(case, record.digest), await self._begin_slides(case))
        known = await self._known_restarts(case.kin or case.chain.tag, record.parent)
        by_model = record.making.model is not None
        began = began_anew(known, case.chain.tag, record.digest, body, tokens=case.request.tokens, by_model=by_model)
        await self._restarts.put(_restarts(case.chain.tag, record.parent), began)

    async def _begin_slides(self, case: CompactionContext) -> list[Slide]:
        """The slides behind a record that is made for this request: those that led to it, if its front has vanished."""
        origin = case.chain.origin
        if origin is None or not origin.resumed.shift:
            return slides_behind(case.conversation.body)
        (slides,) = await self._slides.look_up([_slide(case, origin.digest.hex())])
        return slides or []

    async def unstable(self, case: CompactionContext, standing: Record | None) -> Instability | None:
        """Why summaries that go on from this record would be lost as soon as they are made; None where they are not."""
        tag = case.kin or case.chain.tag
        known = await self._known_restarts(tag, standing.digest if standing else None)
        if not is_unstable(known, case.conversation.body, case.limits.budget, tokens=case.request.tokens):
            return None
        trail = await self._trails.get(_key(tag, known.digest))
        at = None if trail is None else changed_at(trail, case.joined_digests)
        return None if at is None else Instability(known.root, case.conversation.head_length + at)

    async def _known_restarts(self, tag: str, parent: str | None) -> Restarts:
        key = _restarts(tag, parent)
        return await self._restarts.get(key) or self._restarts.keep(key, Restarts(tag))


def _is_due(case: CompactionContext) -> bool:
    """Whether a summary of a case is made, now or ahead of need, unless there is a record for it."""
    policy = case.caller.policy
    due = case.limits.budget.at(min(soft_share(case.limits.budget, policy), policy.compaction_threshold))
    return case.mode == "force" or case.request.tokens >= due


def _key(tag: str, digest: str) -> str:
    return f"lineage:{{{tag}}}:covered:{digest}"


def _restarts(tag: str, parent: str | None) -> str:
    return f"lineage:{{{tag}}}:restarts:{parent or 'none'}"


def _slide(case: CompactionContext, digest: str) -> str:
    """Of one caller, label and head; behind one record."""
    name = case.caller.scope + case.chain.mark + case.request.head_digest + digest.encode()
    return f"index:slide:{hashlib.sha256(name).hexdigest()}"


def _pointer(case: CompactionContext, suffix: bytes, head: bytes = b"") -> str:
    """Of one caller and one label, and of one head if that is given; what covers instructions never meets what keeps
    them."""
    covers = b"+" if case.conversation.instructions_covered else b"-"
    name = case.caller.scope + covers + suffix + case.chain.mark + head
    return f"index:trail:{hashlib.sha256(name).hexdigest()}"
