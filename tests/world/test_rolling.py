"""Two replicas behind the front ends that docs/front-ends.md shows are restarted in turn, and no request fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.fronts import PROGRAMS, program
from tests.support.model_server import ModelServer
from tests.support.rolling import replicas, restart_in_turn
from tests.support.servers import serve

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("name", PROGRAMS)
async def test_no_request_fails_while_replicas_are_restarted_in_turn(name: str, tmp_path: Path) -> None:
    program(name)
    async with serve(ModelServer(window=None, remember=1)) as model, replicas(tmp_path, model, "3s") as behind:
        clients = await restart_in_turn(name, tmp_path, behind, 500)
        assert not clients.failed
        assert clients.outcomes.total() >= 500
        for replica in behind:
            assert [line["event"] for line in replica.log] == ["stopping", "stopped"]
            assert replica.log[-1]["broken_off"] == 0
