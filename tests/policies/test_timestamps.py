"""Dates and clock times are taken out of long texts in pieces, as if they were taken out at once."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation import timestamps as stamps
from policies.conversation.timestamps import harness_spans, without_stamps

WORDS = [
    *("2024-05-06", "2024-05-06T10:55:33Z", "at 10:55:33 PM", "March 5, 2023 10:44", "3 Jan 2024", "2024年5月6日"),
    *(
        "Mon Jan  3 10:11:12 UTC 2024",
        "[10:44]",
        "9点30分",
        "1999",
        "v1.2.3",
        "src/a.py:12:33",
        "10:1",
        "May",
        "\n",
        ".",
    ),
]
TEXTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=40).map(" ".join)


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("done at 10:55:33 in 2s", "done at ⌚ in 2s"),
        ("on 3 Jan 2024 it", "on ⌚ it"),
        ("in 1999 and 2024, 5 of May", "in 1999 and 2024, 5 of May"),
        ("9点30分 开会", "⌚ 开会"),
        ("app.py:10:33: error", "app.py:10:33: error"),
    ],
)
def test_only_what_is_a_stamp_is_taken_out(text: str, without: str) -> None:
    assert without_stamps(text) == without


@given(TEXTS, st.integers(min_value=1, max_value=60))
def test_the_size_of_the_pieces_makes_no_difference(text: str, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stamps, "_PIECE", size)
        in_pieces = without_stamps(text)
    assert in_pieces == without_stamps(text)


@given(TEXTS)
def test_what_gives_no_hint_holds_no_stamp(text: str) -> None:
    pattern: re.Pattern[str] = stamps._STAMP
    assert without_stamps(text) == pattern.sub("⌚", text)


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("<system-reminder>a</system-reminder>task", ["a"]),
        ("task <git_status>a</git_status> and <environment_context>b</environment_context>", ["a", "b"]),
        ("# AGENTS.md instructions for /src\n\n<INSTRUCTIONS>a</INSTRUCTIONS>\ntask", ["a"]),
        ("<system-reminder>a<env>b</env>c</system-reminder>task", ["a<env>b</env>c"]),
        ("<system-reminder>never closed: the task", []),
        ("</system-reminder>task<system-reminder>", []),
        ("<b>task</b>, <env>task</env>", []),
    ],
)
def test_what_stands_between_a_harness_tags_is_found_wherever_it_stands(text: str, inside: list[str]) -> None:
    assert [text[start:end] for start, end in harness_spans(text)] == inside
