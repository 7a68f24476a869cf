"""A client's chat that ends with a question of ours."""

from __future__ import annotations

import json

import pytest

from proxy.dialects.chat import questions
from proxy.dialects.table import CHAT
from tests.support.conversations import Json

TOOLS: Json = {"tools": [{"type": "function", "function": {"name": "bash"}}]}
MARK: Json = {"cache_control": {"type": "ephemeral"}}
MARKED: Json = {"role": "user", "content": [{"type": "text", "text": "x", **MARK}]}
PLAIN: Json = {"role": "user", "content": "x"}
QUESTION: Json = {"role": "user", "content": "Sum it up."}


def continued(first: Json, wanted: float | None = None, **fields: object) -> Json | None:
    body = json.dumps({"model": "m", "messages": [first, QUESTION], **fields}).encode()
    asked = questions.continuation(body, CHAT.array.envelope(body).fields, ("max_tokens", 5), wanted)
    return None if asked is None else json.loads(asked)


def test_the_prompt_and_the_way_to_its_cache_stay_and_what_is_not_for_us_goes() -> None:
    kept: Json = {**TOOLS, "prompt_cache_key": "k", "reasoning_effort": "low"}
    theirs: Json = {"stream": True, "stop": ["x"], "response_format": {"type": "text"}, "tool_choice": "required"}
    theirs |= {"store": True, "metadata": {}, "modalities": ["text", "audio"], "audio": {}, "logit_bias": {"1": 9}}
    assert continued(PLAIN, **kept, **theirs) == {
        "model": "m", "messages": [PLAIN, QUESTION], **kept, "tool_choice": "none", "max_tokens": 5,
    }  # fmt: skip


def test_where_a_client_sets_marks_the_choice_of_tools_stays_and_the_question_is_marked() -> None:
    asked = continued(MARKED, **TOOLS, tool_choice="auto")
    question = {"role": "user", "content": [{"type": "text", "text": "Sum it up.", **MARK}]}
    assert asked == {"model": "m", "messages": [MARKED, question], **TOOLS, "tool_choice": "auto", "max_tokens": 5}


@pytest.mark.parametrize(("wanted", "sent"), [(None, 0.7), (0.2, 0.2)])
def test_the_temperature_that_an_operator_wants_takes_the_place_of_the_clients(
    wanted: float | None, sent: float
) -> None:
    asked = continued(PLAIN, wanted, temperature=0.7)
    assert asked is not None
    assert asked["temperature"] == sent


@pytest.mark.parametrize(
    ("first", "form"),
    [
        (PLAIN, {"response_format": {"type": "json_schema"}}),
        (PLAIN, {"functions": [{"name": "bash"}]}),
        (MARKED, {**TOOLS, "tool_choice": "required"}),
        (MARKED, {**TOOLS, "tool_choice": {"type": "function", "function": {"name": "bash"}}}),
    ],
)
def test_where_the_prompt_would_be_another_nothing_is_asked_behind_it(first: Json, form: Json) -> None:
    assert continued(first, **form) is None
