"""Prompt of the model: the newest prompts as they were sent, masked, in memory alone, and only if they may be read."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from proxy.compaction import sent_prompts
from proxy.compaction.sent_prompts import HeldPrompt, SentPrompts, SessionName, ShownMessage, ShownPrompt
from tests.support.scenarios import Agent
from tests.support.stages import body, outcome, settings_of, stage
from tests.support.upstreams import ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.stages import Stage
    from tests.support.upstreams import Header

pytestmark = pytest.mark.anyio

TOKEN: Header = (b"authorization", b"Bearer " + b"t" * 16)
HTML: Header = (b"accept", b"text/html")
SESSIONS = "/admin/api/sessions"
SECRET = "sk-proj-" + "aB3dE6gH9jK2mN5pQ8sT" * 2
NAME = SessionName("acme", "5e55105e55105e55", "a label")


def prompt(text: str = "Hello.", at: float = 1.0) -> ShownPrompt:
    return ShownPrompt(
        at=at, model="m", tokens=1, received=1, covered=0, messages=[ShownMessage("user", text, 0)]
    )  # fmt: skip


def history() -> list[dict[str, object]]:
    agent = Agent()
    agent.says(f"Port the billing to cents. The key of the service is {SECRET}. Never push to main.")
    for _ in range(30):
        agent.works()
    agent.says("Go on with the next part, please.")
    return agent.messages


@asynccontextmanager
async def played(directory: Path, *, inspect: bool = True) -> AsyncIterator[Stage]:
    async with stage(directory, **settings_of(directory, inspect=inspect)) as play:
        assert outcome(await play.send(body(history())))[0] == "applied"
        await play.settled()
        yield play


async def session_of(play: Stage) -> str:
    (listed,) = (await ask(play.address, "GET", SESSIONS, [TOKEN])).json()["sessions"]  # type: ignore[misc]
    return f"{SESSIONS}/{str(listed['id'])[:16]}"  # type: ignore[index]


async def held_bytes(play: Stage) -> float:
    metrics = (await ask(play.address, "GET", "/metrics", [TOKEN])).body.decode()
    return float(re.findall(r'concertina_memory_bytes\{cache="sent_prompts"\} (\S+)', metrics)[0])


@pytest.mark.slow
async def test_the_newest_prompt_is_shown_as_it_was_sent_and_without_secrets(
    tmp_path: Path,
) -> None:
    async with played(tmp_path) as play:
        path = await session_of(play)
        reply = await ask(play.address, "GET", f"{path}/prompts", [TOKEN])
        (shown,) = reply.json()["prompts"]  # type: ignore[misc]
        sent = json.loads(play.sent[-1].body)["messages"]
        assert [each["role"] for each in shown["messages"]] == [each["role"] for each in sent]  # type: ignore[index]
        (record,) = [each for each in shown["messages"] if each["change"] == "record"]  # type: ignore[index]
        assert record["text"] == shown["record"]  # type: ignore[index]
        assert shown["record"].startswith("<conversation_record>")  # type: ignore[index]
        assert len(shown["replaced"]) > 10  # type: ignore[index]
        assert shown["tokens"] < shown["received"]  # type: ignore[index]
        assert SECRET.encode() not in reply.body
        page = (await ask(play.address, "GET", path.replace("/api", ""), [TOKEN, HTML])).body.decode()
        assert "Read by the model instead" in page
        assert SECRET not in page
        assert await held_bytes(play) > 1_000
        erased = await ask(play.address, "DELETE", path, [TOKEN])
        assert erased.status == 200
        assert (await ask(play.address, "GET", f"{path}/prompts", [TOKEN])).status == 410


@pytest.mark.slow
async def test_nothing_is_held_of_a_tenant_whose_content_may_not_be_read(tmp_path: Path) -> None:
    async with played(tmp_path, inspect=False) as play:
        path = await session_of(play)
        assert (await ask(play.address, "GET", f"{path}/prompts", [TOKEN])).status == 403
        assert await held_bytes(play) == 0
        page = (await ask(play.address, "GET", path.replace("/api", ""), [TOKEN, HTML])).body.decode()
        assert "Prompt of the model" not in page


@pytest.mark.slow
async def test_a_replica_that_did_not_send_it_says_so(tmp_path: Path) -> None:
    async with played(tmp_path) as play:
        path = await session_of(play)
    async with stage(tmp_path, **settings_of(tmp_path)) as play:
        assert (await ask(play.address, "GET", f"{path}/prompts", [TOKEN])).json() == {"prompts": []}
        page = (await ask(play.address, "GET", path.replace("/api", ""), [TOKEN, HTML])).body.decode()
        assert "This replica has no prompt of it" in page
        assert "Retained statements and rules" in page


def held_prompt(at: float = 0.0) -> HeldPrompt:
    return HeldPrompt(lambda: prompt("Hello.", at), 300)


async def test_prompts_are_held_within_a_bound_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_prompts, "MOST_BYTES", 2_000)
    held = SentPrompts()
    held.hold(NAME, held_prompt())
    assert held.of(NAME) == [], "nothing is held until it is known whose content may be read"
    held.shows_content = "acme".__eq__
    for number in range(5):
        held.hold(NAME, held_prompt(float(number)))
    assert [each.at for each in held.of(NAME)] == [4.0, 3.0, 2.0]
    for number in range(20):
        held.hold(SessionName("acme", f"{number:016x}", ""), held_prompt())
    assert 0 < held.held_bytes["sent_prompts"] <= 2_000
    assert held.of(NAME) == []
    held.hold(NAME, held_prompt())
    held.forget("acme", NAME.id, "another label".__eq__)
    assert len(held.of(NAME)) == 1
    held.forget("acme", NAME.id, NAME.label.__eq__)
    assert held.of(NAME) == []
    held.shows_content = lambda _: False
    held.forget_hidden()
    assert held.held_bytes["sent_prompts"] == 0
