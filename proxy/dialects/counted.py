"""Tokens that providers name beside those of prompt and answer, in the form they share."""

from typing import Annotated

import msgspec

Tokens = Annotated[int, msgspec.Meta(ge=0, le=100_000_000)]


class ReadTokens(msgspec.Struct):
    """Of a prompt. cache_write_tokens: OpenRouter's, and OpenAI's from GPT-5.6 on."""

    cached_tokens: Tokens | None = None
    cache_write_tokens: Tokens | None = None


class Thought(msgspec.Struct):
    """Of an answer."""

    reasoning_tokens: Tokens | None = None


class CacheWrites(msgspec.Struct):
    """What Anthropic's cache took for longer than five minutes (platform.claude.com, "Prompt caching")."""

    ephemeral_1h_input_tokens: Tokens | None = None
