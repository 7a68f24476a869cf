"""The usage of tenants and models in a span of time, as rows of a sortable table."""

import csv
import io
from collections.abc import Iterable, Mapping

import msgspec

from proxy.admin.spend import Prices, spend_of
from proxy.telemetry import figures
from proxy.telemetry.tally import Tally, total

# Cells that begin with these are formulas in a spreadsheet, and clients choose the names of models.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over requests of all replicas.

    cost: US dollars at list price, with summaries; None if no price is known. saved: estimated difference to the cost
    of the unchanged requests. unpriced: True if they miss models without a price. net: tokens that were not sent, minus
    the tokens of summaries. failed: requests without a 2xx response, or with an unknown format. passed_on: overflow
    errors that clients got.
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
"""The sortable columns."""


def totals(sums: Mapping[tuple[str, str], Tally], price: Prices, *, by_model: bool) -> dict[str, Totals]:
    """Return the totals of each tenant, or of each model.

    sums: by tenant and model.
    """
    rows: dict[str, list[tuple[str, Tally]]] = {}
    for (tenant, model), tally in sums.items():
        rows.setdefault(model if by_model else tenant, []).append((model, tally))
    return {name: totals_of(name, tallies, price) for name, tallies in rows.items()}


def totals_of(name: str, rows: Iterable[tuple[str, Tally]], price: Prices) -> Totals:
    """Return the totals of some sums, each with its model."""
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
    """Sort rows by a column: names from A, numbers from the largest, unknown ones last."""
    by_name = sorted(rows, key=lambda row: row.name)
    if column == "name":
        return by_name
    return sorted(by_name, key=lambda row: -_number(getattr(row, column)))


def _number(value: float | None) -> float:
    return float("-inf") if value is None else value


def as_csv(rows: Iterable[Totals]) -> str:
    """Return the rows as CSV with a header line."""
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\r\n")
    lines.writerow(Totals.__struct_fields__)
    for row in rows:
        name, *values = msgspec.structs.astuple(row)
        lines.writerow([f"'{name}" if name.startswith(_FORMULAS) else name, *values])
    return written.getvalue()
