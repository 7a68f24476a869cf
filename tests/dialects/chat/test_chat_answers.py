"""Usage as OpenAI, and those who serve its API, write it."""

from __future__ import annotations

import json

import pytest

from proxy.dialects.base import Usage
from proxy.dialects.chat import answers

TOLD = {"prompt_tokens": 100, "completion_tokens": 7}


@pytest.mark.parametrize(
    ("more", "usage"),
    [
        ({}, Usage(100, 7)),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, Usage(100, 7, 0)),
        ({"prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 90}}, Usage(100, 7, 0, 90)),
        (
            {"cache_creation_input_tokens": 20, "cache_creation": {"ephemeral_1h_input_tokens": 15}},
            Usage(100, 7, None, 20, 15),
        ),
        ({"completion_tokens_details": {"reasoning_tokens": 5}}, Usage(100, 7, reasoning=5)),
        ({"prompt_tokens_details": {"cached_tokens": 60}}, Usage(100, 7, 60)),
        ({"prompt_tokens_details": {}}, Usage(100, 7)),
        ({"cache_read_input_tokens": 60, "cache_creation_input_tokens": 20}, Usage(100, 7, 60, 20)),
        ({"prompt_tokens_details": {"cached_tokens": 60}, "cache_read_input_tokens": 0}, Usage(100, 7, 60)),
        ({"cache_read_input_tokens": 400, "cache_creation_input_tokens": 50}, Usage(550, 7, 400, 50)),
    ],
)
def test_what_a_cache_served_is_told_where_the_upstream_says_it(more: dict[str, object], usage: Usage) -> None:
    assert answers.usage([json.dumps({"usage": {**TOLD, **more}}).encode()]) == usage
