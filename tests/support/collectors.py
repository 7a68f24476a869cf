"""A collector that takes spans over OTLP, on a port of its own."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Told:
    """A span as it came; ids are hex digits, `parent` and what links to nothing are empty."""

    name: str
    kind: int
    trace: str
    span: str
    parent: str
    state: str
    seconds: float
    attributes: dict[str, Any]
    events: list[str]
    links: list[tuple[str, str]]
    is_error: bool


@dataclass
class Collector:
    """status: of its answers. paths, headers: of what it was sent. raw: every byte of it."""

    address: str
    status: int = 200
    spans: list[Told] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    raw: bytes = b""
    goes_on: threading.Event = field(default_factory=threading.Event)

    def named(self, name: str) -> list[Told]:
        return [span for span in self.spans if span.name == name]

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        assert path == "/v1/traces"
        self.headers.append(headers)
        self.raw += body
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(_values(of_resource.resource.attributes))
            self.spans += [_told(span) for scope in of_resource.scope_spans for span in scope.spans]


@contextmanager
def collecting(*, is_slow: bool = False, status: int = 200) -> Iterator[Collector]:
    """One that answers with this status; a slow one does not before `goes_on`, or its end."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if is_slow:
                found.goes_on.wait(60)
            found.take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(found.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Collector(f"http://127.0.0.1:{server.server_port}", status)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield found
    finally:
        found.goes_on.set()
        server.shutdown()
        server.server_close()


def _told(span: Any) -> Told:
    return Told(
        name=span.name,
        kind=span.kind,
        trace=span.trace_id.hex(),
        span=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        state=span.trace_state,
        seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        attributes=_values(span.attributes),
        events=[event.name for event in span.events],
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        is_error=span.status.code == 2,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
