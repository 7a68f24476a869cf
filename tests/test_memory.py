"""Caches share one bound, and what was used longest ago goes first."""

from __future__ import annotations

import sys
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from proxy.memory import Cache, Memory

ENTRY = 200


def test_the_entry_that_was_used_longest_ago_goes_first_whichever_cache_has_it() -> None:
    memory = Memory(3 * (100 + ENTRY))
    one, other = Cache[str, int](memory, "one"), Cache[str, int](memory, "other")
    one.keep("a", 1, 100)
    other.keep("a", 2, 100)
    one.keep("b", 3, 100)
    assert one.get("a") == 1
    other.keep("b", 4, 100)
    assert (one.get("a"), other.get("a"), one.get("b"), other.get("b")) == (1, None, 3, 4)
    assert memory.held_bytes == {"one": 600, "other": 300}


def test_a_cache_tells_its_own_entries_and_forgets_one() -> None:
    memory = Memory()
    one, other = Cache[str, int](memory, "one"), Cache[str, int](memory, "other")
    one.keep("a", 1, 100)
    other.keep("a", 2, 100)
    one.keep("b", 3, 100)
    assert (one.get("a"), one.items()) == (1, [("b", 3), ("a", 1)])
    one.drop("a")
    one.drop("a")
    assert [one.get("a"), other.get("a")] == [None, 2]
    assert memory.held_bytes == {"one": 300, "other": 300}


def test_a_lower_bound_holds_at_once() -> None:
    memory = Memory()
    cache = Cache[int, str](memory, "one")
    for number in range(10):
        cache.keep(number, "x", 800)
    memory.most = 3_000
    assert [number for number in range(10) if cache.get(number)] == [7, 8, 9]
    memory.most = 0
    assert cache.keep(11, "kept by nobody", 1) == "kept by nobody"
    assert (cache.get(11), memory.held_bytes) == (None, {"one": 0})


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 900), st.booleans())))
def test_it_is_what_a_list_of_the_newest_would_be(steps: list[tuple[str, int, int, bool]]) -> None:
    memory = Memory(2_500)
    caches = {name: Cache[int, int](memory, name) for name in "ab"}
    known: OrderedDict[tuple[str, int], int] = OrderedDict()
    for name, key, size, is_asked in steps:
        if is_asked:
            assert caches[name].get(key) == known.get((name, key))
            if (name, key) in known:
                known.move_to_end((name, key))
            continue
        caches[name].keep(key, size, size)
        known.pop((name, key), None)
        known[name, key] = size
        while sum(known.values()) + ENTRY * len(known) > 2_500:
            known.popitem(last=False)
        assert sum(memory.held_bytes.values()) == sum(known.values()) + ENTRY * len(known)


def test_threads_may_use_a_full_memory_together() -> None:
    memory = Memory(20 * (100 + ENTRY))
    cache = Cache[int, int](memory, "one")

    def use(seed: int) -> None:
        numbers = Random(seed)
        for _ in range(20_000):
            key = numbers.randrange(40)
            cache.keep(key, key, numbers.randrange(100))
            assert cache.get(numbers.randrange(40)) in (None, *range(40))
            cache.drop(numbers.randrange(40))
            cache.items()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(use, range(4)))
    finally:
        sys.setswitchinterval(interval)
    for key in range(40):
        cache.drop(key)
    assert memory.held_bytes == {"one": 0}
