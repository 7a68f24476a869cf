"""Which source of a window wins, and how replicas share what they have learned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from policies.decision.overflow_retries import StatedLimit
from policies.model_profile import FIRST_TRIAL, LEARNED_TTL
from policies.price import CACHE_TTL, LONG_CACHE_TTL
from proxy.models.table import MAX_NAME, ModelTable, Window
from proxy.models.windows import ASKED_TTL, REFRESH, ModelKey, Windows, session_key
from proxy.sessions.stores import Sealer
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.sealing import SealedStore
from tests.support.clock import Clock
from tests.support.model_tables import ROWS

pytestmark = pytest.mark.anyio

URL = "http://u/v1"
GPT = ModelKey("default", "k", URL, "gpt-4o")
UNHEARD = ModelKey("default", "k", URL, "unheard")
LIMIT = StatedLimit(8_192)


def tokens_of(windows: Windows, configured: int | None) -> int | None:
    window = windows.resolve(UNHEARD, configured)
    return None if window is None else window.tokens


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(tmp_path: Path) -> ModelTable:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(ROWS), encoding="utf-8")
    return ModelTable(path)


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def windows(table: ModelTable, store: MemoryStore, clock: Clock) -> Windows:
    return Windows(table, SealedStore(store, Sealer(None), 600.0), clock)


@pytest.mark.parametrize(
    ("place", "configured", "learned", "asked", "expected"),
    [
        (GPT, None, None, None, Window(128_000, 16_384, "table")),
        (GPT, None, None, 64_000, Window(64_000, 16_384, "asked")),
        (GPT, None, 8_192, 64_000, Window(8_192, 16_384, "learned")),
        (GPT, None, 200_000, None, Window(200_000, 16_384, "learned")),
        (GPT, 50_000, None, 64_000, Window(50_000, 16_384, "policy")),
        (GPT, 50_000, 8_192, None, Window(8_192, 16_384, "learned")),
        (GPT, 50_000, 50_000, None, Window(50_000, 16_384, "policy")),
        (GPT, 50_000, 90_000, None, Window(50_000, 16_384, "policy")),
        (UNHEARD, None, None, None, None),
        (UNHEARD, 4_096, None, None, Window(4_096, None, "policy")),
        (UNHEARD, None, 4_096, None, Window(4_096, None, "learned")),
        (UNHEARD, None, None, 4_096, Window(4_096, None, "asked")),
    ],
)
def test_a_window_is_configured_or_learned_or_asked_or_listed_and_a_refusal_beats_a_promise(
    windows: Windows,
    place: ModelKey,
    configured: int | None,
    learned: int | None,
    asked: int | None,
    expected: Window | None,
) -> None:
    if learned is not None:
        windows.saw_overflow(place, StatedLimit(learned), 1)
    if asked is not None:
        windows.learned_from_upstream(URL, {place.model: asked})
    assert windows.resolve(place, configured) == expected


def test_a_limit_of_the_prompt_alone_is_told_apart(windows: Windows) -> None:
    windows.saw_overflow(GPT, StatedLimit(8_192, kind="input"), 1)
    assert windows.resolve(GPT, None) == Window(8_192, 16_384, "learned", of_prompt=True)


def test_what_upstreams_say_and_what_they_teach_expires(windows: Windows, clock: Clock) -> None:
    windows.learned_from_upstream(URL, {"unheard": 4_096})
    clock.now += ASKED_TTL
    assert windows.resolve(UNHEARD, None) is None
    windows.saw_overflow(UNHEARD, LIMIT, 1)
    clock.now += LEARNED_TTL
    assert windows.resolve(UNHEARD, None) is None


def test_the_cache_of_a_session_is_cold_once_it_was_silent_for_as_long_as_that_holds(
    windows: Windows, clock: Clock
) -> None:
    assert not windows.is_cold(GPT, b"never seen")
    windows.saw_answer(GPT, b"usual", 2_000, 2_000, 10)
    windows.saw_answer(GPT, b"long", 2_000, 2_000, 10, is_held_long=True)
    clock.now += CACHE_TTL - 1
    assert not windows.is_cold(GPT, b"usual")
    windows.saw_answer(GPT, b"long", 2_000, 2_000, 10)
    clock.now += 1
    assert [windows.is_cold(GPT, session) for session in (b"usual", b"long")] == [True, False]
    clock.now += LONG_CACHE_TTL
    assert windows.is_cold(GPT, b"long")


def test_nobody_else_learns_from_it(windows: Windows) -> None:
    windows.saw_overflow(UNHEARD, LIMIT, 1)
    windows.saw_answer(UNHEARD, b"session", 1_000, 2_000, 0)
    for other in (
        structs.replace(UNHEARD, owner="l"),
        structs.replace(UNHEARD, base_url="http://v"),
        structs.replace(UNHEARD, model="x"),
    ):
        assert windows.resolve(other, None) is None
        assert windows.experience(other).calibration == 1.0


async def test_what_one_replica_learned_another_knows(
    table: ModelTable, store: MemoryStore, clock: Clock, windows: Windows
) -> None:
    other = Windows(table, SealedStore(store, Sealer(None), 600.0), clock)
    await other.look_up(UNHEARD)
    windows.saw_overflow(UNHEARD, LIMIT, 1)
    windows.saw_shape(UNHEARD, "ack")
    assert windows.has_news(UNHEARD)
    await windows.share(UNHEARD)
    assert not windows.has_news(UNHEARD)
    await other.look_up(UNHEARD)
    assert other.resolve(UNHEARD, None) is None, "it looked a moment ago"
    clock.now += REFRESH
    await other.look_up(UNHEARD)
    assert other.resolve(UNHEARD, None) == Window(8_192, None, "learned")
    assert other.experience(UNHEARD).shape == "ack"


async def test_own_lessons_are_not_overwritten_before_they_are_told(
    table: ModelTable, store: MemoryStore, clock: Clock, windows: Windows
) -> None:
    other = Windows(table, SealedStore(store, Sealer(None), 600.0), clock)
    other.saw_overflow(UNHEARD, StatedLimit(4_096), 1)
    await other.share(UNHEARD)
    windows.saw_overflow(UNHEARD, LIMIT, 1)
    clock.now += REFRESH
    await windows.look_up(UNHEARD)
    assert windows.resolve(UNHEARD, None) == Window(8_192, None, "learned")


async def test_what_nobody_shared_or_nobody_can_read_leaves_what_is_known(
    store: MemoryStore, clock: Clock, windows: Windows
) -> None:
    windows.saw_overflow(UNHEARD, LIMIT, 1)
    await windows.share(UNHEARD)
    for key in list(store._entries):
        await store.put(key, b"\x00garbage", 100)
    clock.now += REFRESH
    await windows.look_up(UNHEARD)
    assert windows.resolve(UNHEARD, None) == Window(8_192, None, "learned")


def test_memory_is_bounded_and_the_least_recently_taught_goes(table: ModelTable, clock: Clock) -> None:
    windows = Windows(table, SealedStore(MemoryStore(), Sealer(None), 600.0), clock, max_entries=2)
    places = [ModelKey("default", "k", URL, name) for name in "abc"]
    for place in places:
        windows.saw_answer(place, b"session", 1_000, 2_000, 0)
    assert [windows.experience(place).calibration_for(session_key(b"session")) for place in places] == [1.0, 2.0, 2.0]


async def test_a_name_no_model_has_is_not_remembered(windows: Windows) -> None:
    place = ModelKey("default", "k", URL, "m" * (MAX_NAME + 1))
    windows.saw_overflow(place, LIMIT, 1)
    await windows.look_up(place)
    assert windows.resolve(place, None) is None
    assert not windows._known


def test_what_was_refused_without_a_number_wins_over_all_that_promise_more(windows: Windows, clock: Clock) -> None:
    windows.saw_shrunk(GPT, b"s", StatedLimit(), 40_000)
    windows.saw_shrunk(UNHEARD, b"s", StatedLimit(), 40_000)
    assert windows.resolve(GPT, None) == Window(36_000, 16_384, "learned", of_prompt=True)
    assert windows.resolve(GPT, 200_000) == Window(36_000, 16_384, "learned", of_prompt=True)
    assert windows.resolve(GPT, 8_192) == Window(8_192, 16_384, "policy")
    assert windows.resolve(UNHEARD, None) == Window(36_000, None, "learned", of_prompt=True)
    assert windows.sources(GPT, None).learned == 36_000
    clock.now += LEARNED_TTL
    assert windows.resolve(GPT, None) == Window(128_000, 16_384, "table")


def test_an_answer_to_more_lifts_what_was_refused_and_nobody_else_is_held_to_it(windows: Windows) -> None:
    windows.saw_shrunk(GPT, b"s", StatedLimit(), 40_000)
    assert windows.resolve(structs.replace(GPT, owner="another"), None) == Window(128_000, 16_384, "table")
    windows.saw_answer(GPT, b"s", 50_000, 50_000, 10)
    assert windows.resolve(GPT, None) == Window(128_000, 16_384, "table")


def test_the_session_that_overflowed_is_known_at_that_place_alone(windows: Windows) -> None:
    windows.saw_shrunk(GPT, b"s", StatedLimit(), 40_000)
    assert windows.has_overflowed(GPT, lambda: b"s")
    assert not windows.has_overflowed(GPT, lambda: b"another")
    assert not windows.has_overflowed(UNHEARD, lambda: b"s")


def test_a_configured_window_is_tried_again_minutes_after_a_smaller_one_was_learned(
    windows: Windows, clock: Clock
) -> None:
    windows.saw_overflow(UNHEARD, StatedLimit(132), 27_000)
    assert tokens_of(windows, 128_000) == 132
    clock.now += FIRST_TRIAL
    assert tokens_of(windows, 128_000) == 128_000
    windows.saw_overflow(UNHEARD, StatedLimit(132), 27_000)
    clock.now += FIRST_TRIAL
    assert tokens_of(windows, 128_000) == 132
    clock.now += FIRST_TRIAL
    assert tokens_of(windows, 128_000) == 128_000
    windows.saw_answer(UNHEARD, b"s", 27_000, 27_000, 100)
    clock.now += 1
    assert tokens_of(windows, 128_000) == 128_000


def test_a_learned_window_that_nothing_else_is_known_beside_holds(windows: Windows, clock: Clock) -> None:
    windows.saw_overflow(UNHEARD, StatedLimit(4_096), 5_000)
    clock.now += FIRST_TRIAL
    assert tokens_of(windows, None) == 4_096


def test_a_whim_that_named_no_number_holds_up_a_configured_window_for_minutes(windows: Windows, clock: Clock) -> None:
    windows.saw_shrunk(UNHEARD, b"s", StatedLimit(), 146)
    assert tokens_of(windows, 128_000) == 131
    clock.now += FIRST_TRIAL
    assert tokens_of(windows, 128_000) == 128_000
