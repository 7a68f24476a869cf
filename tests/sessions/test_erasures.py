"""Deleted means deleted: nothing of an erased conversation is found again, by no replica, nor through what was late."""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
import secrets
import time
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from redis.asyncio import Redis

from policies.conversation.prefix_digests import (
    INSTRUCTIONS,
    hash_tag,
    link_of_label,
    mark_of,
    prefix_digests,
    set_apart,
)
from proxy.callers.tenants import Tenants
from proxy.cli.main import app
from proxy.config.loading import load
from proxy.dialects.table import CHAT
from proxy.memory import Memory
from proxy.sessions.epochs import Epochs
from proxy.sessions.sessions import Sessions
from proxy.sessions.stores.base import PAGE, Member, Store, StoreError, tombstone
from proxy.sessions.stores.breaker import CircuitBreaker
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.redis.store import RedisStore
from proxy.sessions.stores.sealing import SealedStore, Sealer
from tests.support.clock import Clock
from tests.support.long_conversations import (
    LONG,
    SMALL_WINDOW,
    SUMMARY,
    TURNS,
    bearer,
    is_summary,
    outcome,
    sent,
    summaries,
    summarizing,
)
from tests.support.operating import BEARER, LABEL, OPERATED, SESSIONS, TOKEN, enrolled, erased, listed
from tests.support.pages import items_of
from tests.support.servers import reserve_port
from tests.support.upstreams import JSON, OK_BODY, Call, always, answer, ask, config_for, serving, upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from proxy.config.loading import Config
    from tests.support.upstreams import Header, Upstream

describe = CHAT.items.describe

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TTL = 600.0


class Ended(NamedTuple):
    """A command that ran to its end."""

    returncode: int
    stdout: str
    stderr: str


class Down(MemoryStore):
    """A store that is down while it is told to be."""

    down = False

    async def get_many(self, keys: object) -> list[bytes | None]:
        if self.down:
            raise StoreError("down")
        return await super().get_many(keys)  # type: ignore[arg-type]

    async def put(self, key: str, value: bytes, ttl: float, *, only_new: bool = False) -> bytes | None:
        if self.down:
            raise StoreError("down")
        return await super().put(key, value, ttl, only_new=only_new)

    async def erase(self, tag: str, mark: bytes, ttl: float) -> bytes | None:
        if self.down:
            raise StoreError("down")
        return await super().erase(tag, mark, ttl)


def first_link() -> bytes:
    return secrets.token_bytes(32)


def entry(link: bytes, name: object = "") -> str:
    return f"cp:{{{hash_tag(link)}}}:{name}"


async def test_an_erased_session_goes_on_in_another_epoch_for_everybody() -> None:
    store, first = MemoryStore(), first_link()
    here, there = (Epochs(store, TTL, Clock()) for _ in range(2))
    links = set()
    for _ in range(3):
        link = await there.start(first)
        assert await here.start(first) == await here.link(first) == link
        await store.put(entry(link), b"v", TTL, only_new=True)
        assert await here.erase(first)
        await store.put(entry(link, "late"), b"v", TTL, only_new=True)
        assert await store.get_many([entry(link), entry(link, "late")]) == [None, None]
        assert await there.link(first) == await here.link(first) != link
        assert await here.were_erased([link]) == [True]
        links.add(link)
    assert len(links) == 3


async def test_an_epoch_that_the_store_has_lost_revives_nothing() -> None:
    store, first = MemoryStore(), first_link()
    here, there = (Epochs(store, TTL, Clock()) for _ in range(2))
    link = await here.start(first)
    await store.close()  # which forgets everything
    assert await here.start(first) == await there.start(first) != link
    assert await here.were_erased([link]) == [False]


async def test_entries_are_erased_though_the_store_has_dropped_their_epoch() -> None:
    store, first = MemoryStore(), first_link()
    epochs = Epochs(store, TTL, Clock())
    link = await epochs.start(first)
    await store.put(entry(link), b"v", TTL)
    store._drop(f"epoch:{first.hex()}")
    assert await epochs.erase(first)
    assert await store.get_many([entry(link)]) == [None]


