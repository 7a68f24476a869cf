"""`concertina replay`: recorded sessions under several policies, compared in a table."""

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

_COLUMNS = ("policy", "sent", "saved", "inline", "background", "shortened", "calls", "reuse", "over", "cost $", "net $")
# The delay before a progress bar is shown, in seconds.
_DELAY = 1.0


def find_recordings(path: Path, model: str | None, skipped: Callable[[str], None]) -> list[Recording]:
    """Return the sessions of a file, or of every readable file of a directory.

    skipped: called with the reason for each unreadable file.
    """
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
    """Play all sessions. After a second, a terminal shows the progress."""
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
        if not bar.live.is_started and time.monotonic() - started > _DELAY:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()


def show(replayed: Replayed, console: Console) -> None:
    """Print a table per session, one for all sessions, the legend, and the purpose of each preset."""
    print_line = partial(console.print, soft_wrap=not console.is_terminal)
    for model, window in replayed.windows.items():
        print_line(f"{plain(model)}: {_window(window)}")
    for session in (*replayed.sessions, *([replayed.total] if replayed.total else [])):
        print_line("")
        print_line(_heading(session))
        print_table(_table(session), console)
    print_line("")
    for line in (*LEGEND, *_notes(replayed)):
        print_line(line)
    print_line("")
    for name in replayed.sessions[0].policies:
        if name in preset_names():
            print_line(f"{name}: {sentence(name)}")


def sentence(preset: str) -> str:
    """Return the purpose of a preset: the first comment of its file."""
    text = (files("policies") / "presets" / f"{preset}.yaml").read_text("utf-8")
    return text.splitlines()[0].removeprefix("# ")


def _window(window: int | None) -> str:
    if window is None:
        return "window unknown, so overflows and shares are unknown; set it with --window TOKENS"
    return f"window {window:,} tokens"


def _heading(session: ReplayedSession) -> str:
    without = session.policies[NO_PROXY]
    overflow = "" if without.first_over is None else f"; request {without.first_over} is the first over the window"
    return f"{plain(session.name)}: {session.requests} requests, {without.tokens_received:,} tokens received{overflow}"


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
        yield f"{name} changes nothing: every request was sent unchanged."
    if replayed.unpriced:
        models = ", ".join(map(plain, replayed.unpriced))
        yield f"No cost, since the price is unknown: {models} is not in the table of models; name another with --model."
