"""Clients that ask for compactions by OpenAI's and Anthropic's protocols, before an upstream on an unknown host."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from proxy.compaction.provider.expansion import Expander
from proxy.compaction.provider.sealed_items import MOST_CONTENT, CompactionItem
from proxy.dialects import bounds
from tests.support.items import HEAD, TASK, TRIGGER, asked, called, forged, rounds, said, told, uses
from tests.support.model_server import ModelServer
from tests.support.operating import BEARER, SESSIONS, TOKEN
from tests.support.records import generation, made
from tests.support.scenarios import WINDOW
from tests.support.stages import Stage, ours, outcome, stage
from tests.support.upstreams import ask

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.conversations import Json
    from tests.support.upstreams import Reply

pytestmark = pytest.mark.anyio

RESPONSES, COMPACT, MESSAGES = "/v1/responses", "/v1/responses/compact", "/v1/messages"
HISTORY = [HEAD, said(TASK), *rounds(12)]
RECORD = "<conversation_record>"
FORGED = CompactionItem(1, "responses", 1e9, made(generation(1)))
THRESHOLD = [{"type": "compaction", "compact_threshold": 2_000}]


def sent(play: Stage) -> list[Json]:
    body = json.loads(play.sent[-1].body)
    return body["input"] if "input" in body else body["messages"]


def events(reply: Reply) -> list[Json]:
    lines = reply.body.decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def error(reply: Reply) -> tuple[int, str, object]:
    body = json.loads(reply.body)["error"]
    return (
        reply.status,
        body.get("code") or body.get("details", {}).get("error_code") or body["type"],
        body.get("param"),
    )


def is_record(item: Json) -> bool:
    return item.get("role") == "user" and RECORD in json.dumps(item["content"])


async def item_of(play: Stage, items: list[Json] = HISTORY) -> list[Json]:
    """What the endpoint answers: the user's messages, and the item."""
    reply = await play.send(asked(items), path=COMPACT)
    assert reply.status == 200, reply.body
    return list(json.loads(reply.body)["output"])


