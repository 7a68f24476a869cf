"""What became of files: by each call's own command, and only if the call did not fail."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.transcript import ToolCall, Utterance
from policies.tool_calls.calls import done_in
from policies.tool_calls.files import FileChange, changes_in
from tests.support.tool_rows.changes import HELD_OUT, TUNED, Case


def said(*calls: tuple[str, object, str | None]) -> list[Utterance]:
    utterances: list[Utterance] = []
    for number, (tool, arguments, result) in enumerate(calls):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        utterances.append(Utterance(2 * number, "assistant", "", (ToolCall(tool, text, f"c{number}"),)))
        if result is not None:
            utterances.append(Utterance(2 * number + 1, "tool", result, answers=f"c{number}"))
    return utterances


def changes(*calls: tuple[str, object, str | None]) -> list[FileChange]:
    span = said(*calls)
    return changes_in((), (), done_in(span), span).changes


@pytest.mark.parametrize("case", [*TUNED, *HELD_OUT], ids=lambda case: f"{case.agent}: {case.calls[-1][1][:60]}")
def test_files_are_told_as_the_calls_left_them(case: Case) -> None:
    found = {(f.path, f.action, f.other if f.action == "renamed" else "") for f in changes(*case.calls)}
    assert found == {tuple(file) for file in case.files}


def test_a_file_that_was_read_before_is_modified_and_not_created_also_in_a_later_record() -> None:
    span = said(("read_file", {"path": "a.py"}, "1\tx = 1"))
    known = changes_in((), (), done_in(span), span)
    later = said(("write_file", {"path": "a.py", "content": "x"}, "ok"))
    assert [f.action for f in changes_in(known.changes, known.seen, done_in(later), later).changes] == ["modified"]


@pytest.mark.parametrize("listing", ["ls", "git ls-files", "rg -l x", "find . -name '*.py'"])
def test_a_file_that_was_listed_before_is_modified(listing: str) -> None:
    (change,) = changes(("bash", {"command": listing}, "a.py\nb.py"), ("bash", {"command": "echo x > b.py"}, ""))
    assert (change.action, change.sure) == ("modified", False)


def test_a_file_that_is_shown_by_the_call_that_wrote_it_was_not_there_before() -> None:
    shown = "cat > n.py <<'E'\nx = 1\nE\ncat n.py"
    assert [f.action for f in changes(("bash", {"command": shown}, "x = 1"))] == ["created"]


def test_what_is_shown_behind_a_change_fails_no_call() -> None:
    command = "sed -i s/a/b/ a.py && git diff"
    diff = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n-raise Error('failed')\n+raise Error('2 failed')"
    assert [(f.action, f.sure) for f in changes(("bash", {"command": command}, diff))] == [("modified", False)]
    assert changes(("bash", {"command": command}, "sed: can't read a.py: No such file or directory")) == []


def test_a_result_that_says_nothing_leaves_the_change_unsure() -> None:
    assert [f.sure for f in changes(("write_file", {"path": "a"}, None), ("write_file", {"path": "b"}, "ok"))] == [
        False,
        True,
    ]


def test_the_first_changed_line_and_the_message_are_told() -> None:
    edit = {"file_path": "a.py", "old_string": "x = 1\ny = 2", "new_string": "x = 1\ny = 3"}
    assert changes(("Edit", edit, "The file a.py has been updated.")) == [
        FileChange("a.py", "modified", "", "y = 3", 0, sure=True)
    ]


def test_earlier_changes_of_a_file_are_told_until_it_is_made_anew() -> None:
    def edit(path: str, result: str | None = "The file has been updated.") -> tuple[str, object, str | None]:
        return "Edit", {"file_path": path, "old_string": "x", "new_string": "y"}, result

    found = changes(edit("a.py"), edit("b.py"), edit("a.py"), edit("a.py", "strange"))
    assert [(f.path, f.earlier, f.position, f.sure, f.says) for f in found] == [
        ("b.py", (), 2, True, ""),
        ("a.py", (0, 4), 6, False, "strange"),
    ]
    gone = changes(edit("a.py"), ("bash", {"command": "rm a.py"}, "ok"), edit("a.py"))
    assert [(f.path, f.action, f.earlier) for f in gone] == [("a.py", "modified", ())]


def test_a_renamed_file_that_is_deleted_is_deleted() -> None:
    found = changes(("bash", {"command": "git mv a.md b.md"}, "ok"), ("bash", {"command": "rm b.md"}, "ok"))
    assert {(f.path, f.action, f.other) for f in found} == {("a.md", "deleted", ""), ("b.md", "deleted", "")}


def test_what_was_made_in_a_folder_is_gone_with_it() -> None:
    found = changes(("bash", {"command": "touch build/a.o"}, "ok"), ("bash", {"command": "rm -rf build"}, "ok"))
    assert [(f.path, f.action) for f in found] == [("build", "deleted")]


def test_blocks_in_an_answers_text_count_as_what_follows_says() -> None:
    block = "a.py\n```python\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n```\n"
    for following, expected in (
        ("I committed the changes with git hash 1234567.", [("a.py", "modified", True)]),
        ("go on", [("a.py", "modified", False)]),
        ("# 1 SEARCH/REPLACE block failed to match!", []),
    ):
        span = [Utterance(0, "assistant", block), Utterance(1, "user", following)]
        found = changes_in((), (), [], span).changes
        assert [(f.path, f.action, f.sure) for f in found] == expected


CHANGING = [
    ("write_file", {"path": "a.py", "content": "x"}),
    ("Edit", {"file_path": "a.py", "old_string": "x", "new_string": "y"}),
    ("bash", {"command": "echo x > a.py && rm b.py && mv c.py d.py"}),
    ("apply_patch", {"input": "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** End Patch"}),
    ("str_replace_editor", {"command": "insert", "path": "a.py", "new_str": "x"}),
]
READING = [
    ("read_file", {"path": "a.py"}),
    ("str_replace_editor", {"command": "view", "path": "a.py"}),
    ("bash", {"command": "cat a.py | grep -n 'x > y' 2>/dev/null"}),
    ("Grep", {"pattern": "x", "path": "a.py"}),
    ("list_directory", {"path": "a"}),
]
FAILURES = ["Exit code 1\nboom", "<tool_use_error>失败"]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(CHANGING), st.sampled_from(FAILURES)),
            st.tuples(st.sampled_from(READING), st.text(max_size=80)),
        ),
        max_size=12,
    )
)
def test_no_failed_and_no_reading_call_changes_a_file(calls: list[tuple[tuple[str, object], str]]) -> None:
    assert changes(*((tool, arguments, result) for (tool, arguments), result in calls)) == []
