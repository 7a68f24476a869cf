"""What the upstream bills corrects our estimates, in one session more than in others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.conversations import user
from tests.support.model_server import Fault, ModelServer, answers
from tests.support.scenarios import WINDOW, prose
from tests.support.stages import outcome, stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.conversations import Json

pytestmark = pytest.mark.anyio

MARK = "billed five times"
STORED: dict[str, tuple[str, Json]] = {
    "previous_response_id": ("/v1/responses", {"previous_response_id": "resp_1"}),
    "conversation": ("/v1/responses", {"conversation": "conv_1"}),
    "a template": ("/v1/responses", {"prompt": {"id": "pmpt_1"}}),
    "a thread": ("/v1/messages", {"thread": {"type": "continue", "previous_message_id": "m"}, "max_tokens": 99}),
    "nothing": ("/v1/chat/completions", {}),
}


def talk(session: object) -> list[Json]:
    """About 2,000 tokens, a quarter of the window."""
    return [user(prose((session, "task"), 1_500))]


def body(path: str, messages: list[Json], **fields: object) -> bytes:
    array = "input" if path == "/v1/responses" else "messages"
    return json.dumps({"model": "gpt-4o", array: messages, **fields}).encode()


def five_times(_: int, received: bytes) -> Fault | None:
    """The bill of a request that the provider adds much to."""
    if MARK.encode() not in received:
        return None
    used = {"prompt_tokens": 10_000, "completion_tokens": 3, "total_tokens": 10_003}
    used |= {"input_tokens": 10_000, "output_tokens": 3}
    said = {"role": "assistant", "content": "Yes."}
    parts = [{"type": "text", "text": "Yes."}]
    whole = {"id": "r", "object": "response", "status": "completed", "type": "message", "output": [], "usage": used}
    return Fault(answer=answers.plain(200, {**whole, "content": parts, "choices": [{"index": 0, "message": said}]}))


@pytest.mark.parametrize("case", STORED)
async def test_a_bill_that_counts_more_than_the_body_compacts_no_other_session(tmp_path: Path, case: str) -> None:
    path, fields = STORED[case]
    async with stage(tmp_path, ModelServer(window=WINDOW, script=five_times)) as play:
        for turn in range(3):
            reply = await play.send(body(path, [*talk("stored"), user(f"{MARK} {turn}")], **fields), path=path)
            assert reply.status == 200
            await play.settled()
        for session in range(15):
            reply = await play.send(body("/v1/chat/completions", talk(session)))
            assert outcome(reply)[0] == "none", session
