"""Cache marks of ours: set for Claude if the client sets none, and given up where they are refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.items import uses
from tests.support.model_server import Fault, ModelServer, answers
from tests.support.scenarios import WINDOW
from tests.support.stages import outcome, stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.conversations import Json

pytestmark = pytest.mark.anyio

MESSAGES = "/v1/messages"
CLAUDE = "claude-sonnet-4-5"
NO_MODEL = {"summarizer": {"model": "none"}}
WORDS = {
    "the field": (400, "messages.1.content.0.cache_control: Extra inputs are not permitted"),
    "no name": (422, "1 validation error for Request: extra_forbidden"),
    "nothing at all": (400, "Invalid request"),
    "as of roles": (400, "cache_control: multiple messages of role user with it are not supported"),
}


def body(messages: list[Json]) -> bytes:
    return json.dumps({"model": CLAUDE, "max_tokens": 100, "system": "You code.", "messages": messages}).encode()


def session(rounds: int) -> bytes:
    return body([{"role": "user", "content": "Port the importer."}, *uses(rounds)])


def refusing(status: int, words: str) -> Callable[[int, bytes], Fault | None]:
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}
    return lambda _, received: Fault(answer=answers.plain(status, error)) if b"cache_control" in received else None


def settings(**policy: object) -> dict[str, object]:
    return {
        "policies": {"default": {**NO_MODEL, **policy}},
        "models": [{"match": "claude-*", "context_window": WINDOW}],
    }


@pytest.mark.parametrize("case", WORDS)
async def test_where_marks_are_refused_no_request_of_the_session_is(tmp_path: Path, case: str) -> None:
    model = ModelServer(window=WINDOW, script=refusing(*WORDS[case]))
    async with stage(tmp_path, model, **settings()) as play:
        for rounds in range(10, 60, 2):
            reply = await play.send(session(rounds), path=MESSAGES)
            assert reply.status == 200, (rounds, reply.body)
        assert outcome(reply)[0] in ("applied", "reused")
        assert sum(b"cache_control" in request.body for request in play.sent) == 1


async def test_other_refusals_of_a_marked_copy_are_the_clients_and_teach_nothing(tmp_path: Path) -> None:
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "The tool is not known."}}
    model = ModelServer(window=WINDOW, script=lambda *_: Fault(answer=answers.plain(400, error)))
    async with stage(tmp_path, model, **settings()) as play:
        for _ in range(2):
            reply = await play.send(session(60), path=MESSAGES)
            assert (reply.status, reply.json()["error"]["message"]) == (400, "The tool is not known.")
            assert b"cache_control" in play.sent[-2].body


async def test_a_policy_may_turn_them_off(tmp_path: Path) -> None:
    async with stage(tmp_path, ModelServer(window=WINDOW), **settings(cache_marks="off")) as play:
        assert outcome(await play.send(session(60), path=MESSAGES))[0] == "applied"
        assert b"cache_control" not in play.sent[-1].body
