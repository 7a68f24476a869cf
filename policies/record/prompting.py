"""The prompts for summarizers: the templates of `policies/prompts/`, filled in."""

from collections.abc import Sequence
from dataclasses import dataclass

from policies.conversation.transcript import CLOSING, OPENING, escape
from policies.record.bisect import Call, MergeCall, SummarizeCall
from policies.record.record import SEGMENT_CHARACTERS, Segment
from policies.record.texts import Texts


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompt templates, which the composition root reads from files."""

    summarize: str
    merge: str
    reminder: str
    excerpt: str
    aligned: str


@dataclass(frozen=True, slots=True)
class Continuity:
    """The context from earlier compactions (R2).

    summary: the running summary.
    segments: the newest segments of the timeline, with their insights if the policy includes them.
    statements: the user's statements as numbered lines.
    """

    summary: str | None = None
    segments: tuple[Segment, ...] = ()
    statements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A system and a user message.

    target: tokens that a merge or the summary of a part may have, however short its source is.
    """

    system: str
    user: str
    target: int = 0


def fill(prompts: Prompts, call: Call, continuity: Continuity, texts: Texts, target: int) -> Prompt:
    """Return the prompt of one call. target: the requested length in tokens."""
    match call:
        case SummarizeCall():
            allowed = target if call.parts > 1 else 0
            return Prompt(_rules(prompts.summarize, texts, target), _transcript(call, continuity), allowed)
        case MergeCall():
            return Prompt(_rules(prompts.merge, texts, target), _parts(call.texts, continuity), target)


def fill_aligned(prompts: Prompts, continuity: Continuity, texts: Texts, target: int) -> str:
    """Return the instruction to append to the session's own prompt, so that the provider's prompt cache applies."""
    context = [*_timeline(continuity), *_statements(continuity)]
    return "\n".join([_rules(prompts.aligned, texts, target), "", *context]).strip()


def _rules(template: str, texts: Texts, target: int) -> str:
    headings = "\n".join(f"## {heading}" for heading in texts.headings)
    values = {
        "language": texts.name,
        "target": str(target),
        "segment": str(SEGMENT_CHARACTERS),
        "headings": headings,
        "insights": texts.insights,
        "superseded": texts.superseded,
    }
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", value)
    return template


def _transcript(call: SummarizeCall, continuity: Continuity) -> str:
    lines: list[str] = []
    if call.parts == 1 and continuity.summary:
        lines += ["<previous_summary>", escape(continuity.summary), "</previous_summary>", ""]
    if call.parts == 1:
        lines += [*_timeline(continuity), *_statements(continuity)]
    else:  # only its own content, so that the summary of an equal part can be reused
        lines += ["This is one part of a longer transcript. Summarize this part.", ""]
    lines += [OPENING, *(block.text for block in call.blocks), CLOSING, "", "Write the record now."]
    return "\n".join(lines)


def _parts(texts: Sequence[str], continuity: Continuity) -> str:
    total = len(texts)
    parts = [f'<part number="{i}" of="{total}">\n{escape(text)}\n</part>\n' for i, text in enumerate(texts, start=1)]
    closing = "Parts run from oldest to newest. Write the merged record now."
    return "\n".join([*_timeline(continuity), *_statements(continuity), *parts, closing])


def _timeline(continuity: Continuity) -> list[str]:
    lines = []
    for segment in continuity.segments:
        lines.append(f"- {escape(segment.text)}")
        if segment.insights:
            lines.append(f"  Insights: {escape('; '.join(segment.insights))}")
    return ["<timeline>", *lines, "</timeline>", ""] if lines else []


def _statements(continuity: Continuity) -> list[str]:
    return ["<statements>", *continuity.statements, "</statements>", ""] if continuity.statements else []


def fill_excerpt(prompts: Prompts, text: str, texts: Texts, target: int) -> Prompt:
    """Return the prompt for a short version of one large message (docs/design.md, "Large messages")."""
    return Prompt(
        _rules(prompts.excerpt, texts, target), f"{OPENING}\n{escape(text)}\n{CLOSING}\n\nWrite the summary now."
    )
