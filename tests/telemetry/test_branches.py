"""Branches of a session, by the prefixes of its requests."""

from __future__ import annotations

from hashlib import sha256

import pytest

from proxy.telemetry.branches import PREFIX_DIGITS, Branch, find_branches
from proxy.telemetry.history_entries import RequestEntry, make_request_entry
from tests.support.session_events import AT, requested


def entry(at: float, messages: str, *, window: int = 8) -> RequestEntry:
    """A request whose messages are one letter each."""
    digests = [sha256(messages[:end].encode()).hexdigest()[:PREFIX_DIGITS] for end in range(len(messages), -1, -1)]
    fields = {"messages": len(messages), "prefixes": "".join(digests[:window]), "tokens_received": 10 * len(messages)}
    return make_request_entry(requested(at=AT + at, **fields))


def branches_of(*requests: str, window: int = 8) -> list[Branch]:
    return find_branches(entry(at, messages, window=window) for at, messages in enumerate(requests))


def shape(found: list[Branch]) -> list[tuple[int, int | None, int, int | None, int]]:
    return [(each.number, each.parent, each.depth, each.parted, each.requests) for each in found]


@pytest.mark.parametrize(
    ("requests", "shown"),
    [
        ((), []),
        (("abc", "abcde", "abcde", "abcdefg"), [(1, None, 0, None, 4)]),
        (("abc", "abcde", "abcxy"), [(1, None, 0, None, 2), (2, 1, 1, 3, 1)]),
        (("abc", "abcde", "abcx", "abcdef", "abcxy"), [(1, None, 0, None, 3), (2, 1, 1, 3, 2)]),
        (("abc", "abcd", "abcx", "abcxy", "abcxz"), [(1, None, 0, None, 2), (2, 1, 1, 3, 2), (3, 2, 2, 4, 1)]),
        (("abc", "abcdefghijklmnop"), [(1, None, 0, None, 2)]),
        (("abcdefghijkl", "xbcdef"), [(1, None, 0, None, 1), (2, 1, 1, None, 1)]),
    ],
)
def test_a_request_that_does_not_go_on_from_the_newest_begins_a_branch(
    requests: tuple[str, ...], shown: list[tuple[int, int | None, int, int | None, int]]
) -> None:
    assert shape(branches_of(*requests)) == shown


def test_a_branch_has_the_figures_of_its_newest_request() -> None:
    first, second = branches_of("abc", "abcde", "abcx", "abcdefg")
    assert (first.messages, first.tokens, first.began, first.seen) == (7, 70, AT, AT + 3)
    assert (second.messages, second.tokens, second.began, second.seen) == (4, 40, AT + 2, AT + 2)


def test_requests_without_prefixes_are_of_no_branch() -> None:
    assert find_branches([make_request_entry(requested())]) == []
