"""What a summarizer is asked: the prompts of `policies/prompts/`, filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policies.bisect import Call, MergeCall, SummarizeCall
from policies.texts import Texts
from policies.transcript import CLOSING, OPENING, escape


@dataclass(frozen=True, slots=True)
class Prompts:
    """The templates, as read from files by the composition root."""

    summarize: str
    merge: str
    reminder: str


@dataclass(frozen=True, slots=True)
class Continuity:
    """What earlier compactions left (R2): the running summary and the newest segments of the timeline."""

    summary: str | None = None
    segments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A system and a user message."""

    system: str
    user: str


def fill(prompts: Prompts, call: Call, continuity: Continuity, texts: Texts, target: int) -> Prompt:
    """The prompt of one call; `target` is the length asked for, in tokens."""
    match call:
        case SummarizeCall():
            return Prompt(_rules(prompts.summarize, texts, target), _transcript(call, continuity))
        case MergeCall():
            return Prompt(_rules(prompts.merge, texts, target), _parts(call.texts))


def _rules(template: str, texts: Texts, target: int) -> str:
    headings = "\n".join(f"## {heading}" for heading in texts.headings)
    return template.replace("{language}", texts.name).replace("{target}", str(target)).replace("{headings}", headings)


def _transcript(call: SummarizeCall, continuity: Continuity) -> str:
    lines: list[str] = []
    if call.parts == 1 and continuity.summary:
        lines += ["<previous_summary>", escape(continuity.summary), "</previous_summary>", ""]
    if continuity.segments:
        lines += ["<timeline>", *(f"- {escape(segment)}" for segment in continuity.segments), "</timeline>", ""]
    if call.parts > 1:
        lines += [f"This is part {call.part} of {call.parts}, oldest first. Summarize this part.", ""]
    lines += [OPENING, *(block.text for block in call.blocks), CLOSING, "", "Write the record now."]
    return "\n".join(lines)


def _parts(texts: Sequence[str]) -> str:
    total = len(texts)
    parts = [f'<part number="{i}" of="{total}">\n{escape(text)}\n</part>' for i, text in enumerate(texts, start=1)]
    return "\n\n".join([*parts, "Parts run from oldest to newest. Write the merged record now."])
