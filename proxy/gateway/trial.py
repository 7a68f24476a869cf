"""Whether an upstream answers what a client asks of a provider's compaction, by its answer to one request."""

from proxy.dialects.base import Dialect
from proxy.dialects.compaction import AT_ONCE, How
from proxy.dialects.json_array import decode_object
from proxy.gateway.answers import UpstreamAnswer
from proxy.server.content_coding import UndecodableError, decoder
from proxy.server.sse import EventSplitter, data_of

UNKNOWN = frozenset({404, 405, 501})
_REFUSED = frozenset({400, 422})
# What says nothing of the question: who asks, how often, and that something broke.
_ELSEWISE = frozenset({401, 402, 403, 407, 408, 409, 413, 425, 429})
_FAILED = 400
_BROKEN = 500
_MOST = 16 * 1024 * 1024
# What a refusal names, in lower case: path, item or field.
_NAMED: dict[How | None, tuple[bytes, ...]] = {
    "endpoint": (b"compact",),
    "trigger": (b"compaction", b"type"),
    "threshold": (b"context_management", b"compact"),
    "edit": (b"context_management", b"compact"),
    "demand": (b"compaction", b"compact"),
    None: (b"compaction", b"encrypted_content"),
}
# Share of a threshold from which on a prompt that was billed should have led to an item.
BEYOND = 1.15
_ITEM = b'"compaction"'


async def answers(answer: UpstreamAnswer, how: How | None, dialect: Dialect) -> bool | None:
    """Whether it does; None where the answer does not tell. What was read of it is given back."""
    status = answer.response.status
    if status in UNKNOWN:
        return False
    if status in _ELSEWISE or status >= _BROKEN:
        return None
    if how == "trigger" and status >= _FAILED:
        return False
    if status >= _FAILED:
        said = answer.error.lower()
        return False if status in _REFUSED and any(name in said for name in _NAMED[how]) else None
    if how in AT_ONCE:
        return await _has_item(answer, dialect)
    return True if how is None else None


async def _has_item(answer: UpstreamAnswer, dialect: Dialect) -> bool:
    """Whether the first item that is finished, and no reasoning, is a compaction: nothing else is of use to a client
    that asked for one."""
    compacting = dialect.compacting
    assert compacting is not None  # noqa: S101 - nothing else is tried
    body, raw, read = answer.response.body, bytearray(), bytearray()
    splitter = EventSplitter(_MOST)
    decode = decoder(answer.response.header(b"content-encoding"), _MOST) or bytes
    found: bool | None = None
    try:
        while found is None and len(read) < _MOST:
            chunk = body.take()
            raw += chunk
            part = decode(chunk) if chunk else b""
            read += part
            if answer.is_event_stream:
                events = [decode_object(data_of(event)) for event, _ in splitter.feed(part)]
                verdicts = [compacting.is_made_by(event or {}) for event in events]
                found = next((verdict for verdict in verdicts if verdict is not None), None)
            elif body.is_complete and (whole := decode_object(bytes(read))) is not None:
                found = compacting.is_made_in(whole)
            if found is None and (body.is_complete or (not chunk and not await body.more(None))):
                break
    except UndecodableError:
        found = None
    body.untake(bytes(raw))
    return bool(found)


class ItemSeen:
    """Passes an answer on as it is, and notes whether a compaction stands in it."""

    def __init__(self) -> None:
        self.is_there = False
        self._end = b""

    def __call__(self, chunk: bytes, *, is_last: bool) -> bytes:  # noqa: ARG002 - as of all that passes something on
        seen = self._end + chunk
        self.is_there = self.is_there or _ITEM in seen
        self._end = seen[-len(_ITEM) :]
        return chunk
