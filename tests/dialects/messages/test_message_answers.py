"""What upstreams answer, and what we answer ourselves."""

from __future__ import annotations

import json

import pytest

from proxy.dialects.base import Ending, Usage
from proxy.dialects.messages import answers
from proxy.pipeline.answers import full_answer
from proxy.server.sse import data_of, name_of, split_events
from proxy.upstreams.refusals.classify import classify
from tests.support.conversations import Json


def encoded(**event: object) -> bytes:
    return json.dumps(event).encode()


def start(block: Json) -> bytes:
    return encoded(type="content_block_start", index=0, content_block=block)


def delta(**said: object) -> bytes:
    return encoded(type="content_block_delta", index=0, delta=said)


def ended(reason: str | None, **usage: object) -> bytes:
    return encoded(type="message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)


def begun(**usage: object) -> bytes:
    message = {"id": "m", "type": "message", "role": "assistant", "content": [], "stop_reason": None, "usage": usage}
    return encoded(type="message_start", message=message)


def whole(*content: Json, reason: str = "end_turn", **usage: object) -> bytes:
    return encoded(id="m", type="message", role="assistant", content=content, stop_reason=reason, usage=usage)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", False),
        (begun(input_tokens=1), False),
        (encoded(type="ping"), False),
        (start({"type": "text", "text": "", "citations": None}), False),
        (start({"type": "thinking", "thinking": "", "signature": ""}), False),
        (delta(type="text_delta", text=""), False),
        (delta(type="input_json_delta", partial_json=""), False),
        (encoded(type="content_block_stop", index=0), False),
        (ended(None, output_tokens=1), False),
        (delta(type="text_delta", text="F"), True),
        (delta(type="thinking_delta", thinking="h"), True),
        (delta(type="signature_delta", signature="s"), True),
        (delta(type="input_json_delta", partial_json="{"), True),
        (start({"type": "tool_use", "id": "t", "name": "bash", "input": {}}), True),
        (start({"type": "redacted_thinking", "data": "d"}), True),
        (start({"type": "text", "text": "F"}), True),
        (ended("end_turn"), True),
        (encoded(type="message_stop"), True),
        (encoded(type="error", error={"type": "overloaded_error", "message": "Overloaded"}), True),
        (encoded(error={"message": "no"}), True),
        (encoded(type="odd"), False),
        (encoded(type="odd", text="Hel"), True),
        (encoded(type="odd", message="still at work"), False),
        (b"not json", True),
        (b"[1]", True),
    ],
)
def test_an_announcement_says_nothing(data: bytes, says: bool) -> None:
    assert answers.has_content(data) is says


FULL = "model_context_window_exceeded"
TEXT: Json = {"type": "text", "text": "Fine."}
CACHED: Json = {"input_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}
FOR_AN_HOUR = {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 15}
COMPACTED = {"type": "compaction", "input_tokens": 160_000, "output_tokens": 900}
ITERATIONS = [{"input_tokens": 900, "output_tokens": 4}, {**CACHED, "output_tokens": 7}]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (whole(TEXT, **CACHED, output_tokens=9), Ending("end_turn", 125, 9, is_empty=False)),
        (whole(reason=FULL), Ending(FULL, None, None, is_empty=True)),
        (whole({"type": "text", "text": ""}, reason="max_tokens"), Ending("max_tokens", None, None, is_empty=True)),
        (whole({"type": "tool_use", "id": "t"}, reason="tool_use"), Ending("tool_use", None, None, is_empty=False)),
        (whole({"type": "thinking", "thinking": "h"}), Ending("end_turn", None, None, is_empty=False)),
        (ended("refusal", output_tokens=1), Ending("refusal", None, 1, is_empty=True)),
        (ended("end_turn", **CACHED, output_tokens=1), Ending("end_turn", 125, 1, is_empty=True)),
        (delta(type="text_delta", text="F"), Ending(None, None, None, is_empty=False)),
        (whole(TEXT, input_tokens="many"), None),
        (b"{", None),
    ],
)  # fmt: skip
def test_how_an_answer_ended(data: bytes, expected: Ending | None) -> None:
    assert answers.ending(data) == expected


@pytest.mark.parametrize(
    ("data", "is_overflow"),
    [
        (whole(reason=FULL, **CACHED, output_tokens=0), True),
        (whole(reason=FULL), True),
        (ended(FULL, output_tokens=1), True),
        (ended(FULL), True),
        (whole(TEXT, reason=FULL, **CACHED, output_tokens=400), False),
        (whole(TEXT, reason="max_tokens", **CACHED, output_tokens=400), False),
        (whole(reason="end_turn", **CACHED, output_tokens=1), False),
        (ended("tool_use", output_tokens=30), False),
    ],
)
def test_a_window_that_was_full_before_anything_was_said_is_an_overflow(data: bytes, is_overflow: bool) -> None:
    stated = full_answer(data, answers, None)
    assert (stated is not None and stated.action == "compact") is is_overflow


