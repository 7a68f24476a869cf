"""What a summarizer is asked: the prompts of `policies/prompts/`, filled in."""

from collections.abc import Sequence
from dataclasses import dataclass

from policies.conversation.transcript import CLOSING, OPENING, escape
from policies.record.bisect import Call, MergeCall, SummarizeCall
from policies.record.record import SEGMENT_CHARACTERS, Segment
from policies.record.texts import Texts


@dataclass(frozen=True, slots=True)
class Prompts:
    """The templates, as read from files by the composition root."""

    summarize: str
    merge: str
    reminder: str
    excerpt: str
    aligned: str


@dataclass(frozen=True, slots=True)
class Continuity:
    """What earlier compactions left (R2): the running summary, the newest segments of the timeline (with their
    insights, where the policy wants them), and the user's statements as numbered lines."""

    summary: str | None = None
    segments: tuple[Segment, ...] = ()
    statements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A system and a user message.

    target: tokens that a merge may have, or the summary of a part, however short what it is made from is.
    """

    system: str
    user: str
    target: int = 0


def fill(prompts: Prompts, call: Call, continuity: Continuity, texts: Texts, target: int) -> Prompt:
    """Return the prompt of one call; `target` is the length asked for, in tokens."""
    match call:
        case SummarizeCall():
            allowed = target if call.parts > 1 else 0
            return Prompt(_rules(prompts.summarize, texts, target), _transcript(call, continuity), allowed)
        case MergeCall():
            return Prompt(_rules(prompts.merge, texts, target), _parts(call.texts, continuity), target)


def fill_aligned(prompts: Prompts, continuity: Continuity, texts: Texts, target: int) -> str:
    """Return the instruction at the end of the session's own prompt, which the provider's prompt cache then serves."""
    given = [*_timeline(continuity), *_statements(continuity)]
    return "\n".join([_rules(prompts.aligned, texts, target), "", *given]).strip()


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
    else:  # nothing but its own content, so that it is found again wherever it stands
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
    """The prompt for a short form of one large message (docs/design.md, "Large messages")."""
    return Prompt(
        _rules(prompts.excerpt, texts, target), f"{OPENING}\n{escape(text)}\n{CLOSING}\n\nWrite the summary now."
    )