@pytest.mark.parametrize("damaged", [b"", b"x" * 32, b"\xff" * 32, b"0" * 31])
async def test_a_damaged_epoch_is_a_lost_one(damaged: bytes) -> None:
    store, first = MemoryStore(), first_link()
    epochs, other = (Epochs(store, TTL, Clock()) for _ in range(2))
    link = await epochs.start(first)
    await store.put(f"epoch:{first.hex()}", damaged, TTL)
    assert await other.link(first) != link
    assert await epochs.start(first) == await other.start(first) == await other.link(first) != link
    await store.put(f"epoch:{first.hex()}", damaged, TTL)
    assert await epochs.erase(first)
    assert await epochs.look_after() is False


async def test_a_conversation_is_erased_whole_though_the_store_was_lost_meanwhile() -> None:
    store, first, mark = MemoryStore(), first_link(), secrets.token_bytes(16)
    here, there = (Epochs(store, TTL, Clock()) for _ in range(2))
    await there.start(first + mark)
    await store.close()  # which forgets everything
    link = await there.start(first + mark)
    assert await here.erase_every(first)
    assert await there.link(first + mark) != link


class Forgetful(MemoryStore):
    """A store that loses what it is told to enroll, as behind a breaker that an error has just opened."""

    forgets = True

    async def enroll(self, index: str, member: str, ttl: float) -> None:
        if not self.forgets:
            await super().enroll(index, member, ttl)


async def test_no_epoch_is_stored_of_a_session_whose_label_the_store_did_not_list() -> None:
    store, first, mark = Forgetful(), first_link(), secrets.token_bytes(16)
    here, there = (Epochs(store, TTL, Clock()) for _ in range(2))
    link = await there.start(first + mark)
    assert await store.get_many([f"epoch:{(first + mark).hex()}"]) == [None]
    assert await here.link(first + mark) != link
    store.forgets = False
    assert await there.start(first + mark) == link == await here.link(first + mark)
    assert await here.erase_every(first)
    assert await here.link(first + mark) != link


async def test_what_a_failover_loses_is_erased_again() -> None:
    store, first, clock = MemoryStore(), first_link(), Clock()
    here, there = (Epochs(store, TTL, clock) for _ in range(2))
    link = await here.start(first)
    (epoch,) = await store.get_many([f"epoch:{first.hex()}"])
    assert epoch is not None
    await here.erase(first)
    assert await there.look_after()
    for knows in (here, there):
        await store.close()
        await store.put(f"epoch:{first.hex()}", epoch, TTL)
        await store.put(entry(link), b"back again", TTL, only_new=True)
        await knows.look_after()
        assert await knows.link(first) != link
        assert await store.get_many([entry(link)]) == [None]
    clock.now += 121
    await store.close()
    await store.put(f"epoch:{first.hex()}", epoch, TTL)
    await here.look_after()
    assert await here.link(first) == link, "an erasure is looked after for two minutes"


async def test_an_erasure_is_learned_of_though_this_replica_has_erased_many_since() -> None:
    clock = Clock()
    store, first = Counting(clock=clock), first_link()
    here, there = (Epochs(store, TTL, clock) for _ in range(2))
    await here.look_after()
    await there.erase(first)
    for _ in range(2 * PAGE):
        await here.erase(first_link())
    assert await here.look_after()
    clock.now += 10
    await here.erase(first_link())
    await here.look_after()
    store.listed.clear()
    assert not await here.look_after()
    assert len(store.listed) == 1, "one page, if it has nothing new"


async def test_a_store_that_is_down_promises_nothing_and_loses_nothing() -> None:
    down, clock, first = Down(), Clock(), first_link()
    epochs = Epochs(CircuitBreaker(down, clock), TTL, clock)
    link = await epochs.start(first)
    await down.put(entry(link), b"v", TTL, only_new=True)
    down.down = True
    assert not await epochs.erase(first)
    assert await epochs.start(first) == await epochs.link(first) == link
    unknown = first_link()
    created = await epochs.start(unknown)
    assert await epochs.start(unknown) == await epochs.link(unknown) == created
    down.down = False
    clock.now += 10
    await epochs.link(first)  # which finds that it answers again
    assert await epochs.start(unknown) == created, "stored now"
    assert await Epochs(down, TTL, clock).link(unknown) == created
    assert await epochs.erase(first)
    down.down = True
    assert await epochs.link(first) != link, "known here, whatever the store can say"


