"""Parts of a client's request that may be sent with the proxy's own question: none that make a provider act.

They are lists of allowed names, since providers keep adding fields, tools and betas for searching, running code or
sending data.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from proxy.dialects.json_array import decode, members_of
from proxy.errors import InvalidJSONError

Json = Mapping[str, object]
IsClients = Callable[[Json], bool]

# Fields of any dialect that name a server to call or a store of the provider.
_SERVERS = ("mcp_servers", "container", "prompt", "conversation", "previous_response_id")
# Keys of a tool that name a server or another caller than the client.
_PROVIDERS_KEYS = frozenset(
    {"server_url", "server_label", "connector_id", "mcp_server_name", "mcp_servers", "container"}
)
_DIRECT: Sequence[object] = (None, [], ["direct"])


def is_harmless(body: bytes, is_clients: IsClients) -> bool:
    """Return True if a request names no server and the client runs all its tools.

    is_clients: returns True if the client runs a tool.
    """
    members = members_of(body)
    if any(_value(members, name) for name in _SERVERS):
        return False
    tools = _value(members, "tools")
    return tools is None or (isinstance(tools, list) and all(_runs_at_client(tool, is_clients) for tool in tools))


def has_tools(body: bytes) -> bool:
    """Return True if a request has tools."""
    return bool(_value(members_of(body), "tools"))


def disallowed_fields(body: bytes, allowed: Collection[str]) -> Sequence[str]:
    """Return the fields of a request that are not allowed."""
    return [name for name in members_of(body) if name not in allowed]


def _runs_at_client(tool: object, is_clients: IsClients) -> bool:
    if not isinstance(tool, dict) or not _PROVIDERS_KEYS.isdisjoint(tool):
        return False
    return tool.get("allowed_callers") in _DIRECT and is_clients(tool)


def _value(members: Mapping[str, bytes], name: str) -> object:
    """Return the value of a member; an object if it cannot be read."""
    member = members.get(name)
    if member is None:
        return None
    try:
        return decode(msgspec.Raw(member.partition(b":")[2]))
    except InvalidJSONError:
        return {"unread": True}
