"""What a record covers and does not show: from the allocator's blocks to the list that is stored."""

from __future__ import annotations

import pytest
from msgspec import structs

from policies.conversation.transcript import Utterance
from policies.decision.budget import budget_of
from policies.record.actions import Work
from policies.record.allocate import Block, Line, allocate
from policies.record.blocks import state_blocks
from policies.record.left_out import (
    MOST,
    MOST_CHARACTERS,
    REST,
    LeftOut,
    counts_of,
    gather_left_out,
    left_out_text,
    list_unfitted,
    not_shown,
    rest_of,
)
from policies.record.masking import as_allowed
from policies.record.render import Contents, render
from policies.record.rules import RuleFile, files_block
from policies.record.texts import texts_for
from policies.settings import LedgerSettings
from policies.statements.entries import Entry
from policies.tool_calls.attempts import Attempt
from policies.tool_calls.plan_forms import PlanItem
from policies.tool_calls.todo import Plan
from tests.support.conversations import count
from tests.support.records import generation, made

EN = texts_for("en")


def said(text: str, position: int, order: int = 0, *, is_shown: bool = False) -> LeftOut:
    return LeftOut("said", position, text, order, is_shown)


def lines(*texts: str) -> list[Line]:
    return [Line(f"- [{at}] {text}", (at, 0), left_out=said(text, at)) for at, text in enumerate(texts)]


LONG = " ".join(f"word{at}" for at in range(60))


@pytest.mark.parametrize(
    ("block", "room", "missing"),
    [
        (Block("t", lines("one", "two")), 100, []),
        (Block("t", lines("one", LONG, "two")), 20, [said(LONG, 1)]),
        (Block("t", lines("one", "two")), 2, [said("one", 0), said("two", 1)]),
        (Block("t", lines("one", "two")), 0, [said("one", 0), said("two", 1)]),
        (Block("t", [Line("- no loss")]), 0, []),
        (Block("t", left_out=(said("zero", 9),)), 100, [said("zero", 9)]),
        (Block("t", lines("one"), left_out=(said("zero", 9),)), 100, [said("zero", 9)]),
        (Block("t", lines("one"), left_out=(said("zero", 9),)), 0, [said("zero", 9), said("one", 0)]),
    ],
)
def test_what_has_no_line_is_missing(block: Block, room: int, missing: list[LeftOut]) -> None:
    (shown,) = allocate([block], room, count)
    assert [*shown.left_out] == missing


def test_of_a_line_that_is_cut_the_rest_is_missing() -> None:
    (shown,) = allocate([Block("t", lines(LONG, LONG), is_whole=True)], 110, count)
    assert len(shown.lines) == 2
    for line, left_out in zip(shown.lines, shown.left_out, strict=True):
        start = line.text.removesuffix(" …").partition("] ")[2]
        assert left_out.text.startswith(REST)
        rest = left_out.text.removeprefix(REST)
        assert LONG in (f"{start} {rest}", start + rest)


@pytest.mark.parametrize(
    ("whole", "shown", "rest"),
    [
        ("- [0] one two three", "- [0] one", "… two three"),
        ("- [0] one two three", "- [0]", "… one two three"),
        ("- [0, 12, 24] one two three", "- [0, 1", "… one two three"),
        ("- [0] one two three", "- [0] one two three", None),
    ],
)
def test_the_rest_of_a_line_is_of_the_statement_alone(whole: str, shown: str, rest: str | None) -> None:
    found = rest_of(said("one two three", 0), whole, shown)
    assert (found and found.text) == rest


def test_entries_that_do_not_fit_are_missing_and_pasted_lines_are_no_statements() -> None:
    entries = [
        Entry("fact", "a fact", 1, 1),
        Entry("pasted", "at main.py:3", 1, 2),
        Entry("task", "a long task", 0, 1),
        Entry("message", "kept", 2, 1),
    ]
    fitted = [structs.replace(entries[2], text="a long …"), entries[3]]
    assert list_unfitted(entries, fitted, " …") == [said("a fact", 1, 1), said("… task", 0, 1)]


