"""Passing an answer on: the upstream's status, headers and bytes, chunk by chunk, with the client's back-pressure."""

from __future__ import annotations

import re

from proxy.answers import Answer
from proxy.errors import InvalidRequestError, UpstreamConnectionError
from proxy.exchange import Exchange
from proxy.upstream.client import TruncatedError
from proxy.wire.headers import Headers, to_client

# What OpenAI's SDKs ask for when they are given an address without /v1.
_RESOURCES = re.compile(
    r"/(?:assistants|audio|batches|chat|completions|containers|conversations|embeddings|evals|files|fine_tuning|images"
    r"|messages|models|moderations|organization|realtime|responses|threads|uploads|vector_stores|videos)(?:/|$)"
)
_CUT_OFF = UpstreamConnectionError("The upstream's answer was cut off.")
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_NOT_MODIFIED = 304


def upstream_url(base_url: str, target: str) -> str:
    """The upstream's address for a client's path: base_url stands for our /v1; other paths stand beside it.

    Raises InvalidRequestError for what is no path, such as the * of OPTIONS: it would change the address itself.
    """
    if not target.startswith("/"):
        raise InvalidRequestError("The request's target must be a path.")
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
    status, headers = answer.response.status, to_client(answer.response.headers)
    if status == _NOT_MODIFIED:  # it is the length of what is not sent, and our server would wait for that
        headers = [(key, value) for key, value in headers if key != b"content-length"]
    await exchange.start(status, [*headers, *extra])
    sent = 0
    tail = b""
    ended = False
    try:
        async for chunk in answer.chunks():
            ended = answer.response.at_end
            await exchange.write(chunk, more=not ended)
            sent += len(chunk)
            tail = (tail + chunk)[-4:]
    except TruncatedError:
        if _takes_events(answer) and tail.endswith(_EVENT_ENDS):
            await exchange.write(b"data: " + _CUT_OFF.body() + b"\n\n", more=True)
        raise
    if not ended:
        await exchange.write(b"", more=False)
    return sent


def _takes_events(answer: Answer) -> bool:
    """Whether an event of ours may follow: not inside a compressed content, nor where a length was promised."""
    fixed = any(answer.response.header(name) is not None for name in (b"content-encoding", b"content-length"))
    return answer.is_event_stream and not fixed
