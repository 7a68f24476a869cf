"""Keys that a command issues: who they stand for, how long, and what they may use, over all replicas."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from policies.price import Price, Tokens
from proxy.callers.issued_keys import IssuedKey, KeyLimits, KeyRing, KeyShelf, as_revoked, key_prefix, new_key
from proxy.callers.key_usage import KeyUsage, Reservation, Used, may_use, used_by
from proxy.callers.tenants import Tenants
from proxy.config.loading import Config, load
from proxy.errors import (
    AuthenticationError,
    BudgetSpentError,
    KeyRateError,
    KeysUnknownError,
    LimitReservedError,
    ProxyError,
)
from proxy.sessions.stores.base import Increment, Store, StoreError
from proxy.sessions.stores.breaker import CircuitBreaker
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.sealing import SealedStore, Sealer
from proxy.telemetry.events import RequestEnded, SummarizerCalled
from tests.support.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 11, 26, 7, 30, 15, tzinfo=UTC).timestamp()
MIDNIGHT, DECEMBER = (datetime(2026, *day, tzinfo=UTC).timestamp() for day in ((11, 27), (12, 1)))
FILE = "tenants: {acme: {}, beta: {}}\nclosed: %s\nstore: {secret: pepper}\n"


def sealed(store: Store) -> SealedStore:
    return SealedStore(store, Sealer(b"k" * 32), 60.0)


def config(folder: Path, closed: str = "true") -> Config:
    path = folder / "config.yaml"
    path.write_text(FILE % closed)
    return load(path, {})


def bearer(secret: str) -> bytes:
    return b"Bearer " + secret.encode()


def ended(key: IssuedKey, **more: object) -> RequestEnded:
    facts: dict[str, object] = {
        "at": NOW, "end": "complete", "tenant": "acme", "key": key.id, "method": "POST", "path": "/", "wire": "chat",
        "id": "1", "ms": 1.0, "bytes": 1, "status": 200, "attempts": 1, "billed": 100, "output": 20, "usd": 0.5, **more,
    }  # fmt: skip
    return RequestEnded(**facts)  # type: ignore[arg-type]


NOTHING = Tokens(0)
UNTOLD = {"billed": None, "output": None, "tokens_sent": 70}


class Replica:
    """A process with its own memory."""

    def __init__(self, store: Store, clock: Clock, config: Config) -> None:
        self.ring = KeyRing(KeyShelf(sealed(store)))
        self.usage = KeyUsage(store, clock)
        self.tenants = Tenants(config, self.ring)


class TestWhoItIs:
    async def test_an_issued_key_stands_for_its_tenant_in_every_process(self, tmp_path: Path) -> None:
        store, clock = MemoryStore(), Clock(NOW)
        one, two = (Replica(store, clock, config(tmp_path)) for _ in range(2))
        with pytest.raises(AuthenticationError):
            one.tenants.identify(b"Bearer other")
        secret, key = new_key("acme", NOW, name="ci")
        await KeyShelf(sealed(store)).put(key)
        for replica in (one, two):
            before = replica.tenants.version
            await replica.ring.look()
            assert replica.tenants.version > before
            caller = replica.tenants.identify(bearer(secret))
            assert (caller.tenant, caller.issued) == ("acme", key)
            assert replica.tenants.identify(None, secret.encode()).key_header == b"x-api-key"

    async def test_two_keys_of_a_tenant_share_no_scope(self, tmp_path: Path) -> None:
        store = MemoryStore()
        replica, scopes = Replica(store, Clock(NOW), config(tmp_path)), set()
        for _ in range(2):
            secret, key = new_key("acme", NOW)
            await KeyShelf(sealed(store)).put(key)
            await replica.ring.look()
            scopes.add(replica.tenants.identify(bearer(secret)).scope)
        assert len(scopes) == 2

    async def test_what_was_remembered_of_a_caller_is_forgotten_with_a_change(self, tmp_path: Path) -> None:
        """An open proxy takes an unknown key for the default tenant's, until it knows better."""
        store = MemoryStore()
        replica = Replica(store, Clock(NOW), config(tmp_path, "false"))
        secret, key = new_key("acme", NOW)
        await replica.ring.look()
        assert replica.tenants.identify(bearer(secret)).tenant == "default"
        await KeyShelf(sealed(store)).put(key)
        await replica.ring.look()
        assert replica.tenants.identify(bearer(secret)).tenant == "acme"

    async def test_a_key_whose_tenant_has_gone_is_refused(self, tmp_path: Path) -> None:
        store = MemoryStore()
        replica = Replica(store, Clock(NOW), config(tmp_path, "false"))
        secret, key = new_key("gone", NOW)
        await KeyShelf(sealed(store)).put(key)
        await replica.ring.look()
        with pytest.raises(AuthenticationError, match="not in the config"):
            replica.tenants.identify(bearer(secret))

    async def test_a_key_outlives_the_one_that_it_was_sealed_with(self) -> None:
        store, old, new = MemoryStore(), b"o" * 32, b"n" * 32
        secret, key = new_key("acme", NOW)
        await KeyShelf(SealedStore(store, Sealer(old), 60.0)).put(key)
        digest = hashlib.sha256(secret.encode()).digest()
        for sealer in (Sealer(new, [old]), Sealer(new)):
            ring = KeyRing(KeyShelf(SealedStore(store, sealer, 60.0)))
            await ring.look()
            assert ring.find(digest) == key

    async def test_the_store_has_no_key(self) -> None:
        class Watched(MemoryStore):
            async def put(self, key: str, value: bytes, ttl: float, *, only_new: bool = False) -> bytes | None:
                values.append(value)
                return await super().put(key, value, ttl, only_new=only_new)

        values = list[bytes]()
        secret, key = new_key("acme", NOW)
        await KeyShelf(SealedStore(Watched(), Sealer(None), 60.0)).put(key)
        plain = [Sealer(None).open(f"issued:{key.id}", value) or b"" for value in values]
        assert any(key.digest.encode() in value for value in plain)
        assert not any(secret.encode() in value for value in (*values, *plain))
        assert key.digest == hashlib.sha256(secret.encode()).hexdigest()

    async def test_keys_stay_known_while_the_store_is_away_and_are_not_guessed_before(self, tmp_path: Path) -> None:
        class Down(MemoryStore):
            is_down = True

            async def get_many(self, keys: object) -> list[bytes | None]:
                if self.is_down:
                    raise StoreError("down")
                return await super().get_many(keys)  # type: ignore[arg-type]

        behind, clock = Down(), Clock()
        store = CircuitBreaker(behind, clock)
        ring = KeyRing(KeyShelf(sealed(store)), lambda: store.available)
        tenants = Tenants(config(tmp_path, "false"), ring)
        secret, key = new_key("acme", NOW, prefix=key_prefix(b"pepper"))
        await ring.look()
        with pytest.raises(KeysUnknownError):
            tenants.identify(bearer(secret))
        for foreign in (b"Bearer sk-other", b"Bearer ck-other"):
            assert tenants.identify(foreign).tenant == "default"
        behind.is_down = False
        await KeyShelf(sealed(behind)).put(key)
        clock.now += 10
        await ring.look()
        assert tenants.identify(bearer(secret)).tenant == "acme"
        behind.is_down = True
        await ring.look()
        assert tenants.identify(bearer(secret)).tenant == "acme"

    async def test_keys_that_cannot_be_read_are_reported_once(self) -> None:
        store, told = MemoryStore(), list[int]()
        await KeyShelf(sealed(store)).put(new_key("acme", NOW)[1])
        ring = KeyRing(KeyShelf(SealedStore(store, Sealer(b"k" * 16), 60.0)), report_unreadable=told.append)
        for _ in range(2):
            await ring.look()
        assert told == [1]

    async def test_a_mistyped_key_of_this_store_passes_for_no_other(self, tmp_path: Path) -> None:
        """In an open config too, where it would be relayed as somebody's own."""
        replica = Replica(MemoryStore(), Clock(NOW), config(tmp_path, "false"))
        await replica.ring.look()
        mine, theirs = (new_key("acme", NOW, prefix=key_prefix(pepper))[0] for pepper in (b"pepper", b"theirs"))
        with pytest.raises(AuthenticationError):
            replica.tenants.identify(bearer(mine))
        assert replica.tenants.identify(bearer(theirs)).tenant == "default"