async def test_the_endpoint_answers_with_the_users_messages_and_one_item(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        reply = await play.send(asked(HISTORY), path=COMPACT)
        assert not play.sent
    answer = json.loads(reply.body)
    assert (reply.status, answer["object"], outcome(reply)) == (
        200,
        "response.compaction",
        ("applied", "client_request"),
    )
    *kept, item = answer["output"]
    assert [(one["role"], one["status"], one["content"]) for one in kept] == [
        ("user", "completed", said(TASK)["content"])
    ]
    assert all(one["id"] for one in answer["output"])
    assert item["type"] == "compaction"
    assert item["encrypted_content"].startswith("ccn1.")
    assert answer["usage"]["total_tokens"] > 0
    assert ours(reply)["item"] == "made"


async def test_what_is_kept_has_an_id_that_no_other_answer_gives(tmp_path: Path) -> None:
    """A client sends on what several have kept, and OpenAI refuses a request in which two items have one id."""
    async with stage(tmp_path) as play:
        one, other = await item_of(play), await item_of(play, [HEAD, said("Write the docs."), *rounds(12, 20)])
        again = await item_of(play, [*one, said("And now the tests."), *rounds(4, 40)])
    ids = [{str(item["id"]) for item in output} for output in (one, other, again)]
    assert [len(each) for each in ids] == [2, 2, 3]
    assert ids[0].isdisjoint(ids[1])
    assert again[0] == one[0], "what has an id keeps it"


async def test_what_the_item_stands_for_goes_upstream_in_its_place(tmp_path: Path) -> None:
    """The client's own message where it was, the record as a user's, and the result that has no answer yet."""
    async with stage(tmp_path) as play:
        output = await item_of(play)
        reply = await play.send(asked([HEAD, *output]), path=RESPONSES)
        items = sent(play)
    assert (reply.status, ours(reply)["item"]) == (200, "read")
    assert items[:2] == [HEAD, output[0]]
    assert is_record(items[2])
    assert "Never touch legacy/." in json.dumps(items[2])
    assert items[3:] == called(11)


async def test_a_trigger_is_answered_by_one_item_that_streams_at_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        reply = await play.send(asked([*HISTORY, TRIGGER], stream=True), path=RESPONSES)
        whole = await play.send(asked([*HISTORY, TRIGGER]), path=RESPONSES)
        assert not play.sent
    found = events(reply)
    assert [event["type"] for event in found] == [
        "response.created",
        "response.in_progress",
        "response.compaction.compacting",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in found] == [*range(6)]
    (item,) = found[-1]["response"]["output"]
    assert found[3]["item"] == found[4]["item"] == item
    assert [one["type"] for one in json.loads(whole.body)["output"]] == ["compaction"]


@pytest.mark.parametrize("stream", [False, True])
async def test_beyond_the_threshold_the_answer_begins_with_an_item(tmp_path: Path, stream: bool) -> None:
    """What is sent then is what the next request will be expanded into: its beginning is in the provider's cache."""
    async with stage(tmp_path) as play:
        reply = await play.send(asked(HISTORY, stream=stream, context_management=THRESHOLD), path=RESPONSES)
        assert outcome(reply) == ("applied", "client_threshold")
        assert b"context_management" not in play.sent[-1].body
        before = sent(play)
        output = json.loads(reply.body)["output"] if not stream else events(reply)[-1]["response"]["output"]
        assert [item["type"] for item in output] == ["compaction", "message"]
        more = [*HISTORY, *output, said("And now the docs.")]
        following = await play.send(asked(more, context_management=THRESHOLD), path=RESPONSES)
        after = sent(play)
    assert ours(following)["item"] == "read"
    assert after[: len(before)] == before
    assert after[len(before) :] == [output[1], said("And now the docs.")]
    assert is_record(before[1])
    if stream:
        found = events(reply)
        assert [event["sequence_number"] for event in found] == [*range(len(found))]
        indexes = [event["output_index"] for event in found if "output_index" in event]
        assert indexes == sorted(indexes)
        assert set(indexes) == {0, 1}


async def test_below_the_threshold_nothing_happens_but_that_the_field_is_gone(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        managed = [{"type": "compaction", "compact_threshold": 50_000}]
        reply = await play.send(asked(HISTORY, context_management=managed), path=RESPONSES)
        assert json.loads(play.sent[-1].body) == json.loads(asked(HISTORY))
    assert outcome(reply) == ("none", "below_threshold")
    assert "item" not in ours(reply)


CONVERSATION = [{"role": "user", "content": TASK}, *uses(12)]


@pytest.mark.parametrize("stream", [False, True])
async def test_on_demand_one_signed_block_stands_for_all_messages(tmp_path: Path, stream: bool) -> None:
    async with stage(tmp_path) as play:
        body = told(CONVERSATION, stream=stream, compaction={"type": "summarize"})
        reply = await play.send(body, (b"anthropic-beta", b"compact-2026-09-04"), path=MESSAGES)
        assert not play.sent
        if stream:
            found = events(reply)
            assert [event["type"] for event in found] == [
                *("message_start", "content_block_start", "content_block_stop"),
                *("message_delta", "message_stop"),
            ]
            assert found[3]["delta"]["stop_reason"] == "compaction"
            block, usage = found[1]["content_block"], found[3]["usage"]
        else:
            answer = json.loads(reply.body)
            (block,), usage = answer["content"], answer["usage"]
            assert answer["stop_reason"] == "compaction"
        assert (usage["input_tokens"], [entry["type"] for entry in usage["iterations"]]) == (0, ["compaction"])
        assert usage["iterations"][0]["input_tokens"] > 0
        following = told([{"role": "assistant", "content": [block]}, {"role": "user", "content": "Go on."}])
        reply = await play.send(following, (b"anthropic-beta", b"compact-2026-09-04,other"), path=MESSAGES)
        items = sent(play)
        betas = dict(play.sent[-1].headers)[b"anthropic-beta"]
    assert (reply.status, ours(reply)["item"], betas) == (200, "read", b"other")
    assert is_record(items[0])
    assert items[1:] == [CONVERSATION[0], *CONVERSATION[-2:], {"role": "user", "content": "Go on."}]


EDIT = {"edits": [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}}]}
LONG = [{"role": "user", "content": TASK}, *uses(60)]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_edit_puts_a_block_in_front_of_the_answer(tmp_path: Path, stream: bool) -> None:
    """Our own compaction was due first: the window is smaller than the client's trigger."""
    async with stage(tmp_path) as play:
        body = told(LONG, stream=stream, context_management=EDIT)
        reply = await play.send(body, path=MESSAGES)
        assert outcome(reply) == ("applied", "client_threshold")
        before = sent(play)
        if stream:
            found = events(reply)
            assert [e["index"] for e in found if e["type"] == "content_block_start"] == [0, 1]
            assert found[1]["content_block"]["type"] == "compaction"
            delta = found[2]["delta"]
            block = {"type": "compaction", "content": delta["content"], "encrypted_content": delta["encrypted_content"]}
            content = [block, {"type": "text", "text": "Noted."}]
            usage = found[-2]["usage"]
        else:
            answer = json.loads(reply.body)
            content, usage = answer["content"], answer["usage"]
        assert [entry["type"] for entry in usage["iterations"]] == ["compaction", "message"]
        more = [*LONG, {"role": "assistant", "content": content}, {"role": "user", "content": "Next."}]
        await play.send(told(more, context_management=EDIT), path=MESSAGES)
        after = sent(play)
    assert after[: len(before)] == before
    assert after[len(before) :] == [{"role": "assistant", "content": content[1:]}, {"role": "user", "content": "Next."}]


