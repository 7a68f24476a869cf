"""`concertina replay`: recorded sessions under several policies, side by side, as a table."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from proxy.callers.tenants import Caller
from proxy.cli.common import plain, print_table
from proxy.cli.replay.figures import LEGEND, NO_PROXY, PolicyRow, Replayed, ReplayedSession
from proxy.cli.replay.recordings import Recording, RecordingError, read_recordings
from proxy.cli.replay.replay import replay, with_window
from proxy.config.loading import Config, preset_names
from proxy.wiring import open_apart

_COLUMNS = ("policy", "sent", "saved", "inline", "ahead", "cooled", "calls", "reuse", "over", "cost $", "net $")
# Seconds before a progress bar is worth showing.
_PATIENCE = 1.0


def found(path: Path, model: str | None, skipped: Callable[[str], None]) -> list[Recording]:
    """The sessions of a file, or of every readable file of a directory; `skipped` is told of the others."""
    recordings = []
    for file in sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]:
        try:
            recordings += read_recordings(file, model)
        except RecordingError as error:
            skipped(f"{file}: {error}")
    return recordings


def run(
    config: Config,
    recordings: Sequence[Recording],
    callers: Sequence[Caller],
    window: int | None,
    console: Console,
    skipped: Callable[[str], None],
) -> Replayed:
    """Play everything; where that takes over a second, a terminal sees how far it is."""
    steps = (len(callers) + 1) * sum(recording.requests for recording in recordings)
    with _progress(steps, console) as advance:
        played = replay(open_apart, with_window(config, window), recordings, callers, advance, skipped)
        return asyncio.run(played)


@contextmanager
def _progress(steps: int, console: Console) -> Iterator[Callable[[], None]]:
    started = time.monotonic()
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task("replaying", total=steps)

    def advance() -> None:
        bar.advance(task)
        if not bar.live.is_started and time.monotonic() - started > _PATIENCE:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()


def show(replayed: Replayed, console: Console) -> None:
    """One table a session, one for all of them, what the columns mean, and whom the presets are for."""
    tell = partial(console.print, soft_wrap=not console.is_terminal)
    for model, window in replayed.windows.items():
        tell(f"{plain(model)}: {_window(window)}")
    for session in (*replayed.sessions, *([replayed.total] if replayed.total else [])):
        tell("")
        tell(_heading(session))
        print_table(_table(session), console)
    tell("")
    for line in (*LEGEND, *_notes(replayed)):
        tell(line)
    tell("")
    for name in replayed.sessions[0].policies:
        if name in preset_names():
            tell(f"{name}: {sentence(name)}")


def sentence(preset: str) -> str:
    """Whom a preset is for: the first comment of its file."""
    text = (files("policies") / "presets" / f"{preset}.yaml").read_text("utf-8")
    return text.splitlines()[0].removeprefix("# ")


def _window(window: int | None) -> str:
    if window is None:
        return "window unknown, so nothing can be over it and shares mean nothing; give one with --window TOKENS"
    return f"window {window:,} tokens"


def _heading(session: ReplayedSession) -> str:
    without = session.policies[NO_PROXY]
    first = "" if without.first_over is None else f"; request {without.first_over} is the first over the window"
    return f"{plain(session.name)}: {session.requests} requests, {without.tokens_received:,} tokens received{first}"


def _table(session: ReplayedSession) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for name, row in session.policies.items():
        table.add_row(name, *_cells(row), style="dim" if name == NO_PROXY else "")
    return table


def _cells(row: PolicyRow) -> Iterator[str]:
    yield f"{row.tokens_sent:,}"
    yield f"{row.saved:.0%}"
    for number in (row.compactions_inline, row.compactions_background, row.cooled_batches, row.summarizer_calls):
        yield str(number)
    yield "-" if row.prefix_reuse is None else f"{row.prefix_reuse:.2f}"
    yield "-" if row.over_window is None else str(row.over_window)
    yield "-" if row.cost_usd is None else f"{row.cost_usd:.3f}"
    yield "-" if row.net_usd is None else f"{row.net_usd:+.3f}"


def _notes(replayed: Replayed) -> Iterator[str]:
    for name in replayed.watching:
        yield f"{name} only watches: everything was sent as it came."
    if replayed.unpriced:
        models = ", ".join(map(plain, replayed.unpriced))
        yield f"No cost where the price is unknown: {models} is not in the table of models; name another with --model."
