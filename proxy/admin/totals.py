"""What tenants and models have used in a span of time, as rows of a table that is sorted by any of its columns."""

import csv
import io
from collections.abc import Iterable, Mapping

import msgspec

from proxy.admin.spend import Prices, spend_of
from proxy.telemetry import figures
from proxy.telemetry.tally import Tally, total

# Cells that begin so are formulas to a spreadsheet; models are named by clients.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over requests, of all replicas.

    cost: US dollars at list price, of answers and summaries; None where no price is known. saved: what the same
    requests would have cost more as they came, an estimate. unpriced: whether these leave something out. net: tokens
    that were not sent, less what summaries took. failed: requests without an answer of 2xx, or of a shape that is not
    understood. passed_on: overflows that reached the client.
    """

    name: str
    cost: float | None
    cost_of_summaries: float | None
    saved: float | None
    net: int
    received: int
    sent: int
    requests: int
    failed: int
    passed_on: int
    kept_alive: int
    unpriced: bool


COLUMNS = ("name", "cost", "saved", "net", "received", "requests", "failed", "passed_on", "kept_alive")
"""What a table may be sorted by."""


def totals(sums: Mapping[tuple[str, str], Tally], price: Prices, *, by_model: bool) -> dict[str, Totals]:
    """Of each tenant, or of each model. sums: by tenant and model."""
    rows: dict[str, list[tuple[str, Tally]]] = {}
    for (tenant, model), tally in sums.items():
        rows.setdefault(model if by_model else tenant, []).append((model, tally))
    return {name: totals_of(name, found, price) for name, found in rows.items()}


def totals_of(name: str, rows: Iterable[tuple[str, Tally]], price: Prices) -> Totals:
    """Of some sums, each with its model."""
    rows = [*rows]
    tally, spent = total(each for _, each in rows), spend_of(rows, price)
    return Totals(
        name=name,
        cost=spent.cost,
        cost_of_summaries=spent.summaries,
        saved=spent.saved,
        net=figures.net(tally),
        received=tally.received,
        sent=tally.sent,
        requests=tally.requests,
        failed=tally.requests - tally.answered,
        passed_on=tally.passed_on,
        kept_alive=tally.kept_alive,
        unpriced=bool(spent.unpriced),
    )


def order_rows(rows: Iterable[Totals], column: str) -> list[Totals]:
    """By a column: names from A on, numbers from the largest on, and what is not known behind them."""
    found = sorted(rows, key=lambda row: row.name)
    if column == "name":
        return found
    return sorted(found, key=lambda row: -_number(getattr(row, column)))


def _number(value: float | None) -> float:
    return float("-inf") if value is None else value


def as_csv(rows: Iterable[Totals]) -> str:
    """A line for each, under a line of names."""
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\r\n")
    lines.writerow(Totals.__struct_fields__)
    for row in rows:
        name, *rest = msgspec.structs.astuple(row)
        lines.writerow([f"'{name}" if name.startswith(_FORMULAS) else name, *rest])
    return written.getvalue()