@pytest.mark.parametrize(
    ("parent", "known", "missing", "forgotten", "prompt", "found"),
    [
        ([said("Never touch it.", 1, 1)], [], [], [], "", [said("Never touch it.", 1, 1)]),
        ([said("Never touch it.", 1, 1)], [(1, 1)], [], [], "", []),
        ([LeftOut("plan", 1, "Write the tests first.")], [], [], [], "", []),
        ([said("Never touch it.", 7, 1)], [], [], [], "", [said("Never touch it.", 7, 1, is_shown=True)]),
        ([], [], [said("Never touch it.", 1, 1)], [], "They said: NEVER  touch it. Twice.", []),
        ([], [], [said("Yes.", 1, 1)], [], "Yes.", [said("Yes.", 1, 1)]),
        (
            [],
            [],
            [],
            [said("Never touch it.", 1, 1)],
            "Never touch it.",
            [said("Never touch it.", 1, 1, is_shown=True)],
        ),
        ([], [], [said("Never touch it.", at, 1) for at in (1, 5)], [], "", [said("Never touch it.", 5, 1)]),
        ([], [], [said("… touch the it.", 1)], [], "Do not touch the it.", [said("… touch the it.", 1)]),
        ([said("Not now.", 1)], [], [said("Later.", 3)], [], "", [said("Not now.", 1), said("Later.", 3)]),
        ([], [], [said("x" * 999, 1)], [], "", [said("x" * MOST_CHARACTERS, 1)]),
    ],
    ids=[
        "nothing else is left of it",
        "it is an entry: the allocator tells",
        "a state is told anew",
        "its message is sent",
        "it stands in the prompt",
        "too short to be found again",
        "shown now, and perhaps not later",
        "said twice",
        "the rest of a statement, whose words another has",
        "in the order of the messages",
        "bounded",
    ],
)
def test_what_a_record_leaves_out(
    parent: list[LeftOut],
    known: list[tuple[int, int]],
    missing: list[LeftOut],
    forgotten: list[LeftOut],
    prompt: str,
    found: list[LeftOut],
) -> None:
    assert [*gather_left_out(parent, known, missing, forgotten, {7}, [prompt])] == found


def test_a_pin_that_the_record_only_names_is_left_out() -> None:
    pin = LeftOut("pin", 3, "docs/protocol.md")
    assert [*gather_left_out((), (), [pin], (), (), ["pinned text of docs/protocol.md did not fit"])] == [pin]


def test_the_newest_are_kept_and_those_that_are_not_shown_go_first() -> None:
    many = [said(f"Statement {at} of many.", at) for at in range(2 * MOST)]
    found = gather_left_out((), (), many, (), (), ())
    assert [each.position for each in found] == [*range(MOST, 2 * MOST)]
    found = gather_left_out((), (), many[:10], many[10:], range(10, 2 * MOST), ())
    assert len(found) == MOST
    assert counts_of(found) == {"said": 10}


def test_counts_are_told_by_kind() -> None:
    found = [LeftOut("pin", 3, "a"), said("b", 1), said("c", 2), said("d", 3, is_shown=True)]
    assert left_out_text(counts_of(found)) == "said=2, pin=1"
    assert left_out_text(counts_of(found[3:])) == "none"
    assert not_shown(found) == found[:3]


def test_items_of_a_plan_and_failures_without_room_are_missing() -> None:
    items = tuple(PlanItem(f"step number {at:03} of a plan", "open") for at in range(200))
    tried = tuple(Attempt("bash", f"make {at}", "no rule", at, "run", (f"t{at}",)) for at in range(30))
    shown = allocate(state_blocks(Work(attempts=tried, plan=Plan(items, position=8)), EN, 800, count), 800, count)
    missing = [each for part in shown for each in part.left_out]
    plan = [each for each in missing if each.kind == "plan"]
    assert {each.position for each in plan} == {8}
    text = "\n".join(line.text for part in shown for line in part.lines)
    assert sorted(item.text for item in items if item.text not in text) == sorted(each.text for each in plan)
    failures = [each for each in missing if each.kind == "failures"]
    assert [each.position for each in failures][:20] == [*range(20)]
    assert all(each.text not in text for each in failures)


def test_of_rules_that_are_shortened_the_lines_that_lack_are_missing() -> None:
    text = "\n".join(f"Never touch the module number {at}." for at in range(40))
    files = [RuleFile("AGENTS.md", text, 4), RuleFile("CLAUDE.md", "Be brief.", 6)]
    block = files_block(EN.rules, files, EN, 150, count)
    (missing,) = block.left_out
    assert (missing.kind, missing.position) == ("rules", 4)
    name, *lacking = missing.text.splitlines()
    assert name == "AGENTS.md:"
    assert {*lacking} == {line for line in text.splitlines() if f"> {line}" not in block.lines}
    assert lacking
    assert files_block(EN.rules, files, EN, 4_000, count).left_out == []


