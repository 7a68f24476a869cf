"""Summaries that are asked for at the end of the session's own prompt: where that is not tried, and what follows it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from proxy.cli.demo.prompt import Function, PromptCall
from tests.support.model_server import Fault, ModelServer, answers
from tests.support.model_server.replies import Reply
from tests.support.scenarios import MODEL, WINDOW, Agent, one_user
from tests.support.stages import body, history, ours, outcome, stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.stages import Stage

pytestmark = pytest.mark.anyio

OPENING = b"Stop the work here"


def asked(play: Stage) -> list[bool]:
    """Of every summary that was asked for, whether that was behind the session's prompt."""
    return [OPENING in call.body for call in play.model.received if call.is_summary]


def _answered(reply: Reply) -> answers.Answer:
    return answers.completion(reply, MODEL, 0, answers.ReplyUsage(9, 9))


# What comes of a question behind the prompt.
VAIN = {
    "refused": answers.error(400, "tool_choice none is not supported", kind="invalid_request_error"),
    "a template raises": answers.error(
        500,
        "After the optional system message, conversation roles must alternate user and assistant roles.",
        kind="server_error",
    ),
    "a template knows no such role": answers.error(
        500, "Only user, assistant and tool roles are supported, got user.", kind="server_error"
    ),
    "a template that fails": answers.error(
        500, "Jinja Exception: unexpected message behind a tool's result", kind="server_error"
    ),
    "a field that is not known": answers.error(500, "Unrecognized request argument: tool_choice", kind="server_error"),
    "under status 200": answers.plain(200, {"error": "Error rendering prompt with jinja template: roles"}),
    "too long": answers.too_long(5_000, 5_500, 1_024),
    "the next turn is played": _answered(Reply("I go on with the next part.")),
    "a tool is called": _answered(Reply(call=PromptCall("c", Function("read_file", "{}")))),
}


@pytest.mark.parametrize("vain", VAIN.values(), ids=VAIN)
async def test_a_question_in_vain_is_followed_by_a_plain_one_and_left_alone_for_a_while(
    tmp_path: Path, vain: answers.Answer
) -> None:
    def script(_: int, request: bytes) -> Fault | None:
        return Fault(vain) if OPENING in request else None

    async with stage(tmp_path, ModelServer(window=WINDOW, script=script)) as play:
        for request in one_user(Agent(words=110), rounds=70):
            reply = await play.send(body(request))
            await play.settled()
            assert (reply.status, ours(reply)["window"]) == (200, str(WINDOW))
        found = asked(play)
        assert len(found) >= 3
        assert found == [True] + [False] * (len(found) - 1)
        assert {line["result"] for line in play.logged("compaction")} == {"single"}


@pytest.mark.parametrize(
    ("summarizer", "window", "aligned"),
    [
        ({}, WINDOW, True),
        ({"model": MODEL}, WINDOW, True),
        ({"model": "other"}, WINDOW, False),
        ({"cache_aligned": False}, WINDOW, False),
        ({"target_tokens": 3_500}, WINDOW, False),
    ],
    ids=["own", "own by name", "another model", "not wanted", "no room for the answer"],
)
async def test_the_prompt_is_gone_on_from_where_its_own_model_has_room(
    tmp_path: Path, summarizer: dict[str, object], window: int, *, aligned: bool
) -> None:
    model = ModelServer(window=window, windows={"other": window, MODEL: window})
    policies = {"default": {"summarizer": summarizer}}
    async with stage(tmp_path, model, policies=policies) as play:
        assert outcome(await play.send(body(history(0.85))))[0] == "applied"
        assert asked(play)[0] is aligned
        assert aligned or not any(asked(play))


async def test_a_client_that_wants_json_is_asked_about_with_a_plain_question(tmp_path: Path) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    async with stage(tmp_path) as play:
        assert outcome(await play.send(body(history(0.85), response_format=form)))[0] == "applied"
        assert asked(play) == [False]


@pytest.mark.parametrize(
    ("model", "marked", "aligned"),
    [
        ("claude-sonnet-4-5", False, False),
        ("anthropic/claude-sonnet-4.5", False, False),
        ("claude-sonnet-4-5", True, True),
        (MODEL, False, True),
    ],
)
async def test_what_no_cache_holds_is_asked_about_with_a_plain_question(
    tmp_path: Path, model: str, *, marked: bool, aligned: bool
) -> None:
    mark = {"cache_control": {"type": "ephemeral"}} if marked else {}
    messages = [{"role": "system", "content": [{"type": "text", "text": "Be brief.", **mark}]}, *history(0.85)[1:]]
    async with stage(tmp_path, models=[{"match": "*", "context_window": int(1.5 * WINDOW)}]) as play:
        request = json.dumps({"model": model, "messages": messages}).encode()
        assert outcome(await play.send(request, (b"x-compaction", b"force")))[0] == "applied"
        assert asked(play) == [aligned]


async def test_what_only_a_whole_result_names_is_no_invention(tmp_path: Path) -> None:
    """A transcript shortens long results; the prompt does not."""
    messages = history(0.85)
    at = next(i for i, message in enumerate(messages) if message["role"] == "tool")
    path = "deep/inside/of_the_result.py"
    text = str(messages[at]["content"])
    messages[at] = {**messages[at], "content": f"{text} {'word ' * 600}\n{path}\n{'word ' * 600}"}

    def names_it(_: int, request: bytes) -> Fault | None:
        if OPENING not in request:
            return None
        headings = [line for line in json.loads(request)["messages"][-1]["content"].splitlines() if line[:3] == "## "]
        said = "\n".join(f"{heading}\nThe fault is in {path}, which was read at length." for heading in headings)
        message = {"role": "assistant", "content": said}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return Fault(answers.plain(200, {"id": "1", "choices": [choice]}))

    async with stage(tmp_path, ModelServer(window=WINDOW, script=names_it)) as play:
        assert outcome(await play.send(body(messages)))[0] == "applied"
        assert asked(play) == [True]
        assert f"The fault is in {path}" in play.sent[-1].body.decode()
