"""What records of a session retain of what a person said, of rules and of pinned texts."""

from __future__ import annotations

from msgspec import structs

from policies.record.left_out import REST, LeftOut
from policies.record.pins import Pin
from policies.record.record import Record
from policies.record.rules import RuleFile
from policies.statements.entries import Entry
from proxy.admin.sessions.retained import retained_in
from tests.support.records import generation, made

RULE = Entry("directive", "Never push to main.", 1, 0)
FACT = Entry("fact", "The port is 5433. It may change.", 3, 0)
NEW = Entry("message", "Go on.", 9, 0)
FILE = RuleFile("AGENTS.md", "Use tabs.", 0)
PIN = Pin("mark", "mark:1", "user", 5, "Keep this.")


def record(number: int, entries: tuple[Entry, ...], left_out: tuple[LeftOut, ...] = (), **more: object) -> Record:
    base = made(generation(1))
    return structs.replace(
        base, digest=f"{number:064x}", generation=number, compacted=float(number), entries=entries,
        left_out=left_out, **more,
    )  # fmt: skip


def test_nothing_is_retained_without_a_record() -> None:
    assert retained_in([]) is None


def test_each_text_has_a_state_and_the_record_since_which_it_is_so() -> None:
    oldest = record(1, (RULE, FACT), rules=(FILE,), pins=(PIN,))
    middle = record(2, (RULE, FACT), (LeftOut("said", 3, f"{REST}It may change.", 0),), rules=(FILE,), pins=(PIN,))
    left_out = (
        LeftOut("said", 3, f"{REST}It may change.", 0),
        LeftOut("said", 7, "Deploy on Tuesday.", 1),
        LeftOut("said", 8, "Stands there all the same.", 0, is_shown=True),
        LeftOut("plan", 4, "write the tests"),
        LeftOut("pin", 5, "user"),
    )
    newest = record(3, (RULE, FACT, NEW), left_out, rules=(FILE,), pins=(structs.replace(PIN, text=""),), forgotten=2)
    found = retained_in([newest, middle, oldest])
    assert found is not None
    assert [(each.text, each.state, each.generation, each.message) for each in found.texts] == [
        ("user", "left out", 3, 5),
        ("Deploy on Tuesday.", "left out", 3, 7),
        ("The port is 5433. It may change.", "shortened", 2, 3),
        ("AGENTS.md", "kept", 1, 0),
        ("Never push to main.", "kept", 1, 1),
        ("Go on.", "kept", 3, 9),
    ]
    assert found.counts == {"left out": 2, "shortened": 1, "kept": 3}
    assert (found.digest, found.forgotten) == (newest.digest, 2)
    assert found.texts[2].missing == f"{REST}It may change."
    assert [each.kind for each in found.texts] == [
        "pinned text", "message", "fact", "file of rules", "rule", "message",
    ]  # fmt: skip


def test_what_was_pasted_is_no_statement_and_rules_may_be_left_out_in_part_or_whole() -> None:
    pasted = Entry("pasted", "def f(): ...", 2, 0)
    left_out = (LeftOut("rules", 0, "AGENTS.md:\nUse tabs."), LeftOut("rules", 4, "CLAUDE.md:\nBe brief."))
    found = retained_in([record(1, (pasted,), left_out, rules=(FILE,))])
    assert found is not None
    assert [(each.text, each.state) for each in found.texts] == [
        ("CLAUDE.md:\nBe brief.", "left out"),
        ("AGENTS.md", "shortened"),
    ]
