"""What of a client's request may ride along with a question of ours: nothing by which a provider acts.

Lists of what is allowed, since providers add fields, tools and betas by which they search, run code or send something.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from proxy.dialects.json_array import decode, members_of
from proxy.errors import InvalidJSONError

Json = Mapping[str, object]
IsClients = Callable[[Json], bool]

# Fields that name something that a provider calls, or keeps, in any dialect.
_SERVERS = ("mcp_servers", "container", "prompt", "conversation", "previous_response_id")
# Keys of a tool that name what calls it or runs it beside the client.
_PROVIDERS_KEYS = frozenset(
    {"server_url", "server_label", "connector_id", "mcp_server_name", "mcp_servers", "container"}
)
_DIRECT: Sequence[object] = (None, [], ["direct"])


def is_harmless(body: bytes, is_clients: IsClients) -> bool:
    """Whether a request names no server, and every tool of it is run by the client, as `is_clients` says of one."""
    members = members_of(body)
    if any(_value(members, name) for name in _SERVERS):
        return False
    tools = _value(members, "tools")
    return tools is None or (isinstance(tools, list) and all(_runs_at_client(tool, is_clients) for tool in tools))


def has_tools(body: bytes) -> bool:
    return bool(_value(members_of(body), "tools"))


def left_behind(body: bytes, allowed: Collection[str]) -> Sequence[str]:
    """The fields of a request that are not allowed."""
    return [name for name in members_of(body) if name not in allowed]


def _runs_at_client(tool: object, is_clients: IsClients) -> bool:
    if not isinstance(tool, dict) or not _PROVIDERS_KEYS.isdisjoint(tool):
        return False
    return tool.get("allowed_callers") in _DIRECT and is_clients(tool)


def _value(members: Mapping[str, bytes], name: str) -> object:
    """Of a member; an object in the place of what cannot be read."""
    member = members.get(name)
    if member is None:
        return None
    try:
        return decode(msgspec.Raw(member.partition(b":")[2]))
    except InvalidJSONError:
        return {"unread": True}
