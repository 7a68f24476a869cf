"""The output of the demo: a live table on a terminal, plain lines elsewhere, and the verdict at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from proxy.cli.common import print_table

_OVERFLOW = "context_length_exceeded"
_ROWS = 12
_COLUMNS = ("request", "tokens received", "tokens sent", "direct", "through the proxy")


@dataclass(frozen=True, slots=True)
class DemoStep:
    """One request of the session: its size from the client, its size to the model, and the result.

    direct, through: `ok` or the error. `direct` is empty after the direct session has failed.
    compaction: the proxy's `x-compaction`.
    """

    number: int
    received: int
    sent: int
    direct: str
    through: str
    compaction: str

    @property
    def proxied(self) -> str:
        """Return the result through the proxy, with the compaction if there was one."""
        return f"{self.through}, {self.compaction}" if self.compaction in ("applied", "reused") else self.through


@dataclass(frozen=True, slots=True)
class AskedFact:
    """A fact of the beginning that the model is asked for at the end.

    directly, through: the response or the error, without and with the proxy. known: True if `through` contains the
    fact.
    """

    name: str
    directly: str
    through: str
    known: bool


@dataclass(frozen=True, slots=True)
class Result:
    """The result of the whole demo.

    summary_tokens: of all summaries, prompts and responses.
    """

    steps: Sequence[DemoStep]
    asked: Sequence[AskedFact]
    summaries: int
    summary_tokens: int

    @property
    def died_at(self) -> DemoStep | None:
        """Return the request at which the direct session failed."""
        return next((step for step in self.steps if step.direct not in ("ok", "")), None)

    @property
    def overflowed(self) -> bool:
        """Return True if the direct session failed by an overflow."""
        return self.died_at is not None and self.died_at.direct.endswith(_OVERFLOW)

    @property
    def failed(self) -> list[DemoStep]:
        """Return the steps that failed through the proxy."""
        return [step for step in self.steps if step.through != "ok"]

    @property
    def passed(self) -> bool:
        """Return True if only the direct session overflowed, and every fact is known through the proxy."""
        return self.overflowed and not self.failed and all(asked.known for asked in self.asked)

    @property
    def received(self) -> int:
        """Return the tokens that the client sent in all steps."""
        return sum(step.received for step in self.steps)

    @property
    def sent(self) -> int:
        """Return the tokens that the proxy sent in all steps."""
        return sum(step.sent for step in self.steps)


@contextmanager
def live(console: Console) -> Iterator[Callable[[DemoStep], None]]:
    """Yield a function that shows the next step."""
    if not console.is_terminal:
        console.print("  ".join(_COLUMNS), highlight=False)
        yield lambda step: console.print(_line(step), highlight=False)
        return
    rows: deque[DemoStep] = deque(maxlen=_ROWS)
    died: list[DemoStep] = []
    with Live(console=console, refresh_per_second=20) as display:

        def add(step: DemoStep) -> None:
            rows.append(step)
            if step.direct not in ("ok", ""):  # keeps the row visible
                died.append(step)
            display.update(_table([*(step for step in died if step not in rows), *rows]))

        yield add


def _line(step: DemoStep) -> str:
    return f"{step.number:>7}  {step.received:>15,}  {step.sent:>11,}  {step.direct or '-':<6}  {step.proxied}"


def _table(steps: Iterable[DemoStep]) -> Table:
    table = Table(*_COLUMNS, min_width=80)
    for column in table.columns[:3]:
        column.justify = "right"
    for step in steps:
        direct = Text(step.direct or "-", style=_style(ok=step.direct == "ok") if step.direct else "dim")
        through = Text(step.proxied, style=_style(ok=step.through == "ok"))
        table.add_row(str(step.number), f"{step.received:,}", f"{step.sent:,}", direct, through)
    return table


def _style(*, ok: bool) -> str:
    return "green" if ok else "bold red"


def opening(console: Console, address: str, window: int, dashboard: str | None) -> None:
    """Print what is played, and the address to watch it."""
    console.print(
        f"A coding session, played twice against a model with a window of {window:,} tokens: directly, and through "
        f"the proxy at {address}.",
        highlight=False,
    )
    if dashboard is not None:
        console.print(f"Watch it: {dashboard}", highlight=False, soft_wrap=True)


def closing(console: Console, result: Result, setting: str) -> None:
    """Print the verdict, the facts that each run knows, the savings, and the line to paste."""
    console.print()
    _check(console, _directly(result), ok=result.overflowed)
    answered = len(result.steps) - len(result.failed)
    _check(console, f"through the proxy: {answered} of {len(result.steps)} requests answered", ok=not result.failed)
    console.print("\nAt the end, the model is asked for facts of the beginning:\n")
    print_table(_facts(result), console)
    console.print()
    net = result.received - result.sent - result.summary_tokens
    share = net / max(1, result.received)
    console.print(f"  tokens saved: {net:,} of {result.received:,} ({share:.0%}), net of summaries", highlight=False)
    console.print(f"  summaries made: {result.summaries}, of {result.summary_tokens:,} tokens", highlight=False)
    console.print(f"\nexport {setting}", highlight=False, soft_wrap=True)


def _facts(result: Result) -> Table:
    """Return a table with the answers of both runs to the same questions."""
    died = result.died_at
    table = Table(box=None, pad_edge=False)
    table.add_column("asked for", no_wrap=True)
    table.add_column("directly" if died is None else f"directly, failed at request {died.number}")
    table.add_column("through the proxy", overflow="fold")
    for asked in result.asked:
        mark = "✓" if asked.known else "✗"
        through = Text(f"{mark} {asked.through}", style=_style(ok=asked.known))
        table.add_row(asked.name, Text(asked.directly, style=_style(ok=died is None)), through)
    return table


def _directly(result: Result) -> str:
    died = result.died_at
    return (
        f"directly: request {died.number} ended in {died.direct}" if died else "directly: the window never overflowed"
    )


def _check(console: Console, text: str, *, ok: bool) -> None:
    mark = ("✓ " if ok else "✗ ", _style(ok=ok))
    console.print(Text.assemble(mark, text), soft_wrap=True)


def staying(console: Console, session_page: str) -> None:
    """Print the address of the session's page, and that the proxy keeps running for it."""
    console.print(
        f"\nThe session's page, with every change and its reason: {session_page}", highlight=False, soft_wrap=True
    )
    console.print("The proxy and its model keep running until you press Ctrl-C.", highlight=False)
