"""A record belongs to one conversation: 50,000 random ones are in `make chaos` (CONCERTINA_HISTORIES)."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING

import pytest

from proxy.callers.tenants import Tenants
from proxy.config.loading import load
from proxy.engine.replay.replay import with_window
from proxy.engine.replay.stand_in import StandIn
from proxy.models.tokenizer import Tokenizer
from proxy.wiring import open_apart
from tests.support.dialects import WRITERS
from tests.support.neighbours import Judge

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.dialects import Writer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HISTORIES = int(os.environ.get("CONCERTINA_HISTORIES", "600")) // len(WRITERS)
_WINDOW = 3_000


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_no_request_carries_a_word_of_another_conversation_or_a_deleted_one(
    tmp_path: Path, writer: Writer
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("{}")
    config = with_window(load(path, {}), _WINDOW)
    caller = Tenants(config).named("default")
    assert caller is not None
    stand_in = StandIn(Tokenizer())
    async with open_apart(config, stand_in, lambda _: None) as engine:
        judge = Judge(engine, engine.router(config), stand_in, caller, writer)
        for seed in count():
            if judge.histories >= HISTORIES:
                break
            await judge.watch(seed)
    assert judge.wrong == []
    assert judge.compacted > judge.requests / 8
    assert judge.slid > judge.histories / 40
