"""Trails that outlive the process: every process adds its points to a session's list, and all of them are told as one.

A list loses its oldest items, never a sum: each item has the sums of its writer, and those of others whose own items
are about to drop out. Sums only grow, so that of two of one process the larger holds.
"""

from collections.abc import Callable, Iterator, Sequence

from policies.chain import hash_tag
from proxy.observing.events import PromptComposed
from proxy.observing.points import Point, unpack_points
from proxy.observing.session_trails import (
    Key,
    Newest,
    SessionSums,
    SessionTrail,
    SessionTrails,
    TrailItem,
    TrailView,
)
from proxy.observing.tally import Tally, total
from proxy.records.index import SessionOwner
from proxy.records.sessions import Sessions
from proxy.records.shelf import Lists, Shelf

# So often it is looked whether a trail has this many new points; all that are new are written every so many looks.
LOOK_EVERY = 5.0
_POINTS = 32
_LOOKS = 12
# Of a list: some 2,000 requests, and 45 kB at most.
ITEMS = 64
_MOST_BYTES = 690
# Sums of others that an item carries, and how near to the end of the list they are when it does.
_CARRIED = 3
_ENDANGERED = ITEMS // 2


class KeptTrails:
    """The trails of all processes over one store, this one's among them."""

    def __init__(
        self,
        trails: SessionTrails,
        sessions: Sessions,
        owner_of: Callable[[str], SessionOwner | None],
        run: str,
    ) -> None:
        """`owner_of` finds a tenant; `run` names this process among all that ever were."""
        self._trails = trails
        self._lists = Lists(sessions.sealed, TrailItem, ITEMS)
        self._prompts = Shelf(sessions.sealed, PromptComposed)
        self._sessions = sessions
        self._erasures = sessions.erasures
        self._owner_of = owner_of
        self._run = run
        self._looks = 0

    async def look(self) -> None:
        """Write what has waited for long or grown large."""
        self._looks += 1
        await self.write(_POINTS if self._looks % _LOOKS else 1)

    async def write(self, least: int = 1) -> None:
        """Add what is new of sessions that are listed in the store, where it is so many points or more. What the store
        does not take is tried again."""
        for trail in self._trails.find_unsaved():
            if trail.place is None and (owner := self._owner_of(trail.key.tenant)) is not None:
                trail.place = self._sessions.place(owner, trail.key.id, trail.key.label)
            if trail.place is not None and trail.unsaved >= least and not await self._is_forgotten(trail):
                await self._save(trail, _key(trail.place.link))
                await self._note_failure(trail, trail.place.name)

    async def forget_erased(self) -> list[Key]:
        """Forget the sessions that were erased, by whichever process; returns them."""
        known = [trail for trail in self._trails.newest() if trail.place is not None]
        return [trail.key for trail in known if await self._is_forgotten(trail)]

    async def view(self, key: Key, trail: SessionTrail | None, name: bytes | None) -> TrailView | None:
        """A session as all processes saw it; as this one did where the store does not answer. None for one that nobody
        knows.

        trail: what this process has of it; name: as the index lists it, None for one that is not listed."""
        prompt = self._trails.prompt(key)
        place = None if name is None else _key(await self._erasures.link(name))
        known = None if place is None else await self._lists.values(place)
        if known is None or place is None:
            return None if trail is None else trail.view(prompt)
        if trail is not None:
            self._look_back(trail, known)
        told = [each for each in (prompt, *await self._prompts.look_up([_prompt_key(place)])) if each is not None]
        return _merge_items(key, known, trail, self._run, max(told, key=lambda each: each.at, default=None))

    async def _is_forgotten(self, trail: SessionTrail) -> bool:
        """Whether the session was erased: then this process knows nothing of it any more."""
        place, key = trail.place, trail.key
        if place is None or await self._erasures.link(place.name) == place.link or not self._sessions.is_up():
            return False
        self._trails.forget(key.tenant, key.id, key.label.__eq__)
        return True

    async def _save(self, trail: SessionTrail, key: str) -> None:
        known = await self._lists.values(key)
        if known is None:
            return
        self._look_back(trail, known)
        requests, summaries = trail.requests.requests, trail.summaries.grown
        await self._lists.append(key, [*self._items(key, trail, known)])
        prompt = self._trails.prompt(trail.key)
        if prompt is not None and prompt.at > trail.saved_prompt:
            await self._prompts.put(_prompt_key(key), prompt)
        if self._sessions.is_up():
            trail.saved, trail.saved_summaries = requests, summaries
            trail.saved_prompt = prompt.at if prompt else 0.0
            self._trails.mark_saved(trail)

    async def _note_failure(self, trail: SessionTrail, name: bytes) -> None:
        """Have the session listed among those that failed lately."""
        owner = self._owner_of(trail.key.tenant)
        if owner is None or trail.failed == trail.noted:
            return
        failed = trail.failed
        await self._sessions.note_failure(owner, name)
        if self._sessions.is_up():
            trail.noted = failed

    def _look_back(self, trail: SessionTrail, known: Sequence[TrailItem]) -> None:
        """Find out what this process had counted of a session before it forgot it."""
        if trail.before is None:
            trail.before = _sums(known).get(self._run, SessionSums(trail.began))

    def _items(self, key: str, trail: SessionTrail, known: Sequence[TrailItem]) -> Iterator[bytes]:
        """What is new of a trail, each as long as its item may be."""
        told = _LastReport(known, self._run)
        skipped, points = 0, min(trail.requests.requests - trail.saved, len(trail.points))
        while True:
            carried = told.sums_to_repeat()
            for most in (_POINTS, 16, 8, 4, 2, 1):
                last, part = trail.last, trail.unsaved_part(skipped, most)
                newest = (last.model, last.usable, last.calibration, last.warning)
                item = TrailItem(self._run, {self._run: trail.sums, **carried}, part, *newest)
                if len(sealed := self._lists.seal(key, item)) <= _MOST_BYTES:
                    break
            yield sealed
            skipped += most
            if skipped >= points:
                return


