"""The pages and the API of sessions over a running proxy: what is shown, to whom, and what an erasure leaves."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from msgspec import structs

from policies.conversation.prefix_digests import Chain, mark_of
from proxy.admin.sessions import asking
from proxy.sessions.stores import StoreError, breaker
from tests.support.admin import BROWSER, CONFIGURED, SESSIONS, Played, played
from tests.support.long_conversations import LONG, SMALL_WINDOW, bearer
from tests.support.upstreams import CHAT, JSON, Header, Reply, ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LABEL = "<b>the deploy</b>"
SECRET = "some words of a long conversation"
HTML: Header = (b"Accept", b"text/html")


@dataclass
class Shown:
    """A proxy that has compacted one session."""

    play: Played
    id: str

    async def page(self, path: str, token: str = CONFIGURED) -> Reply:
        return await self.play.send("GET", f"/admin/{path}", HTML, bearer(token))

    async def json(self, path: str) -> dict[str, object]:
        return (await self.play.send("GET", f"/admin/api/{path}", bearer(CONFIGURED))).json()


@asynccontextmanager
async def shown(directory: Path, *, inspect: bool = True, store: str = "memory://") -> AsyncIterator[Shown]:
    policies = {"default": {"summarizer": {"model": "none"}}}
    tenants = {"default": {"inspect": inspect}}
    async with played(directory, CONFIGURED, store, policies=policies, tenants=tenants, **SMALL_WINDOW) as play:
        for _ in range(2):
            headers = [JSON, (b"X-Session-Id", LABEL.encode())]
            assert (await ask(play.address, "POST", CHAT, headers, LONG)).status == 200
        await play.app._opened.engine.background.drain(5)  # type: ignore[union-attr]
        found = (await play.send("GET", SESSIONS, bearer(CONFIGURED))).json()["sessions"]
        yield Shown(play, found[0]["id"][:16])  # type: ignore[index]


async def test_a_session_is_listed_told_and_drawn(tmp_path: Path) -> None:
    async with shown(tmp_path) as show:
        listed = (await show.page("sessions")).body.decode()
        assert "&lt;b&gt;the deploy&lt;/b&gt;" in listed
        assert "<b>the" not in listed
        page = (await show.page(f"sessions/{show.id}")).body.decode()
        assert "2 requests to m; received grew to" in page
        assert page.count('class="chart') == 2
        assert "became a record of" in page
        assert 'class="f-covered"' in page
        assert "<b>the" not in page
        assert len(page) < 150_000


async def test_what_happened_differs_in_its_mark_and_a_session_goes_by_its_label(tmp_path: Path) -> None:
    async with shown(tmp_path) as show:
        opened = show.play.app._opened
        assert opened is not None
        last = next(opened.histories.newest()).last
        for number, changes in enumerate(
            (
                {"overflow": "solved"},
                {"status": 502},
                {"billed": 1_000, "cached": 900},
                {"billed": 1_000, "cached": 100},
                {"compaction": "cooled"},
            )
        ):
            event = structs.replace(last, id=f"{number:016x}", at=last.at + number, **changes)
            for hook in (opened.histories, opened.recent):
                hook(event)
        page = (await show.page(f"sessions/{show.id}?label={quote(LABEL)}")).body.decode()
        drawn = dict(re.findall(r'<path class="mark (\w+)" transform="[^"]+" d="([^"]+)"', page))
        assert drawn.keys() == {"checkpoint", "overflow", "failed", "cache", "cooled"}
        assert len({*drawn.values()}) == 5
        for number in range(5):
            assert f"requests/{number:016x}" in page
        for view in ("", "live"):
            told = (await show.page(view)).body.decode()
            assert "&lt;b&gt;the deploy" in told, view
            assert show.id[:8] + "</a>" not in told, view


async def test_the_api_tells_what_the_page_shows(tmp_path: Path) -> None:
    async with shown(tmp_path) as show:
        view = await show.json(f"sessions/{show.id}")
        assert (view["row"]["label"], view["tally"]["requests"]) == (LABEL, 2)  # type: ignore[index]
        trail = await show.json(f"sessions/{show.id}/trail")
        assert [point["outcome"] for point in trail["points"]] == ["applied", "reused"]  # type: ignore[union-attr,index]
        fates = await show.json(f"sessions/{show.id}/fates")
        assert {message["fate"] for message in fates["messages"]} >= {"covered", "kept"}  # type: ignore[union-attr,index]
        stored = await show.json(f"sessions/{show.id}/records?label={quote(LABEL)}")
        (record,) = stored["records"]  # type: ignore[misc]
        assert stored["lineage"]["compactions"] == 1  # type: ignore[index]
        told = await show.json(f"sessions/{show.id}/records/{record['digest']}?label={quote(LABEL)}")
        assert SECRET in told["text"]  # type: ignore[operator]
        events = [line for line in show.play.log.getvalue().splitlines() if b'"event":"admin"' in line]
        assert len(events) == 1
        assert b'"what":"record_read"' in events[0]
        assert SECRET.encode() not in show.play.log.getvalue()


async def test_a_record_is_a_page_with_its_text_and_what_the_user_said(tmp_path: Path) -> None:
    async with shown(tmp_path) as show:
        session = (await show.page(f"sessions/{show.id}")).body.decode()
        (link,) = set(re.findall(r'href="\.\./(sessions/[^"]+/records/[^"]+)"', session))
        page = await show.page(link.replace("&amp;", "&"))
        assert page.status == 200
        assert "&lt;conversation_record&gt;" in page.body.decode()
        missing = await show.page(f"sessions/{show.id}/records/{'0' * 64}?label={quote(LABEL)}")
        assert missing.status == 404


async def test_content_is_hidden_unless_its_tenant_allows_it_to_be_read(tmp_path: Path) -> None:
    async with shown(tmp_path, inspect=False) as show:
        (record,) = (await show.json(f"sessions/{show.id}/records?label={quote(LABEL)}"))["records"]  # type: ignore[misc]
        path = f"sessions/{show.id}/records/{record['digest']}?label={quote(LABEL)}"
        answered = await show.json(path)
        assert answered["error"]["code"] == "content_hidden"  # type: ignore[index]
        page = await show.page(path)
        assert (page.status, "tenants.default.inspect" in page.body.decode()) == (403, True)
        for part in ("", "/trail", "/fates", "/records"):
            reply = await show.play.send("GET", f"{SESSIONS}/{show.id}{part}", bearer(CONFIGURED))
            assert SECRET.encode() not in reply.body, part
        assert SECRET not in (await show.page(f"sessions/{show.id}")).body.decode()


async def test_nobody_is_shown_no_session(tmp_path: Path) -> None:
    async with shown(tmp_path) as show:
        for path in ("sessions", f"sessions/{show.id}", f"sessions/{show.id}/records/{'0' * 64}"):
            assert (await show.play.send("GET", f"/admin/{path}", *BROWSER)).status == 401, path


@pytest.mark.usefixtures("one_replica")
async def test_a_session_is_erased_from_its_page_and_nothing_of_it_is_shown_any_more(tmp_path: Path) -> None:
    async with shown(tmp_path) as show:
        signed = await show.play.send(
            "POST",
            "/admin/sign-in",
            (b"Sec-Fetch-Site", b"same-origin"),
            body=f"token={CONFIGURED}".encode(),
        )
        cookie = (b"Cookie", (signed.header(b"set-cookie") or b"").partition(b";")[0])
        page = (await show.page(f"sessions/{show.id}")).body.decode()
        (action,) = re.findall(r'action="\.\./(sessions/[^"]+/erase[^"]*)"', page)
        target = "/admin/" + action.replace("&amp;", "&")
        refused = await show.play.send("POST", target, cookie, (b"Sec-Fetch-Site", b"cross-site"), body=b"")
        assert refused.status == 403
        erased = await show.play.send("POST", target, cookie, (b"Sec-Fetch-Site", b"same-origin"), body=b"")
        assert (erased.status, erased.header(b"location")) == (303, b"../../sessions")
        gone = await show.page(f"sessions/{show.id}?label={quote(LABEL)}")
        assert (gone.status, "Erased or expired." in gone.body.decode()) == (410, True)
        for part in ("", "/trail"):
            path = f"{SESSIONS}/{show.id}{part}?label={quote(LABEL)}"
            assert (await show.play.send("GET", path, bearer(CONFIGURED))).status == 410, part
        assert (await show.page(f"sessions/{'0' * 16}")).status == 404
        assert "the deploy" not in (await show.page("sessions")).body.decode()
        assert b'"what":"session_erased"' in show.play.log.getvalue()


async def test_a_session_goes_by_its_whole_id_too_and_by_how_that_begins(tmp_path: Path) -> None:
    async with shown(tmp_path) as show:
        (listed,) = (await show.json("sessions"))["sessions"]  # type: ignore[misc]
        for name in (show.id, listed["id"], show.id[:8]):
            view = await show.json(f"sessions/{name}?label={quote(LABEL)}")
            assert view["row"]["id"] == show.id  # type: ignore[index]
            assert view["row"]["stored"]  # type: ignore[index]


async def test_while_the_store_is_down_a_session_is_told_as_this_replica_saw_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shown(tmp_path) as show:
        opened = show.play.app._opened
        assert opened is not None
        before = await show.json(f"sessions/{show.id}")
        assert before["is_whole"]

        async def nothing(*_: object, **__: object) -> None:
            raise StoreError("down")

        for name in ("items", "get_many", "members", "put", "enroll"):
            monkeypatch.setattr(opened.store._store, name, nothing)
        assert opened.stored_histories is not None
        await opened.stored_histories.write()
        after = await show.json(f"sessions/{show.id}")
        assert (after["tally"], after["is_whole"]) == (before["tally"], False)
        page = await show.page(f"sessions/{show.id}")
        assert page.status == 200
        assert "The store does not respond, so this page shows only what this replica saw." in page.body.decode()
        listed = await show.page("sessions")
        assert "The store does not respond" in listed.body.decode()
        asked = await show.play.send(
            "POST", f"{SESSIONS}/{show.id}/compact?label={quote(LABEL)}", bearer(CONFIGURED), body=b""
        )
        assert asked.status == 503


@pytest.mark.parametrize(
    ("operation", "method", "path"),
    [
        ("members", "GET", "sessions"),
        ("get_many", "GET", "sessions/{id}/export?label={label}"),
        ("members", "DELETE", "sessions/{id}"),
        ("erase", "DELETE", "sessions?all=true"),
        ("put", "POST", "sessions/{id}/compact?label={label}"),
        ("members", "GET", "overview"),
    ],
)
async def test_a_page_for_which_the_store_was_too_slow_takes_it_from_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, method: str, path: str
) -> None:
    async with shown(tmp_path) as show:
        opened = show.play.app._opened
        assert opened is not None
        changes: list[bool] = []
        monkeypatch.setattr(opened.store, "on_change", lambda is_up, _: changes.append(is_up))
        carried_out = getattr(opened.store._store, operation)

        async def too_slow_for_pages(*arguments: object, **named: object) -> object:
            if in_page():
                raise StoreError("no answer within 0.25 s")
            return await carried_out(*arguments, **named)

        monkeypatch.setattr(opened.store._store, operation, too_slow_for_pages)
        asked = path.format(id=show.id, label=quote(LABEL))
        reply = await show.play.send(method, f"/admin/api/{asked}", bearer(CONFIGURED))
        assert reply.status == (200 if path == "overview" else 503)
        assert path != "overview" or not reply.json()["is_whole"]
        assert opened.store.available
        assert changes == []


def in_page() -> bool:
    return breaker._PAGE.get() is not None


async def test_sessions_are_asked_for_page_by_page(tmp_path: Path) -> None:
    async with shown(tmp_path) as show:
        opened = show.play.app._opened
        assert opened is not None
        caller = opened.active().tenants.operator_of("default")
        assert caller is not None
        for number in range(3):
            chain = Chain(b"", (), first=bytes([number]) * 32)
            await opened.engine.sessions.add(caller, chain, "", "m", None)
        labels: list[str] = []
        cursor: object = ""
        while cursor is not None:
            found = await show.json(f"sessions?limit=3&cursor={cursor}")
            labels += [each["label"] for each in found["sessions"]]  # type: ignore[attr-defined]
            cursor = found["cursor"]
        assert labels == ["", "", "", LABEL]
        for wrong in ("limit=0", "limit=201", "limit=x", "cursor=x"):
            assert (await show.play.send("GET", f"{SESSIONS}?{wrong}", bearer(CONFIGURED))).status == 400, wrong


async def _enrolled(show: Shown, number: int, *named: int) -> None:
    """So many sessions that this process does not remember, the last of which was used last; these have a label."""
    opened = show.play.app._opened
    assert opened is not None
    caller = opened.active().tenants.operator_of("default")
    assert caller is not None
    for each in range(number):
        label = f"named {each}" if each in named else ""
        chain = Chain(b"", (), first=each.to_bytes(4) * 8, mark=mark_of(caller.labels, label))
        await opened.engine.sessions.add(caller, chain, label, "m", None)


async def test_a_search_goes_through_all_sessions_and_says_how_many(tmp_path: Path) -> None:
    async with shown(tmp_path) as show:
        await _enrolled(show, 1_200, 3, 700)
        found = await show.json("search?q=NAMED")
        assert ([row["label"] for row in found["sessions"]], found["cursor"]) == (["named 700", "named 3"], None)  # type: ignore[union-attr,index]
        assert found["looked"] == 1_201
        page = (await show.page("sessions?q=named")).body.decode()
        assert page.count('scope="row"') == 2
        assert "searched 1,201 sessions, all known ones" in page
        (row,) = (await show.json(f"search?q={(7).to_bytes(4).hex() * 8}"))["sessions"]  # type: ignore[misc]
        assert row["id"] == (7).to_bytes(4).hex() * 2


async def test_a_label_or_an_id_is_searched_by_key_however_many_were_used_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_MOST_SEARCHED", 100)
    monkeypatch.setattr(asking, "_SEARCHED", 50)
    async with shown(tmp_path) as show:
        await _enrolled(show, 250, 3)
        id_ = (3).to_bytes(4).hex() * 8
        for query in ("named 3", id_[:8], id_[:16], id_):
            (row,) = (await show.json(f"search?q={quote(query)}"))["sessions"]  # type: ignore[misc]
            assert (row["id"], row["label"]) == (id_[:16], "named 3")
        found = await show.json(f"search?q={quote('named 3')}&state=failing")
        assert found["sessions"] == []


async def test_which_sessions_failed_today_is_one_click_from_the_overview(tmp_path: Path) -> None:
    async with shown(tmp_path) as show:
        opened = show.play.app._opened
        assert opened is not None
        assert opened.stored_histories is not None
        nothing = (await show.page("sessions?state=failed")).body.decode()
        assert "No session failed in the last 24 hours" in nothing
        last = next(opened.histories.newest()).last
        opened.histories(structs.replace(last, status=502, end="refused"))
        opened.histories(last)
        opened.histories(structs.replace(last, status=502, label="yesterday", at=last.at - 90_000))
        overview = (await show.page("")).body.decode()
        _, link = re.findall(r'href="\./(sessions\?state=failed[^"]*)"', overview)
        for is_remembered in (True, False):
            page = (await show.page(link.replace("&amp;", "&"))).body.decode()
            assert page.count('scope="row"') == 1
            assert "&lt;b&gt;the deploy" in page
            assert "Failed last" in page
            (row,) = (await show.json("search?state=failed"))["sessions"]  # type: ignore[misc]
            assert row["failed"] == (last.at if is_remembered else None)
            await opened.stored_histories.write()
            opened.histories._histories.clear()


async def test_a_search_that_has_looked_at_many_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_MOST_SEARCHED", 100)
    monkeypatch.setattr(asking, "_SEARCHED", 50)
    async with shown(tmp_path) as show:
        await _enrolled(show, 250, 3)
        page = (await show.page("sessions?q=named")).body.decode()
        assert "No match among these" in page
        told = []
        while (onward := re.search(r'href="\./(sessions\?[^"]+)">Continue the search', page)) is not None:
            told += re.findall(r"searched ([\d,]+) sessions, the newest", page)
            page = (await show.page(onward[1].replace("&amp;", "&"))).body.decode()
        assert told == ["100", "200"]
        assert "searched 251 sessions, all known ones" in page
        assert page.count('scope="row"') == 1


async def test_a_request_is_searched_by_the_id_that_its_answer_had(tmp_path: Path) -> None:
    async with shown(tmp_path) as show:
        reply = await ask(show.play.address, "POST", CHAT, [JSON, (b"X-Session-Id", LABEL.encode())], LONG)
        name = (reply.header(b"x-concertina-request-id") or b"").decode()
        for begin in (name, name[:8]):
            found = await show.json(f"search?q={begin}")
            assert name in [event["id"] for event in found["requests"]]  # type: ignore[union-attr,index]
        assert (await show.json(f"search?q={name[:7]}"))["requests"] == []
        assert (await show.json(f"search?q={name}&tenant=other"))["requests"] == []
        page = (await show.page(f"sessions?q={name}")).body.decode()
        assert f"{name}</" in page
        assert f"sessions/{show.id}?" in page


async def test_a_session_of_the_store_alone_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    async with shown(tmp_path) as show:
        show.play.app._opened.histories._histories.clear()  # type: ignore[union-attr]
        page = (await show.page(f"sessions/{show.id}?label={quote(LABEL)}")).body.decode()
        assert "has not served it since its start" in page
        assert "records/" in page
