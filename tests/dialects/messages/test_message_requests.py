"""What a request says beside its messages."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from policies.conversation.conversation import Order
from proxy.dialects import json_array
from proxy.dialects.base import RequestSettings
from proxy.dialects.table import MESSAGES
from tests.support.conversations import ANYTHING, Json

UUID = "0b5ee9d9-caa4-47a6-857b-6d5b31d48078"
ENABLED = {"type": "enabled", "budget_tokens": 31_999}


def settings(**fields: object) -> RequestSettings:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode()
    parsed = json_array.parse(body, MESSAGES.array)
    assert parsed is not None
    return MESSAGES.settings(parsed.envelope.fields)


def test_what_clients_set() -> None:
    found = settings(max_tokens=32_000, stream=True, system=[{"type": "text", "text": "x"}], tools=[{"name": "t"}])
    assert (found.model, found.stream, found.max_output, found.output_key) == ("m", True, 32_000, "max_tokens")
    assert [bytes(raw) for raw in found.definitions[:2]] == [b'[{"type": "text", "text": "x"}]', b'[{"name": "t"}]']
    assert (found.passthrough, found.reactive, found.label, found.usage_fields) == (None, None, "", {})


@pytest.mark.parametrize(
    ("fields", "order", "least"),
    [
        ({}, Order("free", "behind"), 1),
        ({"thinking": {"type": "adaptive"}}, Order("free", "behind"), 1),
        ({"thinking": {"type": "disabled", "budget_tokens": 9}}, Order("free", "behind"), 1),
        ({"thinking": ENABLED, "max_tokens": 40_000}, Order("leading", "behind"), 32_000),
        ({"thinking": ENABLED}, Order("leading", "behind"), 32_000),
        ({"thinking": ENABLED, "max_tokens": 8_000}, Order("leading", "behind"), 8_000),
        ({"thinking": {"type": "enabled", "budget_tokens": "9"}}, Order("leading", "behind"), 1),
        ({"thinking": "enabled"}, Order("free", "behind"), 1),
    ],
)
def test_where_thinking_has_to_stand_and_what_it_costs(fields: Json, order: Order, least: int) -> None:
    found = settings(**fields)
    assert (found.order, found.least_output) == (order, least)


@pytest.mark.parametrize(
    ("binding", "strips"),
    [
        ({"prefix_mismatch_behavior": "drop_block"}, True),
        ({"prefix_mismatch_behavior": "error"}, False),
        ({}, False),
        (None, False),
        ("drop_block", False),
    ],
)
def test_a_client_may_let_the_provider_drop_foreign_thinking(binding: object, strips: bool) -> None:
    assert settings(thinking={"type": "adaptive", "block_binding": binding}).strips_thinking is strips


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"compaction": {"type": "auto"}}, "provider_compaction"),
        ({"compaction": None}, None),
        ({"fallback_credit_token": "t"}, "bound_body"),
        ({"output_config": {"task_budget": {"type": "tokens", "total": 9, "remaining": 5}}}, "bound_body"),
        ({"output_config": {"task_budget": {"type": "tokens", "total": 9}, "effort": "low"}}, None),
        ({"output_config": {"task_budget": None}}, None),
        ({"output_config": 7}, None),
        ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, "thread"),
        ({"thread": {"type": "a later form"}}, "thread"),
        ({"thread": "msg_1"}, "thread"),
        ({"thread": {"type": "create"}}, None),
        ({"thread": None}, None),
        ({"container": "c", "diagnostics": {"previous_message_id": "m"}, "speed": "fast", "odd": 1}, None),
    ],
)
def test_what_is_bound_to_the_body_goes_as_it_came(fields: Json, reason: str | None) -> None:
    assert settings(**fields).passthrough == reason


@pytest.mark.parametrize(
    ("fields", "is_partial"),
    [
        ({}, False),
        ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, True),
        ({"thread": {"type": "create"}, "container": "c"}, False),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, True),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}, False),
    ],
)
def test_a_body_that_is_not_the_whole_prompt_is_known(fields: Json, is_partial: bool) -> None:
    assert settings(**fields).is_partial == is_partial


@pytest.mark.parametrize(
    ("edits", "is_managed"),
    [
        ([{"type": "clear_thinking_20251015", "keep": "all"}], False),
        ([{"type": "clear_tool_uses_20250919"}], True),
        ([{"type": "compact_20260112"}], True),
        ([{"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}], True),
        ([{"type": "odd"}], True),
        ([], False),
        (None, False),
        ("x", False),
    ],
)
def test_a_provider_at_work_on_the_prompt_is_not_disturbed(edits: object, is_managed: bool) -> None:
    found = settings(context_management={"edits": edits})
    assert (found.passthrough, found.reactive) == (None, "provider_context_management" if is_managed else None)


@pytest.mark.parametrize(
    ("user", "label"),
    [
        (json.dumps({"device_id": "secret", "session_id": UUID}), UUID),
        (json.dumps({"device_id": "secret"}), ""),
        (json.dumps({"device_id": "secret", "session_id": 7}), ""),
        (f"user_secret_account_{UUID}_session_{UUID}", f"session_{UUID}"),
        ("user_secret", ""),
        ("", ""),
        (None, ""),
        (7, ""),
        ("{", ""),
    ],
)
def test_a_session_is_shown_and_a_device_is_not(user: object, label: str) -> None:
    assert settings(metadata={"user_id": user}).label == label


@given(ANYTHING)
def test_no_value_breaks_what_is_read_beside_messages(value: object) -> None:
    names = [*MESSAGES.array.envelope(b"{}").fields]
    assert settings(**dict.fromkeys(names, value)).usage_fields == {}
