"""What issued keys have used, counted in the store for all replicas, and whether they may use more.

Every process adds what it has seen once a second, and learns what others have added then; in between it knows its own.
So limits hold over all replicas but for about a second. While the store does not answer each process counts by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import ceil

import msgspec

from policies.price import Price, Tokens
from policies.rates import seconds_until_room
from proxy.callers.issued_keys import IssuedKey, KeyLimits
from proxy.errors import AuthenticationError, BudgetSpentError, KeyRateError
from proxy.lru import remember
from proxy.observing.events import Event, RequestEnded, SummarizerCalled
from proxy.observing.tally import billionths
from proxy.stores.base import Store

COUNT_EVERY = 1.0
_MINUTE, _DAY = 60, timedelta(days=1)
_MINUTE_TTL = 3 * _MINUTE
_MONTH_TTL = 70 * 86_400.0
_MOST = 10_000
# Seconds after its last request for which a key's counters are looked up.
_ACTIVE = 120.0
_BILLION = 1_000_000_000
# Of an answer, to a token: of JSON, and of events, each of which repeats what it is a part of.
_BYTES, _STREAMED_BYTES = 4, 120
# A text that was compressed is ten times as long.
_UNPACKED = 10
# Tokens of an answer in JSON that is no conversation's, at most: it may be numbers or a picture.
_MOST_RELAYED = 4_096
# Names of counters: requests, tokens, billionths of a US dollar, answers without a known price.
REQUESTS, TOKENS, COST, UNPRICED = "r", "t", "c", "x"


@dataclass(slots=True)
class _Period:
    """Counters of one month or minute: as the store has them, and what is to be added there."""

    known: Mapping[str, int] = field(default_factory=dict)
    unsent: Counter[str] = field(default_factory=Counter)
    sending: Counter[str] = field(default_factory=Counter)

    def value(self, name: str) -> int:
        return self.known.get(name, 0) + self.unsent[name] + self.sending[name]


@dataclass(slots=True)
class _Meter:
    """Of one key."""

    last: float = 0.0
    periods: dict[str, _Period] = field(default_factory=dict)

    def value(self, period: str, name: str) -> int:
        found = self.periods.get(period)
        return 0 if found is None else found.value(name)

    def add(self, period: str, **numbers: int) -> None:
        self.periods.setdefault(period, _Period()).unsent.update(numbers)


_BILLED = (RequestEnded, SummarizerCalled)  # a union takes several times as long to ask


class KeyUsage:
    """A hook that counts by key; one per process."""

    def __init__(
        self, store: Store, clock: Callable[[], float], price: Callable[[str], Price | None] = lambda _: None
    ) -> None:
        """`clock`: Unix seconds. `price`: of a model, for answers that report no usage."""
        self._store = store
        self._clock = clock
        self._price = price
        self._meters: OrderedDict[str, _Meter] = OrderedDict()

    def admit(self, key: IssuedKey) -> None:
        """Take a request of this key.

        Raises AuthenticationError for one that may not be used any more, BudgetSpentError and KeyRateError.
        """
        now = self._clock()
        if (why := key.why_not(now)) is not None:
            raise AuthenticationError(why)
        meter = self._meter(key.id, now)
        _check_budgets(key, meter, now)
        _check_rates(key, meter, now)
        meter.add(_minute(now), **{REQUESTS: 1})

    def __call__(self, event: Event) -> None:
        if not isinstance(event, _BILLED) or event.key is None:
            return
        if isinstance(event, SummarizerCalled):
            if tokens := event.tokens_in + event.tokens_out:
                self._bill(event.key, tokens, event.usd)
        elif event.billed is not None and event.is_answered and event.wire != "relay":
            if event.usd is None:  # of a request that was not read
                long, written = event.cache_written_long or 0, event.cache_written or 0
                cache = event.cached or 0, max(0, written - long), long
                self.add(event.key, Tokens(event.billed, event.output or 0, *cache), event.model or "")
            else:
                self._bill(event.key, event.billed + (event.output or 0), event.usd)
        elif event.attempts > 0 and event.wire != "relay" and (event.is_answered or event.end == "client_gone"):
            self.add(event.key, _estimate(event), event.model or "")

    def add(self, key_id: str, used: Tokens, model: str) -> None:
        """Count an answer by the price of its model; one without tokens, a sound say, is one without a known price."""
        tokens = used.prompt + used.output
        price = self._price(model) if tokens else None
        self._bill(key_id, tokens, None if price is None else price.of(used))

    def _bill(self, key_id: str, tokens: int, usd: float | None) -> None:
        now = self._clock()
        meter, day = self._meter(key_id, now), _day(now)
        cost = {UNPRICED: 1} if usd is None else {COST: billionths(usd), f"{COST}{day}": billionths(usd)}
        meter.add(_month(now), **{TOKENS: tokens, f"{TOKENS}{day}": tokens, **cost})
        meter.add(_minute(now), **{TOKENS: tokens})

    async def count(self) -> None:
        """Add to the store what is new, and learn what others have added."""
        now = self._clock()
        for key_id, meter in [*self._meters.items()]:
            if now - meter.last > _ACTIVE and not any(period.unsent for period in meter.periods.values()):
                continue
            wanted = {_month(now), _minute(now), _minute(now - _MINUTE)}
            for name in {*meter.periods, *wanted}:
                await self._count(key_id, name, meter.periods.setdefault(name, _Period()))
            for name in [name for name in meter.periods if name not in wanted]:
                if not meter.periods[name].unsent:
                    del meter.periods[name]

    async def _count(self, key_id: str, name: str, period: _Period) -> None:
        period.sending, period.unsent = period.unsent, Counter()
        ttl = _MINUTE_TTL if name.startswith("m") else _MONTH_TTL
        try:
            counts = await self._store.count(place_of(key_id, name), period.sending, ttl)
        except BaseException:  # cancelled: it may have been added, and is not told twice
            period.sending = Counter()
            raise
        if counts is None:
            period.unsent.update(period.sending)
        else:
            period.known = counts
        period.sending = Counter()

    def _meter(self, key_id: str, now: float) -> _Meter:
        meter = remember(self._meters, key_id, self._meters.get(key_id) or _Meter(), _MOST)
        meter.last = now
        return meter


def prompt_by_size(size: int, *, is_coded: bool = False) -> int:
    """Return about how many tokens a body of so many bytes is; `is_coded` if it has a content coding."""
    return ceil(size * (_UNPACKED if is_coded else 1) / _BYTES)


def relayed_by_size(prompt: int, answer: int, *, is_stream: bool) -> Tokens:
    """Return about how many tokens a request and an answer that is no conversation's are, by their bytes."""
    if is_stream:
        return Tokens(prompt_by_size(prompt), ceil(answer / _STREAMED_BYTES))
    return Tokens(prompt_by_size(prompt), min(_MOST_RELAYED, ceil(answer / _BYTES)))