async def test_what_version_0_2_0_stored_of_a_session_is_erased() -> None:
    store, first, mark = MemoryStore(), first_link(), secrets.token_bytes(16)
    links = [link for root in (first, set_apart(first, mark)) for link in (root, set_apart(root, INSTRUCTIONS))]
    for link in links:
        await store.put(entry(link), b"v", TTL)
    epochs = Epochs(store, TTL, Clock())
    for _ in range(2):
        assert await epochs.erase(first)
        assert await epochs.erase(first + mark)
        assert await store.get_many([entry(link) for link in links]) == [None] * 4


async def test_what_version_0_2_0_stored_after_an_erasure_is_erased() -> None:
    store, first, mark = MemoryStore(), first_link(), b"a random mark"
    await store.erase(hash_tag(first), mark, TTL)
    later = set_apart(first, mark)
    await store.put(entry(later), b"v", TTL)
    assert await Epochs(store, TTL, Clock()).erase(first)
    assert await store.get_many([entry(later)]) == [None]


async def races(store: Store, others: Store) -> int:
    """How many of a thousand entries are there after their conversation was erased while they were being stored."""
    chance = random.Random(1)
    epochs = Epochs(store, TTL, Clock())

    async def publish(link: bytes, waits: int) -> None:
        for _ in range(waits):
            await asyncio.sleep(0)
        await others.put(entry(link, "record"), b"v", TTL, only_new=True)
        await others.put(entry(link, "state"), b"v", TTL)

    async def race() -> int:
        first, mark = first_link(), secrets.token_bytes(16)
        link, beside = [await epochs.start(first + each) for each in (mark, secrets.token_bytes(16))]
        await publish(beside, 0)
        publishing = asyncio.create_task(publish(link, chance.randrange(8)))
        for _ in range(chance.randrange(8)):
            await asyncio.sleep(0)
        assert await epochs.erase(first + mark)
        readable = await others.get_many([entry(link, "record"), entry(link, "state")])
        await publishing
        readable += await others.get_many([entry(link, "record"), entry(link, "state")])
        assert None not in await others.get_many([entry(beside, "record"), entry(beside, "state")])
        return sum(value is not None for value in readable)

    return sum([sum(await asyncio.gather(*(race() for _ in range(50)))) for _ in range(20)])


async def test_of_a_thousand_races_none_leaves_anything_readable(valkey_url: str) -> None:
    memory = MemoryStore()
    assert await races(memory, memory) == 0
    one, other = RedisStore(valkey_url, timeout=10), RedisStore(valkey_url, timeout=10)
    assert await races(one, other) == 0
    await one.close()
    await other.close()


async def replicas(opened: AsyncExitStack, directory: Path, behind: Upstream, store: str) -> list[str]:
    addresses = []
    for name in ("one", "two"):
        (directory / name).mkdir()
        settings = {"store": {"url": store, "secret": "shared"}, **OPERATED}
        config = config_for(directory / name, behind.address, **settings)
        addresses.append(await opened.enter_async_context(serving(config)))
    return addresses


