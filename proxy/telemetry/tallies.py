"""Numbers of all events since the start: by tenant, upstream and model, in all, and in the last hour.

Every event is added once, and all figures are read from here. Clients choose the names of models, so a model has a name
here only after it has answered, and the number of series is bounded.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from policies.model_profile import MIN_CALIBRATION_TOKENS
from proxy.telemetry import events
from proxy.telemetry.events import Event
from proxy.telemetry.histograms import OTHER, Exemplar, Histograms, Labels
from proxy.telemetry.history_entries import RequestEntry
from proxy.telemetry.hooks import RequestListener
from proxy.telemetry.notes import NOTES
from proxy.telemetry.tally import Hours, Tally, total

# The maximum numbers of models with a name, of series of all labelled counters together, and of a histogram's label
# sets. With all of them in use, Prometheus reads some 6,000 lines, which take a fifth of a second to write.
MOST_SETS = 200
MOST_FURTHER = 600
MOST_HISTOGRAMS = 30
_MINUTES = 60
_MOST_ROWS = 50

# The maximum numbers of cached places of requests, and of requests that are in no sum yet.
_MOST_PLACES, _MOST_PENDING = 500, 500

Key = tuple[str, str, str]
"""Tenant, upstream, model; empty without one."""

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
    """Labelled counters by name. Together they have a maximum number of series, and `other` beyond."""

    def __init__(self, most: int) -> None:
        """Create counters with at most `most` series."""
        self._left = most
        self.of: dict[str, dict[Labels, int]] = {}

    def add(self, name: str, labels: Labels, number: int = 1) -> None:
        """Add to a counter."""
        series, labels = self.series(name, labels)
        series[labels] += number

    def series(self, name: str, labels: Labels) -> tuple[dict[Labels, int], Labels]:
        """Return the series and labels of a counter."""
        series = self.of.setdefault(name, {})
        if labels not in series:
            if self._left:
                self._left -= 1
            else:
                labels = (OTHER,) * len(labels)
            series.setdefault(labels, 0)
        return series, labels


class _TallyPlace(msgspec.Struct, eq=False):
    """Requests of a kind that are in no sum yet, and the counters and sums of this minute for them.

    where: their upstream and model. day: of the sums by the hour.
    """

    counters: list[tuple[dict[Labels, int], Labels]]
    tallies: tuple[Tally, ...]
    where: Labels
    day: int
    requests: list[events.RequestEnded] = []
    entries: list[RequestEntry] = []


class Tallies(RequestListener):
    """A hook that adds events to numbers. One instance per process.

    sets: in all. counts: with further labels. Both include requests up to the last `fold`. histograms: by name.
    comments: keepalive comments sent. windows: tokens and source by upstream and model. hours: sums by the hour.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Create empty tallies. `clock` returns Unix seconds."""
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
        self._pending = 0
        # `increase` does not see the first event of a new counter.
        for result in ("success", "failed"):
            self.counts.add("config_reloads", (result,), 0)
        self._folds: dict[type, Callable[..., None]] = {
            events.CompactionEnded: self._compaction,
            events.SummarizerCalled: self._call,
            events.PromptBilled: self._fold_billed,
            events.Recalled: self._fold_recalled,
            events.Note: self._fold_note,
        }

    def on_event(self, event: Event) -> None:
        """Add an event."""
        if (fold := self._folds.get(type(event))) is not None:
            fold(event)

    def of(self, tenant: str | None = None) -> Iterator[tuple[Key, Tally]]:
        """Return the tallies of one tenant, or of all. Later events do not change the iteration."""
        self.fold()
        return iter([(key, tally) for key, tally in self.sets.items() if tenant in (None, key[0])])

    def minutes(self, tenant: str | None = None) -> list[tuple[int, Tally]]:
        """Return the minutes of the last hour with their sums, oldest first, without empty ones.

        A minute is its start in Unix seconds.
        """
        self.fold()
        oldest = int(self._clock()) // 60 - _MINUTES
        rows_by_minute = sorted((minute, rows) for minute, rows in self._minutes.items() if minute > oldest)
        return [
            (60 * minute, total(row for (owner, _), row in rows.items() if tenant in (None, owner)))
            for minute, rows in rows_by_minute
        ]

    def note_lag(self, seconds: float) -> None:
        """Note that the event loop was late by so many seconds."""
        self.histograms["event_loop_lag_seconds"].observe((), seconds)

    # the additions of each event

    def on_request(self, event: events.RequestEnded, entry: RequestEntry) -> None:
        """Add a request."""
        minute = int(self._clock()) // 60
        if minute != self._minute:
            self._minute = minute
            self._forget_places()
        kind = (
            event.tenant, event.upstream, event.model, event.wire, event.end, event.status, entry.is_answered,
            event.compaction, event.reason,
        )  # fmt: skip
        place = self._places.get(kind) or self._place(event, kind)
        if not place.requests:
            self.hours.changed.add(place.day)
        place.requests.append(event)
        place.entries.append(entry)
        if event.cause in _FAILURES:
            self.counts.add("upstream_failures", (event.upstream or "", event.cause))
        if event.code is not None:
            self.counts.add("refusals", (event.code,))
        if event.overflow is not None and place.tallies:
            self.counts.add("overflows", (*place.where, event.overflow))
        if event.shortened or event.restored or event.unresolved:
            for what in ("shortened", "restored", "unresolved"):
                self.counts.add("results", (*place.where, what), getattr(event, what))
        self._pending += 1
        if self._pending >= _MOST_PENDING:
            self.fold()

    def _media(self, media: events.MediaFigures, where: Labels) -> None:
        self.counts.add("media_received", where, media.received)
        self.counts.add("media_sent", where, media.sent)
        self.counts.add("media_received_bytes", where, media.bytes)
        for why, number in media.left_out.items():
            self.counts.add("media_left_out", (*where, why), number)

    def _place(self, event: events.RequestEnded, kind: tuple[object, ...]) -> _TallyPlace:
        """Return the place of a kind of requests. It is created once a minute, and when another model gets a name."""
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
        return self._places.setdefault(kind, _TallyPlace(counters, tallies, (upstream, model), self.hours.day))

    def fold(self) -> None:
        """Add the pending requests to the sums. It runs on the event loop."""
        self._pending = 0
        places = [place for place in self._places.values() if place.requests]
        for place in sorted(places, key=lambda place: place.requests[-1].at):
            self._fold_place(place)

    def _fold_place(self, place: _TallyPlace) -> None:
        requests, place.requests = place.requests, []
        entries, place.entries = place.entries, []
        self.comments += sum(event.comments for event in requests)
        for series, labels in place.counters:
            series[labels] += len(requests)
        if not place.tallies:
            return
        sums = Tally()
        sums.add_requests(entries)
        for tally in place.tallies:
            tally.add(sums)
        if entries[0].is_answered:
            self._measure(requests, place.where)
            self._note_windows(entries, requests, place.where)

    def _forget_places(self) -> None:
        self.fold()
        self._places.clear()

    def _measure(self, requests: Sequence[events.RequestEnded], where: Labels) -> None:
        """Measure answered requests of a kind."""
        histograms = self.histograms
        stages: defaultdict[str, list[float]] = defaultdict(list)
        for event in requests:
            if event.stages is not None:
                for stage, ms in event.stages.items():
                    stages[stage].append(ms / 1000)
            if event.wait_ms is not None:
                histograms["summary_wait_seconds"].observe((event.compaction or "",), event.wait_ms / 1000)
            if event.media is not None:
                self._media(event.media, where)
        histograms["request_duration_seconds"].observe_all(where, [event.ms / 1000 for event in requests])
        first_bytes = [event.first_byte_ms / 1000 for event in requests if event.first_byte_ms is not None]
        histograms["time_to_first_byte_seconds"].observe_all(where, first_bytes)
        stages["total"] = [event.own_ms / 1000 for event in requests if event.own_ms is not None]
        for stage, seconds in stages.items():
            histograms["overhead_seconds"].observe_all((stage,), seconds)
        self._keep_exemplars(requests, where)

    def _keep_exemplars(self, requests: Sequence[events.RequestEnded], where: Labels) -> None:
        for event in requests:
            if event.trace_id is None:
                continue
            milliseconds = {"request_duration_seconds": event.ms, "time_to_first_byte_seconds": event.first_byte_ms}
            for name, ms in milliseconds.items():
                if ms is not None:
                    self.histograms[name].set_exemplar(where, Exemplar(event.trace_id, ms / 1000, event.at))

    def _note_windows(
        self, entries: Sequence[RequestEntry], requests: Sequence[events.RequestEnded], where: Labels
    ) -> None:
        """Measure the share of the window in answered requests, and note the newest window."""
        fills = [entry.sent / entry.window for entry in entries if entry.window and entry.sent is not None]
        self.histograms["window_used_ratio"].observe_all(where, fills)
        windows = [(event.window, event.window_source or "") for event in requests if event.window is not None]
        if windows and where[1] != OTHER:
            self.windows[where] = windows[-1]

    def _compaction(self, event: events.CompactionEnded) -> None:
        model = self._model_name(None, event.for_model or "")
        self.counts.add("compactions", (event.tenant, model, event.trigger, event.cut, event.result))
        how = (event.result,)
        self.histograms["compaction_duration_seconds"].observe(how, event.ms / 1000)
        if event.ratio is not None:
            self.histograms["compaction_ratio"].observe(how, event.ratio)
            self.histograms["bisect_depth"].observe(how, event.depth or 0)

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

    def _fold_note(self, note: events.Note) -> None:
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
            self._forget_places()  # its earlier requests had no name

    def _model_name(self, upstream: str | None, model: str) -> str:
        """Return the name of a model that has answered at this upstream, or (None) at any; otherwise `other`."""
        if upstream is None:
            return model if any(model == name for _, name in self._answered) else OTHER
        return model if (upstream, model) in self._answered else OTHER

    def _set(self, *key: str) -> Tally:
        tenant, upstream, model = key
        tally = self.sets.get((tenant, upstream, model))
        if tally is None:
            if len(self.sets) >= MOST_SETS:
                model = OTHER
            tally = self.sets.setdefault((tenant, upstream, model), Tally())
            self.counts.add("overflows", (upstream, model, "passed_on"), 0)
        return tally

    def _row(self, tenant: str, model: str) -> Tally:
        """Return the sums of this minute."""
        minute = int(self._clock()) // 60
        rows = self._minutes.get(minute)
        if rows is None:
            for old in [minute_key for minute_key in self._minutes if minute_key <= minute - _MINUTES]:
                del self._minutes[old]
            rows = self._minutes[minute] = {}
        if (tenant, model) not in rows and len(rows) >= _MOST_ROWS:
            model = OTHER
        return rows.setdefault((tenant, model), Tally())
