"""`concertina top`: what is on the screen, and what keys do; no terminal and no waiting."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from proxy.admin.overview import DAY, CompactionNote, Minute, Overview, near
from proxy.commands.watching.running_proxy import UnansweredError
from proxy.commands.watching.screen import ScreenState, bars, screen
from proxy.commands.watching.top import screens, top
from proxy.observing.session_trails import SessionTrails
from tests.support.admin import CONFIGURED, played
from tests.support.overviews import overview
from tests.support.session_events import AT, compacted, requested

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio

NEAR = requested(label="billing\x1b[2J", tokens_sent=6_900, model="gpt-4o")


def shown(found: Overview, *requests: object) -> str:
    out = Console(file=io.StringIO(), width=140)
    out.print(screen(ScreenState("http://127.0.0.1:8795", AT, found, requests)))  # type: ignore[arg-type]
    return out.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_health_rates_sessions_and_compactions_are_on_one_screen() -> None:
    trails = SessionTrails()
    trails(NEAR)
    minutes = [Minute(60 * at, 5, 40_000, 10_000) for at in range(60)]
    told = [CompactionNote(compacted(), "Why it was made.")]
    found = overview(minutes=minutes, near=near(trails.newest()), compactions=told)
    failed = requested(status=502, ms=90_000.0)
    text = shown(found, NEAR, failed)
    assert "5.0 requests a minute, 40.0 k → 10.0 k tokens" in text
    assert "of 2 requests half took up to 1 min 30 s, 19 of 20 up to 1 min 30 s; 1 failed" in text
    assert "99 %  billing [2J  gpt-4o  near" in text
    assert "0123456789abcdef Why it was made." in text
    assert "\x1b" not in text


def test_what_is_not_there_is_told_as_such() -> None:
    text = shown(overview(is_whole=False))
    assert "no request yet" in text
    assert "(this process: the store does not answer)" in text
    assert "failed open (all processes)" in shown(overview()), "workers are no replicas"
    assert text.count("none") == 3


@pytest.mark.parametrize(("numbers", "drawn"), [([], ""), ([0, 0], "··"), ([0, 1, 500, 1_000], "·▁▄█")])
def test_numbers_are_bars_and_what_is_not_nothing_is_seen(numbers: list[int], drawn: str) -> None:
    assert bars(numbers) == drawn


class Proxy:
    """Says which span it was asked for, and whether it answers."""

    def __init__(self) -> None:
        self.spans: list[str] = []
        self.answers = True

    def __call__(self, span: str) -> ScreenState:
        if not self.answers:
            raise UnansweredError("nobody is there")
        self.spans.append(span)
        return ScreenState("", float(len(self.spans)), overview(span=span), [])


def keys(*pressed: str | Callable[[], None]) -> Callable[[float], str]:
    """These, one after the other; between them something may happen, as no key is pressed."""
    left = iter(pressed)

    def press(_: float) -> str:
        key = next(left)
        if isinstance(key, str):
            return key
        key()
        return ""

    return press


def test_keys_pause_change_the_span_and_end_it() -> None:
    proxy = Proxy()
    first = proxy(DAY.name)
    found = [*screens(first, proxy, keys("", "p", "", "s", "", "p", "q"))]
    assert [each.at for each in found] == [1, 2, 2, 2, 3, 3, 4]
    assert [each.is_paused for each in found] == [False, False, True, True, True, True, False]
    assert proxy.spans == ["24h", "24h", "7d", "7d"]


def test_a_proxy_that_does_not_answer_leaves_on_the_screen_what_it_said_last() -> None:
    proxy = Proxy()
    first = proxy(DAY.name)

    def goes() -> None:
        proxy.answers = False

    def comes() -> None:
        proxy.answers = True

    found = [*screens(first, proxy, keys("", goes, comes, "q"))]
    assert [(each.at, each.trouble) for each in found] == [(1, ""), (2, ""), (2, "nobody is there"), (3, "")]
    assert "nobody is there" in shown_of(found[2])


def shown_of(what: ScreenState) -> str:
    out = Console(file=io.StringIO(), width=140)
    out.print(screen(replace(what, at=AT)))
    return out.file.getvalue()  # type: ignore[attr-defined,no-any-return]


async def test_elsewhere_than_on_a_terminal_the_running_proxy_is_told_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONCERTINA_ADMIN_TOKEN", CONFIGURED)
    monkeypatch.chdir(tmp_path)
    async with played(tmp_path, CONFIGURED) as play:
        await asyncio.to_thread(top, url=play.address)
        assert "nothing passed on" in capsys.readouterr().out
        monkeypatch.setenv("CONCERTINA_ADMIN_TOKEN", "another")
        with pytest.raises(SystemExit):
            await asyncio.to_thread(top, url=play.address)
    assert "answers 401: set CONCERTINA_ADMIN_TOKEN" in capsys.readouterr().err
