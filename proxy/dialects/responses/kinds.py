"""Types of items: their authors, calls, and results."""

from collections.abc import Mapping

from policies.conversation.message import Role
from proxy.dialects.texts import id_of

Json = Mapping[str, object]

# An unknown role counts as a user's, which is never dropped.
_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}
# Calls that another item answers, with or without an id.
_CALLS = frozenset(
    {
        *("function_call", "custom_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call"),
        *("tool_search_call", "program", "mcp_approval_request"),
    }
)
# Calls that the provider runs. They hold their result.
HOSTED = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"}
)
# Unreadable items of a provider's compaction. Codex also knows the second and third name.
COMPACTIONS = frozenset({"compaction", "compaction_summary", "context_compaction"})
# The client's request for a compaction.
TRIGGER = "compaction_trigger"
DEFINING = frozenset({"additional_tools", "mcp_list_tools", "tool_search_output"})
_RESULTS = frozenset({"mcp_approval_response"})
_MODEL_KINDS = HOSTED | COMPACTIONS | _CALLS | {"reasoning", "item_reference", "mcp_list_tools", TRIGGER}
# If the provider searches for tools itself, neither call nor result has an id.
_WITHOUT_ID = {"tool_search_call": "tool_search", "tool_search_output": "tool_search"}
_INPUT_KEYS = ("arguments", "input", "action", "actions", "operation", "queries", "code")


def kind_of(item: Json) -> str:
    """Return the type of an item. Messages and references may leave it out."""
    if isinstance(kind := item.get("type"), str) and kind:
        return kind
    return "item_reference" if "id" in item and not item.keys() & {"role", "content"} else "message"


def is_message(item: Json, kind: str) -> bool:
    """Return True if an item is a message."""
    return kind == "message" or ("role" in item and kind not in _MODEL_KINDS and kind not in DEFINING)


def role_of(item: Json, kind: str) -> Role:
    """Return the role of an item's author. The provider acts for the model."""
    if is_message(item, kind):
        return speaker_of(item)
    if kind == "additional_tools":
        return "developer"
    return "tool" if is_result(item, kind) and not _is_of_provider(item, kind) else "assistant"


def speaker_of(message: Json) -> Role:
    """Return the role of a message."""
    return _ROLES.get(role, "user") if isinstance(role := message.get("role"), str) else "user"


def is_result(item: Json, kind: str) -> bool:
    """Return True if an item may be a result. An unknown type counts as one, and then stays after its predecessor."""
    if kind in _MODEL_KINDS or is_message(item, kind):
        return False
    return kind in _RESULTS or kind.endswith("_output") or ("call_id" in item and not kind.endswith("_call"))


def _is_of_provider(item: Json, kind: str) -> bool:
    searched = kind == "tool_search_output" and (item.get("execution") == "server" or item.get("call_id") is None)
    return searched or kind == "program_output"


def scripts_of(item: Json) -> tuple[str, ...]:
    """Return the id of the provider-run program that made this call, if one did."""
    caller = item.get("caller")
    script = caller.get("caller_id") if isinstance(caller, dict) else None
    return (id_of(script),) if isinstance(script, str) else ()


def is_call(item: Json, kind: str) -> bool:
    """Return True if another item has to answer this one."""
    makes_call = kind in _CALLS or (kind.endswith("_call") and kind not in HOSTED and item.get("call_id") is not None)
    return makes_call and not is_message(item, kind)


def call_input(item: Json) -> object:
    """Return the input of a call."""
    return next((item[key] for key in _INPUT_KEYS if item.get(key) is not None), {})


def call_id(item: Json, kind: str) -> str:
    """Return the id by which a result names its call.

    Clients name a local shell call by either id, and send the value of `call_id`.
    """
    names = ["approval_request_id", "id"] if kind.startswith("mcp_approval") else ["call_id"]
    names += ["id"] if kind.startswith("local_shell_call") or kind in HOSTED else []
    value = next((item[name] for name in names if item.get(name) is not None), _WITHOUT_ID.get(kind, ""))
    return id_of(value)


def tool_of(item: Json, kind: str) -> str:
    """Return the tool of a call."""
    name = item.get("name")
    return name if isinstance(name, str) else kind.removesuffix("_call")


def tools_of(item: Json, kind: str) -> tuple[str, ...]:
    """Return the names of the tools that an item defines while it is in the conversation."""
    if kind not in DEFINING:
        return ()
    tools = item.get("tools")
    server = f"{item.get('server_label')}." if kind == "mcp_list_tools" else ""
    names = [server + _name(tool) for tool in (tools if isinstance(tools, list) else []) if isinstance(tool, dict)]
    # Instructions that change the tools are never covered by a record.
    return tuple(names) or ((kind,) if kind == "additional_tools" else ())


def _name(tool: Json) -> str:
    return id_of(tool.get("name") or tool.get("server_label") or tool.get("type") or "")
