"""One thing a user said, as the ledger carries it."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from policies.conversation.transcript import escape

Kind = Literal["task", "directive", "fact", "message", "pasted"]

HARD, PREFERENCE, WEAK = 0, 1, 2
"""Ranks of directives: bans, obligations and limits; preferences, decisions and corrections; "use", "keep"."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One sentence of a user message, verbatim. `position` is the message's index in the body.

    kind: `task` is what the first user message says next to rules and facts; `pasted` the ends of code or a log.
    rank: of directives, see HARD; lower goes first. used: whether tool calls used an identifier of it.
    opening: said in the first user message. replaced: how many statements it stands in the place of.
    """

    kind: Kind
    text: str
    position: int
    order: int = 0
    rank: int = 0
    used: bool = False
    opening: bool = False
    replaced: int = 0


def order_of(entry: Entry) -> tuple[int, int]:
    """When it was said: message, then place in it."""
    return (entry.position, entry.order)


def statements(entries: Iterable[Entry]) -> int:
    """How many statements they are, with those that they replaced."""
    return sum(1 + entry.replaced for entry in entries)


def folded(entry: Entry) -> str:
    """Return the text by which an entry is compared with others."""
    return entry.text.lower()


def line(entry: Entry, also: Iterable[int] = ()) -> str:
    """Return one entry as the record shows it. also: positions of older messages that say the same."""
    mark = "> " if entry.kind == "pasted" else ""
    places = ", ".join(map(str, (*also, entry.position)))
    return f"- [{places}] {mark}{escape(' '.join(entry.text.split()))}"
