"""The usage of issued keys, counted in the store for all replicas, and their limits.

Once a second every process adds its counts and reads those of others. In between it knows its own. The maximum use of a
request is reserved before it is sent upstream, and released when it is billed. Reservations are shared through the
store. A process near a limit reads the store for each request. Far from it, no request waits for the store. While the
store does not respond, each process counts by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from math import ceil
from typing import NamedTuple, TypeVar

import msgspec

from policies.price import Price, Tokens
from policies.rates import seconds_until_room, used_lately
from proxy.callers.issued_keys import NO_LIMITS, IssuedKey, KeyLimits
from proxy.errors import AuthenticationError, BudgetSpentError, KeyRateError, LimitReservedError, ProxyError
from proxy.lru import remember
from proxy.sessions.stores.base import Increment, Store
from proxy.telemetry.events import Event, RequestEnded, SummarizerCalled
from proxy.telemetry.history_entries import RequestEntry
from proxy.telemetry.hooks import RequestListener
from proxy.telemetry.tally import billionths

COUNT_EVERY = 1.0
_MINUTE, _DAY, _DAY_SECONDS = 60, timedelta(days=1), 86_400
_MINUTE_TTL = 3 * _MINUTE
_MONTH_TTL = 70 * 86_400.0
# Seconds. A reservation counts until the end of the slot after its own: that of a killed process is gone after five to
# ten minutes.
_SLOT = 300
_SLOT_TTL = 3.0 * _SLOT
_MOST = 10_000
# Seconds after its last request during which a key's counters are read.
_ACTIVE = 120.0
# Keys that are counted in one store call, each with five entries.
_KEYS_AT_ONCE = 100
# Seconds after which the store's counters are too old.
_STALE = 3.0
# The share of the remaining limit that a process may add without reading the store: 64 processes together use it up.
_UNASKED = 1 / 64
_BILLION = 1_000_000_000
# Bytes of a response per token: of JSON, and of events, each of which repeats its envelope.
_BYTES, _STREAMED_BYTES = 4, 120
# A compressed text expands to ten times its size.
_UNPACKED = 10
# Maximum tokens of a JSON response outside conversations: it may be numbers or a picture.
_MOST_RELAYED = 4_096
# Tokens of a response without a requested limit, and the maximum reservation for one.
_UNSTATED_OUTPUT, _MOST_OUTPUT = 4_096, 1_000_000
# Names of counters: requests, tokens, billionths of a US dollar, responses without a known price.
REQUESTS, TOKENS, COST, UNPRICED = "r", "t", "c", "x"

_T = TypeVar("_T")
_Counters = Mapping[str, int]
_Value = Callable[[str, str], int]
"""Return the value of a counter by its period and its name."""


@dataclass(slots=True)
class _Period:
    """Counters of one month, minute or slot: the store's, and additions to it.

    call: the number of the store call that `known` is from.
    """

    known: _Counters = field(default_factory=dict)
    unsent: Counter[str] = field(default_factory=Counter)
    sending: Counter[str] = field(default_factory=Counter)
    call: int = 0

    @property
    def has_news(self) -> bool:
        return any(self.unsent.values()) or any(self.sending.values())

    def value(self, name: str) -> int:
        return self.known.get(name, 0) + self.unsent[name] + self.sending[name]

    def begin(self) -> dict[str, int]:
        """Start to send, and return the additions."""
        added = {name: number for name, number in self.unsent.items() if number}
        self.unsent.clear()
        self.sending.update(added)
        return added

    def end(self, added: _Counters, counters: _Counters | None, call: int) -> None:
        """Adopt the store's counters, or requeue the additions if they are None: the store did not add them."""
        self.sending.subtract(added)
        if counters is None:
            self.unsent.update(added)
        elif call > self.call:  # replies may overtake each other
            self.known, self.call = counters, call


