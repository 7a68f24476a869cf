"""`hooks`: functions that a config names are given every event as it happens."""

from __future__ import annotations

import io
import json
import time
from typing import TYPE_CHECKING

import pytest

from proxy.config.loading import ConfigError, load_text
from proxy.telemetry.events import Event, RequestEnded, Started
from proxy.telemetry.log import open_log
from tests.support.upstreams import CHAT, JSON, OK_BODY, always, answer, ask, chat, config_for, serving, upstream

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

HERE = __name__
heard: list[Event] = []


def on_event(event: Event) -> None:
    heard.append(event)


def fails(_: Event) -> None:
    raise ValueError("of the hook")


@pytest.mark.parametrize("hooks", [["on_event"], ["fails", "on_event"]], ids=str)
async def test_every_event_comes_to_a_hook_even_where_another_fails(tmp_path: Path, hooks: list[str]) -> None:
    heard.clear()
    logged = io.BytesIO()
    named = {"hooks": [f"{HERE}:{hook}" for hook in hooks]}
    async with upstream(always(answer(200, OK_BODY, JSON))) as behind:
        config = config_for(tmp_path, behind.address, **named)
        async with serving(config, open_log("error", time.time, logged)) as address:
            reply = await ask(address, "POST", CHAT, [JSON], chat("hello"))
            assert (reply.status, reply.body) == (200, OK_BODY)
    (ended,) = (event for event in heard if isinstance(event, RequestEnded))
    assert reply.header(b"x-concertina-request-id") == ended.id.encode()
    assert any(isinstance(event, Started) for event in heard)
    faults = {json.loads(line)["event"] for line in logged.getvalue().splitlines()}
    assert faults == ({"hook_failed"} if "fails" in hooks else set())


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        ("on_event", "must be written module:function"),
        ("no_such_module:on_event", "no_such_module cannot be imported: ModuleNotFoundError"),
        (f"{HERE}:nothing", f"{HERE} has no function nothing"),
        (f"{HERE}:HERE", f"{HERE} has no function HERE"),
    ],
)
def test_a_hook_that_cannot_be_called_is_a_problem_of_the_config(hook: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text("config.yaml", f"hooks: ['{hook}']", {})
    (found,) = map(str, caught.value.problems)
    assert found.startswith(f"config.yaml:1: hooks[0]: {problem}")
