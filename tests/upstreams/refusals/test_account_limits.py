"""Refusals of prompts that an account has not paid for, by their words and their status."""

from __future__ import annotations

import json

import pytest

from policies.decision.overflow_retries import StatedLimit, is_plausible
from proxy.upstreams.refusals.account_limits import account_limit
from proxy.upstreams.refusals.output_refusals import most_output

EXTRA = "Extra usage is required for long context requests."


def body(words: str) -> bytes:
    return json.dumps({"type": "error", "error": {"type": "rate_limit_error", "message": words}}).encode()


@pytest.mark.parametrize("status", [403, 429])
@pytest.mark.parametrize(
    "words",
    [
        EXTRA,
        "Extra usage is required for long context requests over 200k tokens",
        "Usage credits are required for long context requests.",
        "Long-context requests require extra usage; turn it on in your settings.",
        "You are out of extra usage. Add more and keep going.",
    ],
)
def test_the_window_of_every_account_is_what_is_learned_and_its_size_decides(status: int, words: str) -> None:
    stated = account_limit(status, body(words))
    assert stated == StatedLimit(200_000, kind="input", action="inspect", from_share=0.9, holds=3600.0)
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
    assert account_limit(status, body(words)) is None


def test_what_a_request_has_said_is_not_read() -> None:
    echoed = {"error": {"message": "Overloaded", "request": {"messages": [{"role": "user", "content": EXTRA}]}}}
    assert account_limit(429, json.dumps(echoed).encode()) is None


TPM = "Request too large for gpt-4o in organization o on tokens per min (TPM): Limit {limit}, Requested {asked}."
MINUTE = (
    "This request would exceed your organization's rate limit of 40,000 input tokens per minute (org: 0, model: m)."
)


def openai(words: str) -> bytes:
    return json.dumps({"error": {"message": words, "type": "tokens", "code": "rate_limit_exceeded"}}).encode()


@pytest.mark.parametrize("status", [200, 413, 429])
def test_what_no_minute_has_room_for_is_a_window(status: int) -> None:
    stated = account_limit(status, openai(TPM.format(limit="30,000", asked="36055")))
    assert stated == StatedLimit(30_000, kind="tier")
    assert account_limit(status, openai(TPM.format(limit="30000", asked="6020"))) is None


@pytest.mark.parametrize(
    "words",
    [
        "Rate limit reached on tokens per min (TPM): Limit 30000, Used 28770, Requested 6020. Try again in 9s.",
        "Requests have exceeded token rate limit of your current S0 pricing tier. Please retry after 86400 seconds.",
        "Too many tokens, please wait before trying again.",
        "Overloaded",
    ],
)
def test_what_passes_with_time_is_none(words: str) -> None:
    assert account_limit(429, openai(words)) is None


def test_a_minute_of_input_is_exceeded_by_a_prompt_that_alone_is_more() -> None:
    stated = account_limit(429, body(MINUTE))
    assert stated is not None
    assert (stated.limit, stated.is_uncached, stated.with_model, stated.learnable) == (40_000, True, False, False)
    assert is_plausible(stated, 41_000, 200_000)
    assert not is_plausible(stated, 39_000, 200_000)


@pytest.mark.parametrize(("value", "limit"), [("125000", 125_000), ("0", None), ("-5", None), ("x", None)])
def test_googles_quotas_are_read_by_their_names(value: str, limit: int | None) -> None:
    quota = {"quotaId": "GenerateContentInputTokensPerModelPerMinute-FreeTier", "quotaValue": value}
    daily = {"quotaId": "GenerateRequestsPerDayPerProjectPerModel", "quotaValue": "50"}
    error = {"code": 429, "message": "You exceeded your current quota.", "details": [{"violations": [daily, quota]}]}
    stated = account_limit(429, json.dumps([{"error": error}]).encode())
    assert (stated and stated.limit) == limit


@pytest.mark.parametrize(("rest", "most"), [("27342", 27_342), ("0", None)])
def test_a_credit_that_reaches_for_a_shorter_answer(rest: str, most: int | None) -> None:
    words = f"This requires more credits, or fewer max_tokens. You requested 32000 tokens, but can only afford {rest}."
    assert most_output(402, openai(words)) == most
    assert most_output(402, openai("Prompt tokens limit exceeded: 64128 > 6964.")) is None