async def test_after_a_deletion_no_replica_knows_the_session(tmp_path: Path, valkey_url: str) -> None:
    caller = bearer(secrets.token_hex(8))
    async with AsyncExitStack() as opened, Redis.from_url(valkey_url) as redis:
        await redis.flushdb()
        behind = await opened.enter_async_context(upstream(summarizing))
        one, two = await replicas(opened, tmp_path, behind, valkey_url)
        outcomes = [(await sent(a, caller, LABEL)).header(b"x-compaction") for a in (one, two, two)]
        assert outcomes == [b"applied", b"reused", b"reused"]
        (session,) = await enrolled(one, 1)
        assert (session["label"], session["generation"]) == ("the deploy", 1)
        tag = await tag_of_session(redis, caller, load(tmp_path / "one/config.yaml", {}))
        old = {key async for key in redis.scan_iter(f"*{{{tag}}}*")}
        assert len(old) >= 3
        reply = await erased(one, "the%20deploy")
        assert (reply.status, reply.json()) == (200, {"erased": [session["id"]]})
        left = [key async for key in redis.scan_iter(f"*{{{tag}}}*")]
        assert left == [tombstone(tag).encode()]
        assert await listed(two) == []
        # Two still had the summary in its memory.
        outcomes = [(await sent(a, caller, LABEL)).header(b"x-compaction") for a in (two, one, two)]
        assert outcomes == [b"applied", b"reused", b"reused"]
        assert summaries(behind) == 2
        (again,) = await enrolled(two, 1)
        assert again["id"] == session["id"]
        assert (await erased(two, str(session["id"])[:16])).status == 200
        assert (await sent(one, caller)).header(b"x-compaction") == b"applied"


async def test_a_summary_under_way_leaves_nothing_of_what_was_erased(tmp_path: Path, valkey_url: str) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def held(call: Call) -> None:
        await call.read()
        if is_summary(call):
            asked.set()
            await go_on.wait()
        await call.send(answer(200, SUMMARY if is_summary(call) else OK_BODY, JSON))

    caller = bearer(secrets.token_hex(8))
    async with AsyncExitStack() as opened, Redis.from_url(valkey_url) as redis:
        await redis.flushdb()
        behind = await opened.enter_async_context(upstream(held))
        one, two = await replicas(opened, tmp_path, behind, valkey_url)
        waiting = asyncio.create_task(sent(one, caller, LABEL))
        await asked.wait()
        # Nobody enrolled it yet: its whole id is in no list, so it is named as the log would name it.
        config = load(tmp_path / "one/config.yaml", {})
        session = first_link_of(caller, config)
        tag = await tag_of_session(redis, caller, config)
        assert (await erased(two, session.hex())).status == 200
        go_on.set()
        assert (await waiting).header(b"x-compaction") == b"applied"
        left = [key async for key in redis.scan_iter(f"*{{{tag}}}*")]
        assert left == [tombstone(tag).encode()]
        assert (await sent(one, caller)).header(b"x-compaction") == b"applied"
        assert summaries(behind) == 2


def first_link_of(caller: Header, config: Config) -> bytes:
    """Of `LONG`, for this caller."""
    scope = Tenants(config).identify(caller[1]).scope
    first = describe(TURNS[0], len)
    assert first is not None
    return prefix_digests(scope, [first])[1]


async def tag_of_session(redis: Redis, caller: Header, config: Config) -> str:
    """Return the tag of all that is stored of `LONG` now, for this caller and the label."""
    session = first_link_of(caller, config) + mark_of(Tenants(config).identify(caller[1]).labels, LABEL[1].decode())
    return hash_tag(set_apart(session, await redis.get(f"epoch:{session.hex()}")))


def labels_of(sessions: list[dict[str, object]]) -> list[object]:
    return sorted(str(session["label"]) for session in sessions)


@pytest.mark.requirement("R4 3.1 erased")
@pytest.mark.usefixtures("one_replica")
@pytest.mark.parametrize("kind", ["memory", "sqlite", "valkey"])
async def test_erasing_one_label_leaves_the_other_whole_and_nothing_of_its_own(
    tmp_path: Path, valkey_url: str, kind: str
) -> None:
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/store.db", "valkey": valkey_url}[kind]
    caller, one, other = bearer(secrets.token_hex(8)), (b"X-Session-Id", b"A"), (b"X-Session-Id", b"B")
    async with upstream(summarizing) as behind:
        config = config_for(tmp_path, behind.address, store={"url": url, "secret": kind}, **OPERATED)
        async with serving(config) as address:
            outcomes = [await outcome(address, caller, label) for label in (one, other, other)]
            assert outcomes == [b"applied", b"reused", b"reused"]
            listing = await enrolled(address, 2)
            assert (labels_of(listing), len({str(session["id"]) for session in listing})) == (["A", "B"], 1)
            assert (await erased(address, "A")).status == 200
            assert labels_of(await listed(address)) == ["B"]
            assert (await erased(address, "A")).status == 404
            assert summaries(behind) == 1
            # The record was made for A, and is gone with it. What is made for B is left by a second erasure of A.
            assert [await outcome(address, caller, label) for label in (other, one)] == [b"applied", b"reused"]
            assert summaries(behind) == 2
            assert labels_of(await enrolled(address, 2)) == ["A", "B"]
            assert (await erased(address, "A")).status == 200
            assert [await outcome(address, caller, label) for label in (other, one)] == [b"reused", b"reused"]
            assert summaries(behind) == 2


