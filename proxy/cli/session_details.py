"""`concertina sessions show` and `export`: what is stored of a conversation, for people and for programs."""

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
# Tokens of the prompt before and after, and of the record; AFTER / BEFORE is the ratio.
_HEADINGS = ("MADE", "WHY", "MESSAGES", "CUT", "BEFORE", "AFTER", "RECORD", "BY", "CALLS", "SECONDS", "RATIO")
_TRIGGERS: Mapping[Trigger, str] = MappingProxyType(
    {
        "proactive": "window nearly full",
        "tool_execution": "window nearly full, amid tool calls",
        "background": "prepared in the background",
        "economy": "cheaper from now on",
        "manual": "asked for by an operator or a header",
        "client": "asked for by the client",
        "overflow_retry": "refused as too long",
    }
)
_CUTS: Mapping[str, str] = MappingProxyType(
    {"turn-boundary": "between turns", "round-boundary": "between tool calls", "best-effort": "where the least stays"}
)


class Details(msgspec.Struct, frozen=True):
    """What is stored of a session. generations: its records, the newest first. text: of the newest, if it is wanted."""

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
    """Return all that is stored of a session, as JSON. Raises AdminError."""
    return bytes(client.call(find_endpoint("export"), msgspec.Raw, {"label": session.label}, id=session.id))


def details(client: AdminClient, session: Session, *, with_text: bool) -> Details:
    """Return what is stored of a session. Raises AdminError."""
    label = {"label": session.label}
    stored = client.call(find_endpoint("records"), _Records, label, id=session.id)
    text = None
    if with_text and stored.records:
        digest = (_in_use(stored.records) or stored.records[0]).digest
        text = client.call(find_endpoint("record"), _RecordText, label, id=session.id, digest=digest).text
    return Details(session, stored.records, stored.lineage, text)


def show(found: Details, console: Console) -> None:
    for line in _sentences(found):
        console.print(line)
    if found.generations:
        print_table(_table(found.generations), console)
    if found.text is not None:
        console.print()
        for line in found.text.splitlines():
            console.print(plain(line), soft_wrap=True)


def _sentences(found: Details) -> Iterator[str]:
    session, made = found.session, found.generations
    label = f", {plain(session.label)}" if session.label else ""
    yield f"{session.id[:_SHOWN]}{label}: {plain(session.model)}, last used {moment(session.seen)}"
    if session.record is None:
        yield "nothing of it was summarised"
    elif not made:
        yield "its records are gone or cannot be read here; is store.encryption_key that of the proxy?"
    else:
        in_use = _in_use(made)
        spent = [each.making.spent for each in made]
        usd = None if any(each.usd is None for each in spent) else sum(each.usd or 0.0 for each in spent)
        tokens = sum(each.prompt_tokens + each.completion_tokens for each in spent)
        number, calls = _counts(found)
        price = "" if usd is None else f", ${usd:,.2f}"
        those = "" if number == len(made) else f"the {len(made)} that are kept "
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


def _in_use(made: Sequence[RecordRow]) -> RecordRow | None:
    """Return the newest record that was not undone."""
    return next((each for each in made if not each.undone), None)


def _counts(found: Details) -> tuple[int, int]:
    """Summaries that were made of it, as the page counts them, and their calls; the oldest may be kept no more."""
    made, lineage = found.generations, found.lineage
    if lineage is not None and lineage.compactions >= len(made):
        return lineage.compactions, lineage.calls
    return len(made), sum(each.making.calls for each in made)


def _plural(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _table(generations: Sequence[RecordRow]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("DIGEST", no_wrap=True, min_width=_SHOWN)
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading in _LEFT else "right", no_wrap=True)
    for one in generations:
        making, tokens = one.making, one.making.tokens
        table.add_row(
            one.digest[:_SHOWN],
            moment(one.made),
            f"{_TRIGGERS[making.trigger]}, undone" if one.undone else _TRIGGERS[making.trigger],
            str(one.covered),
            _CUTS.get(making.split_strategy, making.split_strategy),
            f"{tokens.before:,}",
            f"{tokens.after:,}",
            f"{one.tokens:,}",
            plain(making.model) or making.algorithm,
            str(making.calls),
            f"{making.latency_ms / 1000:.1f}",
            f"{one.ratio:.0%}",
        )
    return table
