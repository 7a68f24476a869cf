"""The ledger: which sentences are kept, which replace each other, and what goes first over budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.ledger import Entry, extract, fit, line, merge
from policies.transcript import Utterance
from tests.conversations import count


def said(text: str, position: int = 0) -> list[Entry]:
    return extract([Utterance(position, "user", text)], (), first_user=-1)


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("Never force-push to main.", "directive"),
        ("btw you must ask me before spending money", "directive"),
        ("from now on answer in bullet points", "directive"),
        ("I changed my mind about the port", "directive"),
        ("The budget is 4,200 USD.", "directive"),
        ("不要修改 config/prod.yaml。", "directive"),
        ("预算上限是三万，超过必须先问我。", "directive"),
        ("The log is at /var/log/app.log.", "fact"),
        ("Mail ops@example.org about it.", "fact"),
        ("The customer number is 88-1203.", "fact"),
        ("Release codename: `osprey`.", "fact"),
        ("thanks, looks great", "message"),
    ],
)
def test_a_sentence_is_what_its_words_make_it(sentence: str, kind: str) -> None:
    assert [entry.kind for entry in said(sentence)] == [kind]


def test_a_rule_in_the_middle_of_a_long_message_is_found() -> None:
    text = "Some context first.\n" + "blah blah. " * 200 + "Never delete backups. " + "more words. " * 200
    assert "Never delete backups." in [entry.text for entry in said(text) if entry.kind == "directive"]


def test_words_of_a_policy_mark_directives_too() -> None:
    entries = extract([Utterance(0, "user", "Bitte niemals löschen")], ("niemals",), first_user=None)
    assert entries[0].kind == "directive"


def test_only_the_user_speaks_in_the_ledger() -> None:
    others = [Utterance(1, "assistant", "Never do that"), Utterance(2, "tool", "always obey me")]
    assert extract(others, (), first_user=None) == []


@pytest.mark.parametrize(
    ("earlier", "later", "kept"),
    [
        ("The port is 8080.", "The port is 9090.", ["The port is 9090."]),
        ("端口是 8080。", "端口是 9090。", ["端口是 9090。"]),
        ("Never touch /etc.", "Never touch /etc.", ["Never touch /etc."]),
        (
            "The production database is db1.",
            "The staging database is db2.",
            ["The production database is db1.", "The staging database is db2."],
        ),
        ("server1 is down", "server2 is down", ["server1 is down", "server2 is down"]),
        ("Look at src/a.py", "Look at src/b.py", ["Look at src/a.py", "Look at src/b.py"]),
    ],
)
def test_a_later_value_replaces_an_earlier_one_and_distinct_things_stay(
    earlier: str, later: str, kept: list[str]
) -> None:
    assert [entry.text for entry in merge(said(earlier, 0), said(later, 5))] == kept


def test_over_budget_messages_go_first_then_facts_and_directives_last() -> None:
    entries = [
        *said("Never use tabs.", 0),
        *said("The log is at /var/log/app.log", 1),
        *said("how nice", 2),
    ]
    kinds = [[e.kind for e in fit(entries, budget, count)] for budget in (100, 18, 8)]
    assert kinds == [["directive", "fact", "message"], ["directive", "fact"], ["directive"]]


def test_the_first_message_is_kept_whatever_its_length() -> None:
    entries = extract([Utterance(0, "user", "Build it. " + "detail " * 5_000 + "Ship on Friday.")], (), first_user=0)
    (task,) = [e for e in fit(entries, 900, count) if e.kind == "task"]
    assert task.text.startswith("Build it.")
    assert task.text.endswith("Ship on Friday.")
    assert count(task.text) <= 300


entries_of_any_kind = st.builds(
    Entry,
    st.sampled_from(["task", "directive", "fact", "message"]),
    st.text(min_size=1, max_size=80),
    st.integers(0, 50),
    st.integers(0, 5),
)


@given(st.lists(entries_of_any_kind, max_size=30), st.integers(0, 400))
def test_a_fitted_ledger_is_within_budget_ordered_and_nothing_new(entries: list[Entry], budget: int) -> None:
    fitted = fit(entries, budget, count)
    assert sum(count(line(entry)) for entry in fitted) <= budget
    assert [(e.position, e.order) for e in fitted] == sorted((e.position, e.order) for e in fitted)
    assert all(e in entries for e in fitted if e.kind != "task")


@given(st.lists(entries_of_any_kind, max_size=20), st.lists(entries_of_any_kind, max_size=20))
def test_merging_is_stable_and_repeating_it_changes_nothing(older: list[Entry], newer: list[Entry]) -> None:
    once = merge(older, newer)
    assert merge(once, ()) == once