class TestHowLong:
    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"expires": NOW - 1}, "has expired"),
            ({"expires": NOW}, "has expired"),
            ({"revoked": NOW - 60}, "was revoked"),
            ({"expires": NOW + 1}, None),
            ({}, None),
        ],
    )
    def test_it_is_good_until_it_expires_or_is_revoked(self, changed: dict[str, float], said: str | None) -> None:
        key = IssuedKey(id="1", digest="11", tenant="acme", created=0.0, **changed)
        usage = KeyUsage(MemoryStore(), Clock(NOW))
        if said is None:
            usage.check(key)
        else:
            with pytest.raises(AuthenticationError, match=said):
                usage.check(key)

    def test_who_revoked_it_first_counts(self) -> None:
        _, key = new_key("acme", NOW)
        assert as_revoked(as_revoked(key, NOW), NOW + 5).revoked == NOW


class TestWhatItMayUse:
    @pytest.mark.parametrize(
        ("limits", "said", "until"),
        [
            (KeyLimits(tokens_per_day=240), "240 tokens a day", MIDNIGHT),
            (KeyLimits(tokens_per_month=240), "240 tokens a month", DECEMBER),
            (KeyLimits(usd_per_day=1.0), "1.0 US dollars a day", MIDNIGHT),
            (KeyLimits(usd_per_month=1.0), "1.0 US dollars a month", DECEMBER),
        ],
    )
    async def test_a_budget_holds_over_replicas(self, limits: KeyLimits, said: str, until: float) -> None:
        store, clock = MemoryStore(), Clock(NOW)
        one, two = (KeyUsage(store, clock) for _ in range(2))
        _, key = new_key("acme", NOW, limits=limits)
        for usage in (one, two):
            await usage.reserve(key, NOTHING)
            usage(ended(key))
        await one.reserve(key, NOTHING)  # it knows of one request alone
        for usage in (one, two, one):
            await usage.count()
        for usage in (one, two):
            with pytest.raises(BudgetSpentError, match=said) as refused:
                await usage.reserve(key, NOTHING)
            assert refused.value.retry_after == until - NOW
        clock.now = until
        await one.reserve(key, NOTHING)

    async def test_a_process_that_begins_learns_what_was_used_before(self) -> None:
        store, clock = MemoryStore(), Clock(NOW)
        _, key = new_key("acme", NOW, limits=KeyLimits(tokens_per_day=100))
        before, after = KeyUsage(store, clock), KeyUsage(store, clock)
        before(ended(key))
        await before.count()
        with pytest.raises(BudgetSpentError):
            await after.reserve(key, NOTHING)

    async def test_requests_a_minute(self) -> None:
        store, clock = MemoryStore(), Clock(NOW)
        one, two = (KeyUsage(store, clock) for _ in range(2))
        _, key = new_key("acme", NOW, limits=KeyLimits(requests_per_minute=4))
        for _ in range(2):
            for usage in (one, two):
                await usage.reserve(key, NOTHING)
        for usage in (one, two, one):
            await usage.count()
        with pytest.raises(KeyRateError, match="4 requests a minute") as refused:
            await two.reserve(key, NOTHING)
        clock.now += refused.value.retry_after or 0
        await two.count()
        await two.reserve(key, NOTHING)

    async def test_tokens_a_minute(self) -> None:
        clock = Clock(NOW)
        usage = KeyUsage(MemoryStore(), clock)
        _, key = new_key("acme", NOW, limits=KeyLimits(tokens_per_minute=120))
        await usage.reserve(key, NOTHING)
        usage(ended(key))
        with pytest.raises(KeyRateError, match="120 tokens a minute") as refused:
            await usage.reserve(key, NOTHING)
        clock.now += refused.value.retry_after or 0
        await usage.reserve(key, NOTHING)

    @pytest.mark.parametrize(
        ("event", "tokens"),
        [
            ({}, 120),
            # The upstream did not say: our estimate.
            ({**UNTOLD, "bytes": 400}, 170),
            ({**UNTOLD, "bytes": 1_200, "stream": True}, 80),
            ({**UNTOLD, "bytes": 0, "status": 0, "end": "client_gone"}, 70),
            ({**UNTOLD, "bytes": 0, "status": 0, "end": "refused"}, 0),
            ({"status": 500}, 0),
            ({"attempts": 0, "status": 429}, 0),
            ({"wire": "relay", "billed": None, "output": None}, 0),
        ],
    )
    async def test_what_a_request_counts(self, event: dict[str, object], tokens: int) -> None:
        store = MemoryStore()
        usage = KeyUsage(store, Clock(NOW))
        _, key = new_key("acme", NOW)
        usage(ended(key, **event))
        await usage.count()
        used = await used_by(store, key, NOW)
        assert used is not None
        assert (used.tokens_today, used.tokens_month) == (tokens, tokens)

    async def test_summaries_count_and_unknown_prices_are_said_to_be(self) -> None:
        store, clock = MemoryStore(), Clock(NOW)
        usage = KeyUsage(store, clock)
        _, key = new_key("acme", NOW)
        usage(ended(key, usd=None))
        usage(
            SummarizerCalled(
                tenant="acme", upstream="main", model="m", wire="chat", result="ok", ms=1.0, tokens_in=1_000,
                tokens_out=30, usd=0.25, key=key.id,
            )
        )  # fmt: skip
        await usage.count()
        assert await used_by(store, key, NOW) == Used(1_150, 1_150, 0.25, 0.25, 1)
        clock.now = MIDNIGHT
        assert await used_by(store, key, MIDNIGHT) == Used(0, 1_150, 0.0, 0.25, 1)

    async def test_nothing_is_lost_or_told_twice_while_the_store_is_away(self) -> None:
        class Away(MemoryStore):
            is_away = True

            async def count(self, increments: Sequence[Increment]) -> list[dict[str, int] | None]:
                return [None] * len(increments) if self.is_away else await super().count(increments)

        store = Away()
        usage = KeyUsage(store, Clock(NOW))
        _, key = new_key("acme", NOW, limits=KeyLimits(tokens_per_day=240))
        usage(ended(key))
        await usage.count()
        await usage.reserve(key, NOTHING)
        usage(ended(key))
        with pytest.raises(BudgetSpentError):
            await usage.reserve(key, NOTHING)
        store.is_away = False
        for _ in range(2):
            await usage.count()
        used = await used_by(store, key, NOW)
        assert used is not None
        assert used.tokens_today == 240

    async def test_counters_of_minutes_that_are_over_are_let_go_of(self) -> None:
        class Watched(MemoryStore):
            asked = 0

            async def count(self, increments: Sequence[Increment]) -> list[dict[str, int] | None]:
                self.asked += len(increments)
                return await super().count(increments)

        store, clock = Watched(), Clock(NOW)
        usage = KeyUsage(store, clock)
        _, key = new_key("acme", NOW)
        for _ in range(30):
            await usage.reserve(key, NOTHING)
            await usage.count()
            clock.now += 60
        store.asked = 0
        await usage.count()
        assert store.asked <= 5
        clock.now += 1_000
        store.asked = 0
        await usage.count()
        assert store.asked == 0  # it is not in use


