"""Labels name sessions and have no part in finding records; nothing is stored of a session that is not listed."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import pytest

from policies.conversation.prefix_digests import hash_tag, mark_of
from proxy.callers.tenants import Tenants
from proxy.cli.stored import open_sessions
from proxy.sessions.stores.base import StoreError, tag_of
from proxy.sessions.stores.sqlite import SqliteStore
from tests.support.long_conversations import SMALL_WINDOW, sent, summaries, summarizing
from tests.support.upstreams import ask, config_for, serving, upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from proxy.config.loading import Config
    from tests.support.upstreams import Header, Upstream

pytestmark = pytest.mark.anyio


def kept_in(folder: Path) -> dict[str, str]:
    """A file that has time to answer, however busy the machine is."""
    return {"url": f"sqlite:///{folder}/store.db", "timeout": "10s"}


def label(name: str) -> Header:
    return b"X-Session-Id", name.encode()


def wish(name: str) -> Header:
    return b"X-Compaction", name.encode()


async def outcome(address: str, *headers: Header) -> bytes | None:
    return (await sent(address, *headers)).header(b"x-compaction")


def stored(directory: Path) -> set[str]:
    """The keys in the file of a proxy that has ended."""
    with closing(sqlite3.connect(directory / "store.db")) as connection:
        return {key for (key,) in connection.execute("SELECT key FROM entries")}


def copies(directory: Path) -> int:
    return sum(key.startswith("cp:") for key in stored(directory))


async def tags(config: Config) -> set[str]:
    """Of the sessions that are listed."""
    caller = Tenants(config).operator_of("default")
    assert caller is not None
    async with open_sessions(config) as sessions:
        listed = await sessions.of(caller)
        names = [bytes.fromhex(session.id) + mark_of(caller.labels, session.label) for session in listed]
        return {hash_tag(link) for link in await sessions.epochs.links(names)}


@asynccontextmanager
async def compacted(directory: Path) -> AsyncIterator[tuple[Upstream, Config]]:
    """Yield an upstream and the config of a proxy that has ended. Its store has a record, made for the label A."""
    async with upstream(summarizing) as behind:
        config = config_for(directory, behind.address, store=kept_in(directory), **SMALL_WINDOW)
        async with serving(config) as address:
            assert await outcome(address, label("A")) == b"applied"
        yield behind, config


@pytest.mark.parametrize("wished", ["off", "shadow", "on", "force"])
async def test_all_that_is_stored_belongs_to_a_session_that_is_listed(tmp_path: Path, wished: str) -> None:
    async with compacted(tmp_path) as (_, config):
        for _ in range(3):
            async with serving(config) as address:
                await outcome(address, label("B"), wish(wished))
                await outcome(address, label("B"), wish(wished))
    kinds = ("cp:", "cool:", "lineage:", "part:", "summary:")
    assert {tag_of(key) for key in stored(tmp_path) if key.startswith(kinds)} <= await tags(config)
    assert len(await tags(config)) == (2 if wished in ("on", "force") else 1)
    assert not [key for key in stored(tmp_path) if wished in ("off", "shadow") and mark("B", config) in key]


def mark(name: str, config: Config) -> str:
    caller = Tenants(config).operator_of("default")
    assert caller is not None
    return mark_of(caller.labels, name).hex()


async def test_a_label_that_changes_with_each_request_costs_no_copies(tmp_path: Path) -> None:
    async with compacted(tmp_path) as (behind, config):
        async with serving(config) as address:
            assert {await outcome(address, label(f"L{number}")) for number in range(20)} == {b"reused"}
        assert (summaries(behind), copies(tmp_path)) == (1, 1)


async def test_a_new_label_with_several_requests_at_once_pays_for_nothing(tmp_path: Path) -> None:
    async with compacted(tmp_path) as (behind, config):
        async with serving(config) as address:
            assert set(await asyncio.gather(*(outcome(address, label("B")) for _ in range(6)))) == {b"reused"}
        assert summaries(behind) == 1


async def test_a_new_label_that_met_a_store_that_was_down_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    down, look = False, SqliteStore.get_many

    async def get_many(store: SqliteStore, keys: Sequence[str]) -> list[bytes | None]:
        if down:
            raise StoreError("down")
        return await look(store, keys)

    monkeypatch.setattr(SqliteStore, "get_many", get_many)
    async with compacted(tmp_path) as (behind, config):
        async with serving(config) as address, asyncio.timeout(30):
            down = True
            reply = await sent(address, label("B"), wish("shadow"))
            assert (reply.header(b"x-compaction-reason") or b"").startswith(b"would_compact")
            down = False
            while (await ask(address, "GET", "/readyz", [])).json()["store"] != "up":
                pass
            assert await outcome(address, label("B")) == b"reused"
        assert summaries(behind) == 1
