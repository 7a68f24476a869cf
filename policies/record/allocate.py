"""Allocation of a record's room: which lines of each block are shown."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from policies.conversation.transcript import CountTokens
from policies.record.left_out import LeftOut, rest_of

# Limits in characters for the lines of a block, tried in this order until all lines fit.
_LIMITS = (300, 160, 80, 40)
_MARK = " …"
# A line is not tried if less room than this is left, in tokens.
_LEAST_LINE = 4


class Line(NamedTuple):
    """A line of a block.

    place: its position among the lines of its title.
    items: how many things it represents.
    left_out: what is missing if the line is not shown; None if nothing is lost.
    """

    text: str
    place: tuple[int, int] = (0, 0)
    items: int = 1
    left_out: LeftOut | None = None


class Block(NamedTuple):
    """Lines under a title, the most important first.

    floor:    tokens reserved for this block.
    share:    maximum share of the room while a later block still needs room.
    note:     returns the line about the lines that are left out; None for no such line.
    is_whole: True if lines that do not fit are shortened instead of left out.
    heading:  tokens of its title.
    tokens:   what it takes next to its lines, for a block whose lines are chosen later.
    left_out: what belongs to the block and has no line.
    """

    title: str
    lines: Sequence[Line] = ()
    floor: int = 0
    share: float = 1.0
    note: Callable[[Sequence[Line]], str] | None = None
    is_whole: bool = False
    heading: int = 0
    tokens: int = 0
    left_out: Sequence[LeftOut] = ()


class Shown(NamedTuple):
    """The part of a block that is shown: its lines in the order of the block, and its note.

    tokens:   including the title.
    left_out: what is missing from the block.
    """

    lines: Sequence[Line] = ()
    note: str = ""
    tokens: int = 0
    left_out: Sequence[LeftOut] = ()


def allocate(blocks: Sequence[Block], room: int, count: CountTokens) -> list[Shown]:
    """Return the part of each block to show, within `room` tokens in all.

    The first pass gives each block its share, in order. The second gives the remaining room to the blocks in order.
    """
    full_blocks = [_show_all(block, count) for block in blocks]
    shown = [Shown(left_out=block.left_out) for block in blocks]
    needed = [min(block.floor, full.tokens) for block, full in zip(blocks, full_blocks, strict=True)]
    for is_shared in (True, False):
        for at, block in enumerate(blocks):
            free = room - sum(needed) + needed[at]
            if is_shared:
                free = min(free, max(int(block.share * room), needed[at]))
            if shown[at].tokens < full_blocks[at].tokens:
                shown[at] = full_blocks[at] if full_blocks[at].tokens <= free else _fit(block, free, count)
            needed[at] = max(needed[at] if is_shared else 0, shown[at].tokens)
    return shown


def _show_all(block: Block, count: CountTokens) -> Shown:
    tokens = block.tokens + cost_of((line.text for line in block.lines), count)
    return Shown(block.lines, "", tokens + block.heading if tokens else 0, block.left_out)


def _fit(block: Block, room: int, count: CountTokens) -> Shown:
    """Return as much of a block as fits into a room that is too small for all of it."""
    if block.tokens:
        return Shown((), "", max(0, min(block.tokens, room)))
    room_left, lines = room - block.heading, block.lines
    if block.note is not None:
        room_left -= count(block.note(lines)) + 1
    if block.is_whole:
        lines = _cut_to_fit(lines, room_left, count)
    fitting: list[Line] = []
    left_out = [*block.left_out]
    for original, line in zip(block.lines, lines, strict=True):
        is_kept = room_left >= _LEAST_LINE and (cost := count(line.text) + 1) <= room_left
        if is_kept:
            fitting.append(line)
            room_left -= cost
        left_out += _missing_of(original, line if is_kept else None)
    if not fitting:
        return Shown(left_out=left_out)
    note = block.note([line for line in block.lines if line not in fitting]) if block.note is not None else ""
    return Shown(fitting, note, room - room_left, left_out)


def _missing_of(original: Line, shown: Line | None) -> list[LeftOut]:
    """Return what is missing of a line that is left out or shortened."""
    if original.left_out is None or original is shown:
        return []
    if shown is None:
        return [original.left_out]
    remainder = rest_of(original.left_out, original.text, shown.text.removesuffix(_MARK))
    return [] if remainder is None else [remainder]


def _cut_to_fit(lines: Sequence[Line], room: int, count: CountTokens) -> Sequence[Line]:
    """Return the lines shortened to the largest limit at which all fit, or else to the smallest limit."""
    for limit in _LIMITS:
        lines = [_cut(line, limit) for line in lines]
        if cost_of((line.text for line in lines), count) <= room:
            break
    return lines


def _cut(line: Line, limit: int) -> Line:
    if len(line.text) <= limit:
        return line
    return line._replace(text=line.text[: limit - len(_MARK)].removesuffix(_MARK).rstrip() + _MARK)


def cost_of(lines: Iterable[str], count: CountTokens) -> int:
    """Return the tokens of lines, each with its line break."""
    return sum(count(line) + 1 for line in lines)
