"""What is prepared after an answer: summaries in the background, short forms of large messages, and what they cost."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import pytest

from proxy.cli.demo.prompt import Function, PromptCall
from tests.support.model_server import Fault, ModelServer, ReceivedRequest
from tests.support.model_server.answers import ReplyUsage, completion
from tests.support.model_server.replies import Reply
from tests.support.scenarios import LOUD, MODEL, RULES, WINDOW, Agent, Message, loud, most_calls, one_user, user
from tests.support.stages import B, Stage, body, history, made, ours, outcome, stage, until

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("R1 3 trace", "R3 4.1 afterTool", "R3 8.3 summary")
async def test_a_summary_is_made_in_the_background_and_used_when_it_is_needed(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        assert outcome(await play.send(body(history(0.72)))) == ("none", "below_threshold")
        await play.settled()
        assert made(play) == [("background", "single")]
        assert outcome(await play.send(body(history(0.75)))) == ("none", "below_threshold")
        reply = await play.send(body(history(0.83)))
        assert outcome(reply) == ("reused", "below_threshold")
        assert int(ours(reply)["tokens-sent"]) < 0.5 * B
        assert play.model.summary_calls == 1


@pytest.mark.requirement("R3 4.1 afterTool")
async def test_a_session_that_grows_by_small_steps_gets_its_summaries_in_the_background(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        outcomes = []
        for request in one_user(Agent(words=60), rounds=150):
            reply = await play.send(body(request))
            await play.settled()
            outcomes.append(outcome(reply)[0])
        received = int(ours(reply)["tokens-received"])
        assert received > 1.5 * WINDOW
        assert set(outcomes) == {"none", "reused"}
        assert 1 < play.model.summary_calls <= most_calls(received, B)
        arrays = [json.loads(sent.body)["messages"] for sent in play.sent]
        breaks = sum(later[: len(earlier)] != earlier for earlier, later in pairwise(arrays))
        assert breaks <= play.model.summary_calls


@pytest.mark.requirement("R3 4.1 afterTool")
async def test_what_the_upstream_counts_decides_and_not_our_estimate(tmp_path: Path) -> None:
    model = ModelServer(window=WINDOW, token_ratio=1.3)
    async with stage(tmp_path, model) as play:
        assert outcome(await play.send(body(history(0.56))))[0] == "none"
        await play.settled()
        assert outcome(await play.send(body(history(0.65))))[0] == "reused"
        assert play.model.summary_calls == 1


async def test_a_stream_tells_its_usage_too(tmp_path: Path) -> None:
    model = ModelServer(window=WINDOW, token_ratio=1.3)
    async with stage(tmp_path, model) as play:
        await play.send(body(history(0.56), stream=True, stream_options={"include_usage": True}))
        await play.settled()
        assert made(play) == [("background", "single")]


@pytest.mark.parametrize(
    ("share", "policy"),
    [(0.65, {}), (0.75, {"mode": "off"}), (0.75, {"mode": "shadow"}), (0.75, {"summarizer": {"model": "none"}})],
)
async def test_nothing_is_made_ahead_below_the_soft_threshold_or_where_it_is_not_wanted(
    tmp_path: Path, share: float, policy: dict[str, object]
) -> None:
    async with stage(tmp_path, policies={"default": policy}) as play:
        await play.send(body(history(share)))
    assert (made(play), play.model.summary_calls) == ([], 0)


@pytest.mark.requirement("R3 3.2 running")
async def test_a_request_waits_a_moment_for_a_summary_under_way_and_then_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.compaction.job.Job.JOIN_WAIT", 0.05)
    model = ModelServer(window=WINDOW, summaries="slow")
    async with stage(tmp_path, model) as play:
        await play.send(body(history(0.75)))
        await until(lambda: model.summary_calls == 1)
        assert outcome(await play.send(body(history(0.83)))) == ("pending", "pending")
        waiting = asyncio.create_task(play.send(body(history(0.86))))
        await asyncio.sleep(0)
        model.let_summaries_go.set()
        await waiting
        await play.settled()
        assert outcome(await play.send(body(history(0.86)))) == ("reused", "below_threshold")
        assert model.summary_calls == 1


async def test_a_background_summary_outlives_the_client_that_caused_it(tmp_path: Path) -> None:
    model = ModelServer(window=WINDOW, summaries="slow")
    async with stage(tmp_path, model) as play:
        await play.send(body(history(0.75)), (b"connection", b"close"))
        await until(lambda: model.summary_calls == 1)
        model.let_summaries_go.set()
        await play.settled()
        assert made(play) == [("background", "single")]


async def test_a_replica_that_dies_leaves_the_summary_to_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.app._DRAIN_SECONDS", 0)
    shared: dict[str, object] = {"store": {"url": f"sqlite:///{tmp_path}/shared.db", "secret": "s"}}
    model = ModelServer(window=WINDOW, summaries="slow")
    async with stage(tmp_path, model, **shared) as play:
        await play.send(body(history(0.75)))
        await until(lambda: model.summary_calls == 1)
        model.summaries = "down"
    model.summaries = "faithful"
    async with stage(tmp_path, model, **shared) as play:
        assert outcome(await play.send(body(history(0.92))))[0] == "applied"


def excerpts(play: Stage) -> list[ReceivedRequest]:
    return [call for call in play.model.received if b"You shorten one large message" in call.body]


@pytest.mark.requirement("R4 3.2 cool")
async def test_large_results_are_replaced_in_batches_that_stay_as_they_are(tmp_path: Path) -> None:
    policies: dict[str, object] = {"default": {**LOUD, "soft_threshold": 1, "summarizer": {"model": "none"}}}
    async with stage(tmp_path, policies=policies) as play:
        for small in range(1, 9):
            reply = await play.send(body(loud(4, small=small)))
        assert outcome(reply) == ("cooled", "below_threshold")
        first, *_, last = [json.loads(sent.body)["messages"] for sent in play.sent[1:]]
        assert last[: len(first)] == first
        original = loud(4, small=8)
        changed = [i for i, (a, b) in enumerate(zip(original, last, strict=True)) if a != b]
        assert changed
        for i in changed:
            assert {**original[i], "content": last[i]["content"]} == last[i]
            assert last[i]["content"].startswith("[output of ")
            assert len(last[i]["content"]) < 1_200
        assert int(ours(reply)["tokens-sent"]) < int(ours(reply)["tokens-received"])


@pytest.mark.requirement("R4 2 large")
async def test_a_large_result_is_summarized_before_its_time_comes_and_the_summary_is_used_then(tmp_path: Path) -> None:
    policy = {**LOUD, "large_messages": {"threshold": 400, "hot_rounds": 10}, "soft_threshold": 1}
    async with stage(tmp_path, policies={"default": policy}) as play:
        assert outcome(await play.send(body(loud(9, tokens=450)))) == ("none", "below_threshold")
        await play.settled()
        assert excerpts(play)
        assert outcome(await play.send(body(loud(9, tokens=450, small=7)))) == ("cooled", "below_threshold")
        texts = [message["content"] for message in json.loads(play.sent[-1].body)["messages"]]
        assert sum("A long message of" in str(text) for text in texts) >= 1


@pytest.mark.requirement("R4 3.2 B")
async def test_a_short_form_survives_a_restart_and_a_second_replica_sends_the_same(tmp_path: Path) -> None:
    policies: dict[str, object] = {"default": {**LOUD, "soft_threshold": 1, "summarizer": {"model": "none"}}}
    shared: dict[str, object] = {
        "store": {"url": f"sqlite:///{tmp_path}/shared.db", "secret": "s"},
        "policies": policies,
    }
    sent = []
    for _ in range(2):
        async with stage(tmp_path, **shared) as play:
            assert outcome(await play.send(body(loud(4, small=2))))[0] == "cooled"
            sent.append(play.sent[-1].body)
    assert sent[0] == sent[1]


async def test_after_two_compactions_in_vain_no_third_summary_is_bought(tmp_path: Path) -> None:
    """The provider goes on counting too much, whatever is sent."""

    def dear(_: int, request: bytes) -> Fault | None:
        is_summary = b"You write the factual record" in request or b"Stop the work here" in request
        if is_summary or b"conversation_record>" not in request:
            return None
        return Fault(answer=completion(Reply("ok"), MODEL, 0, ReplyUsage(int(0.95 * WINDOW), 5)))

    async with stage(tmp_path, ModelServer(window=WINDOW, script=dear)) as play:
        agent, calls = Agent(words=90), []
        for request in one_user(agent, rounds=260):
            await play.send(body(request))
            calls.append(play.model.summary_calls)
        received = int(ours(await play.send(body(agent.works())))["tokens-received"])
        assert received > 4 * WINDOW
        assert calls[-1] <= most_calls(received, B)
        assert any(line["reason"] == "ineffective" for line in play.logged("request"))


@pytest.mark.requirement("R4 1 separator")
async def test_a_separator_of_the_user_starts_afresh(tmp_path: Path) -> None:
    async with stage(tmp_path, policies={"default": {"separator": "/new"}}) as play:
        await play.send(body(history(0.85)))
        before, after = history(0.85), history(0.2)[1:]
        reply = await play.send(body([*before, user("/new"), *after]))
        assert outcome(reply) == ("applied", "separator")
        messages = json.loads(play.sent[-1].body)["messages"]
        assert messages == [before[0], user("/new"), *after]
        assert int(ours(reply)["tokens-received"]) > int(ours(reply)["tokens-sent"])


@pytest.mark.requirement("R4 1 separator")
@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "/new"},
        {"role": "user", "content": "/new "},
        {"role": "user", "content": "say /new"},
        {"role": "user", "content": "/new" + " x" * 400},
    ],
)
async def test_19_only_the_exact_words_of_the_user_separate(tmp_path: Path, message: Message) -> None:
    async with stage(tmp_path, policies={"default": {"separator": "/new"}}) as play:
        request = body([*history(0.1), message, user("go on")])
        assert outcome(await play.send(request)) == ("none", "below_floor")
        assert play.sent[-1].body == request


@pytest.mark.requirement("R4 1 separator")
async def test_what_stands_behind_a_separator_is_compacted_by_itself(tmp_path: Path) -> None:
    async with stage(tmp_path, policies={"default": {"separator": "/new"}}) as play:
        tail = history(0.85)[1:]
        request = body([*history(0.5), user("/new"), *tail])
        assert outcome(await play.send(request))[0] == "applied"
        assert outcome(await play.send(request)) == ("reused", "below_threshold")
        assert play.model.defects == 0


async def test_a_prompt_in_line_with_the_session_is_asked_of_the_same_model_and_tools(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    async with stage(tmp_path) as play:
        await play.send(body(history(0.65), tools=tools, stream=True))
        assert outcome(await play.send(body(history(0.85), tools=tools, stream=True)))[0] == "applied"
        (asked,) = [call for call in play.model.received if call.is_summary]
        question = json.loads(asked.body)
        assert (question["model"], question["tools"], question["tool_choice"]) == (MODEL, tools, "none")
        assert "stream" not in question
        assert question["messages"][:-1] == history(0.85)[: len(question["messages"]) - 1]
        assert len(question["messages"]) > 10


async def test_where_a_question_in_line_with_the_session_is_answered_badly_the_usual_one_is_asked(
    tmp_path: Path,
) -> None:
    def calls_tools(_: int, request: bytes) -> Fault | None:
        if b"Stop the work here" not in request:
            return None
        return Fault(answer=completion(Reply(call=PromptCall("c", Function("bash", "{}"))), MODEL, 0, ReplyUsage(9, 9)))

    async with stage(tmp_path, ModelServer(window=WINDOW, script=calls_tools)) as play:
        assert outcome(await play.send(body(history(0.85))))[0] == "applied"
        assert play.model.summary_calls == 2


@pytest.mark.requirement("R2 Cost", "R2 Switch 3")
async def test_after_five_generations_the_summary_is_made_anew_from_the_whole_history(tmp_path: Path) -> None:
    model = ModelServer(window=WINDOW, windows={"large": 128_000})
    models = [{"match": "large", "context_window": 128_000}, {"match": MODEL, "context_window": WINDOW}]
    policies: dict[str, object] = {"default": {"summarizer": {"model": "large"}}}
    async with stage(tmp_path, model, models=models, policies=policies) as play:
        for request in one_user(Agent(words=60), rounds=320):
            reply = await play.send(body(request))
            await play.settled()
        generations = [line["generation"] for line in play.logged("compaction")]
        assert generations[:6] == [1, 2, 3, 4, 5, 1]
        asked = [call.body for call in model.received if call.is_summary]
        assert [b"<previous_summary>" in call for call in asked[:7]] == [False, True, True, True, True, False, True]
        assert [b"\\n[1] assistant" in call for call in asked[:6]] == [True, False, False, False, False, True]
        assert model.summary_calls <= most_calls(int(ours(reply)["tokens-received"]), B)
        assert RULES[0] in play.sent[-1].body.decode()
