"""Who answers a client that asks for a compaction, and what becomes of the items that others made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from proxy.compaction.provider.sealed_items import CompactionItem, text_digest
from tests.support.items import HEAD, TASK, TRIGGER, asked, called, forged, rounds, said, told, uses
from tests.support.model_server import Fault, ModelServer, answers
from tests.support.records import generation, made
from tests.support.scenarios import WINDOW
from tests.support.stages import ours, outcome, stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.conversations import Json

pytestmark = pytest.mark.anyio

RESPONSES, COMPACT, MESSAGES = "/v1/responses", "/v1/responses/compact", "/v1/messages"
HISTORY = [HEAD, said(TASK), *rounds(12)]
TALK = [{"role": "user", "content": TASK}, *uses(8)]
GO_ON: Json = {"role": "user", "content": "Go on."}
THEIRS = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAABtheirs"}
BLOCK: Json = {
    "role": "assistant",
    "content": [{"type": "compaction", "content": "They ported it.", "encrypted_content": "EqQBtheirs"}],
}
EDITS = {"edits": [{"type": "compact_20260112"}]}


def threshold(tokens: int) -> list[Json]:
    return [{"type": "compaction", "compact_threshold": tokens}]


def refusal(status: int, message: str) -> Fault:
    error = {"message": message, "type": "invalid_request_error", "code": None}
    return Fault(answer=answers.plain(status, {"error": error}))


def refusing(*, marker: bytes = b"theirs", status: int = 400, message: str = "Cannot read it.") -> ModelServer:
    """A server that refuses each request with the marker in it."""
    return ModelServer(window=WINDOW, script=lambda _, body: refusal(status, message) if marker in body else None)


ASKED = {
    "endpoint": (COMPACT, asked(HISTORY)),
    "trigger": (RESPONSES, asked([*HISTORY, TRIGGER])),
    "streamed trigger": (RESPONSES, asked([*HISTORY, TRIGGER], stream=True)),
    "on demand": (MESSAGES, told(TALK, compaction={"type": "summarize"})),
}


@pytest.mark.parametrize("how", ASKED)
async def test_before_an_unknown_host_the_proxy_answers(tmp_path: Path, how: str) -> None:
    path, body = ASKED[how]
    async with stage(tmp_path) as play:
        reply = await play.send(body, path=path)
        assert (reply.status, outcome(reply)) == (200, ("applied", "client_request"))
        assert b"ccn1." in reply.body
        assert not play.sent


async def test_by_the_setting_everything_passes_as_it_came(tmp_path: Path) -> None:
    bodies = [asked([said(TASK), THEIRS]), asked(HISTORY, context_management=threshold(2_000))]
    async with stage(tmp_path, native="yes") as play:
        for body in (*bodies, asked([*HISTORY, TRIGGER])):
            await play.send(body, path=RESPONSES)
            assert play.sent[-1].body == body
        reply = await play.send(asked(HISTORY), path=COMPACT)
        assert (outcome(reply), play.sent[-1].path) == (("bypass", "provider_compaction"), COMPACT)


REFUSED = {
    "a call without a result": (COMPACT, asked([HEAD, said(TASK), called(1)[0]])),
    "a stored response": (COMPACT, json.dumps({"model": "gpt-4o", "previous_response_id": "resp_1"}).encode()),
    "a stored response, and more": (COMPACT, asked([said("Go on.")], previous_response_id="resp_1")),
    "no history": (COMPACT, json.dumps({"model": "gpt-4o"}).encode()),
    "an unknown compaction": (MESSAGES, told(TALK, compaction={"type": "auto"})),
    "an unknown edit": (MESSAGES, told(TALK, context_management={"edits": [{"type": "compact_20991231"}]})),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_be_answered_is_refused_as_before_an_upstream_without_compaction(
    tmp_path: Path, case: str
) -> None:
    path, body = REFUSED[case]
    replies = []
    for native in ("no", "auto"):
        async with stage(tmp_path, native=native) as play:
            replies.append(await play.send(body, path=path))
            assert not play.sent
    assert replies[0].status == 400
    assert replies[0].body == replies[1].body


STORED = {
    "a response": (RESPONSES, asked([said(TASK)], previous_response_id="resp_1")),
    "a conversation": (RESPONSES, asked([said(TASK)], conversation="conv_1")),
    "a thread": (MESSAGES, told([GO_ON], thread={"type": "continue"})),
}
MANAGED: dict[str, object] = {RESPONSES: threshold(1_000), MESSAGES: EDITS}


@pytest.mark.parametrize("case", STORED)
async def test_what_names_stored_state_passes(tmp_path: Path, case: str) -> None:
    """Without the question: most of the history is not in the request."""
    path, body = STORED[case]
    managed = json.dumps({**json.loads(body), "context_management": MANAGED[path]}).encode()
    async with stage(tmp_path) as play:
        assert (await play.send(body, path=path)).status == 200
        assert play.sent[-1].body == body
        reply = await play.send(managed, path=path)
        assert (reply.status, ours(reply)["warning"]) == (200, "context_management_ignored")
        assert json.loads(play.sent[-1].body) == json.loads(body)


FOREIGN = {
    "responses": (RESPONSES, asked([said(TASK), THEIRS, said("Go on.")]), b"compacted elsewhere"),
    "messages": (MESSAGES, told([*TALK[:1], BLOCK, GO_ON]), b"They ported it."),
}
either = pytest.mark.parametrize("name", FOREIGN)


@pytest.mark.parametrize("how", ["signature", "encrypted_content"])
async def test_a_block_of_release_0_2_0_opens(tmp_path: Path, how: str) -> None:
    record = made(generation(1))
    item = CompactionItem(1, "messages", 1e9, record, text=text_digest(record.text))
    block = {"type": "compaction", "content": record.text, how: forged(item)}
    async with stage(tmp_path) as play:
        reply = await play.send(told([{"role": "assistant", "content": [block]}, GO_ON]), path=MESSAGES)
        assert (reply.status, ours(reply)["item"]) == (200, "read")
        content = [{"type": "text", "text": record.text}]
        assert json.loads(play.sent[-1].body)["messages"] == [{"role": "user", "content": content}, GO_ON]


async def test_a_block_of_ours_without_its_seal_is_none_of_others(tmp_path: Path) -> None:
    """Old SDKs send back the text alone."""
    block = {"type": "compaction", "content": made(generation(1)).text}
    async with stage(tmp_path) as play:
        reply = await play.send(told([{"role": "assistant", "content": [block]}, GO_ON]), path=MESSAGES)
        assert (reply.status, ours(reply)["warning"]) == (200, "item_unreadable")
        assert [b'"compaction"' in request.body for request in play.sent] == [False]


@either
async def test_an_item_of_others_passes_as_it_came(tmp_path: Path, name: str) -> None:
    path, body, _ = FOREIGN[name]
    async with stage(tmp_path) as play:
        reply = await play.send(body, path=path)
        assert (reply.status, ours(reply).get("warning")) == (200, None)
        assert [request.body for request in play.sent] == [body]


REFUSALS = {
    "the item by its content": (400, "The encrypted content could not be verified."),
    "a kind": (422, "Input tag 'compaction' does not match any of the expected tags."),
    "without a reason": (400, "Bad request."),
}


@either
@pytest.mark.parametrize("case", REFUSALS)
async def test_an_item_of_others_that_is_refused_becomes_a_note(tmp_path: Path, name: str, case: str) -> None:
    path, body, note = FOREIGN[name]
    status, message = REFUSALS[case]
    async with stage(tmp_path, refusing(status=status, message=message)) as play:
        reply = await play.send(body, path=path)
        assert reply.status == 200
        assert ours(reply).get("warning") == ("foreign_compaction" if name == "responses" else None)
        first, second = play.sent
        assert first.body == body
        assert b"theirs" not in second.body
        assert note in second.body


async def test_sealed_reasoning_that_is_refused_too_is_left_out(tmp_path: Path) -> None:
    thinking = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABtheirs2"}
    message = "The encrypted content could not be verified."
    async with stage(tmp_path, refusing(message=message)) as play:
        for number in (3, 5):
            reply = await play.send(asked([said(TASK), THEIRS, thinking, *called(1)]), path=RESPONSES)
            assert (reply.status, len(play.sent)) == (200, number)


async def test_a_compacted_request_with_an_item_of_others_is_repaired_at_once(tmp_path: Path) -> None:
    """The client's own bytes hold the item, too: they are not tried before the note."""
    async with stage(tmp_path, refusing()) as play:
        reply = await play.send(asked([HEAD, said(TASK), THEIRS, *rounds(27)]), path=RESPONSES)
        assert (reply.status, outcome(reply)[0]) == (200, "applied")
        assert [(b"theirs" in request.body, b"<conversation_record>" in request.body) for request in play.sent] == [
            (True, True),
            (False, True),
        ]


