"""What a record leaves out is told: in the header, the log, the API, on the pages, and beforehand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from proxy.cli.main import app
from tests.support.scenarios import Agent
from tests.support.stages import body, ours, outcome, settings_of, stage
from tests.support.upstreams import ask

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.upstreams import Header

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TOKEN: Header = (b"authorization", b"Bearer " + b"t" * 16)
HTML: Header = (b"accept", b"text/html")
JSON: Header = (b"content-type", b"application/json")
SESSIONS = "/admin/api/sessions"


def history() -> list[dict[str, object]]:
    """Return a conversation that a person says more in than a record has room for."""
    agent = Agent()
    agent.says("Port the billing to cents. " + " ".join(f"The key of shop{at} is key-{at}{at}." for at in range(200)))
    for _ in range(12):
        agent.works()
    agent.says("Go on with the next part, please.")
    for _ in range(12):
        agent.works()
    return agent.messages


async def test_all_places_tell_the_same(tmp_path: Path) -> None:
    request = body(history())
    async with stage(tmp_path, **settings_of(tmp_path)) as play:
        before = (await play.send(request, path="/v1/compaction/explain")).json()
        reply = await play.send(request)
        assert outcome(reply)[0] == "applied"
        header = ours(reply)["left-out"]
        number = int(header.removeprefix("said="))
        assert number > 10
        assert len(before["left_out"]) == number  # type: ignore[arg-type]
        reused = await play.send(request)
        assert (outcome(reused)[0], ours(reused)["left-out"]) == ("reused", header)
        await play.settled()
        assert [line["left_out"] for line in play.logged("request") if line.get("checkpoint")] == [{"said": number}] * 2
        (listed,) = (await ask(play.address, "GET", SESSIONS, [TOKEN])).json()["sessions"]  # type: ignore[misc]
        assert listed["left_out"] == {"said": number}  # type: ignore[index]
        path = f"{SESSIONS}/{str(listed['id'])[:16]}/records"  # type: ignore[index]
        (row,) = (await ask(play.address, "GET", path, [TOKEN])).json()["records"]  # type: ignore[misc]
        assert row["left_out"] == {"said": number}  # type: ignore[index]
        record = f"{path}/{row['digest']}"  # type: ignore[index]
        told = (await ask(play.address, "GET", record, [TOKEN])).json()["left_out"]
        assert [(each["text"], each["position"]) for each in told] == [  # type: ignore[attr-defined, index]
            (each["text"], 1 if each["index"] is None else each["index"] - 1)  # type: ignore[index]
            for each in before["left_out"]  # type: ignore[attr-defined]
        ]
        assert all(each["text"].startswith("The key of shop") for each in told)  # type: ignore[attr-defined, index]
        assert all(each["text"] not in play.sent[-1].body.decode() for each in told)  # type: ignore[attr-defined, index]
        page = (await ask(play.address, "GET", record.replace("/api", ""), [TOKEN, HTML])).body.decode()
        assert "Covered, but not shown" in page
        assert str(told[0]["text"]) in page  # type: ignore[index]
        retained = (await ask(play.address, "GET", f"{path.removesuffix('records')}retained", [TOKEN])).json()
        assert retained["counts"]["left out"] == number  # type: ignore[index, call-overload]
        assert retained["texts"][0]["state"] == "left out"  # type: ignore[index, call-overload]
        session = (
            await ask(play.address, "GET", path.removesuffix("/records").replace("/api", ""), [TOKEN, HTML])
        ).body
        assert b"Retained statements and rules" in session
        assert str(told[0]["text"]).encode() in session  # type: ignore[index]
        small = await play.send(body([{"role": "user", "content": "Hello."}]))
        assert "left-out" not in ours(small)


async def test_the_list_is_content_and_the_counts_are_not(tmp_path: Path) -> None:
    async with stage(tmp_path, **settings_of(tmp_path, inspect=False)) as play:
        await play.send(body(history()))
        await play.settled()
        (listed,) = (await ask(play.address, "GET", SESSIONS, [TOKEN])).json()["sessions"]  # type: ignore[misc]
        path = f"{SESSIONS}/{str(listed['id'])[:16]}"  # type: ignore[index]
        rows = await ask(play.address, "GET", f"{path}/records", [TOKEN])
        (row,) = rows.json()["records"]  # type: ignore[misc]
        assert row["left_out"]["said"] > 10  # type: ignore[index]
        hidden = await ask(play.address, "GET", f"{path}/records/{row['digest']}", [TOKEN])  # type: ignore[index]
        assert hidden.status == 403
        export = await ask(play.address, "GET", f"{path}/export", [TOKEN])
        retained = await ask(play.address, "GET", f"{path}/retained", [TOKEN])
        assert retained.status == 403
        page = await ask(play.address, "GET", path.replace("/api", ""), [TOKEN, HTML])
        assert page.status == 200
        for reply in (rows, hidden, export, retained, page):
            assert b"The key of shop" not in reply.body


def test_the_command_explain_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, request = tmp_path / "config.yaml", tmp_path / "request.json"
    given = {**settings_of(tmp_path), "upstreams": {"main": {"base_url": "http://127.0.0.1:9/v1"}}}
    config.write_text(json.dumps(given))
    request.write_bytes(body(history()))
    with pytest.raises(SystemExit) as ended:
        app(["explain", str(request), "--config", str(config)])
    out = capsys.readouterr().out
    assert not ended.value.code
    assert "  left out said [" in out
