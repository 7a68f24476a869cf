"""Token counts besides those of prompt and response, in the form that providers share."""

from typing import Annotated

import msgspec

Tokens = Annotated[int, msgspec.Meta(ge=0, le=100_000_000)]


class ReadTokens(msgspec.Struct):
    """Details of prompt tokens. cache_write_tokens: from OpenRouter, and from OpenAI since GPT-5.6."""

    cached_tokens: Tokens | None = None
    cache_write_tokens: Tokens | None = None


class Thought(msgspec.Struct):
    """Details of completion tokens."""

    reasoning_tokens: Tokens | None = None


class CacheWrites(msgspec.Struct):
    """Tokens that Anthropic caches for longer than five minutes (platform.claude.com, "Prompt caching")."""

    ephemeral_1h_input_tokens: Tokens | None = None
