"""Outcomes of calls: ok only with evidence, failed with why, else not known."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.transcript import ToolCall, Utterance
from policies.tool_calls.calls import done_in
from policies.tool_calls.outcomes import Outcome
from tests.support.tool_rows.results import FIRST, SECOND, Row
from tests.support.tool_rows.tool_outputs import ROWS


def outcome(text: str, *, tool: str = "run", arguments: str = "{}", error: bool | None = None) -> Outcome:
    (done,) = done_in(
        [
            Utterance(0, "assistant", "", (ToolCall(tool, arguments, "c"),)),
            Utterance(1, "tool", text, answers="c", error=error),
        ]
    )
    return done.outcome


@pytest.mark.parametrize("row", [*FIRST, *SECOND], ids=lambda row: f"{row[0]}: {row[4][:50]!r}")
def test_no_result_is_called_ok_that_is_not(row: Row) -> None:
    _, tool, argument, error, text, expected = row
    given_ = {"path": argument, "command": argument, "commands": [argument]}
    keys = {"bash": "command", "exec_command": "command", "terminal": "command", "run_commands": "commands"}
    key = keys.get(tool, "path" if "/" in argument or "." in argument else "command")
    found = outcome(text, tool=tool, arguments=json.dumps({key: given_[key]}), error=error)
    assert found.result != "ok" or expected != "failed"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}: {row[4][:50]!r}")
def test_a_result_of_a_real_tool_proves_what_it_proves(row: Row) -> None:
    _, tool, argument, error, text, expected = row
    key = "path" if tool in ("read_file", "edit_file", "write_file") else "command" if tool == "bash" else "query"
    assert outcome(text, tool=tool, arguments=json.dumps({key: argument}), error=error).result == expected


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
    ("text", "why"),
    [
        ("husky - pre-commit hook exited with code 1\nerror: no subject", "no subject"),
        ('src/a.ts(3,1): error TS2304: Cannot find name x.\nerror: script "test" exited with code 1', "TS2304"),
        (
            "bun test v1\n"
            "\n"
            "1 | expect(1).toBe(2)\n"
            "error: expect(received).toBe(expected)\n"
            "\n"
            'error: script "test" exited with code 1',
            "toBe(expected)",
        ),
        ('error: script "test" exited with code 1', 'script "test"'),
        (
            "Traceback (most recent call last):\n"
            '  File "a.py", line 3, in <module>\n'
            "    f()\n"
            '  File "a.py", line 1, in f\n'
            '    raise ValueError("no rows")\n'
            "ValueError: no rows",
            "ValueError: no rows",
        ),
        (
            "Traceback (most recent call last):\n"
            '  File "a.py", line 3, in <module>\n'
            "    main()\n"
            '  File "m.py", line 1\n'
            "    raise NoRows(3)\n"
            "m.NoRows: three rows are missing",
            "three rows are missing",
        ),
        (
            "thread 'main' panicked at src/main.rs:4:5:\n"
            "index out of bounds: the len is 3 but the index is 7\n"
            "note: run with `RUST_BACKTRACE=1`",
            "index out of bounds",
        ),
        ("make: *** [Makefile:3: test] Error 1", "Error 1"),
        (
            "cc -o a a.c\na.c:3:5: error: unknown type name 'foo'\nmake: *** [Makefile:3: a] Error 1",
            "unknown type name",
        ),
        (
            "> app@1 build\n"
            "> vite build\n"
            "\n"
            "error during build:\n"
            'RollupError: Could not resolve "./x" from "src/main.ts"\n'
            "    at getRollupError",
            "Could not resolve",
        ),
        ('ERROR: process "/bin/sh -c pip install x" did not complete successfully: exit code: 1', "did not complete"),
        (
            "#9 ERROR: No matching distribution found for x\n"
            "------\n"
            'ERROR: failed to solve: process "/bin/sh -c pip install x" did not complete successfully: exit code: 1',
            "No matching distribution",
        ),
        ("subprocess.CalledProcessError: Command '['git', 'push']' returned non-zero exit status 128.", "git"),
        (
            "fatal: unable to access 'https://x': Could not resolve host\n"
            "subprocess.CalledProcessError: Command '['git', 'push']' returned non-zero exit status 128.",
            "Could not resolve host",
        ),
        ("Exit code 2\nusage: a.py [-h]\na.py: error: unrecognized arguments: --x", "unrecognized arguments"),
        ('Exception in thread "main" java.lang.IllegalStateException: no port\n\tat A.main(A.java:3)', "no port"),
        ("Command failed with exit code 1: tsc --noEmit\nsrc/a.ts(1,2): error TS1005: ';' expected.", "TS1005"),
        ("Process exited with code 1: module not found", "module not found"),
        ("Error: Process completed with exit code 1.", "exit code 1"),
        ("命令失败，退出码 1\n端口 8080 已被占用", "已被占用"),
        (
            "The user doesn't want to proceed with this tool use. The tool use was rejected. "
            "To tell you how to proceed, the user said:\n"
            "no, write a down migration",
            "refused",
        ),
        (
            "panic: runtime error: index out of range [3] with length 2\n\ngoroutine 1 [running]:\nmain.main()",
            "index out of range",
        ),
        ("FAIL\texample.com/app [build failed]", "build failed"),
        ("# example.com/app\n./main.go:3:2: undefined: foo\nFAIL\texample.com/app [build failed]", "undefined: foo"),
        ('error: could not compile `app` (bin "app") due to 1 previous error', "could not compile"),
        (
            "error[E0308]: mismatched types\n"
            " --> src/main.rs:2:5\n"
            'error: could not compile `app` (bin "app") due to 1 previous error',
            "mismatched types",
        ),
        ("FAILED\n1 failed, 2 passed", "1 failed"),
        ("Request failed with status code 404", "404"),
        ("ELIFECYCLE  Command failed with exit code 1.\n", "exit code 1"),
        (
            "✖ subject may not be empty [subject-empty]\nhusky - commit-msg script failed (code 1)",
            "subject may not be empty",
        ),
        (
            "Traceback (most recent call last):\n"
            + "".join(f'  File "m{i}.py", line {i}, in <module>\n    call_number_{i}()\n' for i in range(60))
            + "m.NoRows: three rows are missing",
            "three rows are missing",
        ),
    ],
)
@pytest.mark.parametrize("error", [None, True])
def test_a_line_that_only_wraps_a_failure_gives_way_to_what_says_why(
    text: str, why: str, *, error: bool | None
) -> None:
    found = outcome(text, error=error)
    assert found.result == "failed"
    assert why in found.why


@pytest.mark.parametrize(
    ("text", "says", "why"),
    [
        ("错误：\n找不到文件 配置.yaml", "错误： 找不到文件 配置.yaml", "找不到文件 配置.yaml"),
        (
            "Fehler:\nDatei nicht gefunden: messung.csv",
            "Fehler: Datei nicht gefunden: messung.csv",
            "Datei nicht gefunden: messung.csv",
        ),
        (
            "/repo/x.js:3\n  foo()\n  ^\n\nReferenceError: foo is not defined\n"
            "    at Object.<anonymous> (/repo/x.js:3:3)",
            "ReferenceError: foo is not defined",
            "ReferenceError: foo is not defined",
        ),
    ],
)
def test_an_unproven_failure_that_a_line_wraps_is_quoted(text: str, says: str, why: str) -> None:
    assert outcome(text) == Outcome("unknown", says)
    assert outcome(text, error=True) == Outcome("failed", why)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("42 rows", "42 rows"),
        ('  {"rows": 42}\n', '{"rows": 42}'),
        ("first\nsecond", "first second"),
        ("a\nb\nc", "c"),
        ("word " * 60, "word " * 59 + "word"),
        ("word " * 80, "word " * 60 + "…"),
        ("a\nb\n3 test superati, 1 non riuscito\nin 2.3s\n----", "3 test superati, 1 non riuscito"),
        ('[\n{"a": 1},\n{"a": 2}\n]', '[ {"a": 1}, {"a": 2} ]'),
        ("[Old tool result content cleared]", ""),
        ("", ""),
    ],
)
def test_a_short_result_of_which_nothing_is_known_is_told_in_its_own_words(text: str, told: str) -> None:
    assert outcome(text, tool="count_things") == Outcome("unknown", told)


@pytest.mark.parametrize(
    ("command", "text", "told"),
    [
        ("python plot.py", "saved sales.png\nexit code 0", "saved sales.png"),
        ("pip install x", "Successfully installed x-3.9", "Successfully installed x-3.9"),
        ("./a.sh", "Exit code: 0\nWall time: 0.3 seconds\nOutput:\nthree rows", "three rows"),
        ("./a.sh", "Exit code: 0\nDone.", ""),
        ("./a.sh", "Exit code: 0\nOutput:\n", ""),
        ("cat a.py", "a\nb\nc\nd", ""),
        ("./a.sh", "Exit code: 0\na.py\n\n<system-reminder>\nThe user said: use tabs\n</system-reminder>", "a.py"),
        ("pytest -q", "....\n\n31 passed in 2.10s", "31 passed in 2.10s"),
    ],
)
def test_a_short_result_of_what_worked_in_a_shell_is_told_in_its_own_words(command: str, text: str, told: str) -> None:
    assert outcome(text, tool="bash", arguments=json.dumps({"command": command})) == Outcome("ok", told)


def test_what_tools_say_of_files_and_plans_that_they_wrote_is_not_told() -> None:
    arguments = '{"file_path": "a.py", "old_string": "x", "new_string": "y"}'
    assert outcome("The file a.py has been updated.", tool="Edit", arguments=arguments) == Outcome("ok")
    assert outcome("Todos have been modified.", tool="TodoWrite", error=False) == Outcome("ok")


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
    assert outcome("\\u0031 failed, 2 passed in 1s").result == "failed"


@pytest.mark.parametrize("tool", ["read_file", "Read", "view", "open_file"])
def test_a_file_that_tells_of_errors_was_read(tool: str) -> None:
    content = "ERROR: connection refused\nfatal: failed to start\n" * 20
    assert outcome(content, tool=tool, arguments='{"path": "app.log"}') == Outcome("ok")
    assert outcome("File not found: app.log", tool=tool, arguments='{"path": "app.log"}').result == "unknown"


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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "src/parser.ts\n  4:1  error  Missing return type  explicit-return\n\n1 problem (1 error, 0 warnings)\n"
            "  1 error and 0 warnings potentially fixable with the `--fix` option.",
            "1 problem (1 error, 0 warnings) … 4:1 error Missing return type explicit-return",
        ),
        (
            "src/a.ts(3,1): error TS2322: Type 'x' is not assignable.\n\nFound 3 errors in 2 files.",
            "Found 3 errors in 2 files. … src/a.ts(3,1): error TS2322: Type 'x' is not assignable.",
        ),
        (
            "a.py:1:8: F401 `os` imported but unused\nFound 1 error.\n[*] 1 fixable with the `--fix` option.",
            "Found 1 error. … a.py:1:8: F401 `os` imported but unused",
        ),
        (
            "  3 passing (20ms)\n  1 failing\n\n  1) cart\n       adds up:\n     AssertionError: expected 3 to equal 4",
            "1 failing … AssertionError: expected 3 to equal 4",
        ),
        ("all of it\n1 failed, 30 passed in 2.10s", "1 failed, 30 passed in 2.10s"),
        ("FAILED a.py::test_x - KeyError: 'k'\n1 failed, 7 passed", "FAILED a.py::test_x - KeyError: 'k'"),
    ],
)
@pytest.mark.parametrize("error", [None, True])
def test_a_line_that_only_counts_what_failed_is_told_with_one_that_says_what(
    text: str, why: str, *, error: bool | None
) -> None:
    found = outcome(text, tool="bash", arguments='{"command": "make check"}', error=error)
    assert found.result == "failed"
    assert found.why.endswith(why)


@pytest.mark.parametrize(
    ("text", "says", "why"),
    [
        (
            "错误：3 个用例失败\ntest_导入.py::test_重试 失败",
            "错误：3 个用例失败 test_导入.py::test_重试 失败",
            "错误：3 个用例失败",
        ),
        (
            "3件のテストが失敗\ntest_検索.py::test_空 失敗",
            "3件のテストが失敗 test_検索.py::test_空 失敗",
            "3件のテストが失敗",
        ),
        (
            "Fehler: 2 Tests fehlgeschlagen\ntest_messung: Fehler, 2,6 statt 2,7",
            "Fehler: 2 Tests fehlgeschlagen test_messung: Fehler, 2,6 statt 2,7",
            "Fehler: 2 Tests fehlgeschlagen",
        ),
        ("Error: 2 failed, 31 passed", "Error: 2 failed, 31 passed", "Error: 2 failed, 31 passed"),
        (
            "3 tests failed: no database\na.py: error",
            "3 tests failed: no database a.py: error",
            "3 tests failed: no database",
        ),
    ],
)
def test_an_unproven_failure_that_a_line_counts_is_quoted(text: str, says: str, why: str) -> None:
    assert outcome(text, tool="bash", arguments='{"command": "make check"}') == Outcome("unknown", says)
    assert outcome(text, tool="bash", arguments='{"command": "make check"}', error=True) == Outcome("failed", why)


@pytest.mark.parametrize("tool", ["Task", "Agent", "spawn_agent", "dispatch_agent", "wait_agent"])
@pytest.mark.parametrize(
    "report",
    [
        "The error handler in src/a.ts is missing. Two tests failed before the change.",
        "Error: the login endpoint returns 500. That is the bug I was asked to find.",
        "3 failed, 2 passed",
        "Der Build ist fehlgeschlagen, weil die Datei nicht gefunden wurde.",
        "原因：请求失败，超时。",
    ],
)
def test_a_report_that_tells_of_failures_is_no_failed_call(tool: str, report: str) -> None:
    arguments = json.dumps({"prompt": "look", "description": "look"})
    assert outcome(report, tool=tool, arguments=arguments).result == "unknown"
    assert outcome(report, tool=tool, arguments=arguments, error=False).result == "ok"
    assert outcome(report, tool=tool, arguments=arguments, error=True).result == "failed"


@pytest.mark.parametrize(
    "text",
    ["Agent type 'x' not found. Available agents: a", "<tool_use_error>InputValidationError: x</tool_use_error>"],
)
def test_another_agent_that_was_not_called_is_a_failure(text: str) -> None:
    assert outcome(text, tool="Task", arguments='{"prompt": "x"}').result == "failed"


@pytest.mark.parametrize(
    ("tool", "arguments", "text", "result"),
    [
        ("KillShell", {"shell_id": "b1"}, "Successfully killed shell: b1 (npm run dev)", "ok"),
        ("KillBash", {"shell_id": "b1"}, '{"message": "Successfully killed shell: b1"}', "ok"),
        ("kill_process", {"pid": 3}, "Process 3 terminated (killed by SIGTERM)", "unknown"),
        ("cancel_job", {"id": 3}, "Job 3 was cancelled by request", "unknown"),
        ("bash", {"command": "kill %1"}, "[1]+  Killed                  npm run dev", "unknown"),
        ("KillShell", {"shell_id": "b1"}, "No shell found with ID: b1. It could not be killed.", "failed"),
        ("bash", {"command": "make"}, "Killed", "failed"),
        ("process", {"action": "kill", "session_id": "3"}, "Killed session 3.", "unknown"),
        ("process", {"action": "poll", "session_id": "3"}, "Killed by signal 9.", "failed"),
        ("terminal", {"operation": "stop_session"}, "Session 3 was aborted.", "unknown"),
        ("terminate_process", {"pid": 3}, "Process 3 terminated: killed (SIGKILL), exit code 137", "ok"),
        ("terminate_process", {"pid": 3}, '{"exit_code": -15}', "ok"),
        ("terminate_process", {"pid": 3}, "kill: (3) - No such process, exit code 1", "failed"),
        ("run_process", {"pid": 3}, "Process 3: exit code 137", "failed"),
    ],
)
def test_what_ends_something_has_not_failed_because_that_is_ended(
    tool: str, arguments: object, text: str, result: str
) -> None:
    assert outcome(text, tool=tool, arguments=json.dumps(arguments)).result == result


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Wall time: 0.3 seconds\nProcess exited with code 1\nOutput:\nE assert 1", "E assert 1"),
        ("Chunk ID: 4f\nWall time: 0.3 seconds\nProcess exited with code 1\nOutput:\n", "exit code 1"),
        ("Exit code: 2\nDuration: 12ms\nOutput:\nnothing to do for x", "nothing to do for x"),
        ("Exit code 1\n\nreal\t0m0.003s\nuser\t0m0.001s\nsys\t0m0.002s\nlint: x", "lint: x"),
        ("Script failed\nWall time 0.1 seconds\nOutput:\n\nScript error:\nTypeError: x is undefined", "TypeError: x"),
        ("Exit code: 1\nElapsed time: 3 s\nstderr:\nno rows", "no rows"),
    ],
)
def test_a_failure_is_told_by_no_duration_or_heading(text: str, why: str) -> None:
    found = outcome(text, tool="shell", arguments='{"command": "x"}')
    assert (found.result, found.why[: len(why)]) == ("failed", why)


@pytest.mark.parametrize(
    ("tool", "text", "expected"),
    [
        (
            "apply_patch",
            "Exit code: 0\nWall time: 0.1 seconds\nOutput:\nSuccess. Updated the following files:\nM a.py",
            ("ok", ""),
        ),
        ("apply_patch", "Exit code: 1\nWall time: 0 seconds\nOutput:\nno such hunk", ("failed", "no such hunk")),
        (
            "apply_patch",
            "apply_patch verification failed: Failed to find expected lines in a.py:\n    taken = nil",
            ("failed", "apply_patch verification failed: Failed to find expected lines in a.py: taken = nil"),
        ),
        (
            "exec_command",
            '{"chunk_id": "0000a8", "wall_time_seconds": 0.04, "exit_code": 0, "output": "0 errors, 4 warnings"}',
            ("ok", "0 errors, 4 warnings"),
        ),
        ("run", "Observation: \n(Open file: n/a)\n(Current directory: /srv/app)\nbash-$", ("unknown", "")),
        ("terminal", "[The command completed with exit code 0.]\n[Current working directory: /r]", ("ok", "")),
        ("run", "strange\n(Open file: n/a)\n(Current directory: /r)\nbash-$", ("unknown", "strange")),
    ],
)
def test_what_a_harness_puts_around_an_output_is_not_told(tool: str, text: str, expected: tuple[str, str]) -> None:
    arguments = {"input": "*** Begin Patch\n*** End Patch"} if tool == "apply_patch" else {"command": "x"}
    found = outcome(text, tool=tool, arguments=json.dumps(arguments))
    assert (found.result, found.why) == expected


def test_the_line_that_says_why_is_quoted_whole() -> None:
    line = "The error handler of the 0 errors page was not found"
    assert outcome(f"a\nb\nsome output\n{line}").why == line


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("✓ handles errors (3 ms)\n✓ fails on invalid input (2 ms)\n\nTests: 2 passed, 2 total", "ok"),
        ("test fails on bad input ... ok\n2 passed in 1s", "ok"),
        ("ok 1 - access denied by the guard\nok 2 - request rejected\n# pass 2", "ok"),
        ("--- PASS: TestLogin/fails when denied (0.00s)\nPASS\nok  \ta/b\t0.002s", "ok"),
        ("PASS src/failed login.test.js\nTests: 4 passed, 4 total", "ok"),
        ("✓ fails on invalid input (2 ms)\n✗ adds\n\nTests: 1 failed, 1 passed", "failed"),
        ("✓ 12 passed, 1 failed", "failed"),
        ("✓ lint ✗ test", "unknown"),
        ("ok 1 - fails\nnot ok 2 - adds", "failed"),
    ],
)
def test_the_name_of_a_test_that_has_passed_is_no_failure(text: str, result: str) -> None:
    found = outcome(text, tool="bash", arguments='{"command": "npm test"}')
    assert found.result == result
    assert "invalid input" not in found.why


@pytest.mark.parametrize(
    "text",
    [
        "Found 2 matches of the string to replace, but replace_all is false. To replace all occurrences, set it.",
        "Found 3 occurrences of old_string; pass replace_all.",
        "found multiple matches",
    ],
)
def test_an_edit_with_more_places_than_it_may_change_has_failed(text: str) -> None:
    assert outcome(text, tool="Edit", arguments='{"file_path": "a.py"}') == Outcome("failed", text)


def test_an_edit_of_several_places_has_not_failed() -> None:
    text = "Found 2 matches and replaced them. The file has been updated."
    assert outcome(text, tool="Edit", arguments='{"file_path": "a.py"}').result == "unknown"


@pytest.mark.parametrize(
    ("command", "text", "result"),
    [
        ("cat log.txt | tail -5", "ERROR: something failed\nFATAL: x", "unknown"),
        ("tail -1 app.log", "connection refused by user db", "unknown"),
        ("docker logs web | tail -1", "Error: cannot connect", "unknown"),
        ("journalctl -u web -n 1", "web[3]: failed, permission denied", "unknown"),
        ("git show HEAD:notes", "Error: not found is what it says", "unknown"),
        ("systemctl status web", "Active: failed (Result: exit-code)", "unknown"),
        ("gh run list", "X  failed  CI", "unknown"),
        ("gh pr checks 3", "build fail 3s", "unknown"),
        ("kubectl get pods", "a 0/1 Error 3", "unknown"),
        ("crontab -l", "0 1 * * * failed-jobs", "unknown"),
        ("tmux capture-pane -p", "Error: failed", "unknown"),
        ("cat log.txt", "cat: log.txt: No such file or directory", "unknown"),
        ("cat log.txt | tail -5", "/bin/bash: line 1: cat: command not found", "unknown"),
        ("tail log.txt", "tail: cannot open 'log.txt' for reading: No such file or directory", "unknown"),
        ("bat log.txt", "[bat error]: 'log.txt': No such file or directory (os error 2)", "unknown"),
        ("git show x", "fatal: path 'x' does not exist in 'HEAD'", "unknown"),
        ("docker logs web", "Error response from daemon: container web not found", "unknown"),
        ("ls x", "ls: cannot access 'x': No such file or directory", "failed"),
        ("gh run rerun 3", "failed to rerun: HTTP 403", "unknown"),
        ("systemctl restart web", "Job for web.service failed.", "unknown"),
        ("gh issue create -t x", "GraphQL: was not found", "unknown"),
    ],
)
def test_what_a_command_shows_is_no_failure_of_it(command: str, text: str, result: str) -> None:
    assert outcome(text, tool="bash", arguments=json.dumps({"command": command})).result == result


LOGGED = "2026-11-19T02:07:09Z ERROR first attempt failed, retrying: cart-worker[3517] collect took 808ms"


@pytest.mark.parametrize(
    ("command", "text", "error", "result"),
    [
        ("./test.sh cart", f"{LOGGED}\n31 passed, 0 failed in 2.1s\nexit code 0", None, "ok"),
        ("./test.sh cart", f"{LOGGED}\n31 passed, 0 failed in 2.1s", False, "ok"),
        ("./test.sh cart", f"{LOGGED}\n测试完成：通过 31 项，失败 0 项", False, "ok"),
        ("./test.sh cart", f"{LOGGED}\n测试完成：通过 31 项，失败 0 项", None, "unknown"),
        ("./test.sh cart", f"{LOGGED}\n1 failed, 30 passed in 2.1s", False, "failed"),
        (
            "cat src/cart.py",
            'raise RuntimeError("error: it failed")\nFAILED = "failed"\nprint("Error: 3 failed")',
            None,
            "unknown",
        ),
        ("cat src/cart.py", 'FAILED = "failed"', None, "unknown"),
        ("curl -s x/health", '{"failed":0,"errors":0,"last_error":"timeout"}', None, "unknown"),
        (
            "curl -s x/health",
            '{"status":"ok","errors":0,"failed":0,"error":null,"last_error":"timeout"}',
            False,
            "unknown",
        ),
    ],
)
def test_a_word_of_failure_beside_a_run_that_passed_is_no_failure(
    command: str, text: str, error: bool | None, result: str
) -> None:
    found = outcome(text, tool="bash", arguments=json.dumps({"command": command}), error=error)
    assert found.result == result
    assert "attempt" not in found.why


@pytest.mark.parametrize(
    "line", ["失败 1 项，通过 30 项", "30 testes aprovados, 1 reprovado", "1 failed, 30 passed in 2.1s"]
)
def test_a_failure_is_told_by_no_line_of_a_log(line: str) -> None:
    text = "\n".join([LOGGED, LOGGED.replace("ERROR", "INFO"), line, "in 2.1s"])
    arguments = '{"command": "./test.sh"}'
    assert outcome(text, tool="bash", arguments=arguments, error=True) == Outcome("failed", line)


def test_of_a_result_in_json_its_texts_say_why() -> None:
    result = {"returncode": 1, "output": f"{LOGGED}\n1 failed, 30 passed in 2.1s\n"}
    text = json.dumps(result, indent=1)
    assert (
        outcome(text, tool="bash", arguments='{"command": "./test.sh"}', error=True).why
        == "1 failed, 30 passed in 2.1s"
    )
    assert outcome(text, tool="bash", arguments='{"command": "./test.sh"}').why == "1 failed, 30 passed in 2.1s"


def test_a_count_says_more_than_the_line_that_the_build_failed() -> None:
    text = "> Task :test\n42 tests completed, 3 failed\n\nBUILD FAILED in 41s"
    found = outcome(text, tool="bash", arguments='{"command": "./gradlew test"}')
    assert found == Outcome("failed", "42 tests completed, 3 failed")
