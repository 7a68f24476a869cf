"""Session commands call the admin API: of the running proxy, else of the same application over the store."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sqlite3
from contextlib import asynccontextmanager, closing, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, NamedTuple

import pytest
import yaml

from proxy.cli.main import app
from proxy.sessions.stores.base import StoreError
from proxy.sessions.stores.sqlite import SqliteStore
from tests.support.servers import configured
from tests.support.stages import CONTENT, DUE, Stage, ours, stage
from tests.support.upstreams import always, answer, in_turn, upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.upstreams import Header

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TOKEN = "t" * 16
LABEL: Header = (b"x-session-id", b"work")
UNKNOWN = "tenant default has no such session: nobody; `concertina sessions ls` lists them\n"


class Ended(NamedTuple):
    code: int
    out: str
    err: str


async def command(directory: Path, *words: str) -> Ended:
    """A session command with the directory's config."""

    def run() -> Ended:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            app(["sessions", *words, "--config", str(directory / "config.yaml")])
        return Ended(int(ended.value.code or 0), out.getvalue(), err.getvalue())

    return await asyncio.to_thread(run)


def rewrite(directory: Path, **server: object) -> None:
    """Lay these over the config's settings of the server."""
    config = yaml.safe_load((directory / "config.yaml").read_text("utf-8"))
    configured(directory, {**config, "server": {**config.get("server", {}), **server}})


@asynccontextmanager
async def played(directory: Path, url: str = "", **settings: object) -> AsyncIterator[Stage]:
    """A proxy that has compacted a session, found by the directory's config."""
    store = {"url": url or f"sqlite:///{directory}/s.db", "secret": "s"}
    server = {"admin_token": TOKEN}
    async with stage(directory, store=store, **{"server": server, **settings}) as play:
        rewrite(directory, port=int(play.address.rpartition(":")[2]))
        assert (await play.send(DUE, LABEL)).status == 200
        await play.settled()
        yield play


async def test_a_running_proxy_lists_shows_and_exports_what_its_memory_alone_has(tmp_path: Path) -> None:
    async with played(tmp_path, "memory://") as play:
        (session,) = json.loads((await command(tmp_path, "ls", "--json")).out)
        assert session["label"] == "work"
        shown = await command(tmp_path, "show", session["id"][:6], "--record")
        assert (shown.code, CONTENT in shown.out, "1 summary took" in shown.out) == (0, True, True)
        exported = json.loads((await command(tmp_path, "export")).out)
        assert exported["session"] == session
        assert [line["what"] for line in play.logged("admin")] == ["record_read", "session_exported"]
        assert (await command(tmp_path, "show", "nobody")) == Ended(1, "", UNKNOWN)


async def test_the_commands_print_the_same_with_and_without_the_running_proxy(tmp_path: Path) -> None:
    asked = [("ls",), ("ls", "--json"), ("show", "work", "--record"), ("show", "work", "--json"), ("export", "work")]
    async with played(tmp_path):
        running = [await command(tmp_path, *words) for words in asked]
        assert [each.code for each in running] == [0] * len(asked)
    before = dump(tmp_path)
    assert [await command(tmp_path, *words) for words in asked] == running
    assert dump(tmp_path) == before, "nothing is written"


def dump(directory: Path) -> list[str]:
    with closing(sqlite3.connect(directory / "s.db")) as store:
        return [*store.iterdump()]


async def test_who_has_the_stores_secret_reads_what_the_pages_hide(tmp_path: Path) -> None:
    async with played(tmp_path, tenants={"default": {"inspect": False}}) as play:
        for words in (("show", "work", "--record"), ("export", "work")):
            printed = await command(tmp_path, *words)
            assert (printed.code, CONTENT in printed.out, printed.err) == (0, True, "")
        assert play.logged("admin") == []


async def test_a_proxy_with_another_token_is_not_asked_for_what_the_store_has(tmp_path: Path) -> None:
    async with played(tmp_path):
        rewrite(tmp_path, admin_token="another" * 3)
        assert len(json.loads((await command(tmp_path, "ls", "--json")).out)) == 1
        refused = await command(tmp_path, "rm", "work")
        assert (refused.code, "did not erase it: it has another admin token" in refused.err) == (1, True)


async def test_a_proxy_without_pages_learns_what_a_command_has_erased(tmp_path: Path) -> None:
    async with played(tmp_path, server={"admin": False}) as play:
        assert len(json.loads((await command(tmp_path, "ls", "--json")).out)) == 1
        gone = await command(tmp_path, "rm", "work")
        assert (gone.code, gone.out) == (0, "erased sessions of tenant default: 1\n")
        assert gone.err.endswith("; erased only in the store\n")
        assert ours(await play.send(DUE, LABEL))[""] == "applied", "it is summarized anew"


async def test_an_erasure_that_the_store_does_not_carry_out_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with played(tmp_path):
        pass

    async def fail(*_: object) -> bytes | None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "erase", fail)
        for words in (("work",), ("--all",)):
            failed = await command(tmp_path, "rm", *words)
            assert (failed.code, failed.out) == (1, "")
            assert failed.err.endswith("The store did not respond, so some sessions may not be erased. Try again.\n")
    assert len(json.loads((await command(tmp_path, "ls", "--json")).out)) == 1


async def test_a_tenant_erases_nothing_that_another_lists(tmp_path: Path) -> None:
    async with played(tmp_path, tenants={"default": {}, "acme": {}}):
        pass
    (session,) = json.loads((await command(tmp_path, "ls", "--json")).out)
    for name in (session["id"], session["id"][:16], "work"):
        refused = await command(tmp_path, "rm", name, "--tenant", "acme")
        assert (refused.code, refused.out) == (1, "erased sessions of tenant acme: 0\n")
        assert (await command(tmp_path, "show", name, "--tenant", "acme")).code == 1
    assert json.loads((await command(tmp_path, "ls", "--json")).out) == [session]


async def test_a_proxy_that_goes_away_before_all_is_erased_is_told(tmp_path: Path) -> None:
    listed = answer(200, b'{"sessions":[],"cursor":null}')
    async with upstream(in_turn(listed, answer(200, b'{"erased":[]}'), b"nonsense\r\n")) as proxy:
        configured(tmp_path, {"store": {"url": f"sqlite:///{tmp_path}/s.db"}})
        rewrite(tmp_path, port=int(proxy.address.rpartition(":")[2]))
        failed = await command(tmp_path, "rm", "one", "two")
        assert (failed.code, failed.out) == (1, "")
        assert re.match(r"the proxy at \S+ stopped, or has another version; try again\n", failed.err)


async def test_a_stranger_at_the_address_of_the_proxy_is_passed_over(tmp_path: Path) -> None:
    async with played(tmp_path):
        pass
    async with upstream(always(answer(200, b"<html>"))) as stranger:
        rewrite(tmp_path, port=int(stranger.address.rpartition(":")[2]))
        assert len(json.loads((await command(tmp_path, "ls", "--json")).out)) == 1


async def test_sessions_of_more_than_a_page_are_listed_by_a_label_and_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.cli.sessions._PAGE", 1)
    async with played(tmp_path) as play:
        await play.send(DUE.replace(CONTENT.encode(), b"another beginning"), LABEL)
        await play.settled()
        for words in (("export",), ("export", "work")):
            lines = (await command(tmp_path, *words)).out.splitlines()
            assert len({json.loads(line)["session"]["id"] for line in lines}) == len(lines) == 2
