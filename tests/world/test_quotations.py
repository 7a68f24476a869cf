"""A user's message that comes back to what a summary covers brings it along: in every dialect, the same for good."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from proxy.dialects.reader import CountedRequest
from tests.support.conversations import Json
from tests.support.dialects import PLAIN, WRITERS, Style, model, user
from tests.support.scenarios import WINDOW, prose
from tests.support.worlds import prefix_reuse, world

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from policies.conversation.transcript import Utterance
    from tests.support.dialects import Entry, Writer
    from tests.support.worlds import History, World

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
in_each = pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)

FACT = "The spare key of the boathouse hangs behind the third oar."
QUESTION = "Where does the spare key of the boathouse hang?"
NO_MODEL = {"summarizer": {"model": "none"}}


def chat(exchanges: int) -> list[Entry | Json]:
    """Small talk, and in the middle of its first third one answer that says something."""
    said: list[Entry | Json] = [user("Let us plan the summer.")]
    for number in range(exchanges):
        said.append(model(FACT if number == 6 else prose(("model", number), 120)))
        said.append(user(f"Go on with part {number}, please. {prose(('user', number), 25)}"))
    return said


def quoted(play: World) -> list[str]:
    """What the last request quotes, by the lines of its quotations."""
    found = re.findall(r"<recalled>(.*?)</recalled>", play.sent[-1].texts, re.DOTALL)
    return [line for block in found for line in block.split("\\n") if line.startswith("- [")]


async def asked(play: World, history: History, style: Style = PLAIN, *, replica: int = 0) -> None:
    reply = await play.post(play.body(history, style), replica=replica)
    assert reply.status == 200
    assert play.provider.invalid == []
    assert play.model.defects == 0


@in_each
@pytest.mark.parametrize("style", [PLAIN, Style(parts=True)], ids=["texts", "parts"])
async def test_a_question_about_what_is_covered_is_sent_with_what_was_said(
    tmp_path: Path, writer: Writer, style: Style
) -> None:
    history = [*chat(40), model("Fine."), user(QUESTION)]
    async with world(tmp_path, writer, policies={"default": NO_MODEL}) as play:
        await asked(play, history, style)
        assert any(FACT in line for line in quoted(play))
        said = json.dumps(play.sent[-1].items[-1], ensure_ascii=False)
        assert said.index("<recalled>") < said.index(QUESTION)


@in_each
@pytest.mark.parametrize("style", [PLAIN, Style(parts=True)], ids=["texts", "parts"])
async def test_behind_a_quotation_stands_what_the_client_wrote_halves_of_emoji_too(
    tmp_path: Path, writer: Writer, style: Style
) -> None:
    half = f"{QUESTION} \udc4d"
    async with world(tmp_path, writer, policies={"default": NO_MODEL}) as play:
        await asked(play, [*chat(40), model("Fine."), user(half)], style)
        said = json.dumps(play.sent[-1].items[-1])
        assert said.index("<recalled>") < said.index(json.dumps(half)[1:-1])


@in_each
async def test_it_stays_as_it_is_whatever_comes_later_and_on_every_replica(tmp_path: Path, writer: Writer) -> None:
    history = [*chat(40), model("Fine."), user(QUESTION)]
    async with world(tmp_path, writer, policies={"default": NO_MODEL}, replicas=2) as play:
        await asked(play, history)
        for number in range(4):
            history += [model(f"Answer {number}: {FACT}"), user(f"What about the boathouse key, part {number}?")]
            await asked(play, history, replica=number % 2)
            before, now = play.sent[-2].items, play.sent[-1].items
            assert now[: len(before)] == before
            assert any(FACT in line for line in quoted(play))
        assert prefix_reuse(play.sent) == 1
        await asked(play, history, replica=0)
        assert play.sent[-1].items == play.sent[-2].items


@pytest.mark.parametrize(("mode", "outcome"), [("shadow", "shadow"), ("on", "reused")])
async def test_what_shadow_mode_would_quote_counts_as_nothing(tmp_path: Path, mode: str, outcome: str) -> None:
    history = [*chat(40), model("Fine."), user("Go on with the next part, please.")]
    async with world(tmp_path, WRITERS[0], policies={"default": NO_MODEL}) as play:
        await asked(play, history)
        history += [model("Fine."), user(QUESTION)]
        reply = await play.post(play.body(history), headers={"x-compaction": mode})
        assert reply.headers["x-compaction"] == outcome
        assert bool(quoted(play)) is (mode == "on")
        assert ("concertina_recalled_total{" in await play.metrics()) is (mode == "on")


@in_each
@pytest.mark.parametrize(
    ("question", "recall"),
    [(QUESTION, "off"), ("Go on with the next part, please.", "quote"), (QUESTION, {"budget_ratio": 0})],
)
async def test_nothing_is_quoted_that_nobody_asks_for(
    tmp_path: Path, writer: Writer, question: str, recall: object
) -> None:
    history = [*chat(40), model("Fine."), user(question)]
    async with world(tmp_path, writer, policies={"default": {**NO_MODEL, "recall": recall}}) as play:
        await asked(play, history)
        assert quoted(play) == []
        assert play.sent[-1].items[-1] == play.items(history)[-1]


@in_each
async def test_what_had_its_answer_before_the_summary_is_not_quoted(tmp_path: Path, writer: Writer) -> None:
    history = [*chat(36), model("Fine."), user(QUESTION), model("Behind an oar."), user("Go on, please.")]
    async with world(tmp_path, writer, policies={"default": NO_MODEL}) as play:
        await asked(play, history)
        assert QUESTION in play.sent[-1].texts
        assert quoted(play) == []


@in_each
async def test_the_tokens_of_quotations_count(tmp_path: Path, writer: Writer) -> None:
    history = [*chat(40), model("Fine."), user(QUESTION)]
    async with world(tmp_path, writer, policies={"default": NO_MODEL}) as play:
        await asked(play, history)
        sent = int(play.replies[-1].headers["x-compaction-tokens-sent"])
    async with world(tmp_path, writer, policies={"default": {**NO_MODEL, "recall": "off"}}) as play:
        await asked(play, history)
        without = int(play.replies[-1].headers["x-compaction-tokens-sent"])
    assert 20 < sent - without < 0.1 * WINDOW


@in_each
async def test_explain_and_metrics_say_what_is_quoted(tmp_path: Path, writer: Writer) -> None:
    history = [*chat(40), model("Fine."), user(QUESTION)]
    async with world(tmp_path, writer, policies={"default": NO_MODEL}) as play:
        await asked(play, history)
        body = play.body(history)
        await play.post(body, path=("compaction", "explain"))
        explained: Json = json.loads(play.replies[-1].body)
        (recalled,) = explained["recalled"]
        last = explained["messages"][-1]
        assert recalled["index"] == last["index"]
        assert last["fate"] == "kept"
        assert last["tokens_after"] - last["tokens"] == recalled["tokens"] > 0
        assert f"{recalled['passages']} quotations" in last["why"]
        metrics = await play.metrics()
        assert re.search(r'concertina_recalled_total{.*tenant="default",upstream="main"} 1.0', metrics)


async def test_a_warm_request_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every message that is kept: those of the requests before were read for them."""
    read: list[int] = []
    utterances = CountedRequest._utterances

    def count(request: CountedRequest, position: int, tools: Sequence[str | None]) -> list[Utterance]:
        read.append(position)
        return utterances(request, position, tools)

    history = [*chat(40), model("Fine.")]
    async with world(tmp_path, WRITERS[0], policies={"default": NO_MODEL}) as play:
        await asked(play, history)
        monkeypatch.setattr(CountedRequest, "_utterances", count)
        counts: list[int] = []
        for number in range(30):
            history += [user(f"And what about part {number}?"), model(f"Part {number} is fine.")]
            read.clear()
            await asked(play, history[:-1])
            counts.append(len(set(read)))
    assert counts[-1] <= counts[5] + 5
