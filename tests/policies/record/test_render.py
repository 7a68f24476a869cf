"""The injected text: within its budget, rules before prose where room is short, nothing said twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.transcript import Utterance
from policies.decision.budget import budget_of
from policies.record.actions import FileChange, KeyAction, Work
from policies.record.reading import record_in
from policies.record.render import Contents, render
from policies.record.texts import texts_for
from policies.settings import LedgerSettings
from policies.statements.entries import Entry
from policies.statements.ledger import merge, statements_in
from tests.support.conversations import count

PROSE = "\n".join(f"Line {i} of a summary that tells a long story about nothing at all." for i in range(200))
TEXTS = texts_for("en")


def entries_of(*texts: str) -> list[Entry]:
    utterances = [Utterance(2 * i, "user", text) for i, text in enumerate(texts)]
    return merge((), statements_in(utterances, (), first_user=0))


def injected(usable: int, summary: str, entries: list[Entry], **blocks: int) -> str:
    actions = [
        KeyAction("read_file", f'{{"path": "a{i}"}}', ok=True, position=i) for i in range(blocks.get("actions", 0))
    ]
    files = [FileChange(f"src/a{i}.py", "created") for i in range(blocks.get("files", 0))]
    segments = [f"Segment {i}." for i in range(blocks.get("segments", 0))]
    contents = Contents(summary, segments, entries, Work(tuple(actions), tuple(files)))
    return render(contents, TEXTS, budget_of(usable, usable), LedgerSettings(), count).text


@pytest.mark.parametrize("usable", [1_300, 2_600, 7_000])
def test_on_small_windows_rules_come_before_the_models_prose(usable: int) -> None:
    rules = [f"Never touch module m{i}." for i in range(12)]
    text = injected(usable, PROSE, entries_of("Port the app.", *rules))
    assert [rule for rule in rules if rule not in text] == []
    assert count(text) <= budget_of(usable, usable).record


def test_on_a_large_window_the_whole_summary_stands_whatever_was_said() -> None:
    rules = [f"Never touch the module number {i} of the old system, whoever asks you for it." for i in range(900)]
    text = injected(200_000, PROSE, entries_of("Port the app.", *rules))
    assert PROSE in text
    assert count(text) <= 8_000


def test_facts_leave_the_prose_a_share_and_other_messages_come_last() -> None:
    facts = [f"The key of shop{i} is key-{i}{i}." for i in range(200)]
    chat = [f"that was quite a long walk home, number {'i' * i} of many" for i in range(9)]
    text = injected(2_600, PROSE, entries_of("Port the app.", *facts, *chat))
    assert "Line 0 of a summary" in text
    assert text.count("The key of shop") > 20
    assert text.count("quite a long walk") < 3


@pytest.mark.requirement("R2 Effect 3", "R3 7.3 example")
def test_every_block_is_there_when_there_is_room() -> None:
    entries = entries_of("Port the app.", "Never push.", "how nice")
    text = injected(40_000, "All done.", entries, actions=3, files=3, segments=3)
    for part in ("All done.", "Port the app.", "Never push.", "how nice", "Segment 2.", "read_file", "src/a2.py"):
        assert part in text
    assert text.startswith(TEXTS.opening)
    assert text.endswith(TEXTS.closing)


def test_a_sentence_of_several_messages_stands_once_with_all_of_them() -> None:
    often = [f"part_{at} returns nothing. Find out why and tell me before you change it." for at in range(30)]
    entries = entries_of("Port the app.", *often)
    text = injected(40_000, "x", entries)
    (line,) = (line for line in text.splitlines() if "Find out why" in line)
    numbers = ", ".join(str(2 * at) for at in range(10, 31))
    assert line == f"- [{numbers}] Find out why and tell me before you change it."
    assert TEXTS.unsaid.format(statements=9) in text
    read = record_in(text)
    assert read is not None
    assert read.covered == 61
    assert sorted(entry.position for entry in read.entries if "Find out" in entry.text) == [*range(20, 61, 2)]


def test_the_first_message_is_not_injected_twice() -> None:
    text = injected(40_000, "x", entries_of("Port the app. Never push. The log is at /var/log/app.log."))
    assert [text.count(part) for part in ("Port the app.", "Never push.", "/var/log/app.log")] == [1, 1, 1]


def test_what_the_summary_says_word_for_word_stands_once() -> None:
    text = injected(40_000, "## Rules\n- Never push.\nAnd so on.", entries_of("Port the app.", "Never push."))
    assert text.count("Never push.") == 1
    assert "And so on." in text


@pytest.mark.parametrize(("stated", "usable"), [(60, 1_300), (400, 2_600), (4, 40_000)])
def test_what_does_not_fit_is_counted_in_one_line(stated: int, usable: int) -> None:
    rules = [f"Never touch the module m{i} of the old system." for i in range(stated)]
    text = injected(usable, "All done.", entries_of("Port the app.", *rules))
    unsaid = stated - sum(rule in text for rule in rules)
    line = TEXTS.unsaid.format(statements=unsaid)
    assert text.count(line) == (unsaid > 0) == (stated > 4)
    assert text.count("more statements") <= 1


@pytest.mark.requirement("R1 4.1 length")
@given(
    st.lists(st.text(max_size=200), max_size=12),
    st.text(max_size=3_000),
    st.sampled_from([1_300, 2_600, 7_000, 60_000]),
    st.integers(0, 60),
)
def test_the_injected_text_stays_within_its_budget(texts: list[str], summary: str, usable: int, blocks: int) -> None:
    text = injected(usable, summary, entries_of(*texts), actions=blocks, files=blocks, segments=min(blocks, 3))
    assert count(text) <= budget_of(usable, usable).record
