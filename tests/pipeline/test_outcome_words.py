"""`x-compaction: applied` is said of new checkpoints alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.model_server import Fault, ModelServer, answers
from tests.support.scenarios import MODEL
from tests.support.stages import body, history, stage

pytestmark = pytest.mark.anyio

LIMIT = 3_000


def refuse(_: int, request: bytes) -> Fault | None:
    """A window that is told nowhere, not even in its refusals."""
    if len(request) < 4 * LIMIT:
        return None
    return Fault(answers.error(400, "Too long.", kind="invalid_request_error", code="context_length_exceeded"))


async def test_a_checkpoint_of_an_unknown_window_is_applied_once_and_then_reused(tmp_path: Path) -> None:
    model = ModelServer(window=100_000, script=refuse)
    told = []
    async with stage(tmp_path, model, models=[{"match": "*", "encoding": "o200k_base"}]) as play:
        for number in range(9):  # each refuses it first: what one has taught is no other's lesson
            reply = await play.send(body(history(0.6)).replace(MODEL.encode(), b"model-%d" % number))
            headers = {name.lower().decode(): value.decode() for name, value in reply.headers}
            assert reply.status == 200
            told.append((headers["x-compaction"], headers["x-compaction-checkpoint"]))
    applied = [checkpoint for outcome, checkpoint in told if outcome == "applied"]
    assert applied == list(dict.fromkeys(checkpoint for _, checkpoint in told))
    assert told[-1][0] == "reused"
