"""Conversations that are too long for their window, and upstreams that summarize or refuse them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from policies.record.texts import texts_for
from tests.support.conversations import Json
from tests.support.upstreams import CHAT, JSON, OK_BODY, Call, Header, Reply, answer, ask

if TYPE_CHECKING:
    from tests.support.upstreams import Upstream


def _turns(times: int) -> list[Json]:
    return [
        {"role": role, "content": f"{number} " + "some words of a long conversation " * times}
        for number in range(12)
        for role in ("user", "assistant")
    ]


SMALL_WINDOW = {"models": [{"match": "*", "context_window": 20_000}]}
LIMIT = 16_385
"""Tokens; the window that `refused` states."""
TURNS = _turns(110)
SHORT_TURNS = _turns(60)
LONG = json.dumps({"model": "m", "messages": [*TURNS, {"role": "user", "content": "and now?"}]}).encode()
RECORD = "\n\n".join(
    f"## {heading}\nSomething was said about it, and more was said later." for heading in texts_for("en").headings
)
SUMMARY = json.dumps({"choices": [{"message": {"content": RECORD}, "finish_reason": "stop"}]}).encode()


def is_summary(call: Call) -> bool:
    return b"<transcript>" in call.body or b"Stop the work here" in call.body


async def summarizing(call: Call) -> None:
    await call.read()
    await call.send(answer(200, SUMMARY if is_summary(call) else OK_BODY, JSON))


def bearer(name: str) -> Header:
    return b"Authorization", b"Bearer " + name.encode()


def summaries(behind: Upstream) -> int:
    return sum(is_summary(call) for call in behind.calls)


async def sent(address: str, *headers: Header) -> Reply:
    reply = await ask(address, "POST", CHAT, [JSON, *headers], LONG)
    assert reply.status == 200
    return reply


async def outcome(address: str, *headers: Header) -> bytes | None:
    return (await sent(address, *headers)).header(b"x-compaction")


def long_request(**more: object) -> bytes:
    return json.dumps({"model": "m", "messages": [*SHORT_TURNS, {"role": "user", "content": "now?"}], **more}).encode()


def refused(prompt: int, output: int) -> bytes:
    message = (
        f"This model's maximum context length is {LIMIT} tokens. However, you requested {prompt + output} tokens"
        f" ({prompt} in the messages, {output} in the completion). Please reduce the length of the messages."
    )
    return answer(400, json.dumps({"error": {"message": message, "code": "context_length_exceeded"}}).encode(), JSON)