class CountingStore(MemoryStore):
    """Counts the calls of `count`, each of which takes a turn of the loop; does nothing while it is away."""

    calls = 0
    is_away = False

    async def count(self, increments: Sequence[Increment]) -> list[dict[str, int] | None]:
        self.calls += 1
        if self.is_away:
            return [None] * len(increments)
        await asyncio.sleep(0)
        counted = await super().count(increments)
        await asyncio.sleep(0)
        return counted


PRICE = Price(1e-3, 2e-3, 1e-3, 1e-3, 1e-3)


def priced(store: Store, clock: Clock) -> KeyUsage:
    return KeyUsage(store, clock, lambda _: PRICE)


async def tried(usages: list[KeyUsage], key: IssuedKey, number: int, tokens: Tokens) -> list[Reservation | ProxyError]:
    """Let so many requests reserve so many tokens at once, in turn at each of these replicas."""
    reserving = (usages[each % len(usages)].reserve(key, tokens, "m") for each in range(number))
    outcomes = await asyncio.gather(*reserving, return_exceptions=True)
    assert all(isinstance(outcome, Reservation | ProxyError) for outcome in outcomes)
    return outcomes  # type: ignore[return-value]


def passed(outcomes: list[Reservation | ProxyError]) -> list[Reservation]:
    return [outcome for outcome in outcomes if isinstance(outcome, Reservation)]


