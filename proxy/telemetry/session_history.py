"""The histories of the sessions that this process serves: unsaved entries, and some that are already stored."""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from proxy.lru import remember
from proxy.telemetry.branches import Branch, find_branches
from proxy.telemetry.events import CompactionEnded, Event, PromptComposed, RequestEnded
from proxy.telemetry.history_entries import (
    CompactionEntry,
    HistoryEntry,
    Point,
    RequestEntry,
    make_compaction_entry,
    make_point,
    make_request_entry,
)
from proxy.telemetry.hooks import RequestListener
from proxy.telemetry.tally import Tally, billionths

# The maximum number of sessions, and of their entries in all: about 10 MB.
SESSIONS = 1_000
ENTRIES = 20_000
# The maximum entries of one session: unsaved, and after they are stored.
MOST_UNSAVED = 512
_MOST_SAVED = 16
# The number of entries that are dropped together.
_DROPPED = 64
# The number of requests in a session's chart.
POINTS = 512
# The maximum number of prompts. Each takes up to 44 kB.
_PROMPTS = 100
_COMPACTIONS = 32


class Key(NamedTuple):
    """A session for people: a conversation's id (16 hex digits) and the client's name for it; empty for no name."""

    tenant: str
    id: str
    label: str


class SessionPlace(NamedTuple):
    """The location of a session in the store.

    name: in the index. link: the source of its hash tag. An erasure of the session changes it.
    """

    name: bytes
    link: bytes


class Newest(msgspec.Struct, frozen=True, kw_only=True):
    """The newest request of a session.

    received, sent, window, usable: in the model's own tokens.
    """

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


class HistorySums(msgspec.Struct):
    """Sums over the entries of a history.

    records: made by compactions. usd: cost of summaries; None if unknown.
    """

    tally: Tally = msgspec.field(default_factory=Tally)
    records: int = 0
    usd: float | None = None

    def merge(self, other: "HistorySums") -> None:
        """Add other sums."""
        self.tally.add(other.tally)
        self.records += other.records
        if other.usd is not None:
            self.usd = (self.usd or 0.0) + other.usd

    def add(self, entries: Sequence[HistoryEntry]) -> None:
        """Add entries."""
        tally = self.tally
        tally.add_requests(entry for entry in entries if isinstance(entry, RequestEntry))
        for entry in entries:
            if not isinstance(entry, CompactionEntry):
                continue
            self.records += entry.checkpoint is not None
            tally.summary_calls += entry.calls
            tally.summary_in += entry.tokens_in
            tally.summary_out += entry.tokens_out
            tally.cost_summaries += billionths(entry.usd)
            if entry.usd is not None:
                self.usd = (self.usd or 0.0) + entry.usd

    def with_entries(self, entries: Sequence[HistoryEntry]) -> "HistorySums":
        """Return these sums with further entries."""
        tally = Tally()
        tally.add(self.tally)
        sums = HistorySums(tally, self.records, self.usd)
        sums.add(entries)
        return sums


class SessionFigures(NamedTuple):
    """The figures of a session for a list."""

    key: Key
    newest: Newest
    sums: HistorySums


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """A session's history for pages.

    began: when its oldest known request ended, in Unix seconds. branches: of its requests. points: its requests, the
    oldest first. ids: their request ids by their numbers. prompt: the composition of the newest observed prompt.
    compactions: those of this process. is_whole: True if requests of all replicas are in it. is_cut: True if the store
    has dropped older entries, so that all sums are of the newest ones.
    """

    key: Key
    began: float
    newest: Newest
    points: list[Point]
    ids: dict[int, str]
    sums: HistorySums
    prompt: PromptComposed | None
    compactions: Sequence[CompactionEnded]
    is_whole: bool = False
    is_cut: bool = False
    branches: list[Branch] = []


