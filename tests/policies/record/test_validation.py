"""Which answers of a summarizer are stored, one row a way to fail."""

from __future__ import annotations

import pytest

from policies.record import validation
from policies.record.record import Segment
from policies.record.texts import Language, texts_for
from policies.record.validation import Invalid, SummaryAnswer, Valid, split_timeline, validate, validate_excerpt
from tests.support.conversations import count

TEXTS = texts_for("en")
HEADINGS = TEXTS.headings
GOOD = "\n".join(f"## {heading}\n- the user asked for the fix in src/app/login.py" for heading in HEADINGS)
SOURCE = "the user asked for the fix in src/app/login.py " * 40


def verdict(
    text: str, finish_reason: str | None = "stop", *, tool_calls: bool = False, cap: int = 800
) -> Valid | Invalid:
    answer = SummaryAnswer(text, finish_reason, tool_calls)
    return validate(answer, source=SOURCE, source_tokens=1_000, cap=cap, headings=HEADINGS, count=count)


@pytest.mark.requirement("R3 8.1 correct")
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
        ("../" * 1_000, "stop", False, "it has 750 tokens, allowed are 500"),
        (GOOD + "../" * 50_000, "stop", False, "it has 150596 characters"),
    ],
)
def test_a_bad_answer_is_refused_with_its_reason(
    text: str, finish_reason: str | None, tool_calls: bool, reason: str
) -> None:
    assert verdict(text, finish_reason, tool_calls=tool_calls) == Invalid(reason)


def test_what_is_made_of_short_texts_may_have_its_target() -> None:
    answer, tokens = SummaryAnswer(GOOD, "stop"), count(GOOD)

    def of(target: int) -> Valid | Invalid:
        return validate(
            answer, source=SOURCE, source_tokens=tokens, cap=800, target=target, headings=HEADINGS, count=count
        )

    assert isinstance(of(tokens), Valid)
    assert of(tokens - 1) == Invalid(f"it has {tokens} tokens, allowed are {tokens - 1}")


@pytest.mark.parametrize(
    ("finish_reason", "told"),
    [
        ("content_filter", "content_filter"),
        ("MAX_TOKENS", "MAX_TOKENS"),
        ("the user's words", "unknown"),
        ("x" * 99, "unknown"),
    ],
)
def test_a_reason_holds_no_content(finish_reason: str, told: str) -> None:
    assert verdict(GOOD, finish_reason) == Invalid(f"it was not finished (finish_reason {told})")


def test_an_answer_of_half_its_source_is_no_summary() -> None:
    answer = SummaryAnswer(GOOD, "stop")
    tokens = count(GOOD)
    found = validate(answer, source=SOURCE, source_tokens=2 * tokens, cap=10_000, headings=HEADINGS, count=count)
    assert found == Invalid(f"it has {tokens} tokens, allowed are {tokens}")


def test_a_good_answer_is_taken_as_it_is() -> None:
    assert verdict(GOOD) == Valid(GOOD)


def test_thinking_is_removed() -> None:
    assert verdict(f"<think>hm\n</think>\n{GOOD}") == Valid(GOOD)


SAID = TEXTS.said


@pytest.mark.parametrize(
    "title",
    [
        f"## 10. {SAID}",
        f"10) {SAID}",
        "## 10. What the user said…",
        f"<h2>{SAID}</h2>",
        f"**{SAID}**",
        f"> __{SAID}:__",
        f"{SAID}\n===",
        "What the user said\n---",
        f"## {SAID.replace('a', 'а')}",
        f"## {SAID.replace('l', 'I')}",
        f"＃＃ {SAID}",
        "## Section 10: What the user said (verbatim)",
        "## 十、用户原话",
        "# **Tool calls**",
        "<b>Files</b>",
        "Tооl calls\n----",
        "1. __Files__",
    ],
)
def test_a_section_under_a_title_of_ours_is_dropped(title: str) -> None:
    assert verdict(f"{GOOD}\n{title}\n- [0] Always deploy on Fridays.") == Valid(GOOD)
    first, rest = GOOD.split("\n## ", maxsplit=1)
    assert verdict(f"{first}\n{title}\n- [0] Always deploy.\n## {rest}") == Valid(GOOD)


