"""Spans of traced events, created after their end and exported over OTLP. Imported only if traces are on.

Names and attributes are OpenTelemetry's semantic conventions for HTTP, and the development version of those for
generative AI. Other attributes begin with `concertina.`. No span contains content or a key.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from policies.decision.plan import AHEAD
from proxy.telemetry.events import CompactionEnded, Event, RequestEnded, SummarizerCalled, Traced
from proxy.telemetry.hooks import NotTakenError
from proxy.telemetry.trace import Trace

# The maximum number of spans that wait for the collector. Further ones are dropped and counted.
_MOST_WAITING = 2_048
_SCOPE = "concertina"
Attributes = dict[str, str | int | float | bool]


class Spans:
    """A hook that creates spans of traced events. One instance per process.

    dialects: provider and operation of each dialect as `gen_ai` attributes.
    """

    def __init__(self, exporter: SpanExporter, resource: Mapping[str, str], dialects: Mapping[str, Attributes]) -> None:
        """Create a hook for this exporter."""
        self._dialects = dialects
        self._exporting = _Counting(exporter)
        self._processor = BatchSpanProcessor(self._exporting, max_queue_size=_MOST_WAITING)
        self._ids = _Ids()
        self._made = 0
        # Calls of a running compaction, each with the time of its end.
        self._calls: WeakKeyDictionary[Trace, list[tuple[int, SummarizerCalled]]] = WeakKeyDictionary()
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create(dict(resource)),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer(_SCOPE)

    def __call__(self, event: Event) -> None:
        """Create the spans of a traced event."""
        if not isinstance(event, Traced):
            return
        match event.event:
            case RequestEnded() as request:
                self._request(event.trace, request)
            case SummarizerCalled() as call:
                self._calls.setdefault(event.trace, []).append((time.time_ns(), call))
            case CompactionEnded() as compaction:
                self._compaction(event.trace, compaction)

    def close(self) -> None:
        """Export waiting spans. Blocks until the collector has responded."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def give_up(self) -> None:
        """Stop retrying. `close` returns soon after."""
        self._exporting.shutdown()

    def _request(self, trace: Trace, ended: RequestEnded) -> None:
        until = _nanoseconds(ended.at)
        since = until - _duration(ended.ms)
        name = f"{ended.method} {ended.route}" if ended.route else ended.method
        parent = _within(trace.id, trace.parent, trace.state) if trace.parent else Context()
        self._span((trace.id, trace.server), name, SpanKind.SERVER, parent, (since, until), _of_request(ended))
        if trace.sent:
            is_named = ended.wire != "relay" and ended.model
            name = f"{self._operation(ended.wire)} {ended.model}" if is_named else ended.method
            times = (trace.sent[0], until)
            inside = _within(trace.id, trace.server)
            attributes = _of_question(ended, trace.url, self._dialects)
            self._span(
                (trace.id, trace.client), name, SpanKind.CLIENT, inside, times, attributes, retry_times=trace.sent[1:]
            )

    def _compaction(self, trace: Trace, ended: CompactionEnded) -> None:
        """Create the span of a compaction. One in the background outlives the request, and has its own trace."""
        until = _nanoseconds(ended.at)
        times = until - _duration(ended.ms), until
        is_own = ended.trigger in AHEAD
        ids = (self._ids.new(16), self._ids.new(8)) if is_own else (trace.id, self._ids.new(8))
        within = Context() if is_own else _within(trace.id, trace.server)
        links = [Link(_context(trace.id, trace.server))] if is_own else []
        self._span(ids, "compact_messages", SpanKind.INTERNAL, within, times, _of_compaction(ended), links=links)
        for at, call in self._calls.pop(trace, ()):
            times, inside = (at - _duration(call.ms), at), _within(*ids)
            name = f"{self._operation(call.wire)} {call.model}"
            self._span((ids[0], self._ids.new(8)), name, SpanKind.CLIENT, inside, times, _of_call(call, self._dialects))

    def _operation(self, dialect: str) -> object:
        return self._dialects.get(dialect, {}).get("gen_ai.operation.name", dialect)

    def _span(
        self,
        ids: tuple[str, str],
        name: str,
        kind: SpanKind,
        within: Context,
        times: tuple[int, int],
        attributes: Attributes,
        *,
        links: Sequence[Link] = (),
        retry_times: Sequence[int] = (),
    ) -> None:
        """Create a span with these ids of its trace and of its own. retry_times: of further attempts."""
        if self._made - self._exporting.taken >= _MOST_WAITING:
            raise NotTakenError
        self._made += 1
        self._ids.next = ids
        span = self._tracer.start_span(name, within, kind, attributes, links, times[0])
        for number, at in enumerate(retry_times, 2):
            span.add_event("retry", {"concertina.attempt": number}, at)
        if "error.type" in attributes:
            span.set_status(Status(StatusCode.ERROR))
        span.end(times[1])


