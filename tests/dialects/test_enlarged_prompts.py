"""Requests to whose prompt the provider may add: their bills say nothing about other sessions."""

from __future__ import annotations

import json

import pytest

from policies.model_profile import ENLARGED, ModelProfile, after_bill
from proxy.dialects import json_array
from proxy.dialects.base import Dialect
from proxy.dialects.table import CHAT, MESSAGES, RESPONSES
from tests.support.conversations import Json

TOOL = {"type": "function", "name": "web_search", "parameters": {}}


@pytest.mark.parametrize(
    ("dialect", "fields", "is_enlarged"),
    [
        (RESPONSES, {"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}, True),
        (RESPONSES, {"tools": [TOOL, {"type": "web_search_preview"}]}, True),
        (RESPONSES, {"tools": [{"type": "mcp", "server_label": "x"}]}, True),
        (RESPONSES, {"tools": [TOOL, {"type": "custom", "name": "exec"}, {"type": "local_shell"}]}, False),
        (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, True),
        (MESSAGES, {"mcp_servers": [{"type": "url", "url": "https://example.com", "name": "x"}]}, True),
        (MESSAGES, {"container": {"id": "c", "skills": [{"type": "anthropic", "skill_id": "pptx"}]}}, True),
        (MESSAGES, {"container": "c", "tools": [{"name": "web_search", "input_schema": {}}]}, False),
        (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, False),
        (CHAT, {"web_search_options": {}}, True),
        (CHAT, {"plugins": [{"id": "web"}]}, True),
        (CHAT, {"documents": [{"text": "a"}]}, True),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "web_search"}}]}, False),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else getattr(value, "name", value),
)
def test_what_may_enlarge_a_prompt(dialect: Dialect, fields: Json, is_enlarged: bool) -> None:
    body = json.dumps({"model": "m", dialect.array.name: [{"role": "user", "content": "x"}], **fields}).encode()
    parsed = json_array.parse(body, dialect.array)
    assert parsed is not None
    assert dialect.settings(parsed.envelope.fields).is_enlarged == is_enlarged


def test_bills_of_enlarged_prompts_hold_for_their_session_alone() -> None:
    profile = ModelProfile()
    for name in ("a", "b"):
        for _ in range(2):
            profile = after_bill(profile, 10_000, 50_000, f"{ENLARGED}{name}")
    assert profile.calibration == 1.0
    assert profile.calibration_for("a") == 5.0
    for name in ("c", "d"):
        profile = after_bill(profile, 10_000, 11_000, name)
    assert profile.calibration == pytest.approx(1.1)
