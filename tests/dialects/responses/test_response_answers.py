"""Answers and events of the Responses API as they are read, and those that are ours."""

from __future__ import annotations

import json

import pytest

from policies.decision.overflow_retries import StatedLimit
from policies.price import Tokens
from proxy.dialects.base import Usage
from proxy.dialects.responses import answers, questions
from proxy.pipeline.answers import full_answer
from proxy.server.sse import data_of, name_of, split_events
from proxy.upstreams.refusals.classify import classify, classify_event
from tests.support.conversations import Json

BILLED = {"input_tokens": 90, "input_tokens_details": {"cached_tokens": 80}, "output_tokens": 7, "total_tokens": 97}
DETAILED = BILLED | {
    "input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 75},
    "output_tokens_details": {"reasoning_tokens": 5},
}
PAID = Tokens(90, 7, cached=80)
ERROR: Json = {"message": "No.", "type": "server_error", "param": None, "code": "upstream_unreachable"}


def message(*texts: str) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": content}


def response(*output: Json, status: str = "completed", why: str | None = None, usage: object = BILLED) -> Json:
    fields: Json = {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "error": None}
    return {**fields, "incomplete_details": why and {"reason": why}, "output": output, "usage": usage}


def raw(value: object) -> bytes:
    return json.dumps(value).encode()


def event(kind: str, **fields: object) -> bytes:
    return raw({"type": kind, "sequence_number": 1, **fields})


THOUGHT: Json = {"type": "reasoning", "summary": []}
CALL: Json = {"type": "function_call", "name": "bash", "arguments": "", "call_id": "c"}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", False),
        (event("response.created", response=response(status="in_progress", usage=None)), False),
        (event("response.in_progress", response=response(status="in_progress")), False),
        (event("response.queued"), False),
        (event("response.output_item.added", item={**message(), "content": []}), False),
        (event("response.output_item.added", item=THOUGHT), False),
        (event("response.output_item.added", item=CALL), True),
        (event("response.output_item.added", item=message("x")), True),
        (event("response.output_item.added"), True),
        (event("response.content_part.added", part={"type": "output_text", "text": ""}), False),
        (event("response.content_part.added", part={"type": "output_text", "text": "x"}), True),
        (event("response.reasoning_summary_part.added", part={"type": "summary_text", "text": ""}), False),
        (event("response.output_text.delta", delta="x"), True),
        (event("response.function_call_arguments.delta", delta="{"), True),
        (event("response.completed", response=response()), True),
        (event("response.failed", response=response(status="failed")), True),
        (event("error", message="no"), True),
        (event("response.something.new"), False),
        (event("response.something.new", delta="Hel"), True),
        (event("codex.rate_limits", plan_type="plus", rate_limits={"primary": {"used_percent": 3}}), False),
        (event("codex.response.metadata", headers={"x-request-id": "r"}), False),
        (event("responsesapi.websocket_timing", timing={"queue_ms": 3}), False),
        (event("response.web_search_call.in_progress", item_id="ws_1"), True),
        (event("response.completed"), True),
        (b'{"error":{"message":"no"}}', True),
        (b'{"choices":[]}', False),
        (b"{", True),
        (b'{"type":7}', False),
    ],
)
def test_announcements_say_nothing(data: bytes, says: bool) -> None:
    assert answers.has_content(data) is says


@pytest.mark.parametrize(
    ("answer", "ending"),
    [
        (response(message("x")), ("stop", 90, 7, False)),
        (response(CALL), ("stop", 90, 7, False)),
        (response(THOUGHT, message()), ("stop", 90, 7, True)),
        (response(status="incomplete", why="max_output_tokens"), ("length", 90, 7, True)),
        (response(status="incomplete", why="content_filter", usage=None), ("content_filter", None, None, True)),
        (response(status="failed", usage=None), ("failed", None, None, True)),
    ],
)
def test_an_answer_says_how_it_ended_whole_and_in_its_last_event(answer: Json, ending: tuple[object, ...]) -> None:
    for data in (raw(answer), event(f"response.{answer['status']}", response=answer)):
        found = answers.ending(data)
        assert found is not None
        assert (found.reason, found.prompt_tokens, found.completion_tokens, found.is_empty) == ending


