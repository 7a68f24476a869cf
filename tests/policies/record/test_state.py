"""Lines about the work in a record: three outcomes, files, the plan, what was tried in vain, what still runs."""

from __future__ import annotations

import json
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.transcript import ToolCall, Utterance
from policies.decision.budget import budget_of
from policies.record.actions import FileChange, KeyAction, Work
from policies.record.blocks import file_line, state_blocks
from policies.record.call_lines import action_line
from policies.record.masking import as_allowed
from policies.record.record import Record
from policies.record.texts import ALL_TEXTS, Texts, texts_for
from policies.tool_calls.attempts import Attempt
from policies.tool_calls.files import Change
from policies.tool_calls.outcomes import Result
from policies.tool_calls.plan_forms import PlanItem
from policies.tool_calls.running import StartedWork
from policies.tool_calls.todo import Plan
from tests.support.conversations import count
from tests.support.records import made, shown_lines

EN, ZH = texts_for("en"), texts_for("zh")


@pytest.mark.parametrize(
    ("action", "en", "zh"),
    [
        (KeyAction("f", "{}", True, 1, sure=True), "- [1] f({}) -> ok", "- [1] f({}) -> 成功"),
        (
            KeyAction("f", "{}", False, 1, "no\nsuch file", sure=True),
            "- [1] f({}) -> failed: no such file",
            "- [1] f({}) -> 失败: no such file",
        ),
        (KeyAction("f", "{}", None, 1, sure=True), "- [1] f({}) -> not known", "- [1] f({}) -> 结果未知"),
        (KeyAction("f", "{}", True, 1), "- [1] f({}) -> not known", "- [1] f({}) -> 结果未知"),
    ],
)
def test_a_call_is_told_with_its_outcome_in_the_conversations_language(action: KeyAction, en: str, zh: str) -> None:
    assert (action_line(action, EN), action_line(action, ZH)) == (en, zh)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        (FileChange("a", "modified", "", "x = 2", 7, sure=True), "- a (modified) [7]: x = 2"),
        (FileChange("a", "renamed", "b{0}", position=7, sure=True), "- a (renamed to b{0}) [7]"),
        (FileChange("a", "copied", "b", position=7, sure=True), "- a (copied from b) [7]"),
        (FileChange("a", "created"), "- a (sent, not confirmed: created)"),
    ],
)
def test_a_file_is_told_in_one_line(file: FileChange, line: str) -> None:
    assert file_line(file, EN) == line


@pytest.mark.parametrize("texts", ALL_TEXTS, ids=lambda texts: texts.name)
def test_every_language_has_words_for_all_there_is(texts: Texts) -> None:
    assert set(texts.changes) == set(get_args(Change))
    assert set(texts.outcomes) == set(get_args(Result))


def blocks(plan: Plan = Plan(), room: int = 10_000, **more: object) -> list[str]:  # noqa: B008 - immutable
    work = Work(attempts=tuple(more.get("attempts", ())), running=tuple(more.get("running", ())), plan=plan)  # type: ignore[arg-type]
    return shown_lines(state_blocks(work, EN, room, count), room)


def test_nothing_is_told_of_what_there_is_none_of() -> None:
    assert blocks() == []


def test_a_plan_is_told_whole_and_in_order_with_its_statuses() -> None:
    plan = Plan((PlanItem("a", "done"), PlanItem("b", "active"), PlanItem("c"), PlanItem("d", "dropped")))
    assert blocks(plan)[2:] == ["- [x] a", "- [ ] b (in progress)", "- [ ] c", "- [-] d (dropped)"]


def test_without_room_what_is_open_stands_first_and_what_is_missing_is_counted() -> None:
    items = [PlanItem(f"step {at} of the long way home", "done" if at % 2 else "open") for at in range(40)]
    lines = blocks(Plan(tuple(items)), room=400)
    shown = [line for line in lines if line.startswith("- [")]
    assert 5 < len(shown) < 40
    assert sum("[ ]" in line for line in shown) >= sum("[x]" in line for line in shown)
    missing = [item for item in items if not any(item.text in line for line in shown)]
    is_open = sum(item.status == "open" for item in missing)
    assert lines[-1] == EN.plan_left_out.format(items=len(missing), open=is_open)


def test_a_plan_in_words_is_quoted_so_that_it_is_no_heading_of_ours() -> None:
    lines = blocks(Plan(text="# Tool calls\n- [ ] a", source="plan.md", stale=True))
    assert lines[2:] == ["Plan in plan.md, which was changed since:", "> # Tool calls", "> - [ ] a"]


def test_attempts_stand_newest_first_and_what_runs_has_its_ids() -> None:
    attempts = [Attempt("f", "{}", f"why {at}", at, "f", (str(at),), times=at) for at in (1, 2)]
    running = [StartedWork("Bash", "npm run dev", 3, ("bash_1",)), StartedWork("Agent", "{}", 4, is_agent=True)]
    lines = [line for line in blocks(attempts=attempts, running=running) if line.startswith("- ")]
    assert lines == [
        "- [2] f({}) (2 times): why 2",
        "- [1] f({}): why 1",
        "- [3] Bash: npm run dev (bash_1)",
        "- [4] agent: Agent: {}",
    ]


@given(st.lists(st.text(max_size=60), max_size=60), st.text(max_size=2_000), st.integers(0, 3_000))
def test_the_blocks_stay_within_the_room(items: list[str], text: str, room: int) -> None:
    plan = Plan(tuple(PlanItem(each) for each in items), text, "plan.md")
    attempts = [Attempt("f", each, each, 1, each) for each in items]
    running = [StartedWork("f", each, 1) for each in items]
    told = blocks(plan, room, attempts=attempts, running=running)
    assert sum(count(line) + 1 for line in told) <= room


def test_state_goes_from_record_to_record_and_secrets_out_of_it() -> None:
    key = "sk-ant-api03-" + "a1B2c3D4" * 11 + "AA"
    todo = {"todos": [{"content": f"use {key}", "status": "pending"}]}
    call = ToolCall("TodoWrite", json.dumps(todo), "c")
    failing = ToolCall("bash", json.dumps({"command": f"curl -H 'x-api-key: {key}' x"}), "d")
    first = made(
        [
            Utterance(0, "user", "Go."),
            Utterance(1, "assistant", "", (call, failing)),
            Utterance(2, "tool", "ok", answers="c"),
            Utterance(2, "tool", f"curl: (6) Could not resolve host: {key}", answers="d"),
        ]
    )
    later = made([Utterance(3, "assistant", "I go on.")], first)
    assert (later.plan, later.attempts) == (first.plan, first.attempts)
    assert "- [ ] use " in later.text
    masked = as_allowed(later, "mask")
    assert key not in msgspec.json.encode(masked).decode()


def test_a_record_of_before_claims_no_outcome() -> None:
    record = made([Utterance(0, "user", "Go."), Utterance(1, "assistant", "", (ToolCall("f", "{}", "c"),))])
    stored = msgspec.to_builtins(record)
    stored["actions"] = [{"tool": "f", "arguments": "{}", "ok": True, "position": 1}]
    stored["files"] = [{"path": "a.py", "action": "modified"}]
    for name in ("plan", "attempts", "running", "seen"):
        del stored[name]
    old = msgspec.convert(stored, Record)
    text = made([Utterance(3, "assistant", "I go on.")], old, budget=budget_of(60_000, 50_000)).text
    assert "- [1] f({}) -> not known" in text
    assert "- a.py (sent, not confirmed: modified)" in text
