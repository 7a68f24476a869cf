"""One request by its id: what is told of it, to whom, and what is said where nothing is known of it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, get_args

import pytest

from proxy.admin.sessions.one_request import view_of
from proxy.admin.why import CAUSES, ENDS, OVERFLOWS
from proxy.telemetry.events import End, Overflow
from proxy.telemetry.tallies import _FAILURES
from tests.support.admin import BROWSER, CONFIGURED, Played, hashed, played
from tests.support.long_conversations import LONG, SMALL_WINDOW, bearer
from tests.support.scenarios import LOUD, WINDOW, loud
from tests.support.session_events import compacted, requested
from tests.support.upstreams import CHAT, JSON, Header, ask

if TYPE_CHECKING:
    from pathlib import Path

HTML: Header = (b"Accept", b"text/html")
VIEWER, AGENT = "ck-viewer-of-acme", "ck-agent-of-acme"
HI = [{"role": "user", "content": "hi"}]
SECRET = "some words of a long conversation"


def test_every_way_to_end_has_its_sentence() -> None:
    assert ENDS.keys() == {*get_args(End)}
    assert OVERFLOWS.keys() == {*get_args(Overflow)}
    assert {*_FAILURES, "undecodable", "too_large"} == CAUSES.keys()


def test_its_time_is_told_by_what_was_done_and_adds_up() -> None:
    event = requested(
        ms=5_000.0, first_byte_ms=3_000.0, own_ms=10.0, wait_ms=1_000.0, stages={"read": 4.0, "store": 3.0, "plan": 1.0}
    )
    stages = {stage.name: stage.ms for stage in view_of(event, None).stages}
    assert stages == {
        "read and counted": 4.0,
        "read from the store": 3.0,
        "decided": 1.0,
        "other work of the proxy": 2.0,
        "waited for a summary": 1_000.0,
        "until the upstream responded": 1_990.0,
        "response relayed": 2_000.0,
    }
    assert sum(stages.values()) == event.ms
    assert view_of(requested(own_ms=None, first_byte_ms=None), None).stages == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["The response had status 200.", "The response is complete."]),
        (
            {"overflow": "passed_on", "status": 400},
            ["had status 400.", "is complete", "refused it as"],
        ),
        ({"status": 0, "end": "client_gone"}, ["The client disconnected before the end."]),
        (
            {"status": 502, "end": "refused", "cause": "dns"},
            ["502", "The proxy refused it", "Cause: the upstream's name"],
        ),
        ({"warning": "prompt_cut_off"}, ["200", "complete", "less than half"]),
        ({"warning": "pin_left_out"}, ["200", "complete", "no room"]),
    ],
)
def test_how_it_ended_is_told_in_sentences(changes: dict[str, object], words: list[str]) -> None:
    told = view_of(requested(**changes), None).outcome
    assert len(told) == len(words)
    assert all(word in sentence for word, sentence in zip(words, told, strict=True))


def test_what_is_known_of_the_cache_and_the_record_is_told_and_no_more() -> None:
    event = requested(billed=2_000, cached=1_500, output=100, checkpoint="d" * 16, compaction="applied")
    view = view_of(event, compacted())
    assert view.cache_share == 0.75
    assert view.record is not None
    assert "became a record of" in view.record
    unknown = view_of(requested(), None)
    assert (unknown.cache_share, unknown.record) == (None, None)


@pytest.mark.anyio
@pytest.mark.slow
async def test_its_page_tells_what_its_new_short_forms_save_and_break(tmp_path: Path) -> None:
    request = json.dumps({"model": "m", "messages": loud(4, small=2)}).encode()
    models, policies = [{"match": "*", "context_window": WINDOW}], {"default": {**LOUD, "soft_threshold": 1}}
    async with played(tmp_path, CONFIGURED, models=models, policies=policies) as play:
        pages = []
        for _ in range(2):
            name = await _asked(play, body=request)
            pages.append((await play.send("GET", f"/admin/requests/{name}", HTML, bearer(CONFIGURED))).body.decode())
    assert ["Short forms" in page and "By estimate every later" in page for page in pages] == [True, False]


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_request_that_failed_is_not_told_as_one_that_went_well(tmp_path: Path) -> None:
    dead = {"main": {"base_url": "http://127.0.0.1:1/v1"}}
    async with played(tmp_path, CONFIGURED, upstreams=dead, **SMALL_WINDOW) as play:
        reply = await ask(play.address, "POST", CHAT, [JSON], json.dumps({"model": "m", "messages": HI}).encode())
        assert reply.status == 502
        name = (reply.header(b"x-concertina-request-id") or b"").decode()
        page = (await play.send("GET", f"/admin/requests/{name}", HTML, bearer(CONFIGURED))).body.decode()
    (notice,) = re.findall(r'<p class="notice([^"]*)">(.*?)</p>', page, re.DOTALL)
    assert notice[0] == " wrong"
    assert "The response had status 502." in notice[1]
    assert "Cause: " in notice[1]
    assert "It is small, so it was not changed." in page
    assert "went out" not in page


async def _asked(play: Played, *headers: Header, body: bytes = LONG) -> str:
    reply = await ask(play.address, "POST", CHAT, [JSON, *headers], body)
    assert reply.status == 200
    return (reply.header(b"x-concertina-request-id") or b"").decode()


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_request_is_found_by_the_id_that_its_answer_had(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED, tenants={"default": {"inspect": False}}, **SMALL_WINDOW) as play:
        name = await _asked(play, (b"X-Session-Id", b"<i>mine</i>"))
        page = await play.send("GET", f"/admin/requests/{name}", HTML, bearer(CONFIGURED))
        text = page.body.decode()
        assert page.status == 200
        for words in (
            name,
            ">Received</h2>",
            "Duration by stage",
            "&lt;i&gt;mine",
            "The response had status 200.",
            "decided",
            "Left out",
        ):
            assert words in text, words
        assert "<i>mine" not in text
        told = (await play.send("GET", f"/admin/api/requests/{name}", bearer(CONFIGURED))).json()
        assert (told["event"]["id"], told["event"]["label"]) == (name, "<i>mine</i>")  # type: ignore[index,call-overload]
        assert SECRET.encode() not in page.body + str(told).encode()
        session = told["event"]["session"]  # type: ignore[index,call-overload]
        for view in ("live", f"sessions/{session}", f"sessions?q={name}"):
            shown = (await play.send("GET", f"/admin/{view}", HTML, bearer(CONFIGURED))).body.decode()
            assert f"requests/{name}" in shown, view
        assert (await play.send("GET", f"/admin/requests/{name}", *BROWSER)).status == 401


@pytest.mark.anyio
@pytest.mark.slow
async def test_of_a_request_that_is_not_known_it_is_told_why(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED, **SMALL_WINDOW) as play:
        await _asked(play)
        for name, words in (
            ("0" * 16, "newest 1,000 requests and compactions since"),
            ("x", "16 hex"),
        ):
            page = await play.send("GET", f"/admin/requests/{name}", HTML, bearer(CONFIGURED))
            assert (page.status, words in page.body.decode()) == (404, True), name
            told = (await play.send("GET", f"/admin/api/requests/{name}", bearer(CONFIGURED))).json()["error"]
            assert (told["code"], words in told["message"]) == ("not_found", True)  # type: ignore[index,call-overload]
        search = (await play.send("GET", f"/admin/sessions?q={'0' * 16}", HTML, bearer(CONFIGURED))).body.decode()
        assert f"requests/{'0' * 16}" in search


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_viewer_is_told_of_a_request_of_another_tenant_what_it_is_told_of_none(tmp_path: Path) -> None:
    acme = {"keys": [hashed(AGENT)], "viewer_keys": [hashed(VIEWER)]}
    async with played(tmp_path, CONFIGURED, tenants={"default": {}, "acme": acme}, **SMALL_WINDOW) as play:
        theirs, own = await _asked(play), await _asked(play, bearer(AGENT))
        for path in ("/admin/requests/{}", "/admin/api/requests/{}"):
            found = [
                await play.send("GET", path.format(name), HTML, bearer(VIEWER)) for name in (own, theirs, "0" * 16)
            ]
            assert [reply.status for reply in found] == [200, 404, 404], path
        other = await play.send("GET", f"/admin/api/requests/{theirs}", bearer(VIEWER))
        none = await play.send("GET", f"/admin/api/requests/{'0' * 16}", bearer(VIEWER))
        assert other.body == none.body
        search = (await play.send("GET", f"/admin/api/search?q={theirs}", bearer(VIEWER))).json()
        assert search["requests"] == []
