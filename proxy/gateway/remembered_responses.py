"""What was asked for and answered by the id of a response, for clients that name it instead of sending it again.

OpenAI keeps both for 30 days; here it is best effort: in this process's memory, and no longer than that has room.
"""

import msgspec
from backports import zstd

from proxy.dialects import pieces
from proxy.dialects.compaction import CompactionRequestError
from proxy.dialects.json_array import members_of, split_items, with_fields
from proxy.dialects.surrogates import readable
from proxy.errors import InvalidJSONError
from proxy.memory import Cache
from proxy.server.sse import data_of, split_events

PREVIOUS = "previous_response_id"
# Bytes of a request and of its answer: what is longer is not remembered.
MOST_BODY, MOST_ANSWER = 4 * 1024 * 1024, 2 * 1024 * 1024
_LONGEST_ID = 200
_GONE = (
    "Previous response with id '{name}' not found. Responses are remembered here for a while only, and not beyond a"
    ' restart: send the items themselves as `input` (Agents SDK: compaction_mode="input").'
)


class _CompletedResponse(msgspec.Struct):
    id: str
    output: list[msgspec.Raw] = []


class _ResponseEvent(msgspec.Struct):
    id: str | None = None
    output: list[msgspec.Raw] | None = None
    response: _CompletedResponse | None = None


def names_response(body: bytes) -> bool:
    """Whether a body names a response that it goes on from."""
    if not pieces.holds(body, PREVIOUS.encode()):
        return False
    try:
        member = members_of(body).get(PREVIOUS, b"")
    except InvalidJSONError:
        return False
    return bool(member) and _value(member) is not None


class RememberedResponses:
    """One per process."""

    def __init__(self, known: Cache[tuple[bytes, str], bytes]) -> None:
        self._known = known

    def remember(self, scope: bytes, body: bytes, answer: bytes) -> None:
        """Keep the items of a request and of its answer, whole or as a stream of events."""
        response = _response_in(answer)
        if response is None or len(response.id) > _LONGEST_ID:
            return
        members = members_of(body)
        before = self._before(scope, members.get(PREVIOUS, b""))
        items = [*(before or []), *_items(members.get("input", b"")), *map(bytes, response.output)]
        packed = zstd.compress(b",".join(items), 1)
        self._known.keep((scope, response.id), packed, len(packed))

    def spelled_out(self, scope: bytes, body: bytes) -> bytes:
        """A request that names a response, with that response's items in front of its own; itself if it names none.

        Raises CompactionRequestError for a response that is not known here.
        """
        members = members_of(body)
        member = members.get(PREVIOUS, b"")
        if not member or member.endswith(b":null"):
            return body
        before = self._before(scope, member)
        if before is None:
            name = str(_value(member))[:_LONGEST_ID]
            raise CompactionRequestError(_GONE.format(name=name), param=PREVIOUS, code="previous_response_not_found")
        items = [*before, *_items(members.get("input", b""))]
        return with_fields(body, {"input": [msgspec.Raw(item) for item in items]}, without=(PREVIOUS,))

    def _before(self, scope: bytes, member: bytes) -> list[bytes] | None:
        name = _value(member)
        packed = self._known.get((scope, name)) if isinstance(name, str) else None
        return None if packed is None else split_items(zstd.decompress(packed))


def _value(member: bytes) -> object:
    return msgspec.json.decode(readable(member.partition(b":")[2])) if member else None


def _items(member: bytes) -> list[bytes]:
    """Those of `input`, which may be a text."""
    raw = member.partition(b":")[2].strip()
    if raw.startswith(b"["):
        return split_items(raw[1:-1])
    return [b'{"role":"user","content":' + raw + b"}"] if raw.startswith(b'"') else []


def _response_in(answer: bytes) -> _CompletedResponse | None:
    whole = answer.lstrip()
    events = [whole] if whole.startswith(b"{") else map(data_of, reversed(split_events(whole)[-4:]))
    for data in events:
        try:
            told = msgspec.json.decode(readable(bytes(data)), type=_ResponseEvent)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue
        if told.response is not None and told.response.output:
            return told.response
        if told.id is not None and told.output:
            return _CompletedResponse(told.id, told.output)
    return None
