"""Lines that only count what failed."""

import pytest

from policies.work.tallies import is_tally, what_failed


@pytest.mark.parametrize(
    "line",
    [
        "✖ 1 problem (1 error, 0 warnings)",
        "==== 1 failed, 7 passed in 0.50s ====",
        "Tests: 1 failed, 3 passed, 4 total",
        "Tests run: 5, Failures: 1, Errors: 0, Skipped: 0, Time elapsed: 0.2 sec",
        "Found 3 errors in 2 files (checked 5 source files)",
        "FAILED (failures=1)",
        "错误：3 个用例失败",
        "3件のテストが失敗",
        "테스트 3개 실패",
        "Fehler: 2 Tests fehlgeschlagen",
        "2 échecs, 1 erreur",
        "Ошибка: 3 теста не пройдено",
    ],
)
def test_a_line_of_numbers_and_words_of_counting_is_one(line: str) -> None:
    assert is_tally(line)


@pytest.mark.parametrize(
    "line",
    [
        "3 tests failed: no database",
        "error: no subject",
        "FAILED",
        "2 failed in test_cart.py",
        "端口 8080 已被占用",
        "4",
    ],
)
def test_a_line_that_says_what_it_was_or_counts_nothing_is_none(line: str) -> None:
    assert not is_tally(line)


def test_where_no_line_says_what_failed_nothing_is_told_instead() -> None:
    assert what_failed(["3 failed", "collected 12 items", "all of it"]) == ""
