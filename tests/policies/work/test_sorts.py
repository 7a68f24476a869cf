"""What a call is to whoever goes on: checks, changes and reads, in the words of many tools and languages."""

from __future__ import annotations

import pytest

from policies.work.calls import done_in
from policies.work.sorts import covers, sort_of
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
