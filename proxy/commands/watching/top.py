"""`concertina top`: the running proxy on a terminal, asked anew every two seconds."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
from rich.live import Live

from proxy.admin.endpoints import Endpoint, find_endpoint
from proxy.admin.overview import DAY, SPANS, Overview
from proxy.admin.recent import RequestsPage
from proxy.commands.common import console, fail
from proxy.commands.parameters import ConfigPath
from proxy.commands.running import config_of_running
from proxy.commands.watching.running_proxy import UnansweredError, Url, answer_lines, url_of
from proxy.commands.watching.screen import ScreenState, screen
from proxy.config.loading import Config

_EVERY = 2.0
_PATIENCE = 5.0


def top(*, url: Url = None, config: ConfigPath = None) -> None:
    """Watch the running proxy until q is pressed: its health, rates, sessions near the window, newest compactions.

    p pauses, s changes the span of the figures. Elsewhere than on a terminal it is printed once.
    """
    known = config_of_running(config, url)
    out = console()
    try:
        first = ask_proxy(known, url, DAY.name)
        if not (out.is_terminal and sys.stdin.isatty()):
            out.print(screen(first))
            return
        with _keys() as pressed, Live(screen(first), console=out, screen=True, auto_refresh=False) as live:
            for shown in screens(first, lambda span: ask_proxy(known, url, span), pressed):
                live.update(screen(shown), refresh=True)
    except UnansweredError as error:
        fail(str(error))
    except KeyboardInterrupt:
        return


def ask_proxy(config: Config, url: str | None, span: str) -> ScreenState:
    """What the proxy says now; raises UnansweredError."""

    def get(endpoint: Endpoint, **query: str) -> bytes:
        return b"".join(answer_lines(config, url, endpoint, query, _PATIENCE))

    try:
        overview = msgspec.json.decode(get(find_endpoint("overview"), range=span), type=Overview)
        page = msgspec.json.decode(get(find_endpoint("requests")), type=RequestsPage)
    except msgspec.DecodeError as error:
        raise UnansweredError(f"{url_of(config, url)} is no Concertina of this version: {error}") from None
    return ScreenState(url_of(config, url), time.time(), overview, page.requests)


def screens(
    first: ScreenState, ask: Callable[[str], ScreenState], pressed: Callable[[float], str]
) -> Iterator[ScreenState]:
    """What is shown, one after the other, until q is pressed. `ask` says what there is, of a span of time.

    pressed: the key that is within so many seconds; empty for none. Where the proxy does not answer, what it said last
    stays.
    """
    at = SPANS.index(DAY)
    spans, shown = [span.name for span in (*SPANS[at:], *SPANS[:at])], first
    while True:
        yield shown
        key = pressed(_EVERY)
        if key == "q":
            return
        if key == "s":
            spans = [*spans[1:], spans[0]]
        is_paused = shown.is_paused != (key == "p")
        if is_paused and key != "s":
            shown = replace(shown, is_paused=True)
            continue
        try:
            shown = replace(ask(spans[0]), is_paused=is_paused)
        except UnansweredError as error:
            shown = replace(shown, is_paused=is_paused, trouble=str(error))


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Keys as they are pressed, without Enter and unseen."""
    source = sys.stdin.fileno()
    before = termios.tcgetattr(source)
    tty.setcbreak(source)

    def pressed(seconds: float) -> str:
        is_there, _, _ = select.select([source], [], [], seconds)
        if not is_there:
            return ""
        return os.read(source, 1).decode("latin-1").lower() or "q"  # a terminal that is gone sends nothing for ever

    try:
        yield pressed
    finally:
        termios.tcsetattr(source, termios.TCSADRAIN, before)
