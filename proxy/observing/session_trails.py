"""The trail of every session: a point of a few bytes for each of its newest requests, and sums over all of them."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from proxy.lru import remember
from proxy.observing.events import CompactionEnded, Event, PromptComposed, RequestEnded
from proxy.observing.points import Packed, Point, Points
from proxy.observing.tally import Tally, billionths, total

_SESSIONS = 300
# What prompts consist of, up to 44 kB each.
_PROMPTS = 100
POINTS = 512
_COMPACTIONS = 32
# Requests that are kept as they were told, until somebody looks.
_FRESH = 8


class Key(NamedTuple):
    """A session for people: a conversation's id (16 hex digits) and what the client calls it; empty for no name."""

    tenant: str
    id: str
    label: str


class SessionPlace(NamedTuple):
    """Where the store has a session. name: as the index lists it. link: what its hash tag is made of; it is another one
    once the session was erased."""

    name: bytes
    link: bytes


class Newest(msgspec.Struct, frozen=True, kw_only=True):
    """The newest request of a session. received, sent, window, usable: in the model's own tokens."""

    at: float
    model: str | None
    status: int
    outcome: str
    reason: str
    checkpoint: str
    received: int | None
    sent: int | None
    window: int | None
    usable: int | None
    calibration: float | None = None
    warning: str | None = None


class SessionSums(msgspec.Struct, frozen=True, array_like=True):
    """What one process has counted of a session; these only grow. began: Unix seconds, of its first request.

    tally: the fields of a `Tally`, in their order. made: records; usd: what they cost.
    """

    began: float
    tally: tuple[int, ...] = ()
    made: int = 0
    usd: float | None = None

    @property
    def counted(self) -> Tally:
        return Tally(*self.tally[: len(Tally.__struct_fields__)])

    def plus(self, later: "SessionSums") -> "SessionSums":
        """These and what the same process has counted since."""
        both = total((self.counted, later.counted))
        usd = later.usd if self.usd is None else self.usd + (later.usd or 0.0)
        return SessionSums(min(self.began, later.began), msgspec.structs.astuple(both), self.made + later.made, usd)


class TrailItem(msgspec.Struct, frozen=True, array_like=True):
    """Points of a session as the store keeps them, and who wrote them.

    sums: by process, the writer's own, and some that it last read of others: so none is lost with the items that drop
    out. model, usable, calibration, warning: of the newest request.
    """

    run: str
    sums: dict[str, SessionSums]
    points: Packed
    model: str | None = None
    usable: int | None = None
    calibration: float | None = None
    warning: str | None = None


@dataclass(slots=True)
class Summaries:
    """The compactions of a session.

    number: of records made. tally: of tokens that summarizers took, useless answers too; usd: what they cost.
    """

    number: int = 0
    tally: Tally = field(default_factory=Tally)
    usd: float | None = None
    newest: tuple[CompactionEnded, ...] = ()

    @property
    def grown(self) -> int:
        """Goes up with everything that is added."""
        return self.number + self.tally.summary_calls

    def add(self, event: CompactionEnded) -> None:
        self.newest = (*self.newest, event)[-_COMPACTIONS:]
        self.number += event.digest is not None
        self.tally.summary_calls += event.calls
        self.tally.summary_in += event.tokens_in
        self.tally.summary_out += event.tokens_out
        self.tally.cost_summaries += billionths(event.usd)
        if event.usd is not None:
            self.usd = (self.usd or 0.0) + event.usd


@dataclass(frozen=True, slots=True)
class TrailView:
    """A session as it is told. began: Unix seconds. made: records, usd: what they cost.

    prompt: what it consisted of when that was last told. compactions: those that this process saw. is_whole: whether
    other processes' requests are in it, but for their last minute.
    """

    key: Key
    began: float
    newest: Newest
    points: list[Point]
    tally: Tally
    made: int
    usd: float | None
    prompt: PromptComposed | None
    compactions: list[CompactionEnded]
    is_whole: bool