@dataclass(slots=True)
class _Meter:
    """The usage of one key.

    synced: when the store's counters were last read. is_due: True if a call is about to send them.
    """

    last: float = 0.0
    is_due: bool = False
    synced: float = float("-inf")
    periods: dict[str, _Period] = field(default_factory=dict)

    def value(self, period: str, name: str) -> int:
        period_counters = self.periods.get(period)
        return 0 if period_counters is None else period_counters.value(name)

    def known(self, period: str, name: str) -> int:
        period_counters = self.periods.get(period)
        return 0 if period_counters is None else period_counters.known.get(name, 0)

    def period(self, name: str) -> _Period:
        return self.periods.setdefault(name, _Period())

    def add(self, period: str, **numbers: int) -> None:
        self.period(period).unsent.update(numbers)


class _Call(NamedTuple):
    """A store call for some keys.

    periods, sent: by key and name.
    """

    number: int
    now: float
    meters: Sequence[tuple[str, _Meter]]
    periods: Mapping[tuple[str, str], _Period]
    sent: Mapping[tuple[str, str], _Counters]


class Reservation:
    """The maximum use of a request from the limits of its key, until it is closed.

    on_close: called at the release.
    """

    __slots__ = ("_amounts", "_period", "on_close")

    def __init__(self, period: _Period, amounts: _Counters) -> None:
        """Reserve these amounts in a period."""
        self._period = period
        self._amounts = amounts
        self.on_close: Callable[[], None] | None = None
        period.unsent.update(amounts)

    def close(self) -> None:
        """Release the reservation. Closing twice is harmless."""
        self._period.unsent.subtract(self._amounts)
        self._amounts = {}
        if self.on_close is not None:
            self.on_close()
            self.on_close = None