class _LastReport:
    """Where in a list, to which items are being added, the sums of other processes were last told."""

    def __init__(self, known: Sequence[TrailItem], run: str) -> None:
        self._sums = {name: sums for name, sums in _sums(known).items() if name != run}
        self._places = {name: place for place, item in enumerate(known) for name in item.sums}
        self._next = len(known)

    def sums_to_repeat(self) -> dict[str, SessionSums]:
        """Those that the next item has to tell again."""
        oldest = sorted(self._sums, key=self._places.__getitem__)[:_CARRIED]
        carried = [name for name in oldest if self._places[name] <= self._next - _ENDANGERED]
        self._places |= dict.fromkeys(carried, self._next)
        self._next += 1
        return {name: self._sums[name] for name in carried}


def _merge_items(
    key: Key, items: Sequence[TrailItem], trail: SessionTrail | None, run: str, prompt: PromptComposed | None
) -> TrailView | None:
    sums, points, newest = _sums(items), dict[tuple[str, int], Point](), list[Newest]()
    for item, found in zip(items, map(_points, items), strict=True):
        points |= {(item.run, point.number): point for point in found}
        newest += [_newest(item, point) for point in found[-1:]]
    if trail is not None:
        sums[run] = _later(sums.get(run), trail.sums)
        points |= {(run, point.number): point for point in trail.points}
        newest.append(trail.newest)
    if not newest:
        return None
    counted = total(each.counted for each in sums.values())
    ordered = [point for _, point in sorted(points.items(), key=lambda each: (each[1].at, each[0]))]
    first = counted.requests - len(ordered) + 1
    return TrailView(
        key=key,
        began=min(each.began for each in sums.values()),
        newest=max(newest, key=lambda each: each.at),
        points=[point._replace(number=number) for number, point in enumerate(ordered, first)],
        tally=counted,
        made=sum(each.made for each in sums.values()),
        usd=_cost(sums),
        prompt=prompt,
        compactions=[*trail.summaries.newest] if trail else [],
        is_whole=True,
    )


def _sums(items: Sequence[TrailItem]) -> dict[str, SessionSums]:
    """By process, as far as it is told."""
    found: dict[str, SessionSums] = {}
    for item in items:
        for name, sums in item.sums.items():
            found[name] = _later(found.get(name), sums)
    return found


def _later(one: SessionSums | None, other: SessionSums) -> SessionSums:
    """Of one process, the later: each of them only grows."""
    if one is None:
        return other
    fields = len(Tally.__struct_fields__)
    padded = ([*sums.tally, *(0,) * (fields - len(sums.tally))] for sums in (one, other))
    usd = [sums.usd for sums in (one, other) if sums.usd is not None]
    tally = tuple(max(pair) for pair in zip(*padded, strict=False))
    return SessionSums(min(one.began, other.began), tally, max(one.made, other.made), max(usd, default=None))


def _cost(sums: dict[str, SessionSums]) -> float | None:
    known = [each.usd for each in sums.values() if each.usd is not None]
    return sum(known) if known else None


def _points(item: TrailItem) -> list[Point]:
    """Of an item; none of one that a later version packed otherwise."""
    try:
        return unpack_points(item.points)
    except ValueError:
        return []


def _newest(item: TrailItem, point: Point) -> Newest:
    return Newest(
        at=point.at,
        model=item.model,
        status=point.status,
        outcome=point.outcome,
        reason=point.reason,
        checkpoint=point.checkpoint,
        received=point.received or None,
        sent=point.sent or None,
        window=point.window,
        usable=item.usable,
        calibration=item.calibration,
        warning=item.warning,
    )


def _prompt_key(key: str) -> str:
    return f"{key}:prompt"


def _key(link: bytes) -> str:
    return f"trail:{{{hash_tag(link)}}}"
