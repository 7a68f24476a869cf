"""Entries of the ledger: single statements of a user."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from policies.conversation.transcript import escape

Kind = Literal["task", "directive", "fact", "message", "pasted"]

HARD, PREFERENCE, WEAK = 0, 1, 2
"""Ranks of directives. Hard: bans, obligations and limits. Preference: preferences, decisions and corrections. Weak:
"use", "keep".
"""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A sentence of a user message, verbatim.

    position: the message's index in the body.
    kind: `task` is text of the first user message that is neither rule nor fact; `pasted` the ends of code or a log.
    rank: of directives, see HARD. Lower ranks are shown first.
    used: True if tool calls used an identifier of it.
    opening: True if it is in the first user message.
    replaced: number of statements that it replaced.
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
    """Return the sort key of an entry: its message, then its place in the message."""
    return (entry.position, entry.order)


def statements(entries: Iterable[Entry]) -> int:
    """Return the number of statements, including those that they replaced."""
    return sum(1 + entry.replaced for entry in entries)


def folded(entry: Entry) -> str:
    """Return the text by which an entry is compared with others."""
    return entry.text.lower()


def line(entry: Entry, also: Iterable[int] = ()) -> str:
    """Return an entry as a line of the record. also: positions of older messages with the same statement."""
    mark = "> " if entry.kind == "pasted" else ""
    places = ", ".join(map(str, (*also, entry.position)))
    return f"- [{places}] {mark}{escape(' '.join(entry.text.split()))}"