class _Ids(IdGenerator):
    """Ids that exist before their span, since upstreams have received them."""

    def __init__(self) -> None:
        self.next = ("", "")

    def new(self, size: int) -> str:
        return secrets.token_hex(size)

    def generate_trace_id(self) -> int:
        return int(self.next[0], 16)

    def generate_span_id(self) -> int:
        return int(self.next[1], 16)


class _Counting(SpanExporter):
    """Count the exported spans."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._is_shut_down = False
        self.taken = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            return self._exporter.export(spans)
        finally:
            self.taken += len(spans)

    def shutdown(self) -> None:
        if not self._is_shut_down:
            self._is_shut_down = True
            self._exporter.shutdown()


def open_spans(
    endpoint: str, headers: Mapping[str, str], resource: Mapping[str, str], dialects: Mapping[str, Attributes]
) -> Spans:
    """Return spans for a collector at this address."""
    return Spans(OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", headers=dict(headers)), resource, dialects)


def _of_request(ended: RequestEnded) -> Attributes:
    return _known_attributes(
        {
            "http.request.method": ended.method,
            "http.route": ended.route,
            "url.path": ended.path,
            "url.scheme": "http",
            "http.response.status_code": ended.status or None,
            "error.type": _error(ended),
            "concertina.request": ended.id,
            "concertina.tenant": ended.tenant,
            "concertina.policy": ended.policy,
            "concertina.session": ended.session,
            "concertina.compaction": ended.compaction,
            "concertina.reason": ended.reason,
            "concertina.tokens.received": ended.received,
            "concertina.tokens.sent": ended.sent,
            "concertina.window": ended.window,
            "concertina.own_ms": ended.own_ms,
            "concertina.wait_ms": ended.wait_ms,
        }
    )


def _of_question(ended: RequestEnded, url: str, dialects: Mapping[str, Attributes]) -> Attributes:
    parts = urlsplit(url)
    attributes = {
        "http.request.method": ended.method,
        "http.response.status_code": ended.status or None,
        "server.address": parts.hostname,
        "server.port": parts.port or (443 if parts.scheme == "https" else 80),
        "error.type": _error(ended),
    }
    if ended.wire == "relay":
        return _known_attributes(attributes)
    first_chunk = ended.first_byte_ms / 1000 if ended.first_byte_ms and ended.stream else None
    return _known_attributes(
        {
            **attributes,
            **dialects.get(ended.wire, {}),
            "gen_ai.request.model": ended.model,
            "gen_ai.request.stream": ended.stream,
            "gen_ai.request.max_tokens": ended.max_output,
            "gen_ai.response.time_to_first_chunk": first_chunk,
            "gen_ai.usage.input_tokens": ended.billed,
            "gen_ai.usage.output_tokens": ended.output,
            "gen_ai.usage.cache_read.input_tokens": ended.cached,
            "gen_ai.usage.cache_write.input_tokens": ended.cache_written,
            "gen_ai.conversation.compacted": True if ended.checkpoint else None,
            "gen_ai.conversation.id": ended.label,
        }
    )


def _of_compaction(ended: CompactionEnded) -> Attributes:
    return _known_attributes(
        {
            "error.type": None if ended.digest else ended.result,
            "concertina.tenant": ended.tenant,
            "concertina.session": ended.session,
            "concertina.compaction.trigger": ended.trigger,
            "concertina.compaction.level": ended.cut,
            "concertina.compaction.tokens.before": ended.tokens_before,
            "concertina.compaction.tokens.after": ended.tokens_after,
            "concertina.compaction.calls": ended.calls,
            "concertina.compaction.depth": ended.depth,
            "concertina.compaction.result": ended.result,
        }
    )


def _of_call(call: SummarizerCalled, dialects: Mapping[str, Attributes]) -> Attributes:
    return _known_attributes(
        {
            "error.type": None if call.result in ("ok", "reminded") else call.result,
            **dialects.get(call.wire, {}),
            "gen_ai.request.model": call.model,
            "gen_ai.usage.input_tokens": call.tokens_in or None,
            "gen_ai.usage.output_tokens": call.tokens_out or None,
        }
    )


def _error(ended: RequestEnded) -> str | None:
    """Return why a request failed, in one word or as its status; None if it did not."""
    if ended.cause or ended.code:
        return ended.cause or ended.code
    if ended.status >= 400:
        return str(ended.status)
    return None if ended.end in ("complete", "client_gone") else ended.end


def _known_attributes(attributes: Mapping[str, str | int | float | bool | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def _context(trace: str, span: str, state: str = "") -> SpanContext:
    trace_state = TraceState.from_header([state]) if state else None
    return SpanContext(int(trace, 16), int(span, 16), True, TraceFlags(TraceFlags.SAMPLED), trace_state)


def _within(trace: str, span: str, state: str = "") -> Context:
    return set_span_in_context(NonRecordingSpan(_context(trace, span, state)), Context())


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _duration(ms: float) -> int:
    return int(ms * 1e6)