@pytest.mark.parametrize(
    "data",
    [b"", b"<html>", b"[1]", b'{"output":7}', event("response.output_text.delta", delta="x"),
     event("response.created", response=response(status="in_progress")), raw({"error": ERROR})],
)  # fmt: skip
def test_what_has_not_ended_has_no_ending(data: bytes) -> None:
    assert answers.ending(data) is None


def test_a_full_window_is_an_overflow_where_nothing_was_said() -> None:
    full = response(status="incomplete", why="max_output_tokens", usage={"input_tokens": 100, "output_tokens": 0})
    assert full_answer(raw(full), answers, 100) == StatedLimit(None, 100, learnable=False)
    assert full_answer(event("response.incomplete", response=full), answers, 100) is not None
    assert full_answer(raw({**full, "output": [message("x")]}), answers, 100) is None
    assert full_answer(raw(full), answers, 1_000) is None


@pytest.mark.parametrize(
    ("newest_first", "usage"),
    [
        ([raw(response())], Usage(90, 7, 80)),
        ([event("response.completed", response=response())], Usage(90, 7, 80)),
        ([raw(response(usage=DETAILED))], Usage(90, 7, 10, 75, reasoning=5)),
        ([event("response.incomplete", response=response()), b'{"usage":null}'], Usage(90, 7, 80)),
        ([event("response.in_progress", response=response(usage=None)), event("response.x", response=response())],
         Usage(90, 7, 80)),
        ([b'{"usage":null}'], None),
        ([b'{"usage":{"input_tokens":-1,"output_tokens":7}}'], None),
        ([b"{"], None),
        ([], None),
    ],
)  # fmt: skip
def test_usage_is_that_of_the_event_that_ends_a_stream(newest_first: list[bytes], usage: Usage | None) -> None:
    assert answers.usage(newest_first) == usage


@pytest.mark.parametrize("error", [ERROR, {"message": "No."}, "No.", {"code": 400, "message": "No.", "type": "x"}])
@pytest.mark.parametrize("ends", [True, False])
def test_an_error_in_a_stream_has_the_name_of_its_type_and_ends_without_done(error: object, ends: bool) -> None:
    stream = answers.error_event(error, 502, ends=ends)
    *events, rest = split_events(stream)
    assert (rest, b"[DONE]" in stream) == (b"", False)
    found = [json.loads(data_of(one)) for one in events]
    assert [name_of(one) for one in events] == [one["type"] for one in found]
    assert [one["type"] for one in found] == (["error", "response.failed"] if ends else ["error"])
    code = error.get("code", error.get("type")) if isinstance(error, dict) else None
    assert (found[0]["message"], found[0]["code"]) == ("No.", code and str(code))
    assert found[0]["error"] == error
    if ends:
        assert found[1]["response"]["error"] == {"code": str(code or "server_error"), "message": "No."}
    assert all(answers.has_content(data_of(one)) for one in events)


def test_an_overflow_of_ours_is_one_to_every_reader() -> None:
    said = answers.TOO_LONG.format(limit=1_000, tokens=1_200)
    error: Json = {"message": said, "type": "invalid_request_error", "param": "input", "code": None}
    stated = classify(400, answers.error_body(error, 400))
    assert stated is not None
    assert (stated.limit, stated.input_tokens) == (1_000, 1_200)
    for one in split_events(answers.error_event(error, 400, ends=True))[:-1]:
        assert classify_event(data_of(one), name_of(one)) is not None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (response(THOUGHT, message("a", "b"), message("c")), ("a\nb\nc", "stop", False, PAID)),
        (response(message("a"), status="incomplete", why="max_output_tokens"), ("a", "length", False, PAID)),
        (response(message("a"), {**CALL, "type": "custom_tool_call"}), ("a", "stop", True, PAID)),
        (response(usage=None), ("", "stop", False, None)),
        (response(status="failed", usage=None), ("", "failed", False, None)),
    ],
)
def test_an_answer_to_a_question_is_its_text(answer: Json, expected: tuple[object, ...]) -> None:
    found = questions.read(raw(answer))
    assert found is not None
    assert (found.text, found.finish_reason, found.tool_calls, found.usage) == expected
