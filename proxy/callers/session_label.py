"""The label people know a session by; correctness never depends on it."""

from __future__ import annotations

import hmac

from proxy.callers.tenants import Caller
from proxy.dialects.reader import ChatRequest
from proxy.server.exchange import Exchange

_HEADERS = (
    b"x-session-id",
    b"x-claude-code-session-id",
    b"session-id",
    b"session_id",
    b"thread-id",
    b"x-session-affinity",
    b"x-affinity",
    b"x-opencode-session",
    b"x-litellm-session-id",
    b"helicone-session-id",
    b"x-openwebui-chat-id",
)
_FIELDS = (("prompt_cache_key",), ("conversation",), ("metadata", "session_id"), ("metadata", "user_id"))
_LONGEST = 128
LINK_BYTES = 32
_MARK_BYTES = 16


def mark_of(caller: Caller, label: str) -> bytes:
    """What stands for a label in the store, empty for none: only the proxy can tell which label that is."""
    return hmac.digest(caller.labels, label.encode(), "sha256")[:_MARK_BYTES] if label else b""


def is_name(text: str) -> bool:
    """Whether this names a session, in hex: by the first link of its conversation, and the mark of its label if any."""
    lengths = (2 * LINK_BYTES, 2 * (LINK_BYTES + _MARK_BYTES))
    return len(text) in lengths and all(digit in "0123456789abcdef" for digit in text)


def session_label(exchange: Exchange, request: ChatRequest) -> str | None:
    """The first label a client gave, cut and made printable; None where it gave none."""
    for name in _HEADERS:
        if value := exchange.header(name):
            return printable(value.decode("latin-1"), _LONGEST)
    for path in _FIELDS:
        if label := request.hint(*path):
            return printable(label, _LONGEST)
    return None


def printable(text: str, most: int) -> str:
    """As much of a text as may stand in headers and logs."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text[:most])
