"""A record that was undone is used and made no more, by no process; the one before it is."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import msgspec
import pytest

from policies.conversation.conversation import Conversation
from policies.conversation.prefix_digests import Chain, mark_of
from policies.decision.legal_cuts import legal_cuts
from policies.record.lineage import after_compaction
from policies.record.record import Record
from proxy.memory import Memory
from proxy.sessions.index import Session
from proxy.sessions.sessions import Sessions
from proxy.sessions.stores.base import StoreError
from proxy.sessions.stores.breaker import CircuitBreaker
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.sealing import SealedStore, Sealer
from tests.support.clock import Clock
from tests.support.conversations import assistant, described, user
from tests.support.records import generation, made
from tests.support.stages import body, history, outcome, stage
from tests.support.upstreams import ask

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.sessions.stores.base import Store
    from tests.support.stages import Stage
    from tests.support.upstreams import Header, Reply

pytestmark = pytest.mark.anyio

TTL = 600.0
TURNS = [(assistant if number % 2 else user)(f"turn {number}") for number in range(40)]
CHAIN = Chain(b"scope", described(TURNS))
DIGESTS = CHAIN.digests
CUTS = range(1, 40)


class Down(MemoryStore):
    """Does nothing while it is `down`."""

    down = False

    async def get_many(self, keys: object) -> list[bytes | None]:
        if self.down:
            raise StoreError("down")
        return await super().get_many(keys)  # type: ignore[arg-type]


def record(covered: int, parent: int | None = None) -> Record:
    names = {"digest": DIGESTS[covered].hex(), "parent": None if parent is None else DIGESTS[parent].hex()}
    root = DIGESTS[parent or covered].hex()
    return msgspec.structs.replace(made(generation(0)), covered=covered, root=root, **names)


def process(store: Store) -> Sessions:
    return Sessions(SealedStore(store, Sealer(None), TTL), Memory(), Clock(1e9), Clock())


async def stored(sessions: Sessions, *records: Record) -> Session:
    """Publish these as one lineage, and return the session that has the last of them."""
    chain = await sessions.epochs.place(CHAIN, stores=True)
    for each in records:
        await sessions.records.publish(chain, each)
        lineage = await sessions.lineages.of(chain.tag, records[0])
        noted = after_compaction(lineage, each, messages=40, now=1.0)
        await sessions.lineages.save(chain.tag, records[0], noted)
    return Session(CHAIN.first_link.hex(), "", "m", 0.0, record=(chain.tag, records[-1].digest))


async def newest(sessions: Sessions, chain: Chain = CHAIN) -> int | None:
    """Return what the record of the next request covers, None without one."""
    chain = await sessions.epochs.place(chain, stores=True)
    known = sessions.records.recall(chain, CUTS)
    newer = [cut for cut in CUTS if known is None or cut > known.covered]
    found = await sessions.records.find(chain, newer) or known
    return None if found is None else found.covered


async def test_the_parent_is_in_use_then_nothing_and_no_third_time() -> None:
    store = MemoryStore()
    one, two = process(store), process(store)
    session = await stored(one, record(10), record(20, 10))
    assert (await newest(one), await newest(two)) == (20, 20)
    for undone, left in ((20, 10), (10, None)):
        found = await two.undo(CHAIN.session, session)
        assert found is not None
        assert found.covered == undone
        for each in (one, two, process(store)):
            assert await newest(each) == left
    assert await one.undo(CHAIN.session, session) is None
    assert await process(store).undo(CHAIN.session, session) is None


async def test_what_continues_an_undone_record_is_gone_with_it() -> None:
    store = MemoryStore()
    one = process(store)
    await stored(one, record(10), record(20, 10), record(25, 20), record(30, 25))
    session = Session(CHAIN.first_link.hex(), "", "m", 0.0, record=(await tag(one), DIGESTS[20].hex()))
    found = await one.undo(CHAIN.session, session)
    assert found is not None
    assert found.covered == 20
    assert await newest(one) == await newest(process(store)) == 10
    assert (await one.epochs.place(CHAIN, stores=True)).barred == {20, 25, 30}


async def tag(sessions: Sessions) -> str:
    return (await sessions.epochs.place(CHAIN, stores=True)).tag


async def test_one_made_meanwhile_of_an_undone_record_is_not_used_and_its_place_is_free() -> None:
    store = MemoryStore()
    one, two = process(store), process(store)
    session = await stored(one, record(10), record(20, 10))
    before = await one.epochs.place(CHAIN, stores=True)
    await two.undo(CHAIN.session, session)
    late = await one.records.publish(before, record(30, 20))
    assert late.covered == 30
    assert await newest(one) == await newest(two) == 10
    chain = await one.epochs.place(CHAIN, stores=True)
    other = await one.records.publish(chain, record(30, 10))
    assert other.parent == DIGESTS[10].hex()
    for each in (one, two, process(store)):
        assert await newest(each) == 30


async def test_another_label_keeps_its_record_and_lends_none_that_is_longer() -> None:
    store = MemoryStore()
    one = process(store)
    session = await stored(one, record(10), record(20, 10))
    labelled = Chain(b"scope", CHAIN.body, mark_of(b"key", "label"))
    assert await newest(one, labelled) == 20
    await one.undo(CHAIN.session, session)
    assert await newest(one, labelled) == 20
    for each in (record(30, 20), record(35, 30)):
        await one.records.publish(await one.epochs.place(labelled, stores=True), each)
    assert await newest(one, labelled) == 35
    assert await newest(one) == await newest(process(store)) == 10


async def test_a_process_that_knows_it_needs_no_store_for_it() -> None:
    down = Down()
    store, again = CircuitBreaker(down, Clock()), process(down)
    one = process(store)
    session = await stored(one, record(10), record(20, 10))
    await one.undo(CHAIN.session, session)
    down.down = True
    assert await newest(one) == 10
    down.down = False
    assert await newest(again) == 10


async def test_it_holds_for_as_long_as_the_session_lives() -> None:
    clock = Clock(1e9)
    store = MemoryStore(clock=clock)
    one = process(store)
    session = await stored(one, record(10), record(20, 10))
    await one.undo(CHAIN.session, session)
    for _ in range(3):
        clock.now += TTL - 1
        chain = await one.epochs.place(CHAIN, stores=True)
        await one.records.renew(chain, await one.records.find(chain, CUTS))
    assert await newest(process(store)) == 10
    assert (await process(store).epochs.place(CHAIN, stores=True)).undone == {DIGESTS[20].hex()}
    clock.now += TTL + 1
    assert (await process(store).epochs.place(CHAIN, stores=True)).undone == frozenset()


def test_an_undone_cut_is_none() -> None:
    conversation = Conversation(CHAIN.body)
    cuts = legal_cuts(conversation)
    barred = Chain(b"scope", CHAIN.body, undone=frozenset({DIGESTS[cuts[3]].hex(), "of another branch"})).barred
    assert barred == {cuts[3]}
    left = Conversation(CHAIN.body, barred=barred)
    for each in (left, left.with_messages(left.messages), left.with_rooms(left.rooms), left.with_spans(())):
        assert legal_cuts(each) == [*cuts[:3], *cuts[4:]]


TOKEN: Header = (b"authorization", b"Bearer " + b"t" * 16)
HTML: Header = (b"accept", b"text/html")
FORCE: Header = (b"x-compaction", b"force")
LABEL: Header = (b"x-session-id", b"work")
SESSIONS = "/admin/api/sessions"
# Of which something is stored, though it fits.
LISTED = body(history(0.65))
NO_MODEL = {"default": {"summarizer": {"model": "none"}}}


def settings(directory: Path) -> dict[str, object]:
    return {
        "store": {"url": f"sqlite:///{directory}/s.db", "secret": "s"},
        "server": {"admin_token": "t" * 16},
        "tenants": {"default": {"inspect": True}},
        "policies": NO_MODEL,
    }


async def asked(play: Stage, method: str, path: str, *headers: Header) -> Reply:
    return await ask(play.address, method, path, [TOKEN, *headers], b"" if method == "POST" else None)


async def listed(play: Stage) -> str:
    """Return the id of the only session that is stored."""
    await play.settled()
    (found,) = (await asked(play, "GET", SESSIONS)).json()["sessions"]  # type: ignore[misc]
    return str(found["id"])[:16]  # type: ignore[index]


@pytest.mark.slow
async def test_undo_brings_back_what_was_sent_before_on_every_replica(tmp_path: Path) -> None:
    async with AsyncExitStack() as opened:
        one, two = [await opened.enter_async_context(stage(tmp_path, **settings(tmp_path))) for _ in range(2)]
        assert outcome(await one.send(LISTED, LABEL))[0] == "none"
        before = one.sent[-1].body
        assert outcome(await one.send(LISTED, LABEL, FORCE))[0] == "applied"
        for play in (one, two):
            assert outcome(await play.send(LISTED, LABEL))[0] == "reused"
        session = await listed(one)
        path = f"{SESSIONS}/{session}/undo?label=work"
        rows = (await asked(two, "GET", f"{SESSIONS}/{session}/records?label=work")).json()["records"]
        reply = await asked(two, "POST", path)
        assert (reply.status, reply.json()) == (200, {"undone": rows[0]["digest"], "in_use": None})
        for play in (one, two):
            assert outcome(await play.send(LISTED, LABEL))[0] == "none"
            assert play.sent[-1].body == before
        for _ in range(2):
            reply = await asked(one, "POST", path)
            assert (reply.status, reply.json()["error"]["code"]) == (409, "nothing_to_undo")
        (row,) = (await asked(one, "GET", f"{SESSIONS}/{session}/records?label=work")).json()["records"]
        assert row == {**rows[0], "undone": True}
        assert [(line["what"], line["session"]) for line in two.logged("admin")] == [("record_undone", session)]
        assert outcome(await one.send(LISTED, LABEL, FORCE))[0] == "applied"
        made = (await asked(one, "GET", f"{SESSIONS}/{session}/records?label=work")).json()["records"]
        assert [each["undone"] for each in made] == [False, True]
        assert made[0]["covered"] != made[1]["covered"]


@pytest.mark.slow
async def test_it_is_undone_on_the_page_which_says_so(tmp_path: Path) -> None:
    async with stage(tmp_path, **settings(tmp_path)) as play:
        await play.send(LISTED, LABEL, FORCE)
        session = await listed(play)
        page = (await asked(play, "GET", f"/admin/sessions/{session}?label=work", HTML)).body.decode()
        (action,) = re.findall(r'action="\.\./(sessions/[^"]+/undo[^"]*)"', page)
        assert ">undone<" not in page
        reply = await asked(play, "POST", "/admin/" + action.replace("&amp;", "&"), HTML)
        assert reply.status == 303
        page = (await asked(play, "GET", f"/admin/sessions/{session}?label=work", HTML)).body.decode()
        assert ">undone<" in page
        assert "/undo" not in page
        reply = await asked(play, "POST", "/admin/" + action.replace("&amp;", "&"), HTML)
        assert reply.status == 409


@pytest.mark.slow
@pytest.mark.parametrize("policies", [NO_MODEL, {}], ids=["without a model", "by a model"])
async def test_what_does_not_fit_gets_another_record(tmp_path: Path, policies: dict[str, object]) -> None:
    due = body(history(0.9))
    async with stage(tmp_path, **{**settings(tmp_path), "policies": policies}) as play:
        covered = []
        for _ in range(3):
            assert outcome(await play.send(due, LABEL))[0] == "applied"
            session = await listed(play)
            rows = (await asked(play, "GET", f"{SESSIONS}/{session}/records?label=work")).json()["records"]
            covered.append(rows[0]["covered"])
            assert (await asked(play, "POST", f"{SESSIONS}/{session}/undo?label=work")).status == 200
        assert len({*covered}) == 3
        assert play.model.summary_calls == (0 if policies else 3), "no history is taken for one that changes"


@pytest.mark.slow
async def test_what_is_not_known_or_has_no_record_cannot_be_undone(tmp_path: Path) -> None:
    async with stage(tmp_path, **settings(tmp_path)) as play:
        assert (await asked(play, "POST", f"{SESSIONS}/{'a' * 16}/undo")).status == 404
        await play.send(LISTED, LABEL)
        session = await listed(play)
        reply = await asked(play, "POST", f"{SESSIONS}/{session}/undo?label=work")
        assert (reply.status, reply.json()["error"]["code"]) == (409, "nothing_to_undo")
        await play.send(LISTED, LABEL, FORCE)
        await listed(play)
        assert (await asked(play, "POST", f"{SESSIONS}/{session}/undo?label=work")).status == 200
        assert (await asked(play, "DELETE", f"{SESSIONS}/{session}:work")).status == 200
        assert (await asked(play, "POST", f"{SESSIONS}/{session}/undo?label=work")).status == 410
        assert outcome(await play.send(LISTED, LABEL, FORCE))[0] == "applied"
        await listed(play)
        rows = (await asked(play, "GET", f"{SESSIONS}/{session}/records?label=work")).json()["records"]
        assert [row["undone"] for row in rows] == [False]
