"""A real Prometheus scrapes the proxy while a session is played: every panel of the dashboard has something to show."""

from __future__ import annotations

import asyncio
import json
import shutil
from importlib import resources
from typing import TYPE_CHECKING

import pytest

from proxy.dialects.table import MESSAGES
from tests.support.dialects import path_of
from tests.support.model_server import WINDOW
from tests.support.pictures import FORMS, picture
from tests.support.prometheus import asked, prometheus, queries
from tests.support.stages import stage
from tests.support.story_requests import story_requests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="prometheus is not installed: run `apt-get install prometheus`"
    ),
]

SCREENS = FORMS["messages, tool"]
DASHBOARD = json.loads((resources.files("proxy") / "deploy/grafana/concertina.json").read_text("utf-8"))


async def test_every_panel_has_data_while_the_demos_session_is_played(tmp_path: Path) -> None:
    requests = story_requests("messages")
    models = [
        {"match": "pictures", "context_window": 1_000_000, "max_pictures": 4},
        {"match": "*", "context_window": WINDOW, "encoding": "o200k_base"},
    ]
    tenants = {"default": {"summary_tokens_per_day": 10**6}}
    settings: dict[str, object] = {"models": models, "server": {"admin_token": "t" * 16}, "tenants": tenants}
    async with (
        stage(tmp_path, **settings) as play,
        prometheus(tmp_path, play.address, "t" * 16) as watching,
        asyncio.timeout(30),
    ):
        # A rate is of two scrapes at least, and what one key has stored is not found by another.
        for number, key in enumerate((b"Bearer one", b"Bearer another")):
            for body in requests:
                assert (await play.send(body, (b"authorization", key), path=path_of(MESSAGES))).status == 200
            for body in _with_pictures():
                assert (await play.send(body, (b"authorization", key), path=SCREENS.path)).status == 200
            await play.settled()
            await _scraped(watching, 66 * (number + 1))
        for query in queries(DASHBOARD):
            while not _is_shown(await asked(watching, query)):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.2)


def _with_pictures() -> Iterator[bytes]:
    """A session of screenshots that outgrows what its model takes."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "Click."}]
    for number in range(6):
        messages += SCREENS.round_of(picture(number, 2_000), number)
        yield SCREENS.body(messages)


async def _scraped(watching: str, requests: int) -> None:
    """Until so many requests are known there."""
    query = f"sum(concertina_requests_total) >= {requests}"
    while not await asked(watching, query):  # noqa: ASYNC110 - another program sets no event
        await asyncio.sleep(0.2)


def _is_shown(samples: list[object] | None) -> bool:
    """Whether there is a number in it: a share of nothing is none."""
    return any(sample["value"][1] != "NaN" for sample in samples or ())  # type: ignore[index]
