"""What a call is to whoever goes on: checks, changes and reads, in the words of many tools and languages."""

from __future__ import annotations

import json

import pytest

from policies.conversation.transcript import ToolCall
from policies.record.actions import Work, key_actions, update_work
from policies.record.rules import file_read_by
from policies.tool_calls.calls import done_in
from policies.tool_calls.sorts import covers, sort_of
from tests.support.calls import said


def sort(tool: str, arguments: object, result: str = "done") -> tuple[str, str]:
    return sort_of(done_in(said((tool, arguments, result)))[0])


def ran(command: str) -> tuple[str, str]:
    return sort("bash", {"command": command})


@pytest.mark.parametrize(
    ("command", "about"),
    [
        ("pytest -q tests/a.py", "pytest\ttests/a.py"),
        ("cd app && python -m pytest 2>&1 | tail -5", "pytest"),
        ("uv run pytest tests", "pytest\ttests"),
        ("npm test", "npm test"),
        ("npm run test", "npm test"),
        ("pnpm run lint:fix-imports", ""),
        ("yarn typecheck", "yarn typecheck"),
        ("npx tsc --noEmit", "tsc"),
        ("npx eslint src/a.ts", "eslint\tsrc/a.ts"),
        ("cargo clippy --all", "cargo clippy"),
        ("go vet ./...", "go vet\t./..."),
        ("make check", "make check"),
        ("mvn -q verify", "mvn -q\tverify"),
        ("./gradlew build", "gradlew\tbuild"),
        ("bash scripts/test.sh", "bash scripts/test.sh\tscripts/test.sh"),
        ("./run_tests.sh", "run_tests.sh"),
        ("ruff check . && mypy", "ruff\tcheck\t.\nmypy"),
        ("bundle exec rspec", ""),
        ("docker build .", "docker build\t."),
    ],
)
def test_a_run_of_tests_a_build_or_lint_is_a_check_and_says_of_what(command: str, about: str) -> None:
    assert ran(command) == (("check", about) if about else ("", ""))


@pytest.mark.parametrize(
    "command",
    [
        *("npm ci", "npm install", "make clean", "make run", "go run ./cmd/test", "docker run test-image"),
        *("rm -rf build", "cat tests/a.py", "mkdir build", "git checkout -b test", "gh pr checks 5", "ls tests"),
        *(
            "[ -f build ] && echo yes",
            "test -d build",
            "npm run dev",
            "ruff format .",
            "vim test.py",
            "playwright install",
            "npm run lint:fix",
            "npm run test-serve",
        ),
    ],
)
def test_what_only_has_such_a_word_is_no_check(command: str) -> None:
    assert ran(command)[0] != "check"


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("run_tests", {}, ("check", "run_tests")),
        ("mcp__ide__runTests", {"suite": "unit"}, ("check", 'mcp__ide__runTests\t{"suite": "unit"}')),
        ("Edit", {"file_path": "a.py", "old_string": "x", "new_string": "y"}, ("change", "")),
        ("bash", {"command": "git commit -m 'test'"}, ("change", "")),
        ("bash", {"command": "sed -i s/a/b/ c.py"}, ("change", "")),
        ("check_order", {"id": 4}, ("", "")),
        ("Read", {"file_path": "a.py", "offset": 40}, ("read", "a.py")),
        ("bash", {"command": "sed -n '1,80p' src/a.py"}, ("read", "src/a.py")),
        ("bash", {"command": "cd src && cat a.py"}, ("read", "src/a.py")),
        ("bash", {"command": "cat a.py b.py"}, ("read", "")),
        ("Grep", {"pattern": "x", "path": "a.py"}, ("read", "")),
        ("TodoWrite", {"todos": []}, ("plan", "")),
    ],
)
def test_tools_have_the_sort_of_what_they_do(tool: str, arguments: object, expected: tuple[str, str]) -> None:
    assert sort(tool, arguments) == expected


