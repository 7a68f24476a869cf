"""What log, tallies and metrics tell of a session is the same, and what the model server counted."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import msgspec
import pytest

from proxy.dialects.table import dialect_named
from proxy.telemetry import figures
from proxy.telemetry.tally import Tally, total
from tests.support.dialects import path_of
from tests.support.model_server import WINDOW, ModelServer
from tests.support.servers import serve
from tests.support.stages import stage
from tests.support.story_requests import story_requests
from tests.support.upstreams import ask

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.stages import Stage

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

BEARER = (b"authorization", b"Bearer " + b"t" * 16)
SUMS = {
    "received_tokens": "received",
    "sent_tokens": "sent",
    "billed_input_tokens": "billed",
    "cached_input_tokens": "cached",
    "output_tokens": "output",
    "kept_alive": "kept_alive",
    "summary_input_tokens": "summary_in",
    "summary_output_tokens": "summary_out",
}


async def scraped(play: Stage) -> dict[str, float]:
    """Each counter of the paper's sums, over all of its series."""
    text = (await ask(play.address, "GET", "/metrics", [BEARER])).body.decode()
    found = dict.fromkeys(SUMS.values(), 0.0)
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        field = SUMS.get(name.partition("{")[0].removeprefix("concertina_").removesuffix("_total"))
        if field is not None:
            found[field] += float(value)
    return found


def summed(play: Stage) -> dict[str, float]:
    """The same by the log's lines alone."""
    lines = [line for line in play.logged("request") if line["wire"] != "relay"]
    made = play.logged("compaction")

    def real(line: dict[str, object], field: str) -> int:
        return round(float(str(line[field])) * float(str(line.get("calibration", 1))))

    return {
        "received": sum(real(line, "tokens_received") for line in lines),
        "sent": sum(real(line, "tokens_sent") for line in lines),
        **{field: sum(int(str(line.get(field, 0))) for line in lines) for field in ("billed", "cached", "output")},
        "kept_alive": sum(real(line, "tokens_received") > int(str(line["window"])) for line in lines),
        "summary_in": sum(int(str(line.get("tokens_in", 0))) for line in made),
        "summary_out": sum(int(str(line.get("tokens_out", 0))) for line in made),
    }


def tallied(play: Stage) -> Tally:
    assert play._app._opened is not None
    return total(tally for _, tally in play._app._opened.engine.tallies.of())


async def kept(play: Stage, replicas: int) -> dict[str, object]:
    """The figures of a day as all replicas tell them, of which so many are there."""
    found = json.loads((await ask(play.address, "GET", "/admin/api/overview", [BEARER])).body)
    assert found["is_whole"]
    there = json.loads((await ask(play.address, "GET", "/admin/api/replicas", [BEARER])).body)["replicas"]
    assert len(there) == replicas
    figures: dict[str, object] = found["figures"]
    return figures


async def followed(play: Stage) -> dict[str, object]:
    """The sums of the session as its page tells them, and how many requests it draws."""
    (listed,) = json.loads((await ask(play.address, "GET", "/admin/api/sessions", [BEARER])).body)["sessions"]
    found = json.loads((await ask(play.address, "GET", f"/admin/api/sessions/{listed['id'][:16]}", [BEARER])).body)
    assert found["is_whole"]
    return {**found["tally"], "points": len(found["points"]), "records": found["row"]["compactions"]}


async def too_large(requests: list[bytes], path: str, share: float) -> int:
    """How many of the requests take more than this share of the window, by the model server's own count."""
    counting = ModelServer(window=10 * WINDOW)
    async with serve(counting) as address:
        for body in requests:
            await ask(address, "POST", path, [(b"content-type", b"application/json")], body)
    return sum(received.prompt_tokens > share * WINDOW for received in counting.received)


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
async def test_a_session_is_told_alike_everywhere_and_as_it_was_billed(tmp_path: Path, dialect: str) -> None:
    requests, path = story_requests(dialect), path_of(dialect_named(dialect))
    models = [{"match": "*", "context_window": WINDOW, "encoding": "o200k_base"}]
    async with AsyncExitStack() as opened:
        model = ModelServer()
        shared = {
            "store": {"url": f"sqlite:///{tmp_path}/shared.db", "secret": "s"},
            "server": {"admin_token": "t" * 16},
        }
        stages = [stage(tmp_path, model, models=models, **shared) for _ in range(3)]
        first = await opened.enter_async_context(AsyncExitStack())
        plays = [await first.enter_async_context(stages[0]), await opened.enter_async_context(stages[1])]
        for number, body in enumerate(requests):
            reply = await plays[number % 2].send(body, path=path)
            assert reply.status == 200
            await plays[number % 2].settled()
        told = [await scraped(play) for play in plays]
        sums, tallies = [summed(play) for play in plays], [tallied(play) for play in plays]
        for play in plays:
            assert play._app._opened is not None
            await play._app._opened.figures.write()
            assert play._app._opened.stored_histories is not None
            await play._app._opened.stored_histories.write()
        days = [await kept(plays[0], 2), await kept(plays[1], 2)]
        views = [await followed(play) for play in plays]
        await first.aclose()
        fresh = await opened.enter_async_context(stages[2])
        days += [await kept(plays[1], 2), await kept(fresh, 2)]
        views += [await followed(plays[1]), await followed(fresh)]
    assert told == sums
    assert told == [{field: getattr(tally, field) for field in SUMS.values()} for tally in tallies]
    whole = total(tallies)
    shown = {
        "requests": whole.requests,
        "answered": whole.answered,
        "kept_alive": whole.kept_alive,
        "received": whole.received,
        "not_sent": figures.not_sent(whole),
        "summaries": figures.summaries(whole),
        "net": figures.net(whole),
    }
    assert [{name: day[name] for name in shown} for day in days] == [shown] * 4
    records = sum(line.get("digest") is not None for play in plays for line in play.logged("compaction"))
    expected = {**msgspec.to_builtins(whole), "points": len(requests), "records": records}
    assert views == [expected] * 4
    answered = [received for received in model.received if received.status == 200]
    assert whole.billed == sum(received.prompt_tokens for received in answered if not received.is_summary)
    assert whole.summary_in == sum(received.prompt_tokens for received in answered if received.is_summary)
    assert whole.summary_calls == model.summary_calls
    assert whole.sent == pytest.approx(whole.billed, rel=0.02)
    assert (whole.requests, whole.answered, whole.unbilled) == (len(requests), len(requests), 0)
    # What is this near to the window is one side of it by our estimate, and may be the other by theirs.
    assert await too_large(requests, path, 1.02) <= whole.kept_alive <= await too_large(requests, path, 0.98)
    assert whole.passed_on == 0
    assert figures.not_sent(whole) == whole.received - whole.sent > 0
