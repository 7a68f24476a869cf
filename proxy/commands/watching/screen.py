"""What `concertina top` shows, from an overview and the newest requests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from proxy.admin import words
from proxy.admin.overview import SPANS, Minute, Overview
from proxy.admin.sessions.listing import SessionRow
from proxy.commands.common import plain
from proxy.commands.watching.tail import line_of
from proxy.observing.events import RequestEnded

# Minutes that a rate is taken over.
_RATE = 5
_NEWEST = 12
_MOST_COMPACTIONS = 4
_METER = 20
_BLOCKS = "·▁▂▃▄▅▆▇█"
_LEVELS = {"good": "green", "warn": "yellow", "bad": "red"}
_SHARES = (0.5, 0.95)


@dataclass(frozen=True, slots=True)
class ScreenState:
    """What is on the screen. at: Unix seconds, when that was asked for. trouble: why nothing newer is there."""

    address: str
    at: float
    overview: Overview
    requests: Sequence[RequestEnded]
    is_paused: bool = False
    trouble: str = ""


def screen(shown: ScreenState) -> RenderableType:
    overview = shown.overview
    parts: list[RenderableType] = [_head(shown), _state(shown), Text(), _figures(overview, shown.requests), Text()]
    parts += [_heading("SESSIONS NEAR THE WINDOW"), _near(overview.near or []), Text()]
    parts += [_heading("NEWEST COMPACTIONS"), *_compactions(overview), Text()]
    parts += [_heading("NEWEST REQUESTS"), *_requests(shown.requests)]
    return Group(*parts)


def _head(shown: ScreenState) -> Text:
    health = shown.overview.health
    told = Text.assemble(("concertina ", "bold"), plain(shown.address), "  ")
    told.append("● ", _LEVELS.get(health.level, ""))
    told.append(plain(", ".join(health.words)))
    return told


def _figures(overview: Overview, requests: Sequence[RequestEnded]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, text in _facts(overview, requests):
        table.add_row(name, text)
    return table


def _facts(overview: Overview, requests: Sequence[RequestEnded]) -> Iterator[tuple[str, str]]:
    figures, minutes = overview.figures, overview.minutes
    span = next((span.words for span in SPANS if span.name == overview.span), overview.span)
    scope = "all processes" if overview.is_whole else "this process: the store does not answer"
    yield (
        f"{span}",
        f"{words.plural(figures.requests, 'request')}, {words.exact(figures.kept_alive)} kept alive,"
        f" {words.exact(figures.passed_on)} passed on, {words.exact(figures.failed_open)} failed open ({scope})",
    )
    yield (
        "tokens",
        f"net {words.short(figures.net)} not sent, of {words.short(figures.received)} received; summaries took"
        f" {words.short(figures.summaries)}; {words.share(figures.cache_share)} from the provider's cache",
    )
    yield "cost", f"{words.usd(figures.cost)}, of it for summaries {words.usd(figures.cost_of_summaries)}"
    yield "saved", f"{words.usd(figures.saved)}, about, against the same requests as they came"
    yield "now", _rate(minutes[-_RATE:])
    yield "newest", _durations(requests)
    yield "last hour", f"{bars([minute.received for minute in minutes])} received a minute"


def _rate(minutes: Sequence[Minute]) -> str:
    requests = sum(minute.requests for minute in minutes) / _RATE
    received = words.short(sum(minute.received for minute in minutes) / _RATE)
    sent = words.short(sum(minute.sent for minute in minutes) / _RATE)
    return f"{requests:.1f} requests a minute, {received} → {sent} tokens"


def _durations(requests: Sequence[RequestEnded]) -> str:
    if not requests:
        return "no request yet"
    taken = sorted(request.ms / 1_000 for request in requests)
    half, most = (words.span(taken[min(len(taken) - 1, int(share * len(taken)))]) for share in _SHARES)
    failed = sum(request.status >= 400 or request.end != "complete" for request in requests)
    return f"of {words.plural(len(taken), 'request')} half took up to {half}, 19 of 20 up to {most}; {failed} failed"


def bars(numbers: Sequence[int]) -> str:
    """Numbers as bars of a line; what is not 0 is seen."""
    most = max([1, *numbers])
    steps = len(_BLOCKS) - 1
    return "".join(_BLOCKS[-(-steps * number // most)] for number in numbers)


def _near(rows: Sequence[SessionRow]) -> RenderableType:
    if not rows:
        return Text("none", "dim")
    table = Table.grid(padding=(0, 2))
    for row in rows:
        used = row.used or 0.0
        meter = Text("█" * min(_METER, round(_METER * used)), "red" if used >= 1 else "yellow")
        meter.pad_right(_METER - len(meter), "░")
        name = plain(words.name(row.label or row.id))
        table.add_row(meter, words.share(row.used), name, plain(words.name(row.model or "")), f"{row.state}")
    return table


def _compactions(overview: Overview) -> Iterator[Text]:
    found = (overview.compactions or [])[:_MOST_COMPACTIONS]
    for each in found:
        name = plain(words.name(each.event.session))
        yield Text.assemble((f"{name} ", "dim"), plain(each.why))
    if not found:
        yield Text("none", "dim")


def _requests(requests: Sequence[RequestEnded]) -> Iterator[Text]:
    for event in requests[:_NEWEST]:
        style = "red" if event.status >= 400 else "yellow" if event.end != "complete" else ""
        yield Text(line_of(event), style, no_wrap=True, overflow="ellipsis")
    if not requests:
        yield Text("none", "dim")


def _heading(text: str) -> Text:
    return Text(text, "bold")


def _state(shown: ScreenState) -> Text:
    at = f"{datetime.fromtimestamp(shown.at).astimezone():%H:%M:%S}"
    told = Text.assemble(("q", "bold"), " quit  ", ("p", "bold"), " pause  ", ("s", "bold"), " span   ")
    state = f"paused at {at}" if shown.is_paused else f"as of {at}"
    told.append(state, "dim")
    if shown.trouble:
        told.append(f"  {plain(shown.trouble)}", "red")
    return told