@pytest.mark.parametrize(
    ("later", "earlier", "does"),
    [
        ("pytest tests/a.py", "pytest tests/a.py", True),
        ("pytest", "pytest tests/a.py", True),
        ("pytest tests/a.py", "pytest", False),
        ("pytest tests/b.py", "pytest tests/a.py", False),
        ("cargo test", "npm test", False),
        ("ruff check . && mypy", "mypy", True),
        ("mypy", "ruff check . && mypy", False),
    ],
)
def test_a_run_covers_the_same_and_what_was_run_on_less(later: str, earlier: str, *, does: bool) -> None:
    assert covers(ran(later)[1], ran(earlier)[1]) is does


READINGS = [
    *(
        "cat a.py",
        "sed -n '1,80p' a.py",
        "sed -n 5p a.py",
        "sed -n '1,5p;9,12p' a.py",
        "head -50 a.py",
        "tail -n 20 a.py",
    ),
    *("nl -ba a.py | sed -n '10,20p'", "cat a.py | head -20", "cat -n a.py | tail -5", "cd src && less a.py"),
]
NO_READINGS = [
    *("grep -n x a.py", "rg x a.py", "cat a.py | grep x", "sed 's|a|b|' a.py", "sed -n '/def x/p' a.py", "wc -l a.py"),
    *("ls a.py", "find . -name a.py", "stat a.py", "git log a.py", "cat a.py b.py", "cat a.py; cat b.py", "file a.py"),
    *(
        "git diff a.py",
        "awk '{print $1}' a.py",
        "cat a.py | sort",
        "cat a.py > b.py",
        "sed -i 1d a.py",
        "cat a.py | sed s/a/b/",
    ),
]
FILE: dict[str, object] = {"path": "a.py"}
READING_TOOLS: list[tuple[str, dict[str, object]]] = [
    ("Read", {"file_path": "a.py"}),
    ("read_file", {"target_file": "a.py", "start_line": 3, "end_line": 9}),
    ("view", {"path": "a.py", "view_range": [1, 9]}),
    ("str_replace_editor", {"command": "view", **FILE}),
    ("get_file_contents", FILE),
    ("mcp__fs__read_text_file", FILE),
    ("open_file", FILE),
]
OTHER_TOOLS: list[tuple[str, dict[str, object]]] = [
    ("Grep", {"pattern": "x", **FILE}),
    ("search_in_file", {"query": "x", **FILE}),
    ("read_file", {"pattern": "x", **FILE}),
    ("list_files", FILE),
    ("list_directory", FILE),
    ("read_lints", FILE),
    ("lint_file", FILE),
    ("get_diagnostics", FILE),
    ("get_file_info", FILE),
    ("file_outline", FILE),
    ("get_symbols", FILE),
    ("find_references", FILE),
    ("Write", {"content": "x", **FILE}),
    ("Edit", {"old_string": "x", "new_string": "y", **FILE}),
    ("str_replace_editor", {"command": "create", "file_text": "x", **FILE}),
]


@pytest.mark.parametrize("command", READINGS)
def test_a_command_that_shows_a_files_lines_reads_it(command: str) -> None:
    assert ran(command) == ("read", "src/a.py" if "src" in command else "a.py")


@pytest.mark.parametrize("command", NO_READINGS)
def test_a_command_that_searches_lists_or_changes_reads_no_file(command: str) -> None:
    assert ran(command)[1] == "" or ran(command)[0] != "read"


@pytest.mark.parametrize(("tool", "arguments"), READING_TOOLS)
def test_a_tool_that_returns_a_files_text_reads_it(tool: str, arguments: dict[str, object]) -> None:
    assert sort(tool, arguments) == ("read", "a.py")


@pytest.mark.parametrize(("tool", "arguments"), OTHER_TOOLS)
def test_no_other_tool_reads_a_file_or_folds_a_reading(tool: str, arguments: dict[str, object]) -> None:
    assert sort(tool, arguments)[1] == "" or sort(tool, arguments)[0] != "read"
    lines = "1\tx = 1\n2\ty = 2"
    steps = [("Read", {"file_path": "a.py"}, lines), (tool, arguments, lines), ("Read", {"file_path": "a.py"}, lines)]
    assert [action.tool for action in key_actions(said(*steps))] == ["Read", tool, "Read"]
    assert len(update_work(Work(), said(*steps)).actions) == 2
    assert file_read_by(ToolCall(tool, json.dumps(arguments), "c")) is None
