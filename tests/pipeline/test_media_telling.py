"""What is told of pictures and papers: in the log, in figures, on the pages; and lessons that are taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from proxy.admin import words
from proxy.compaction.explain.explanation import MediaLeftOut
from proxy.telemetry.message_fates import SentMessage, pack
from tests.support.model_server import ModelServer
from tests.support.pictures import FORMS, Limit, picture, pictures_in
from tests.support.stages import outcome, stage
from tests.support.upstreams import ask

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.conversations import Json
    from tests.support.stages import Stage

pytestmark = pytest.mark.anyio

SIZE = 5_000
FORM = FORMS["messages, tool"]
TASK: Json = {"role": "user", "content": "Click until the light is green."}
SETTINGS: dict[str, object] = {
    "models": [{"match": "pictures", "context_window": 10_000_000}],
    "server": {"admin_token": "t" * 32},
}


def session(rounds: int) -> list[Json]:
    return [TASK, *(item for number in range(rounds) for item in FORM.round_of(picture(number, SIZE), number))]


async def seen(play: Stage, path: str) -> str:
    reply = await ask(
        play.address, "GET", path, [(b"authorization", b"Bearer " + b"t" * 32), (b"accept", b"text/html")]
    )
    assert reply.status == 200, reply.body
    return reply.body.decode()


async def test_the_log_and_the_figures_tell_of_media(tmp_path: Path) -> None:
    limit = Limit(400, "Exceeded maximum number of images (15)", pictures=15)
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        for _ in range(2):
            await play.send(FORM.body(session(16)), path=FORM.path)
        await play.settled()
        metrics = await seen(play, "/metrics")
    shed, aged = (line["media"] for line in play.logged("request"))
    assert shed == {
        "received": 16, "sent": 9, "bytes": sum(len(picture(number, SIZE)) for number in range(16)),
        "left_out": {"pictures": 7}, "max_pictures": 15, "source": "learned", "learned_at": aged["learned_at"],
    }  # fmt: skip
    assert aged == shed
    (refused,) = play.logged("media_refused")
    assert (refused["what"], refused["limit"], refused["upstream"]) == ("pictures", 15, "main")
    told = 'model="pictures",upstream="main"'
    counted = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith("concertina_media_"))
    counted = {name: float(value) for name, value in counted.items() if "_created" not in name}
    assert counted == {
        f"concertina_media_received_total{{{told}}}": 32.0,
        f"concertina_media_sent_total{{{told}}}": 18.0,
        f"concertina_media_received_bytes_total{{{told}}}": float(2 * shed["bytes"]),
        f'concertina_media_left_out_total{{{told},why="pictures"}}': 14.0,
        # Before its first answer a model has no name.
        'concertina_media_refusals_total{model="other",upstream="main",what="pictures"}': 1.0,
    }


async def test_media_are_told_of_before_any_is_left_out(tmp_path: Path) -> None:
    settings = {"models": [{"match": "pictures", "context_window": 10_000_000, "max_pictures": 20}]}
    async with stage(tmp_path, ModelServer(window=10_000_000), **settings) as play:
        reply = await play.send(FORM.body(session(3)), path=FORM.path)
        await play.settled()
    assert outcome(reply)[0] == "none"
    (line,) = play.logged("request")
    size = sum(len(picture(number, SIZE)) for number in range(3))
    assert line["media"] == {"received": 3, "sent": 3, "bytes": size, "max_pictures": 20, "source": "config"}


async def test_a_lesson_is_taken_back(tmp_path: Path) -> None:
    limit = Limit(400, "Exceeded maximum number of images (15)", pictures=15)
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        await play.send(FORM.body(session(16)), path=FORM.path)
        limit.pictures = None
        path = "/admin/api/models/learned?tenant=default&upstream=main&model=pictures"
        reply = await ask(play.address, "DELETE", path, [(b"authorization", b"Bearer " + b"t" * 32)])
        assert reply.status in (200, 204), reply.body
        for rounds in (20, 40):
            await play.send(FORM.body(session(rounds)), path=FORM.path)
            assert len(pictures_in(play.sent[-1].body)) == rounds


async def test_a_page_tells_what_became_of_pictures(tmp_path: Path) -> None:
    limit = Limit(400, "Exceeded maximum number of images (15)", pictures=15)
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        for _ in range(2):
            reply = await play.send(FORM.body(session(16)), path=FORM.path)
            await play.settled()
        name = dict(reply.headers)[b"x-compaction-session"].decode()
        page = await seen(play, f"/admin/sessions/{name}")
    assert outcome(reply) == ("cooled", "media_aged")
    assert "left out: picture" in page
    assert f"16 pictures and documents, {words.size(80_000)} in all; the upstream accepts 15 pictures (learned" in page
    assert "Notes replace 7 of them. 9 of them were sent." in page


@pytest.mark.parametrize(
    ("source", "learned_at", "told"),
    [
        ("learned", 1_000.0, " (learned 3 h ago)"),
        ("config", None, " (set in the config)"),
        ("provider", None, " (the provider's documented limit)"),
        (None, None, ""),
    ],
)
def test_who_says_what_an_upstream_takes(source: str | None, learned_at: float | None, told: str) -> None:
    left = MediaLeftOut(62, 38, 80_100_000, 32_000_000, None, source, learned_at)
    sentence = words.media(left, 1_000.0 + 3 * 3_600)
    assert sentence == (
        f"62 pictures and documents, {words.size(80_100_000)} in all; the upstream accepts "
        f"{words.size(32_000_000)} a request{told}. Notes replace 38 of them."
    )


def test_fates_are_packed_as_replicas_of_before_know_them() -> None:
    messages = [SentMessage(5, "tool", "shot", 900, "left_out", 90), SentMessage(6, "tool", "", 800, "cooled", 80)]
    packed = pack(messages)
    assert [*packed] == messages
    assert [message.fate for message in type(packed)(packed.first, packed.tools, packed.packed)] == ["cooled"] * 2
