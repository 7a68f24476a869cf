"""Which requests are traced, and what upstreams are told of it (W3C Trace Context)."""

from __future__ import annotations

import pytest

from proxy.telemetry.trace import Tracing

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{SPAN}-01".encode()
OTHER = (b"accept", b"*/*")


def tracing(sample: float = 1.0) -> Tracing:
    ids = iter(f"{number:x}" for number in range(1, 10))
    return Tracing(sample, chance=lambda: 0.5, new_id=lambda size: next(ids) * (2 * size))


def test_a_caller_that_traces_is_followed() -> None:
    trace = tracing(0.0).begin([OTHER, (b"traceparent", GIVEN), (b"tracestate", b"a=1,b=2")])
    assert trace is not None
    assert (trace.id, trace.parent, trace.state) == (TRACE, SPAN, "a=1,b=2")
    assert (trace.server, trace.client) == ("1" * 16, "2" * 16)


def test_a_caller_that_has_decided_against_it_is_heard() -> None:
    assert tracing().begin([(b"traceparent", f"00-{TRACE}-{SPAN}-00".encode())]) is None


@pytest.mark.parametrize(("sample", "is_traced"), [(0.0, False), (0.5, False), (0.51, True), (1.0, True)])
def test_where_nobody_has_decided_a_share_is_traced(sample: float, is_traced: bool) -> None:
    trace = tracing(sample).begin([OTHER])
    assert (trace is not None) == is_traced
    if trace is not None:
        assert (trace.id, trace.parent, trace.state) == ("1" * 32, None, "")


@pytest.mark.parametrize(
    "given",
    [
        *(b"", b"00", GIVEN.upper(), GIVEN + b"-more", GIVEN[:-1], b"ff" + GIVEN[2:], b" " + GIVEN, GIVEN + b"0"),
        *(f"00-{'0' * 32}-{SPAN}-01".encode(), f"00-{TRACE}-{'0' * 16}-01".encode(), b"\xff" * 55),
    ],
)
def test_what_is_no_traceparent_begins_a_trace_of_its_own(given: bytes) -> None:
    trace = tracing().begin([(b"traceparent", given), (b"tracestate", b"a=1")])
    assert trace is not None
    assert (trace.id, trace.parent, trace.state) == ("1" * 32, None, "")


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    trace = tracing().begin([(b"traceparent", b"01" + GIVEN[2:] + b"-more")])
    assert trace is not None
    assert trace.id == TRACE


def test_upstreams_get_our_span_and_the_callers_state_and_no_baggage() -> None:
    given = [OTHER, (b"traceparent", GIVEN), (b"tracestate", b"a=1"), (b"baggage", b"user=ada")]
    found = tracing()
    trace = found.begin(given)
    assert found.onward(given, trace) == [
        OTHER,
        (b"tracestate", b"a=1"),
        (b"traceparent", f"00-{TRACE}-{'2' * 16}-01".encode()),
    ]
    assert found.onward(given, None) == given[:3]