@pytest.mark.usefixtures("one_replica")
async def test_a_session_without_a_label_is_one_beside_those_with_labels(tmp_path: Path) -> None:
    caller = bearer("one")
    async with (
        upstream(summarizing) as behind,
        serving(config_for(tmp_path, behind.address, store={"url": "memory://"}, **OPERATED)) as address,
    ):
        outcomes = [await outcome(address, caller, *label) for label in ((), (LABEL,), (LABEL,))]
        assert outcomes == [b"applied", b"reused", b"reused"]
        (name,) = {str(session["id"]) for session in await enrolled(address, 2)}
        assert (await erased(address, f"{name[:16]}:")).status == 200
        assert labels_of(await listed(address)) == ["the deploy"]
        assert [await outcome(address, caller, *label) for label in ((LABEL,), ())] == [b"applied", b"reused"]
        await enrolled(address, 2)
        assert (await erased(address, f"{name[:16]}:the%20deploy")).status == 200
        assert labels_of(await listed(address)) == [""]
        assert await outcome(address, caller) == b"applied"
        assert await outcome(address, caller, LABEL) == b"reused"
        await enrolled(address, 2)
        assert (await erased(address, name[:16])).json() == {"erased": [name]}
        assert await listed(address) == []
        assert [await outcome(address, caller, *label) for label in ((), (LABEL,))] == [b"applied", b"reused"]


async def test_who_goes_on_under_a_new_label_has_the_summary_of_before(tmp_path: Path, valkey_url: str) -> None:
    caller, other = bearer(secrets.token_hex(8)), (b"X-Session-Id", b"resumed")
    async with AsyncExitStack() as opened, Redis.from_url(valkey_url) as redis:
        await redis.flushdb()
        behind = await opened.enter_async_context(upstream(summarizing))
        one, two = await replicas(opened, tmp_path, behind, valkey_url)
        assert await outcome(one, caller, LABEL) == b"applied"
        await enrolled(one, 1)
        assert await outcome(two, caller, other) == b"reused"
        assert summaries(behind) == 1


class Counting(MemoryStore):
    """Which indexes were listed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock=clock)
        self.listed: list[str] = []

    async def members(self, index: str, limit: int | None = None, before: Member | None = None) -> list[Member]:
        self.listed.append(index)
        return await super().members(index, limit, before)


async def test_looking_a_label_up_does_not_list_the_tenant(tmp_path: Path) -> None:
    store, sealer = Counting(), Sealer(None)
    index = Sessions(SealedStore(store, sealer, TTL), Memory(), Clock(), Clock())
    caller = Tenants(config_for(tmp_path, "http://127.0.0.1:1")).operator_of("default")
    assert caller is not None
    assert await items_of(index.find_targets(caller, "the long name of a session")) == []
    assert await items_of(index.find_targets(caller, "0" * 64)) != []
    assert caller.index not in store.listed
    assert all(name.startswith("index:label:") for name in store.listed)


async def test_what_cannot_be_erased_is_said(tmp_path: Path) -> None:
    async with upstream(summarizing) as behind:
        config = config_for(tmp_path, behind.address, **OPERATED)
        async with serving(config) as address:
            outcomes = {}
            for path, headers in {
                f"{SESSIONS}/unknown": [BEARER],
                f"{SESSIONS}/unknown?tenant=nobody": [BEARER],
                f"{SESSIONS}?tenant=nobody": [BEARER],
                SESSIONS: [],
                f"{SESSIONS}/any": [],
            }.items():
                method = "GET" if path.startswith(f"{SESSIONS}?") or path == SESSIONS else "DELETE"
                reply = await ask(address, method, path, headers, b"")
                outcomes[path] = (reply.status, reply.json()["error"]["code"])
            assert outcomes == {
                f"{SESSIONS}/unknown": (404, "not_found"),
                f"{SESSIONS}/unknown?tenant=nobody": (404, "not_found"),
                f"{SESSIONS}?tenant=nobody": (404, "not_found"),
                SESSIONS: (401, "invalid_api_key"),
                f"{SESSIONS}/any": (401, "invalid_api_key"),
            }
            assert behind.calls == []


async def test_a_deletion_that_the_store_could_not_do_is_an_error_to_try_again(tmp_path: Path) -> None:
    async with upstream(summarizing) as behind:
        config = config_for(tmp_path, behind.address, store={"url": "redis://127.0.0.1:1/0"}, **OPERATED)
        async with serving(config) as address:
            reply = await erased(address, "0" * 64)
    assert (reply.status, reply.json()["error"]["code"]) == (503, "store_unavailable")
    assert reply.header(b"x-should-retry") == b"true"


def concertina(*arguments: str) -> Ended:
    """The command, in this process: another takes longer to start than the command takes."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        app(arguments)
    return Ended(int(ended.value.code or 0), out.getvalue(), err.getvalue())


