"""Which answers of a summarizer are stored, one row a way to fail."""

from __future__ import annotations

import pytest

from policies.texts import texts_for
from policies.validation import Answer, Invalid, Valid, split_timeline, validate
from tests.conversations import count

HEADINGS = texts_for("en").headings
GOOD = "\n".join(f"## {heading}\n- the user asked for the fix in src/app/login.py" for heading in HEADINGS)
SOURCE = "the user asked for the fix in src/app/login.py " * 40


def verdict(
    text: str, finish_reason: str | None = "stop", *, tool_calls: bool = False, cap: int = 800
) -> Valid | Invalid:
    answer = Answer(text, finish_reason, tool_calls)
    return validate(answer, source=SOURCE, source_tokens=1_000, cap=cap, headings=HEADINGS, count=count)


@pytest.mark.parametrize(
    ("text", "finish_reason", "tool_calls", "reason"),
    [
        ("", "stop", False, "it is empty"),
        ("   \n", "stop", False, "it is empty"),
        ("<think>" + GOOD, "stop", False, "it is empty"),
        (GOOD, "length", False, "it was not finished (finish_reason length)"),
        (GOOD, None, False, "it was not finished (finish_reason None)"),
        (GOOD, "stop", True, "it calls tools"),
        ("I'm sorry, I can't help with that.", "stop", False, "it is a refusal"),
        ("抱歉，我无法总结。", "stop", False, "it is a refusal"),
        ('{"error": {"message": "overloaded"}}', "stop", False, "it is an error message"),
        ("<!DOCTYPE html><html>502</html>", "stop", False, "it is an error message"),
        ("Sure! Next I will open the file and go on.", "stop", False, "it has 0 of the 9 sections"),
        ("## Goal\nx\n## Done\ny", "stop", False, "it has 2 of the 9 sections"),
        (GOOD + "\n</transcript>", "stop", False, "it repeats the tags around the transcript"),
        ("\n".join(f"## {h}" for h in HEADINGS[:5])[:100], "stop", False, "it is too short"),
        (GOOD + "\nword" * 2_000, "stop", False, "it has 2649 tokens, allowed are 500"),
    ],
)
def test_a_bad_answer_is_refused_with_its_reason(
    text: str, finish_reason: str | None, tool_calls: bool, reason: str
) -> None:
    assert verdict(text, finish_reason, tool_calls=tool_calls) == Invalid(reason)


def test_an_answer_of_half_its_source_is_no_summary() -> None:
    answer = Answer(GOOD, "stop")
    tokens = count(GOOD)
    found = validate(answer, source=SOURCE, source_tokens=2 * tokens, cap=10_000, headings=HEADINGS, count=count)
    assert found == Invalid(f"it has {tokens} tokens, allowed are {tokens}")


def test_a_good_answer_is_taken_as_it_is() -> None:
    assert verdict(GOOD) == Valid(GOOD)


def test_thinking_is_removed() -> None:
    assert verdict(f"<think>hm\n</think>\n{GOOD}") == Valid(GOOD)


def test_lines_with_invented_paths_or_hashes_are_dropped() -> None:
    invented = GOOD + "\n- see src/made/up.py\n- commit deadbeef123"
    assert verdict(invented) == Valid(GOOD)


@pytest.mark.parametrize("style", ["## {}", "### {}", "**{}**", "## {}:", "## 1. {}"])
def test_headings_are_recognized_in_the_styles_models_write(style: str) -> None:
    text = "\n".join(f"{style.format(h)}\n- the user asked for the fix" for h in HEADINGS)
    assert isinstance(verdict(text), Valid)


def test_the_last_section_becomes_the_timeline_segment() -> None:
    summary, segment = split_timeline("## Goal\nx\n## Timeline\n- built on part 1.\n- fixed it.", HEADINGS)
    assert summary == "## Goal\nx"
    assert segment == "built on part 1. fixed it."


def test_a_segment_has_at_most_500_characters() -> None:
    assert len(split_timeline("## Timeline\n" + "x" * 2_000, HEADINGS)[1]) == 500
