"""Every view in a real browser: light and dark, wide and narrow, full, empty and failing, by keyboard, scriptless."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from msgspec import structs

from proxy.app import App
from proxy.cli.demo.session import demo_stage
from proxy.telemetry.tally import DAY_HOURS, HOUR, Hours, Tally
from tests.support.browser import NARROW, WIDE, browser
from tests.support.fronts import running
from tests.support.servers import configured, reserve_port, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from proxy.telemetry.events import RequestEnded

pytestmark = pytest.mark.slow

# Where a picture of every view is put, which takes as long as looking at it.
PICTURES = os.environ.get("CONCERTINA_PICTURES")

VIEWS = (
    "",
    "?range=7d",
    "?range=30d",
    "live",
    "sessions",
    "sessions?q=0123456789abcdef",
    "status",
    "status?range=30d&sort=failed",
    "tenants/default",
    "explain?example=1",
    f"requests/{'0' * 16}",
    "nothing",
)


FAILURE = "The model is overloaded, and " + "a-word-that-does-not-end" * 20
FAILED = f"requests/{17:016x}"


@dataclass(frozen=True)
class Shown:
    """A proxy with something to show. kind: what; link: signs in; views: below its /admin/."""

    kind: str
    address: str
    link: str
    views: tuple[str, ...]

    def at(self, view: str) -> str:
        return f"{self.address}/admin/{view}"


@asynccontextmanager
async def full(_: Path) -> AsyncIterator[Shown]:
    async with demo_stage() as stage:
        _ = [step async for step in stage.play()]
        opened = stage.app._opened
        assert opened is not None
        await opened.engine.background.drain(5)
        (history,) = opened.histories.newest()
        session = f"sessions/{history.key.id}?label={history.key.label}"
        caller = opened.active().tenants.operator_of("default")
        assert caller is not None
        found = await opened.engine.sessions.find(caller, history.key.id, history.key.label)
        assert found is not None
        assert found.record is not None
        record = f"sessions/{history.key.id}/records/{found.record[1]}?label={history.key.label}"
        request = f"requests/{history.last.id}"
        fill(opened.engine.tallies.hours)
        for event in every_mark(history.last):
            opened.histories(event)
            opened.recent(event)
            if event.status == 502:
                opened.engine.upstream_failures.hold(event, "https://upstream.example/v1/chat/completions", FAILURE)
        marked = f"sessions/{'e' * 16}?label=every-mark"
        yield Shown(
            "full",
            stage.address,
            stage.dashboard,
            (*VIEWS, "sessions?state=failed", session, record, marked, "live?status=5xx", FAILED, request),
        )


def prefixes_of(messages: int) -> str:
    return "".join(f"{place:06x}" for place in range(messages, max(-1, messages - 8), -1))


def every_mark(last: RequestEnded) -> Iterator[RequestEnded]:
    """A session at whose requests everything happened that is marked."""
    happened: dict[int, dict[str, object]] = {
        4: {"compaction": "cooled"},
        9: {"compaction": "applied", "checkpoint": "a" * 16},
        13: {"overflow": "solved"},
        17: {"status": 502, "end": "refused", "cause": "reset"},
        21: {"cached": 100},
        25: {"status": 400, "overflow": "passed_on"},
        27: {"messages": 20, "prefixes": "f" * 6 + prefixes_of(19)},  # the client went back
    }
    whose = {"session": "e" * 16, "label": "every-mark", "compaction": "none", "checkpoint": None, "billed": 4_000}
    for number in range(30):
        sizes = {"tokens_received": 400 + 150 * number, "tokens_sent": 400 + 140 * number, "messages": number}
        sizes["prefixes"] = prefixes_of(number)
        known = {"id": f"{number:016x}", "at": last.at + number, "cached": 3_600, **whose, **sizes}
        yield structs.replace(last, **{**known, **happened.get(number, {})})


def fill(hours: Hours) -> None:
    """Thirty days of figures, as several tenants and models would leave them."""
    now = int(time.time()) // HOUR
    for at in range(now - 24 * 30, now):
        rows = hours.days.setdefault(at // DAY_HOURS, {})
        for tenant, model, size in (("default", "gpt-4o", 9), ("acme", "claude-sonnet-4-5", 2), ("acme", "a-model", 1)):
            number = size * (1 + at * 7 % 11)
            sizes = {
                "received": 9_000 * number,
                "sent": 5_000 * number,
                "billed": 5_000 * number,
                "output": 90 * number,
            }
            made = {"summary_in": 300 * number, "kept_alive": number // 9, "passed_on": at % 40 == 0}
            made |= {"ms_4000": number // 2, "ms_8000": number - number // 2, "ms_64000": at % 13 // 3}
            sent = 5_000 * number
            usd = {"cost": sent * 3_000, "cost_received": sent * 5_000, "cost_summaries": sent * 200}
            rows[at, tenant, model] = Tally(number, answered=number - at % 3, **sizes, **made, **usd)


@asynccontextmanager
async def empty(directory: Path) -> AsyncIterator[Shown]:
    async with _served(directory, {"store": {"url": "memory://"}}) as shown:
        yield shown


@asynccontextmanager
async def failing(directory: Path) -> AsyncIterator[Shown]:
    store = {"url": f"redis://127.0.0.1:{reserve_port()}", "secret": "x"}
    hidden = f"sessions/{'a' * 16}/records/{'b' * 64}"
    async with _served(directory, {"store": store, "tenants": {"default": {"inspect": False}}}) as shown:
        yield Shown("failing", shown.address, shown.link, (*VIEWS, hidden))


@asynccontextmanager
async def _served(directory: Path, settings: dict[str, object]) -> AsyncIterator[Shown]:
    upstreams = {"main": {"base_url": "http://127.0.0.1:9/v1"}}
    app = App(configured(directory, {"upstreams": upstreams, "logging": {"level": "error"}, **settings}))
    async with serve(app, lifespan="on") as address:
        assert app.admin_token is not None
        yield Shown("empty", address, f"{address}/admin/?token={app.admin_token.value}", (*VIEWS, "sign-in"))


KINDS: dict[str, Callable[[Path], AbstractAsyncContextManager[Shown]]] = {
    "full": full,
    "empty": empty,
    "failing": failing,
}


@contextmanager
def beside(directory: Path, kind: str, *, front: bool = False) -> Iterator[Shown]:
    """The proxy in a loop of its own, since a driver waits for its browser; `front`: behind nginx, below a prefix."""
    ready, ended = threading.Event(), asyncio.Event()
    found: list[Shown] = []
    loop = asyncio.new_event_loop()

    async def run() -> None:
        async with AsyncExitStack() as opened:
            shown = await opened.enter_async_context(KINDS[kind](directory))
            found.append(await _behind_nginx(opened, directory, shown) if front else shown)
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    try:
        assert ready.wait(60)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)
        loop.close()


PREFIXED = """
http {{ server {{
  listen 127.0.0.1:{port};
  location /some/gateway/ {{
    proxy_pass {address}/; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host;
    proxy_buffering off;
  }}
}} }}
"""


async def _behind_nginx(opened: AsyncExitStack, directory: Path, shown: Shown) -> Shown:
    port = reserve_port()
    config = PREFIXED.format(port=port, address=shown.address)
    front = await opened.enter_async_context(running("nginx", directory, config, port))
    address = f"{front}/some/gateway"
    return Shown(shown.kind, address, shown.link.replace(shown.address, address), shown.views)


@pytest.fixture(scope="module", params=[*KINDS])
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with beside(tmp_path_factory.mktemp("proxy"), request.param) as found:
        yield found


def name_of(view: str) -> str:
    """Of a picture."""
    page, _, query = view.partition("?")
    span = re.search(r"(?:range|label|state|status)=(\w+)", query)
    name = (
        "requests-failed" if page == FAILED else re.sub(r"[0-9a-f]{16,}", "one", page).replace("/", "-") or "overview"
    )
    return f"{name}-{span[1]}" if span else name


# Colours are those of the full pages.
@pytest.mark.parametrize(("shown", "is_dark"), [*((kind, False) for kind in KINDS), ("full", True)], indirect=["shown"])
def test_every_view_is_whole_and_well_formed_in_any_width(shown: Shown, is_dark: bool) -> None:
    wrong: list[object] = []
    with browser(is_dark=is_dark) as chromium:
        chromium.open(shown.link)
        for view in shown.views:
            chromium.open(shown.at(view))
            for width in (WIDE, NARROW):
                chromium.resize(width)
                if PICTURES:
                    chromium.keep_picture(f"{shown.kind}-{name_of(view)}-{width}", Path(PICTURES), width)
                if (pixels := chromium.overflows()) > 0:
                    wrong.append((view, width, f"wider than its window by {pixels}"))
                wrong += [(view, width, f"cut off: {element}") for element in chromium.cut_off()]
            chromium.driver.execute_script("for (const each of document.querySelectorAll('details')) each.open = true")
            wrong += [(view, NARROW, f"cut off when opened: {element}") for element in chromium.cut_off()]
            wrong += [(view, said) for said in chromium.complaints()]
            wrong += [(view, said) for said in chromium.violations()]
        assert chromium.hosts() == {shown.address.partition("://")[2]}
    assert wrong == []


def test_all_is_reached_by_keyboard(tmp_path: Path) -> None:
    with beside(tmp_path, "full") as shown, browser() as chromium:
        chromium.open(shown.link)
        keys, driver = chromium.keys, chromium.driver
        chromium.press(keys.TAB)
        assert chromium.focused() == "Skip to the content"
        chromium.press(keys.ENTER)
        chromium.wait_until_at("#main")
        chromium.open(shown.at(""))
        chromium.press(*[keys.TAB] * 4)
        assert chromium.focused() == "Live"
        chromium.press("g", "s")
        chromium.wait_until_at(shown.at("sessions"))
        chromium.press("/")
        assert driver.switch_to.active_element.get_attribute("name") == "q"
        chromium.press(*"split", keys.ENTER)
        chromium.wait_until_at("q=split")
        chromium.open(next(shown.at(view) for view in shown.views if "label" in view))
        chromium.press("?")
        assert driver.find_element("id", "keys").is_displayed()
        chromium.press(keys.ESCAPE)
        assert not driver.find_element("id", "keys").is_displayed()
        marks = driver.find_elements("css selector", "svg.wide a[href^='#']")
        assert marks
        driver.execute_script("arguments[0].focus()", marks[0])  # type: ignore[no-untyped-call]
        chromium.press(keys.ENTER)
        chromium.wait_until_at("#mark-")


def test_pages_are_whole_without_scripts(tmp_path: Path) -> None:
    with beside(tmp_path, "full") as shown, browser(has_scripts=False) as chromium:
        chromium.open(shown.link)
        for view, words in (("", "Kept alive"), ("live", "Newest requests"), ("sessions", "split-the-invoices")):
            chromium.open(shown.at(view))
            assert words in chromium.text(), view
        chromium.open(shown.at("sessions"))
        chromium.click("split-the-invoices")
        assert "60 requests to demo-8k" in chromium.text()
        chromium.click("Erase this session")
        chromium.press_button("Erase it")
        chromium.wait_for("every-mark")
        assert "split-the-invoices" not in chromium.text()


def test_what_people_ask_is_answered_within_two_clicks(tmp_path: Path) -> None:
    with beside(tmp_path, "full") as shown, browser(has_scripts=False) as chromium:
        chromium.open(shown.link)
        chromium.click("Status")
        first = chromium.driver.find_element("css selector", "tbody tr")
        assert first.text.startswith("default $"), "which tenant spends most?"
        chromium.open(shown.at(""))
        chromium.click("sessions that failed in the last 24 hours")
        assert "every-mark" in chromium.text(), "which sessions failed today?"
        assert "split-the-invoices" not in chromium.text()
        name = shown.views[-1].partition("/")[2]
        chromium.open(shown.at("sessions"))
        chromium.driver.find_element("name", "q").send_keys(name)
        chromium.press_button("Show")
        chromium.wait_for(f"Request {name}")
        chromium.click(name)
        assert "Duration by stage" in chromium.text(), "what happened to this request?"


def test_a_page_shows_what_comes_without_being_loaded_again(tmp_path: Path) -> None:
    with beside(tmp_path, "empty") as shown, browser() as chromium:
        chromium.open(shown.link)
        chromium.open(shown.at("live"))
        assert "Waiting" in chromium.text()
        with suppress(HTTPError):
            urlopen(Request(f"{shown.address}/v1/models"), timeout=10)
        chromium.wait_for("GET /v1/models")
        assert chromium.complaints() == []


def test_pages_work_below_a_prefix_of_a_front_end(tmp_path: Path) -> None:
    if shutil.which("nginx") is None and shutil.which("/usr/sbin/nginx") is None:
        pytest.skip("nginx is not installed: run `apt-get install nginx`")
    with beside(tmp_path, "full", front=True) as shown, browser() as chromium:
        chromium.open(shown.at("sessions"))
        assert "Sign in" in chromium.text()
        chromium.driver.find_element("id", "token").send_keys(shown.link.partition("token=")[2])
        chromium.press(chromium.keys.ENTER)
        chromium.wait_until_at(shown.at("sessions"))
        chromium.click("split-the-invoices")
        assert "60 requests to demo-8k" in chromium.text()
        for link in ("Status", "Live", "Overview"):
            chromium.click(link)
            assert chromium.driver.find_element("css selector", "h1").text == link
        chromium.press_button("Sign out")
        chromium.wait_until_at(shown.at("sign-in"))
        assert chromium.complaints() == []
        assert chromium.hosts() == {shown.address.removeprefix("http://").partition("/")[0]}
