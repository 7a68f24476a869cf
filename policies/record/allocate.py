"""The lines of a record that stand in its room: one function for all blocks."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from policies.conversation.transcript import CountTokens

# Characters that the lines of a block are cut to, one limit after the other, until all of them fit.
_LIMITS = (300, 160, 80, 40)
_MARK = " …"
# Below so many tokens no line is tried.
_LEAST_LINE = 4


class Line(NamedTuple):
    """One line. place: where it is shown among the lines of its title. items: how many things it stands for."""

    text: str
    place: tuple[int, int] = (0, 0)
    items: int = 1


class Block(NamedTuple):
    """Lines under a title, the most important first.

    floor:    tokens that no earlier block takes.
    share:    the share of the room that it takes at most, as long as a later block needs the rest.
    note:     returns the line about the lines that are left out; None for no such line.
    is_whole: True if lines that do not fit are cut, rather than left out.
    heading:  tokens of its title.
    tokens:   what it takes next to its lines, for a block whose lines are chosen later.
    """

    title: str
    lines: Sequence[Line] = ()
    floor: int = 0
    share: float = 1.0
    note: Callable[[Sequence[Line]], str] | None = None
    is_whole: bool = False
    heading: int = 0
    tokens: int = 0


class Shown(NamedTuple):
    """The lines of a block that are shown, in the order of the block, and its note. tokens: with the title."""

    lines: Sequence[Line] = ()
    note: str = ""
    tokens: int = 0


def allocate(blocks: Sequence[Block], room: int, count: CountTokens) -> list[Shown]:
    """Return what is shown of each block within `room` tokens.

    First every block gets its share, in order. What is left goes to the blocks in order, until they are whole.
    """
    wanted = [_whole(block, count) for block in blocks]
    shown = [Shown()] * len(blocks)
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
    return Shown(block.lines, "", tokens + block.heading if tokens else 0)


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
    for line in lines:
        if left < _LEAST_LINE:
            break
        cost = count(line.text) + 1
        if cost <= left:
            kept.append(line)
            left -= cost
    if not kept:
        return Shown()
    note = block.note([line for line in block.lines if line not in kept]) if block.note is not None else ""
    return Shown(kept, note, room - left)


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
