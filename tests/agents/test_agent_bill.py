"""What `benchmarks.agents` bills by: a provider's simulated prompt cache, and the sum of a session's calls."""

from __future__ import annotations

import json

import pytest

from benchmarks.agent_bill import Bill, MarkedCache, PrefixCache
from benchmarks.agent_project import step
from policies.price import Price, Tokens
from tests.support.conversations import Json, count

LONG = "word " * 4_000
MARK: Json = {"cache_control": {"type": "ephemeral"}}
HOUR: Json = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
PRICE = Price(prompt=3.0, completion=15.0, cached=0.3, written=3.75, written_long=6.0)


def block(text: str, mark: Json | None = None) -> Json:
    return {"type": "text", "text": text, **(mark or {})}


def body(*blocks: Json, **more: object) -> Json:
    return {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": [*blocks]}], **more}


def chat(*texts: str) -> Json:
    return {"model": "gpt-5", "messages": [{"role": "user", "content": text} for text in texts]}


def test_a_marked_prefix_is_written_once_and_then_read() -> None:
    cache = MarkedCache(count)
    first = cache.take(body(block(LONG, MARK)))
    assert (first.cached, first.written) == (0, first.prompt)
    second = cache.take(body(block(LONG), block("more", MARK)))
    assert (second.cached, second.written) == (first.prompt, second.prompt - first.prompt)


@pytest.mark.parametrize(("blocks", "is_found"), [(19, True), (20, False)])
def test_a_mark_finds_what_is_kept_within_twenty_blocks(blocks: int, is_found: bool) -> None:
    cache = MarkedCache(count)
    kept = cache.take(body(block(LONG, MARK)))
    new = [block(f"block {number}") for number in range(blocks - 1)]
    found = cache.take(body(block(LONG), *new, block("last", MARK)))
    assert found.cached == (kept.prompt if is_found else 0)


@pytest.mark.parametrize(
    "later",
    [
        body(block(f"{LONG}.", MARK)),
        body(block(LONG, MARK), thinking={"type": "adaptive"}),
        body(block(LONG, MARK), tool_choice={"type": "none"}),
        body(block(LONG, MARK), system="Be brief."),
        body(block(LONG, MARK)) | {"model": "claude-haiku-4-5"},
        body(block(LONG)),
    ],
    ids=["another byte", "thinking", "choice of tools", "system", "model", "no mark"],
)
def test_nothing_is_found_behind_a_change(later: Json) -> None:
    cache = MarkedCache(count)
    cache.take(body(block(LONG, MARK)))
    assert cache.take(later).cached == 0


def test_what_is_kept_for_an_hour_is_told_apart_and_short_prompts_are_not_kept() -> None:
    cache = MarkedCache(count)
    found = cache.take(body(block(LONG, HOUR), block(LONG, MARK), block("unmarked")))
    assert found.written_long > found.written > 0
    assert found.prompt > found.written_long + found.written
    short = cache.take(body(block("short", MARK)))
    assert (short.cached, short.written) == (0, 0)


def test_a_longest_beginning_is_found_by_itself_in_steps_of_128() -> None:
    cache = PrefixCache(count, "messages")
    assert cache.take(chat(LONG)).cached == 0
    assert cache.take(chat("short", LONG)).cached == 0
    sizes = [count(json.dumps(message)) for message in chat(LONG)["messages"]]  # type: ignore[attr-defined]
    assert cache.take(chat(LONG, "more")).cached == sizes[0] // 128 * 128
    changed = cache.take(chat(f"{LONG[:8_000]}!")).cached
    assert 1_900 <= changed <= 2_010, "half of the first message is the same"


def test_a_bill_sums_all_calls_and_counts_breaks_of_the_work_alone() -> None:
    bill = Bill(lambda _: PRICE)
    bill.add("work", "m", Tokens(10_000, 10, 0, 10_000))
    bill.add("work", "m", Tokens(11_000, 10, 10_000, 1_000))
    bill.add("our summary", "m", Tokens(11_500, 100, 11_000))
    bill.add("work", "m", Tokens(6_000, 10, 2_000, 4_000))
    assert bill.breaks == 1
    assert bill.usd("our summary") == pytest.approx(500 * 3.0 + 11_000 * 0.3 + 100 * 15.0)
    assert bill.usd() == pytest.approx(bill.usd("work") + bill.usd("our summary"))
    assert [call.lost for call in bill.calls] == [0, 0, 0, 4_000]


def test_a_model_without_a_price_is_said() -> None:
    bill = Bill(lambda _: None)
    bill.add("work", "m", Tokens(1))
    with pytest.raises(LookupError, match="m has no price"):
        bill.usd()


def test_a_step_depends_on_its_number_alone() -> None:
    assert [step(number) for number in range(1, 50)] == [step(number) for number in range(1, 50)]
    assert {step(number).kind for number in range(1, 11)} == {"read", "edit", "run"}
