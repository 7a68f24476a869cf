"""What is told about a request: the headers of every outcome, and the line in the log."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import json
import os
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.model_server import Fault, ModelServer, answers
from tests.support.scenarios import MODEL, WINDOW, user
from tests.support.stages import (
    CONTENT,
    COUNTED,
    DUE,
    FLOOR,
    LOG_FIELDS,
    MUST,
    SMALL,
    body,
    history,
    ours,
    outcome,
    stage,
)
from tests.support.upstreams import CHAT, JSON, OK_BODY, always, answer, ask, chat, upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.stages import Stage
    from tests.support.upstreams import Reply

KEY = b"ck-of-acme"
KEY_HASH = f"sha256:{hashlib.sha256(KEY).hexdigest()}"
OVERFLOW = answers.error(400, "Too long.", kind="invalid_request_error", code="context_length_exceeded")

pytestmark = pytest.mark.anyio


def check_told(reply: Reply, told: tuple[str, str], *, window: bool = True, checkpoint: bool = False) -> dict[str, str]:
    """The headers of one outcome, as a whole: nothing is missing and nothing else is there."""
    headers = ours(reply)
    names = {"", "reason", "session", "tokens-received", "tokens-sent", "overhead-ms"}
    names |= {"window"} if window else set()
    names |= {"checkpoint", "left-out"} if checkpoint else set()
    assert headers.keys() == names
    assert outcome(reply) == told
    assert headers.get("window", str(WINDOW)) == str(WINDOW)
    assert not checkpoint or re.fullmatch("[0-9a-f]{16}", headers["checkpoint"])
    assert float(headers["overhead-ms"]) > 0
    assert reply.header(b"server-timing") == b"concertina;dur=" + headers["overhead-ms"].encode()
    return headers


@pytest.mark.requirement("R0 2.2 fallback")
async def test_headers_of_requests_that_pass_as_they_came(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        for request, told in (
            (SMALL, ("none", "below_floor")),
            (COUNTED, ("none", "below_floor")),
            (FLOOR, ("none", "below_threshold")),
        ):
            headers = check_told(await play.send(request), told)
            assert headers["tokens-received"] == headers["tokens-sent"]
            assert int(headers["tokens-received"]) == pytest.approx(play.sent[-1].prompt_tokens, rel=0.02, abs=10)
        unknown = body([user(CONTENT)]).replace(MODEL.encode(), b"nobody-knows-this-model")
        check_told(await play.send(unknown), ("none", "unknown_window"), window=False)
        assert [received.body for received in play.sent] == [SMALL, COUNTED, FLOOR, unknown]


@pytest.mark.requirement("R0 2.3", "R0 Phase 3 time", "R1 2.3 before", "R3 3.3 summary", "R3 4.1 stats", "R3 7.2 order")
async def test_headers_of_a_new_checkpoint_and_of_its_reuse(tmp_path: Path) -> None:
    messages = history(0.85)
    async with stage(tmp_path) as play:
        applied = check_told(await play.send(body(messages)), ("applied", "tool_execution"), checkpoint=True)
        messages += [{"role": "assistant", "content": "Done."}, user("Go on.")]
        reused = check_told(await play.send(body(messages)), ("reused", "below_threshold"), checkpoint=True)
        for headers, sent in zip((applied, reused), play.sent, strict=True):
            assert int(headers["tokens-sent"]) < int(headers["tokens-received"])
            assert int(headers["tokens-sent"]) == pytest.approx(sent.prompt_tokens, rel=0.02)
        assert reused["checkpoint"] == applied["checkpoint"]
        assert reused["session"] == applied["session"]
        assert play.model.summary_calls == 1


@pytest.mark.requirement("R1 10", "R3 4.1 suggestion")
async def test_headers_of_a_shadow_run(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        headers = ours(reply := await play.send(DUE, (b"x-compaction", b"shadow")))
        assert re.fullmatch(r"would_compact_\d+_messages", headers["reason"])
        check_told(reply, ("shadow", headers["reason"]))
        check_told(await play.send(FLOOR, (b"x-compaction", b"shadow")), ("shadow", "below_threshold"))
        check_told(await play.send(SMALL, (b"x-compaction", b"shadow")), ("none", "below_floor"))
        check_told(await play.send(DUE), ("applied", "tool_execution"), checkpoint=True)
        check_told(await play.send(DUE, (b"x-compaction", b"shadow")), ("shadow", "would_reuse"))
        assert play.model.summary_calls == 1


async def test_headers_of_a_summary_that_another_replica_is_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.compaction.job.Job.JOIN_WAIT", 0.05)
    shared: dict[str, object] = {"store": {"url": f"sqlite:///{tmp_path}/shared.db", "secret": "s"}}
    model = ModelServer(window=WINDOW, summaries="slow")
    async with stage(tmp_path, model, **shared) as one, stage(tmp_path, **shared) as two:
        making = asyncio.create_task(one.send(DUE))
        while not model.summary_calls:  # noqa: ASYNC110 - the other side of a socket
            await asyncio.sleep(0.01)
        headers = check_told(await two.send(DUE), ("pending", "pending"))
        assert headers["tokens-received"] == headers["tokens-sent"]
        assert two.sent[-1].body == DUE
        model.let_summaries_go.set()
        made = check_told(await making, ("applied", "tool_execution"), checkpoint=True)
        found = check_told(await two.send(DUE), ("reused", "below_threshold"), checkpoint=True)
        assert found["checkpoint"] == made["checkpoint"]
        assert two.sent[-1].body == one.sent[-1].body, "both send the same bytes"


@pytest.mark.requirement("R3 BR-01", "R3 6.1 rollback")
@pytest.mark.parametrize(
    ("summaries", "reason"),
    [("down", "summarizer_transient"), ("refuse", "summarizer_refused"), ("garbage", "summarizer_invalid")],
)
async def test_headers_where_a_summary_fails_that_was_not_owed_yet(tmp_path: Path, summaries: str, reason: str) -> None:
    model = ModelServer(window=WINDOW, summaries=summaries)  # type: ignore[arg-type]
    async with stage(tmp_path, model) as play:
        headers = check_told(await play.send(DUE), ("failed-open", reason))
        assert headers["tokens-received"] == headers["tokens-sent"]
        assert play.sent[-1].body == DUE
        check_told(await play.send(DUE), ("failed-open", "summarizer_cooling_down"))
        check_told(await play.send(MUST), ("applied", "tool_execution"), checkpoint=True)


@pytest.mark.requirement("R1 2.3 before", "R1 2.3 after", "R1 4.6 trigger")
async def test_headers_of_a_request_that_overflowed_all_the_same(tmp_path: Path) -> None:
    async with stage(tmp_path, ModelServer(window=4_000)) as play:
        headers = check_told(await play.send(FLOOR), ("applied", "overflow_retry"), checkpoint=True)
        assert int(headers["tokens-sent"]) < 4_000
        assert [received.status for received in play.sent] == [400, 200]
        assert play.sent[0].body == FLOOR


async def test_an_overflow_that_nothing_solves_is_the_upstreams_own(tmp_path: Path) -> None:
    model = ModelServer(window=WINDOW, script=lambda *_: Fault(OVERFLOW))
    async with stage(tmp_path, model) as play:
        reply = await play.send(FLOOR)
        assert (reply.status, reply.body) == (400, OVERFLOW.chunks[0])
        check_told(reply, ("none", "below_threshold"))


async def test_an_upstreams_error_carries_our_headers_too(tmp_path: Path) -> None:
    broken = answers.error(500, "No.", kind="server_error")
    async with stage(tmp_path, ModelServer(script=lambda *_: Fault(broken))) as play:
        reply = await play.send(SMALL)
        assert (reply.status, reply.body) == (500, broken.chunks[0])
        check_told(reply, ("none", "below_floor"))


async def test_the_upstreams_own_control_headers_are_not_taken_for_ours(tmp_path: Path) -> None:
    liar = answers.plain(200, {"choices": []}, (b"x-compaction", b"applied"), (b"x-compaction-evil", b"1"))
    async with stage(tmp_path, ModelServer(script=lambda *_: Fault(liar))) as play:
        check_told(await play.send(SMALL), ("none", "below_floor"))


async def test_other_paths_are_told_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        reply = await play.send(SMALL, path="/v1/embeddings")
        assert reply.status == 200
        assert ours(reply) == {}
        assert reply.header(b"server-timing") is None


async def test_a_request_is_one_line_of_known_fields(tmp_path: Path) -> None:
    async with stage(tmp_path, tenants={"acme": {"keys": [KEY_HASH], "policy": "coding-agent"}}) as play:
        small = await play.send(SMALL)
        large = await play.send(DUE, (b"authorization", b"Bearer " + KEY))
        await play.send(b'{"input":"x"}', path="/v1/embeddings?key=secret")
        first, second, third = play.logged("request")
    assert first.keys() | second.keys() | third.keys() <= LOG_FIELDS
    assert first.items() >= {
        "level": "info", "event": "request", "end": "complete", "tenant": "default", "policy": "default",
        "upstream": "main", "method": "POST", "path": CHAT, "model": MODEL,
        "status": 200, "bytes": len(small.body), "compaction": "none",
        "reason": "below_floor",
        "tokens_received": int(ours(small)["tokens-received"]), "tokens_sent": int(ours(small)["tokens-sent"]),
        "session": ours(small)["session"],
    }.items()  # fmt: skip
    assert second.items() >= {
        "tenant": "acme", "policy": "coding-agent", "compaction": "applied", "checkpoint": ours(large)["checkpoint"],
        "tokens_received": int(ours(large)["tokens-received"]), "tokens_sent": int(ours(large)["tokens-sent"]),
    }.items()  # fmt: skip
    assert third.keys() == {
        "ts", "level", "event", "at", "end", "tenant", "policy", "method", "path", "route", "id", "status", "ms",
        "first_byte_ms", "overhead_ms", "own_ms", "attempts", "bytes", "upstream",
    }  # fmt: skip
    for line in (first, second, third):
        assert isinstance(line["ms"], float)
        assert isinstance(line["overhead_ms"], float)
        assert 0 <= line["overhead_ms"] <= line["ms"]
        assert line["overhead_ms"] <= line["first_byte_ms"] <= line["ms"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,6}Z", str(line["ts"]))


@asynccontextmanager
async def before(directory: Path, content: bytes) -> AsyncIterator[Stage]:
    """A stage whose upstream always answers with these bytes."""
    async with (
        upstream(always(content)) as behind,
        stage(directory, upstreams={"main": {"base_url": f"{behind.address}/v1"}}) as play,
    ):
        yield play


@pytest.mark.parametrize(
    ("sent", "answered", "logged"),
    [
        (b"client-1", b"upstream-1", ("client-1", "upstream-1")),
        (None, b"req_0123", (None, "req_0123")),
        (b"not fit for a log", b"req_0123", (None, "req_0123")),
        (b"x" * 129, None, (None, None)),
        (None, None, (None, None)),
    ],
)
async def test_a_request_has_an_id_of_ours_beside_those_that_client_and_upstream_gave_it(
    tmp_path: Path, sent: bytes | None, answered: bytes | None, logged: tuple[str | None, str | None]
) -> None:
    told = [] if answered is None else [(b"X-Request-Id", answered)]
    async with before(tmp_path, answer(200, OK_BODY, JSON, *told)) as play:
        reply = await play.send(SMALL, *([] if sent is None else [(b"x-request-id", sent)]))
        (line,) = play.logged("request")
    assert (line.get("client_request_id"), line.get("upstream_request_id")) == logged
    assert str(line["id"]).encode() == reply.header(b"x-concertina-request-id")


async def test_every_answer_tells_its_id_and_no_two_are_alike(tmp_path: Path) -> None:
    bad = (b"x-compaction-policy", b"nobody's")
    async with before(tmp_path, answer(404, b"{}", JSON, (b"x-concertina-request-id", b"of-the-upstream"))) as play:
        replies = [
            await play.send(SMALL),
            await play.send(SMALL, bad),
            await ask(play.address, "GET", "/v1/files/a"),
            await play.send(b"{", path="/v1/compaction/explain"),
        ]
        lines = play.logged("request")
    ids = [[value for name, value in reply.headers if name == b"x-concertina-request-id"] for reply in replies]
    assert ids == [[str(line["id"]).encode()] for line in lines]
    assert len({line["id"] for line in lines}) == len(lines) == 4


async def test_a_model_that_nobody_knows_and_that_did_not_answer_is_not_logged(tmp_path: Path) -> None:
    async with before(tmp_path, answer(404, b"{}", JSON)) as play:
        for model in ("sk-a-key-by-mistake", MODEL, "gpt-4.1"):
            await play.send(chat("a", model=model))
        assert [line.get("model") for line in play.logged("request")] == [None, MODEL, "gpt-4.1"]


async def test_a_path_is_logged_without_its_query(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        await ask(play.address, "GET", "/v1/files/%e4?key=secret")
        await ask(play.address, "GET", "/v1/" + "x" * 1_000)
        assert [line["path"] for line in play.logged("request")] == ["/v1/files/%e4", "/v1/" + "x" * 252]


async def test_only_the_severe_is_logged_when_only_that_is_wanted(tmp_path: Path) -> None:
    async with stage(tmp_path, level="warning") as play:
        await play.send(SMALL)
        assert play.log == []


class FullDisk(io.BytesIO):
    def write(self, _: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_log_that_cannot_be_written_costs_nobody_an_answer(tmp_path: Path) -> None:
    async with stage(tmp_path, log=FullDisk()) as play, asyncio.timeout(30):
        assert (await play.send(SMALL)).status == 200
        assert (await play.send(b"{")).status == 400


async def test_a_line_says_what_was_asked_on_which_way(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        await play.send(SMALL, (b"x-session-id", b"the deploy"))
        await play.send(chat("hi", stream=True), path="/chat/completions")
        await ask(play.address, "GET", "/v1/models/gpt-4o")
        await ask(play.address, "GET", "/v1/files/file-abc")
        lines = play.logged("request")
    told = [(line.get("wire", "relay"), line.get("route"), line.get("stream"), line.get("label")) for line in lines]
    assert told == [
        ("chat", "/v1/chat/completions", False, "the deploy"),
        ("chat", "/v1/chat/completions", True, None),
        ("relay", "/v1/models/*", None, None),
        ("relay", None, None, None),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_line_has_the_tokens_that_the_upstream_billed_however_few(tmp_path: Path, stream: bool) -> None:
    asked = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    async with stage(tmp_path) as play:
        for request in (body([user(CONTENT)], **asked), body(history(0.4), **asked)):
            await play.send(request)
        lines = play.logged("request")
    for line, received in zip(lines, play.sent, strict=True):
        assert line["billed"] == received.prompt_tokens
        assert line["output"] > 0


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        (None, {}),
        ({"prompt_tokens": 90, "completion_tokens": 0}, {"billed": 90, "output": 0}),
        (
            {"prompt_tokens": 90, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 0}},
            {"billed": 90, "cached": 0, "output": 7},
        ),
        (
            {
                "prompt_tokens": 90,
                "completion_tokens": 7,
                "cache_read_input_tokens": 60,
                "cache_creation_input_tokens": 9,
            },
            {"billed": 90, "cached": 60, "cache_written": 9, "output": 7},
        ),
    ],
)
async def test_what_the_upstream_does_not_tell_is_left_out_of_a_line(
    tmp_path: Path, usage: dict[str, object] | None, told: dict[str, int]
) -> None:
    content = json.dumps({"choices": [], "usage": usage}).encode()
    async with before(tmp_path, answer(200, content, JSON)) as play:
        await play.send(SMALL)
        (line,) = play.logged("request")
    assert {name: line[name] for name in ("billed", "cached", "cache_written", "output") if name in line} == told


async def test_a_wait_for_a_summary_is_no_work_of_ours(tmp_path: Path) -> None:
    model = ModelServer(window=WINDOW, summaries="slow")
    async with stage(tmp_path, model) as play:
        await play.send(SMALL)
        making = asyncio.create_task(play.send(DUE))
        while not model.summary_calls:  # noqa: ASYNC110 - the other side of a socket
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        model.let_summaries_go.set()
        await making
        small, waited = play.logged("request")
    assert "wait_ms" not in small
    assert waited["wait_ms"] >= 200
    assert waited["own_ms"] + waited["wait_ms"] == pytest.approx(waited["overhead_ms"], abs=0.1)
    assert small["own_ms"] == small["overhead_ms"]


@pytest.mark.parametrize(
    ("window", "more", "overflow", "attempts"),
    [
        (WINDOW, {}, None, 1),
        (4_000, {}, "solved", 2),
        (4_000, {"retry_on_overflow": 0}, "passed_on", 1),
        (4_000, {"mode": "off"}, "observed", 1),
        (4_000, {"mode": "shadow"}, "observed", 1),
    ],
)
async def test_a_line_says_what_became_of_an_overflow(
    tmp_path: Path, window: int, more: dict[str, object], overflow: str | None, attempts: int
) -> None:
    async with stage(tmp_path, ModelServer(window=window), policies={"default": more}) as play:
        await play.send(FLOOR)
        (line,) = play.logged("request")
    assert (line.get("overflow"), line["attempts"]) == (overflow, attempts)
    assert line["window"] == WINDOW
    assert 0.8 * WINDOW < line["usable"] < WINDOW
    assert line["messages"] == len(history(0.7))


async def test_a_budget_for_summaries_that_is_spent_is_no_failure(tmp_path: Path) -> None:
    async with stage(tmp_path, tenants={"default": {"summary_tokens_per_day": 0}}) as play:
        reply = await play.send(DUE)
    assert (reply.status, outcome(reply)) == (200, ("none", "over_budget"))


async def test_the_line_of_a_request_tells_what_our_own_time_was_spent_on(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        for sent in (SMALL, MUST):
            await play.send(sent)
        await play.settled()
        small, must = play.logged("request")
    assert "stages" not in small
    stages = must["stages"]
    assert isinstance(stages, dict)
    assert list(stages) == ["read", "store", "plan", "rebuild"]
    assert all(spent >= 0 for spent in stages.values())
    assert sum(stages.values()) <= float(str(must["own_ms"])) + 0.1
    assert float(str(must["wait_ms"])) > 0
