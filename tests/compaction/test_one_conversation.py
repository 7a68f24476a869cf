"""A record belongs to one conversation: 50,000 random ones are in `make chaos` (CONCERTINA_HISTORIES)."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING

import pytest

from proxy.callers.tenants import Tenants
from proxy.cli.replay.replay import with_window
from proxy.cli.replay.stand_in import StandIn
from proxy.config.loading import load
from proxy.models.tokenizer import Tokenizer
from proxy.wiring import open_apart
from tests.support.dialects import WRITERS, Called, Entry, model, user
from tests.support.neighbours import Client, Judge
from tests.support.scenarios import prose

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HISTORIES = int(os.environ.get("CONCERTINA_HISTORIES", "600")) // len(WRITERS)
_WINDOW = 3_000


@pytest.fixture(params=WRITERS, ids=lambda writer: writer.dialect.name)
async def judge(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Judge]:
    path = tmp_path / "config.yaml"
    path.write_text("{}")
    config = with_window(load(path, {}), _WINDOW)
    caller = Tenants(config).operator_of("default")
    assert caller is not None
    stand_in = StandIn(Tokenizer())
    async with open_apart(config, stand_in, lambda _: None) as engine:
        yield Judge(engine, engine.router(config), stand_in, caller, request.param)


async def test_no_request_carries_a_word_of_another_conversation_or_a_deleted_one(judge: Judge) -> None:
    for seed in count():
        if judge.histories >= HISTORIES:
            break
        await judge.watch(seed)
    assert judge.wrong == []
    assert judge.compacted > judge.requests / 8


def watching(times: int) -> list[Entry]:
    """What every watcher of a server sends and gets."""
    return [
        *(user("Check the status."), model("", Called("c", "status")), Entry("tool", results=(("c", "ok"),))),
        model(f"Everything is up. {prose('up', 60)}"),
    ] * times


@pytest.mark.parametrize("systems", [("You watch a.", "You watch b."), ("You watch.", "You watch.")], ids=str)
async def test_watchers_of_one_key_share_nothing(judge: Judge, systems: tuple[str, str]) -> None:
    secret = [user("The admin password is word00001."), model("Noted.")]
    for length in range(2, 22, 2):
        one = Client(systems[0], "", [*secret, *watching(24), user("And now?")])
        other = Client(systems[1], "", [*watching(length), user("And now?")])
        await judge.play(f"{length} rounds", [(client, client.entries) for client in (one, one, other, other)])
    assert judge.wrong == []
    assert judge.compacted


async def test_what_begins_with_the_end_of_another_one_is_not_that_one(judge: Judge) -> None:
    history = told(60)
    for start in range(2, 40, 2):
        one = Client("You work.", "", [*history, user("Go on.")])
        other = Client("You work.", "", [*history[start : start + 30], *told(60, first=100), user("Go on.")])
        await judge.play(f"from {start}", [(client, client.entries) for client in (one, one, other, other)])
    assert judge.wrong == []
    assert judge.compacted


@pytest.mark.parametrize("place", [0, 2, 8, 20, 30])
async def test_what_a_user_deletes_is_sent_no_more(judge: Judge, place: int) -> None:
    history = told(100)
    for size in (1, 2, 4, 10):
        shorter = [*history[:place], *history[place + size :]]
        sent = [[*history, user("Go on.")], [*shorter, user("Go on.")], [*shorter, user("Go on."), *told(4, first=200)]]
        await judge.play(f"{size} at {place}", [(Client("You work.", "", each), each) for each in sent])
    assert judge.wrong == []
    assert judge.compacted >= 4


def told(number: int, first: int = 0) -> list[Entry]:
    """So many messages, each with a word of its own."""
    speakers = (user, model)
    return [speakers[at % 2](f"Always use word{at:05}. {prose(str(at), 40)}") for at in range(first, first + number)]