def _estimate(event: RequestEnded) -> Tokens:
    """Return what an answer without usage has used, as one whose client hung up: more rather than less."""
    prompt = event.tokens_by_size or 0 if event.sent is None else event.sent
    return Tokens(prompt, ceil(event.bytes / (_STREAMED_BYTES if event.stream else _BYTES)))


@dataclass(frozen=True, slots=True)
class Used:
    """By a key, today and in this month of UTC. unpriced: answers of this month whose price is not known."""

    tokens_today: int
    tokens_month: int
    usd_today: float
    usd_month: float
    unpriced: int


async def used_by(store: Store, key: IssuedKey, now: float) -> Used | None:
    """What the store has counted; None if it does not answer."""
    counts = await store.count(place_of(key.id, _month(now)), {}, _MONTH_TTL)
    if counts is None:
        return None
    day = _day(now)
    return Used(
        counts.get(f"{TOKENS}{day}", 0),
        counts.get(TOKENS, 0),
        counts.get(f"{COST}{day}", 0) / _BILLION,
        counts.get(COST, 0) / _BILLION,
        counts.get(UNPRICED, 0),
    )


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is listed. state: active, expired or revoked. created, expires: Unix seconds. used: None if the store
    did not say."""

    id: str
    tenant: str
    name: str
    state: str
    created: float
    expires: float | None
    limits: KeyLimits
    used: Used | None


async def key_rows(store: Store, keys: Sequence[IssuedKey], now: float) -> list[KeyRow]:
    """Keys with what each has used."""
    used = await asyncio.gather(*(used_by(store, key, now) for key in keys))
    return [
        KeyRow(
            id=key.id,
            tenant=key.tenant,
            name=key.name,
            state="revoked" if key.revoked is not None else "expired" if key.why_not(now) else "active",
            created=key.created,
            expires=key.expires,
            limits=key.limits,
            used=of_key,
        )
        for key, of_key in zip(keys, used, strict=True)
    ]


def place_of(key_id: str, period: str) -> str:
    """Where counters lie in a store: nobody who reads it learns which key they are of."""
    return f"used:{hashlib.sha256(f'used {key_id}'.encode()).hexdigest()[:32]}:{period}"


def _check_budgets(key: IssuedKey, meter: _Meter, now: float) -> None:
    limits, month, day = key.limits, _month(now), _day(now)
    for limit, counter, unit, period, until in (
        (limits.tokens_per_month, TOKENS, "tokens", "month", _next_month),
        (limits.tokens_per_day, f"{TOKENS}{day}", "tokens", "day", _next_day),
        (limits.usd_per_month, COST, "US dollars", "month", _next_month),
        (limits.usd_per_day, f"{COST}{day}", "US dollars", "day", _next_day),
    ):
        most = limit if limit is None or unit == "tokens" else limit * _BILLION
        if most is not None and meter.value(month, counter) >= most:
            raise BudgetSpentError(f"{limit:,} {unit} a {period}", ceil(until(now) - now))


def _check_rates(key: IssuedKey, meter: _Meter, now: float) -> None:
    limits, second = key.limits, now % _MINUTE
    current, previous = _minute(now), _minute(now - _MINUTE)
    for limit, counter, unit in (
        (limits.requests_per_minute, REQUESTS, "requests"),
        (limits.tokens_per_minute, TOKENS, "tokens"),
    ):
        if limit is None:
            continue
        wait = seconds_until_room(limit, meter.value(current, counter), meter.value(previous, counter), second)
        if wait != 0:
            raise KeyRateError(f"{limit:,} {unit} a minute", wait or _MINUTE)


def _month(now: float) -> str:
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m}"


def _day(now: float) -> str:
    return f"{datetime.fromtimestamp(now, UTC):%d}"


def _minute(now: float) -> str:
    return f"m{int(now) // _MINUTE}"


def _next_day(now: float) -> float:
    return (datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0) + _DAY).timestamp()


def _next_month(now: float) -> float:
    today = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (today + 32 * _DAY).replace(day=1).timestamp()
