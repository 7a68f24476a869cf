"""Requests that are held to be looked at: of whom they were asked for, few, small, and not for long."""

from __future__ import annotations

import pytest

from proxy.observing.captures import Captures
from proxy.observing.session_trails import Key
from tests.support.clock import Clock

KEY = Key("default", "0123456789abcdef", "work")
OTHERS = [Key("acme", *KEY[1:]), KEY._replace(id="f" * 16), KEY._replace(label="")]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_next_request_is_held_and_no_other(clock: Clock) -> None:
    captures = Captures(clock)
    captures.take(KEY, "chat", b"before")
    assert captures.of(KEY) is None
    captures.ask(KEY)
    assert captures.is_awaited(*KEY)
    assert not any(captures.is_awaited(*other) for other in OTHERS)
    for other in OTHERS:
        captures.take(other, "chat", b"of another session")
    clock.now += 10
    captures.take(KEY, "messages", b"next")
    captures.take(KEY, "messages", b"the one after")
    found = captures.of(KEY)
    assert found is not None
    assert (found.at, found.wire, found.body, found.size) == (1_010.0, "messages", b"next", 4)
    assert not captures.is_awaited(*KEY)
    assert all(captures.of(other) is None for other in OTHERS)


def test_it_is_forgotten_after_a_quarter_of_an_hour(clock: Clock) -> None:
    captures = Captures(clock)
    captures.ask(KEY)
    clock.now += 899
    captures.take(KEY, "chat", b"next")
    clock.now += 899
    assert captures.of(KEY) is not None
    clock.now += 1
    captures.forget_old()
    assert not captures._known
    captures.ask(KEY)
    clock.now += 900
    captures.take(KEY, "chat", b"late")
    assert captures.of(KEY) is None
    assert not captures.is_awaited(*KEY)


def test_four_are_held_and_of_four_megabytes_each(clock: Clock) -> None:
    captures = Captures(clock)
    keys = [KEY._replace(label=str(number)) for number in range(5)]
    for key in keys:
        captures.ask(key)
    assert [captures.is_awaited(*key) for key in keys] == [False, True, True, True, True]
    captures.take(keys[1], "chat", b"x" * 4_000_000)
    captures.take(keys[2], "chat", b"x" * 4_000_001)
    held = [captures.of(key) for key in keys]
    assert [capture and capture.size for capture in held] == [None, 4_000_000, 4_000_001, 0, 0]
    assert [bool(capture and capture.body) for capture in held] == [False, True, False, False, False]


def test_of_an_erased_session_nothing_is_held(clock: Clock) -> None:
    captures = Captures(clock)
    captures.ask(KEY)
    captures.forget(*OTHERS[0][:2], KEY.label.__eq__)
    assert captures.of(KEY) is not None
    captures.forget(*KEY[:2], KEY.label.__eq__)
    captures.take(KEY, "chat", b"next")
    assert captures.of(KEY) is None
