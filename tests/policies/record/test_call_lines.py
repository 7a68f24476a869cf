"""Lines about calls: repeated reads in one, what matters first, and checks that are older than the last change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from policies.conversation.transcript import Utterance
from policies.decision.budget import budget_of
from policies.record.actions import KeyAction, Work, update_work
from policies.record.blocks import attempt_line, file_line, work_blocks
from policies.record.call_lines import action_line, call_of, call_text, outdated_checks
from policies.record.masking import as_allowed
from policies.record.texts import texts_for
from policies.tool_calls.wording import readable
from tests.support.calls import said
from tests.support.conversations import count
from tests.support.records import made, shown_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.record.texts import Texts

EN, ZH = texts_for("en"), texts_for("zh")


def edit(path: str = "a.py") -> tuple[str, object, str]:
    return "Edit", {"file_path": path, "old_string": "x", "new_string": "y"}, "The file has been updated."


def ran(command: str, result: str) -> tuple[str, object, str]:
    return "bash", {"command": command}, result


def read(path: str, **more: int) -> tuple[str, object, str]:
    return "Read", {"file_path": path, **more}, "1\tx = 1\n2\ty = 2"


PASSED, FAILED = ran("pytest -q", "31 passed in 2.10s"), ran("pytest -q", "1 failed, 30 passed in 2.10s")


def told(actions: Sequence[KeyAction], texts: Texts = EN) -> list[str]:
    return call_lines(actions, 10_000, texts)


def call_lines(actions: Sequence[KeyAction], room: int, texts: Texts = EN) -> list[str]:
    """Return the lines about calls without their title, whose tokens are not of the room."""
    work = Work(tuple(actions))
    block = next(each for each in work_blocks(work, (), texts, room, count) if each.title == texts.actions)
    return shown_lines([block._replace(heading=0)], room)[2:]


def notes(*steps: tuple[str, object, str]) -> list[str]:
    work = update_work(Work(), said(*steps))
    before = outdated_checks(work.actions, work.files)
    lines = (action_line(action, EN, before.get(call_of(action))) for action in work.actions)
    return [line.partition("; ")[2] for line in lines if "pytest" in line or "lint" in line]


BEFORE = "before the last known change ([2])"
NOT_RERUN = f"{BEFORE}, not run since"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((PASSED, edit()), [NOT_RERUN]),
        ((FAILED, edit()), [NOT_RERUN]),
        ((PASSED, edit(), read("a.py"), ran("git commit -m x", "[main 1a2b3c4] x")), [NOT_RERUN]),
        ((edit(), PASSED), [""]),
        ((PASSED, edit(), PASSED), ["", ""]),
        ((PASSED, edit(), ran("npm run lint", "0 errors")), [BEFORE, ""]),
        ((PASSED, edit(), ran("./ci.sh", "fine")), [BEFORE]),
        ((PASSED, edit(), ran("pytest tests/a.py", "3 passed in 1s")), [BEFORE, ""]),
        ((ran("pytest tests/a.py", "3 passed in 1s"), edit(), PASSED), ["", ""]),
        ((PASSED, edit("notes.md")), [""]),
        ((ran("pytest tests/test_a.py", "3 passed in 1s"), edit("src/a.py")), [NOT_RERUN]),
        ((ran("pytest tests/test_a.py", "3 passed in 1s"), edit("src/rows.py")), [""]),
        ((PASSED, ran("sed -i s/x/y/ a.py", "")), [""]),
        ((ran("pytest -q", ""), edit()), [""]),
        ((PASSED, ("Edit", {"file_path": "a.py"}, "Error: old_string not found in file")), [""]),
    ],
)
def test_a_check_that_is_older_than_the_last_change_says_so(
    steps: tuple[tuple[str, object, str], ...], expected: list[str]
) -> None:
    assert notes(*steps) == expected


def test_it_says_so_beside_what_was_tried_in_vain_and_in_the_conversations_language() -> None:
    work = update_work(Work(), said(FAILED, edit()))
    change = outdated_checks(work.actions, work.files)[call_of(work.attempts[0])]
    assert attempt_line(work.attempts[0], EN, change).endswith(f"30 passed in 2.10s; {NOT_RERUN}")
    assert attempt_line(work.attempts[0], ZH, change).endswith("2.10s；早于最近一次已知的改动（[2]），此后未再运行")


def test_a_change_in_a_later_span_makes_an_earlier_check_old() -> None:
    checked = update_work(Work(), said(PASSED))
    work = update_work(checked, [*said(PASSED, edit())][2:])
    assert list(outdated_checks(work.actions, work.files)) == [call_of(work.actions[0])]
    seen = update_work(Work(), said(read("b.py"), edit()))
    assert outdated_checks(seen.actions, seen.files) == {}
    old = [msgspec.structs.replace(action, sort="", about="") for action in work.actions]
    assert outdated_checks(old, work.files) == {}


def test_reads_of_one_file_are_one_line_also_across_records() -> None:
    first = update_work(Work(), said(read("a.py"), read("b.py"), read("a.py", offset=40)))
    assert [(action.about, action.times, action.position) for action in first.actions] == [
        ("b.py", 1, 2),
        ("a.py", 2, 4),
    ]
    later = update_work(first, said(edit(), edit("b.py"), edit("c.py"), ran("cat a.py", "w = 0\nx = 1\ny = 2\nz = 3")))
    assert told(later.actions)[-1] == "- [6] read: a.py (3 times)"
    assert told(later.actions, ZH)[-1] == "- [6] 已读取: a.py (3 次)"


def test_what_did_something_comes_before_checks_that_were_run_again() -> None:
    again = [ran("pytest tests/a.py", "1 failed, 3 passed in 1s")] * 9 + [ran("pytest tests/a.py", "4 passed in 1s")]
    actions = update_work(Work(), said(ran("./bin/enqueue all", "Scheduled 9 jobs"), *again, read("b.py"))).actions
    lines = call_lines(actions, 60)
    assert [line.partition("]")[0] for line in lines[:2]] == ["- [0", "- [20"]


def test_what_started_work_is_quoted_and_not_called_ok() -> None:
    started = KeyAction("bash", "./bin/enqueue all", ok=True, position=2, why="Scheduled 9 jobs", sure=True)
    assert action_line(started, EN) == '- [2] bash(./bin/enqueue all) -> says: "Scheduled 9 jobs"'
    assert action_line(msgspec.structs.replace(started, why=""), EN).endswith("-> ok")


def test_searches_edits_and_reads_that_failed_are_never_one() -> None:
    grep = ("Grep", {"pattern": "x", "path": "a.py"}, "a.py:1:x = 1")
    missing = ("Read", {"file_path": "a.py"}, "Error: File does not exist")
    assert len(update_work(Work(), said(grep, grep, edit(), edit(), missing, missing)).actions) == 6


def test_without_the_room_what_failed_changed_or_checked_is_told_before_the_newest_reads() -> None:
    steps = (edit(), FAILED, ran("deploy now", "strange"), *(read(f"lib/part_{i}.py") for i in range(20)))
    actions = update_work(Work(), said(*steps)).actions
    lines = call_lines(actions, 110)
    assert sum(count(line) + 1 for line in lines) <= 110
    assert [line.partition("(")[0] for line in lines[:3]] == ["- [0] Edit", "- [2] bash", "- [4] bash"]
    shown = lines[-2].count("lib/part_")
    assert 0 < shown < 20
    assert lines[-2].endswith("lib/part_19.py")
    assert lines[-1] == EN.calls_left_out.format(calls=20 - shown)
    assert call_lines(actions, 10) == []
    assert "\n".join(call_lines(actions, 10_000)).count("lib/part_") == 20


def test_files_that_were_read_with_no_other_call_between_them_are_one_line() -> None:
    steps = (read("a.py"), read("b.py"), ran("cat c.py", "z = 1\ny = 2\nx = 3\nw = 4"), edit(), read("d.py"), PASSED)
    lines = told(update_work(Work(), said(*steps)).actions)
    assert lines[0] == "- [0-4] read: a.py, b.py, c.py"
    assert [line.partition("(")[0] for line in lines[1:]] == ["- [6] Edit", "- [8] read: d.py", "- [10] bash"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"command": "pytest -q"}, "f(pytest -q)"),
        ({"command": 'echo "a"'}, 'f(echo "a")'),
        ({"command": "ls", "timeout": 5}, 'f({"command": "ls", "timeout": 5})'),
        ({"a": "x", "b": "y"}, 'f({"a": "x", "b": "y"})'),
        ({"a": "x", "n": 1, "b": "y"}, 'f({"a": "x", "n": 1,"b": "y"})'),
        ({"id": 4}, 'f({"id": 4})'),
        ({}, "f({})"),
        ("x", "f(x)"),
    ],
)
def test_of_a_lone_text_among_the_arguments_the_name_is_not_told(arguments: object, text: str) -> None:
    assert call_text(KeyAction("f", readable(arguments))) == text


@pytest.mark.parametrize("room", range(0, 400, 7))
def test_lines_of_calls_never_exceed_their_room_and_count_what_they_leave_out(room: int) -> None:
    steps = [step for i in range(9) for step in (read(f"lib/part_{i}.py"), read(f"lib/more_{i}.py"), edit(f"{i}.py"))]
    lines = call_lines(update_work(Work(), said(*steps)).actions, room)
    assert sum(count(line) + 1 for line in lines) <= room
    shown = sum(line.count("lib/") + line.count("Edit") for line in lines)
    assert not lines or shown == 27 or lines[-1] == EN.calls_left_out.format(calls=27 - shown)


def test_what_another_block_tells_of_a_call_is_not_told_among_the_calls() -> None:
    todo = ("TodoWrite", {"todos": [{"content": "Write it", "status": "pending"}]}, "Todos have been modified.")
    server = ("Bash", {"command": "npm run dev", "run_in_background": True}, "Running in background with ID: b3")
    deploy = ran("deploy now", "strange")
    text = made(
        [Utterance(0, "user", "Fix it."), *said("Go on.", todo, server, FAILED, edit(), deploy)], written=None
    ).text
    assert "- [ ] Write it" in text
    assert "Bash: npm run dev (b3)" in text
    calls = text.partition(f"## {EN.actions}\n")[2].partition("\n\n")[0].splitlines()
    assert [line.partition("(")[0] for line in calls] == ["- [10] bash"]


@pytest.mark.parametrize(
    ("steps", "calls"),
    [
        ([("Write", {"file_path": "a.py", "content": "z"}, "File created successfully at: a.py")], []),
        (
            [read("a.py"), ("Write", {"file_path": "a.py", "content": "z"}, "The file has been updated.")],
            ["[0] read: a.py"],
        ),
        ([edit()], []),
        ([edit(), edit("b.py"), edit()], ["[0] Edit"]),
        ([ran("echo z > a.py && echo fine", "fine")], ["[0] bash"]),
        ([("Write", {"file_path": "a.py", "content": "z"}, "ok"), edit()], ["[0] Write"]),
        ([("Write", {"file_path": "a.py", "content": "z"}, "what?")], []),
    ],
)
def test_the_last_change_to_a_file_is_told_among_the_files_alone(
    steps: list[tuple[str, object, str]], calls: list[str]
) -> None:
    text = made([*said(*steps), Utterance(20, "user", "Fix it.")], written=None).text
    assert "- a.py (" in text
    lines = text.partition(f"## {EN.actions}\n")[2].partition("\n\n")[0].splitlines()
    assert [line.partition("(")[0].removeprefix("- ") for line in lines] == calls


def test_a_plan_that_is_not_shown_and_one_that_failed_stay_among_the_calls() -> None:
    steps = (("TodoWrite", {"todos": "x"}, "Error: todos is invalid"), ("TodoWrite", {"todos": []}, "Done."))
    text = made([Utterance(0, "user", "Fix it."), *said("Go on.", *steps)], written=None).text
    assert f"## {EN.plan}" not in text
    assert "TodoWrite({" in text.partition(f"## {EN.actions}")[2]


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (ran("grep -n x *.py", "a.py:1:x = 1"), '-> says: "a.py:1:x = 1"'),
        (ran("./deploy", "strange"), '-> says: "strange"'),
        (PASSED, "-> ok: 31 passed in 2.10s"),
        (ran("git commit -m x", "[main 1a2b3c4] x"), "-> ok: [main 1a2b3c4] x"),
        (ran("curl x", "curl: (7) Connection refused"), "-> failed: curl: (7) Connection refused"),
        (
            ran("./test.sh", "...\n\n3 test superati, 1 non riuscito\nin 2.3s"),
            '-> says: "3 test superati, 1 non riuscito"',
        ),
    ],
)
def test_what_a_result_says_is_quoted_and_a_verdict_is_not(step: tuple[str, object, str], line: str) -> None:
    (action,) = update_work(Work(), said(step)).actions
    assert action_line(action, EN).endswith(line)


def test_a_persons_answer_is_no_result_that_outlives_it() -> None:
    answered = 'User has answered your questions: "Which port?"="8080".'
    work = update_work(Work(), said(("AskUserQuestion", {"questions": []}, answered)))
    assert work.actions[0].why == ""
    assert action_line(work.actions[0], EN).endswith("-> asked")


def test_a_failure_is_explained_once() -> None:
    text = made([Utterance(0, "user", "Fix it."), *said("Go on.", FAILED)], written=None).text
    assert text.count("1 failed, 30 passed") == 1
    assert text.count("bash(pytest -q)") == 1


def test_what_a_number_in_brackets_is_stands_once_in_a_record_with_the_room() -> None:
    said_ = [Utterance(0, "user", "Fix it."), Utterance(1, "assistant", "I do.")]
    assert made(said_).text.count("[n]") == 1
    assert "[n]" not in made(said_, budget=budget_of(1_500, 1_300)).text
    assert made([Utterance(0, "user", "修好它。"), Utterance(1, "assistant", "好的。")]).text.count("[n]") == 1


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((read("a.py"), ("Write", {"file_path": "a.py", "content": "z"}, "ok")), "overwritten"),
        ((edit(), ("Write", {"file_path": "a.py", "content": "z"}, "The file a.py has been updated.")), "overwritten"),
        ((("Write", {"file_path": "a.py", "content": "z"}, "The file a.py has been updated."),), "overwritten"),
        ((("Write", {"file_path": "a.py", "content": "z"}, "File created successfully at: a.py"),), "created"),
        ((read("a.py"), ran("echo z > a.py && echo done", "done\nexit code 0")), "overwritten"),
        ((read("a.py"), edit()), "modified"),
        ((read("a.py"), ("Write", {"file_path": "a.py", "content": "z"}, "ok"), edit()), "modified"),
    ],
)
def test_a_file_that_was_there_and_is_written_anew_is_told_as_overwritten(
    steps: tuple[tuple[str, object, str], ...], expected: str
) -> None:
    (file,) = update_work(Work(), said(*steps)).files
    assert f"({expected}" in file_line(file, EN)
    words = {"overwritten": "已覆盖", "created": "新建", "modified": "已修改"}
    assert words[expected] in file_line(file, ZH)


def test_what_a_call_is_about_is_masked_with_the_rest() -> None:
    key = "sk-ant-api03-" + "".join(chr(97 + i * 7 % 26) + str(i * 3 % 10) for i in range(24))
    record = made([Utterance(0, "user", "Go."), *said("Go.", ("run_tests", {"key": key}, "3 passed"))])
    assert key in record.actions[0].about
    assert not any(key in each.about for each in as_allowed(record, "mask").actions)


def test_a_record_of_before_has_calls_of_no_known_sort() -> None:
    old = msgspec.json.decode(b'{"tool": "bash", "arguments": "{}", "ok": true, "sure": true}', type=KeyAction)
    assert (old.sort, old.about, old.times) == ("", "", 1)
