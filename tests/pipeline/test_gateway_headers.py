"""Gateways between us and the model: what they need goes with every request, summaries included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.model_server import ReceivedRequest
from tests.support.stages import DUE, outcome, stage

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


def value(request: ReceivedRequest, name: bytes) -> bytes | None:
    return next((given for key, given in request.headers if key.lower() == name), None)


async def test_summaries_carry_the_clients_gateway_headers(tmp_path: Path) -> None:
    sent = [(b"x-portkey-config", b"pc-1"), (b"helicone-auth", b"Bearer h"), (b"x-request-id", b"r-1")]
    async with stage(tmp_path) as play:
        assert outcome(await play.send(DUE, *sent))[0] == "applied"
        (summary,) = [request for request in play.model.received if request.is_summary]
    assert [value(summary, name) for name, _ in sent] == [b"pc-1", b"Bearer h", None]
    names = [name.lower() for name, _ in summary.headers]
    assert sorted(names) == sorted({*names}), "each once"


async def test_configured_headers_go_with_every_request_to_their_upstream(tmp_path: Path) -> None:
    headers = {"X-Gateway-Key": "secret 1", "x-team": "agents"}
    async with stage(tmp_path, headers=headers) as play:
        assert outcome(await play.send(DUE, (b"x-team", b"the client's")))[0] == "applied"
        await play.settled()
        assert len(play.model.received) > 1
        for request in play.model.received:
            assert (value(request, b"x-gateway-key"), value(request, b"x-team")) == (b"secret 1", b"agents")
        assert "secret 1" not in str(play.log)