class KeyUsage(RequestListener):
    """A hook that counts by key. One instance per process."""

    def __init__(
        self, store: Store, clock: Callable[[], float], price: Callable[[str], Price | None] = lambda _: None
    ) -> None:
        """Create a hook.

        clock: returns Unix seconds. price: of a model, for responses without usage.
        """
        self._store = store
        self._clock = clock
        self._price = price
        self._meters: OrderedDict[str, _Meter] = OrderedDict()
        self._calls = 0
        self._calling: set[asyncio.Task[object]] = set()

    def check(self, key: IssuedKey) -> None:
        """Check a request of a key by the known counts, before any work for it.

        Raises AuthenticationError for an invalid key, BudgetSpentError, KeyRateError and LimitReservedError.
        """
        now = self._clock()
        if (why := key.why_not(now)) is not None:
            raise AuthenticationError(why)
        if key.limits != NO_LIMITS:
            _check_limits(key.limits, self._meter(key.id, now).value, now)

    async def reserve(self, key: IssuedKey, estimate: Tokens, model: str = "") -> Reservation:
        """Count a request of this key, and reserve its maximum use. Raises as `check` does.

        The store is read if the key may be near a limit. Amounts are added and read back in one call. So of any number
        of requests on any replicas, the first ones to be added are admitted.
        """
        self.check(key)
        now = self._clock()
        meter, slot, minute = self._meter(key.id, now), _slot(now), _minute(now)
        amounts = self._amounts(estimate, model) if key.limits.count_tokens else {}
        meter.add(minute, **{REQUESTS: 1})
        reservation = Reservation(meter.period(slot), amounts)
        if key.limits == NO_LIMITS or not _has_to_ask(key.limits, meter, now):
            return reservation
        own = {slot: amounts, minute: {REQUESTS: 1}}
        reservation.on_close = partial(self._send_soon, key.id, meter)
        asking = self._start(self._ask(key.id, self._begin_call([(key.id, meter)], now)))
        try:
            # A disconnect now must not hide what the store has added.
            counted = await asyncio.shield(asking)
            if counted is not None:
                _check_limits(key.limits, partial(_without, counted, own), now)
        except ProxyError:
            meter.add(minute, **{REQUESTS: -1})
            reservation.close()
            raise
        except BaseException:
            reservation.close()
            raise
        return reservation

    def _start(self, work: Coroutine[None, None, _T]) -> asyncio.Task[_T]:
        task = asyncio.ensure_future(work)
        self._calling.add(task)
        task.add_done_callback(self._calling.discard)
        return task

    def _send_soon(self, key_id: str, meter: _Meter) -> None:
        """Send the release of a key near a limit to the store at once: other requests may wait for it."""
        if not meter.is_due:
            meter.is_due = True
            asyncio.get_running_loop().call_soon(self._send_now, key_id, meter)

    def _send_now(self, key_id: str, meter: _Meter) -> None:
        meter.is_due = False
        self._start(self._send(self._begin_call([(key_id, meter)], self._clock())))

    def _amounts(self, estimate: Tokens, model: str) -> _Counters:
        price = self._price(model)
        cost = {} if price is None else {COST: billionths(price.of(estimate))}
        return {TOKENS: estimate.prompt + estimate.output, **cost}

    async def _ask(self, key_id: str, call: _Call) -> dict[str, _Counters] | None:
        """Return the store's counters of a key by period; None if it does not respond."""
        counted = await self._send(call)
        by_period = {name: counters for name in _periods(call.now) if (counters := counted[key_id, name]) is not None}
        return by_period if len(by_period) == len(_periods(call.now)) else None

    def on_event(self, event: Event) -> None:
        """Bill a summarizer's call to its key."""
        if isinstance(event, SummarizerCalled) and event.key and (tokens := event.tokens_in + event.tokens_out):
            self._bill(event.key, tokens, event.usd)

    def on_request(self, event: RequestEnded, entry: RequestEntry) -> None:
        """Bill a finished request to its key."""
        if event.key is None:
            return
        if event.billed is not None and entry.is_answered and event.wire != "relay":
            if event.usd is None:  # of a request that was not parsed
                long, written = event.cache_written_long or 0, event.cache_written or 0
                cache = event.cached or 0, max(0, written - long), long
                self.add(event.key, Tokens(event.billed, event.output or 0, *cache), event.model or "")
            else:
                self._bill(event.key, event.billed + (event.output or 0), event.usd)
        elif event.attempts > 0 and event.wire != "relay" and (entry.is_answered or event.end == "client_gone"):
            self.add(event.key, _estimate(event), event.model or "")

    def add(self, key_id: str, used: Tokens, model: str) -> None:
        """Count a response by its model's price. One without tokens, such as audio, has no known price."""
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
        """Add new counts to the store, and read those of others: one call for many keys."""
        now = self._clock()
        due = [
            (key_id, meter)
            for key_id, meter in self._meters.items()
            if now - meter.last <= _ACTIVE or any(period.has_news for period in meter.periods.values())
        ]
        for start in range(0, len(due), _KEYS_AT_ONCE):
            await self._send(self._begin_call(due[start : start + _KEYS_AT_ONCE], now))

    def _begin_call(self, meters: Sequence[tuple[str, _Meter]], now: float) -> _Call:
        """Collect the unsent usage of these keys. Usage that is added during the call belongs to the next call."""
        self._calls += 1
        wanted = _periods(now)
        periods = {
            (key_id, name): meter.period(name)
            for key_id, meter in meters
            for name in {*meter.periods, *wanted}
            if name in wanted or meter.periods[name].has_news
        }
        sent = {place: period.begin() for place, period in periods.items()}
        return _Call(self._calls, now, meters, periods, sent)

    async def _send(self, call: _Call) -> dict[tuple[str, str], _Counters | None]:
        """Add to the store, and return its counters by key and period."""
        places = [*call.sent]
        increments = [Increment(place_of(*place), call.sent[place], _ttl_of(place[1])) for place in places]
        try:
            replies: list[dict[str, int] | None] = await self._store.count(increments)
        except BaseException:  # cancelled: the counts may have been added, so they are not sent again
            for place, added in call.sent.items():
                call.periods[place].sending.subtract(added)
            raise
        counted: dict[tuple[str, str], _Counters | None] = dict(zip(places, replies, strict=True))
        for place, added in call.sent.items():
            call.periods[place].end(added, counted[place], call.number)
        wanted = _periods(call.now)
        for key_id, meter in call.meters:
            if all(counted[key_id, name] is not None for name in wanted):
                meter.synced = max(call.now, meter.synced)
            for name in [name for name in meter.periods if name not in wanted]:
                if not meter.periods[name].has_news:
                    del meter.periods[name]
        return counted

    def _meter(self, key_id: str, now: float) -> _Meter:
        meter = remember(self._meters, key_id, self._meters.get(key_id) or _Meter(), _MOST)
        meter.last = now
        return meter


