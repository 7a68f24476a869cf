"""Passing an answer on: the upstream's status, headers and bytes, chunk by chunk, with the client's back-pressure."""

from __future__ import annotations

import re

import msgspec

from proxy.answers import Answer
from proxy.errors import UpstreamConnectionError
from proxy.exchange import Exchange
from proxy.upstream.client import TruncatedError
from proxy.wire.headers import CONTROL_PREFIX, Headers, to_client

# What OpenAI's SDKs ask for when they are given an address without /v1.
_RESOURCES = re.compile(
    r"/(?:assistants|audio|batches|chat|completions|containers|conversations|embeddings|evals|files|fine_tuning|images"
    r"|messages|models|moderations|organization|realtime|responses|threads|uploads|vector_stores|videos)(?:/|$)"
)
_TRUNCATED = "The upstream's answer was cut off."


def upstream_url(base_url: str, target: str) -> str:
    """The upstream's address for a client's path: base_url stands for our /v1; other paths stand beside it."""
    path = target.partition("?")[0]
    if path == "/v1" or path.startswith("/v1/"):
        return base_url + target[len("/v1") :]
    if _RESOURCES.match(path):
        return base_url + target
    return base_url.removesuffix("/v1") + target


async def relay(answer: Answer, exchange: Exchange, extra: Headers) -> int:
    """Send an answer to the client; returns the bytes of its body. `extra` are headers of ours.

    An answer that breaks off is never ended cleanly: event streams get an error event, and the connection is closed
    without the end a complete answer has. Raises TruncatedError.
    """
    passed = [(k, v) for k, v in to_client(answer.response.headers) if not k.startswith(CONTROL_PREFIX)]
    await exchange.start(answer.response.status, [*passed, *extra])
    sent = 0
    tail = b""
    try:
        async for chunk in answer.chunks():
            await exchange.write(chunk, more=True)
            sent += len(chunk)
            tail = (tail + chunk)[-4:]
    except TruncatedError:
        if answer.is_event_stream and tail.endswith((b"\n\n", b"\r\n\r\n")):
            await exchange.write(_error_event(), more=True)
        raise
    await exchange.write(b"", more=False)
    return sent


def _error_event() -> bytes:
    error = msgspec.json.decode(UpstreamConnectionError(_TRUNCATED).body())
    return b"data: " + msgspec.json.encode(error) + b"\n\n"
