"""Whether an upstream answers compaction protocols itself: by config, by its list of models, by its answer to one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.items import HEAD, TASK, TRIGGER, asked, called, rounds, said, told, uses
from tests.support.model_server import Fault, ModelServer, answers
from tests.support.scenarios import WINDOW
from tests.support.stages import ours, outcome, stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.conversations import Json
    from tests.support.upstreams import Reply

pytestmark = pytest.mark.anyio

RESPONSES, COMPACT, MESSAGES = "/v1/responses", "/v1/responses/compact", "/v1/messages"
HISTORY = [HEAD, said(TASK), *rounds(12)]
TALK = [{"role": "user", "content": TASK}, *uses(8)]
THEIRS = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAABtheirs"}
THINKING = {"type": "reasoning", "id": "rs_1", "summary": []}
WORDS = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}


def response(*output: Json) -> Json:
    usage = {"input_tokens": 3_000, "output_tokens": 5, "total_tokens": 3_005}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "output": [*output],
        "usage": usage,
    }


def streamed(*output: Json) -> bytes:
    begun: Json = {"type": "response.created", "response": {**response(), "status": "in_progress"}}
    told = [{"type": "response.output_item.done", "output_index": at, "item": item} for at, item in enumerate(output)]
    ended: Json = {"type": "response.completed", "response": response(*output)}
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (str(e["type"]).encode(), json.dumps(e).encode()) for e in [begun, *told, ended]
    )


def message(*content: Json) -> Json:
    usage = {"input_tokens": 3_000, "output_tokens": 5}
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": [*content],
        "stop_reason": "compaction",
        "usage": usage,
    }


def answering(*answer: answers.Answer) -> Callable[[int, bytes], Fault | None]:
    """These to the first requests that have a body, and as any model to what follows."""
    left = iter(answer)
    return lambda _, body: Fault(answer=found) if body and (found := next(left, None)) is not None else None


def server(*answer: answers.Answer) -> ModelServer:
    return ModelServer(window=WINDOW, script=answering(*answer))


def json_answer(body: Json, status: int = 200) -> answers.Answer:
    return answers.plain(status, body)


def events_answer(body: bytes) -> answers.Answer:
    return answers.events(body)


def refusal(status: int, words: str) -> answers.Answer:
    return answers.plain(status, {"error": {"message": words, "type": "invalid_request_error", "code": None}})


def is_ours(reply: Reply) -> bool:
    return reply.status == 200 and b"ccn1." in reply.body


ASKED = {
    "endpoint": (COMPACT, asked(HISTORY)),
    "trigger": (RESPONSES, asked([*HISTORY, TRIGGER])),
    "streamed trigger": (RESPONSES, asked([*HISTORY, TRIGGER], stream=True)),
    "on demand": (MESSAGES, told(TALK, compaction={"type": "summarize"})),
}
NO = {
    "404": refusal(404, "There is nothing here."),
    "405": refusal(405, "Method not allowed."),
    "501": refusal(501, "Not implemented."),
    "named": refusal(400, "Extra inputs are not permitted: compaction, compact, compaction_trigger"),
    "ignored": json_answer(response(THINKING, WORDS)),
}


REFUSED = {
    "a call without a result": asked([HEAD, said(TASK), called(1)[0]]),
    "a stored response": json.dumps({"model": "gpt-4o", "previous_response_id": "resp_1"}).encode(),
    "a stored response, and more": asked([said("Go on.")], previous_response_id="resp_1"),
    "no history": json.dumps({"model": "gpt-4o"}).encode(),
}


@pytest.mark.parametrize("status", [404, 405, 501])
@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_be_compacted_is_refused_in_the_providers_words(
    tmp_path: Path, case: str, status: int
) -> None:
    """Also where the upstream has been asked first: its 404 says nothing to the client."""
    async with stage(tmp_path, native="no") as play:
        expected = await play.send(REFUSED[case], path=COMPACT)
    async with stage(tmp_path, server(refusal(status, "There is nothing here."))) as play:
        untried = await play.send(REFUSED[case], path=COMPACT)
        again = await play.send(REFUSED[case], path=COMPACT)
        assert len(play.sent) == (case != "no history")
    assert expected.status == 400
    assert untried.body == again.body == expected.body


@pytest.mark.parametrize("how", ASKED)
@pytest.mark.parametrize("no", NO)
async def test_a_server_without_the_protocol_is_asked_once(tmp_path: Path, how: str, no: str) -> None:
    path, body = ASKED[how]
    async with stage(tmp_path, server(NO[no])) as play:
        for _ in range(3):
            reply = await play.send(body, path=path)
            assert is_ours(reply), reply.body
            assert outcome(reply) == ("applied", "client_request")
        assert [request.path for request in play.sent] == [path]
        assert json.loads(play.sent[0].body) == json.loads(body), "as it came"


YES = {
    "endpoint": json_answer({**response(THEIRS), "object": "response.compaction"}),
    "trigger": json_answer(response(THINKING, THEIRS)),
    "streamed trigger": events_answer(streamed(THINKING, THEIRS)),
    "on demand": json_answer(message({"type": "compaction", "content": "Theirs.", "signature": "theirs"})),
}


@pytest.mark.parametrize("how", ASKED)
async def test_a_server_that_answers_keeps_what_it_has(tmp_path: Path, how: str) -> None:
    path, body = ASKED[how]
    async with stage(tmp_path, server(YES[how], YES[how])) as play:
        for number in range(2):
            reply = await play.send(body, path=path)
            assert (reply.status, is_ours(reply)) == (200, False)
            assert b"heirs" in reply.body
            assert play.sent[number].body == body
        assert outcome(reply) == ("bypass", "provider_compaction")


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_who_asks_and_how_often_teaches_nothing(tmp_path: Path, status: int) -> None:
    path, body = ASKED["trigger"]
    async with stage(tmp_path, server(refusal(status, "no"), YES["trigger"])) as play:
        assert (await play.send(body, path=path)).status == status
        assert b"gAAAAABtheirs" in (await play.send(body, path=path)).body


MANAGED = [{"type": "compaction", "compact_threshold": 2_000}]


async def test_a_field_that_is_refused_is_taken_out(tmp_path: Path) -> None:
    body = asked(HISTORY, context_management=MANAGED)
    async with stage(tmp_path, server(refusal(400, "Unknown parameter: 'context_management'."))) as play:
        reply = await play.send(body, path=RESPONSES)
        assert is_ours(reply)
        assert [b"context_management" in request.body for request in play.sent] == [True, False]


async def test_a_policy_that_refuses_does_so_after_a_trial_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be compacted here either is not sent as it came."""

    async def explode(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr("proxy.gateway.client_compaction.CompactionAnswers.edit", explode)
    body, closed = asked(HISTORY, context_management=MANAGED), {"default": {"fail": "closed"}}
    upstream = server(refusal(400, "Unknown parameter: 'context_management'."))
    async with stage(tmp_path, upstream, policies=closed) as play:
        reply = await play.send(body, path=RESPONSES)
        assert (reply.status, reply.json()["error"]["code"]) == (503, "compaction_failed")
        assert len(play.sent) == 1


async def test_a_field_that_was_ignored_is_answered_here_from_then_on(tmp_path: Path) -> None:
    """3,000 tokens were billed, 2,000 were to be the most, and no item came."""
    body = asked(HISTORY, context_management=MANAGED)
    async with stage(tmp_path, server(json_answer(response(WORDS)))) as play:
        assert not is_ours(await play.send(body, path=RESPONSES))
        await play.settled()
        assert is_ours(await play.send(body, path=RESPONSES))


async def test_a_prompt_that_is_due_anyway_is_no_trial(tmp_path: Path) -> None:
    full = [HEAD, said(TASK), *rounds(40)]
    async with stage(tmp_path) as play:
        reply = await play.send(
            asked(full, context_management=[{"type": "compaction", "compact_threshold": 90_000}]), path=RESPONSES
        )
        assert is_ours(reply)
        assert [b"context_management" in request.body for request in play.sent] == [False]


async def test_by_the_config_everything_passes_as_it_came(tmp_path: Path) -> None:
    bodies = [asked([said(TASK), THEIRS]), asked(HISTORY, context_management=MANAGED), asked([*HISTORY, TRIGGER])]
    async with stage(tmp_path, native="yes") as play:
        for body in bodies:
            await play.send(body, path=RESPONSES)
        assert [request.body for request in play.sent] == bodies


async def test_an_item_of_theirs_that_is_accepted_is_theirs(tmp_path: Path) -> None:
    body = asked([said(TASK), THEIRS, said("Go on.")])
    async with stage(tmp_path, server(json_answer(response(WORDS)))) as play:
        for _ in range(2):
            assert (await play.send(body, path=RESPONSES)).status == 200
        assert [request.body for request in play.sent] == [body, body]


async def test_an_item_of_theirs_that_is_refused_becomes_a_note(tmp_path: Path) -> None:
    body = asked([said(TASK), THEIRS, said("Go on.")])
    no = refusal(400, "The encrypted_content could not be verified.")
    async with stage(tmp_path, server(no)) as play:
        reply = await play.send(body, path=RESPONSES)
        assert (reply.status, ours(reply)["warning"]) == (200, "foreign_compaction")
        assert b"gAAAAABtheirs" not in play.sent[-1].body


UNKNOWN = {
    "on demand": (MESSAGES, told(TALK, compaction={"type": "auto"})),
    "edit": (MESSAGES, told(TALK, context_management={"edits": [{"type": "compact_20991231"}]})),
}


@pytest.mark.parametrize("how", UNKNOWN)
async def test_what_we_do_not_know_may_be_known_to_an_upstream_that_was_not_tried(tmp_path: Path, how: str) -> None:
    path, body = UNKNOWN[how]
    async with stage(tmp_path, server(json_answer(message(WORDS)))) as play:
        assert (await play.send(body, path=path)).status == 200
        assert play.sent[0].body == body


@pytest.mark.parametrize("how", UNKNOWN)
async def test_what_we_do_not_know_is_refused_before_an_upstream_that_does_not_answer(tmp_path: Path, how: str) -> None:
    path, body = UNKNOWN[how]
    async with stage(tmp_path, native="no") as play:
        assert (await play.send(body, path=path)).status == 400
        assert not play.sent
