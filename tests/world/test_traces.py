"""Spans of requests and compactions, as a collector gets them over OTLP; and what they never say or hold up."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from tests.support.collectors import Collector, collecting
from tests.support.scenarios import MODEL, WINDOW
from tests.support.servers import reserve_port
from tests.support.stages import CONTENT, MUST, SMALL, body, history, stage
from tests.support.upstreams import ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.model_server import ReceivedRequest

pytestmark = pytest.mark.anyio

SERVER, CLIENT, INTERNAL = 2, 3, 1
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = (b"traceparent", f"00-{TRACE}-{SPAN}-01".encode())


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def traced(collector: Collector, **more: object) -> dict[str, object]:
    return {"traces": {"endpoint": collector.address, "headers": {"x-key": "sk-collector"}, **more}}


def told(received: ReceivedRequest, name: bytes) -> bytes | None:
    return dict(received.headers).get(name)


async def test_a_request_is_two_spans_in_its_callers_trace(tmp_path: Path, collector: Collector) -> None:
    async with stage(tmp_path, telemetry=traced(collector)) as play:
        given = (GIVEN, (b"tracestate", b"a=1"), (b"baggage", b"user=ada"), (b"x-session-id", b"billing"))
        await play.send(SMALL, *given)
        line = play.logged("request")[-1]
    server, client = collector.named("POST /v1/chat/completions")[0], collector.named(f"chat {MODEL}")[0]
    assert (server.kind, server.trace, server.parent, server.state) == (SERVER, TRACE, SPAN, "a=1")
    assert (client.kind, client.trace, client.parent) == (CLIENT, TRACE, server.span)
    assert server.seconds >= client.seconds > 0
    assert {server.is_error, client.is_error} == {False}
    assert line["trace_id"] == TRACE
    assert server.attributes | {"concertina.own_ms": 0} == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "http.response.status_code": 200,
        "concertina.request": line["id"],
        "concertina.tenant": "default",
        "concertina.policy": "default",
        "concertina.session": line["session"],
        "concertina.compaction": "none",
        "concertina.reason": "below_floor",
        "concertina.tokens.received": line["tokens_received"],
        "concertina.tokens.sent": line["tokens_sent"],
        "concertina.window": WINDOW,
        "concertina.own_ms": 0,
    }
    assert client.attributes["gen_ai.usage.input_tokens"] == line["billed"]
    assert client.attributes["gen_ai.usage.output_tokens"] == line["output"]
    assert (client.attributes["gen_ai.provider.name"], client.attributes["gen_ai.operation.name"]) == ("openai", "chat")
    assert client.attributes["server.address"] == "127.0.0.1"
    assert client.attributes["gen_ai.conversation.id"] == "billing"
    assert "gen_ai.conversation.compacted" not in client.attributes
    sent = play.sent[-1]
    assert told(sent, b"traceparent") == f"00-{TRACE}-{client.span}-01".encode()
    assert (told(sent, b"tracestate"), told(sent, b"baggage")) == (b"a=1", None)
    assert collector.headers[0]["x-key"] == "sk-collector"
    assert collector.resources[0]["service.name"] == "concertina"


async def test_a_compaction_is_part_of_its_requests_trace(tmp_path: Path, collector: Collector) -> None:
    async with stage(tmp_path, telemetry=traced(collector)) as play:
        await play.send(MUST)
        compacted = play.logged("compaction")[-1]
    server, compaction = collector.named("POST /v1/chat/completions")[0], collector.named("compact_messages")[0]
    assert (compaction.kind, compaction.trace, compaction.parent) == (INTERNAL, server.trace, server.span)
    assert compaction.attributes["concertina.compaction.trigger"] == compacted["trigger"]
    assert compaction.attributes["concertina.compaction.tokens.before"] == compacted["tokens_before"]
    assert compaction.attributes["concertina.compaction.tokens.after"] == compacted["tokens_after"]
    calls = [span for span in collector.named(f"chat {MODEL}") if span.parent == compaction.span]
    assert len(calls) == compacted["calls"] >= 1
    assert sum(call.attributes["gen_ai.usage.input_tokens"] for call in calls) == compacted["tokens_in"]
    asked = next(span for span in collector.named(f"chat {MODEL}") if span.parent == server.span)
    assert asked.attributes["gen_ai.conversation.compacted"] is True
    assert "gen_ai.conversation.id" not in asked.attributes


async def test_one_that_is_prepared_ahead_is_a_trace_of_its_own_with_a_link(
    tmp_path: Path, collector: Collector
) -> None:
    async with stage(tmp_path, telemetry=traced(collector)) as play:
        await play.send(body(history(0.72)))
        await play.settled()
        assert [line["trigger"] for line in play.logged("compaction")] == ["background"]
    [server], [ahead] = collector.named("POST /v1/chat/completions"), collector.named("compact_messages")
    assert (ahead.parent, ahead.links) == ("", [(server.trace, server.span)])
    assert ahead.trace != server.trace
    assert [span.parent for span in collector.named(f"chat {MODEL}") if span.trace == ahead.trace] == [ahead.span]


async def test_attempts_are_events_of_one_span(tmp_path: Path, collector: Collector) -> None:
    wider = [{"match": MODEL, "context_window": 4 * WINDOW}]  # than it is
    async with stage(tmp_path, telemetry=traced(collector), models=wider) as play:
        await play.send(MUST)
        line = play.logged("request")[-1]
    server = next(span for span in collector.spans if span.kind == SERVER)
    asked = next(span for span in collector.spans if span.kind == CLIENT and span.parent == server.span)
    assert asked.events == ["retry"] * (int(str(line["attempts"])) - 1) != []


async def test_what_is_relayed_is_traced_and_a_failure_is_one(tmp_path: Path, collector: Collector) -> None:
    nobody = {"main": {"base_url": f"http://127.0.0.1:{reserve_port()}/v1"}}
    async with stage(tmp_path, telemetry=traced(collector), upstreams=nobody) as play:
        await ask(play.address, "GET", "/v1/models", [GIVEN])
        await play.send(SMALL)
    relayed = collector.named("GET /v1/models")[0]
    assert (relayed.trace, relayed.attributes["error.type"], relayed.is_error) == (TRACE, "refused", True)
    assert {"gen_ai.operation.name"}.isdisjoint(collector.named("GET")[0].attributes)
    assert collector.named("POST /v1/chat/completions")[0].attributes["http.response.status_code"] == 502


async def test_who_is_not_sampled_makes_no_span_and_keeps_its_traceparent(tmp_path: Path, collector: Collector) -> None:
    unsampled = (b"traceparent", f"00-{TRACE}-{SPAN}-00".encode())
    async with stage(tmp_path, telemetry=traced(collector, sample=0.0)) as play:
        for headers in ((), (unsampled,)):
            await play.send(SMALL, *headers)
        assert [told(each, b"traceparent") for each in play.sent] == [None, unsampled[1]]
        assert all("trace_id" not in line for line in play.logged("request"))
    assert collector.spans == []


async def test_no_span_holds_what_was_said_or_a_key(tmp_path: Path, collector: Collector) -> None:
    async with stage(tmp_path, telemetry=traced(collector)) as play:
        for sent in (SMALL, MUST):
            await play.send(sent, (b"authorization", b"Bearer sk-secret-of-somebody"))
        await play.settled()
    assert len(collector.spans) > 4
    for secret in (CONTENT.encode(), b"sk-secret", b"sk-collector", b"Bearer"):
        assert secret not in collector.raw


@pytest.mark.parametrize("trouble", ["down", "slow", "500"])
async def test_no_request_notices_a_collector_that_does_not_take_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr("proxy.app._EXPORT_SECONDS", 0.1)
    with collecting(is_slow=trouble == "slow", status=500 if trouble == "500" else 200) as collector:
        if trouble == "down":
            collector.address = f"http://127.0.0.1:{reserve_port()}"
        async with asyncio.timeout(30), stage(tmp_path, telemetry=traced(collector)) as play:
            for _ in range(3):
                assert (await play.send(SMALL)).status == 200
    for exporting in [thread for thread in threading.enumerate() if thread.name.startswith("OtelBatch")]:
        exporting.join(3)  # else it tries again for more than five seconds
        assert not exporting.is_alive()


async def test_spans_without_room_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.app._EXPORT_SECONDS", 0.1)
    monkeypatch.setattr("proxy.telemetry.spans._MOST_WAITING", 600)
    with collecting(is_slow=True) as collector:
        server = {"admin_token": "s3cret-of-admins"}
        async with stage(tmp_path, telemetry=traced(collector), server=server) as play:
            for _ in range(320):
                await play.send(SMALL)
            counted = await ask(play.address, "GET", "/metrics", [(b"authorization", b"Bearer s3cret-of-admins")])
    assert re.search(r'concertina_events_dropped_total\{sink="Spans"\} [1-9]', counted.body.decode())


async def test_durations_have_traces_as_examples(tmp_path: Path, collector: Collector) -> None:
    async with stage(tmp_path, telemetry=traced(collector), server={"admin_token": "s3cret-of-admins"}) as play:
        await play.send(SMALL, GIVEN)
        asked = [(b"authorization", b"Bearer s3cret-of-admins"), (b"accept", b"application/openmetrics-text")]
        metrics = (await ask(play.address, "GET", "/metrics", asked)).body.decode()
    for name in ("request_duration_seconds", "time_to_first_byte_seconds"):
        assert re.search(rf'concertina_{name}_bucket{{.*}} 1(\.0)? # {{trace_id="{TRACE}"}} 0\.', metrics)


def test_nothing_of_it_is_imported_where_it_is_off() -> None:
    code = "import sys, proxy.app, proxy.cli.main; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
