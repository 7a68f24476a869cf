"""An account without extra usage has a window of 200,000 tokens, whatever the model takes: learned for it alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from proxy.dialects.base import Usage
from proxy.dialects.table import MESSAGES
from tests.support.dialects import PLAIN, WRITERS, Entry, Writer, model, path_of, request_body, user
from tests.support.scenarios import prose
from tests.support.upstreams import JSON, Call, Header, Script, answer, ask, proxied

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

WITHOUT_MODEL = {"default": {"extends": "default", "summarizer": {"model": "none"}}}
CLAUDE = "claude-opus-4-6"
NARROW, WIDE = (b"x-api-key", b"sk-ant-narrow"), (b"x-api-key", b"sk-ant-wide")
WINDOW = 200_000


def long_history(turns: int) -> list[Entry]:
    """About 11,000 tokens a turn."""
    return [entry for at in range(turns) for entry in (user(prose(at, 5_000)), model(prose(-at - 1, 5_000)))]


def body_of(writer: Writer, history: list[Entry]) -> bytes:
    items = [item for entry in [*history, user("Go on.")] for item in writer.items(entry, PLAIN)]
    fields = {**writer.fields(), "model": CLAUDE}
    return json.dumps(request_body(writer.dialect, "You code.", items, fields)).encode()


def refusing(writer: Writer, status: int, words: str, above: int = WINDOW) -> Script:
    async def script(call: Call) -> None:
        tokens = len(await call.read()) // 5
        if tokens > above and call.header(b"x-api-key") == NARROW[1]:
            error = {"type": "error", "error": {"type": "rate_limit_error", "message": words}}
            await call.send(answer(status, json.dumps(error).encode(), JSON))
        else:
            await call.send(answer(200, writer.answer("Fine.", Usage(tokens, 10)), JSON))

    return script


HISTORY = long_history(22)
EXTRA = "Extra usage is required for long context requests."


# Further words are those of tests/upstreams/refusals/test_account_limits.py.
REFUSALS = ((429, EXTRA), (403, "Long-context requests require extra usage; turn it on in your settings."))


# All refusals in the API of the provider that has such windows, and one in the others.
@pytest.mark.parametrize(
    ("writer", "status", "words"),
    [
        *((writer, *refusal) for writer in WRITERS if writer.dialect is MESSAGES for refusal in REFUSALS),
        *((writer, *REFUSALS[0]) for writer in WRITERS if writer.dialect is not MESSAGES),
    ],
    ids=lambda value: value.dialect.name if hasattr(value, "dialect") else str(value),
)
async def test_a_long_prompt_without_the_entitlement_is_compacted_once_and_known_from_then_on(
    tmp_path: Path, writer: Writer, status: int, words: str
) -> None:
    async with proxied(tmp_path, refusing(writer, status, words), policies=WITHOUT_MODEL) as (address, behind):

        async def sent(history: list[Entry], key: Header) -> tuple[int, int, bytes | None]:
            behind.calls.clear()
            reply = await ask(address, "POST", path_of(writer.dialect), [JSON, key], body_of(writer, history))
            return reply.status, len(behind.calls), reply.header(b"x-compaction")

        assert await sent(HISTORY, NARROW) == (200, 2, b"applied")
        assert await sent([*HISTORY, *long_history(1)], NARROW) == (200, 1, b"reused")
        # Nobody else is held to it.
        assert await sent(HISTORY, WIDE) == (200, 1, b"none")


@pytest.mark.parametrize(
    ("status", "words", "turns"),
    [
        (429, EXTRA, 2),
        (429, "You are out of extra usage. Add more and keep going.", 2),
        (429, "This request would exceed your rate limit of 400,000 input tokens per minute.", 22),
        (429, "Number of requests has exceeded your per-minute rate limit.", 22),
        (403, "Your API key does not have permission to use the specified resource.", 22),
        (400, "The long context beta is not yet available for this subscription.", 22),
        (429, "Your credit balance is too low. Extra usage can be bought in the settings.", 22),
    ],
    ids=["small", "out of it, small", "tokens a minute", "requests", "permission", "a header", "credits"],
)
async def test_the_same_words_to_a_small_prompt_and_any_other_refusal_are_passed_on(
    tmp_path: Path, status: int, words: str, turns: int
) -> None:
    writer = WRITERS[-1]
    script = refusing(writer, status, words, above=0)
    async with proxied(tmp_path, script, policies=WITHOUT_MODEL) as (address, behind):
        body = body_of(writer, long_history(turns))
        reply = await ask(address, "POST", path_of(writer.dialect), [JSON, NARROW], body)
    assert (reply.status, len(behind.calls)) == (status, 1)
    assert words.encode() in reply.body
