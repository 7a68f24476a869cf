"""The session of the demo: sixty requests of a coding agent, with facts planted on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

Message = dict[str, object]

SYSTEM = (
    "You are a careful coding agent working in the repository of an invoicing service. Use the tools to read, edit "
    "and test code. Make the smallest change that solves the task, run the tests after every edit, and report briefly."
)
TURNS = (
    "Split the invoice table so that every line item has a row of its own, and adapt the code.\n"
    "The safety rule is: never run a migration against prod-db-1 without asking me first.\n"
    "The release codename is Heron.\n"
    "The cloud budget is 40 EUR, so run the small test machine only.\n"
    "The migration file is services/billing/migrations/0042_split_invoices.sql.\n"
    "The deploy window is Tuesday 14:00 UTC.",
    "Good. Now the tax code: it still reads the totals from the old column. Rounding must stay half-even.",
    "Plans have changed. The deploy window is Thursday 09:30 UTC. Go on with the exports and the reminders.",
    "Next are credit notes and refunds. Keep their public functions as they are, other teams call them.",
    "The nightly report counts line items twice since the split. Find out why and fix it.",
    "Last part: clean up what is left of the old table, the audit trail included, and tell me what remains to be done.",
)
FILES = (
    ("invoice", "line_items", "models"),
    ("tax", "rounding", "totals"),
    ("exports", "reminders", "schedule"),
    ("credit_notes", "refunds", "payments"),
    ("reports", "queries", "cache"),
    ("audit", "cleanup", "compat"),
)


@dataclass(frozen=True, slots=True)
class Planted:
    """A fact that must still be known at the end.

    outdated: the value that a later message replaced. by_tool: True if only a tool result contains it.
    """

    name: str
    value: str
    outdated: str | None = None
    by_tool: bool = False

    @property
    def question(self) -> str:
        """Return the question for the fact."""
        return f"What is the {self.name}?"

    def is_in(self, answer: str) -> bool:
        """Return True if an answer contains the current value and not the outdated one."""
        return self.value in answer and (self.outdated is None or self.outdated not in answer)


PLANTED = (
    Planted("safety rule", "never run a migration against prod-db-1 without asking me first"),
    Planted("release codename", "Heron"),
    Planted("cloud budget", "40 EUR"),
    Planted("migration file", "services/billing/migrations/0042_split_invoices.sql"),
    Planted("staging snapshot", "snap_0b7f3a91", by_tool=True),
    Planted("deploy window", "Thursday 09:30 UTC", outdated="Tuesday"),
)


_SAID_BY_TESTS = {FILES[0][0]: [f"{fact.name}: {fact.value}, taken before the run" for fact in PLANTED if fact.by_tool]}


def _tool(name: str, description: str, *parameters: str) -> Message:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = (
    _tool("read_file", "Read a file of the repository.", "path"),
    _tool("edit_file", "Replace a piece of text in a file.", "path", "old", "new"),
    _tool("bash", "Run a command in the repository.", "command"),
)


def user(text: str) -> Message:
    """Return a message of the user."""
    return {"role": "user", "content": text}


def histories() -> Iterator[list[Message]]:
    """Yield the messages of each request. It is one growing list, as agents keep it."""
    messages: list[Message] = [{"role": "system", "content": SYSTEM}]
    for turn, (text, files) in enumerate(zip(TURNS, FILES, strict=True)):
        messages.append(user(text))
        yield messages
        for index, file in enumerate(files):
            for round_messages in _work_on(file, f"{turn}{index}"):
                messages += round_messages
                yield messages
        messages.append({"role": "assistant", "content": f"Done: {', '.join(files)} use the new rows; all tests pass."})


def _work_on(file: str, number: str) -> Iterator[list[Message]]:
    """Yield the rounds that read, change and test a file."""
    path = f"services/billing/{file}.py"
    old, new = _statement(file, "invoice.total"), _statement(file, "sum(item.amount for item in invoice.items)")
    edited = f"Edited {path}: 1 replacement.\n\n@@ load_{file} @@\n-{old}\n+{new}"
    yield _round(f"a{number}", f"I look at {path} first.", "read_file", {"path": path}, _source(file))
    yield _round(f"b{number}", "The total comes from the old column.", "edit_file", _edit(path, old, new), edited)
    yield _round(
        f"c{number}", "Now the tests.", "bash", {"command": f"pytest -q tests/test_{file}.py"}, _test_output(file)
    )


def _edit(path: str, old: str, new: str) -> dict[str, str]:
    return {"path": path, "old": old, "new": new}


def _round(number: str, text: str, tool: str, arguments: dict[str, str], result: str) -> list[Message]:
    call = {"id": f"call_{number}", "type": "function"}
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return [
        {"role": "assistant", "content": text, "tool_calls": [{**call, "function": function}]},
        {"role": "tool", "tool_call_id": call["id"], "content": result},
    ]


def _statement(file: str, total: str) -> str:
    return f"    {file}_total = round_half_even({total}, invoice.currency.digits)"


def _source(file: str) -> str:
    return f'''"""Billing: {file.replace("_", " ")}."""

from decimal import Decimal

from services.billing import statements
from services.billing.db import Session, fetch_invoice, transaction
from services.billing.money import round_half_even


def load_{file}(session: Session, invoice_id: int) -> Decimal:
    """The amount that {file} works with, in the invoice's currency."""
    invoice = fetch_invoice(session, invoice_id, lock=False)
    if invoice.cancelled_at is not None:
        return Decimal(0)
{_statement(file, "invoice.total")}
    return {file}_total


def store_{file}(session: Session, invoice_id: int, amount: Decimal) -> None:
    """Write the amount back; the row is locked until the transaction ends."""
    with transaction(session) as cursor:
        cursor.execute(statements.{file}.update_amount, (amount, invoice_id))
        if cursor.rowcount != 1:
            raise LookupError(f"invoice {{invoice_id}} is gone")


def refresh_{file}(session: Session, invoice_ids: list[int]) -> int:
    """Compute and store the amounts of many invoices; how many were changed."""
    changed = 0
    for invoice_id in invoice_ids:
        before = fetch_invoice(session, invoice_id, lock=True).{file}_amount
        after = load_{file}(session, invoice_id)
        if before != after:
            store_{file}(session, invoice_id, after)
            changed += 1
    return changed


def describe_{file}(session: Session, invoice_id: int) -> dict[str, str]:
    """What the support desk sees: the amount, how it came about, and when it was written last."""
    invoice = fetch_invoice(session, invoice_id, lock=False)
    return {{
        "number": invoice.number,
        "customer": invoice.customer.name,
        "amount": f"{{load_{file}(session, invoice_id)}} {{invoice.currency.code}}",
        "items": str(len(invoice.items)),
        "changed_at": invoice.changed_at.isoformat(timespec="seconds"),
    }}
'''


def _test_output(file: str) -> str:
    names = ("loads", "stores", "refreshes", "describes", "skips_cancelled", "rounds_half_even", "locks_rows")
    lines = [f"tests/test_{file}.py::test_{name}_{file} PASSED" for name in names]
    platform = "platform linux -- Python 3.12.4, pytest-8.3.3, pluggy-1.5.0\nrootdir: /work/invoicing"
    start, end = "===== test session starts =====", f"===== {len(lines)} passed in 0.41s ====="
    return "\n".join([start, platform, *_SAID_BY_TESTS.get(file, ()), *lines, end])
