"""Fields of a chat request besides its messages."""

from proxy.dialects.base import Fields, RequestSettings
from proxy.dialects.json_array import Array, label_in, scalar

ARRAY = Array(
    "messages",
    (
        *("model", "stream", "stream_options", "n", "tools", "functions", "response_format", "max_tokens"),
        *("max_completion_tokens", "prompt_cache_key", "conversation", "metadata", "previous_response_id"),
        *("tool_choice", "web_search_options", "search_parameters", "plugins", "documents", "data_sources"),
    ),
)
# With these fields the provider adds search results (OpenAI, xAI, OpenRouter, Cohere, Azure) or stored messages to the
# prompt.
_ENLARGING = ("web_search_options", "search_parameters", "plugins", "documents", "data_sources", "conversation")
_LABELS = (("prompt_cache_key",), ("conversation",), ("metadata", "session_id"), ("metadata", "user_id"))
_ASKS_FOR_USAGE = {"stream_options": {"include_usage": True}}


def settings(fields: Fields) -> RequestSettings:
    """Return the settings of a request. Values of a wrong type count as absent."""
    model = scalar(fields["model"])
    output_key = "max_completion_tokens" if fields["max_completion_tokens"] else "max_tokens"
    max_output = scalar(fields[output_key])
    stream = scalar(fields["stream"]) is True
    return RequestSettings(
        model=model if isinstance(model, str) else "",
        stream=stream,
        max_output=max_output if isinstance(max_output, int) and max_output > 0 else None,
        output_key=output_key,
        definitions=(fields["tools"], fields["functions"], fields["response_format"]),
        usage_fields=_ASKS_FOR_USAGE if stream and not fields["stream_options"] else {},
        passthrough=(passthrough := _passthrough(fields)),
        label=label_in(fields, _LABELS),
        is_partial=passthrough == "previous_response_id",
        answers=number if isinstance(number := scalar(fields["n"]), int) and number > 1 else 1,
        is_enlarged=any(fields[name] for name in _ENLARGING),
    )


def _passthrough(fields: Fields) -> str | None:
    if scalar(fields["n"]) not in (None, 1):
        return "several_choices"
    if scalar(fields["previous_response_id"]) is not None:
        return "previous_response_id"
    return None
