"""Why, in sentences: one for every word that the proxy gives as a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.admin import why
from tests.support.session_events import compacted

DESIGN = (Path(__file__).parents[2] / "docs/design.md").read_text("utf-8")


def documented() -> set[str]:
    """The reasons in the table of docs/design.md."""
    table = DESIGN[DESIGN.index("| `x-compaction` | reasons |") :].split("\n\n")[0]
    cells = [row.split("|")[2] for row in table.splitlines()[2:]]
    words = {word for cell in cells for word in re.findall(r"`(\w+)`", cell)} - {"none"}
    ends = {"timeout", "transient", "refused", "invalid", "cooling_down", "bounded"}
    return (words - ends - {"summarizer_"}) | {f"summarizer_{end}" for end in ends}


@pytest.mark.parametrize("word", sorted(documented()))
def test_no_reason_lacks_its_sentence(word: str) -> None:
    assert why.reason(word).endswith("."), word


def test_a_number_in_a_reason_does_not_matter() -> None:
    assert why.reason("would_compact_38_messages") == "In shadow mode: a summary would have been made."


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            "At 08:00:00 the upstream reported 72 % of the room used (preparation starts at 70 %). So in the"
            " background the"
            " first 38 messages became a record of 1,367 tokens, cut at the end of a turn. small was called 1 time"
            " in 99 ms: 4,000 tokens in, 300 out, $0.02.",
        ),
        (
            {"trigger": "manual", "calls": 0, "removed": 80_000, "rewritten": 30_000, "pays_after": 5},
            "At 08:00:00 a compaction was requested at 72 % of the room. So the first 38 messages became a record of"
            " 1,367 tokens, cut at the end of a turn. By estimate every later request is 80,000 tokens smaller,"
            " and 30,000 later tokens leave the provider's cache: it pays after 5 requests.",
        ),
        (
            {"trigger": "economy", "threshold": 0.5, "calls": 0, "read": 2_440_000, "read_by": 40, "paid": 4.1},
            "At 08:00:00 72 % of its room were used, and reading the part that a compaction removes (2,440,000"
            " tokens over 40"
            " requests) had cost 4.1 times the price of the compaction. So in the background the first 38 messages"
            " became a record"
            " of 1,367 tokens, cut at the end of a turn.",
        ),
        (
            {"trigger": "proactive", "threshold": 0.8, "used": 0.83, "result": "deterministic", "calls": 0,
             "reason": "summarizer_timeout", "strategy": "round-boundary", "cut": "L1"},
            "At 08:00:00 a request filled 83 % of its room (compaction starts at 80 %). So the first 38 messages became"
            " a record of 1,367 tokens, cut between two rounds of tool calls. It was written without a model. The"
            " summarizer timed out.",
        ),
        (
            {"trigger": "overflow_retry", "threshold": None, "used": 1.2, "usd": None},
            "At 08:00:00 the upstream refused a request as too long at 120 % of the assumed room. So the"
            " first 38 messages became a record of 1,367 tokens, cut at the end of a turn. small was called 1 time"
            " in 99 ms: 4,000 tokens in, 300 out.",
        ),
        (
            {"trigger": "manual", "threshold": None, "digest": None, "result": "no_gain", "calls": 0},
            "At 08:00:00 a compaction was requested at 72 % of the room. No summary was made: The summary would be"
            " larger than the messages that it replaces.",
        ),
        (
            {"trigger": "proactive", "threshold": None, "digest": None, "result": "pending", "calls": 0},
            "At 08:00:00 a request of many messages filled 72 % of its room. No summary was made: Another request is"
            " making its summary, and it still fits.",
        ),
        (
            {"trigger": "tool_execution", "digest": None, "result": "summarizer_invalid"},
            "At 08:00:00 during tool calls a request filled 72 % of its room (compaction starts at 70 %). No summary"
            " was"
            " made: The summarizer's responses were not valid summaries. small was called 1 time in 99 ms: 4,000 tokens"
            " in, 300 out, $0.02.",
        ),
        (
            {"refused": ("it is too short", "it is no text"), "trigger": "manual"},
            "At 08:00:00 a compaction was requested at 72 % of the room. So the first 38 messages became a record of"
            " 1,367 tokens, cut at the end of a turn. small was called 1 time in 99 ms: 4,000 tokens in, 300 out,"
            " $0.02. Rejected: it is too short; it is no text.",
        ),
        (
            {"refused": ("login",), "trigger": "manual", "result": "deterministic", "calls": 0},
            "At 08:00:00 a compaction was requested at 72 % of the room. So the first 38 messages became a record of"
            " 1,367 tokens, cut at the end of a turn. It was written without a model. A client's login must not be"
            " used to call a model.",
        ),
    ],
)  # fmt: skip
def test_a_compaction_is_told_with_its_cause_and_its_cost(changes: dict[str, object], said: str) -> None:
    assert why.compaction(compacted(**changes)) == said
