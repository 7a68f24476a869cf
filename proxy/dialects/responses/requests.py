"""Fields of a Responses request besides its items."""

import re

import msgspec

from policies.conversation.conversation import Order
from proxy.dialects.base import Fields, RequestSettings
from proxy.dialects.json_array import Array, label_in, scalar

ARRAY = Array(
    "input",
    (
        *("model", "stream", "max_output_tokens", "instructions", "tools", "text", "previous_response_id"),
        *("conversation", "context_management", "prompt_cache_key", "metadata", "prompt"),
    ),
    or_text=True,
)
_LABELS = (("prompt_cache_key",), ("metadata", "session_id"), ("metadata", "user_id"))
# Tools that the provider runs. Their results are added to the prompt.
_HOSTED = re.compile(rb'"type"\s{0,9}:\s{0,9}"(?:web_search|file_search|code_interpreter|image_generation|mcp)')
# Reasoning is sealed for a key and a model, and not bound to the items before it.
_ORDER = Order(thinking="free", instructions="before")
# Smaller values are rejected (developers.openai.com/api/reference/resources/responses).
_LEAST_OUTPUT = 16
# Prefixes of the types of such edits. Types have versions.
_AT_WORK = ("compact", "clear_tool_uses")


class _PromptEdit(msgspec.Struct):
    """One edit that the provider makes to the prompt."""

    type: object = None


_read_edits = msgspec.json.Decoder(list[_PromptEdit]).decode


def settings(fields: Fields) -> RequestSettings:
    """Return the settings of a request. Values of a wrong type count as absent. Streams always report usage."""
    model = scalar(fields["model"])
    max_output = scalar(fields["max_output_tokens"])
    passthrough, is_managed = _passthrough(fields), _is_managed(fields["context_management"])
    return RequestSettings(
        model=model if isinstance(model, str) else "",
        stream=scalar(fields["stream"]) is True,
        max_output=max_output if isinstance(max_output, int) and max_output > 0 else None,
        output_key="max_output_tokens",
        definitions=(fields["instructions"], fields["tools"], fields["text"]),
        usage_fields={},
        passthrough=passthrough,
        reactive="provider_context_management" if is_managed else None,
        label=label_in(fields, _LABELS),
        order=_ORDER,
        least_output=_LEAST_OUTPUT,
        compacts=is_managed,
        is_partial=passthrough is not None or is_managed or _is_given(fields["prompt"]),
        is_enlarged=_HOSTED.search(bytes(fields["tools"])) is not None,
    )


def _passthrough(fields: Fields) -> str | None:
    """Return the field that refers to a prompt stored at the provider; None if there is none."""
    stored = ("previous_response_id", "conversation")
    return next((field for field in stored if _is_given(fields[field])), None)


def _is_given(raw: msgspec.Raw) -> bool:
    """Return True if a field has a value: an id, or an object with one."""
    return bool(raw) and scalar(raw) is not None


def _is_managed(raw: msgspec.Raw) -> bool:
    try:
        edits = _read_edits(raw) if raw else []
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return any(isinstance(edit.type, str) and edit.type.startswith(_AT_WORK) for edit in edits)
