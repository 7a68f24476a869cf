"""A compaction that pays is made in the background, and used from the next request on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policies.price import CACHE_TTL
from proxy.models.windows import Windows
from proxy.sessions.lineages import Lineages
from tests.support.model_server import ModelServer
from tests.support.scenarios import MODEL, WINDOW, Agent, one_user
from tests.support.stages import B, Stage, body, history, made, ours, outcome, stage, until

pytestmark = pytest.mark.anyio
# Due within a few requests of a small window, well below the threshold.
EARLY: dict[str, object] = {"default": {"economy": 0.4, "economy_from": 0.5}}


async def test_it_is_used_from_the_next_request_on_and_does_not_give_way(tmp_path: Path) -> None:
    async with stage(tmp_path, policies=EARLY) as play:
        assert outcome(await play.send(body(history(0.7)))) == ("none", "below_threshold")
        await play.settled()
        assert made(play) == [("economy", "single")]
        for share in (0.72, 0.75, 0.85):
            reply = await play.send(body(history(share)))
            assert outcome(reply) == ("reused", "below_threshold")
            assert int(ours(reply)["tokens-sent"]) < 0.65 * B
        assert play.model.summary_calls == 1


async def test_log_and_explanation_say_what_was_read_and_how_often_that_paid_for_it(tmp_path: Path) -> None:
    async with stage(tmp_path, policies=EARLY) as play:
        asked = body(history(0.7))
        reply = await play.send(asked, path="/v1/compaction/explain")
        told = json.loads(reply.body)["reading"]
        assert told["read"] > 0
        assert told["paid"] >= told["due"] == 0.4
        await play.send(asked)
        await play.settled()
        (line,) = play.logged("compaction")
        assert (line["trigger"], line["threshold"], line["read_by"]) == ("economy", 0.5, told["read_by"])
        assert line["read"] == pytest.approx(told["read"], rel=0.2)
        assert line["paid"] >= 0.4  # type: ignore[operator]


async def test_no_request_waits_for_it(tmp_path: Path) -> None:
    model = ModelServer(window=WINDOW, summaries="slow")
    async with stage(tmp_path, model, policies=EARLY) as play:
        await play.send(body(history(0.7)))
        await until(lambda: model.summary_calls == 1)
        for share in (0.72, 0.75, 0.77):
            assert outcome(await play.send(body(history(share)))) == ("none", "below_threshold")
        model.let_summaries_go.set()
        await play.settled()
        assert outcome(await play.send(body(history(0.77)))) == ("reused", "below_threshold")
        assert model.summary_calls == 1


@pytest.mark.parametrize(
    ("policy", "model"),
    [({"economy": 0}, MODEL), ({}, "of-our-own"), ({"summarizer": {"model": "none"}}, MODEL)],
    ids=["not wanted", "no price is known", "no model summarizes"],
)
async def test_none_is_made_without_a_reason(tmp_path: Path, policy: dict[str, object], model: str) -> None:
    policies = {"default": {"economy": 0.05, "economy_from": 0.5, **policy}}
    models = [{"match": "*", "context_window": WINDOW}]
    async with stage(tmp_path, policies=policies, models=models) as play:
        await play.send(body(history(0.6)).replace(MODEL.encode(), model.encode()))
        await play.settled()
        assert made(play) == []


@pytest.mark.parametrize(("cached", "triggers"), [(0, []), (400, ["economy"])])
async def test_seconds_take_the_place_of_the_price(tmp_path: Path, cached: int, triggers: list[str]) -> None:
    seconds = {"prefill": 400, "decode": 20_000, "cached": cached}
    models = [{"match": MODEL, "context_window": WINDOW, "seconds_per_million": seconds}]
    policies = {"default": {"economy": 0.05, "economy_from": 0.5}}
    async with stage(tmp_path, policies=policies, models=models) as play:
        await play.send(body(history(0.65)))
        await play.settled()
        assert [trigger for trigger, _ in made(play)] == triggers


async def sent_by(plays: list[Stage]) -> tuple[list[object], list[object]]:
    """Send a growing session to the replicas in turns; return what went upstream, and which outcomes were told."""
    outcomes, arrays = list[object](), list[object]()
    for number, request in enumerate(one_user(Agent(words=60), rounds=90)):
        play = plays[number % len(plays)]
        outcomes.append(outcome(await play.send(body(request))))
        arrays.append(json.loads(play.sent[-1].body)["messages"])
        for each in plays:
            await each.settled()
    return arrays, outcomes


async def test_two_replicas_over_one_store_decide_as_one_does(tmp_path: Path) -> None:
    def shared(name: str) -> dict[str, object]:
        return {"store": {"url": f"sqlite:///{tmp_path}/{name}.db", "secret": "s"}, "policies": EARLY}

    async with stage(tmp_path, **shared("alone")) as play:
        alone = await sent_by([play])
        triggers = [trigger for trigger, _ in made(play)]
    assert triggers.count("economy") >= 2
    async with stage(tmp_path, **shared("both")) as one, stage(tmp_path, **shared("both")) as other:
        together = await sent_by([one, other])
        assert one.model.summary_calls + other.model.summary_calls == len(triggers)
    assert together[1] == alone[1]
    assert [len(array) for array in together[0]] == [len(array) for array in alone[0]]


class Later:
    """A clock that can be put forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by = 0.0
        for kind in (Windows, Lineages):
            begin = kind.__init__

            def opened(
                self: object, *given: object, _begin: object = begin, _later: Later = self, **named: object
            ) -> None:
                _begin(self, *given, **named)  # type: ignore[operator]
                clock = self._clock  # type: ignore[attr-defined]
                self._clock = lambda: clock() + _later.by  # type: ignore[attr-defined]

            monkeypatch.setattr(kind, "__init__", opened)


LATE: dict[str, object] = {"default": {"economy": 0}}


async def test_a_record_that_stands_ready_is_used_once_the_cache_is_cold_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later(monkeypatch)
    async with stage(tmp_path, policies=LATE) as play:
        await play.send(body(history(0.72)))
        await play.settled()
        assert made(play) == [("background", "single")]
        later.by += CACHE_TTL - 30
        assert outcome(await play.send(body(history(0.73))))[0] == "none"
        await play.settled()
        later.by += CACHE_TTL + 1
        for share in (0.74, 0.75, 0.76):
            assert outcome(await play.send(body(history(share)))) == ("reused", "below_threshold")
            await play.settled()
        assert play.model.summary_calls == 1


async def test_a_record_in_use_since_the_cache_was_cold_is_used_by_every_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later(monkeypatch)
    shared: dict[str, object] = {
        "store": {"url": f"sqlite:///{tmp_path}/both.db", "secret": "s"},
        "policies": LATE,
    }
    async with stage(tmp_path, **shared) as one, stage(tmp_path, **shared) as other:
        for play in (one, other):
            await play.send(body(history(0.72)))
            await play.settled()
        later.by += CACHE_TTL + 1
        for play, share in ((one, 0.73), (other, 0.74), (one, 0.75)):
            assert outcome(await play.send(body(history(share))))[0] == "reused"
            await play.settled()
        assert one.model.summary_calls + other.model.summary_calls == 1
