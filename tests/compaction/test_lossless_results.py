"""Calls are made again in any order: what is sent of their results, in every dialect and at two replicas."""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.prompt_view import Step
from tests.support.engines import SESSIONS, config_of, items_of, processes
from tests.support.shaped_sessions import CLIENTS, ClaudeCode, Session, prose
from tests.support.worlds import DEFECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.compaction.prompt import Prompt

pytestmark = pytest.mark.slow

LINE = "byte for byte; the gateway left it out here"
DIALECTS = pytest.mark.parametrize("make", CLIENTS, ids=["messages", "responses", "chat"])
PATH = {"file_path": "/repo/src/parser.py"}
FILE = prose("a file", 300)
STATUS = prose("a status", 200)
ORDER = json.dumps({"items": [{"sku": f"part {number}", "price": 1.0} for number in range(40)]}, indent=4)
LOG = "".join(f"\x1b[32mstep {number}\x1b[0m 1 %\rstep {number} of the long build 100 %\n" for number in range(40))
CALLS = {
    "read": (FILE, "Read", PATH),
    "status": (STATUS, "Bash", {"command": "git status"}),
    "order": (ORDER, "get_order", {"id": 7}),
    "build": (LOG, "Bash", {"command": "make all"}),
    "edit": ("The file has been updated.", "Edit", {**PATH, "old_string": "a", "new_string": "b"}),
}