@either
async def test_a_refusal_is_repaired_once_a_request(tmp_path: Path, name: str) -> None:
    path, body, _ = FOREIGN[name]
    async with stage(tmp_path, refusing(marker=b"", message="No.")) as play:
        for number in (2, 4):
            assert (await play.send(body, path=path)).status == 400
            assert len(play.sent) == number


@pytest.mark.parametrize("status", [401, 404, 429, 500])
async def test_what_is_no_refusal_of_the_request_is_not_repaired(tmp_path: Path, status: int) -> None:
    path, body, _ = FOREIGN["responses"]
    async with stage(tmp_path, refusing(status=status)) as play:
        assert (await play.send(body, path=path)).status == status
        assert len(play.sent) == 1


@pytest.mark.parametrize("mode", [b"off", b"shadow"])
async def test_where_nothing_may_be_changed_the_refusal_is_the_clients(tmp_path: Path, mode: bytes) -> None:
    path, body, _ = FOREIGN["responses"]
    async with stage(tmp_path, refusing()) as play:
        reply = await play.send(body, (b"x-compaction", mode), path=path)
        assert (reply.status, len(play.sent)) == (400, 1)


async def test_a_policy_that_fails_closed_has_no_notes(tmp_path: Path) -> None:
    path, body, _ = FOREIGN["responses"]
    async with stage(tmp_path, refusing(), policies={"default": {"fail": "closed"}}) as play:
        reply = await play.send(body, path=path)
        assert (reply.status, len(play.sent)) == (400, 1)
        assert b"Cannot read it." in reply.body


