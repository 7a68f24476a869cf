"""Contents that fit no window: a pasted file, results that are larger than all that may be sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.conversation import Conversation
from policies.decision.budget import budget_of
from policies.decision.legal_cuts import legal_cuts
from policies.decision.oversize import least_tokens, oversized_messages
from tests.support.conversations import assistant, described, rounds, system, tool, user
from tests.support.model_server import ModelServer
from tests.support.scenarios import FIRST, RULES, Agent, Sent, prose
from tests.support.stages import body, outcome, stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scenarios import Message
    from tests.support.stages import Stage

pytestmark = pytest.mark.anyio

WINDOW = 49_152
KNOWN = {"models": [{"match": "*", "context_window": WINDOW}]}
# 300 kB, 65,000 tokens.
PASTE = prose("paste", 52_000)
BUDGET = budget_of(8_192, 6_000)


def pasted() -> Agent:
    agent = Agent(words=300)
    agent.says(FIRST)
    agent.works()
    agent.says(f"Find the fault in this:\n{PASTE}")
    return agent


async def played(play: Stage, agent: Agent, rounds: int = 4) -> list[bytes]:
    """The bytes of the paste in every request that was answered."""
    pastes = []
    for number in range(rounds + 1):
        reply = await play.send(body(agent.works() if number else agent.messages))
        assert reply.status == 200
        messages = Sent(play.sent[-1]).messages
        assert messages[-1] == agent.messages[-1] or number == 0
        pastes += [json.dumps(m).encode() for m in messages if "Find the fault in this" in str(m["content"])]
    return pastes


async def test_a_paste_that_fits_no_window_is_never_refused(tmp_path: Path) -> None:
    async with stage(tmp_path, ModelServer(window=WINDOW), **KNOWN) as play:
        pastes = await played(play, pasted())
        assert [received.status for received in play.sent] == [200] * 5
        assert len({*pastes}) == 1
        assert len(pastes) == 5
        assert 40_000 < len(pastes[0]) < 0.6 * len(PASTE)
        assert all(rule.encode() in play.sent[-1].body for rule in RULES)


async def test_where_the_window_is_learned_it_is_refused_once(tmp_path: Path) -> None:
    async with stage(tmp_path, ModelServer(window=WINDOW), models=[]) as play:
        await played(play, pasted())
        assert [received.status for received in play.sent].count(400) == 1


async def test_results_of_one_round_that_fit_together_in_no_window_share_what_there_is(tmp_path: Path) -> None:
    calls = [f"c{number}" for number in range(4)]
    messages: list[Message] = [
        *(system(), user(FIRST), assistant(None, *calls)),
        *(tool(call, prose(call, 16_000)) for call in calls),
    ]
    async with stage(tmp_path, ModelServer(window=WINDOW), **KNOWN) as play:
        reply = await play.send(body(messages))
        assert (reply.status, outcome(reply)) == (200, ("cooled", "too_large"))
        sent = Sent(play.sent[-1]).messages
        assert [m.get("tool_call_id") for m in sent[-4:]] == calls
        assert len({len(str(m["content"])) // 1_000 for m in sent[-4:]}) == 1
        assert [received.status for received in play.sent] == [200]


async def test_a_window_that_only_a_table_names_is_tried_first(tmp_path: Path) -> None:
    async with stage(tmp_path, ModelServer(window=400_000), models=[]) as play:
        agent = Agent()
        agent.says(f"Find the fault in this:\n{prose('long', 120_000)}")
        reply = await play.send(body(agent.messages))
        assert (reply.status, outcome(reply)[0]) == (200, "none")
        assert play.sent[-1].body == body(agent.messages)


def newest(view: Conversation) -> int:
    return max(legal_cuts(view), default=0)


@pytest.mark.parametrize(
    ("messages", "cut"),
    [
        ([user("a" * 40_000)], {0}),
        ([user("a" * 40_000), *rounds(1)], {0}),
        ([user("task"), assistant(None, "c"), tool("c", "a" * 40_000)], {2}),
        ([user("a" * 2_000), assistant(None, "c"), tool("c", "a" * 40_000)], {2}),
        ([system("a" * 40_000), user("task")], set()),
    ],
)
def test_what_is_cut_is_the_largest_and_users_last(messages: list[Message], cut: set[int]) -> None:
    view = Conversation(described(messages))
    assert oversized_messages(view, BUDGET.with_fixed(view.fixed_tokens), newest(view)).keys() == cut


@given(st.integers(9_000, 60_000), st.lists(st.integers(10, 1_500), min_size=1, max_size=12))
def test_what_was_cut_stays_as_it_is_while_little_is_added(paste: int, results: list[int]) -> None:
    """Its limit changes by steps only, and what must be sent fits beside a record."""
    limits = set()
    messages: list[Message] = [user("a" * 4 * paste)]
    for number, size in enumerate(results):
        messages += [assistant(None, f"c{number}"), tool(f"c{number}", "x" * 4 * size)]
        view = Conversation(described(messages))
        found = oversized_messages(view, BUDGET, newest(view))
        assert least_tokens(view, newest(view)) > BUDGET.usable
        kept = sum(
            min(found.get(i, m.tokens), m.tokens)
            for i, m in enumerate(view.messages)
            if i in (0, *range(len(messages) - 2, len(messages)))
        )
        assert kept + BUDGET.record <= BUDGET.usable
        limits.add(found[0])
    assert len(limits) <= 4