class SessionTrail:
    """One session as this process saw it. last: its newest request.

    place: where the store has it; None where it may have nothing of it. before: what this process had counted of it
    when this trail began, which it may have forgotten since; None until somebody looked. saved: requests that the store
    has; saved_summaries: what it has of summaries; saved_prompt: when the prompt that it has was told, in Unix seconds.
    failed: when the newest request ended that did not get what it asked for, or went out as it came after something of
    ours had failed; noted: the one that the store knows of.
    """

    place: SessionPlace | None = None
    before: SessionSums | None = None
    saved = 0
    saved_summaries = 0
    saved_prompt = 0.0
    failed: float | None = None
    noted: float | None = None
    # Most sessions end, or are not looked at, before there is anything to be packed.
    _requests: Tally | None = None
    _packed: Points | None = None

    def __init__(self, key: Key, first: RequestEnded, summaries: Summaries | None) -> None:
        self.key = key
        self.began = first.at
        self.last = first
        self._summaries = summaries
        self._fresh: list[RequestEnded] = []

    @property
    def summaries(self) -> Summaries:
        if self._summaries is None:
            self._summaries = Summaries()
        return self._summaries

    @property
    def tally(self) -> Tally:
        """Its requests and summaries."""
        return total((self.requests, self.summaries.tally))

    @property
    def made(self) -> int:
        """Records."""
        return self.summaries.number

    @property
    def sums(self) -> SessionSums:
        """All that this process has counted of it, as far as it was looked up."""
        here = SessionSums(self.began, msgspec.structs.astuple(self.tally), self.summaries.number, self.summaries.usd)
        return here if self.before is None else self.before.plus(here)

    @property
    def points(self) -> list[Point]:
        """The newest requests, in the order in which they ended."""
        return self._points.unpack(self._counted_before() + 1)

    @property
    def newest(self) -> Newest:
        last = self.last
        return Newest(
            at=last.at,
            model=last.model,
            status=last.status,
            outcome=last.compaction or "",
            reason=last.reason or "",
            checkpoint=last.checkpoint or "",
            received=last.received,
            sent=last.sent,
            window=last.window,
            usable=last.usable,
            calibration=last.calibration,
            warning=last.warning,
        )

    @property
    def unsaved(self) -> int:
        """Requests and summaries that the store does not have yet."""
        return self.requests.requests - self.saved + self.summaries.grown - self.saved_summaries

    def view(self, prompt: PromptComposed | None) -> TrailView:
        """It alone, without what other processes saw."""
        sums, compactions = self.sums, [*self.summaries.newest]
        points, told = self.points, (sums.counted, sums.made, sums.usd)
        return TrailView(self.key, sums.began, self.newest, points, *told, prompt, compactions, is_whole=False)

    def add(self, event: RequestEnded) -> None:
        self.last = event
        if not event.is_answered or event.compaction == "failed-open":
            self.failed = event.at
        self._fresh.append(event)
        if len(self._fresh) >= _FRESH:
            self._pack()

    @property
    def requests(self) -> Tally:
        return self._pack()[0]

    @property
    def _points(self) -> Points:
        return self._pack()[1]

    def _pack(self) -> tuple[Tally, Points]:
        if self._requests is None or self._packed is None:
            self._requests, self._packed = Tally(), Points(self.began, POINTS)
        fresh, self._fresh = self._fresh, []
        for event in fresh:
            received, sent = event.received, event.sent
            self._requests.take(event, received, sent)
            self._packed.add(event, received or 0, sent or 0)
        return self._requests, self._packed

    def unsaved_part(self, skipped: int, most: int) -> Packed:
        """Some of the points that the store does not have, the oldest first, without so many of these."""
        start = len(self._points) - min(self.requests.requests - self.saved, len(self._points)) + skipped
        stop = min(start + most, len(self._points))
        return self._points.part(start, stop, self._counted_before() + start + 1)

    def _counted_before(self) -> int:
        """Requests before the oldest point."""
        before = self.before.counted.requests if self.before else 0
        return before + self.requests.requests - len(self._points)


class SessionTrails:
    """A hook that follows the sessions which were used last."""

    def __init__(self) -> None:
        self._trails: OrderedDict[Key, SessionTrail] = OrderedDict()
        self._leaving: OrderedDict[Key, SessionTrail] = OrderedDict()
        """Those that would be forgotten, but for what the store does not have of them yet."""
        self._prompts: OrderedDict[Key, PromptComposed] = OrderedDict()
        self._summaries: OrderedDict[Key, Summaries] = OrderedDict()
        """Of sessions whose first request goes on."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, RequestEnded):
            self._request(event)
        elif isinstance(event, CompactionEnded):
            self._summaries_of(Key(event.tenant, event.session, event.label or "")).add(event)
        elif isinstance(event, PromptComposed):
            remember(self._prompts, Key(event.tenant, event.session, event.label), event, _PROMPTS)

    def newest(self) -> Iterator[SessionTrail]:
        """Return all of them, the one that was used last first; later events change nothing in it."""
        return reversed([*self._trails.values()])

    def of(self, tenant: str, name: str) -> list[SessionTrail]:
        """The sessions of a conversation, by its id: one for each label, the one used last first."""
        return [trail for trail in self.newest() if trail.key.tenant == tenant and trail.key.id == name]

    def prompt(self, key: Key) -> PromptComposed | None:
        """What the session's prompt consisted of when it was last told."""
        return self._prompts.get(key)

    def find_unsaved(self) -> list[SessionTrail]:
        """Those of which the store lacks something."""
        return [trail for trail in (*self._leaving.values(), *self._trails.values()) if trail.unsaved]

    def mark_saved(self, trail: SessionTrail) -> None:
        """It may be forgotten like any other."""
        self._leaving.pop(trail.key, None)

    def forget(self, tenant: str, name: str, is_meant: Callable[[str], bool]) -> None:
        """Keep nothing of the sessions of a conversation whose label is meant."""
        for known in (self._trails, self._leaving, self._prompts, self._summaries):
            for key in [key for key in known if key[:2] == (tenant, name) and is_meant(key.label)]:
                del known[key]

    def _request(self, event: RequestEnded) -> None:
        if event.session is None or event.tenant is None:
            return
        key = Key(event.tenant, event.session, event.label or "")
        trail = self._trails.get(key)
        if trail is not None:
            self._trails.move_to_end(key)
        else:
            trail = self._leaving.pop(key, None)
            if trail is None:
                trail = SessionTrail(key, event, self._summaries.pop(key, None))
            self._trails[key] = trail
        trail.add(event)
        if len(self._trails) > _SESSIONS:
            _, oldest = self._trails.popitem(last=False)
            if oldest.place is not None and oldest.unsaved:
                remember(self._leaving, oldest.key, oldest, _SESSIONS)

    def _summaries_of(self, key: Key) -> Summaries:
        trail = self._trails.get(key) or self._leaving.get(key)
        if trail is not None:
            return trail.summaries
        return remember(self._summaries, key, self._summaries.get(key) or Summaries(), _SESSIONS)
