"""Prompts that need more than one request: a restart in between, a smaller model, a record that would not pay."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.support.model_server import Fault, ModelServer
from tests.support.scenarios import MODEL, WINDOW
from tests.support.stages import Stage, body, history, stage

pytestmark = pytest.mark.anyio

WORDS = "We keep the port of the staging server where it is, and look at the log."


async def outcome(play: Stage, request: bytes, *headers: tuple[bytes, bytes]) -> tuple[str, str]:
    reply = await play.send(request, *headers)
    told = {name.lower(): value.decode() for name, value in reply.headers}
    assert reply.status == 200
    return told[b"x-compaction"], told[b"x-compaction-reason"]


@pytest.mark.requirement("R4 3.2 C2")
async def test_a_process_that_starts_anew_goes_on_with_the_checkpoint_of_a_grown_history(tmp_path: Path) -> None:
    shared: dict[str, object] = {"store": {"url": f"sqlite:///{tmp_path}/shared.db"}}
    model = ModelServer(window=WINDOW)
    async with stage(tmp_path, model, **shared) as play:
        assert await outcome(play, body(history(0.85))) == ("applied", "tool_execution")
    async with stage(tmp_path, model, **shared) as play:
        assert await outcome(play, body(history(0.95))) == ("reused", "below_threshold")
    assert model.summary_calls == 1


async def test_a_checkpoint_made_for_a_large_model_serves_a_small_one(tmp_path: Path) -> None:
    models = [{"match": "small", "context_window": WINDOW // 2}, {"match": MODEL, "context_window": WINDOW}]
    model = ModelServer(window=WINDOW, windows={"small": WINDOW // 2})
    async with stage(tmp_path, model, models=models) as play:
        assert (await outcome(play, body(history(0.85))))[0] == "applied"
        switched = body(history(0.9)).replace(MODEL.encode(), b"small")
        assert (await outcome(play, switched))[0] in ("applied", "reused")
        assert model.defects == 0


async def test_a_forced_record_that_would_weigh_more_than_what_it_covers_is_not_used(tmp_path: Path) -> None:
    async with stage(tmp_path, policies={"default": {"summarizer": {"model": "none"}}}) as play:
        short = body([{"role": role, "content": "hi"} for _ in range(6) for role in ("user", "assistant")])
        assert await outcome(play, short, (b"x-compaction", b"force")) == ("none", "no_gain")
        assert play.sent[-1].body == short


async def test_a_forced_compaction_that_gained_nothing_is_not_paid_again_until_the_history_has_grown(
    tmp_path: Path,
) -> None:
    forced = (b"x-compaction", b"force")
    messages = [{"role": role, "content": WORDS} for _ in range(6) for role in ("user", "assistant")]
    async with stage(tmp_path) as play:
        for _ in range(3):
            assert await outcome(play, body(messages), forced) == ("none", "no_gain")
        assert play.model.summary_calls == 1
        assert await outcome(play, body([*messages, *messages, *messages, *messages]), forced) == ("applied", "manual")
    assert play.model.summary_calls == 2


async def test_a_retry_that_cannot_reach_the_upstream_leaves_its_first_answer(tmp_path: Path) -> None:
    model = ModelServer(window=4_000, script=lambda number, _: Fault(cut_after=0) if number else None)
    async with stage(tmp_path, model, policies={"default": {"summarizer": {"model": "none"}}}) as play:
        reply = await play.send(body(history(0.7)))
        assert (reply.status, b"context_length_exceeded" in reply.body) == (400, True)
        assert len(play.sent) == 2


async def test_a_key_that_was_for_us_is_not_sent_on_beside_the_one_for_the_upstream(tmp_path: Path) -> None:
    key = "ck-of-acme"
    tenants = {"acme": {"keys": [f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"]}}
    own, theirs = (b"x-api-key", key.encode()), (b"authorization", b"Bearer sk-of-the-upstream")
    async with stage(tmp_path, tenants=tenants) as play:
        for path in ("/v1/chat/completions", "/v1/embeddings"):
            assert (await play.send(body([{"role": "user", "content": "hi"}]), own, theirs, path=path)).status == 200
            headers = play.model.received[-1].headers
            assert theirs in headers
            assert key.encode() not in [value for _, value in headers]
        assert [line["tenant"] for line in play.logged("request")] == ["acme", "acme"]