def may_use(prompt: int, max_output: int | None, responses: int = 1) -> Tokens:
    """Return the maximum use of a request for so many responses, or the expected use without an output limit."""
    return Tokens(prompt, min(responses * (max_output or _UNSTATED_OUTPUT), _MOST_OUTPUT))


def prompt_by_size(size: int, *, is_coded: bool = False) -> int:
    """Return the approximate tokens of a body of so many bytes. `is_coded`: True for a content coding."""
    return ceil(size * (_UNPACKED if is_coded else 1) / _BYTES)


def relayed_by_size(prompt: int, response: int, *, is_stream: bool) -> Tokens:
    """Return the approximate tokens of a relayed request and its response by their bytes."""
    if is_stream:
        return Tokens(prompt_by_size(prompt), ceil(response / _STREAMED_BYTES))
    return Tokens(prompt_by_size(prompt), min(_MOST_RELAYED, ceil(response / _BYTES)))


def _estimate(event: RequestEnded) -> Tokens:
    """Return the upper estimate of a response without usage, such as one after a disconnect."""
    prompt = event.tokens_by_size or 0 if event.sent is None else event.sent
    return Tokens(prompt, ceil(event.bytes / (_STREAMED_BYTES if event.stream else _BYTES)))


@dataclass(frozen=True, slots=True)
class Used:
    """The usage of a key, today and in this month in UTC.

    unpriced: responses of this month with an unknown price.
    """

    tokens_today: int
    tokens_month: int
    usd_today: float
    usd_month: float
    unpriced: int


async def used_by(store: Store, key: IssuedKey, now: float) -> Used | None:
    """Return the usage in the store; None if it does not respond."""
    (used,) = await _used_by_each(store, [key], now)
    return used


async def _used_by_each(store: Store, keys: Sequence[IssuedKey], now: float) -> list[Used | None]:
    month, day = _month(now), _day(now)
    used: list[Used | None] = []
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        page = keys[start : start + _KEYS_AT_ONCE]
        counted = await store.count([Increment(place_of(key.id, month), {}, _MONTH_TTL) for key in page])
        used += [None if counters is None else _used(counters, day) for counters in counted]
    return used


