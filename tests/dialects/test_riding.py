"""What rides along with a question of ours: nothing by which a provider acts, in any dialect."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects.base import Dialect
from proxy.dialects.chat import questions as chat
from proxy.dialects.messages import questions as messages
from proxy.dialects.responses import questions as responses
from proxy.dialects.table import CHAT, MESSAGES, RESPONSES
from tests.support.conversations import Json

ALLOWED = {CHAT.name: chat.ALLOWED, MESSAGES.name: messages.ALLOWED, RESPONSES.name: responses.ALLOWED}
ASKED: Json = {"role": "user", "content": [{"type": "text", "text": "Sum it up."}]}
MARKED: Json = {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}
PLAIN: dict[str, Json] = {
    CHAT.name: {"type": "function", "function": {"name": "f", "parameters": {}}},
    MESSAGES.name: {"name": "f", "input_schema": {"type": "object"}},
    RESPONSES.name: {"type": "function", "name": "f", "parameters": {}},
}
each = pytest.mark.parametrize("dialect", [CHAT, MESSAGES, RESPONSES], ids=lambda dialect: dialect.name)


def question(dialect: Dialect, items: list[Json] | None = None, /, **fields: object) -> Json | None:
    body = json.dumps({"model": "m", dialect.array.name: [*(items or []), ASKED], **fields}).encode()
    asked = dialect.questions.continuation(body, dialect.array.envelope(body).fields, (dialect.questions.OUTPUT_KEY, 5))
    return None if asked is None else json.loads(asked)


# Tools that a provider runs, and some that nobody knows.
ACTING: list[Json] = [
    {"type": "web_search_20250305", "name": "web_search"},
    {"type": "web_fetch_20250910", "name": "web_fetch"},
    {"type": "code_execution_20250825", "name": "code_execution"},
    {"type": "bash_20990101", "name": "bash"},
    {"type": "mcp_toolset", "mcp_server_name": "mail"},
    {"type": "mcp", "server_label": "mail", "server_url": "https://mail.example"},
    {"type": "web_search"},
    {"type": "file_search", "vector_store_ids": ["v"]},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "image_generation"},
    {"type": "shell", "environment": {"type": "container_auto"}},
    {"type": "tool_search"},
    {"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]},
    {"type": "builtin_function", "function": {"name": "$web_search"}},
    {"google_search": {}},
    {"type": ["function"], "name": "f"},
    {"type": "function", "name": "f", "function": {"name": "f"}, "server_url": "https://x.example"},
    {"type": "custom", "name": "f", "custom": {}, "allowed_callers": ["code_execution_20250825"]},
]


@each
@pytest.mark.parametrize("tool", ACTING, ids=str)
def test_nothing_is_asked_behind_a_prompt_with_a_tool_that_a_provider_runs(dialect: Dialect, tool: Json) -> None:
    assert question(dialect, tools=[PLAIN[dialect.name]]) is not None
    assert question(dialect, tools=[PLAIN[dialect.name], tool]) is None


@each
@pytest.mark.parametrize("field", ["mcp_servers", "container", "prompt"])
def test_nothing_is_asked_behind_a_prompt_that_names_a_server(dialect: Dialect, field: str) -> None:
    assert question(dialect, **{field: [{"type": "url", "authorization_token": "t"}]}) is None
    assert question(dialect, **{field: None}) is not None


@pytest.mark.parametrize("kind", ["mcp_approval_response", "item_reference", "compaction_trigger", "additional_tools"])
def test_nothing_is_asked_behind_an_item_by_which_a_provider_goes_on(kind: str) -> None:
    assert question(RESPONSES, [{"type": kind, "id": "x"}]) is None


@each
def test_tools_of_the_client_ride_along_and_are_not_to_be_called(dialect: Dialect) -> None:
    tools = [PLAIN[dialect.name]]
    asked = question(dialect, tools=tools, tool_choice="auto" if dialect is not MESSAGES else {"type": "auto"})
    assert asked is not None
    assert asked["tools"] == tools
    assert asked["tool_choice"] == ({"type": "none"} if dialect is MESSAGES else "none")


def test_where_a_client_sets_marks_the_choice_stays_for_which_its_messages_are_cached() -> None:
    asked = question(MESSAGES, [MARKED], tools=[PLAIN[MESSAGES.name]], tool_choice={"type": "auto"})
    assert asked is not None
    assert asked["tool_choice"] == {"type": "auto"}


KNOWN = (
    "web_search_options",
    "service_tier",
    "plugins",
    "background",
    "metadata",
    "store",
    "user",
    "context_management",
)
VALUES = st.recursive(st.none() | st.booleans() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=2))
FIELDS = st.dictionaries(st.text(max_size=12) | st.sampled_from(KNOWN), VALUES, max_size=6)


@each
@settings(max_examples=200, deadline=None)
@given(fields=FIELDS, tools=st.lists(st.sampled_from(ACTING) | st.just(None), max_size=3))
def test_no_question_holds_what_is_not_allowed(dialect: Dialect, fields: Json, tools: list[Json | None]) -> None:
    beside = {name: value for name, value in fields.items() if name not in ("model", dialect.array.name, "tools")}
    asked = question(dialect, **{**beside, "tools": [tool or PLAIN[dialect.name] for tool in tools]})
    assert asked is None or asked.keys() <= ALLOWED[dialect.name]
    assert asked is None or all(tool is None for tool in tools)
    assert asked is None or asked.get("store") in (None, False)
