"""Real requests and real errors, where the reference data is present (CONCERTINA_REFERENCE names its folder)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from policies.decision.assemble import assemble
from policies.decision.legal_cuts import legal_cuts
from policies.decision.overflow_retries import StatedLimit
from proxy.dialects.table import CHAT
from proxy.pipeline.answers import full_answer
from proxy.upstreams.refusals.classify import classify
from tests.support.conversations import Json, body_of, conversation, pairing_defects, parsed

REFERENCE = os.environ.get("CONCERTINA_REFERENCE")
pytestmark = pytest.mark.skipif(
    REFERENCE is None, reason="the reference data is not there: set CONCERTINA_REFERENCE to its folder"
)
FOLDER = Path(REFERENCE or ".")


def captures() -> Iterator[tuple[str, list[Json]]]:
    """Every recorded chat request and conversation: a name and its messages."""
    if REFERENCE is None:
        return
    for file in sorted(FOLDER.glob("captures/*/*chat_completions.json")):
        yield f"{file.parent.name}/{file.name}", json.loads(file.read_text())["body"]["messages"]
    for file in sorted(FOLDER.glob("captures/data/*.json")):
        yield file.name, json.loads(file.read_text())["messages"]


@pytest.mark.requirement("R1 9.3 failed", "R3 8.1 readable")
@pytest.mark.parametrize(("name", "messages"), list(captures()))
def test_a_real_conversation_is_cut_without_harm_wherever_it_may_be_cut(name: str, messages: list[Json]) -> None:
    body = body_of(messages)
    found = parsed(body)
    view = conversation(messages)
    before = pairing_defects(messages)
    cuts = legal_cuts(view)
    for cut in cuts[:: max(1, len(cuts) // 20)]:
        rebuilt = CHAT.rebuild(body, found, assemble(view, cut, "record"), {})
        sent = msgspec.json.decode(rebuilt)["messages"]
        assert pairing_defects(sent) <= before
        assert sent[-1] == messages[-1]


# What the reference calls a limit and a remedy, in our words; where it names two remedies either may come first.
KINDS = {"window_total": "window", "input_max": "input", "kv_pool": "pool", "tier_cap": "tier", None: None}
ACTIONS = {
    "compact": {"compact"},
    "lower_max_tokens": {"lower_output"},
    "lower_then_compact": {"lower_output", "compact"},
    "inspect": {"inspect"},
}


def errors(*, ambiguous: bool) -> list[Json]:
    if REFERENCE is None:
        return []
    rows = [json.loads(line) for line in (FOLDER / "corpus/overflow.jsonl").read_text().splitlines()]
    return [row for row in rows if row["ambiguous"] == ambiguous]


def verdict_on(row: Json) -> StatedLimit | None:
    body = (row["body"] if isinstance(row["body"], str) else json.dumps(row["body"])).encode()
    return classify(row["http_status"] or 0, body) or full_answer(body, CHAT.answers, None)


def test_real_overflows_are_recognized_and_look_alikes_are_not() -> None:
    rows = errors(ambiguous=False)
    found = [row for row in rows if verdict_on(row) is not None]
    assert [row["id"] for row in found if not row["is_overflow"]] == []
    assert len(found) / sum(row["is_overflow"] for row in rows) >= 0.98


def test_real_overflows_are_read_right() -> None:
    read = [(row, verdict) for row in errors(ambiguous=False) if (verdict := verdict_on(row)) is not None]
    wrong = [
        row["id"]
        for row, verdict in read
        if (verdict.limit, verdict.input_tokens) != (row["limit_tokens"], row["input_tokens"])
        or verdict.kind != KINDS[row["limit_kind"]]
        or verdict.action not in ACTIONS[row["action"]]
    ]
    assert len(wrong) <= 0.02 * len(read), wrong


def test_what_is_ambiguous_is_never_taken_for_a_window() -> None:
    """Except for embeddings, whose errors are told from ours only by their path."""
    rows = [row for row in errors(ambiguous=True) if not row["is_overflow"] and "embeddings" not in row["id"]]
    assert [row["id"] for row in rows if verdict_on(row) is not None] == []
