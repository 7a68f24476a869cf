"""Validation of a summarizer's response. An invalid summary is never stored (docs/design.md, "The summarizer")."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from policies.conversation.transcript import MARKERS, CountTokens, escape, visible
from policies.price import Tokens
from policies.record.evidence import proven
from policies.record.record import SEGMENT_CHARACTERS, Segment
from policies.record.texts import ALL_TEXTS, Texts
from policies.record.titles import is_carried

LEAST_HEADINGS = 5
LEAST_TOKENS = 30

_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_HEADING = re.compile(r"^\s{0,3}(?:#{1,4}\s*|\*\*)(?:\d+[.)]\s*)?(.+?)(?:\*\*)?\s*[:：]?\s*$")
_REFUSAL = re.compile(
    r"\A\W{0,5}(?:i(?:'m| am) sorry|sorry,|i can(?:'t|not)|i am unable|i'm unable|as an ai|"
    r"抱歉|对不起|我无法|我不能|作为一个?AI)",
    re.IGNORECASE,
)
_FAULT = re.compile(
    r"\A\s*(?:<!doctype|<html|\{\s*\"error\"|error[: ]|internal server error|bad gateway)", re.IGNORECASE
)
_INSIGHTS = re.compile(
    rf"\*{{0,3}}(?:{'|'.join(texts.insights for texts in ALL_TEXTS)})\*{{0,3}}\s{{0,9}}[:：]\*{{0,3}}\s{{0,9}}",
    re.IGNORECASE,
)
_INSIGHT_ENDS = re.compile(r"[;；]")
_INSIGHTS_KEPT = 3
_NOTHING = ("", "(none)", "none", "(无)", "无", "(なし)", "なし")
_INSIGHT_CHARACTERS = 160
_NAME = re.compile(r"[A-Za-z_]{1,32}")
# Maximum characters of a response without its thinking. The largest token limit allows fewer.
_LONGEST = 100_000


@dataclass(frozen=True, slots=True)
class SummaryAnswer:
    """A summarizer's response: visible text, the wire's finish_reason, and whether it called tools.

    usage: as billed; None if the provider did not report it.
    ms: duration in milliseconds.
    """

    text: str
    finish_reason: str | None
    tool_calls: bool = False
    usage: Tokens | None = None
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Valid:
    """The valid response, without thinking and without lines that name invented paths or hashes."""

    text: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """The reason why a response is unusable. The one reminder to the summarizer contains it."""

    reason: str


def validate(
    answer: SummaryAnswer,
    *,
    source: str,
    source_tokens: int,
    cap: int,
    headings: Sequence[str],
    count: CountTokens,
    target: int = 0,
) -> Valid | Invalid:
    """Check a summary against its source. Claims without evidence in the source are removed, see `proven`.

    source_tokens: tokens of the source.
    cap: maximum tokens of the summary.
    target: tokens allowed even if they exceed half of the source, for parts and merges of short parts.
    """
    text = _visible(answer)
    reason = _fault(answer, text) or _size(text, source_tokens, cap, count, target) or _shape(text, headings)
    if reason is not None:
        return Invalid(reason)
    text = proven(_without_imitations(text), source)
    return Valid(text) if count(text) >= LEAST_TOKENS else Invalid("it is too short")


def validate_excerpt(answer: SummaryAnswer, *, source_tokens: int, cap: int, count: CountTokens) -> Valid | Invalid:
    """Check the short version of one message: plain text smaller than `cap` and than half of its source."""
    text = _visible(answer)
    reason = _fault(answer, text) or _size(text, source_tokens, cap, count)
    if reason is None and any(f"<{marker}" in text or f"</{marker}" in text for marker in MARKERS):
        reason = "it repeats the tags around the transcript"
    return Valid(escape(text)) if reason is None else Invalid(reason)


def _visible(answer: SummaryAnswer) -> str:
    return _THINKING.sub("", visible(answer.text)).strip()


def _fault(answer: SummaryAnswer, text: str) -> str | None:
    if answer.tool_calls:
        return "it calls tools"
    if answer.finish_reason != "stop":
        return f"it was not finished (finish_reason {_name_of_reason(answer.finish_reason)})"
    if not text:
        return "it is empty"
    if _REFUSAL.search(text):
        return "it is a refusal"
    if _FAULT.search(text):
        return "it is an error message"
    return None


def _name_of_reason(finish_reason: str | None) -> str:
    """Return the reason if it is a plain name. The log holds no content of responses."""
    return str(finish_reason) if _NAME.fullmatch(str(finish_reason)) else "unknown"


def _size(text: str, source_tokens: int, cap: int, count: CountTokens, target: int = 0) -> str | None:
    """Return the fault in a summary's size. It is checked first, so that a long response costs no further work."""
    if len(text) > _LONGEST:
        return f"it has {len(text)} characters"
    tokens = count(text)
    if tokens > cap or (tokens >= 0.5 * source_tokens and tokens > target):
        return f"it has {tokens} tokens, allowed are {min(cap, max(source_tokens // 2, target))}"
    return None


def _shape(text: str, headings: Sequence[str]) -> str | None:
    if any(f"<{marker}" in text or f"</{marker}" in text for marker in MARKERS):
        return "it repeats the tags around the transcript"
    titles = {title for line in text.splitlines() if (title := _title(line)) is not None}
    present = sum(1 for heading in headings if heading.lower() in titles)
    if present < LEAST_HEADINGS:
        return f"it has {present} of the {len(headings)} sections"
    return None


def _title(line: str) -> str | None:
    match = _HEADING.match(line[:200])
    return match.group(1).strip().lower() if match else None


def _without_imitations(text: str) -> str:
    """Return the text without sections whose titles imitate blocks of the record. Readers would trust them."""
    genuine: list[str] = []
    is_imitation = False
    for line, below in pairwise([*text.splitlines(), ""]):
        if is_carried(line[:200], below[:200]):
            is_imitation = True
        elif _HEADING.match(line[:200]):
            is_imitation = False
        if not is_imitation:
            genuine.append(line)
    return "\n".join(genuine)


def split_timeline(text: str, texts: Texts) -> tuple[str, Segment]:
    """Return the running summary without its last section, and that section as a segment with its insights (R2)."""
    lines = text.splitlines()
    timeline = texts.headings[-1].lower()
    start = next((i for i, line in enumerate(lines) if _title(line) == timeline), None)
    if start is None:
        return text, Segment("")
    end = next((i for i in range(start + 1, len(lines)) if lines[i].startswith("#")), len(lines))
    section = [line.strip().strip("-* ") for line in lines[start + 1 : end] if line.strip()]
    insight_lines = [line for line in section if _INSIGHTS.match(line)]
    segment = " ".join(line for line in section if line not in insight_lines)
    insights = [part.strip() for line in insight_lines for part in _INSIGHT_ENDS.split(_INSIGHTS.sub("", line))]
    insights_stored = tuple(insight[:_INSIGHT_CHARACTERS] for insight in insights if insight not in _NOTHING)[
        :_INSIGHTS_KEPT
    ]
    return "\n".join([*lines[:start], *lines[end:]]).strip(), Segment(segment[:SEGMENT_CHARACTERS], insights_stored)
