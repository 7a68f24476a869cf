"""Refusals of prompts that an account has not paid for, by their words and their status."""

from __future__ import annotations

import json

import pytest

from policies.ladder import StatedLimit, is_plausible
from proxy.overflow.entitlements import unentitled_limit

EXTRA = "Extra usage is required for long context requests."


def body(words: str) -> bytes:
    return json.dumps({"type": "error", "error": {"type": "rate_limit_error", "message": words}}).encode()


@pytest.mark.parametrize("status", [403, 429])
def test_the_window_of_every_account_is_what_is_learned_and_its_size_decides(status: int) -> None:
    stated = unentitled_limit(status, body(EXTRA))
    assert stated == StatedLimit(200_000, kind="input", action="inspect")
    assert is_plausible(stated, 230_000, 1_000_000)
    assert is_plausible(stated, 230_000, None)
    assert not is_plausible(stated, 23_000, 1_000_000)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, EXTRA),
        (500, EXTRA),
        (429, "Rate limit reached for long context requests, try again in 20s"),
        (429, "Your usage limit is reached."),
        (403, "Usage of this key is not permitted."),
        (429, ""),
    ],
)
def test_any_other_is_none(status: int, words: str) -> None:
    assert unentitled_limit(status, body(words)) is None


def test_what_a_request_has_said_is_not_read() -> None:
    echoed = {"error": {"message": "Overloaded", "request": {"messages": [{"role": "user", "content": EXTRA}]}}}
    assert unentitled_limit(429, json.dumps(echoed).encode()) is None