class SessionHistory:
    """A session as this process saw it.

    last: its newest request. id: unique among all processes. entries: the newest, the oldest first. added: the number
    of entries so far. saved: how many of these the store has. place: in the store; None if it has nothing.
    saved_prompt: when the stored prompt was observed, in Unix seconds. failed: the end of the newest request that
    failed or was sent unchanged after a fault; noted_failure: the one in the store.
    """

    def __init__(self, key: Key, last: RequestEnded) -> None:
        """Create the history of a session with its first request."""
        self.key = key
        self.id = secrets.token_hex(8)
        self.began = last.at
        self.last = last
        self.entries: list[HistoryEntry] = []
        self.added = 0
        self.saved = 0
        self.place: SessionPlace | None = None
        self.saved_prompt = 0.0
        self.failed: float | None = None
        self.noted_failure: float | None = None
        self.compactions: tuple[CompactionEnded, ...] = ()
        self._dropped = HistorySums()

    @property
    def unsaved(self) -> list[HistoryEntry]:
        """Return the entries that the store does not have."""
        return self.entries[max(0, len(self.entries) - (self.added - self.saved)) :]

    @property
    def sums(self) -> HistorySums:
        """Return the sums over everything that this process saw of the session."""
        return self._dropped.with_entries(self.entries)

    @property
    def newest(self) -> Newest:
        """Return the newest request."""
        return make_newest(make_request_entry(self.last))

    def view(self, prompt: PromptComposed | None) -> HistoryView:
        """Return this process's view of the session."""
        sums = self.sums
        requests = [entry for entry in self.entries if isinstance(entry, RequestEntry)]
        first_number = sums.tally.requests - len(requests) + 1
        return HistoryView(
            key=self.key,
            began=self.began,
            newest=self.newest,
            points=[make_point(number, entry) for number, entry in enumerate(requests, first_number)],
            ids={number: entry.id for number, entry in enumerate(requests, first_number)},
            sums=sums,
            prompt=prompt,
            compactions=self.compactions,
            branches=find_branches(requests),
        )

    def add_request(self, event: RequestEnded, entry: RequestEntry) -> int:
        """Add a request, and return the growth of the entries."""
        self.last = event
        if not entry.is_answered or event.compaction == "failed-open":
            self.failed = event.at
        return self._add(entry)

    def add_compaction(self, event: CompactionEnded) -> int:
        """Add a compaction, and return the growth of the entries."""
        self.compactions = (*self.compactions, event)[-_COMPACTIONS:]
        return self._add(make_compaction_entry(event))

    def mark_saved(self, saved: int) -> int:
        """Note the number of stored entries, and return the growth of the entries."""
        self.saved = saved
        return -self._drop(len(self.entries) - max(self.added - saved, _MOST_SAVED))

    def _add(self, entry: HistoryEntry) -> int:
        self.entries.append(entry)
        self.added += 1
        return 1 if len(self.entries) <= MOST_UNSAVED else 1 - self._drop(_DROPPED)

    def _drop(self, number: int) -> int:
        """Drop the oldest entries, except for their sums."""
        if number <= 0:
            return 0
        self._dropped.add(self.entries[:number])
        del self.entries[:number]
        return number