@pytest.mark.parametrize(
    ("newest_first", "expected"),
    [
        ([whole(TEXT, **CACHED, output_tokens=9)], Usage(125, 9, 100, 20)),
        ([b'{"usage": {"input_tokens": 5, "output_tokens": 2}}'], Usage(5, 2)),
        ([ended("end_turn", output_tokens=9), begun(**CACHED, output_tokens=1)], Usage(125, 9, 100, 20)),
        ([ended("end_turn", input_tokens=7, output_tokens=9), begun(**CACHED, output_tokens=1)],
         Usage(127, 9, 100, 20)),
        ([ended("end_turn", **{**CACHED, "input_tokens": 8}, output_tokens=9), begun(**CACHED)],
         Usage(128, 9, 100, 20)),
        ([ended("end_turn", input_tokens=0, output_tokens=9), begun(**CACHED)], Usage(125, 9, 100, 20)),
        ([ended("end_turn", cache_read_input_tokens=None, output_tokens=9), begun(**CACHED)], Usage(125, 9, 100, 20)),
        ([ended("end_turn", output_tokens=9), begun(**CACHED, cache_creation=FOR_AN_HOUR)],
         Usage(125, 9, 100, 20, 15)),
        ([ended("end_turn", output_tokens=9), begun(**CACHED, cache_creation=None)], Usage(125, 9, 100, 20)),
        ([ended("end_turn", output_tokens=9)], None),
        ([begun(**CACHED)], Usage(125, 0, 100, 20)),
        (
            [ended("end_turn", output_tokens=50, iterations=ITERATIONS), begun(input_tokens=900)],
            Usage(125, 7, 100, 20),
        ),
        # Of a compaction that was made on the way nothing is the prompt's, even where it came last.
        ([ended("end_turn", iterations=[*ITERATIONS, COMPACTED]), begun(input_tokens=900)], Usage(125, 7, 100, 20)),
        ([ended("end_turn", iterations=None, output_tokens=9), begun(**CACHED)], Usage(125, 9, 100, 20)),
        ([ended("end_turn", output_tokens=-1), begun(**CACHED)], None),
        ([whole(TEXT)], None),
        ([b"{"], None),
        ([], None),
    ],
)  # fmt: skip
def test_usage_is_told_at_both_ends_of_a_stream(newest_first: list[bytes], expected: Usage | None) -> None:
    assert answers.usage(newest_first) == expected


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error")),
        *((404, "not_found_error"), (405, "invalid_request_error"), (413, "request_too_large")),
        *((422, "invalid_request_error"), (429, "rate_limit_error"), (500, "api_error"), (502, "api_error")),
        *((503, "overloaded_error"), (504, "api_error"), (508, "api_error"), (529, "overloaded_error")),
    ],
)
def test_an_error_is_of_the_kind_that_its_status_says(status: int, kind: str) -> None:
    body = json.loads(answers.error_body({"message": "No.", "type": "x", "param": None, "code": "y"}, status))
    assert body == {"type": "error", "error": {"type": kind, "message": "No."}, "request_id": None}


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, "overloaded_error", "Overloaded"),
        ({"type": "error", "error": {"type": "api_error", "message": "No."}}, "api_error", "No."),
        ({"type": "server_error", "message": "No."}, "api_error", "No."),
        ("No.", "api_error", "No."),
        ({"detail": "No."}, "api_error", '{"detail":"No."}'),
        ({"type": ["x"], "message": 7}, "api_error", '{"type":["x"],"message":7}'),
        (None, "api_error", "null"),
    ],
)
def test_an_error_in_a_stream_keeps_its_words(error: object, kind: str, message: str) -> None:
    for ends in (False, True):
        stream = answers.error_event(error, 200, ends=ends)
        event, rest = split_events(stream)
        assert (name_of(event), rest) == ("error", b"")
        assert json.loads(data_of(event)) == {
            "type": "error",
            "error": {"type": kind, "message": message},
            "request_id": None,
        }
        assert b"[DONE]" not in stream


def test_waiting_is_a_ping_and_an_overflow_has_anthropics_words() -> None:
    event, rest = split_events(answers.WAITING)
    assert (name_of(event), json.loads(data_of(event)), rest) == ("ping", {"type": "ping"}, b"")
    body = answers.error_body({"message": answers.TOO_LONG.format(tokens=212_000, limit=200_000)}, 400)
    assert b"prompt is too long: 212000 tokens > 200000 maximum" in body
    stated = classify(400, body)
    assert stated is not None
    assert (stated.limit, stated.input_tokens) == (200_000, 212_000)
    assert answers.ANSWER_KEY not in body
