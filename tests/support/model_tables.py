"""A table of models as litellm keeps one."""

from __future__ import annotations

ROWS = {
    "sample_spec": {"mode": "one of: chat, embedding", "max_input_tokens": "max input tokens, if …"},
    "gpt-4o": {"mode": "chat", "max_input_tokens": 128_000, "max_output_tokens": 16_384},
    "gpt-4o-2024-05-13": {"mode": "chat", "max_input_tokens": 128_000, "max_output_tokens": 4_096},
    "github_copilot/gpt-4o": {"mode": "chat", "max_input_tokens": 64_000},
    "azure/eu/alone-2024-01-01": {"mode": "responses", "max_input_tokens": 32_000.0},
    "one/disputed": {"mode": "chat", "max_input_tokens": 8_192},
    "two/disputed-20250101": {"mode": "chat", "max_input_tokens": 16_384},
    "one/oss": {"mode": "chat", "max_input_tokens": 131_072},
    "two/oss": {"mode": "chat", "max_input_tokens": 128_000},
    "an-embedding": {"mode": "embedding", "max_input_tokens": 8_191},
    "no-window": {"mode": "chat", "max_input_tokens": None, "max_output_tokens": 100},
    "zero": {"mode": "chat", "max_input_tokens": 0},
}