async def test_an_item_of_others_stays_while_no_item_of_ours_is_due(tmp_path: Path) -> None:
    """A client that manages its context sends its threshold with each request."""
    items = [said(TASK), THEIRS, *rounds(4)]
    async with stage(tmp_path) as play:
        reply = await play.send(asked(items, context_management=threshold(90_000)), path=RESPONSES)
        assert reply.status == 200
        assert json.loads(play.sent[-1].body)["input"] == items


@pytest.mark.parametrize(
    ("items", "more"), [([*rounds(12)], {"context_management": threshold(2_000)}), ([*rounds(12), TRIGGER], {})]
)
async def test_in_an_item_of_ours_a_note_stands_for_that_of_others(
    tmp_path: Path, items: list[Json], more: dict[str, object]
) -> None:
    async with stage(tmp_path, refusing()) as play:
        reply = await play.send(asked([HEAD, said(TASK), THEIRS, *items], **more), path=RESPONSES)
        assert (reply.status, ours(reply)["item"], ours(reply)["warning"]) == (200, "made", "foreign_compaction")
        item = next(item for item in json.loads(reply.body)["output"] if item["type"] == "compaction")
        reply = await play.send(asked([HEAD, item, said("Go on.")]), path=RESPONSES)
        assert reply.status == 200
        assert TASK.encode() in play.sent[-1].body
