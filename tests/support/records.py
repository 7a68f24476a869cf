"""Records of short conversations, without a model."""

from __future__ import annotations

from collections.abc import Collection

from policies.budget import Budget, budget_of
from policies.half_window import Cut
from policies.record.bisect import BisectOutcome
from policies.record.record import Record, Segment, Span, WrittenSummary, build, statements_of
from policies.settings import LedgerSettings
from policies.transcript import ToolCall, Utterance
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
    return build(
        span,
        parent,
        statements_of(span, parent, settings),
        written,
        budget=budget,
        settings=settings,
        trigger="proactive",
        tokens_before=6_000,
        tokens_kept=800,
        segments=3,
        title="a conversation",
        started=1_600_000_000.0,
        now=1_700_000_000.0,
        count=count,
        kept=kept,
    )


def generation(number: int, rule: str | None = None) -> list[Utterance]:
    base = number * 10
    text = rule or f"please go on with step {number}"
    return [
        Utterance(base, "user", text),
        Utterance(base + 1, "assistant", "", (ToolCall("write_file", f'{{"path": "src/f{number}.py"}}'),)),
        Utterance(base + 2, "tool", "ok", tool="write_file"),
        Utterance(base + 3, "assistant", f"step {number} is done"),
    ]