async def test_with_a_pause_no_model_is_asked(tmp_path: Path) -> None:
    edit = {"edits": [{**EDIT["edits"][0], "pause_after_compaction": True}]}
    async with stage(tmp_path) as play:
        reply = await play.send(told(LONG, context_management=edit), path=MESSAGES)
        assert not play.sent
    answer = json.loads(reply.body)
    assert (answer["stop_reason"], [block["type"] for block in answer["content"]]) == ("compaction", ["compaction"])
    assert [entry["type"] for entry in answer["usage"]["iterations"]] == ["compaction"]


CLEARING = {
    "edits": [
        {
            "type": "clear_tool_uses_20250919",
            "trigger": {"type": "tool_uses", "value": 5},
            "clear_at_least": {"type": "input_tokens", "value": 1_500},
        }
    ]
}


async def test_old_results_are_cleared_and_the_client_is_told(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        reply = await play.send(told(CONVERSATION, context_management=CLEARING), path=MESSAGES)
        first = sent(play)
        longer = [*CONVERSATION, *uses(1, 50, 5)]
        await play.send(told(longer, context_management=CLEARING), path=MESSAGES)
        second = sent(play)
        count = await play.send(told(CONVERSATION, context_management=CLEARING), path=MESSAGES + "/count_tokens")
    assert outcome(reply) == ("applied", "cleared")
    (applied,) = json.loads(reply.body)["context_management"]["applied_edits"]
    cleared = [message for message in first if "[cleared:" in json.dumps(message)]
    assert applied["cleared_tool_uses"] == len(cleared) >= 5
    assert applied["cleared_input_tokens"] >= 1_500
    assert first[-6:] == CONVERSATION[-6:]
    assert second[: len(first)] == first
    counted = json.loads(count.body)
    assert counted["context_management"]["original_input_tokens"] > counted["input_tokens"] + 1_000


CALL, RESULT = called(99)
BAD_RESPONSES: dict[str, tuple[str, bytes, tuple[int, str, object]]] = {
    "a call without its output": (RESPONSES, asked([*HISTORY, CALL, TRIGGER]), (400, "invalid_value", "input")),
    "a call without its output, at the endpoint": (COMPACT, asked([*HISTORY, CALL]), (400, "invalid_value", "input")),
    "a trigger that is not last": (
        RESPONSES, asked([said(TASK), TRIGGER, said("x")]), (400, "invalid_value", "input[1]")
    ),
    "two triggers": (RESPONSES, asked([said(TASK), TRIGGER, TRIGGER]), (400, "invalid_value", "input[1]")),
    "a trigger alone": (RESPONSES, asked([TRIGGER]), (400, "invalid_value", "input[0]")),
    "a trigger with a history elsewhere": (
        RESPONSES,
        asked([said(TASK), TRIGGER], previous_response_id="resp_1"),
        (400, "previous_response_not_found", "previous_response_id"),
    ),
    "a threshold that is too low": (
        RESPONSES,
        asked(HISTORY, context_management=[{"type": "compaction", "compact_threshold": 999}]),
        (400, "invalid_value", "context_management[0].compact_threshold"),
    ),
    "an entry of another type": (
        RESPONSES,
        asked(HISTORY, context_management=[{"type": "compaction"}, {"type": "clear"}]),
        (400, "invalid_value", "context_management[1].type"),
    ),
    "no input": (COMPACT, asked(None), (400, "invalid_value", "input")),
    "a number": (COMPACT, asked(7), (400, "invalid_value", "input")),
    "an empty list": (COMPACT, asked([]), (400, "invalid_value", "input")),
    "too many halves of emoji": (
        COMPACT,
        rb'{"model": "gpt-4o", "input": "%b"}' % (rb"\ud83d" * (bounds.MOST_SURROGATES + 1)),
        (400, "invalid_value", "input"),
    ),
    "no JSON": (COMPACT, b"{", (400, "invalid_json", None)),
    "a response that nobody knows": (
        COMPACT,
        b'{"model": "gpt-4o", "previous_response_id": "resp_x"}',
        (400, "previous_response_not_found", "previous_response_id"),
    ),
    "an item without anything sealed": (
        RESPONSES,
        asked([said(TASK), {"type": "compaction"}]),
        (400, "invalid_value", "input[1].encrypted_content"),
    ),
    "an item with a number": (
        RESPONSES,
        asked([said(TASK), {"type": "compaction", "encrypted_content": 7}]),
        (400, "invalid_value", "input[1].encrypted_content"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_RESPONSES)
async def test_bad_input_of_responses_is_refused_and_goes_nowhere(tmp_path: Path, case: str) -> None:
    path, body, expected = BAD_RESPONSES[case]
    async with stage(tmp_path) as play:
        reply = await play.send(body, path=path)
        assert error(reply) == expected
        assert not play.sent


def edited(**edit: object) -> bytes:
    return told(CONVERSATION, context_management={"edits": [edit]})


COMPACTS, CLEARS = "compact_20260112", "clear_tool_uses_20250919"
PLACE = "context_management.edits.0"
BAD_MESSAGES: dict[str, tuple[bytes, str]] = {
    "a trigger that is too low": (
        edited(type=COMPACTS, trigger={"type": "input_tokens", "value": 49_999}), f"{PLACE}.trigger.value"
    ),
    "a trigger of another type": (
        edited(type=COMPACTS, trigger={"type": "tool_uses", "value": 60_000}), f"{PLACE}.trigger.type"
    ),
    "less than nothing to keep": (edited(type=CLEARS, keep={"type": "tool_uses", "value": -1}), f"{PLACE}.keep.value"),
    "an amount of another type": (
        edited(type=CLEARS, clear_at_least={"type": "tool_uses", "value": 5}), f"{PLACE}.clear_at_least.type"
    ),
    "an unknown edit": (edited(type="compact_2030"), f"{PLACE}.type"),
    "both at once": (
        told(CONVERSATION, compaction={"type": "summarize"}, context_management=EDIT), "context_management"
    ),
    "an unfinished turn": (told(CONVERSATION[:-1], compaction={"type": "summarize"}), "compaction_incomplete_turn"),
    "nothing but instructions": (
        told([{"role": "system", "content": "x"}], compaction={"type": "summarize"}),
        "compaction_nothing_to_summarize",
    ),
    "an empty content": (
        told([{"role": "assistant", "content": [{"type": "compaction", "content": ""}]}, *CONVERSATION]), "content"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_MESSAGES)
async def test_bad_input_of_messages_is_refused_and_goes_nowhere(tmp_path: Path, case: str) -> None:
    body, named = BAD_MESSAGES[case]
    async with stage(tmp_path) as play:
        reply = await play.send(body, path=MESSAGES)
        assert (reply.status, json.loads(reply.body)["error"]["type"]) == (400, "invalid_request_error")
        assert named.encode() in reply.body
        assert not play.sent


async def test_an_item_that_cannot_be_opened_is_refused_as_openai_does(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        *kept, item = await item_of(play)
        sealed = item["encrypted_content"]
        damaged = [sealed[:-1], sealed[:60], sealed + "A", sealed + sealed, sealed[:80] + "x" + sealed[81:], "ccn1."]
        for content in damaged:
            reply = await play.send(asked([*kept, {**item, "encrypted_content": content}]), path=RESPONSES)
            assert error(reply) == (400, "invalid_encrypted_content", "input[1].encrypted_content"), content
        assert not play.sent


async def test_what_is_no_item_is_text(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        reply = await play.send(asked([said("ccn1.abc"), said("What is this?")]), path=RESPONSES)
        assert reply.status == 200
        assert sent(play)[0] == said("ccn1.abc")


async def test_an_item_that_was_made_elsewhere_becomes_a_note_or_is_refused(tmp_path: Path) -> None:
    foreign = {"type": "compaction", "encrypted_content": "gAAAAABpM0Yj"}
    closed = {"policies": {"default": {"fail": "closed"}}}
    async with stage(tmp_path, native="no") as play:
        reply = await play.send(asked([said(TASK), foreign, said("Go on.")]), path=RESPONSES)
        items = sent(play)
    assert (reply.status, ours(reply)["warning"]) == (200, "foreign_compaction")
    assert items[::2] == [said(TASK), said("Go on.")]
    assert "compacted elsewhere" in json.dumps(items[1])
    async with stage(tmp_path, native="no", **closed) as play:
        reply = await play.send(asked([said(TASK), foreign]), path=RESPONSES)
        assert error(reply)[1] == "invalid_encrypted_content"


@pytest.mark.parametrize("mode", [b"off", b"shadow"])
async def test_items_of_ours_are_expanded_whatever_else_is_off(tmp_path: Path, mode: bytes) -> None:
    async with stage(tmp_path) as play:
        output = await item_of(play)
        reply = await play.send(asked([HEAD, *output]), (b"x-compaction", mode), path=RESPONSES)
        assert reply.status == 200
        assert b"ccn1." not in play.sent[-1].body
        assert is_record(sent(play)[2])


STORED = {
    "a response": ({"previous_response_id": "resp_1"}, "previous_response_not_found"),
    "a response, with more": (
        {"previous_response_id": "resp_1", "input": [said("Go on.")]},
        "previous_response_not_found",
    ),
    "a conversation": ({"conversation": "conv_1", "input": [said("Go on.")]}, "invalid_value"),
}


@pytest.mark.parametrize("case", STORED)
async def test_of_a_history_that_the_provider_stores_no_item_is_made(tmp_path: Path, case: str) -> None:
    """Also not of the part that the request brings: what comes before it would be lost."""
    fields, code = STORED[case]
    async with stage(tmp_path) as play:
        await play.send(asked(HISTORY), path=RESPONSES)
        reply = await play.send(json.dumps({"model": "gpt-4o", **fields}).encode(), path=COMPACT)
    assert error(reply) == (400, code, next(iter(fields)))
    assert b"send the items themselves" in reply.body


async def test_an_item_that_holds_an_item_is_refused(tmp_path: Path) -> None:
    inner = {"type": "compaction", "encrypted_content": forged(FORGED)}
    outer = msgspec.structs.replace(FORGED, tail=(msgspec.Raw(json.dumps(inner).encode()),))
    async with stage(tmp_path) as play:
        for item, status in ((FORGED, 200), (outer, 400)):
            items = [{"type": "compaction", "encrypted_content": forged(item)}, said("Go on.")]
            assert (await play.send(asked(items), path=RESPONSES)).status == status


async def test_items_that_expand_beyond_a_bound_together_are_refused(tmp_path: Path) -> None:
    large = msgspec.structs.replace(FORGED, covers="a" * (MOST_CONTENT - 100_000))
    sealed = forged(large)
    assert len(sealed) < 20_000
    async with stage(tmp_path) as play:
        for number, status in ((1, 200), (3, 200), (40, 400)):
            items = [{"type": "compaction", "encrypted_content": sealed}] * number
            assert (await play.send(asked([*items, said("Go on.")]), path=RESPONSES)).status == status


async def test_a_history_elsewhere_passes_without_the_field(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        body = asked([said(TASK)], previous_response_id="resp_1", context_management=THRESHOLD)
        reply = await play.send(body, path=RESPONSES)
        assert ours(reply)["warning"] == "context_management_ignored"
        assert b"context_management" not in play.sent[-1].body


async def test_our_own_compaction_goes_on_from_the_record_that_the_client_carries(tmp_path: Path) -> None:
    """Nothing is compacted twice: one record stands for the item, and for what has come since."""
    async with stage(tmp_path) as play:
        output = await item_of(play, [HEAD, said(TASK), said("Call the release Heron."), *rounds(12)])
        kept = [HEAD, *output, *rounds(26, 100)]
        reply = await play.send(asked(kept), path=RESPONSES)
        first = sent(play)
        longer = await play.send(asked([*kept, *rounds(24, 200)]), path=RESPONSES)
        second = sent(play)
    assert outcome(reply)[0] == outcome(longer)[0] == "applied"
    for items in (first, second):
        (record,) = [item for item in items if is_record(item)]
        text = json.dumps(record)
        assert "Never touch legacy/." in text or TASK in json.dumps(items)
        assert "Heron" in json.dumps(items)
        assert text.count(RECORD) == 1, "no record is quoted in another"
    made = [line["generation"] for line in play.logged("compaction") if line.get("generation")]
    assert made == [1, 2, 3]


async def test_an_item_opens_at_another_replica_and_after_a_restart(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        output = await item_of(play)
    async with stage(tmp_path) as other:
        reply = await other.send(asked([HEAD, *output]), path=RESPONSES)
        assert ours(reply)["item"] == "read"
        assert is_record(sent(other)[2])


@pytest.mark.parametrize("summaries", ["down", "useless", "garbage", "refuse"])
async def test_there_is_an_item_whatever_becomes_of_the_summary(tmp_path: Path, summaries: str) -> None:
    model = ModelServer(window=WINDOW, summaries=summaries)  # type: ignore[arg-type]
    async with stage(tmp_path, model) as play:
        output = await item_of(play)
        await play.send(asked([HEAD, *output]), path=RESPONSES)
        assert "Never touch legacy/." in json.dumps(sent(play))


async def test_of_another_tenant_an_item_is_not_read(tmp_path: Path) -> None:
    keys = {name: f"sk-{name}-0123456789abcdef" for name in "ab"}
    hashed = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in keys.items()}
    tenants = {name: {"keys": [f"sha256:{digest}"]} for name, digest in hashed.items()}
    first, second = ((b"authorization", f"Bearer {key}".encode()) for key in keys.values())
    async with stage(tmp_path, tenants=tenants) as play:
        reply = await play.send(asked(HISTORY), first, path=COMPACT)
        output = json.loads(reply.body)["output"]
        assert (await play.send(asked([HEAD, *output]), first, path=RESPONSES)).status == 200
        refused = await play.send(asked([HEAD, *output]), second, path=RESPONSES)
        assert error(refused)[1] == "invalid_encrypted_content"


async def test_a_fault_of_ours_never_sends_an_item_upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(tmp_path) as play:
        output = await item_of(play)

        def broken(*_: object, **__: object) -> None:
            raise RuntimeError

        monkeypatch.setattr(Expander, "settle", broken)
        reply = await play.send(asked([HEAD, *output]), path=RESPONSES)
        assert (error(reply)[:2], dict(reply.headers)[b"retry-after"]) == ((503, "compaction_item_unavailable"), b"2")
        assert not play.sent
        # What holds none is sent as it came.
        reply = await play.send(asked(HISTORY, context_management=THRESHOLD), path=RESPONSES)
        assert outcome(reply) == ("failed-open", "internal_error")


async def test_explain_opens_items_and_says_what_is_asked(tmp_path: Path) -> None:
    explain = "/v1/compaction/explain?dialect=responses"
    async with stage(tmp_path) as play:
        output = await item_of(play)
        found = json.loads((await play.send(asked([HEAD, *output]), path=explain)).body)
        asks = json.loads((await play.send(asked([*HISTORY, TRIGGER]), path=explain)).body)
        assert not play.sent
    assert [message["role"] for message in found["messages"]] == ["developer", "user", "user", "assistant", "tool"]
    assert (asks["outcome"], asks["reason"]) == ("applied", "client_request")


async def test_half_an_emoji_does_not_keep_a_history_from_being_compacted(tmp_path: Path) -> None:
    body = asked([HEAD, said("Fix half \ud83d of it."), *rounds(12)])
    assert b"\\ud83d" in body
    async with stage(tmp_path) as play:
        reply = await play.send(body, path=COMPACT)
    assert (reply.status, outcome(reply)) == (200, ("applied", "client_request"))


async def test_what_follows_an_item_of_others_is_explained(tmp_path: Path) -> None:
    foreign: Json = {"type": "compaction", "encrypted_content": "gAAAAB" + "x" * 80}
    async with stage(tmp_path, native="yes") as play:
        reply = await play.send(
            asked([foreign, said("Go on."), *rounds(60)]), path="/v1/compaction/explain?dialect=responses"
        )
    assert reply.status == 200
    explained = json.loads(reply.body)
    fates, cut = [message["fate"] for message in explained["messages"]], explained["cut"]["index"]
    assert (fates[0], fates[cut - 1 : cut + 1]) == ("head", ["summarised", "kept"])


async def block_of(play: Stage, **asks: object) -> Json:
    """A block of ours, made on demand or by an edit."""
    messages = CONVERSATION if "compaction" in asks else LONG
    reply = await play.send(told(messages, **asks), path=MESSAGES)
    return dict(json.loads(reply.body)["content"][0])


GO_ON: Json = {"role": "user", "content": "Go on."}


def behind(block: Json, *before: Json) -> bytes:
    return told([*before, {"role": "assistant", "content": [block]}, GO_ON])


async def test_a_signed_block_that_is_not_as_it_was_made_is_refused_by_its_code(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        block = await block_of(play, compaction={"type": "summarize"})
        asked_before = len(play.sent)
        signature = block["signature"]
        bodies = {
            "compaction_signature_invalid": behind({**block, "signature": signature[:-4] + "AAAA"}),
            "compaction_content_mismatch": behind({**block, "content": block["content"] + " And more."}),
            "compaction_block_misplaced": behind(block, {"role": "user", "content": "Before it."}),
            "compaction_block_ambiguous": behind(block, {"role": "assistant", "content": [block]}),
        }
        for code, body in bodies.items():
            reply = await play.send(body, path=MESSAGES)
            found = json.loads(reply.body)["error"]
            assert (reply.status, found["type"], found["details"]) == (
                400,
                "invalid_request_error",
                {"error_code": code},
            )
        assert len(play.sent) == asked_before


async def test_of_a_block_that_cannot_be_opened_the_text_is_used(tmp_path: Path) -> None:
    """Damaged, or made by Anthropic; what stands before it is dropped, as Anthropic does."""
    async with stage(tmp_path, native="no") as play:
        block = await block_of(play, context_management=EDIT)
        damaged = {**block, "encrypted_content": block["encrypted_content"][:-4] + "AAAA"}
        reply = await play.send(behind(damaged, *CONVERSATION[:3]), path=MESSAGES)
        assert (reply.status, ours(reply)["warning"]) == (200, "item_unreadable")
        assert [is_record(item) for item in sent(play)] == [True, False]
        theirs = {"type": "compaction", "content": "They ported it.", "encrypted_content": "EqQBtheirs"}
        reply = await play.send(behind(theirs, *CONVERSATION[:3]), path=MESSAGES)
        assert reply.status == 200
        assert "They ported it." in json.dumps(sent(play)[0])
        assert sent(play)[1:] == [GO_ON]


async def test_a_block_that_failed_is_no_block(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        failed: Json = {"type": "compaction", "content": None}
        messages = [*CONVERSATION, {"role": "assistant", "content": [failed, {"type": "text", "text": "Hm."}]}, GO_ON]
        reply = await play.send(told(messages), path=MESSAGES)
        assert reply.status == 200
        assert sent(play) == [*CONVERSATION, {"role": "assistant", "content": [{"type": "text", "text": "Hm."}]}, GO_ON]


async def test_a_mark_on_a_block_goes_with_its_record(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        block = await block_of(play, context_management=EDIT)
        await play.send(behind({**block, "cache_control": {"type": "ephemeral"}}), path=MESSAGES)
        assert sent(play)[0]["content"][0]["cache_control"] == {"type": "ephemeral"}


async def test_a_count_ignores_a_compaction_on_demand(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        body = told(CONVERSATION, compaction={"type": "summarize"})
        reply = await play.send(body, path=MESSAGES + "/count_tokens")
        assert json.loads(reply.body)["input_tokens"] > 1_000
        assert json.loads(play.sent[-1].body) == json.loads(told(CONVERSATION))


async def test_nothing_is_stored_of_an_item_whose_session_was_erased(tmp_path: Path) -> None:
    """Its client still has the item, and goes on with it."""

    async def records_of(play: Stage) -> str:
        await play.settled()
        page = (await ask(play.address, "GET", f"{SESSIONS}?limit=50", [BEARER])).json()
        urls = [f"{SESSIONS}/{row['id']}/export" for row in page["sessions"]]
        return "".join([(await ask(play.address, "GET", url, [BEARER])).body.decode() for url in urls])

    async with stage(tmp_path, server={"admin_token": TOKEN}) as play:
        *_, item = await item_of(play)
        assert "legacy" in await records_of(play)
        await ask(play.address, "DELETE", f"{SESSIONS}?all=true", [BEARER])
        reply = await play.send(asked([item, said("A new beginning."), *rounds(14, 50)]), path=COMPACT)
        assert (reply.status, ours(reply)["warning"]) == (200, "item_erased")
        *_, later = json.loads(reply.body)["output"]
        assert "legacy" not in await records_of(play)
        for items in ([later], [item, said("Another beginning.")]):
            reply = await play.send(asked([*items, *rounds(9, 50)]), path=RESPONSES)
            assert (reply.status, ours(reply)["warning"]) == (200, "item_erased")
        assert "legacy" not in await records_of(play)
