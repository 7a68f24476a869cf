"""The trail of every session: a point of a few bytes for each of its newest requests, and sums over all of them."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from proxy.lru import remember
from proxy.observing.events import CompactionEnded, Event, PromptComposed, RequestEnded
from proxy.observing.tally import Tally, total

_SESSIONS = 300
# What prompts consist of, up to 44 kB each.
_PROMPTS = 100
POINTS = 512
_COMPACTIONS = 32
# Words of a session: outcomes, reasons and checkpoints, each named by a number in its points.
_MOST_WORDS = 0xFFF0
_MOST = 0xFFFFFFFF
# Of a point: seconds since the first one, tokens received and sent, the window, messages, words, percent, status, bits.
_POINT = Struct("<IIIIHHHHBHB")
_UNKNOWN_SHARE = 255
_SOLVED, _PASSED_ON, _CUT_OFF = 1, 2, 4


class Key(NamedTuple):
    """A session for people: a conversation's id (16 hex digits) and what the client calls it; empty for no name."""

    tenant: str
    id: str
    label: str


class Point(NamedTuple):
    """A request of a session. at: Unix seconds. number: among all of its requests, from 1 on.

    cached: the share of the billed prompt that the provider had in its cache; None where it did not say.
    """

    number: int
    at: float
    received: int
    sent: int
    window: int | None
    messages: int
    outcome: str
    reason: str
    checkpoint: str
    cached: float | None
    status: int
    overflow: str | None
    is_cut_off: bool


@dataclass(slots=True)
class Summaries:
    """The compactions of a conversation, which all of its labels share: events do not tell labels apart.

    number: of records made. tally: of tokens that summarizers took, useless answers too; usd: what they cost.
    """

    number: int = 0
    tally: Tally = field(default_factory=Tally)
    usd: float | None = None
    newest: deque[CompactionEnded] = field(default_factory=lambda: deque(maxlen=_COMPACTIONS))

    def add(self, event: CompactionEnded) -> None:
        self.newest.append(event)
        self.number += event.digest is not None
        self.tally.summary_in += event.tokens_in
        self.tally.summary_out += event.tokens_out
        if event.usd is not None:
            self.usd = (self.usd or 0.0) + event.usd


@dataclass(slots=True)
class SessionTrail:
    """One session as this process saw it. last: its newest request."""

    key: Key
    began: float
    last: RequestEnded
    summaries: Summaries
    requests: Tally = field(default_factory=Tally)
    _packed: bytearray = field(default_factory=bytearray)
    _words: dict[str, int] = field(default_factory=dict)

    @property
    def tally(self) -> Tally:
        """Its requests, and the summaries of its conversation."""
        return total((self.requests, self.summaries.tally))

    @property
    def points(self) -> list[Point]:
        """The newest requests, in the order in which they ended."""
        words = [*self._words]
        first = self.requests.requests - len(self._packed) // _POINT.size + 1
        found = []
        for number, packed in enumerate(_POINT.iter_unpack(self._packed), first):
            seconds, received, sent, window, messages, outcome, reason, checkpoint, share, status, bits = packed
            cached = None if share == _UNKNOWN_SHARE else share / 100
            overflow = "solved" if bits & _SOLVED else "passed_on" if bits & _PASSED_ON else None
            told = (words[outcome], words[reason], words[checkpoint])
            at = self.began + seconds
            found.append(
                Point(
                    number, at, received, sent, window or None, messages, *told, cached, status, overflow,
                    bool(bits & _CUT_OFF),
                )
            )  # fmt: skip
        return found

    def add(self, event: RequestEnded) -> None:
        self.last = event
        received, sent = event.received, event.sent
        self.requests.take(event, received, sent)
        self._pack(event, received or 0, sent or 0)

    def _pack(self, event: RequestEnded, received: int, sent: int) -> None:
        """In a few microseconds: every request comes by here."""
        share, bits, words = _UNKNOWN_SHARE, 0, self._words
        if event.billed and event.cached is not None:
            share = min(100, 100 * event.cached // event.billed)
        if event.overflow is not None:
            bits = _PASSED_ON if event.overflow == "passed_on" else _SOLVED
        if event.warning == "prompt_cut_off":
            bits |= _CUT_OFF
        told = (event.compaction or "", event.reason or "", event.checkpoint or "")
        if len(words) < _MOST_WORDS:
            outcome, reason, checkpoint = (words.setdefault(word, len(words)) for word in told)
        else:
            outcome, reason, checkpoint = (words.get(word, 0) for word in told)
        sizes = (int(event.at - self.began), received, sent, event.window or 0)
        since, received, sent, window = (max(0, min(size, _MOST)) for size in sizes)
        messages = min(event.messages or 0, 0xFFFF)
        packed = self._packed
        packed += _POINT.pack(
            since, received, sent, window, messages, outcome, reason, checkpoint, share, min(event.status, 999), bits
        )
        if len(packed) > POINTS * _POINT.size:
            del packed[: _POINT.size]


class SessionTrails:
    """A hook that follows the sessions which were used last."""

    def __init__(self) -> None:
        self._trails: OrderedDict[Key, SessionTrail] = OrderedDict()
        self._prompts: OrderedDict[Key, PromptComposed] = OrderedDict()
        self._summaries: OrderedDict[tuple[str, str], Summaries] = OrderedDict()

    def __call__(self, event: Event) -> None:
        if isinstance(event, RequestEnded):
            self._request(event)
        elif isinstance(event, CompactionEnded):
            self._summaries_of(event.tenant, event.session).add(event)
        elif isinstance(event, PromptComposed):
            remember(self._prompts, Key(event.tenant, event.session, event.label), event, _PROMPTS)

    def newest(self) -> Iterator[SessionTrail]:
        """All of them, the one that was used last first."""
        return reversed(self._trails.values())

    def of(self, tenant: str, name: str) -> list[SessionTrail]:
        """The sessions of a conversation, by its id: one for each label, the one used last first."""
        return [trail for trail in self.newest() if trail.key.tenant == tenant and trail.key.id == name]

    def prompt(self, key: Key) -> PromptComposed | None:
        """What the session's prompt consisted of when it was last told."""
        return self._prompts.get(key)

    def forget(self, tenant: str, name: str, is_meant: Callable[[str], bool]) -> None:
        """Keep nothing of the sessions of a conversation whose label is meant."""
        for trail in self.of(tenant, name):
            if is_meant(trail.key.label):
                del self._trails[trail.key]
                self._prompts.pop(trail.key, None)
        if not self.of(tenant, name):
            self._summaries.pop((tenant, name), None)

    def _request(self, event: RequestEnded) -> None:
        if event.session is None or event.tenant is None:
            return
        key = Key(event.tenant, event.session, event.label or "")
        trail = self._trails.get(key) or SessionTrail(key, event.at, event, self._summaries_of(key.tenant, key.id))
        trail.add(event)
        remember(self._trails, key, trail, _SESSIONS)

    def _summaries_of(self, tenant: str, name: str) -> Summaries:
        known = self._summaries.get((tenant, name)) or Summaries()
        return remember(self._summaries, (tenant, name), known, _SESSIONS)
