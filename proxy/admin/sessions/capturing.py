"""The next request of a session, held to be looked at beside the record that stands for a part of it."""

import msgspec
from starlette.requests import Request

from policies.secrets import masked, masked_within
from proxy.admin.access import Visitor
from proxy.admin.opened import Opened
from proxy.admin.sessions.listing import ID_DIGITS
from proxy.callers.tenants import Caller
from proxy.dialects.table import DIALECTS
from proxy.errors import NotFoundError
from proxy.observing.captures import Capture
from proxy.observing.events import AdminActed
from proxy.observing.session_trails import Key

# Of what was said, the newest; and of each so many characters.
_MOST_TURNS = 200
_MOST_TEXT = 1_500


class Captured(msgspec.Struct, frozen=True):
    """until: when it is forgotten; at: when it came, None while it is waited for. Both are in Unix seconds.

    body: the request as the client wrote it, but for secrets that its policy masks; None while it is waited for, and
    of one that is too large. size: in bytes.
    """

    until: float
    at: float | None
    wire: str
    size: int
    body: str | None


class Turn(msgspec.Struct, frozen=True):
    """Something that was said. position: of its message, without system messages. calls: tools, with their
    arguments."""

    position: int
    role: str
    text: str
    calls: list[str]
    is_cut: bool


def key_of(request: Request, caller: Caller) -> Key:
    """The session that a request for a page names."""
    return Key(caller.tenant, request.path_params["id"][:ID_DIGITS], request.query_params.get("label", ""))


def ask_for(opened: Opened, visitor: Visitor, caller: Caller, key: Key) -> Captured:
    """Have this replica hold the next request of a session."""
    opened.engine.captures.ask(key)
    _observe(opened, visitor, key, "capture_asked")
    return captured(opened, visitor, caller, key)


def captured(opened: Opened, visitor: Visitor, caller: Caller, key: Key) -> Captured:
    """What this replica holds of a session. Raises NotFoundError."""
    found = held(opened, key)
    if found is None:
        raise NotFoundError(
            "This replica holds no request of this session: none was asked for, or 15 minutes are over."
        )
    if found.body is not None:
        _observe(opened, visitor, key, "capture_read")
    body = None if found.body is None else _allowed(found.body, caller).decode("utf-8", "replace")
    return Captured(found.until, found.at, found.wire, found.size, body)


def held(opened: Opened, key: Key) -> Capture | None:
    """The same; None where this replica neither holds nor awaits one."""
    return opened.engine.captures.of(key)


def forget(opened: Opened, visitor: Visitor, key: Key) -> None:
    """Hold nothing of a session, and wait for nothing."""
    opened.engine.captures.forget(key.tenant, key.id, key.label.__eq__)
    _observe(opened, visitor, key, "capture_forgotten")


async def turns(opened: Opened, caller: Caller, found: Captured) -> list[Turn]:
    """What was said in a request that is held, the newest."""
    if found.body is None:
        return []
    dialect = next(each for each in DIALECTS if each.name == found.wire)
    # Read anew: what was counted of it when it came is not kept that long.
    encoding = opened.active().router.encoding
    request = await opened.engine.reader.read(found.body.encode(), caller.scope, encoding, dialect)
    if request is None:
        return []
    said = request.utterances(0, len(request.conversation.body))[-_MOST_TURNS:]
    return [
        Turn(
            each.position,
            each.role,
            each.text[:_MOST_TEXT],
            [f"{call.name}({call.arguments})"[:_MOST_TEXT] for call in each.calls],
            len(each.text) > _MOST_TEXT,
        )
        for each in said
    ]


def _allowed(body: bytes, caller: Caller) -> bytes:
    """A request as its policy lets it be shown: its own bytes where there is no secret in them."""
    if caller.policy.secrets == "keep":
        return body
    try:
        read = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return masked(body.decode("utf-8", "replace")).encode()
    allowed = masked_within(read)
    return body if allowed == read else msgspec.json.encode(allowed)


def _observe(opened: Opened, visitor: Visitor, key: Key, what: str) -> None:
    opened.engine.observe(AdminActed(visitor.role, what, key.tenant, key.id))
