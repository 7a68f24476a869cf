"""The API by its own description: whatever may be asked by it is answered as it says, and nothing breaks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from proxy.admin.endpoints import ENDPOINTS
from tests.support.admin import CONFIGURED, played
from tests.support.long_conversations import LONG, SMALL_WINDOW
from tests.support.upstreams import CHAT, JSON, ask

if TYPE_CHECKING:
    from pathlib import Path

    from schemathesis import APIOperation, Case

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

# It never ends.
STREAM = "/admin/api/live"
# Whether a text is a request, or a cursor of ours, is beyond what a schema says.
BEYOND = [positive_data_acceptance]
TOKEN = {"Authorization": f"Bearer {CONFIGURED}"}
of_any = settings(max_examples=12, deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck])


async def test_whatever_is_asked_is_answered_as_described(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED, **SMALL_WINDOW) as play:
        assert (await ask(play.address, "POST", CHAT, [JSON], LONG)).status == 200
        schema = await asyncio.to_thread(schemathesis.openapi.from_url, f"{play.address}/openapi.json")
        operations = [found.ok() for found in schema.exclude(path=STREAM).get_all_operations()]
        assert len(operations) == len(ENDPOINTS) - 1
        for operation in operations:
            await asyncio.to_thread(hold, operation)
        assert b'"level":"error"' not in play.log.getvalue().replace(b" ", b"")


def hold(operation: APIOperation) -> None:
    """Every answer of this operation to what its description allows, and to other methods, is one that it describes."""

    @of_any
    @given(case=operation.as_strategy())
    def holds(case: Case) -> None:
        case.call_and_validate(headers=TOKEN, excluded_checks=BEYOND)

    holds()
