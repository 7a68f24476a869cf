"""`concertina sessions show` and `export`: a stored conversation for people and for programs."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec
from rich.console import Console
from rich.table import Table

from policies.decision.plan import Trigger
from policies.record.lineage import Lineage
from proxy.admin.endpoints import find_endpoint
from proxy.admin.sessions.records import RecordRow
from proxy.cli.admin_client import AdminClient
from proxy.cli.common import moment, plain, print_table
from proxy.sessions.index import Session

_SHOWN = 16
_LEFT = ("MADE", "WHY", "CUT", "BY")
# Tokens of the prompt before and after, and of the record. RATIO is AFTER / BEFORE.
_HEADINGS = ("MADE", "WHY", "MESSAGES", "CUT", "BEFORE", "AFTER", "RECORD", "BY", "CALLS", "SECONDS", "RATIO")
_TRIGGERS: Mapping[Trigger, str] = MappingProxyType(
    {
        "proactive": "window nearly full",
        "tool_execution": "window nearly full, during tool calls",
        "background": "prepared in the background",
        "economy": "saves cost from now on",
        "manual": "requested by an operator or a header",
        "client": "requested by the client",
        "overflow_retry": "refused as too long",
    }
)
CUTS: Mapping[str, str] = MappingProxyType(
    {"turn-boundary": "between turns", "round-boundary": "between tool calls", "best-effort": "minimum kept"}
)


class Details(msgspec.Struct, frozen=True):
    """A stored session.

    generations: its records, the newest first. text: of the newest record, if requested.
    """

    session: Session
    generations: list[RecordRow]
    lineage: Lineage | None
    text: str | None = None


class _Records(msgspec.Struct):
    records: list[RecordRow]
    lineage: Lineage | None = None


class _RecordText(msgspec.Struct):
    text: str


def export(client: AdminClient, session: Session) -> bytes:
    """Return everything that is stored of a session, as JSON. Raises AdminError."""
    return bytes(client.call(find_endpoint("export"), msgspec.Raw, {"label": session.label}, id=session.id))


def details(client: AdminClient, session: Session, *, with_text: bool) -> Details:
    """Return the details of a stored session. Raises AdminError."""
    label = {"label": session.label}
    stored = client.call(find_endpoint("records"), _Records, label, id=session.id)
    text = None
    if with_text and stored.records:
        digest = (_in_use(stored.records) or stored.records[0]).digest
        text = client.call(find_endpoint("record"), _RecordText, label, id=session.id, digest=digest).text
    return Details(session, stored.records, stored.lineage, text)


def show(details: Details, console: Console) -> None:
    """Print a session in sentences, a table of its records, and the record's text if requested."""
    for line in _sentences(details):
        console.print(line)
    if details.generations:
        print_table(_table(details.generations), console)
    if details.text is not None:
        console.print()
        for line in details.text.splitlines():
            console.print(plain(line), soft_wrap=True)


def _sentences(details: Details) -> Iterator[str]:
    session, records = details.session, details.generations
    label = f", {plain(session.label)}" if session.label else ""
    yield f"{session.id[:_SHOWN]}{label}: {plain(session.model)}, last used {moment(session.seen)}"
    if session.record is None:
        yield "no message was summarised"
    elif not records:
        yield "its records expired, or cannot be decrypted: use the proxy's store.encryption_key"
    else:
        in_use = _in_use(records)
        spent = [each.making.spent for each in records]
        usd = None if any(each.usd is None for each in spent) else sum(each.usd or 0.0 for each in spent)
        tokens = sum(each.prompt_tokens + each.completion_tokens for each in spent)
        number, calls = _counts(details)
        price = "" if usd is None else f", ${usd:,.2f}"
        those = "" if number == len(records) else f"the {len(records)} stored ones "
        title = f'; "{plain(in_use.title)}"' if in_use and in_use.title else ""
        sent = (
            f"its first {in_use.covered} messages are sent as a record of {in_use.tokens:,} tokens;"
            if in_use
            else "its records were undone;"
        )
        yield (
            f"{sent} {_plural(number, 'summary', 'summaries')} took {_plural(calls, 'call', 'calls')},"
            f" {those}{tokens:,} tokens{price}{title}"
        )


def _in_use(records: Sequence[RecordRow]) -> RecordRow | None:
    """Return the newest record that was not undone."""
    return next((each for each in records if not each.undone), None)


def _counts(details: Details) -> tuple[int, int]:
    """Return the numbers of summaries and of calls, as on the page. The oldest records may be gone."""
    records, lineage = details.generations, details.lineage
    if lineage is not None and lineage.compactions >= len(records):
        return lineage.compactions, lineage.calls
    return len(records), sum(each.making.calls for each in records)


def _plural(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def _table(generations: Sequence[RecordRow]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("DIGEST", no_wrap=True, min_width=_SHOWN)
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading in _LEFT else "right", no_wrap=True)
    for record in generations:
        making, tokens = record.making, record.making.tokens
        table.add_row(
            record.digest[:_SHOWN],
            moment(record.made),
            f"{_TRIGGERS[making.trigger]}, undone" if record.undone else _TRIGGERS[making.trigger],
            str(record.covered),
            CUTS.get(making.split_strategy, making.split_strategy),
            f"{tokens.before:,}",
            f"{tokens.after:,}",
            f"{record.tokens:,}",
            plain(making.model) or making.algorithm,
            str(making.calls),
            f"{making.latency_ms / 1000:.1f}",
            f"{record.ratio:.0%}",
        )
    return table