@asynccontextmanager
async def commanded(
    directory: Path, url: str, **server: object
) -> AsyncIterator[tuple[str, Callable[..., Awaitable[Ended]]]]:
    """A proxy, and the command with its config, which names the address where it listens."""
    async with upstream(summarizing) as behind:
        more = {"store": {"url": url}, **SMALL_WINDOW}
        async with serving(config_for(directory, behind.address, server=server, **more)) as address:
            port = int(address.rpartition(":")[2])
            config_for(directory, behind.address, server={**server, "port": port}, **more)

            async def command(*arguments: str) -> Ended:
                return await asyncio.to_thread(concertina, *arguments, "--config", str(directory / "config.yaml"))

            yield address, command


@pytest.mark.usefixtures("one_replica")
@pytest.mark.parametrize("server", [{"admin_token": TOKEN}, {}], ids=["configured", "made"])
async def test_sessions_are_listed_and_erased_from_the_command_line(tmp_path: Path, server: dict[str, str]) -> None:
    caller = bearer("one")
    async with commanded(tmp_path, f"sqlite:///{tmp_path}/store.db", **server) as (address, command):
        await sent(address, caller, LABEL)
        session = await shown(command)
        table = await command("sessions", "ls")
        assert (table.returncode, session["id"][:16] in table.stdout, "the deploy" in table.stdout) == (0, True, True)
        gone = await command("sessions", "rm", "the deploy", "nobody")
        assert (gone.returncode, gone.stdout) == (1, "erased sessions of tenant default: 1\n")
        assert gone.stderr.startswith("tenant default has no such session: nobody; ")
        assert json.loads((await command("sessions", "ls", "--json")).stdout) == []
        # The proxy that runs had it in its memory.
        assert (await sent(address, caller, LABEL)).header(b"x-compaction") == b"applied"
        await shown(command)
        every = await command("sessions", "rm", "--all")
        assert (every.returncode, every.stdout, every.stderr) == (0, "erased sessions of tenant default: 1\n", "")


async def test_a_command_that_names_no_session_or_tenant_says_so(tmp_path: Path) -> None:
    async with commanded(tmp_path, f"sqlite:///{tmp_path}/store.db") as (_, command):
        for arguments, said in (
            (("rm", "the deploy"), "has no such session"),
            (("rm",), "name the sessions to erase, or use --all"),
            (("ls", "--tenant", "nobody"), "no tenant has this name"),
        ):
            failed = await command("sessions", *arguments)
            assert (failed.returncode, said in failed.stderr) == (1, True)


def remove_store(directory: Path) -> int:
    """How many files it was."""
    files = [file for file in directory.glob("store.db*") if file.suffix != ".admin-token"]
    for file in files:
        file.unlink()
    return len(files)


