"""Summaries that take their time: joined while they are made, sent once they are there, and never paid for twice."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from proxy.compaction import summary_writer
from proxy.sessions.stores.memory import MemoryStore
from tests.support.pace import SkippingLoop, playing
from tests.support.scenarios import FIRST, WINDOW, Agent, one_user, user
from tests.support.stages import history

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proxy.compaction.prompt import Prompt
    from tests.support.pace import Play
    from tests.support.scenarios import Message

pytestmark = pytest.mark.anyio

SECONDS = 6.0
# Seconds that a request may wait for what is made elsewhere, and what it takes to look.
JOIN_WAIT = 2.0
LOOK = 1.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": SkippingLoop}


def outcome(prompt: Prompt) -> tuple[str, str]:
    return prompt.outcome, prompt.reason


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10 * SECONDS):
        while not holds():  # noqa: ASYNC110 - time skips
            await asyncio.sleep(0.01)


async def begun(play: Play) -> None:
    """Wait until a summarizer was asked."""
    await until(lambda: bool(play.summaries.begun))


async def leaves(play: Play, messages: list[Message], after: float) -> None:
    """A client that gives up, or presses Escape, after so many seconds."""
    asking = asyncio.create_task(play.prompt(messages))
    await asyncio.sleep(after)
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking


# Words of a round, and the rounds that make six summaries of them.
PACES = {"small rounds": (150, 120), "larger ones": (300, 70), "seven fill the window": (450, 50)}


@pytest.mark.parametrize(("words", "rounds"), PACES.values(), ids=PACES)
async def test_every_summary_is_sent_and_no_request_waits_for_more_than_one(
    tmp_path: Path, words: int, rounds: int
) -> None:
    """Rounds of 0.3 s, summaries of 6 s; the last one made ahead is still to be sent when the session ends."""
    async with playing(tmp_path, seconds=SECONDS) as play:
        for request in one_user(Agent(words=words), rounds=rounds):
            await play.round(request)
        await play.settle()
        assert len(play.paid) >= 6
        assert set(play.paid[:-1]) <= play.sent
        assert max(play.stalls) <= SECONDS + LOOK


async def test_a_request_that_needs_a_summary_waits_for_the_one_made_ahead_wherever_that_is_cut(tmp_path: Path) -> None:
    async with playing(tmp_path, seconds=SECONDS) as play:
        await play.round(history(0.75))
        await begun(play)
        prompt = await play.prompt(history(0.95))
        assert outcome(prompt) == ("applied", "tool_execution")
        assert prompt.record is not None
        assert prompt.record.making.trigger == "background"
        assert JOIN_WAIT < play.stalls[-1] < SECONDS + LOOK
        assert len(play.summaries.begun) == 1


async def test_a_summary_that_takes_longer_than_a_request_may_wait_gives_way_to_a_record_without_a_model(
    tmp_path: Path,
) -> None:
    policies = {"default": {"summarizer": {"timeout": "10s"}}}
    async with playing(tmp_path, seconds=60.0, policies=policies) as play:
        await play.round(history(0.75))
        await begun(play)
        prompt = await play.prompt(history(0.95))
        assert prompt.record is not None
        assert prompt.record.making.algorithm == "deterministic"
        assert play.stalls[-1] < 10.0 + LOOK
        assert len(play.summaries.begun) == 1


@pytest.mark.parametrize(
    ("seconds", "fails", "is_aligned"),
    [(1.0, lambda number: number == 0, True), (400.0, lambda _: False, False)],
    ids=["unavailable once", "too slow"],
)
async def test_a_question_behind_the_prompt_that_is_too_slow_is_followed_by_a_plain_one(
    tmp_path: Path, seconds: float, fails: Callable[[int], bool], *, is_aligned: bool
) -> None:
    async with playing(tmp_path, seconds=seconds, fails=fails) as play:
        for request in one_user(Agent(words=110), rounds=70):
            await play.round(request, seconds=8.0)
        await play.settle()
        assert ["Stop the work here" in asked for asked in play.summaries.begun][:2] == [True, is_aligned]


async def test_three_tries_of_an_impatient_client_cost_one_summary(tmp_path: Path) -> None:
    async with playing(tmp_path, seconds=SECONDS) as play:
        for _ in range(3):
            await leaves(play, history(0.85), after=1.5)
        await until(lambda: bool(play.paid))
        assert (await play.prompt(history(0.85))).outcome == "reused"
        assert play.stalls[-1] < LOOK
        assert len(play.summaries.begun) == 1


async def test_who_comes_back_with_more_joins_what_was_left(tmp_path: Path) -> None:
    async with playing(tmp_path, seconds=SECONDS) as play:
        await leaves(play, history(0.85), after=3.0)
        assert (await play.prompt([*history(0.95), user("Go on.")])).outcome == "applied"
        assert play.stalls[-1] < SECONDS - 3.0 + LOOK
        assert len(play.summaries.begun) == 1


async def test_a_session_is_listed_also_where_its_only_client_has_left(tmp_path: Path) -> None:
    async with playing(tmp_path, seconds=SECONDS) as play:
        await leaves(play, history(0.85), after=1.0)
        await play.engine.background.drain(10.0)
        (listed,) = await play.engine.sessions.of(play.caller)
        assert listed.covered > 0


async def test_of_many_who_leave_no_more_go_on_than_there_is_room_for(tmp_path: Path) -> None:
    async with playing(tmp_path, seconds=SECONDS) as play:
        sessions = [[*history(0.85), user(f"Session {number}.")] for number in range(20)]
        sessions = [[messages[0], messages[-1], *messages[1:-1]] for messages in sessions]
        await asyncio.gather(*(leaves(play, messages, after=1.0) for messages in sessions))
        assert play.engine.background.start("enroll", asyncio.sleep(0))  # there is room for what is short
        await play.engine.background.drain(10.0)
        assert (len(play.summaries.begun), len(play.paid)) == (20, 8)


@pytest.mark.parametrize(("left", "paid"), [(10.0, 1), (2.0, 0)])
async def test_the_end_of_the_process_leaves_what_was_begun_so_many_seconds(
    tmp_path: Path, left: float, paid: int
) -> None:
    async with playing(tmp_path, seconds=SECONDS) as play:
        await leaves(play, history(0.85), after=1.0)
        await play.engine.background.drain(left)
        assert len(play.paid) == paid
        await leaves(play, history(0.95), after=0.0)
        await asyncio.sleep(SECONDS)
        assert len(play.paid) == paid


@pytest.mark.parametrize(
    ("share", "told"), [(0.85, ("failed-open", "summarizer_transient")), (0.95, ("applied", "tool_execution"))]
)
async def test_who_waits_for_a_summary_that_fails_goes_on_at_once(
    tmp_path: Path, share: float, told: tuple[str, str]
) -> None:
    async with playing(tmp_path, seconds=SECONDS, fails=lambda _: True) as play:
        await play.round(history(0.75))
        await begun(play)
        await asyncio.sleep(SECONDS - 0.5)
        assert outcome(await play.prompt(history(share))) == told
        assert play.stalls[-1] < 0.5 + LOOK
        assert len(play.summaries.begun) == 1


async def test_what_another_replica_gives_up_is_taken_over_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.compaction.job.Job.JOIN_WAIT", 60.0)
    store = MemoryStore()
    async with (
        playing(tmp_path, seconds=SECONDS, fails=lambda _: True, store=store) as one,
        playing(tmp_path, seconds=SECONDS, store=store) as other,
    ):
        giving_up = asyncio.create_task(one.prompt(history(0.85)))
        await begun(one)
        prompt = await other.prompt(history(0.88))
        assert (prompt.outcome, (await giving_up).outcome) == ("applied", "failed-open")
        assert other.stalls[-1] < 2 * SECONDS + LOOK


async def test_forks_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with playing(tmp_path, seconds=SECONDS) as play:
        trunk = Agent()
        *_, _last = one_user(trunk, rounds=12)
        forks = [trunk.fork("left"), trunk.fork("right")]
        for fork in forks:
            for _ in range(18):
                fork.works()
        prompts = await asyncio.gather(*(play.prompt(fork.messages) for fork in forks))
        assert {prompt.outcome for prompt in prompts} == {"applied"}
        assert max(play.stalls) < SECONDS + LOOK
        assert len(play.summaries.begun) == 2


async def test_who_outgrew_the_summary_it_waited_for_goes_on_from_it(tmp_path: Path) -> None:
    async with playing(tmp_path, seconds=SECONDS) as play:
        small = history(0.85)
        first = asyncio.create_task(play.prompt(small))
        await begun(play)
        agent = Agent(messages=list(small))
        for _ in range(40):
            agent.works()
        prompt = await play.prompt(agent.messages)
        assert prompt.outcome == "applied"
        assert prompt.tokens < 0.8 * WINDOW
        parent = (await first).record
        assert parent is not None
        assert prompt.record is not None
        assert prompt.record.parent == parent.digest  # nothing is paid for twice


async def fork_that_joins(one: Play, other: Play) -> tuple[asyncio.Task[Prompt], list[Message]]:
    """The request of a branch that waits, on one replica, for what another branch will take over from the other."""
    trunk = Agent()
    trunk.says(FIRST)
    for _ in range(28):
        trunk.works()
    alpha, beta = trunk.fork("alpha"), trunk.fork("beta")
    for agent in (alpha, beta):
        for _ in range(7):
            agent.works()
    short = list(alpha.messages)
    for _ in range(7):
        alpha.works()
    ahead = asyncio.create_task(other.prompt(alpha.messages))
    await begun(other)
    joined = asyncio.create_task(one.prompt(short))
    await asyncio.sleep(0.2)
    waiting = asyncio.create_task(one.prompt(beta.messages))
    await asyncio.sleep(0.1)
    joined.cancel()
    await ahead
    return waiting, beta.messages


async def test_a_fork_that_waited_for_another_branchs_record_gets_one_of_its_own(tmp_path: Path) -> None:
    store = MemoryStore()
    async with (
        playing(tmp_path, seconds=0.5, store=store) as one,
        playing(tmp_path, seconds=0.5, store=store) as other,
    ):
        waiting, _ = await fork_that_joins(one, other)
        prompt = await waiting
        assert prompt.outcome == "applied"
        assert prompt.record is not None
        assert b"src/alpha/" not in prompt.body
        assert len(one.summaries.begun) == 1


async def test_what_a_fork_that_left_had_joined_is_kept_for_its_own_branch_only(tmp_path: Path) -> None:
    store = MemoryStore()
    async with (
        playing(tmp_path, seconds=0.5, store=store) as one,
        playing(tmp_path, seconds=0.5, store=store) as other,
    ):
        trunk = Agent()
        case, _ = await one._next_prompt(trunk.says(FIRST), "on")
        await one.engine.sessions.add(
            case.caller, case.chain, case.label, case.request.settings.model, None
        )  # listed already, so that records are kept at once
        waiting, messages = await fork_that_joins(one, other)
        waiting.cancel()
        await one.engine.background.drain(10.0)
        prompt = await one.prompt(messages)
        assert b"src/alpha/" not in prompt.body


def large(number: int) -> list[Message]:
    """A history of 133,000 tokens that begins with a number."""
    agent = Agent()
    agent.says(f"This is ticket {number}. Find the fault and never touch vendor/.")
    for _ in range(690):
        agent.works()
    return agent.messages


async def test_a_cold_history_takes_two_calls_one_after_the_other_and_another_number_pays_for_one_part(
    tmp_path: Path,
) -> None:
    """The parts side by side, then what they are merged by."""
    models = [{"match": "*", "context_window": 32_768}]
    async with playing(tmp_path, seconds=SECONDS, models=models) as play:
        assert (await play.prompt(large(22))).outcome == "applied"
        assert len(play.summaries.begun) == 6
        assert play.stalls[-1] < 2 * SECONDS + LOOK
        prompt = await play.prompt(large(23))
        assert (prompt.outcome, len(play.summaries.begun)) == ("applied", 6 + 2)
        assert prompt.record is not None
        assert "ticket 22" not in prompt.record.text


# Window, words of a round's result, rounds, and the least that is asked for.
LOUD = {
    "now and then, 60k": (60_000, (200, 400, 3_000), 80, 8),
    "nothing else, 60k": (60_000, (100, 2_500), 90, 20),
    "rare, 32k": (32_768, (100, 200, 200, 2_200), 90, 8),
    "rare, 128k": (128_000, (300, 300, 300, 6_000), 120, 20),
    "far too large, 8k": (8_192, (100, 100, 2_000), 60, 0),
}


@pytest.mark.parametrize(("window", "words", "rounds", "least"), LOUD.values(), ids=LOUD)
async def test_every_large_result_that_is_summarized_is_shown_so_but_where_the_session_ends(
    tmp_path: Path, window: int, words: tuple[int, ...], rounds: int, least: int
) -> None:
    chance, shown = random.Random(1), set[int]()
    models = [{"match": "*", "context_window": window}]
    late: dict[str, object] = {"default": {"economy": 0}}
    async with playing(tmp_path, seconds=0.5, models=models, policies=late) as play:
        agent = Agent()
        agent.says(FIRST)
        for _ in range(rounds):
            agent.words = chance.choice(words)
            prompt = await play.round(agent.works(), seconds=2.0)
            replaced = prompt.copy.replaced if prompt.copy else {}
            shown |= {index for index, text in replaced.items() if b"shortened by the gateway to a summary]" in text}
        await play.settle()
    asked = [prompt for prompt in play.summaries.begun if prompt.endswith("Write the summary now.")]
    assert len(asked) >= least
    assert len(asked) - len(shown) <= 4  # one batch, and one that the next cut took


async def test_a_large_result_is_summarized_once_where_rounds_are_quicker_than_that(tmp_path: Path) -> None:
    async with playing(tmp_path, seconds=SECONDS, models=[{"match": "*", "context_window": 60_000}]) as play:
        agent = Agent(words=2_500)
        agent.says(FIRST)
        for _ in range(6):
            agent.works()
        case, _ = await play._next_prompt(agent.messages, "on")
        large = [index for index, message in enumerate(case.conversation.body) if message.role == "tool"][:3]
        assert case.summarizer is not None
        preparing = partial(play.engine.prefetch._excerpt_writer.prepare, case, case.summarizer, large)
        await asyncio.gather(preparing(), preparing())
    assert len(play.summaries.begun) == len(set(play.summaries.begun)) == 3


async def test_nothing_is_rendered_for_a_summarizer_that_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = 0
    render = summary_writer.render

    def counting(*given: object) -> object:
        nonlocal rendered
        rendered += 1
        return render(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(summary_writer, "render", counting)
    async with playing(tmp_path, fails=lambda _: True) as play:
        for _ in range(5):
            prompt = await play.prompt(history(0.85))
        assert outcome(prompt) == ("failed-open", "summarizer_cooling_down")
        assert (await play.prompt(history(0.95))).outcome == "applied"
    assert (rendered, len(play.summaries.begun)) == (1, 1)
