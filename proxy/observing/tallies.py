"""What has happened since the start, as plain numbers: by tenant, upstream and model, in all, and in the last hour.

Every event is folded into them once, and all that shows figures reads them. Models are named by clients, so a model has
a name here once it has answered, and the number of series is bounded.
"""

from collections.abc import Callable, Iterator, Mapping

import msgspec

from policies.experience import MIN_CALIBRATION_TOKENS
from proxy.observing import events
from proxy.observing.events import Event
from proxy.observing.histograms import OTHER, Exemplar, Histograms, Labels
from proxy.observing.notes import NOTES
from proxy.observing.tally import Hours, Tally, total

# Models with a name; series of all counters with further labels together; sets of a histogram's labels. With all of
# them in use Prometheus is told some 6,000 lines, which take a fifth of a second to write.
MOST_SETS = 200
MOST_FURTHER = 600
MOST_HISTOGRAMS = 30
_MINUTES = 60
_MOST_ROWS = 50

# Kinds of requests whose places are kept at hand.
_MOST_PLACES = 500

Key = tuple[str, str, str]
"""Tenant, upstream, model; empty where there is none."""

_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
_BOUNDS: Mapping[str, tuple[float, ...]] = {
    "request_duration_seconds": _SECONDS,
    "time_to_first_byte_seconds": _SECONDS,
    "overhead_seconds": (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0),
    "summary_wait_seconds": _SECONDS,
    "window_used_ratio": (0.5, 0.7, 0.8, 0.9, 1.0, 2.0),
    "estimate_ratio": (0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0),
    "summarizer_call_duration_seconds": (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0),
    "compaction_duration_seconds": (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0),
    "compaction_ratio": (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9),
    "bisect_depth": (0.0, 1.0, 2.0, 3.0, 4.0, 6.0),
    "event_loop_lag_seconds": (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
}
_FAILURES = frozenset(
    {
        *("dns", "refused", "tls", "unreachable", "connect_timeout", "idle_timeout", "total_timeout"),
        *("reset", "closed", "not_http", "proxy", "proxy_credentials", "proxy_refused"),
    }
)
_STATUSES = tuple(f"{hundreds}xx" for hundreds in range(10))
_WOULD_COMPACT = "would_compact"


class Counts:
    """Counters with further labels by name; all of them together have so many series, and `other` beyond."""

    def __init__(self, most: int) -> None:
        self._left = most
        self.of: dict[str, dict[Labels, int]] = {}

    def add(self, name: str, labels: Labels, number: int = 1) -> None:
        series, labels = self.series(name, labels)
        series[labels] += number

    def series(self, name: str, labels: Labels) -> tuple[dict[Labels, int], Labels]:
        """Where a counter with these labels is counted."""
        series = self.of.setdefault(name, {})
        if labels not in series:
            if self._left:
                self._left -= 1
            else:
                labels = (OTHER,) * len(labels)
            series.setdefault(labels, 0)
        return series, labels


class _TallyPlace(msgspec.Struct, eq=False):
    """Where requests of a kind are added up in this minute: in which counters and sums, and under which upstream and
    model.

    day: of the sums by the hour. number, sums: of those that are in none of the others yet.
    """

    counters: list[tuple[dict[Labels, int], Labels]]
    tallies: tuple[Tally, ...]
    where: Labels
    day: int
    number: int = 0
    sums: Tally = msgspec.field(default_factory=Tally)


class Tallies:
    """A hook that folds events into numbers; one per process.

    sets: in all, counts: with further labels; of requests up to the last `fold`. histograms: by name. comments: signs
    of life sent to waiting clients. windows: by upstream and model: tokens, and who says so. hours: sums by the hour.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` tells Unix seconds."""
        self._clock = clock
        self.sets: dict[Key, Tally] = {}
        self.hours = Hours(clock, self.fold)
        self.counts = Counts(MOST_FURTHER)
        self.histograms = {name: Histograms(bounds, MOST_HISTOGRAMS) for name, bounds in _BOUNDS.items()}
        self.comments = 0
        self.windows: dict[Labels, tuple[int, str]] = {}
        self._answered: set[tuple[str, str]] = set()
        self._minutes: dict[int, dict[tuple[str, str], Tally]] = {}
        self._minute = 0
        self._places: dict[tuple[object, ...], _TallyPlace] = {}
        # A counter that begins with its first event hides that from `increase`.
        for result in ("success", "failed"):
            self.counts.add("config_reloads", (result,), 0)
        self._folds: dict[type, Callable[..., None]] = {
            events.RequestEnded: self._request,
            events.CompactionEnded: self._compaction,
            events.SummarizerCalled: self._call,
            events.PromptBilled: self._fold_billed,
            events.Recalled: self._fold_recalled,
            events.Note: self._note,
        }

    def __call__(self, event: Event) -> None:
        if (fold := self._folds.get(type(event))) is not None:
            fold(event)

    def of(self, tenant: str | None = None) -> Iterator[tuple[Key, Tally]]:
        """Return those of one tenant, or of all; later events add none to it."""
        self.fold()
        return iter([(key, tally) for key, tally in self.sets.items() if tenant in (None, key[0])])

    def minutes(self, tenant: str | None = None) -> list[tuple[int, Tally]]:
        """The last hour, oldest first: when a minute began, in Unix seconds, and its sums. Quiet ones are missing."""
        self.fold()
        oldest = int(self._clock()) // 60 - _MINUTES
        found = sorted((minute, rows) for minute, rows in self._minutes.items() if minute > oldest)
        return [
            (60 * minute, total(row for (owner, _), row in rows.items() if tenant in (None, owner)))
            for minute, rows in found
        ]

    def note_lag(self, seconds: float) -> None:
        """The event loop was late by so many seconds."""
        self.histograms["event_loop_lag_seconds"].observe((), seconds)

    # what each event adds

    def _request(self, event: events.RequestEnded) -> None:
        is_answered, minute = event.is_answered, int(self._clock()) // 60
        if minute != self._minute:
            self._minute = minute
            self._forget_places()
        kind = (
            event.tenant, event.upstream, event.model, event.wire, event.end, event.status, is_answered,
            event.compaction, event.reason,
        )  # fmt: skip
        place = self._places.get(kind) or self._place(event, kind)
        place.number += 1
        self.comments += event.comments
        if event.cause in _FAILURES:
            self.counts.add("upstream_failures", (event.upstream or "", event.cause))
        if event.code is not None:
            self.counts.add("refusals", (event.code,))
        if event.wire == "relay":
            return
        sent = event.sent
        place.sums.take(event, event.received, sent)
        self.hours.changed.add(place.day)
        if event.overflow is not None:
            self.counts.add("overflows", (*place.where, event.overflow))
        if is_answered:
            self._measure(event, place.where, sent)
            if event.window is not None and place.where[1] != OTHER:
                self.windows[place.where] = (event.window, event.window_source or "")

    def _media(self, media: events.MediaFigures, where: Labels) -> None:
        self.counts.add("media_received", where, media.received)
        self.counts.add("media_sent", where, media.sent)
        self.counts.add("media_received_bytes", where, media.bytes)
        for why, number in media.left_out.items():
            self.counts.add("media_left_out", (*where, why), number)

    def _place(self, event: events.RequestEnded, kind: tuple[object, ...]) -> _TallyPlace:
        """Looked for once a minute, or where another model gets a name: every request comes by here."""
        tenant, upstream, model = event.tenant or "", event.upstream or "", self._model_of(event)
        labels = (tenant, upstream, model, event.wire, event.end, _STATUSES[event.status // 100])
        counters = [self.counts.series("requests", labels)]
        tallies: tuple[Tally, ...] = ()
        if event.wire != "relay":
            tallies = (self._set(tenant, upstream, model), self._row(tenant, model), self.hours.row(tenant, model))
            if event.compaction is not None:
                reason = event.reason or ""
                reason = _WOULD_COMPACT if reason.startswith(_WOULD_COMPACT) else reason
                counters.append(self.counts.series("outcomes", (tenant, model, event.compaction, reason)))
        if len(self._places) >= _MOST_PLACES:
            self._forget_places()
        place = self._places[kind] = _TallyPlace(counters, tallies, (upstream, model), self.hours.day)
        return place

    def fold(self) -> None:
        """Add what has come lately to what is read, of which each place has several; on the event loop."""
        for place in self._places.values():
            if place.number:
                for series, labels in place.counters:
                    series[labels] += place.number
                for tally in place.tallies:
                    tally.add(place.sums)
                place.number, place.sums = 0, Tally()

    def _forget_places(self) -> None:
        self.fold()
        self._places.clear()

    def _measure(self, event: events.RequestEnded, where: Labels, sent: int | None) -> None:
        if event.media is not None:
            self._media(event.media, where)
        histograms = self.histograms
        self._took("request_duration_seconds", where, event, event.ms)
        if event.first_byte_ms is not None:
            self._took("time_to_first_byte_seconds", where, event, event.first_byte_ms)
        if event.own_ms is not None:
            histograms["overhead_seconds"].observe(("total",), event.own_ms / 1000)
        for stage, ms in (event.stages or {}).items():
            histograms["overhead_seconds"].observe((stage,), ms / 1000)
        if event.wait_ms is not None:
            histograms["summary_wait_seconds"].observe((event.compaction or "",), event.wait_ms / 1000)
        if event.window and sent is not None:
            histograms["window_used_ratio"].observe(where, sent / event.window)

    def _compaction(self, event: events.CompactionEnded) -> None:
        model = self._model_name(None, event.for_model or "")
        self.counts.add("compactions", (event.tenant, model, event.trigger, event.cut, event.result))
        how = (event.result,)
        self.histograms["compaction_duration_seconds"].observe(how, event.ms / 1000)
        if event.ratio is not None:
            self.histograms["compaction_ratio"].observe(how, event.ratio)
            self.histograms["bisect_depth"].observe(how, event.depth or 0)

    def _took(self, name: str, where: Labels, event: events.RequestEnded, ms: float) -> None:
        if event.trace_id is None:
            self.histograms[name].observe(where, ms / 1000)
        else:
            self.histograms[name].observe_traced(where, Exemplar(event.trace_id, ms / 1000, event.at))

    def _call(self, event: events.SummarizerCalled) -> None:
        if event.result in ("ok", "reminded", "invalid"):
            self._remember(event.upstream, event.model)
        model = self._model_name(event.upstream, event.model)
        self.counts.add("summarizer_calls", (event.upstream, model, event.result))
        self._set(event.tenant, event.upstream, model).take_call(event)
        self._row(event.tenant, model).take_call(event)
        self.hours.row(event.tenant, model).take_call(event)
        self.histograms["summarizer_call_duration_seconds"].observe((event.upstream, model), event.ms / 1000)

    def _fold_billed(self, event: events.PromptBilled) -> None:
        self._remember(event.upstream, event.model)
        model = self._model_name(event.upstream, event.model)
        if event.estimated >= MIN_CALIBRATION_TOKENS:
            self.histograms["estimate_ratio"].observe((event.upstream, model), event.billed / event.estimated)
        if event.cut_off:
            self._count("prompts_cut_off", event)

    def _fold_recalled(self, event: events.Recalled) -> None:
        self._count("recalled", event)
        self._count("recalled_tokens", event, event.tokens)

    def _note(self, note: events.Note) -> None:
        kind = NOTES[note.name]
        if kind.counter is None:
            return
        values = {"tenant": note.tenant or "", **note.fields}
        if "model" in values:
            values["model"] = self._model_name(str(values["upstream"]), str(values["model"]))
        labels = (*(str(values[label]) for label in kind.labels), *kind.label_values)
        self.counts.add(kind.counter, labels)

    # names

    def _count(self, name: str, event: events.PromptBilled | events.Recalled, number: int = 1) -> None:
        self.counts.add(name, (event.tenant, event.upstream, self._model_name(event.upstream, event.model)), number)

    def _model_of(self, event: events.RequestEnded) -> str:
        if event.model is None:
            return "" if event.wire == "relay" else OTHER
        if event.is_answered:
            self._remember(event.upstream or "", event.model)
        return self._model_name(event.upstream or "", event.model)

    def _remember(self, upstream: str, model: str) -> None:
        if len(self._answered) < MOST_SETS and (upstream, model) not in self._answered:
            self._answered.add((upstream, model))
            self._forget_places()  # of its requests before that had no name

    def _model_name(self, upstream: str | None, model: str) -> str:
        """The model by its name, once it has answered: at this upstream, or (None) at any."""
        if upstream is None:
            return model if any(model == name for _, name in self._answered) else OTHER
        return model if (upstream, model) in self._answered else OTHER

    def _set(self, *key: str) -> Tally:
        tenant, upstream, model = key
        found = self.sets.get((tenant, upstream, model))
        if found is None:
            if len(self.sets) >= MOST_SETS:
                model = OTHER
            found = self.sets.setdefault((tenant, upstream, model), Tally())
            self.counts.add("overflows", (upstream, model, "passed_on"), 0)
        return found

    def _row(self, tenant: str, model: str) -> Tally:
        """Of this minute."""
        minute = int(self._clock()) // 60
        rows = self._minutes.get(minute)
        if rows is None:
            for old in [known for known in self._minutes if known <= minute - _MINUTES]:
                del self._minutes[old]
            rows = self._minutes[minute] = {}
        if (tenant, model) not in rows and len(rows) >= _MOST_ROWS:
            model = OTHER
        return rows.setdefault((tenant, model), Tally())
