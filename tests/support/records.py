"""Records of short conversations, without a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from policies.conversation.transcript import ToolCall, Utterance
from policies.decision.budget import Budget, budget_of
from policies.decision.cut import Cut
from policies.record.allocate import Block, allocate
from policies.record.bisect import BisectOutcome
from policies.record.record import Occasion, Record, RecordContext, Segment, Span, WrittenSummary, build, statements_of
from policies.settings import LedgerSettings
from tests.support.conversations import count

BUDGET = budget_of(8_192, 7_000)
NONSENSE = WrittenSummary(
    "All is well and the weather is fine.", Segment("Nothing happened."), BisectOutcome("", 1, 1, 0, truncated=False)
)


def made(
    utterances: list[Utterance],
    parent: Record | None = None,
    written: WrittenSummary | None = NONSENSE,
    budget: Budget = BUDGET,
    repeated: Collection[int] = (),
    kept: tuple[str, ...] = (),
) -> Record:
    cut = Cut(utterances[-1].position + 1, "L0", "turn-boundary", kept=500, units_total=9, units_kept=4)
    span = Span(tuple(utterances), cut, "digest", "first", "last", first_user=0, repeated=repeated)
    settings = LedgerSettings()
    context = RecordContext(
        span=span,
        parent=parent,
        statements=statements_of(span, parent, settings),
        budget=budget,
        settings=settings,
        segments=3,
        count=count,
        kept=kept,
    )
    occasion = Occasion("proactive", 6_000, 800, "a conversation", 1_600_000_000.0, 1_700_000_000.0)
    return build(context, written, occasion)


def shown_lines(blocks: Sequence[Block], room: int) -> list[str]:
    """Return what is shown of blocks in a room of so many tokens, as lines."""
    lines: list[str] = []
    for block, part in zip(blocks, allocate(blocks, room, count), strict=True):
        texts = [line.text for line in sorted(part.lines, key=lambda line: line.place)] + [part.note] * bool(part.note)
        lines += ["", f"## {block.title}", *texts] if texts else []
    return lines


def generation(number: int, rule: str | None = None) -> list[Utterance]:
    base = number * 10
    text = rule or f"please go on with step {number}"
    return [
        Utterance(base, "user", text),
        Utterance(base + 1, "assistant", "", (ToolCall("write_file", f'{{"path": "src/f{number}.py"}}'),)),
        Utterance(base + 2, "tool", "ok", tool="write_file"),
        Utterance(base + 3, "assistant", f"step {number} is done"),
    ]
