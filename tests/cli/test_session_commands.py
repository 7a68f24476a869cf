"""`concertina sessions show` and `export`, and `explain --session`: from the store, without proxy and caller's key."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import aiohttp
import pytest
import yaml

from proxy.cli.main import app
from tests.support.scenarios import Agent
from tests.support.stages import DUE, body, stage

if TYPE_CHECKING:
    from pathlib import Path

KEY = (b"authorization", b"Bearer sk-the-callers-own")
LABEL = (b"x-session-id", b"ingest-42")
SECRET = "a store's secret"

Run = Callable[..., tuple[int, str, str]]


async def _played(directory: Path) -> None:
    store = {"url": f"sqlite:///{directory}/s.db", "secret": SECRET}
    async with stage(directory, store=store) as play:
        for _ in range(2):
            assert (await play.send(DUE, KEY, LABEL)).status == 200
            await play.settled()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a config and a store are, with a session that was compacted."""
    made = tmp_path_factory.mktemp("played")
    asyncio.run(_played(made))
    (made / "request.json").write_bytes(DUE)
    return made


@pytest.fixture
def run(directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(directory)

    def command(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            app(words)
        return int(ended.value.code or 0), *capsys.readouterr()

    return command


@pytest.mark.requirement("R3 3.4 title")
def test_a_session_is_told_with_why_its_records_were_made_and_without_what_they_say(run: Run) -> None:
    code, out, err = run("sessions", "show", "ingest-42")
    assert (code, err) == (0, "")
    first, second, headings, record = out.splitlines()
    assert ", ingest-42: " in first
    assert "are sent as a record of" in second
    assert "1 summary took 1 call, " in second
    assert '; "Summary of conversation from 20' in second
    assert headings.startswith("DIGEST")
    assert "  window nearly full, during tool calls  " in record
    assert "the client's own words" not in out
    found = json.loads(run("sessions", "show", "ingest-42", "--json")[1])
    assert found["session"]["label"] == "ingest-42"
    assert found["lineage"]["compactions"] == 1
    assert (found["generations"][0]["making"]["calls"], found["text"]) == (1, None)


def test_a_list_that_another_program_reads_is_cut_nowhere(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = run("sessions", "ls")
    headings, line = out.splitlines()
    (session,) = json.loads(run("sessions", "ls", "--json")[1])
    assert headings.split()[0] == "ID"
    assert line.split()[0] == session["id"][:16]
    assert line.rstrip().endswith(session["label"])
    assert "…" not in out


def test_the_page_counts_as_many_summaries_as_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = asyncio.run(_counted_on_the_page(tmp_path))
    assert made > 1
    with pytest.raises(SystemExit):
        app(["sessions", "show", "ingest-42", "--config", str(tmp_path / "config.yaml")])
    assert f" {made} summaries took {made} calls, " in capsys.readouterr().out


async def _counted_on_the_page(directory: Path) -> int:
    store = {"url": f"sqlite:///{directory}/s.db", "secret": SECRET}
    agent, token = Agent(), "a-token-of-thirty-two-characters"
    async with stage(directory, store=store, server={"admin_token": token}) as play:
        await play.send(body(agent.says("Sort the invoices.")), KEY, LABEL)
        for _ in range(90):
            assert (await play.send(body(agent.works()), KEY, LABEL)).status == 200
            await play.settled()
        async with (
            aiohttp.ClientSession(headers={"authorization": f"Bearer {token}"}) as client,
            client.get(f"{play.address}/admin/sessions") as shown,
        ):
            page = await shown.text()
        requests, summaries, *_ = re.findall(r'<td class="num"[^>]*>([^<]*)</td>', page)
        assert requests == "91"
        return int(summaries)


def test_what_its_newest_record_says_is_printed_where_that_is_wished(run: Run) -> None:
    code, out, _ = run("sessions", "show", "ingest-42", "--record")
    assert (code, "the client's own words" in out) == (0, True)


def test_a_session_is_found_by_how_its_id_begins_and_by_id_and_label(run: Run) -> None:
    session = json.loads(run("sessions", "ls", "--json")[1])[0]["id"]
    for name in (session, session[:8], f"{session[:8]}:ingest-42"):
        assert run("sessions", "show", name)[0] == 0
    code, _, err = run("sessions", "show", f"{session[:8]}:another")
    assert (code, err.startswith("tenant default has no such session: ")) == (1, True)


def test_all_that_is_stored_of_sessions_is_exported_as_lines_of_json(run: Run) -> None:
    code, out, _ = run("sessions", "export")
    (exported,) = map(json.loads, out.splitlines())
    assert (code, exported["session"]["label"]) == (0, "ingest-42")
    assert "the client's own words" in exported["records"][0]["text"]
    assert run("sessions", "export", "ingest-42")[1] == out
    code, out, err = run("sessions", "export", "ingest-42", "nobody")
    assert (code, out, "no such session: nobody" in err) == (1, "", True)


def test_records_that_cannot_be_read_are_told_so(run: Run, directory: Path) -> None:
    with closing(sqlite3.connect(directory / "s.db")) as store:
        (directory / "damaged.db").write_bytes(b"")
        with closing(sqlite3.connect(directory / "damaged.db")) as copy, copy:
            store.backup(copy)
            copy.execute("UPDATE entries SET value = 'x' WHERE key LIKE 'cp:%'")
    config = yaml.safe_load((directory / "config.yaml").read_text("utf-8"))
    config["store"]["url"] = "sqlite:///damaged.db"
    (directory / "damaged.yaml").write_text(yaml.safe_dump(config), "utf-8")
    code, out, _ = run("sessions", "show", "ingest-42", "--record", "--config", "damaged.yaml")
    assert (code, "its records expired, or cannot be decrypted" in out) == (0, True)


def test_of_a_tenant_without_sessions_those_that_have_some_are_told(run: Run, directory: Path) -> None:
    config = yaml.safe_load((directory / "config.yaml").read_text("utf-8"))
    config["tenants"] = {"acme": {}, "other": {}}
    (directory / "tenants.yaml").write_text(yaml.safe_dump(config), "utf-8")
    code, out, err = run("sessions", "ls", "--tenant", "acme", "--json", "--config", "tenants.yaml")
    assert (code, out) == (0, "[]\n")
    assert err == "tenant acme has no sessions; these tenants have some, use --tenant NAME: default\n"
    assert run("sessions", "ls", "--config", "tenants.yaml")[2] == ""


def test_a_tenant_without_sessions_is_told_when_there_will_be_some(run: Run, directory: Path) -> None:
    config = yaml.safe_load((directory / "config.yaml").read_text("utf-8"))
    config["store"]["url"] = "sqlite:///none.db"
    (directory / "none.yaml").write_text(yaml.safe_dump(config), "utf-8")
    with closing(sqlite3.connect(directory / "none.db")):
        (directory / "none.db").write_bytes(b"")
    code, out, err = run("sessions", "ls", "--config", "none.yaml")
    assert (code, out) == (0, "")
    assert err.startswith(
        "tenant default has no sessions yet: a conversation is listed when it is long enough for a compaction;"
    )


def test_a_store_that_is_not_there_is_not_made(run: Run, directory: Path) -> None:
    (directory / "gone.yaml").write_text("store: {url: 'sqlite:///gone.db'}", "utf-8")
    for words in (("show", "ingest-42"), ("export",)):
        assert run("sessions", *words, "--config", "gone.yaml") == (
            1,
            "",
            "nothing is stored: gone.db does not exist; `concertina serve` creates it\n",
        )
    assert not (directory / "gone.db").exists()


def test_a_request_is_explained_with_the_records_of_its_session_and_without_the_callers_key(run: Run) -> None:
    code, alone, _ = run("explain", "request.json")
    assert (code, alone.splitlines()[0].startswith("no store was read")) == (0, True)
    assert "\ncompacted: " in alone
    code, explained, _ = run("explain", "request.json", "--session", "ingest-42")
    assert (code, explained.splitlines()[0].startswith("with the stored records of session ")) == (0, True)
    assert "\nrecord " in explained
    assert "\nsent with the stored record: " in explained
    code, _, err = run("explain", "request.json", "--session", "nobody")
    assert (code, err.startswith("tenant default has no such session: nobody")) == (1, True)


@pytest.mark.slow
def test_the_newest_record_is_undone_once_and_shown_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(_played(tmp_path))
    monkeypatch.chdir(tmp_path)

    def command(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            app(words)
        return int(ended.value.code or 0), *capsys.readouterr()

    code, out, err = command("sessions", "undo", "ingest-42")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"undid record [0-9a-f]{16}; the next request uses the whole history\n", out)
    code, out, err = command("sessions", "undo", "ingest-42")
    assert (code, out) == (1, "")
    assert "The session has no record in use" in err
    shown = command("sessions", "show", "ingest-42")[1]
    assert "its records were undone" in shown
    assert "nearly full, during tool calls, undone" in shown