async def shown(command: Callable[..., Awaitable[Ended]]) -> dict[str, str]:
    """The one session that is listed, once it is."""
    async with asyncio.timeout(30):
        while not (told := json.loads((await command("sessions", "ls", "--json")).stdout)):
            pass
    (session,) = told
    return session  # type: ignore[no-any-return]


@pytest.mark.usefixtures("one_replica")
async def test_what_is_in_the_memory_of_the_proxy_alone_is_erased_through_it(tmp_path: Path) -> None:
    caller = bearer("one")
    async with commanded(tmp_path, "memory://", admin_token=TOKEN) as (address, command):
        await sent(address, caller, LABEL)
        await enrolled(address, 1)
        gone = await command("sessions", "rm", "the deploy")
        assert (gone.returncode, gone.stdout, gone.stderr) == (0, "erased sessions of tenant default: 1\n", "")
        assert await listed(address) == []
    failed = await command("sessions", "rm", "--all")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert re.match(r"no proxy answers at http://127.0.0.1:\d+, and store.url: memory:// is inside", failed.stderr)


async def test_a_proxy_without_its_store_erases_nothing_and_the_command_says_so(tmp_path: Path) -> None:
    async with commanded(tmp_path, f"redis://127.0.0.1:{reserve_port()}", admin_token=TOKEN) as (_, command):
        for words in (("--all",), ("the deploy",), ("0" * 64,)):
            failed = await command("sessions", "rm", *words)
            assert (failed.returncode, failed.stdout) == (1, "")
            assert re.match(r"the proxy at \S+ did not erase it: The store", failed.stderr)


@pytest.mark.usefixtures("one_replica")
async def test_a_store_file_that_was_deleted_under_the_proxy_is_erased_through_it(tmp_path: Path) -> None:
    """It serves on from the file's inode: erasing in a new file would erase nothing of it."""
    caller = bearer("one")
    async with commanded(tmp_path, f"sqlite:///{tmp_path}/store.db", admin_token=TOKEN) as (address, command):
        await sent(address, caller, LABEL)
        await enrolled(address, 1)
        remove_store(tmp_path)
        gone = await command("sessions", "rm", "--all")
        assert gone.returncode == 0
        assert (await sent(address, caller, LABEL)).header(b"x-compaction") == b"applied"


async def test_without_a_proxy_the_store_is_erased_and_that_is_said(tmp_path: Path) -> None:
    caller = bearer("one")
    async with commanded(tmp_path, f"sqlite:///{tmp_path}/store.db") as (address, command):
        await sent(address, caller, LABEL)
        await shown(command)
    gone = await command("sessions", "rm", "the deploy")
    assert (gone.returncode, gone.stdout) == (0, "erased sessions of tenant default: 1\n")
    assert re.fullmatch(r"no proxy answers at http://127.0.0.1:\d+; erased only in the store\n", gone.stderr)
    remove_store(tmp_path)
    for words in (("--all",), ("the deploy",)):
        failed = await command("sessions", "rm", *words)
        assert (failed.returncode, failed.stdout) == (1, "")
        assert f"nothing is stored: {tmp_path}/store.db does not exist" in failed.stderr
    assert remove_store(tmp_path) == 0, "nothing was created"


async def test_a_proxy_with_another_token_is_not_passed_over(tmp_path: Path) -> None:
    caller = bearer("one")
    async with commanded(tmp_path, f"sqlite:///{tmp_path}/store.db") as (address, command):
        await sent(address, caller, LABEL)
        await shown(command)
        (tmp_path / "store.db.admin-token").unlink()
        failed = await command("sessions", "rm", "--all")
        assert (failed.returncode, failed.stdout) == (1, "")
        assert "it has another admin token" in failed.stderr
        await shown(command)


async def test_what_answers_and_is_no_proxy_is_none(tmp_path: Path) -> None:
    async with upstream(always(answer(404, b"<html>", (b"Content-Type", b"text/html")))) as stranger:
        port = int(stranger.address.rpartition(":")[2])
        store = {"url": f"sqlite:///{tmp_path}/store.db"}
        config_for(tmp_path, "http://127.0.0.1:9", store=store, server={"port": port})
        config = str(tmp_path / "config.yaml")
        failed = await asyncio.to_thread(concertina, "sessions", "rm", "--all", "--config", config)
        assert (failed.returncode, "no proxy answers" in failed.stderr) == (1, True)


