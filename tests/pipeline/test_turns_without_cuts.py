"""A turn that cannot be cut, since its thinking must lead it, fits the window before it is sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.items import uses
from tests.support.model_server import ModelServer
from tests.support.stages import stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.conversations import Json

pytestmark = pytest.mark.anyio

WINDOW = 6_000
THINKING = {"type": "thinking", "thinking": "I look.", "signature": "sig"}


def turn(rounds: int) -> list[Json]:
    """Tool rounds behind one thought: without interleaved thinking no later round may begin what is sent."""
    first, *rest = uses(rounds, words=150)
    return [{"role": "user", "content": "Port it."}, {**first, "content": [THINKING, *first["content"]]}, *rest]


async def test_a_turn_without_a_legal_cut_is_shortened_before_it_is_refused(tmp_path: Path) -> None:
    settings = {"policies": {"default": {"summarizer": {"model": "none"}}}}
    models = [{"match": "*", "context_window": WINDOW}]
    thinking = {"type": "enabled", "budget_tokens": 1_024}
    async with stage(tmp_path, ModelServer(window=WINDOW), models=models, **settings) as play:
        counts = range(4, 60, 2)
        for rounds in counts:
            body = {"model": "claude-sonnet-4-5", "max_tokens": 1_100, "thinking": thinking, "messages": turn(rounds)}
            assert (await play.send(json.dumps(body).encode(), path="/v1/messages")).status == 200
        assert len(play.sent) <= len(counts) + 3, "a few at the edge, where an estimate cannot tell"