def texts_of(items: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Results by the id of their call, whatever the dialect."""
    parts = [part for item in items for part in (item["content"] if isinstance(item.get("content"), list) else [item])]
    found = {}
    for part in parts:
        if name := part.get("tool_use_id") or part.get("call_id") or part.get("tool_call_id"):
            text = part.get("output") if "output" in part else part.get("content")
            found[str(name)] = text if isinstance(text, str) or text is None else "".join(one["text"] for one in text)
    return {name: text for name, text in found.items() if text is not None}


def as_came(session: Session, prompt: Prompt) -> list[str]:
    """Return what of the results is neither as it came nor in a form that says as much; empty if all is there."""
    came, sent = texts_of(session.items), texts_of(items_of(session, prompt.body))
    ids = [*sent]
    lost = []
    for at, name in enumerate(ids):
        text, whole = sent[name], came[name]
        if text == whole or "by the gateway" in text:
            continue
        if LINE in text:
            # An equal result stands whole before it, in whatever form.
            if not any(came[other] == whole and LINE not in sent[other] for other in ids[:at]):
                lost.append(name)
        elif whole == ORDER:
            lost += [] if json.loads(text) == json.loads(whole) else [name]
        elif whole != LOG or text != "".join(f"step {n} of the long build 100 %\n" for n in range(40)):
            lost.append(name)
    return lost


def state_of(prompt: Prompt) -> tuple[object, ...]:
    """What bytes may depend on beside the messages before them: the cut and the batches."""
    steps = prompt.view.steps if prompt.view is not None else {}
    return prompt.record and prompt.record.digest, frozenset(i for i, each in steps.items() if Step.SHORT_FORM in each)


async def play(make: Callable[[], Session], work: Sequence[str], **policy: object) -> int:
    """Play a session at two replicas; return how many results were shortened in the last prompt."""
    session, faults = make(), io.BytesIO()
    session.opens("Move the totals to cents.")
    before: tuple[tuple[object, ...], list[dict[str, Any]]] | None = None
    shortened = 0
    async with processes(config_of(**policy), faults) as (one, two):
        for number, what in enumerate(work):
            filler = prose(f"work {number}", 400), "Bash", {"command": f"make part{number}"}
            session.works(*CALLS.get(what, filler))
            prompt = await one.prompt(session)
            assert (await two.prompt(session)).body == prompt.body
            assert DEFECTS[session.dialect.name](json.loads(prompt.body)) == []
            assert as_came(session, prompt) == []
            if prompt.copy is None:
                assert prompt.body == session.body()
            state, sent = state_of(prompt), items_of(session, prompt.body)
            if before is not None and before[0] == state:
                assert sent[: len(before[1])] == before[1]
            before = state, sent
            shortened = len(prompt.view.shortened) if prompt.view is not None else 0
    assert b"lossless_failed" not in faults.getvalue()
    return shortened


WORK = st.lists(st.sampled_from([*CALLS, "other", "other"]), min_size=10, max_size=36)


@DIALECTS
@SESSIONS
@given(work=WORK, from_start=st.booleans())
def test_whatever_is_asked_again_nothing_is_lost_and_no_byte_changes(
    make: Callable[[], Session], work: list[str], *, from_start: bool
) -> None:
    asyncio.run(play(make, work, shorten={"from_start": from_start}))


@DIALECTS
def test_below_the_floor_requests_go_out_as_they_came_unless_that_is_asked_for(make: Callable[[], Session]) -> None:
    work = ["status", "order", "status", "build"]
    assert asyncio.run(play(make, work)) == 0
    assert asyncio.run(play(make, work, shorten={"from_start": True})) == 3


@DIALECTS
def test_past_the_floor_and_behind_a_record_results_are_shortened(make: Callable[[], Session]) -> None:
    grown = ["other"] * 21
    assert asyncio.run(play(make, [*grown, "status", "status", "order"], economy=0)) == 2
    covered = ["other"] * 60
    assert asyncio.run(play(make, [*covered, "status", "status", "status", "status", "order"])) == 3


@DIALECTS
@pytest.mark.parametrize("key", ["repeats", "json", "terminal"])
def test_each_form_can_be_switched_off(make: Callable[[], Session], key: str) -> None:
    work = ["status", "status", "order", "build"]
    assert asyncio.run(play(make, work, shorten={"from_start": True, key: False})) == 2


def test_a_result_that_is_asked_for_once_more_comes_whole() -> None:
    async def sent() -> dict[str, str]:
        session = ClaudeCode()
        session.opens("Move the totals to cents.")
        for _ in range(5):
            session.works(*CALLS["status"])
        async with processes(config_of(shorten={"from_start": True}), io.BytesIO(), 1) as (process,):
            return texts_of(items_of(session, (await process.prompt(session)).body))

    assert [text == STATUS for text in asyncio.run(sent()).values()] == [True, False, True, False, True]


def test_a_pinned_result_stays_as_it_came() -> None:
    session = ClaudeCode()
    session.opens("Move the totals to cents.")
    for what in ("order", "status", "order", "status"):
        session.works(*CALLS[what])

    async def sent(*pins: str) -> list[str]:
        async with processes(config_of(shorten={"from_start": True}), io.BytesIO(), 1) as (process,):
            assert LINE in str(texts_of(items_of(session, (await process.prompt(session)).body)))
            return [*texts_of(items_of(session, (await process.prompt(session, *pins)).body)).values()]

    order, status, again, line = asyncio.run(sent("tool:get_order"))
    assert (order, status, again) == (ORDER, STATUS, ORDER)
    assert LINE in line


def test_errors_and_results_with_a_cache_mark_keep_what_is_theirs() -> None:
    session = ClaudeCode()
    session.opens("Move the totals to cents.")
    for _ in range(3):
        session.works(*CALLS["status"])
    (failed,), (marked,) = (session.items[at]["content"] for at in (-3, -1))
    failed["is_error"] = True
    marked["cache_control"] = {"type": "ephemeral"}

    async def sent() -> list[dict[str, Any]]:
        async with processes(config_of(shorten={"from_start": True}), io.BytesIO(), 1) as (process,):
            return items_of(session, (await process.prompt(session)).body)

    items = asyncio.run(sent())
    assert items[-3]["content"] == [failed]
    (result,) = items[-1]["content"]
    assert LINE in str(result["content"])
    assert result["cache_control"] == {"type": "ephemeral"}
