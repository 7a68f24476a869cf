"""Write the log lines of events (docs/observability.md, "The log")."""

from collections import OrderedDict
from collections.abc import Callable, Mapping

import msgspec

from proxy.lru import remember
from proxy.telemetry import events
from proxy.telemetry.events import Event
from proxy.telemetry.figures import is_near
from proxy.telemetry.history_entries import RequestEntry
from proxy.telemetry.hooks import RequestListener
from proxy.telemetry.log import Fields, Log
from proxy.telemetry.notes import NOTES, build_line

# The maximum number of conversations whose warnings are remembered.
_WARNED = 10_000
_WARNINGS = ("shut_down", "deadline", "truncated", "aborted")
# Causes of an unreachable or lost upstream.
_UPSTREAMS = frozenset(
    {
        *("dns", "refused", "tls", "unreachable", "proxy", "proxy_credentials", "proxy_refused"),
        *("connect_timeout", "idle_timeout", "reset", "closed", "not_http"),
    }
)
# Events that are written unchanged.
LINES: Mapping[type[msgspec.Struct], tuple[str, str]] = {
    events.CompactionEnded: ("info", "compaction"),
    events.Started: ("info", "start"),
}


class NearWindow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation whose prompt takes at least nine tenths of its room. It is logged once."""

    tenant: str | None
    session: str | None
    model: str | None = None
    tokens_sent: int | None
    usable: int | None


class CutOff(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt of which the upstream read less than half, without an error."""

    tenant: str
    upstream: str
    session: str
    tokens_sent: int
    tokens_read: int


class UpstreamChanged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An upstream failed after a response, or responds again after so many failures."""

    upstream: str
    cause: str | None = None
    failures: int | None = None


class LogLines(RequestListener):
    """A hook that writes one line per event, and some warnings once per conversation."""

    def __init__(self, log: Log) -> None:
        """Create a hook for this log."""
        self._log = log
        self._warned: OrderedDict[tuple[str, str], bool] = OrderedDict()
        # Consecutive failures by upstream.
        self._failures: dict[str, int] = {}
        self._writers: dict[type, Callable[..., None]] = {
            events.PromptBilled: self._write_cut_off,
            events.Note: self._write_note,
        }

    def on_event(self, event: Event) -> None:
        """Write the line of an event, if it has one."""
        if (write := self._writers.get(type(event))) is not None:
            write(event)
        elif (line := LINES.get(type(event))) is not None:
            self._log.struct(*line, event)

    def on_request(self, event: events.RequestEnded, entry: RequestEntry) -> None:
        """Write the line of a request, and warnings about it."""
        self._log.struct("warning" if event.end in _WARNINGS else "info", "request", event)
        if event.upstream is not None and (event.cause is not None or self._failures):
            self._upstream(event.upstream, event)
        if event.session is not None and entry.usable is not None and is_near(entry):
            line = NearWindow(
                tenant=event.tenant,
                session=event.session,
                model=event.model,
                tokens_sent=entry.sent,
                usable=event.usable,
            )
            self._once(event.session, "near_window", line)

    def _upstream(self, name: str, event: events.RequestEnded) -> None:
        """Log the first failure of a run, and the first response after it."""
        failures = self._failures.get(name, 0)
        if event.cause in _UPSTREAMS:
            self._failures[name] = failures + 1
            if not failures:
                self._log.struct("warning", "upstream_down", UpstreamChanged(upstream=name, cause=event.cause))
        elif failures and event.first_byte_ms is not None:
            del self._failures[name]
            self._log.struct("info", "upstream_up", UpstreamChanged(upstream=name, failures=failures))

    def _write_note(self, note: events.Note) -> None:
        kind, line = NOTES[note.name], build_line(note)
        if kind.level is None:
            return
        if kind.once is not None:
            self._once(str(line[kind.once]), note.name, line)
        else:
            self._log.struct(kind.level, note.name, line)

    def _write_cut_off(self, event: events.PromptBilled) -> None:
        if not event.cut_off:
            return
        line = CutOff(
            tenant=event.tenant,
            upstream=event.upstream,
            session=event.session,
            tokens_sent=event.estimated,
            tokens_read=event.billed,
        )
        self._once(event.session, "cut_off", line)

    def _once(self, key: str, name: str, fields: Fields) -> None:
        """Write a warning once per key."""
        if (name, key) not in self._warned:
            self._log.struct("warning", name, fields)
        remember(self._warned, (name, key), True, _WARNED)
