"""The user's words in a record, ordered by importance for a room that is too small."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from policies.conversation.transcript import CountTokens, escape
from policies.record.allocate import Block, Line
from policies.record.left_out import left_out_of
from policies.statements import ledger
from policies.statements.entries import HARD, PREFERENCE, Entry, folded, line, order_of
from policies.statements.statements import read_statement

# Shares of the room: the maximum of the newest request, and the floor for one line of each message.
_REQUEST_SHARE, _MESSAGES_FLOOR = 0.5, 0.1
# In a room below this many tokens, rules and facts need all of it.
_SMALL_ROOM = 1_500
# Maximum older messages to list with a sentence that they repeat.
_MOST_TIMES = 20
_NONE: Mapping[str, Sequence[int]] = MappingProxyType({})


class WordBlocks(NamedTuple):
    """Blocks of a person's words: the task with the newest request, rules and decisions, and other statements.

    messages: one line of every other message.
    rest: further sentences, and pasted text.
    """

    request: Block
    rules: Block
    stated: Block
    messages: Block
    rest: Block


def word_blocks(entries: Sequence[Entry], request: int | None, room: int, title: str, count: CountTokens) -> WordBlocks:
    """Return the blocks of a person's words for a record of `room` tokens.

    request: position of the start of the newest request; None if unknown. In a small room it ranks as any other
    message.
    """
    entries_left = ledger.by_precedence(entries, room, count)
    request = request if room >= _SMALL_ROOM else None
    task = next((entry for entry in entries_left if entry.kind == "task"), None)
    newest, entries_left = _split(
        entries_left, lambda entry: entry is task or (request is not None and entry.position >= request)
    )
    newest_of = {folded(entry): order_of(entry) for entry in sorted(entries_left, key=order_of)}
    copies, entries_left = _split(entries_left, lambda entry: order_of(entry) != newest_of[folded(entry)])
    also: defaultdict[str, list[int]] = defaultdict(list)
    for entry in sorted(copies, key=order_of):
        also[folded(entry)].append(entry.position)
    rules, entries_left = _split(
        entries_left, lambda entry: entry.kind == "directive" and entry.rank in (HARD, PREFERENCE)
    )
    stated, entries_left = _split(entries_left, lambda entry: entry.kind not in ("message", "pasted"))
    shown_positions = {entry.position for entry in (*newest, *rules, *stated)}
    lines = {id(entry) for entry in _one_line_a_message(entries_left) if entry.position not in shown_positions}
    messages, remaining = _split(entries_left, lambda entry: id(entry) in lines)
    return WordBlocks(
        Block(title, _lines(newest), share=_REQUEST_SHARE),
        Block(title, _lines(rules, also)),
        Block(title, _lines(stated, also)),
        Block(title, _lines(messages, also), int(_MESSAGES_FLOOR * room) if room >= _SMALL_ROOM else 0, is_whole=True),
        Block(title, _lines(remaining, also)),
    )


def _split(entries: Sequence[Entry], belongs: Callable[[Entry], bool]) -> tuple[list[Entry], list[Entry]]:
    """Return the entries that belong, and those that do not."""
    belonging: list[Entry] = []
    not_belonging: list[Entry] = []
    for entry in entries:
        (belonging if belongs(entry) else not_belonging).append(entry)
    return belonging, not_belonging


def _one_line_a_message(entries: Sequence[Entry]) -> Collection[Entry]:
    """Return the most informative entry of each message: its first question, else its beginning."""
    best: dict[int, Entry] = {}
    for entry in sorted(entries, key=order_of):
        best_so_far = best.get(entry.position)
        if best_so_far is None or _information(entry) > _information(best_so_far):
            best[entry.position] = entry
    return best.values()


def _information(entry: Entry) -> int:
    return 0 if entry.kind == "pasted" else 2 if read_statement(entry.text).question else 1


def _lines(entries: Sequence[Entry], also: Mapping[str, Sequence[int]] = _NONE) -> list[Line]:
    """Return a line for each entry. also: positions of older messages with the same sentence, by its folded text."""
    lines: list[Line] = []
    for entry in entries:
        older = also.get(folded(entry), ())[-_MOST_TIMES:]
        items = 1 + entry.replaced + len(older)
        lines.append(Line(escape(line(entry, older)), order_of(entry), items, left_out_of(entry)))
    return lines
