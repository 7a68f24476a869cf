"""What a person pointed the agent to."""

import json

import pytest

from policies.conversation.transcript import ToolCall, Utterance
from policies.record.briefs import briefs_in
from policies.record.texts import texts_for
from tests.support.records import made

TEXT = "1. Split the parser.\n2. Keep the old API."


def read(name: str, arguments: object, result: str = TEXT, *, error: bool | None = None) -> list[Utterance]:
    call = ToolCall(name, json.dumps(arguments), "c")
    return [
        Utterance(4, "assistant", "", (call,)),
        Utterance(5, "tool", result, answers="c", tool=name, error=error),
    ]


@pytest.mark.parametrize(
    ("said", "name", "arguments"),
    [
        ("Carry out plan.md.", "Read", {"file_path": "/repo/docs/plan.md"}),
        ("Do what ISSUE.txt says", "bash", {"command": "cat ISSUE.txt"}),
        ("Fix issue #512, please.", "bash", {"command": "gh issue view 512"}),
        ("Look at issues/512 and go on.", "bash", {"command": "gh issue view 512"}),
        ("#512 comes first.", "bash", {"command": "gh issue view 512"}),
        ("Issue no. 512 is yours.", "bash", {"command": "gh issue view 512"}),
        ("fix issue 512", "get_issue", {"issue_number": "512", "repo": "a/b"}),
        ("按照 需求.md 修改", "read_file", {"path": "docs/需求.md"}),
    ],
)
def test_a_document_that_a_person_names_is_carried_as_it_was_read(said: str, name: str, arguments: object) -> None:
    (brief,) = briefs_in((), read(name, arguments), [said])
    assert (brief.text, brief.position) == (TEXT, 5)


@pytest.mark.parametrize(
    ("said", "name", "arguments", "result"),
    [
        ("Fix the parser.", "Read", {"file_path": "/repo/docs/plan.md"}, TEXT),
        ("Fix src/parser.py.", "Read", {"file_path": "src/parser.py"}, "def parse(): ..."),
        ("Carry out plan.md.", "Read", {"file_path": "plan.md"}, "Error: no such file"),
        ("Follow AGENTS.md.", "Read", {"file_path": "AGENTS.md"}, TEXT),
        ("Fix issue #512.", "bash", {"command": "gh issue view 99"}, TEXT),
        ("Solve this issue within 512 lines.", "bash", {"command": "head -n 512 reproduce_issue.py"}, TEXT),
        ("Run 512 tests.", "bash", {"command": "gh issue view 512"}, TEXT),
    ],
)
def test_anything_else_is_not(said: str, name: str, arguments: object, result: str) -> None:
    assert briefs_in((), read(name, arguments, result), [said]) == ()


def test_a_record_has_it_in_a_block_of_its_own_from_generation_to_generation() -> None:
    first = made([Utterance(0, "user", "Carry out plan.md."), *read("Read", {"file_path": "plan.md"})])
    second = made([Utterance(8, "user", "Go on."), Utterance(9, "assistant", "I go on.")], first)
    title = f"## {texts_for('en').briefs}\n### plan.md\n> 1. Split the parser.\n> 2. Keep the old API.\n"
    assert title in first.text
    assert title in second.text
    newer = made(read("Read", {"file_path": "plan.md"}, "3. All done."), second)
    assert "3. All done." in newer.text
    assert "Split the parser" not in newer.text.partition("## Names")[0]
