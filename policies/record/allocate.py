"""The lines of a record that stand in its room: one function for all blocks."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from policies.conversation.transcript import CountTokens
from policies.record.left_out import LeftOut, rest_of

# Characters that the lines of a block are cut to, one limit after the other, until all of them fit.
_LIMITS = (300, 160, 80, 40)
_MARK = " …"
# Below so many tokens no line is tried.
_LEAST_LINE = 4


class Line(NamedTuple):
    """One line. place: where it is shown among the lines of its title. items: how many things it stands for.

    left_out: what is missing if it is not shown; None if that is no loss.
    """

    text: str
    place: tuple[int, int] = (0, 0)
    items: int = 1
    left_out: LeftOut | None = None


class Block(NamedTuple):
    """Lines under a title, the most important first.

    floor:    tokens that no earlier block takes.
    share:    the share of the room that it takes at most, as long as a later block needs the rest.
    note:     returns the line about the lines that are left out; None for no such line.
    is_whole: True if lines that do not fit are cut, rather than left out.
    heading:  tokens of its title.
    tokens:   what it takes next to its lines, for a block whose lines are chosen later.
    left_out: what belongs to it and has no line.
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
    """The lines of a block that are shown, in the order of the block, and its note. tokens: with the title.

    left_out: what is missing of the block.
    """

    lines: Sequence[Line] = ()
    note: str = ""
    tokens: int = 0
    left_out: Sequence[LeftOut] = ()


def allocate(blocks: Sequence[Block], room: int, count: CountTokens) -> list[Shown]:
    """Return what is shown of each block within `room` tokens.

    First every block gets its share, in order. What is left goes to the blocks in order, until they are whole.
    """
    wanted = [_whole(block, count) for block in blocks]
    shown = [Shown(left_out=block.left_out) for block in blocks]
    needed = [min(block.floor, whole.tokens) for block, whole in zip(blocks, wanted, strict=True)]
    for is_shared in (True, False):
        for at, block in enumerate(blocks):
            free = room - sum(needed) + needed[at]
            if is_shared:
                free = min(free, max(int(block.share * room), needed[at]))
            if shown[at].tokens < wanted[at].tokens:
                shown[at] = wanted[at] if wanted[at].tokens <= free else _fitted(block, free, count)
            needed[at] = max(needed[at] if is_shared else 0, shown[at].tokens)
    return shown


def _whole(block: Block, count: CountTokens) -> Shown:
    tokens = block.tokens + cost_of((line.text for line in block.lines), count)
    return Shown(block.lines, "", tokens + block.heading if tokens else 0, block.left_out)


def _fitted(block: Block, room: int, count: CountTokens) -> Shown:
    """Return as much of a block as fits into a room that is too small for all of it."""
    if block.tokens:
        return Shown((), "", max(0, min(block.tokens, room)))
    left, lines = room - block.heading, block.lines
    if block.note is not None:
        left -= count(block.note(lines)) + 1
    if block.is_whole:
        lines = _cut_to_fit(lines, left, count)
    kept: list[Line] = []
    left_out = [*block.left_out]
    for whole, line in zip(block.lines, lines, strict=True):
        is_kept = left >= _LEAST_LINE and (cost := count(line.text) + 1) <= left
        if is_kept:
            kept.append(line)
            left -= cost
        left_out += _missing(whole, line if is_kept else None)
    if not kept:
        return Shown(left_out=left_out)
    note = block.note([line for line in block.lines if line not in kept]) if block.note is not None else ""
    return Shown(kept, note, room - left, left_out)


def _missing(whole: Line, shown: Line | None) -> list[LeftOut]:
    """Return what is missing of a line that is not shown, or shown cut."""
    if whole.left_out is None or whole is shown:
        return []
    if shown is None:
        return [whole.left_out]
    rest = rest_of(whole.left_out, whole.text, shown.text.removesuffix(_MARK))
    return [] if rest is None else [rest]


def _cut_to_fit(lines: Sequence[Line], room: int, count: CountTokens) -> Sequence[Line]:
    """Return the lines cut to the largest limit with which all of them fit; to the smallest if none is enough."""
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
