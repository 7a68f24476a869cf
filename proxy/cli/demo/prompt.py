"""Chat completion requests as the demo's model reads them, and their size in tokens.

Nothing here is shared with the proxy's reader, so that a fault in one cannot hide in the other.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

_MESSAGE_TOKENS = 3
_IMAGE_TOKENS = 85


class Function(msgspec.Struct, frozen=True):
    """A called function. `arguments` is JSON text."""

    name: str = ""
    arguments: str = ""


class PromptCall(msgspec.Struct, frozen=True):
    """A tool call of an assistant message."""

    id: str = ""
    function: Function = Function()


class ContentPart(msgspec.Struct, frozen=True):
    """A part of a message's content. A part without text counts as an image."""

    type: str = "text"
    text: str | None = None


class PromptMessage(msgspec.Struct, frozen=True):
    """A message of the request."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[PromptCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """Return the text of all parts, a line for each."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content if part.text)
        return self.content or ""

    @property
    def last_text(self) -> str:
        """Return the text of the last part."""
        parts = self.content if isinstance(self.content, list) else ()
        return parts[-1].text or "" if parts else self.text


class Chat(msgspec.Struct, frozen=True):
    """A chat completion request."""

    messages: list[PromptMessage]
    model: str = ""
    stream: bool = False
    stream_options: dict[str, bool] | None = None
    tools: list[msgspec.Raw] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None

    @property
    def output(self) -> int:
        """Return the requested output tokens, 0 if there is no limit."""
        return self.max_completion_tokens or self.max_tokens or 0

    @property
    def wants_usage(self) -> bool:
        """Return True if a stream should end with its usage."""
        return bool(self.stream_options and self.stream_options.get("include_usage"))


def count_tokens(chat: Chat, count: Callable[[str], int]) -> int:
    """Return the tokens of messages and tools. Every response is primed with three more."""
    tools = sum(count(bytes(tool).decode()) for tool in chat.tools or ())
    return _MESSAGE_TOKENS + tools + sum(_message_tokens(message, count) for message in chat.messages)


def _message_tokens(message: PromptMessage, count: Callable[[str], int]) -> int:
    texts = [message.role, message.text, message.name or "", message.tool_call_id or ""]
    for call in message.tool_calls or ():
        texts += [call.id, call.function.name, call.function.arguments]
    images = sum(1 for part in message.content if part.text is None) if isinstance(message.content, list) else 0
    return _MESSAGE_TOKENS + _IMAGE_TOKENS * images + sum(count(text) for text in texts if text)
