"""Undo takes a compaction back: what is sent is what was sent before, in every dialect and on every replica."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.sessions.index import Session as StoredSession
from tests.support.engines import SESSIONS, config_of, processes
from tests.support.shaped_sessions import CLIENTS, Session, prose
from tests.support.stages import body, history, made, outcome, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from proxy.compaction.engine import Engine
    from proxy.compaction.plan_input import PlanInput
    from proxy.compaction.prompt import Prompt
    from tests.support.stages import Stage

pytestmark = pytest.mark.slow

CONFIG = config_of(economy=0)


async def undone(engine: Engine, case: PlanInput, prompt: Prompt) -> str | None:
    """Undo the record of the prompt that was sent last; return its digest."""
    assert prompt.record is not None
    sent = (case.chain.tag, prompt.record.digest)
    listed = StoredSession(case.chain.first_link.hex(), "", "m", 0.0, record=sent)
    record = await engine.sessions.undo(case.chain.session, listed)
    return record.digest if record else None


async def _plays(make: Callable[[], Session], steps: Sequence[tuple[int, bool]]) -> int:
    """Play a session, and take each forced compaction back at another replica; return how many there were."""
    session, taken_back = make(), 0
    session.opens("Move the totals to cents.")
    async with processes(CONFIG, io.BytesIO()) as (one, two):
        gone: set[str] = set()
        for number, (size, is_forced) in enumerate(steps):
            session.works(prose(f"work {number}", size), "Bash", {"command": f"make part{number}"})
            await one.prompt(session)
            before = await one.prompt(session)
            assert before.record is None or before.record.digest not in gone
            if not is_forced:
                continue
            case = await one.case(session, mode="force")
            forced = await one.engine.prompt_builder.build_first(case)
            if forced.record is None or (before.record and forced.record.digest == before.record.digest):
                continue
            assert await undone(two.engine, case, forced) == forced.record.digest
            gone.add(forced.record.digest)
            for process in (one, two):
                assert (await process.prompt(session)).body == before.body
            left = await undone(one.engine, case, forced) if before.record is None else None
            assert left is None, "there is no other"
            taken_back += 1
    return taken_back


@pytest.mark.parametrize("make", CLIENTS, ids=["messages", "responses", "chat"])
@SESSIONS
@given(steps=st.lists(st.tuples(st.sampled_from([60, 300, 900]), st.booleans()), min_size=6, max_size=25))
def test_what_is_sent_is_what_was_sent_before(make: Callable[[], Session], steps: list[tuple[int, bool]]) -> None:
    asyncio.run(_plays(make, steps))


@pytest.mark.parametrize("make", CLIENTS, ids=["messages", "responses", "chat"])
def test_many_compactions_of_a_session_are_taken_back(make: Callable[[], Session]) -> None:
    assert asyncio.run(_plays(make, [(600, number % 3 == 2) for number in range(24)])) > 3


async def _undone_in(play: Stage) -> str:
    """Undo the newest record of the only session, and return its digest."""
    await play.settled()
    opened, sessions = play._app._opened, play.engine.sessions
    assert opened is not None
    caller = opened.active().tenants.operator_of("default")
    assert caller is not None
    (listed,) = await sessions.of(caller)
    record = await sessions.undo(bytes.fromhex(listed.id), listed)
    assert record is not None
    return record.digest


@pytest.mark.anyio
async def test_a_record_that_was_made_ahead_is_not_made_again_in_the_background(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        await play.send(body(history(0.72)))
        await play.settled()
        assert made(play) == [("background", "single")]
        assert outcome(await play.send(body(history(0.83))))[0] == "reused"
        digest = await _undone_in(play)
        assert outcome(await play.send(body(history(0.75))))[0] == "none"
        await play.settled()
        reply = await play.send(body(history(0.84)))
        assert outcome(reply)[0] in ("reused", "applied")
        await play.settled()
        digests = {str(line["checkpoint"]) for line in play.logged("compaction") if line.get("checkpoint")}
        assert len(digests) > 1
        assert dict(reply.headers)[b"x-compaction-checkpoint"].decode() not in digest
        assert all(line.get("warning") is None for line in play.logged("request"))