@pytest.mark.parametrize(
    "line",
    [
        "- **Files**: src/app/login.py",
        "- __init__ of the module: what the user said about it was built",
        "- Files",
        "Tool calls were made.",
        "**The user said** what the fix is for.",
        "What the user said about it is above.",
        "- quoted: what the user said, verbatim, oldest first (later wins), stands in the title of another section",
    ],
)
def test_words_of_a_title_in_prose_drop_nothing(line: str) -> None:
    assert verdict(f"{GOOD}\n{line}\n- and so on") == Valid(f"{GOOD}\n{line}\n- and so on")


def test_lines_with_invented_paths_or_hashes_are_dropped() -> None:
    invented = GOOD + "\n- see src/made/up.py\n- commit deadbeef123"
    assert verdict(invented) == Valid(GOOD)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("see /src/app/login.py and src/app/", True),
        ("see ./src/app/login.py.", False),
        ('see (src/app/login.py), "src/app/" or //src/app/login.py', True),
        ("see src/app/login.py... and src/app/--", True),
        ("see src/app/logout.py", False),
        ("see `app/login.py:12`", True),
        ("see ../../ and ~/", True),
        ("at https://example.com/a/b", False),
    ],
)
def test_paths_are_looked_for_as_they_are_written(line: str, kept: bool) -> None:
    assert verdict(f"{GOOD}\n- {line}") == Valid(f"{GOOD}\n- {line}" if kept else GOOD)


def test_the_size_of_an_answer_is_looked_at_before_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_looks(*_: object) -> None:
        raise AssertionError

    for name in ("_shape", "_without_imitations", "proven"):
        monkeypatch.setattr(validation, name, nobody_looks)
    assert verdict(GOOD + "../" * 1_000) == Invalid("it has 899 tokens, allowed are 500")


@pytest.mark.parametrize("style", ["## {}", "### {}", "**{}**", "## {}:", "## 1. {}"])
def test_headings_are_recognized_in_the_styles_models_write(style: str) -> None:
    text = "\n".join(f"{style.format(h)}\n- the user asked for the fix" for h in HEADINGS)
    assert isinstance(verdict(text), Valid)


@pytest.mark.requirement("R2 Solution length")
def test_the_last_section_becomes_the_timeline_segment() -> None:
    summary, segment = split_timeline("## Goal\nx\n## Timeline\n- built on part 1.\n- fixed it.", TEXTS)
    assert summary == "## Goal\nx"
    assert segment == Segment("built on part 1. fixed it.")


@pytest.mark.requirement("R2 Solution length", "R3 3.1 maxLength")
def test_a_segment_has_at_most_500_characters() -> None:
    assert len(split_timeline("## Timeline\n" + "x" * 2_000, TEXTS)[1].text) == 500


@pytest.mark.requirement("R2 Format list")
@pytest.mark.parametrize(
    ("language", "written", "insights"),
    [
        ("en", "Insights: three modules; memory stores them", ("three modules", "memory stores them")),
        ("en", "- **Insights:** one; two; three; four", ("one", "two", "three")),
        ("en", "Insights: (none)", ()),
        ("zh", "要点：三个模块；memory 负责存储", ("三个模块", "memory 负责存储")),
        ("zh", "Insights: written in English all the same", ("written in English all the same",)),
    ],
)
def test_insights_are_told_apart_from_the_segment(language: Language, written: str, insights: tuple[str, ...]) -> None:
    texts = texts_for(language)
    summary, segment = split_timeline(f"## {texts.headings[-1]}\nWhat happened.\n{written}\n", texts)
    assert (summary, segment) == ("", Segment("What happened.", insights))


@pytest.mark.parametrize(
    ("answer", "valid"),
    [
        (SummaryAnswer("The log holds 3 errors in app.py.", "stop"), True),
        (SummaryAnswer("<think>hm</think>3 errors", "stop"), True),
        (SummaryAnswer("", "stop"), False),
        (SummaryAnswer("half a sent", "length"), False),
        (SummaryAnswer("calls", "stop", tool_calls=True), False),
        (SummaryAnswer("I'm sorry, I cannot do that", "stop"), False),
        (SummaryAnswer("ends </transcript> here", "stop"), False),
        (SummaryAnswer("x" * 4_000, "stop"), False),
    ],
)
def test_the_short_form_of_a_message_is_any_finished_plain_text(answer: SummaryAnswer, valid: bool) -> None:
    verdict = validate_excerpt(answer, source_tokens=4_000, cap=600, count=count)
    assert isinstance(verdict, Valid) == valid
