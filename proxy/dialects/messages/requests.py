"""Fields of a Messages request besides its messages."""

import re
from typing import TypeVar

import msgspec

from policies.conversation.conversation import Order
from proxy.dialects.base import Fields, RequestSettings
from proxy.dialects.json_array import Array, scalar, text_at

ARRAY = Array(
    "messages",
    (
        *("model", "stream", "max_tokens", "system", "tools", "thinking", "metadata", "context_management"),
        *("cache_control", "compaction", "fallback_credit_token", "output_config", "output_format"),
        *("tool_choice", "thread", "mcp_servers", "container"),
    ),
)
# Tools that Anthropic runs. Their results are added to the prompt. Types have versions.
_HOSTED = re.compile(rb'"type"\s{0,9}:\s{0,9}"(?:web_search|web_fetch|code_execution|tool_search|mcp_toolset|advisor)')
# Edits that change only thinking. Types have versions.
_HARMLESS = "clear_thinking"
# An older form of the id, before it was JSON: user_<hash>_account_<uuid>_session_<uuid>.
_session = re.compile(r"(?<=_)session_[\w-]+\Z").search

_T = TypeVar("_T")


class _Binding(msgspec.Struct):
    prefix_mismatch_behavior: object = None


class Thinking(msgspec.Struct):
    """The thinking settings of a request."""

    type: object = None
    budget_tokens: object = None
    block_binding: _Binding | None = None

    @property
    def budget(self) -> int:
        """Return the tokens that the limit of a response has to exceed; 0 for any limit."""
        tokens = self.budget_tokens if self.type == "enabled" else 0
        return tokens if isinstance(tokens, int) else 0


class _ContextEdit(msgspec.Struct):
    type: object = None


class _Thread(msgspec.Struct):
    """A conversation whose beginning the provider stores (Anthropic SDK, `BetaMessageThreadParam`)."""

    type: object = None


class _Management(msgspec.Struct):
    """The edits that the provider makes to the prompt."""

    edits: list[_ContextEdit] = []


class _Task(msgspec.Struct):
    remaining: object = None


class _Output(msgspec.Struct):
    task_budget: _Task | None = None


class _SessionField(msgspec.Struct):
    session_id: str = ""


_THINKING = msgspec.json.Decoder(Thinking)
_MANAGEMENT = msgspec.json.Decoder(_Management)
_THREAD = msgspec.json.Decoder(_Thread)
_OUTPUT = msgspec.json.Decoder(_Output)
_SESSION_FIELD = msgspec.json.Decoder(_SessionField)


def settings(fields: Fields) -> RequestSettings:
    """Return the settings of a request. Values of a wrong type count as absent. Streams always report usage."""
    model, tools = scalar(fields["model"]), fields["tools"]
    limit = scalar(fields["max_tokens"])
    max_output = limit if isinstance(limit, int) and limit > 0 else None
    thinking = thinking_of(fields)
    budget, is_managed = thinking.budget, _is_managed(fields["context_management"])
    return RequestSettings(
        model=model if isinstance(model, str) else "",
        stream=scalar(fields["stream"]) is True,
        max_output=max_output,
        output_key="max_tokens",
        definitions=(fields["system"], tools, fields["output_config"], fields["output_format"]),
        usage_fields={},
        passthrough=_passthrough(fields),
        reactive="provider_context_management" if is_managed else None,
        label=_label(fields),
        order=Order("leading" if thinking.type == "enabled" else "free", "behind"),
        # If thinking may continue between calls, its budget may exceed the limit.
        least_output=min(budget + 1, max_output or budget + 1),
        strips_thinking=thinking.block_binding is not None
        and thinking.block_binding.prefix_mismatch_behavior == "drop_block",
        compacts=is_managed or _is_given(fields["compaction"]),
        is_partial=is_managed or _is_stored(fields["thread"]),
        is_enlarged=_is_enlarged(fields),
    )


def _is_enlarged(fields: Fields) -> bool:
    has_skills = b'"skills"' in bytes(fields["container"])
    return bool(fields["mcp_servers"]) or has_skills or _HOSTED.search(bytes(fields["tools"])) is not None


def thinking_of(fields: Fields) -> Thinking:
    """Return the thinking settings of a request."""
    return _read(_THINKING, fields["thinking"], Thinking())


def _is_stored(thread: msgspec.Raw) -> bool:
    """Return True if the provider stores the messages before these.

    A thread that begins with this request (`create`) holds nothing yet.
    """
    return _is_given(thread) and _read(_THREAD, thread, _Thread()).type != "create"


def _passthrough(fields: Fields) -> str | None:
    if _is_stored(fields["thread"]):
        return "thread"
    if _is_given(fields["compaction"]):
        return "provider_compaction"
    task = _read(_OUTPUT, fields["output_config"], _Output()).task_budget
    if _is_given(fields["fallback_credit_token"]) or (task is not None and task.remaining is not None):
        return "bound_body"
    return None


def _is_given(raw: msgspec.Raw) -> bool:
    return bool(raw) and scalar(raw) is not None


def _is_managed(raw: msgspec.Raw) -> bool:
    edits = _read(_MANAGEMENT, raw, _Management()).edits
    return any(not str(edit.type).startswith(_HARMLESS) for edit in edits)


def _label(fields: Fields) -> str:
    """Return the session's id. The fields next to it identify a device."""
    user = text_at(fields["metadata"], ("user_id",)) or ""
    old = _session(user)
    return _read(_SESSION_FIELD, user.encode(), _SessionField()).session_id or (old[0] if old else "")


def _read(decoder: msgspec.json.Decoder[_T], raw: msgspec.Raw | bytes, default: _T) -> _T:
    try:
        return decoder.decode(raw) if raw else default
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return default