class SessionHistories(RequestListener):
    """A hook that follows the most recently used sessions."""

    def __init__(self) -> None:
        """Create an empty hook."""
        self._histories: OrderedDict[Key, SessionHistory] = OrderedDict()
        self._prompts: OrderedDict[Key, PromptComposed] = OrderedDict()
        self._early: OrderedDict[Key, tuple[CompactionEnded, ...]] = OrderedDict()
        """Compactions of sessions whose first request has not ended."""
        self._entries = 0

    def on_event(self, event: Event) -> None:
        """Add a compaction or a prompt."""
        if isinstance(event, CompactionEnded):
            key = Key(event.tenant, event.session, event.label or "")
            if (history := self._histories.get(key)) is not None:
                self._entries += history.add_compaction(event)
            else:
                remember(self._early, key, (*self._early.get(key, ()), event)[-_COMPACTIONS:], SESSIONS)
        elif isinstance(event, PromptComposed):
            remember(self._prompts, Key(event.tenant, event.session, event.label), event, _PROMPTS)

    def newest(self) -> Iterator[SessionHistory]:
        """Return all sessions, the last used first. Later events do not change the result."""
        return reversed([*self._histories.values()])

    def get(self, key: Key) -> SessionHistory | None:
        """Return a session as this process saw it."""
        return self._histories.get(key)

    def of(self, tenant: str, name: str) -> list[SessionHistory]:
        """Return the sessions of a conversation by its id, one per label, the last used first."""
        return [history for history in self.newest() if history.key.tenant == tenant and history.key.id == name]

    def prompt(self, key: Key) -> PromptComposed | None:
        """Return the composition of the session's newest observed prompt."""
        return self._prompts.get(key)

    def find_unsaved(self) -> list[SessionHistory]:
        """Return the sessions with entries that are not stored."""
        return [history for history in self._histories.values() if history.added > history.saved]

    def mark_saved(self, history: SessionHistory, saved: int) -> None:
        """Note the number of stored entries of a session."""
        grown = history.mark_saved(saved)
        if self._histories.get(history.key) is history:
            self._entries += grown

    def forget(self, tenant: str, name: str, is_meant: Callable[[str], bool]) -> None:
        """Forget the sessions of a conversation whose label matches."""
        for key in _keys_of(self._histories, tenant, name, is_meant):
            self._entries -= len(self._histories.pop(key).entries)
        for memory in (self._prompts, self._early):
            for key in _keys_of(memory, tenant, name, is_meant):
                del memory[key]

    def on_request(self, event: RequestEnded, entry: RequestEntry) -> None:
        """Add a request of a session."""
        if event.session is None or event.tenant is None:
            return
        histories, key = self._histories, (event.tenant, event.session, event.label or "")
        history = histories.get(key)  # type: ignore[call-overload]  # a tuple is equal to its Key, and faster to create
        if history is None:
            history = self._begin(Key(*key), event)
        else:
            histories.move_to_end(history.key)
        self._entries += history.add_request(event, entry)
        while len(histories) > SESSIONS or self._entries > ENTRIES:
            _, oldest = histories.popitem(last=False)
            self._entries -= len(oldest.entries)

    def _begin(self, key: Key, first: RequestEnded) -> SessionHistory:
        history = self._histories[key] = SessionHistory(key, first)
        for compaction in self._early.pop(key, ()):
            self._entries += history.add_compaction(compaction)
        return history


def view_entries(
    key: Key,
    entries: Sequence[HistoryEntry],
    prompt: PromptComposed | None,
    compactions: Sequence[CompactionEnded],
    *,
    is_cut: bool,
) -> HistoryView | None:
    """Return a session's history as all replicas saw it, from its entries in any order; None if it has no request."""
    requests = sorted(
        (entry for entry in entries if isinstance(entry, RequestEntry)), key=lambda entry: (entry.at, entry.id)
    )
    if not requests:
        return None
    return HistoryView(
        key=key,
        began=requests[0].at,
        newest=make_newest(requests[-1]),
        points=[make_point(number, entry) for number, entry in enumerate(requests, 1)],
        ids={number: entry.id for number, entry in enumerate(requests, 1)},
        sums=HistorySums().with_entries(entries),
        prompt=prompt,
        compactions=compactions,
        is_whole=True,
        is_cut=is_cut,
        branches=find_branches(requests),
    )


def make_newest(entry: RequestEntry) -> Newest:
    """Return the newest request of a session for pages."""
    return Newest(
        at=entry.at,
        model=entry.model,
        status=entry.status,
        outcome=entry.compaction or "",
        reason=entry.reason or "",
        checkpoint=entry.checkpoint or "",
        received=entry.received,
        sent=entry.sent,
        window=entry.window,
        usable=entry.usable,
        calibration=entry.calibration,
        warning=entry.warning,
    )


def _keys_of(memory: Iterable[Key], tenant: str, name: str, is_meant: Callable[[str], bool]) -> list[Key]:
    return [key for key in memory if key[:2] == (tenant, name) and is_meant(key.label)]
