"""Which line of a failed result says why."""

import pytest

from policies.tool_calls.reasons import is_tally, reason_of, what_failed


@pytest.mark.parametrize(
    "line",
    [
        "✖ 1 problem (1 error, 0 warnings)",
        "==== 1 failed, 7 passed in 0.50s ====",
        "Tests: 1 failed, 3 passed, 4 total",
        "Tests run: 5, Failures: 1, Errors: 0, Skipped: 0, Time elapsed: 0.2 sec",
        "Found 3 errors in 2 files (checked 5 source files)",
        "FAILED (failures=1)",
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


LOG = [
    "2026-11-10T01:07:09Z INFO tariff-worker[4427] audit took 368ms",
    "2026-11-10T01:07:12Z ERROR first attempt failed, retrying: coupon-worker[5749] took 124ms",
    "2026-11-10 01:07:15,120 DEBUG payout-worker reconcile id=532",
    "[01:07:16] 3 failed attempts so far",
    "Nov 10 01:07:17 host worker[3]: error: timed out",
    "INFO: 2 errors were repaired",
    "warning: unused variable",
]


@pytest.mark.parametrize(
    "line",
    [
        "1 failed, 308 passed in 3.52s",
        "测试完成：通过 308 项，失败 1 项",
        "テスト 308 件中 1 件失敗",
        "308 testes aprovados, 1 reprovado",
        "Пройдено тестов: 308, не пройдено: 1",
        "3 test superati, 1 non riuscito",
        "error: no subject",
    ],
)
@pytest.mark.parametrize("frame", ["{}", "Observation: {}", "Exit code: 1\nWall time: 0.3 seconds\nOutput:\n{}"])
def test_a_line_beside_a_log_says_why_and_no_line_of_the_log(line: str, frame: str) -> None:
    log = "\n".join(LOG)
    assert reason_of(frame.format(f"{log}\n{line}")) == line
    assert reason_of(frame.format(f"{log}\n{line}\n{log}\nin 3.2s")) == line


def test_of_a_log_alone_the_error_says_why() -> None:
    assert reason_of("\n".join(LOG[:2])) == LOG[1]
    assert reason_of(LOG[0]) == LOG[0]


def test_of_many_lines_the_last_one_says_why() -> None:
    assert reason_of("eins\nzwei\ndrei\nvier\nfünf\nnichts gefunden\nin 2.1s") == "nichts gefunden"
    assert reason_of("nichts gefunden\nmehr dazu: Handbuch") == "nichts gefunden"


def test_a_count_is_told_with_no_other_count_and_no_line_about_the_build() -> None:
    lines = ["BUILD FAILED in 41s", "FAILED", "42 tests completed, 3 failed"]
    assert what_failed(lines) == ""
    assert what_failed([*lines, "src/a.py: error: x"]) == "src/a.py: error: x"
