"""What providers say in their own languages: a text and a tool call, whole and as a stream, and their overflows."""

from __future__ import annotations

import json
import struct
import zlib

from tests.support.upstreams import EVENTS, JSON, answer

KEY = b"sk-client-key"
CLOSE = (b"Connection", b"close")


def claude(text: str = "It is done.", **usage: int) -> bytes:
    content = [
        {"type": "text", "text": text},
        {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a.py"}},
    ]
    return json.dumps(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": content,
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 11, "output_tokens": 7, **usage},
        }
    ).encode()


def claude_events(*texts: str) -> list[bytes]:
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": []}
    usage = {"input_tokens": 11, "output_tokens": 1}
    tool = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
    events = [
        {"type": "message_start", "message": {**start, "stop_reason": None, "stop_sequence": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": t}} for t in texts),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": tool},
        *(
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": part}}
            for part in ('{"path": ', '"a.py"}')
        ),
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 7},
        },
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


def gemini(*parts: dict[str, object], **more: object) -> dict[str, object]:
    usage = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}
    candidate = {"content": {"parts": list(parts), "role": "model"}, "index": 0, **more}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini", "responseId": "r1"}


def ollama(text: str = "", **more: object) -> bytes:
    message: dict[str, object] = {"role": "assistant", "content": text}
    if "tool_calls" in more:
        message["tool_calls"] = more.pop("tool_calls")
    line = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": message, "done": False, **more}
    return json.dumps(line).encode() + b"\n"


OLLAMA_TOOL = [{"function": {"name": "read", "arguments": {"path": "a.py"}}}]
OLLAMA_END = {"done": True, "done_reason": "stop", "prompt_eval_count": 11, "eval_count": 7}


def amazon_event(kind: str, content: object) -> bytes:
    """One frame of AWS's event stream: lengths, headers, payload, and two checksums."""
    names = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in names.items()
    )
    payload = json.dumps(content).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    framed = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return framed + struct.pack(">I", zlib.crc32(framed))


AMAZON_STREAM = b"".join(
    amazon_event(kind, content)
    for kind, content in (
        ("messageStart", {"role": "assistant"}),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "It is "}}),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "done."}}),
        ("contentBlockStop", {"contentBlockIndex": 0}),
        (
            "contentBlockStart",
            {"contentBlockIndex": 1, "start": {"toolUse": {"toolUseId": "t1", "name": "read"}}},
        ),
        ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"toolUse": {"input": '{"path": "a.py"}'}}}),
        ("contentBlockStop", {"contentBlockIndex": 1}),
        ("messageStop", {"stopReason": "tool_use"}),
        ("metadata", {"usage": {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18}, "metrics": {}}),
    )
)
AMAZON_WHOLE = {
    "output": {
        "message": {
            "role": "assistant",
            "content": [
                {"text": "It is done."},
                {"toolUse": {"toolUseId": "t1", "name": "read", "input": {"path": "a.py"}}},
            ],
        }
    },
    "stopReason": "tool_use",
    "usage": {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18},
    "metrics": {"latencyMs": 1},
}
GROQ_WHOLE = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "It is done.",
                "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.py"}'}}
                ],
            },
        }
    ],
    "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    "service_tier": "on_demand",
}
GEMINI_CALL = {"functionCall": {"name": "read", "args": {"path": "a.py"}}}
GEMINI_EVENTS = (
    gemini({"text": "It is "}),
    gemini({"text": "done."}),
    gemini(GEMINI_CALL, finishReason="STOP"),
)
# By provider: path and credential of the request, the answer in whole, the answer as a stream.
SPOKEN: dict[str, tuple[str, tuple[bytes, bytes], bytes, bytes]] = {
    "anthropic": (
        "/v1/messages",
        (b"x-api-key", KEY),
        answer(200, claude(), JSON, CLOSE),
        answer(200, b"".join(claude_events("It is ", "done.")), EVENTS, CLOSE),
    ),
    "gemini": (
        "/models/gemini-model:generateContent",
        (b"x-goog-api-key", KEY),
        answer(
            200, json.dumps(gemini({"text": "It is done."}, GEMINI_CALL, finishReason="STOP")).encode(), JSON, CLOSE
        ),
        answer(200, b"".join(b"data: " + json.dumps(e).encode() + b"\r\n\r\n" for e in GEMINI_EVENTS), EVENTS, CLOSE),
    ),
    "ollama_chat": (
        "/api/chat",
        (b"authorization", b"Bearer " + KEY),
        answer(200, ollama("It is done.", tool_calls=OLLAMA_TOOL, **OLLAMA_END), JSON, CLOSE),
        answer(
            200,
            ollama("It is ") + ollama("done.") + ollama(tool_calls=OLLAMA_TOOL) + ollama(**OLLAMA_END),
            (b"Content-Type", b"application/x-ndjson"),
            CLOSE,
        ),
    ),
    "bedrock": (
        "/model/amazon.nova-pro-v1%3A0/converse",
        (b"authorization", b"Bearer " + KEY),
        answer(200, json.dumps(AMAZON_WHOLE).encode(), JSON, CLOSE),
        answer(200, AMAZON_STREAM, (b"Content-Type", b"application/vnd.amazon.eventstream"), CLOSE),
    ),
}


def claudes_error(status: int, kind: str, message: str, *headers: tuple[bytes, bytes]) -> bytes:
    body = {"type": "error", "error": {"type": kind, "message": message}}
    return answer(status, json.dumps(body).encode(), JSON, CLOSE, *headers)


OVERFLOWS = {
    "anthropic": (
        400,
        {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"},
        },
        "200000",
    ),
    "gemini": (
        400,
        {
            "error": {
                "code": 400,
                "message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                "status": "INVALID_ARGUMENT",
            }
        },
        "1048576",
    ),
    "bedrock": (400, {"message": "Input is too long for requested model."}, "too long"),
    "ollama_chat": (400, {"error": "the input length exceeds the context length"}, "context length"),
}
