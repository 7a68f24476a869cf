"""The demo plays, checks and says what it saw, and its exit code is its verdict."""

from __future__ import annotations

import asyncio
import io
import json
import re
import socket
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import pytest
from rich.console import Console

from proxy.cli.demo import run_demo, session
from proxy.cli.demo.chat_server import ChatServer
from proxy.cli.demo.prompt import Chat
from proxy.cli.demo.show import AskedFact, DemoStep, Result
from proxy.cli.demo.story import PLANTED, TURNS, histories
from tests.support.model_server.prompt import defects

if TYPE_CHECKING:
    from starlette.responses import Response

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

FINE = DemoStep(1, 100, 100, "ok", "ok", "none")
DIED = DemoStep(2, 9_000, 4_000, "400 context_length_exceeded", "ok", "applied")
KNOWN = AskedFact("codename", "400 context_length_exceeded", "Heron", known=True)


class Screen(io.StringIO):
    """Keeps what is shown, and tells when Ctrl-C is spoken of."""

    def __init__(self) -> None:
        super().__init__()
        self.stays = asyncio.Event()

    def write(self, text: str) -> int:
        if "Ctrl-C" in text:
            self.stays.set()
        return super().write(text)


def recording(*, terminal: bool = False) -> tuple[Console, Screen]:
    shown = Screen()
    return Console(file=shown, force_terminal=terminal, width=120, color_system=None), shown


async def test_the_session_dies_directly_and_goes_to_its_end_through_the_proxy() -> None:
    console, shown = recording()
    assert await run_demo(once=True, console=console) == 0
    text = shown.getvalue()
    assert "✓ directly: request 34 ended in 400 context_length_exceeded" in text
    assert "✓ through the proxy: 60 of 60 requests answered" in text
    saved, received, summaries = map(
        figure, re.findall(r"tokens saved: ([\d,]+) of ([\d,]+).*?of ([\d,]+) tokens", text, re.DOTALL)[0]
    )
    assert 0 < saved < received - summaries
    assert text.count("✓") == len(PLANTED) + 2
    assert "✗" not in text
    assert "export OPENAI_BASE_URL=http://127.0.0.1:" in text
    heading, *facts = text.partition("for facts of the beginning:\n\n")[2].partition("\n\n")[0].splitlines()
    assert "directly, failed at request 34" in heading
    for fact, line in zip(PLANTED, facts, strict=True):
        direct, through = heading.index("directly"), heading.index("through the proxy")
        assert line[direct:through].strip() == "400 context_length_exceeded"
        assert fact.is_in(line[through:])


async def test_every_tool_call_that_reaches_the_model_has_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    class CheckedServer(ChatServer):
        def respond(self, body: bytes) -> Response:
            chat = msgspec.json.decode(body, type=Chat)
            found.extend(defects(chat.messages))
            return super().respond(body)

    monkeypatch.setattr(session, "ChatServer", CheckedServer)
    assert await run_demo(once=True, console=recording()[0]) == 0
    assert found == []


async def test_every_request_is_a_line_where_no_terminal_is() -> None:
    console, shown = recording()
    await run_demo(once=True, console=console)
    numbers = [line.split()[0] for line in shown.getvalue().splitlines() if line[:7].strip().isdecimal()]
    assert numbers == [str(number) for number in range(1, 61)]


async def test_on_a_terminal_it_stays_up_until_it_is_interrupted() -> None:
    console, shown = recording(terminal=True)
    demo = asyncio.create_task(run_demo(once=False, console=console))
    stays = asyncio.create_task(shown.stays.wait())
    await asyncio.wait((demo, stays), return_when=asyncio.FIRST_COMPLETED)
    assert stays.done()
    address = shown.getvalue().partition("export OPENAI_BASE_URL=http://")[2].partition("/")[0]
    (link,) = re.findall(r"reason: (http\S+)", shown.getvalue())
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser, browser.get(link) as page:
        assert (page.status, page.url.path.startswith("/admin/sessions/")) == (200, True)
        assert "split-the-invoices" in await page.text()
    with closing(socket.create_connection(address.split(":"))):
        demo.cancel()
        assert await demo == 0


def figure(text: str) -> int:
    return int(text.replace(",", ""))


async def test_a_taken_port_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    console, shown = recording()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(session, "PORT", port)
        assert await run_demo(once=True, console=console) == 0
    assert f":{port}" not in shown.getvalue()


async def test_a_window_that_never_overflows_shows_nothing_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "ChatServer", partial(ChatServer, window=100_000))
    console, shown = recording()
    assert await run_demo(once=True, console=console) == 1
    assert "✗ directly: the window never overflowed" in shown.getvalue()


@pytest.mark.parametrize(
    ("steps", "asked", "passed"),
    [
        ([FINE, DIED], [KNOWN], True),
        ([FINE], [KNOWN], False),
        ([DemoStep(1, 9, 9, "500", "ok", "none")], [KNOWN], False),
        ([DIED, DemoStep(3, 9, 9, "", "502", "none")], [KNOWN], False),
        ([FINE, DIED], [KNOWN, AskedFact("budget", "400", "I do not know.", known=False)], False),
    ],
    ids=[
        "all well",
        "no overflow",
        "another error directly",
        "an error through the proxy",
        "a forgotten fact",
    ],
)
def test_the_verdict_needs_every_part(steps: list[DemoStep], asked: list[AskedFact], *, passed: bool) -> None:
    assert Result(steps, asked, summaries=1, summary_tokens=1).passed is passed


def test_the_story_has_sixty_requests_without_a_defect() -> None:
    sizes = [len(messages) for messages in histories()]
    assert len(sizes) == 60
    assert sizes == sorted(sizes)
    for messages in histories():
        assert not list(defects(msgspec.convert({"messages": messages}, Chat).messages))


def test_every_planted_fact_is_said_early_and_once() -> None:
    for fact in PLANTED:
        said = [turn for turn, text in enumerate(TURNS) if fact.value in text]
        assert len(said) == (not fact.by_tool)
        assert all(turn <= 2 for turn in said)


def test_a_fact_that_only_a_tool_says_is_said_once_and_early() -> None:
    *_, whole = histories()
    (fact,) = [fact for fact in PLANTED if fact.by_tool]
    assert [message["role"] for message in whole if fact.value in json.dumps(message)] == ["tool"]
    assert fact.value in json.dumps(whole[:10])


def test_an_outdated_value_does_not_count_as_known() -> None:
    window = PLANTED[-1]
    assert window.is_in("The deploy window is Thursday 09:30 UTC.")
    assert not window.is_in("The deploy window is Tuesday 14:00 UTC, or Thursday 09:30 UTC.")
