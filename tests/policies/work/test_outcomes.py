"""Outcomes of calls: ok only with evidence, failed with why, else not known."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.work.results import HELD_OUT, TUNED, Row
from policies.transcript import ToolCall, Utterance
from policies.work.calls import done_in
from policies.work.outcomes import Outcome


def outcome(text: str, *, tool: str = "run", arguments: str = "{}", error: bool | None = None) -> Outcome:
    (done,) = done_in(
        [
            Utterance(0, "assistant", "", (ToolCall(tool, arguments, "c"),)),
            Utterance(1, "tool", text, answers="c", error=error),
        ]
    )
    return done.outcome


@pytest.mark.parametrize("row", [*TUNED, *HELD_OUT], ids=lambda row: f"{row[0]}: {row[4][:50]!r}")
def test_no_result_is_called_ok_that_is_not(row: Row) -> None:
    _, tool, argument, error, text, expected = row
    given_ = {"path": argument, "command": argument, "commands": [argument]}
    keys = {"bash": "command", "exec_command": "command", "terminal": "command", "run_commands": "commands"}
    key = keys.get(tool, "path" if "/" in argument or "." in argument else "command")
    found = outcome(text, tool=tool, arguments=json.dumps({key: given_[key]}), error=error)
    assert found.result != "ok" or expected != "failed"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "Exit code 1\nhusky - pre-commit hook failed (add --no-verify)",
            "husky - pre-commit hook failed (add --no-verify)",
        ),
        ("....F.F\nsome output\n2 failed, 31 passed in 3.21s", "2 failed, 31 passed in 3.21s"),
        (
            "<tool_use_error>String to replace not found in file.\nString: x</tool_use_error>",
            "String to replace not found in file.",
        ),
        ("bash: make: command not found", "bash: make: command not found"),
        ("错误：3 个用例失败", "错误：3 个用例失败"),
    ],
)
def test_why_a_call_failed_is_told_in_one_line(text: str, why: str) -> None:
    assert outcome(text, error=True) == Outcome("failed", why)
    assert outcome(text).why == why


@pytest.mark.parametrize(
    ("error", "text", "expected"),
    [
        (True, "12 passed in 0.2s", "failed"),
        (False, "whatever came", "ok"),
        (False, "", "ok"),
        (None, "", "unknown"),
        (None, "whatever came", "unknown"),
        (False, "2 failed, 31 passed", "failed"),
        (False, "Exit code 3", "failed"),
    ],
)
def test_the_protocols_own_word_comes_first_but_hides_no_failure_that_is_seen(
    error: bool | None, text: str, expected: str
) -> None:
    assert outcome(text, error=error, arguments='{"command": "x"}').result == expected


@pytest.mark.parametrize(
    "text",
    [
        "0 failed, 12 passed",
        "no errors",
        "0 个错误",
        "エラーなし",
        "0 Fehler",
        "aucune erreur",
        "sin errores",
        "без ошибок",
    ],
)
def test_failures_that_there_are_none_of_are_no_failure(text: str) -> None:
    assert outcome(text).result != "failed"


def test_letters_that_are_written_as_escapes_are_read() -> None:
    assert outcome("\\u9519\\u8bef\\uff1a3 \\u4e2a\\u7528\\u4f8b\\u5931\\u8d25") == Outcome(
        "failed", "错误：3 个用例失败"
    )


@pytest.mark.parametrize("tool", ["read_file", "Read", "view", "open_file"])
def test_a_file_that_tells_of_errors_was_read(tool: str) -> None:
    content = "ERROR: connection refused\nfatal: failed to start\n" * 20
    assert outcome(content, tool=tool, arguments='{"path": "app.log"}') == Outcome("ok")
    assert outcome("File not found: app.log", tool=tool, arguments='{"path": "app.log"}').result == "failed"


WORDS = [
    "processing",
    "rows",
    "12",
    "http://x",
    "the",
    "owner",
    "is",
    "Dana",
    "\n",
    "{",
    "}",
    "中文",
    "ファイル",
    "=",
    ".",
]


@given(st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join))
def test_nothing_is_ok_without_a_word_of_it(text: str) -> None:
    assert outcome(text).result != "ok"


@given(
    st.text(max_size=300),
    st.sampled_from(["Exit code 1\n{}", "{}\n3 failed, 1 passed", "Traceback (most recent call last):\n{}"]),
)
def test_no_failed_call_is_ok_whatever_stands_beside(text: str, frame: str) -> None:
    assert outcome(frame.format(text.replace("{", "")), arguments='{"command": "make"}').result != "ok"


@given(
    st.text(max_size=2_000), st.sampled_from(["read_file", "bash", "edit", "x"]), st.sampled_from([None, True, False])
)
def test_any_text_is_judged(text: str, tool: str, error: bool | None) -> None:
    found = outcome(text, tool=tool, arguments='{"path": "a", "command": "ls"}', error=error)
    assert "\n" not in found.why
    assert found.result == "failed" if error else True
