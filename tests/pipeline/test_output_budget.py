"""Where only prompt and output together overflow, the output gives way; what cannot be solved is worded as told."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.support.long_conversations import LIMIT, long_request, refused
from tests.support.model_server import ModelServer
from tests.support.scenarios import prose
from tests.support.stages import ours, stage
from tests.support.upstreams import CHAT, JSON, OK_BODY, Call, Script, Upstream, answer, ask, in_turn, proxied

pytestmark = pytest.mark.anyio

OK = answer(200, OK_BODY, JSON)
PROMPT = 9_000


def over(directory: Path, script: Script, **policy: object) -> AbstractAsyncContextManager[tuple[str, Upstream]]:
    policies = {"default": {"extends": "default", "summarizer": {"model": "none"}, **policy}}
    return proxied(directory, script, policies=policies)


def sent(call: Call) -> dict[str, object]:
    body: dict[str, object] = json.loads(call.body)
    return body


@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
async def test_the_output_gives_way_first_and_the_client_is_told(tmp_path: Path, key: str) -> None:
    body = long_request(**{"temperature": 0.5, key: 10_000, "seed": 2**70})
    async with over(tmp_path, in_turn(refused(PROMPT, 10_000), OK)) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], body)
    room = LIMIT - PROMPT - 32
    assert reply.status == 200
    assert reply.header(b"x-compaction-max-output") == b"%d" % room
    assert (reply.header(b"x-compaction"), reply.header(b"x-compaction-reason")) == (b"none", b"output_lowered")
    first, second = map(sent, behind.calls)
    assert second == first | {key: room}


async def test_a_prompt_that_leaves_less_than_the_floor_is_compacted_at_once(tmp_path: Path) -> None:
    async with over(tmp_path, in_turn(refused(LIMIT - 500, 10_000), OK)) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], long_request(max_tokens=10_000))
    assert reply.header(b"x-compaction-max-output") is None
    assert reply.header(b"x-compaction-reason") == b"overflow_retry"
    assert [sent(call)["max_tokens"] for call in behind.calls] == [10_000, 10_000]


@pytest.mark.parametrize("more", [{}, {"max_tokens": 10_000}], ids=["no limit asked for", "never lowered"])
async def test_the_output_stays_where_there_is_none_to_lower_or_the_policy_forbids_it(
    tmp_path: Path, more: dict[str, object]
) -> None:
    async with over(tmp_path, in_turn(refused(PROMPT, 10_000), OK), output_floor=None) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], long_request(**more))
    assert reply.header(b"x-compaction-reason") == b"overflow_retry"
    assert sent(behind.calls[-1]).get("max_tokens") == more.get("max_tokens")


async def test_where_less_output_was_not_enough_the_prompt_shrinks_and_the_output_is_restored(
    tmp_path: Path,
) -> None:
    script = in_turn(refused(PROMPT, 10_000), refused(PROMPT, 7_353), OK)
    async with over(tmp_path, script) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], long_request(max_tokens=10_000))
    assert (reply.status, reply.header(b"x-compaction-reason")) == (200, b"overflow_retry")
    assert [sent(call)["max_tokens"] for call in behind.calls] == [10_000, LIMIT - PROMPT - 32, 10_000]
    assert len(behind.calls[2].body) < 0.9 * len(behind.calls[1].body)


def told(message: str) -> bytes:
    return answer(400, json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode(), JSON)


OUTPUT_REFUSED = told("max_tokens: 10000 > 2048, which is the maximum allowed number of output tokens for this model")
TOO_LONG = told("prompt is too long: 9000 tokens > 8192 maximum")


async def test_a_prompt_that_overflows_once_the_output_is_allowed_shrinks_and_the_output_stays_allowed(
    tmp_path: Path,
) -> None:
    async with over(tmp_path, in_turn(OUTPUT_REFUSED, TOO_LONG, OK)) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], long_request(max_tokens=10_000))
    assert (reply.status, reply.header(b"x-compaction-reason")) == (200, b"overflow_retry")
    assert reply.header(b"x-compaction-max-output") == b"2048"
    assert [sent(call)["max_tokens"] for call in behind.calls] == [10_000, 2048, 2048]
    assert len(behind.calls[2].body) < 0.9 * len(behind.calls[1].body)


async def test_where_it_overflows_whatever_is_sent_the_client_gets_the_first_refusal(tmp_path: Path) -> None:
    async with over(tmp_path, in_turn(OUTPUT_REFUSED, TOO_LONG)) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], long_request(max_tokens=10_000))
    assert (reply.status, reply.body) == (400, OUTPUT_REFUSED.partition(b"\r\n\r\n")[2])
    assert {sent(call)["max_tokens"] for call in behind.calls[1:]} == {2048}
    assert len(behind.calls) > 2


async def test_a_client_that_wants_no_compaction_keeps_its_output(tmp_path: Path) -> None:
    refusal = refused(PROMPT, 10_000)
    async with over(tmp_path, in_turn(refusal, OK)) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON, (b"X-Compaction", b"off")], long_request(max_tokens=10_000))
    assert (reply.status, len(behind.calls)) == (400, 1)


async def test_an_overflow_that_stays_names_no_limit_where_none_is_known(tmp_path: Path) -> None:
    body = json.dumps({"error": {"message": "The prompt is too long", "code": "context_length_exceeded"}}).encode()
    async with over(tmp_path, in_turn(answer(400, body, JSON)), overflow_error="client") as (address, _):
        request = json.dumps({"model": "nobody-knows", "messages": [{"role": "user", "content": "x " * 200}]}).encode()
        reply = await ask(address, "POST", CHAT, [JSON], request)
    assert (reply.status, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "maximum context length" in reply.json()["error"]["message"]
    assert not any(sign.isdigit() for sign in reply.json()["error"]["message"])


@pytest.mark.parametrize(
    ("wording", "wish", "reworded"),
    [("upstream", b"on", False), ("openai", b"on", True), ("openai", b"off", False), ("openai", b"shadow", False)],
)
async def test_an_overflow_that_stays_is_worded_as_openai_words_it_where_the_policy_says_so(
    tmp_path: Path, wording: str, wish: bytes, reworded: bool
) -> None:
    body = json.dumps({"error": {"message": "prompt is too long: 9000 tokens > 8192 maximum"}}).encode()
    refusal = answer(413, body, JSON, (b"X-Request-Id", b"req_1"))
    async with over(tmp_path, in_turn(refusal), overflow_error=wording) as (address, _):
        reply = await ask(address, "POST", CHAT, [JSON, (b"X-Compaction", wish)], long_request())
    assert reply.header(b"x-compaction") is not None
    if not reworded:
        assert (reply.status, reply.body, reply.header(b"x-request-id")) == (413, body, b"req_1")
        return
    assert reply.status == 400
    assert reply.json()["error"] == {
        "message": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
        " Please reduce the length of the messages.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }


@pytest.mark.parametrize(
    ("models", "status", "calls"),
    [
        ([{"match": "m", "context_window": 11_500}], 200, 2),
        ([{"match": "m", "context_window": 50_000}], 413, 1),
        ([], 413, 1),
    ],
    ids=["full", "far from full", "unknown"],
)
async def test_an_error_that_may_mean_anything_is_an_overflow_only_of_a_full_window(
    tmp_path: Path, models: list[dict[str, object]], status: int, calls: int
) -> None:
    policy = {"compaction_threshold": 0.99, "overflow_threshold": 1.0, "summarizer": {"model": "none"}}
    script = in_turn(answer(413, b""), OK)
    async with proxied(tmp_path, script, models=models, policies={"default": policy}) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], long_request())
    assert (reply.status, len(behind.calls)) == (status, calls)


async def test_an_error_that_may_mean_anything_is_judged_by_what_the_refusal_before_it_has_taught(
    tmp_path: Path,
) -> None:
    models = [{"match": "m", "context_window": LIMIT}]
    policy = {"compaction_threshold": 0.99, "overflow_threshold": 1.0, "summarizer": {"model": "none"}}
    script = in_turn(refused(LIMIT - 2_032, 3_000), answer(413, b""), OK)
    async with proxied(tmp_path, script, models=models, policies={"default": policy}) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], long_request(max_tokens=3_000))
    assert [sent(call)["max_tokens"] for call in behind.calls] == [3_000, 2_000, 3_000]
    assert (reply.status, reply.header(b"x-compaction-reason")) == (200, b"overflow_retry")


WINDOW = 4_000


def conversation(rounds: int) -> list[dict[str, str]]:
    said = [{"role": "user", "content": "Port the importer."}]
    for number in range(rounds):
        said.append({"role": "assistant", "content": prose(("model", number), 30)})
        said.append({"role": "user", "content": prose(("user", number), 20)})
    return said


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("limit", [3_300, 3_600, 3_999, 4_000, 5_000, 100_000])
async def test_a_limit_at_or_near_the_window_leaves_the_prompt_its_room(
    tmp_path: Path, limit: int, is_known: bool
) -> None:
    settings = {"policies": {"default": {"summarizer": {"model": "none"}}}}
    models = [{"match": "*", "context_window": WINDOW}] if is_known else []
    async with stage(tmp_path, ModelServer(window=WINDOW), models=models, **settings) as play:
        for session, rounds, least in ((0, 22, None), (1, 40, 1_000), (2, 120, 1_000)):
            messages = [{"role": "user", "content": f"Session {session}."}, *conversation(rounds)[1:]]
            body = json.dumps({"model": "unheard-of", "max_tokens": limit, "messages": messages}).encode()
            reply = await play.send(body)
            sent, told = json.loads(play.sent[-1].body), ours(reply)
            assert reply.status == 200, (rounds, reply.body)
            assert sent["max_tokens"] >= 512
            if least is None:
                assert sent["messages"] == messages, "it fits"
            else:
                assert int(told["tokens-sent"]) >= least


def full_at(window: int) -> Script:
    """An upstream that refuses prompt and output beyond its window, without a number."""
    words = {"error": {"message": "the request exceeds the available context size, try increasing it", "code": 400}}

    async def script(call: Call) -> None:
        request = json.loads(await call.read())
        prompt = sum(len(message["content"]) for message in request["messages"]) // 3
        fits = prompt + request["max_tokens"] <= window
        await call.send(OK if fits else answer(400, json.dumps(words).encode(), JSON))

    return script


@pytest.mark.parametrize("window", [None, 6_000], ids=["unknown window", "known window"])
@pytest.mark.parametrize("output", [5_000, 5_999, 6_000, 32_000])
async def test_a_refusal_without_a_number_lowers_an_output_that_is_larger_than_its_prompt(
    tmp_path: Path, window: int | None, output: int
) -> None:
    models = [] if window is None else [{"match": "*", "context_window": window}]
    messages = [{"role": "user", "content": prose(number, 150)} for number in range(6)]
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": output}).encode()
    async with proxied(tmp_path, full_at(6_000), models=models) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], body)
    assert reply.status == 200
    assert [sent(call)["messages"] for call in behind.calls] == [messages] * len(behind.calls)
    outputs = [sent(call)["max_tokens"] for call in behind.calls]
    assert len(outputs) <= 2
    assert len(set(outputs)) == len(outputs)
    assert outputs[-1] >= 512