FACTS = " ".join(f"The key of shop{at} is key-{at}{at}." for at in range(260))


def test_what_the_ledger_forgets_goes_on_from_record_to_record() -> None:
    first = made(
        [Utterance(0, "user", "Port the app."), Utterance(1, "assistant", "Yes."), Utterance(2, "user", FACTS)]
    )
    assert first.forgotten >= 60
    lost = {each.text for each in first.left_out}
    assert {f"The key of shop{at} is key-{at}{at}." for at in range(100, 160)} <= lost
    second = made(generation(1), first)
    third = made(generation(2), second)
    for later in (second, third):
        assert {f"The key of shop{at} is key-{at}{at}." for at in range(100, 160)} <= {
            each.text for each in not_shown(later.left_out)
        }
    again = made(generation(2, "The key of shop120 is key-120120."), second)
    assert "The key of shop120 is key-120120." not in {each.text for each in not_shown(again.left_out)}
    assert "The key of shop120 is key-120120." in again.text


def test_a_message_that_is_sent_next_to_the_record_is_left_out_of_a_later_one() -> None:
    first = made(
        [Utterance(0, "user", "Port the app."), Utterance(1, "assistant", "Yes."), Utterance(2, "user", FACTS)],
        repeated={2},
        kept=(FACTS,),
    )
    assert first.left_out_counts == {}
    second = made(generation(1), first)
    assert second.left_out_counts["said"] > 100


def test_with_room_for_everything_nothing_is_left_out() -> None:
    record = made(
        generation(1), made(generation(0), budget=budget_of(64_000, 60_000)), budget=budget_of(64_000, 60_000)
    )
    assert record.left_out == ()
    assert left_out_text(record.left_out_counts) == "none"


def test_what_is_left_out_is_masked_like_the_rest() -> None:
    secret = "sk-proj-aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5"
    record = structs.replace(made(generation(0)), left_out=(said(f"The key is {secret}.", 1),))
    assert secret not in repr(as_allowed(record, "mask"))
    assert secret in repr(as_allowed(record, "keep"))


def test_what_the_settings_leave_no_room_for_is_missing_too() -> None:
    entries = [Entry("fact", f"The key of shop{at} is key-{at}.", at, 1) for at in range(50)]
    contents = Contents("", [], entries)
    rendered = render(contents, EN, budget_of(60_000, 60_000), LedgerSettings(max_tokens=200), count)
    lost = {each.text for each in rendered.left_out}
    assert 20 < len(lost) < 50
    assert all((entry.text in rendered.text) != (entry.text in lost) for entry in entries)


def test_rules_without_room_and_statements_that_are_not_stored_are_in_the_record() -> None:
    rules = "\n".join(f"Never touch the module number {at} of the old system." for at in range(400))
    facts = [Utterance(2 * at, "user", f"The key of shop{at} is key-{at}{at}. {LONG}.") for at in range(1, 120)]
    ruling = Utterance(0, "user", rules, voice="instructions", by="CLAUDE.md")
    small = budget_of(1_200, 1_000)
    first = made([ruling, *facts], budget=small)
    assert first.left_out_counts["rules"] == 1
    assert len(first.entries) < 119
    gone = {f"The key of shop{at} is key-{at}{at}." for at in range(1, 120)} - {each.text for each in first.entries}
    assert gone
    second = made([Utterance(900, "user", "Go on, please."), Utterance(901, "assistant", "Yes.")], first, budget=small)
    assert gone <= {each.text for each in second.left_out}


def test_a_statement_that_is_sent_now_and_not_stored_is_left_out_later() -> None:
    facts = [Utterance(2 * at, "user", f"The key of shop{at} is key-{at}{at}. {LONG}.") for at in range(1, 120)]
    small, sent = budget_of(1_200, 1_000), range(2, 240)
    first = made(facts, budget=small, repeated=sent, kept=tuple(each.text for each in facts))
    assert first.left_out_counts == {}
    gone = {f"The key of shop{at} is key-{at}{at}." for at in range(1, 120)} - {each.text for each in first.entries}
    assert gone
    second = made([Utterance(900, "user", "Go on, please."), Utterance(901, "assistant", "Yes.")], first, budget=small)
    assert gone <= {each.text for each in not_shown(second.left_out)}