def _used(counters: _Counters, day: str) -> Used:
    return Used(
        counters.get(f"{TOKENS}{day}", 0),
        counters.get(TOKENS, 0),
        counters.get(f"{COST}{day}", 0) / _BILLION,
        counters.get(COST, 0) / _BILLION,
        counters.get(UNPRICED, 0),
    )


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A listed key.

    state: active, expired or revoked. created, expires: Unix seconds. used: None if the store did not respond.
    """

    id: str
    tenant: str
    name: str
    state: str
    created: float
    expires: float | None
    limits: KeyLimits
    used: Used | None


async def key_rows(store: Store, keys: Sequence[IssuedKey], now: float) -> list[KeyRow]:
    """Return keys with their usage."""
    used = await _used_by_each(store, keys, now)
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
    """Return the key of counters in a store. It does not reveal the id of the API key."""
    return f"used:{hashlib.sha256(f'used {key_id}'.encode()).hexdigest()[:32]}:{period}"


class _Level(NamedTuple):
    """The use of a limit: billed, and reserved.

    error: returns the refusal.
    """

    limit: float
    used: float
    reserved: float
    text: str
    error: Callable[[], ProxyError]

    @property
    def total(self) -> float:
        return self.used + self.reserved


def _levels(limits: KeyLimits, value: _Value, now: float) -> Iterator[_Level]:
    month, day = _month(now), _day(now)
    reserved = {name: max(0, sum(value(slot, name) for slot in _slots(now))) for name in (TOKENS, COST)}
    for limit, name, counter, period, until in (
        (limits.tokens_per_month, TOKENS, TOKENS, "month", _next_month),
        (limits.tokens_per_day, TOKENS, f"{TOKENS}{day}", "day", _next_day),
        (limits.usd_per_month, COST, COST, "month", _next_month),
        (limits.usd_per_day, COST, f"{COST}{day}", "day", _next_day),
    ):
        if limit is None:
            continue
        unit, scale = ("tokens", 1) if name == TOKENS else ("US dollars", _BILLION)
        text = f"{limit:,} {unit} a {period}"
        error = partial(_spent_error, text, until, now)
        yield _Level(limit * scale, value(month, counter), reserved[name], text, error)
    for limit, counter, unit in (
        (limits.requests_per_minute, REQUESTS, "requests"),
        (limits.tokens_per_minute, TOKENS, "tokens"),
    ):
        if limit is None:
            continue
        text, second = f"{limit:,} {unit} a minute", now % _MINUTE
        counted = value(_minute(now), counter), value(_minute(now - _MINUTE), counter)
        error = partial(_rate_error, text, limit, *counted, second)
        yield _Level(limit, used_lately(*counted, second), reserved.get(counter, 0), text, error)


def _check_limits(limits: KeyLimits, value: _Value, now: float) -> None:
    for level in _levels(limits, value, now):
        if level.used >= level.limit:
            raise level.error()
        if level.total >= level.limit:
            raise LimitReservedError(level.text)


def _has_to_ask(limits: KeyLimits, meter: _Meter, now: float) -> bool:
    """Return True if other replicas may have used the rest of a limit since the last read of the store."""
    levels = [*_levels(limits, meter.value, now)]
    if now - meter.synced > _STALE:
        return True
    return any(
        level.total - synced_level.total > _UNASKED * (synced_level.limit - synced_level.total)
        for level, synced_level in zip(levels, _levels(limits, meter.known, now), strict=True)
    )


def _without(counted: Mapping[str, _Counters], own: Mapping[str, _Counters], period: str, name: str) -> int:
    """Return a counter of the store without the additions of one request."""
    return counted[period].get(name, 0) - own.get(period, {}).get(name, 0)


def _spent_error(text: str, until: Callable[[float], float], now: float) -> ProxyError:
    return BudgetSpentError(text, ceil(until(now) - now))


def _rate_error(text: str, limit: float, current: int, previous: int, second: float) -> ProxyError:
    return KeyRateError(text, seconds_until_room(limit, current, previous, second) or _MINUTE)


def _periods(now: float) -> frozenset[str]:
    """Return the names of all current periods."""
    return frozenset({_month(now), _minute(now), _minute(now - _MINUTE), *_slots(now)})


def _ttl_of(period: str) -> float:
    return {"m": _MINUTE_TTL, "s": _SLOT_TTL}.get(period[0], _MONTH_TTL)


def _slots(now: float) -> tuple[str, str]:
    return _slot(now), _slot(now - _SLOT)


def _slot(now: float) -> str:
    return f"s{int(now) // _SLOT}"


def _month(now: float) -> str:
    return _date(int(now) // _DAY_SECONDS)[0]


def _day(now: float) -> str:
    return _date(int(now) // _DAY_SECONDS)[1]


@lru_cache(4)
def _date(day: int) -> tuple[str, str]:
    """Return month and day of a number of days since 1970, as in counters."""
    date = datetime.fromtimestamp(day * _DAY_SECONDS, UTC)
    return f"{date:%Y-%m}", f"{date:%d}"


def _minute(now: float) -> str:
    return f"m{int(now) // _MINUTE}"


def _next_day(now: float) -> float:
    return (datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0) + _DAY).timestamp()


def _next_month(now: float) -> float:
    today = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (today + 32 * _DAY).replace(day=1).timestamp()
