"""Agents whose tools are text: which conversations are such, and what is read of them."""

from __future__ import annotations

import pytest

from policies.record.text_protocol import as_tools, has_tools_in_text
from policies.transcript import Utterance
from tests.support.records import made

# How the assistant ends a message, and how a harness frames what came of it.
PROTOCOLS = {
    "mini-swe-agent": ("THOUGHT: look at it\n\n```bash\ncat src/a_{0}.py\n```", "<returncode>0</returncode>\nline {0}"),
    "SWE-agent": ("Let me look.\n```\nopen src/a_{0}.py\n```", "[File: a_{0}.py]\nx\n(Open file: n/a)\nbash-$"),
    "smolagents": ("Thought: sum\nCode:\n```py\nprint({0})\n```<end_code>", "Observation:\nExecution logs:\n{0}"),
    "tags": ("I read it.\n<execute_bash>\ncat a_{0}.py\n</execute_bash>", "OBSERVATION:\ncontent {0}"),
}
# What people say to somebody who answers with code.
PEOPLE = [
    "Make it blue.",
    "Now with a border",
    "Why is the second line there?",
    "thanks! shorter please",
    "and in Rust?",
]


def conversation(answer: str, output: str, rounds: int = 5) -> list[Utterance]:
    said = [Utterance(0, "user", "Never touch vendor/. Fix the bug.")]
    for number in range(rounds):
        said.append(Utterance(len(said), "assistant", answer.format(number)))
        said.append(Utterance(len(said), "user", output.format(number)))
    return said


@pytest.mark.parametrize("name", PROTOCOLS)
def test_blocks_become_calls_and_what_follows_them_results(name: str) -> None:
    said = conversation(*PROTOCOLS[name])
    assert has_tools_in_text(said)
    read = as_tools(said, None)
    assert [one.role for one in read] == ["user", *["assistant", "tool"] * 5]
    assert [len(one.calls) for one in read] == [0, *[1, 0] * 5]
    assert read[1].calls[0].arguments in said[1].text
    assert read[1].calls[0].arguments not in read[1].text
    assert [one.answers for one in read[2::2]] == [one.calls[0].id for one in read[1::2]]


def test_the_first_message_of_a_span_may_be_an_output() -> None:
    said = conversation(*PROTOCOLS["mini-swe-agent"])
    assert as_tools(said[2:], said[1]) == as_tools(said, None)[2:]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_output_of_the_last_call_may_stand_right_behind_a_span(name: str) -> None:
    said = conversation(*PROTOCOLS[name])
    *covered, after = said
    assert as_tools(covered, None, after) == as_tools(said, None)
    assert as_tools(covered, None) == as_tools(said, None)[:-1]
    assert as_tools(said, None, Utterance(11, "user", "Go on.")) == as_tools(said, None)
    assert as_tools(covered, None, Utterance(10, "assistant", "Done.")) == as_tools(covered, None)


def test_a_call_at_the_end_of_what_is_covered_has_the_outcome_of_its_output() -> None:
    said = [
        Utterance(0, "user", "Fix it."),
        Utterance(1, "assistant", "I test it.\n```bash\npytest -q\n```"),
    ]
    after = Utterance(2, "user", "<returncode>1</returncode>\n1 failed, 2 passed in 1s")
    (action,) = made(as_tools(said, None, after), written=None).actions
    assert (action.outcome, action.why) == ("failed", "1 failed, 2 passed in 1s")
    (action,) = made(as_tools(said, None), written=None).actions
    assert action.outcome == "unknown"


def test_people_who_are_shown_code_are_people() -> None:
    said = [Utterance(0, "user", "Write a page.")]
    for text in PEOPLE:
        said.append(Utterance(len(said), "assistant", "Here it is:\n```html\n<p>x</p>\n```"))
        said.append(Utterance(len(said), "user", text))
    assert not has_tools_in_text(said)


def test_a_conversation_with_tool_calls_or_hardly_any_message_is_none() -> None:
    answer, output = PROTOCOLS["mini-swe-agent"]
    assert not has_tools_in_text(conversation(answer, output, rounds=2))
    assert not has_tools_in_text([*conversation(answer, output), Utterance(11, "tool", "ok", answers="c1")])


def test_a_record_holds_their_commands_and_files_and_no_output_as_the_users_word() -> None:
    answer, output = (
        "I write it.\n```bash\ncat > src/new_{0}.py << 'EOF'\nx = 1\nEOF\n```",
        "<returncode>0</returncode>\nYou must never do {0}.",
    )
    record = made(as_tools(conversation(answer, output), None), written=None)
    assert [change.path for change in record.files] == [f"src/new_{number}.py" for number in range(5)]
    assert len(record.actions) == 5
    assert [entry.text for entry in record.entries] == ["Never touch vendor/.", "Fix the bug."]