class TestWhatIsInFlight:
    @pytest.mark.parametrize("replicas", [1, 2, 5])
    @pytest.mark.parametrize(
        ("limits", "most"),
        [
            (KeyLimits(tokens_per_day=1_000), 2),
            (KeyLimits(tokens_per_month=1_001), 3),
            (KeyLimits(tokens_per_minute=1_000), 2),
            (KeyLimits(usd_per_day=1.0), 2),  # $0.50 + $0.10 each
            (KeyLimits(usd_per_month=3.0), 6),
            (KeyLimits(requests_per_minute=10), 10),
            (KeyLimits(requests_per_minute=10, tokens_per_day=1_000), 2),
        ],
        ids=str,
    )
    async def test_requests_at_once_use_no_more_than_a_limit_and_the_last_of_them(
        self, limits: KeyLimits, most: int, replicas: int
    ) -> None:
        store, clock = CountingStore(), Clock(NOW)
        _, key = new_key("acme", NOW, limits=limits)
        usages = [priced(store, clock) for _ in range(replicas)]
        outcomes = await tried(usages, key, 200, Tokens(450, 50))
        assert len(passed(outcomes)) == most
        for outcome in outcomes:
            assert isinstance(outcome, Reservation | LimitReservedError | KeyRateError)
            assert isinstance(outcome, Reservation) or outcome.retry_after

    async def test_what_was_reserved_is_given_back_when_a_request_ends(self) -> None:
        """Billed, refused by its upstream, or left by its client."""
        store, clock = CountingStore(), Clock(NOW)
        _, key = new_key("acme", NOW, limits=KeyLimits(tokens_per_day=1_000))
        one, two = usages = [KeyUsage(store, clock) for _ in range(2)]
        for end in ({"status": 500}, {"billed": 60, "output": 40}, {"attempts": 0, "end": "client_gone"}):
            outcomes = await tried(usages, key, 20, Tokens(0, 2_000))
            (reservation,) = passed(outcomes)
            one(ended(key, **end))
            for _ in range(2):
                reservation.close()
            for usage in (one, two, one):
                await usage.count()
        used = await used_by(store, key, NOW)
        assert used is not None
        assert used.tokens_today == 100
        assert len(passed(await tried(usages, key, 20, Tokens(0, 300)))) == 3

    async def test_one_request_after_the_other_passes_at_any_replica_near_a_limit(self) -> None:
        """Without waiting for the next second: each reserves more than there is."""
        store, clock = CountingStore(), Clock(NOW)
        _, key = new_key("acme", NOW, limits=KeyLimits(tokens_per_day=1_000))
        usages = [KeyUsage(store, clock) for _ in range(3)]
        for number in range(9):
            usage = usages[number % 3]
            reservation = await usage.reserve(key, may_use(10, None))
            reservation.close()
            usage(ended(key))
            for _ in range(9):
                await asyncio.sleep(0)
        with pytest.raises(BudgetSpentError):
            await usages[0].reserve(key, may_use(10, None))

    async def test_a_refused_request_counts_for_nothing(self) -> None:
        store, clock = CountingStore(), Clock(NOW)
        _, key = new_key("acme", NOW, limits=KeyLimits(requests_per_minute=10, tokens_per_day=1_000))
        one, two = usages = [KeyUsage(store, clock) for _ in range(2)]
        (reservation,) = passed(await tried(usages, key, 9, Tokens(0, 1_000)))
        reservation.close()
        for usage in (one, two, one):
            await usage.count()
        assert len(passed(await tried(usages, key, 30, Tokens(0, 1)))) == 9

    async def test_reservations_of_a_killed_process_expire(self) -> None:
        store, clock = MemoryStore(), Clock(NOW)
        _, key = new_key("acme", NOW, limits=KeyLimits(tokens_per_day=1_000))
        await KeyUsage(store, clock).reserve(key, Tokens(5_000))
        after = KeyUsage(store, clock)
        with pytest.raises(LimitReservedError, match="in flight may use the rest of its 1,000 tokens a day"):
            await after.reserve(key, Tokens(10))
        clock.now += 600
        await after.reserve(key, Tokens(10))

    async def test_a_process_counts_its_own_requests_in_flight_while_the_store_is_away(self) -> None:
        store, clock = CountingStore(), Clock(NOW)
        store.is_away = True
        _, key = new_key("acme", NOW, limits=KeyLimits(tokens_per_day=1_000, requests_per_minute=50))
        usage = KeyUsage(store, clock)
        first = passed(await tried([usage], key, 200, Tokens(500)))
        assert len(first) == 2
        for reservation in first:
            reservation.close()
        assert len(passed(await tried([usage], key, 200, Tokens(500)))) == 2
        store.is_away = False
        await usage.count()
        with pytest.raises(LimitReservedError):
            await KeyUsage(store, clock).reserve(key, Tokens(10))

    async def test_a_client_that_leaves_while_the_store_is_asked_leaves_no_reservation(self) -> None:
        store, clock = CountingStore(), Clock(NOW)
        _, key = new_key("acme", NOW, limits=KeyLimits(tokens_per_day=1_000))
        usage = KeyUsage(store, clock)
        for turns in range(6):
            reserving = asyncio.ensure_future(usage.reserve(key, Tokens(5_000)))
            for _ in range(turns):
                await asyncio.sleep(0)
            if reserving.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await reserving
            else:
                (await reserving).close()
            for _ in range(9):
                await asyncio.sleep(0)
            await usage.count()
        assert len(passed(await tried([KeyUsage(store, clock)], key, 20, Tokens(400)))) == 3

    async def test_far_from_its_limits_a_key_waits_for_no_store(self) -> None:
        store, clock = CountingStore(), Clock(NOW)
        limits = KeyLimits(tokens_per_day=10_000_000, usd_per_month=9_000.0, requests_per_minute=6_000)
        _, key = new_key("acme", NOW, limits=limits)
        _, unlimited = new_key("acme", NOW)
        usage = priced(store, clock)
        for _ in range(90):
            await usage.reserve(unlimited, may_use(10, None), "m")
        assert store.calls == 0
        for _ in range(90):
            (await usage.reserve(key, may_use(1_000, 500), "m")).close()
        assert store.calls == 1, "a process that begins does not know what others have used"

    async def test_what_processes_add_unasked_is_a_small_share_of_a_limit(self) -> None:
        store, clock = CountingStore(), Clock(NOW)
        _, key = new_key("acme", NOW, limits=KeyLimits(tokens_per_day=1_000_000))
        usages = [KeyUsage(store, clock) for _ in range(8)]
        for usage in usages:
            (await usage.reserve(key, Tokens(1))).close()
            await usage.count()
        outcomes = await tried(usages, key, 4_000, Tokens(1_000))
        assert 1_000 <= len(passed(outcomes)) <= 1_000 + 8 * 16

    async def test_all_active_keys_are_counted_in_one_call(self) -> None:
        store, clock = CountingStore(), Clock(NOW)
        usage = KeyUsage(store, clock)
        keys = [new_key("acme", NOW)[1] for _ in range(250)]
        for key in keys:
            usage(ended(key))
        await usage.count()
        assert store.calls == 3, "of a hundred keys each"
        for key in keys[::50]:
            used = await used_by(store, key, NOW)
            assert used is not None
            assert used.tokens_today == 120

    @pytest.mark.parametrize(("asked", "reserved"), [(None, 4_096), (9, 9), (10**30, 1_000_000)])
    def test_an_answer_without_a_limit_and_one_with_a_huge_one_are_reserved_within_bounds(
        self, asked: int | None, reserved: int
    ) -> None:
        assert may_use(5, asked) == Tokens(5, reserved)
        assert may_use(5, asked, 3) == Tokens(5, min(3 * reserved, 1_000_000))
