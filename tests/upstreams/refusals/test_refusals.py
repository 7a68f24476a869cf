"""Errors of chat templates that want user and assistant messages in turns."""

from __future__ import annotations

import json

import pytest

from proxy.upstreams.refusals.form_refusals import refuses_form, refuses_roles

REFUSALS = [
    "Conversation roles must alternate user/assistant/user/assistant/...",
    "After the optional system message, user and assistant roles should be alternating.",
    "Please ensure that multiturn requests alternate between user and model.",
    "This model does not support successive user messages. Interleave the roles.",
    "messages: found multiple user roles in a row",
    "Unexpected role 'user' after role 'user'",
    "The role of message with even index must be assistant.",
    "Error rendering prompt with jinja template: raise_exception",
    "messages 中 user 和 assistant 的角色必须交替出现",
    "不允许连续的用户消息",
    "Only user, assistant and tool roles are supported, got user.",
]
OTHERS = [
    "",
    "This model's maximum context length is 8192 tokens.",
    "Rate limit reached for requests.",
    "messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
    "Invalid API key.",
    "余额不足",
]


@pytest.mark.parametrize("text", REFUSALS)
@pytest.mark.parametrize("escaped", [True, False])
def test_refusals_are_read_from_json_and_from_text(text: str, escaped: bool) -> None:
    assert refuses_roles(json.dumps({"error": {"message": text}}, ensure_ascii=escaped).encode())
    assert refuses_roles(text.encode())


@pytest.mark.parametrize("coding", ["latin-1", "gb18030"])
def test_an_error_in_another_coding_is_read_as_far_as_it_can_be(coding: str) -> None:
    text = '{"error": {"message": "rôles 必须交替: roles must alternate"}}'
    assert refuses_roles(text.encode(coding, "ignore"))
    assert not refuses_roles('{"error": {"message": "modèle inconnu"}}'.encode(coding))


@pytest.mark.parametrize("text", OTHERS)
def test_other_errors_are_none(text: str) -> None:
    assert not refuses_roles(json.dumps({"error": {"message": text}}).encode())


def test_what_stands_far_behind_the_beginning_is_not_read() -> None:
    assert not refuses_roles(b"x" * 10_000 + b" roles must alternate")


FORMS = [
    *REFUSALS,
    "template: :12:7: executing ... at <raise>: error calling raise",
    "Template error: invalid operation: Conversation roles",
    "Failed to apply prompt template",
    "System role not supported",
    "tool_choice is not supported by this model",
    "Unrecognized request argument supplied: store",
    "Extra inputs are not permitted: body -> parallel_tool_calls (extra_forbidden)",
]


@pytest.mark.parametrize("status", [200, 400, 422, 500])
@pytest.mark.parametrize("text", FORMS)
def test_a_form_is_refused_under_500_as_well(text: str, status: int) -> None:
    assert refuses_form(status, json.dumps({"error": {"message": text}}).encode())


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (429, "Template error: too many requests"),
        (408, "roles must alternate"),
        (502, "upstream said: chat template failed"),
        (503, "Please try an alternate region"),
        (529, "Overloaded: no extra inputs"),
        (500, "Internal server error"),
        (500, "CUDA out of memory"),
        (400, "Invalid API key"),
        (400, ""),
    ],
)
def test_a_trouble_that_passes_and_any_other_refusal_are_none_of_a_form(status: int, text: str) -> None:
    assert not refuses_form(status, json.dumps({"error": {"message": text}}).encode())
    assert not refuses_form(status, b"")
