"""What was tried in vain: kept until the same kind of call on the same target works."""

from __future__ import annotations

import pytest

from policies.tool_calls.attempts import Attempt, attempts_in
from policies.tool_calls.calls import done_in
from tests.support.calls import said

FAILED = ("bash", {"command": "cd app && pytest -q tests/a.py"}, "1 failed, 2 passed in 1s")


def attempts(*steps: tuple[str, object, str], older: tuple[Attempt, ...] = ()) -> list[Attempt]:
    return attempts_in(older, done_in(said(*steps)))


def test_a_failure_is_kept_with_why_into_later_records() -> None:
    (one,) = attempts(FAILED)
    assert (one.tool, one.why, one.kind, one.target) == ("bash", "1 failed, 2 passed in 1s", "pytest", ("tests/a.py",))
    assert attempts(("bash", {"command": "make"}, "Build succeeded."), older=(one,)) == [one]


@pytest.mark.parametrize(
    ("command", "result", "left"),
    [
        ("pytest tests/a.py", "3 passed in 1s", 0),
        ("pytest", "30 passed in 1s", 0),
        ("python -m pytest tests/a.py", "3 passed in 1s", 0),
        ("pytest tests/b.py", "3 passed in 1s", 1),
        ("pytest tests/a.py", "", 1),
        ("npm test", "Tests: 3 passed, 3 total", 1),
    ],
)
def test_only_a_success_of_the_same_kind_undoes_it(command: str, result: str, left: int) -> None:
    assert len(attempts(FAILED, ("bash", {"command": command}, result))) == left


def test_an_edit_that_works_later_undoes_the_one_that_did_not() -> None:
    edit = {"file_path": "a.py", "old_string": "x", "new_string": "y"}
    failed = ("Edit", edit, "Error: old_string not found in file")
    assert len(attempts(failed)) == 1
    assert attempts(failed, ("Write", {"file_path": "a.py", "content": "y"}, "The file a.py has been updated.")) == []
    assert len(attempts(failed, ("Edit", edit | {"file_path": "b.py"}, "The file b.py has been updated."))) == 1


def test_what_fails_again_is_told_once_with_how_often() -> None:
    (one,) = attempts(FAILED, FAILED, FAILED)
    assert (one.times, one.position) == (3, 4)
