"""What spans call a dialect: as its row of the table says, and nothing where none says anything."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from proxy.dialects.table import telemetry_names
from proxy.telemetry.events import Traced
from proxy.telemetry.spans import Spans
from proxy.telemetry.trace import Trace
from tests.support.events import answered

NAMES = {**telemetry_names(), "gemini": {"gen_ai.operation.name": "generate_content", "gen_ai.provider.name": "google"}}


@pytest.mark.parametrize(
    ("wire", "name", "provider"),
    [
        ("chat", "chat gpt-4o", "openai"),
        ("responses", "chat gpt-4o", "openai"),
        ("messages", "chat gpt-4o", "anthropic"),
        ("gemini", "generate_content gpt-4o", "google"),
        ("unnamed", "unnamed gpt-4o", None),
    ],
)
def test_a_span_is_named_as_its_dialect_says(wire: str, name: str, provider: str | None) -> None:
    exporter = InMemorySpanExporter()
    spans = Spans(exporter, {}, NAMES)
    trace = Trace("1" * 32, None, "", server="2" * 16, client="3" * 16)
    trace.asks("http://127.0.0.1:1/v1/x")
    spans(Traced(trace, answered(wire=wire)))
    spans.close()
    (found,) = [span for span in exporter.get_finished_spans() if span.kind.name == "CLIENT"]
    assert found.name == name
    assert (found.attributes or {}).get("gen_ai.provider.name") == provider
