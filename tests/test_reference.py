"""Real requests and real errors, where the reference data is present (CONCERTINA_REFERENCE names its folder)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from policies.assembly import assemble
from policies.cuts import legal_cuts
from proxy.wire import chat
from proxy.wire.overflow import classify
from tests.conversations import Json, body_of, conversation, pairing_defects, parsed

REFERENCE = os.environ.get("CONCERTINA_REFERENCE")
pytestmark = pytest.mark.skipif(REFERENCE is None, reason="CONCERTINA_REFERENCE is not set")
FOLDER = Path(REFERENCE or ".")


def captures() -> Iterator[tuple[str, list[Json]]]:
    """Every recorded chat request and conversation: a name and its messages."""
    if REFERENCE is None:
        return
    for file in sorted(FOLDER.glob("captures/*/*chat_completions.json")):
        yield f"{file.parent.name}/{file.name}", json.loads(file.read_text())["body"]["messages"]
    for file in sorted(FOLDER.glob("captures/data/*.json")):
        yield file.name, json.loads(file.read_text())["messages"]


@pytest.mark.parametrize(("name", "messages"), list(captures()))
def test_a_real_conversation_is_cut_without_harm_wherever_it_may_be_cut(name: str, messages: list[Json]) -> None:
    body = body_of(messages)
    found = parsed(body)
    view = conversation(messages)
    before = pairing_defects(messages)
    cuts = legal_cuts(view)
    for cut in cuts[:: max(1, len(cuts) // 20)]:
        rebuilt = chat.rebuild(body, found, assemble(view, cut, "record"), {})
        sent = msgspec.json.decode(rebuilt)["messages"]
        assert pairing_defects(sent) <= before
        assert sent[-1] == messages[-1]


@pytest.mark.skipif(REFERENCE is None, reason="no reference data")
def test_real_overflows_are_recognized_and_look_alikes_are_not() -> None:
    rows = [json.loads(line) for line in (FOLDER / "corpus/overflow.jsonl").read_text().splitlines()]
    wrong, found, total = [], 0, 0
    for row in rows:
        if row["ambiguous"]:
            continue
        body = row["body"] if isinstance(row["body"], str) else json.dumps(row["body"])
        verdict = classify(row["http_status"] or 0, body.encode())
        if row["is_overflow"]:
            total += 1
            found += verdict is not None
        elif verdict is not None:
            wrong.append(row["id"])
    assert wrong == []
    assert found / total >= 0.95