@pytest.mark.usefixtures("one_replica")
async def test_all_of_a_tenant_is_erased_only_if_that_is_said(tmp_path: Path) -> None:
    caller = bearer("one")
    async with commanded(tmp_path, "memory://", admin_token=TOKEN) as (address, _):
        await sent(address, caller, LABEL)
        await enrolled(address, 1)
        for query in ("", "?all=false", "?tenant=default"):
            refused = await ask(address, "DELETE", SESSIONS + query, [BEARER])
            assert (refused.status, refused.json()["error"]["param"]) == (400, "all")  # type: ignore[index]
        assert len(await listed(address)) == 1
        done = await ask(address, "DELETE", f"{SESSIONS}?all=true", [BEARER])
        assert (done.status, len(done.json()["erased"])) == (200, 1)  # type: ignore[arg-type]
        assert (await ask(address, "DELETE", f"{SESSIONS}?all=true&tenant=x", [BEARER])).status == 404


def test_a_store_inside_the_server_is_not_reached_from_outside(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("store: {url: 'memory://'}\nupstreams: {main: {base_url: 'http://127.0.0.1:1/v1'}}\n")
    failed = concertina("sessions", "ls", "--config", str(file))
    assert (failed.returncode, "/admin/api/sessions" in failed.stderr) == (1, True)


class Trips(MemoryStore):
    """Counts the round trips of reading, and notes what is enrolled where."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.enrolled: list[str] = []

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        self.reads += 1
        return await super().get_many(keys)

    async def enroll(self, index: str, member: str, ttl: float) -> None:
        self.enrolled.append(index)
        await super().enroll(index, member, ttl)


@pytest.mark.parametrize("mark", [b"", b"m" * 16], ids=["without a label", "with a label"])
async def test_where_a_session_that_was_never_erased_lies_is_one_look_and_nothing_written(mark: bytes) -> None:
    store, first = Trips(), first_link()
    assert await Epochs(store, TTL, Clock()).link(first + mark) == link_of_label(first, mark)
    assert (store.reads, store.enrolled) == (1, [])


async def test_an_erased_label_leaves_no_mark_and_is_listed_again_if_it_goes_on(
    tmp_path: Path, valkey_url: str
) -> None:
    caller = bearer(secrets.token_hex(8))
    async with AsyncExitStack() as opened, Redis.from_url(valkey_url) as redis:
        await redis.flushdb()
        behind = await opened.enter_async_context(upstream(summarizing))
        one, two = await replicas(opened, tmp_path, behind, valkey_url)
        config = load(tmp_path / "one/config.yaml", {})
        mark = mark_of(Tenants(config).identify(caller[1]).labels, LABEL[1].decode()).hex().encode()
        start = f"index:labels:{hash_tag(first_link_of(caller, config))}"
        for again in (False, True):
            assert await outcome(two, caller, LABEL) == b"applied"
            await enrolled(one, 1)
            assert await redis.zrange(start, 0, -1) == [mark]
            name = "the%20deploy" if not again else first_link_of(caller, config).hex()
            assert (await erased(one, name)).status == 200
            assert await redis.zrange(start, 0, -1) == []
        assert await outcome(two, caller, LABEL) == b"applied"


async def test_explaining_and_listing_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr("proxy.sessions.stores.memory.MemoryStore", lambda: store)
    async with upstream(summarizing) as behind:
        config = config_for(tmp_path, behind.address, store={"url": "memory://"}, **OPERATED)
        async with serving(config) as address:
            await sent(address, LABEL)
            await enrolled(address, 1)

            def written() -> dict[str, list[str]]:
                return {index: [*members] for index, members in store._indexes.items()}

            before, keys = written(), set(store._entries)
            explained = await ask(address, "POST", "/v1/compaction/explain", [JSON, (b"X-Session-Id", b"other")], LONG)
            assert (explained.status, explained.json()["outcome"]) == (200, "reused")
            assert len(await listed(address)) == 1
            assert (written(), set(store._entries)) == (before, keys)
