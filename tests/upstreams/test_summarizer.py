"""One call to a summarizer: what is sent, what its answers mean, when it is tried again and when left alone."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from policies.record.prompting import Prompt
from policies.record.validation import SummaryAnswer
from proxy.config.settings import Upstream
from proxy.dialects.table import CHAT
from proxy.models.windows import ModelKey
from proxy.upstreams.http import UpstreamClient
from proxy.upstreams.routes import SummaryTarget
from proxy.upstreams.summarizer import FormRefusedError, Summarizer, SummarizerError, SummarizerOverflowError
from tests.support.clock import Clock
from tests.support.servers import reserve_port
from tests.support.upstreams import JSON, Call, Script, answer, head, in_turn, upstream, value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.support.upstreams import Upstream as Scripted

pytestmark = pytest.mark.anyio

PROMPT = Prompt("You keep records.", "<transcript>…</transcript>")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.upstreams.summarizer._PAUSE", 0.0)


def ignored(_: object) -> None:
    """Nobody is told of events here."""


def completion(content: object, finish: str | None = "stop", **message: object) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    return answer(200, json.dumps({"choices": [choice]}).encode(), JSON)


def error(status: int, *headers: tuple[bytes, bytes]) -> bytes:
    return answer(status, b'{"error":{"message":"no","code":null}}', JSON, *headers)


def target_at(address: str) -> SummaryTarget:
    return SummaryTarget(
        dialect=CHAT,
        place=ModelKey("default", "caller", f"{address}/v1", "small"),
        name="main",
        upstream=Upstream.model_validate({"base_url": f"{address}/v1", "idle_timeout": 5}),
        headers=[(b"authorization", b"Bearer k")],
        encoding="o200k_base",
        window=None,
        calibration=1.0,
        output_key="max_tokens",
        temperature=None,
    )


async def asked(script: Script) -> tuple[SummaryAnswer | Exception, Scripted]:
    """What one question came to, and the upstream that was asked."""
    async with upstream(script) as behind, UpstreamClient() as client:
        try:
            result: SummaryAnswer | Exception = await Summarizer(client, Clock(0.0), ignored).ask(
                target_at(behind.address), PROMPT, 400
            )
        except (SummarizerError, SummarizerOverflowError) as failure:
            result = failure
        return result, behind


@pytest.mark.requirement("R1 4.2 model")
async def test_the_prompt_is_sent_as_an_ordinary_completion_under_the_targets_credential() -> None:
    _, behind = await asked(in_turn(completion("done")))
    [call] = behind.calls
    assert (call.method, call.target) == ("POST", "/v1/chat/completions")
    assert json.loads(call.body) == {
        "model": "small",
        "messages": [
            {"role": "system", "content": "You keep records."},
            {"role": "user", "content": "<transcript>…</transcript>"},
        ],
        "max_tokens": 400,
    }
    assert call.header(b"authorization") == b"Bearer k"
    assert call.header(b"content-type") == b"application/json"
    assert call.header(b"x-concertina-hop") == b"1"
    assert call.header(b"accept-encoding") is None


@pytest.mark.requirement("R1 4.1 temperature")
async def test_the_output_key_and_the_temperature_are_the_targets() -> None:
    async with upstream(in_turn(completion("done"))) as behind, UpstreamClient() as client:
        target = replace(target_at(behind.address), output_key="max_completion_tokens", temperature=0.2)
        await Summarizer(client, Clock(0.0), ignored).ask(target, PROMPT, 7)
    sent = json.loads(behind.calls[0].body)
    assert (sent["max_completion_tokens"], sent["temperature"], "max_tokens" in sent) == (7, 0.2, False)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (completion("done"), SummaryAnswer("done", "stop")),
        (completion("cut", "length"), SummaryAnswer("cut", "length")),
        (completion("no reason", None), SummaryAnswer("no reason", None)),
        (completion(None), SummaryAnswer("", "stop")),
        (completion(["parts"]), SummaryAnswer("", "stop")),
        (completion("", "tool_calls", tool_calls=[{"id": "c"}]), SummaryAnswer("", "tool_calls", tool_calls=True)),
    ],
)
async def test_an_answer_is_taken_as_the_wire_has_it(reply: bytes, expected: SummaryAnswer) -> None:
    result, behind = await asked(in_turn(reply))
    assert result == expected
    assert len(behind.calls) == 1


async def cut_off(call: Call) -> None:
    await call.read()
    await call.send(head(200, JSON, (b"Content-Length", b"100")) + b'{"choices"')
    call.close()


async def hang_up(call: Call) -> None:
    await call.read()
    call.close()


@pytest.mark.parametrize(
    ("script", "kind", "calls", "reason"),
    [
        (in_turn(error(500)), "transient", 2, "5xx is tried again once"),
        (in_turn(error(529)), "transient", 2, "overloaded"),
        (in_turn(error(408)), "transient", 2, "timed out there"),
        (in_turn(error(409)), "transient", 2, "a conflict"),
        (in_turn(error(429)), "transient", 2, "a rate limit that says nothing"),
        (in_turn(error(429, (b"Retry-After", b"0"))), "transient", 2, "a rate limit that is over"),
        (in_turn(error(429, (b"Retry-After", b"30"))), "transient", 1, "a rate limit that asks for patience"),
        (in_turn(error(503, (b"retry-after", b"Wed, 21 Oct 2026 07:28:00 GMT"))), "transient", 1, "a date"),
        (in_turn(answer(200, b"{}", JSON)), "transient", 2, "no completion"),
        (in_turn(answer(200, b'{"choices":[]}', JSON)), "transient", 2, "no choice"),
        (in_turn(answer(200, b'{"choices":[{"message":"hi"}]}', JSON)), "transient", 2, "no message"),
        (in_turn(answer(200, b"<html>", JSON)), "transient", 2, "no JSON"),
        (in_turn(answer(200, b"[" * 100_000, JSON)), "transient", 2, "JSON too deep to be read"),
        (in_turn(answer(200, b'{"choices":[{"message":{"content":"\xff"}}]}', JSON)), "transient", 2, "no UTF-8"),
        (cut_off, "transient", 2, "cut off"),
        (hang_up, "transient", 2, "closed before it responded"),
        (in_turn(error(401)), "refused", 1, "the credential does not do"),
        (in_turn(error(400)), "refused", 1, "the request does not do"),
        (in_turn(answer(302, b"", (b"Location", b"http://127.0.0.1:1/"))), "refused", 1, "redirects are not followed"),
        (in_turn(answer(200, b"x" * 1_100_000, JSON)), "refused", 1, "larger than any summary"),
        (
            in_turn(answer(200, gzip.compress(b"{}"), JSON, (b"Content-Encoding", b"gzip"))),
            "refused",
            1,
            "compressed, which was not asked for",
        ),
    ],
)
async def test_trouble_that_passes_is_tried_again_once_and_nothing_else(
    script: Script, kind: str, calls: int, reason: str
) -> None:
    result, behind = await asked(script)
    assert isinstance(result, SummarizerError), reason
    assert (result.kind, len(behind.calls)) == (kind, calls), reason


async def test_the_second_try_may_succeed() -> None:
    result, behind = await asked(in_turn(error(500), completion("done")))
    assert result == SummaryAnswer("done", "stop")
    assert len(behind.calls) == 2


async def test_nobody_listening_is_trouble_that_passes() -> None:
    async with UpstreamClient() as client:
        with pytest.raises(SummarizerError) as caught:
            await Summarizer(client, Clock(0.0), ignored).ask(
                target_at(f"http://127.0.0.1:{reserve_port()}"), PROMPT, 4
            )
    assert caught.value.kind == "transient"


@pytest.mark.parametrize(
    ("status", "code", "message", "limit"),
    [
        (400, "context_length_exceeded", "This model's maximum context length is 4096 tokens.", 4096),
        (400, None, "prompt is too long: 9000 tokens > 8192 maximum", 8192),
        (500, "context_length_exceeded", "", None),
    ],
)
async def test_an_overflow_is_told_with_its_limit_and_never_tried_again(
    status: int, code: str | None, message: str, limit: int | None
) -> None:
    body = json.dumps({"error": {"message": message, "code": code}}).encode()
    result, behind = await asked(in_turn(answer(status, body, JSON)))
    assert isinstance(result, SummarizerOverflowError)
    assert (result.stated.limit, len(behind.calls)) == (limit, 1)


async def test_an_answer_that_never_comes_ends_with_the_callers_patience() -> None:
    async def think(call: Call) -> None:
        await call.read()
        await call.gone()

    async with upstream(think) as behind, UpstreamClient() as client:
        asking = asyncio.create_task(Summarizer(client, Clock(0.0), ignored).ask(target_at(behind.address), PROMPT, 4))
        async with asyncio.timeout(30):
            while not behind.calls:  # noqa: ASYNC110 - the other side of a socket sets no event here
                await asyncio.sleep(0)
            asking.cancel()
            await behind.calls[0].closed.wait()
    assert asking.cancelled()


async def cooled(script: Script, use: Callable[[Summarizer, SummaryTarget, Clock], Awaitable[None]]) -> Scripted:
    async with upstream(script) as behind, UpstreamClient() as client:
        clock = Clock(0.0)
        await use(Summarizer(client, clock, ignored), target_at(behind.address), clock)
        return behind


async def failing(summarizer: Summarizer, target: SummaryTarget) -> str:
    with pytest.raises(SummarizerError) as caught:
        await summarizer.ask(target, PROMPT, 4)
    return caught.value.kind


async def test_every_failure_in_a_row_makes_the_pause_longer() -> None:
    async def use(summarizer: Summarizer, target: SummaryTarget, clock: Clock) -> None:
        for pause in (60.0, 300.0, 900.0, 900.0):
            assert await failing(summarizer, target) == "transient"
            clock.now += pause - 1
            assert await failing(summarizer, target) == "cooling_down"
            clock.now += 1

    behind = await cooled(in_turn(error(500)), use)
    assert len(behind.calls) == 2 * 4


def test_questions_behind_a_sessions_prompt_pause_by_themselves_and_for_longer() -> None:
    clock, target = Clock(0.0), target_at("http://127.0.0.1:9")
    summarizer = Summarizer(UpstreamClient(), clock, ignored)
    for pause in (300.0, 900.0, 900.0):
        summarizer.note_failure(target, "invalid", is_aligned=True)
        clock.now += pause - 1
        assert summarizer.is_cooling_down(target, is_aligned=True)
        assert not summarizer.is_cooling_down(target)
        clock.now += 1
        assert not summarizer.is_cooling_down(target, is_aligned=True)


async def test_an_unusable_answer_pauses_for_less() -> None:
    async def use(summarizer: Summarizer, target: SummaryTarget, clock: Clock) -> None:
        summarizer.note_failure(target, "invalid")
        clock.now = 29.9
        assert await failing(summarizer, target) == "cooling_down"
        clock.now = 30.0
        assert (await summarizer.ask(target, PROMPT, 4)).text == "done"

    await cooled(in_turn(completion("done")), use)


async def test_a_success_forgets_the_failures() -> None:
    async def use(summarizer: Summarizer, target: SummaryTarget, clock: Clock) -> None:
        summarizer.note_failure(target, "transient")
        summarizer.note_success(target)
        assert (await summarizer.ask(target, PROMPT, 4)).text == "done"

    await cooled(in_turn(completion("done")), use)


@pytest.mark.parametrize("change", [{"owner": "another"}, {"model": "another"}])
async def test_one_callers_failures_and_one_models_do_not_pause_another(change: dict[str, str]) -> None:
    async def use(summarizer: Summarizer, target: SummaryTarget, clock: Clock) -> None:
        summarizer.note_failure(target, "refused")
        assert (
            await summarizer.ask(replace(target, place=structs.replace(target.place, **change)), PROMPT, 4)
        ).text == "done"

    await cooled(in_turn(completion("done")), use)


def test_headers_are_found_whatever_their_case() -> None:
    assert value([(b"Retry-After", b"1")], b"retry-after") == b"1"


async def test_a_form_that_is_refused_is_no_trouble_that_passes_and_is_not_tried_again() -> None:
    report = json.dumps({"error": {"message": "Conversation roles must alternate user/assistant."}}).encode()
    result, behind = await asked(in_turn(answer(500, report, JSON)))
    assert isinstance(result, FormRefusedError)
    assert len(behind.calls) == 1


def test_a_form_that_was_refused_behind_a_sessions_prompt_is_remembered_for_a_day() -> None:
    clock, target = Clock(0.0), target_at("http://127.0.0.1:9")
    summarizer = Summarizer(UpstreamClient(), clock, ignored)
    summarizer.note_failure(target, "invalid", is_aligned=True, of_form=True)
    clock.now += 24 * 3600 - 1
    assert summarizer.is_cooling_down(target, is_aligned=True)
    assert not summarizer.is_cooling_down(target)
    clock.now += 1
    assert not summarizer.is_cooling_down(target, is_aligned=True)
