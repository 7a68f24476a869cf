"""What a run says of the tests that it left out."""

from __future__ import annotations

from tests.support.skips import skip_lines


def test_skipped_tests_are_grouped_by_what_brings_them() -> None:
    reasons = [
        "Skipped: codex is not installed: run `make agents`",
        *["Skipped: opencode is not installed: run `make agents`"] * 2,
        "there are no WebSockets on this path",
        *["the reference data is not there: set CONCERTINA_REFERENCE to its folder"] * 4,
    ]
    assert list(skip_lines(reasons)) == [
        "     4  set CONCERTINA_REFERENCE to its folder (the reference data is not there)",
        "     3  run `make agents` (codex is not installed; opencode is not installed)",
        "     1  nothing: they do not apply here (there are no WebSockets on this path)",
    ]
