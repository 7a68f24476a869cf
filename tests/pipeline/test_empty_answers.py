"""Servers that answer a prompt beyond their window with nothing, as if that were an answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.model_server import Fault, ModelServer, answers
from tests.support.scenarios import prose
from tests.support.stages import outcome, stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.conversations import Json

pytestmark = pytest.mark.anyio

# Bytes of a request beyond which the server says nothing: some 5,000 tokens.
MOST = 30_000
USAGES: dict[str, Json | None] = {
    "LiteLLM": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    "LM Studio": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    "no usage": None,
}
SETTINGS = {"policies": {"default": {"summarizer": {"model": "none"}}}, "models": []}


def empty(usage: Json | None, *, stream: bool) -> answers.Answer:
    whole: Json = {"id": "c", "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": ""}}]}
    told = {"usage": usage} if usage is not None else {}
    if not stream:
        return answers.plain(200, {**whole, **told})
    end = {"id": "c", "choices": [{"index": 0, "finish_reason": "stop", "delta": {}}], **told}
    begun = {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    return answers.events(
        b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in (begun, end)) + b"data: [DONE]\n\n"
    )


def silent_beyond(most: int, usage: Json | None, *, stream: bool) -> Callable[[int, bytes], Fault | None]:
    return lambda _, received: Fault(answer=empty(usage, stream=stream)) if len(received) > most else None


def body(rounds: int, *, stream: bool) -> bytes:
    messages: list[Json] = [{"role": "user", "content": "Port the importer."}]
    for number in range(rounds):
        messages.append({"role": "assistant", "content": prose(("model", number), 60)})
        messages.append({"role": "user", "content": prose(("user", number), 40)})
    return json.dumps({"model": "unheard-of", "stream": stream, "messages": messages}).encode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", USAGES)
async def test_a_session_goes_on_where_larger_prompts_get_empty_answers(
    tmp_path: Path, case: str, stream: bool
) -> None:
    model = ModelServer(window=100_000, script=silent_beyond(MOST, USAGES[case], stream=stream))
    async with stage(tmp_path, model, **SETTINGS) as play:
        for rounds in range(10, 130, 4):
            reply = await play.send(body(rounds, stream=stream))
            assert reply.status == 200
            assert b"Hello" in reply.body or b'"content":"' in reply.body.replace(b'"content":""', b""), rounds
        assert outcome(reply)[0] in ("applied", "reused")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_empty_answer_to_no_larger_prompt_is_relayed(tmp_path: Path, stream: bool) -> None:
    said_nothing = False
    usage = USAGES["LiteLLM"]
    model = ModelServer(
        window=100_000, script=lambda *_: Fault(answer=empty(usage, stream=stream)) if said_nothing else None
    )
    async with stage(tmp_path, model, **SETTINGS) as play:
        assert outcome(await play.send(body(40, stream=stream)))[0] == "none"
        said_nothing = True
        for rounds in (1, 20, 40):
            reply = await play.send(body(rounds, stream=stream))
            assert (reply.status, outcome(reply)[0]) == (200, "none")
            assert b'"finish_reason": "stop"' in reply.body or b'"finish_reason":"stop"' in reply.body
        assert len(play.sent) == 4
