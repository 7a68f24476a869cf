"""Reasoning that another account of the provider has sealed is left out if it is refused, for its whole session."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.items import HEAD, asked, called, said
from tests.support.model_server import Fault, ModelServer, answers
from tests.support.scenarios import WINDOW
from tests.support.stages import ours, stage
from tests.support.strict_responses import defects

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.conversations import Json

pytestmark = pytest.mark.anyio

RESPONSES = "/v1/responses"
WORDS = {
    "as OpenAI says": (
        "The encrypted content gAAAAABx for item rs_1 could not be verified. Reason: organization_id did not match.",
        "invalid_encrypted_content",
    ),
    "without a code": ("Encrypted content could not be decrypted or parsed.", None),
    "of another organization": ("Encrypted content organization_id did not match the target organization.", None),
    "in another order": ("Could not verify the encrypted content of item rs_1.", None),
    "with another key": ("Item 'rs_1' of type 'reasoning' was encrypted with another key.", None),
}


def rounds(number: int, sealed: str = "gAAAAABx") -> list[Json]:
    items: list[Json] = []
    for at in range(number):
        items.append({"type": "reasoning", "id": f"rs_{at}", "summary": [], "encrypted_content": sealed})
        call, output = called(at, 20)
        items += [{**call, "id": f"fc_{at}"}, output]
    return items


def refusing(words: str, code: str | None) -> ModelServer:
    error = {"error": {"message": words, "type": "invalid_request_error", "code": code}}
    refused = Fault(answer=answers.plain(400, error))
    return ModelServer(window=WINDOW, script=lambda _, received: refused if b"gAAAAABx" in received else None)


@pytest.mark.parametrize("case", WORDS)
async def test_refused_reasoning_is_left_out_for_the_rest_of_the_session(tmp_path: Path, case: str) -> None:
    async with stage(tmp_path, refusing(*WORDS[case]), native="no") as play:
        for number in range(2, 12):
            history = [HEAD, said("Port it."), *rounds(number)]
            reply = await play.send(asked(history), path=RESPONSES)
            assert (reply.status, ours(reply)["warning"]) == (200, "reasoning_removed")
            sent = json.loads(play.sent[-1].body)
            kinds = [item["type"] for item in sent["input"]]
            assert kinds == [item["type"] for item in history if item["type"] != "reasoning"]
            assert not [item for item in sent["input"] if item["type"] == "function_call" and "id" in item]
            assert defects(sent) == []
        assert len(play.sent) == 11, "one refusal"
        other = await play.send(asked([HEAD, said("Another."), *rounds(2, "gAAAAABy")]), path=RESPONSES)
        assert (other.status, ours(other).get("warning")) == (200, None)
        assert b"gAAAAABy" in play.sent[-1].body


async def test_it_is_left_out_beside_a_lone_surrogate_too(tmp_path: Path) -> None:
    async with stage(tmp_path, refusing(*WORDS["as OpenAI says"]), native="no") as play:
        body = asked([HEAD, said("Port it: HALF."), *rounds(2)]).replace(b"HALF", rb"\ud83d")
        reply = await play.send(body, path=RESPONSES)
        assert (reply.status, ours(reply)["warning"]) == (200, "reasoning_removed")
        assert rb"Port it: \ud83d." in play.sent[-1].body


@pytest.mark.parametrize("mode", [b"off", b"shadow"])
async def test_where_nothing_may_be_changed_the_refusal_is_the_clients(tmp_path: Path, mode: bytes) -> None:
    async with stage(tmp_path, refusing(*WORDS["as OpenAI says"]), native="no") as play:
        history = [HEAD, said("Port it."), *rounds(2)]
        reply = await play.send(asked(history), (b"x-compaction", mode), path=RESPONSES)
        assert (reply.status, len(play.sent)) == (400, 1)


@pytest.mark.parametrize(
    "words",
    [
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "messages.1.content.0.thinking: signature verification failed",
        "messages.1.content.0: Invalid `data` in `redacted_thinking` block",
    ],
)
async def test_thinking_that_another_account_has_signed_is_left_out_too(tmp_path: Path, words: str) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "gAAAAABx"}
    body: Json = {"model": "claude-sonnet-4-5", "max_tokens": 500, "messages": [{"role": "user", "content": "Hello."}]}
    async with stage(tmp_path, refusing(words, None), native="no") as play:
        for turn in range(3):
            said = [thought, {"type": "text", "text": f"Answer {turn}."}]
            body["messages"] += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
            reply = await play.send(json.dumps(body).encode(), path="/v1/messages")
            assert (reply.status, ours(reply)["warning"]) == (200, "reasoning_removed")
            assert f"Answer {turn}." in play.sent[-1].body.decode()
        assert len(play.sent) == 4, "one refusal"
