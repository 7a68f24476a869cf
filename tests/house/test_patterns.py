"""Every compiled pattern takes time in proportion to its text, whatever that is: nobody can steer it into more.

Patterns are timed when they have changed: TIMED lists the digests of those that passed. `python -m
tests.house.test_patterns` times all of them and writes it anew.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import re
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import policies
import proxy

pytestmark = pytest.mark.slow

# The patterns of the first see what we bundle; the others have none, and one loads a package of 700,000 lines.
_LEFT_OUT = ("proxy.cli.demo", "proxy.__main__", "proxy.upstreams.litellm.client")
_SIGNS = [*"/ \n\t-_aA<[({\\\"'`019f中,.:=|~#*$&@é。，“", "\r\n", "\x1b[", "\x1b]", "\\u", "\\ud800"]
_WORDS = [
    "../",
    "a/",
    "a.",
    "a-",
    "a ",
    "1.",
    "1,",
    "1 ",
    "-a",
    "a@",
    "a:",
    "a, ",
    "a=",
    "://",
    "http://a",
    "x" * 7 + "1",
]
_TEXTS = ["[a](", "&lt;", "<a ", "</a", "<|a", '"a":', "端口", "不要", "not ", "never ", "the ", "from a ", "1 tokens "]
PUMPS = [*_SIGNS, *_WORDS, *_TEXTS]
# In front of a pump, so that a repetition in the middle of a pattern is reached; and behind it, so that it fails.
FRONTS = ("", "a ", "- ", '"', "<", "[1")
END = "\x00!"
# And for those of bytes, which read JSON, a text that is not closed.
UNCLOSED = f'{END}"'
SHORT, LONG = 1_000, 4_000
# Seconds of CPU: what takes less for a long text is quick enough; what takes more for a very short one cannot be.
_QUICK, _ENDLESS = 0.01, 0.05
_VERY_SHORT = 250
# Seconds of CPU after which a pattern is tried less.
_PATIENCE = 4.0
# A long text may take this many times as long as a short one: four if that is linear, sixteen if it is quadratic.
_MOST = 9
# Holds a number that each process chooses, so that it is timed each time.
_RANDOM = "proxy.dialects.skeleton._stand_ins"
TIMED = Path(__file__).with_name("timed_patterns.txt")


def patterns_of(value: object, seen: set[int], depth: int = 0) -> Iterator[re.Pattern[str] | re.Pattern[bytes]]:
    """Every pattern in a module's value, however deep in tables, objects and bound methods."""
    if id(value) in seen or depth > 6:
        return
    seen.add(id(value))
    if isinstance(value, re.Pattern):
        yield value
        return
    parts: list[object] = [getattr(value, "__self__", None)]
    if isinstance(value, Mapping):
        parts += [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts += value
    elif type(value).__module__.split(".")[0] in ("policies", "proxy"):
        names = [*getattr(type(value), "__slots__", ()), *getattr(value, "__dict__", ())]
        parts += [getattr(value, name, None) for name in names]
    for part in parts:
        yield from patterns_of(part, seen, depth + 1)


@cache
def all_patterns() -> dict[str, re.Pattern[str] | re.Pattern[bytes]]:
    """Every pattern of the two packages, by its module and name."""
    found: dict[str, re.Pattern[str] | re.Pattern[bytes]] = {}
    seen: set[int] = set()
    for package in (policies, proxy):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(_LEFT_OUT):
                for name, value in vars(importlib.import_module(module.name)).items():
                    for number, pattern in enumerate(patterns_of(value, seen)):
                        found[f"{module.name}.{name}{f'[{number}]' if number else ''}"] = pattern
    return found


def pumps_for(pattern: re.Pattern[str] | re.Pattern[bytes]) -> Iterator[str]:
    """What is repeated: signs and words of all kinds, and the pattern's own."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    own = dict.fromkeys(re.findall(r"(?<!\\)[A-Za-z]{2,}|[\u4e00-\u9fff]{1,4}", source))
    yield from PUMPS
    yield from (f"{word} " for word in [*own][:12])


def seconds(pattern: re.Pattern[str] | re.Pattern[bytes], text: str) -> float:
    started = time.process_time()
    if isinstance(pattern.pattern, str):
        for _ in pattern.finditer(text):  # type: ignore[arg-type]
            pass
    else:
        for _ in pattern.finditer(text.encode("utf-8")):  # type: ignore[arg-type]
            pass
    return time.process_time() - started


def ends_for(pattern: re.Pattern[str] | re.Pattern[bytes]) -> tuple[str, ...]:
    return (END,) if isinstance(pattern.pattern, str) else (END, UNCLOSED)


def growth(pattern: re.Pattern[str] | re.Pattern[bytes], front: str, pump: str, end: str) -> float:
    """How many times as long a long text takes; 0 where it takes next to nothing."""
    very_short, short, long = (pumped(front, pump, size) + end for size in (_VERY_SHORT, SHORT, LONG))
    if seconds(pattern, very_short) > _ENDLESS and seconds(pattern, very_short) > _ENDLESS:
        return float("inf")
    if seconds(pattern, short) < _ENDLESS and seconds(pattern, long) < _QUICK:
        return 0.0
    times = min(seconds(pattern, long) for _ in range(3)) / min(seconds(pattern, short) for _ in range(3))
    return times if times > _MOST else 0.0


@cache
def pumped(front: str, pump: str, size: int) -> str:
    return front + (pump * size)[:size]


def test_there_are_patterns_of_every_kind() -> None:
    names = set(all_patterns())
    assert len(names) > 150
    assert {
        "policies.conversation.transcript._TAG",
        "policies.tool_calls.reasons._VERDICT",
        "proxy.dialects.json_array._openings",
    } <= names


def digest_of(pattern: re.Pattern[str] | re.Pattern[bytes]) -> str:
    """Of the pattern, its flags, and what it is timed with."""
    ends = ends_for(pattern)[1:]
    timed = (pattern.pattern, pattern.flags, PUMPS, FRONTS, *ends)
    return hashlib.sha256(repr(timed).encode()).hexdigest()[:16]


def untimed() -> list[str]:
    listed = {*TIMED.read_text("ascii").split()}
    return [name for name, pattern in all_patterns().items() if digest_of(pattern) not in listed]


def check(pattern: re.Pattern[str] | re.Pattern[bytes]) -> None:
    started = time.process_time()
    for pump in pumps_for(pattern):
        # What takes its time though in proportion is tried behind fewer fronts.
        for front in FRONTS if time.process_time() - started < _PATIENCE else FRONTS[:1]:
            for end in ends_for(pattern):
                assert not growth(pattern, front, pump, end), (pattern.pattern, front, pump, end)


@pytest.mark.parametrize("name", untimed())
def test_no_text_takes_a_pattern_more_than_its_length(name: str) -> None:
    check(all_patterns()[name])


def test_what_is_listed_as_timed_is_in_the_code() -> None:
    assert {*TIMED.read_text("ascii").split()} <= {*map(digest_of, all_patterns().values())}


def test_a_pattern_that_takes_more_is_found() -> None:
    for pattern in (re.compile(r"(?:a )+!"), re.compile(rb'(?:[^",]++|"[^"]*+")*+(?:,|\Z)')):
        with pytest.raises(AssertionError):
            check(pattern)


if __name__ == "__main__":
    for one in all_patterns().values():
        check(one)
    listed = {digest_of(pattern) for name, pattern in all_patterns().items() if name != _RANDOM}
    TIMED.write_text("".join(f"{digest}\n" for digest in sorted(listed)), "ascii")
