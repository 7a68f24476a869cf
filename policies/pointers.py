"""Results that only point to an earlier one, and what they point to (docs/memory.md, "What a client points to").

A client that has sent a file answers the next reading of it with a line: "File unchanged since last read". It cannot
know that a record or a short form stands for the first one by now. So the text is put back into the pointer's place.

All is found in the request alone. What is put back is a function of the messages up to the pointer, and whether it is
put back one of the cut and the batches of short forms before it: a pointer changes only if something before it does.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, NamedTuple

from policies import numbers
from policies.authorship.arguments import UnreadError, path_of, read
from policies.conversation.conversation import Span
from policies.conversation.transcript import ToolCall, Utterance
from policies.tables import read_table
from policies.tool_calls.calls import Done, Judge, judge_call
from policies.tool_calls.tools import arguments_of, commands_in, reads_file, words_of
from policies.vocabulary import arguments_of_sort

LONGEST = 1_000
"""Characters of a result that may be a pointer."""
# Calls that are looked at for one pointer, the newest first.
_MOST_CALLS = 400
_MOST_EDITS = 50
# Of a text that does not fit, characters from its beginning and from its end.
_EXCERPT = 5 * numbers.EXCERPT
_WRITTEN = ("written", "created", "overwritten")
_PARTS = frozenset(arguments_of_sort("part"))
_CONTENTS, _DIFFS = arguments_of_sort("content"), arguments_of_sort("diff")
_OLD, _NEW, _LISTS = arguments_of_sort("old"), arguments_of_sort("new"), arguments_of_sort("edits")
_BLOCK = "Contents of "
# What follows the block of a file.
_BLOCK_ENDS = ("\nContents of ", "\n# currentDate", "\n</system-reminder>", "\n      IMPORTANT: this context")
# How the text is introduced. The sameness that the pointer told of stays said.
_READ = "[unchanged: the text of the earlier reading, put back here by the gateway]"
_WROTE = "[unchanged: the text that was written, put back here by the gateway]"
_SHOWN = "[unchanged: the text from above, put back here by the gateway]"
_SHORTENED = "shortened; read the lines you need with offset and limit"


class _Row(NamedTuple):
    """One row of `pointers.toml`: the one or the other tells its pointers."""

    says: re.Pattern[str] | None
    fields: Mapping[str, object] | None


_FILE = read_table("policies", "pointers")["pointers"]
_ROWS = tuple(
    _Row(re.compile(rf"\s{{0,20}}{row['says']}") if "says" in row else None, row.get("fields")) for row in _FILE
)
HOLDS: tuple[bytes, ...] = tuple(dict.fromkeys(row["holds"].encode() for row in _FILE))
"""Pieces of which a request with a pointer holds one, however its JSON is written."""


class Asked(NamedTuple):
    """What a call asks to read. path: normalized; empty if the tool reads no file, and is told by its name.

    part: the arguments that leave a part out; of a tool that reads no file, all arguments.
    """

    tool: str
    path: str
    part: tuple[tuple[str, str], ...]


class Pointer(NamedTuple):
    """A result that points to an earlier one. block: the file whose block "Contents of …" is meant, None for a result.

    rest: what stands behind the pointer in the same result.
    """

    asked: Asked
    rest: str = ""
    block: str | None = None


class Exchange(NamedTuple):
    """A call and its result. position, number: of the result's message, and of the result in it.

    made: the position of the call's message. answer: None without a result, or if it holds media.
    """

    call: ToolCall
    made: int
    position: int
    number: int
    answer: Utterance | None


class Edit(NamedTuple):
    """A change to a file as its call has it: a patch, or the old and the new text."""

    new: str
    old: str | None = None
    is_patch: bool = False


class Place(NamedTuple):
    """Where a referent stands: the message, and of a result which one in it, else -1."""

    position: int
    number: int


@dataclass(frozen=True, slots=True)
class Referent:
    """What a pointer points to.

    sources: positions of all messages that its text is from. edits: of the file since then, oldest first.
    """

    place: Place
    how: Literal["read", "wrote", "shown"]
    text: str
    sources: tuple[int, ...]
    edits: tuple[Edit, ...] = ()


def pointer_in(text: str, call: ToolCall) -> Pointer | None:
    """Return the pointer that the result of a call is; None if it is anything else, or not of a tool that reads."""
    if len(text) > LONGEST:
        return None
    found = _matched(text)
    asked = None if found is None else asked_by(call)
    if found is None or asked is None:
        return None
    rest, block = found
    return Pointer(asked, rest, block)


def asked_by(call: ToolCall) -> Asked | None:
    """Return what a call of a tool that reads asks for; None for any other call."""
    words, arguments = words_of(call.name), arguments_of(call.arguments)
    if commands_in(words, arguments) or not reads_file(words, arguments):
        return None
    return _asked(call.name, arguments)


def _matched(text: str) -> tuple[str, str | None] | None:
    """Return what stands behind the pointer in a text, and the file whose block it names; None if it is no pointer."""
    for row in _ROWS:
        if row.says is not None and (match := row.says.match(text)):
            return text[match.end() :], match.groupdict().get("path")
        if row.fields is not None and _has_fields(text, row.fields):
            return "", None
    return None


def _has_fields(text: str, fields: Mapping[str, object]) -> bool:
    if not text.lstrip().startswith("{"):
        return False
    try:
        value = read(text)
    except UnreadError:
        return False
    return isinstance(value, dict) and all(value.get(key) == field for key, field in fields.items())


def _asked(tool: str, arguments: object) -> Asked:
    given = arguments if isinstance(arguments, dict) else {}
    path = path_of(given)
    parts = {_plain(key): str(value) for key, value in given.items() if value not in (None, "", False)}
    if path is not None:
        parts = {key: value for key, value in parts.items() if key in _PARTS}
    return Asked(tool if path is None else "", "" if path is None else normalized(path), tuple(sorted(parts.items())))


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def normalized(path: str) -> str:
    """Return a path as it is compared."""
    return posixpath.normpath(path.replace("\\", "/"))


def needle_of(asked: Asked) -> bytes:
    """Return a piece that every call has which reads or changes the same; empty if there is none for certain."""
    name = posixpath.basename(asked.path) or asked.tool
    pieces = re.findall(r"[A-Za-z0-9_.-]+", name)
    longest = max(pieces, key=len, default="")
    return longest.encode() if len(longest) > 1 else b""


def referent_of(asked: Asked, earlier: Iterable[Exchange], judge: Judge = judge_call) -> Referent | None:
    """Return what a pointer of this reading points to. earlier: the calls before it, the newest first.

    That is the newest reading of what was asked, else of the whole file, or the call that wrote the file. None without
    one, and if the file was changed since then in a way that no call quotes.
    """
    edits: list[Edit] = []
    sources: list[int] = []
    whole: Referent | None = None
    for exchange in islice(earlier, _MOST_CALLS):
        for done in reversed(judge(exchange.call, exchange.made, exchange.answer)):
            if done.outcome.result == "failed":
                continue
            if (text := _text_read(done)) and exchange.answer is not None:
                here = _asked(done.call.name, done.arguments)
                is_it = here == asked
                if is_it or (here == asked._replace(part=()) and asked.path and whole is None):
                    place = Place(exchange.position, exchange.number)
                    found = Referent(place, "read", text, (exchange.position, *sources), tuple(edits[::-1]))
                    if is_it:
                        return found
                    whole = found
            elif not asked.path or not changes_path(done, asked.path):
                continue
            elif (written := _written(done)) is not None:
                place = Place(exchange.made, -1)
                return Referent(place, "wrote", written, (exchange.made, *sources), tuple(edits[::-1]))
            else:
                made = [*_edits(done)]
                if not made or done.commands or len(edits) + len(made) > _MOST_EDITS:
                    return whole
                edits += reversed(made)
                sources.append(exchange.made)
    return whole


def _text_read(done: Done) -> str:
    """Return the text that a call has read, empty if it is none that reads or if that only points elsewhere."""
    if done.commands or not done.result or not reads_file(done.words, done.arguments):
        return ""
    is_pointer = len(done.result) <= LONGEST and _matched(done.result) is not None
    return "" if is_pointer else done.result


def changes_path(done: Done, path: str) -> bool:
    """Return True if a call may have changed the file; a command may name it from another folder."""
    return any(
        _is_same(normalized(other), path) for effect in done.effects for other in (effect.path, effect.other) if other
    )


def _is_same(one: str, other: str) -> bool:
    if one.startswith("/") != other.startswith("/"):
        return one.endswith(f"/{other}") or other.endswith(f"/{one}")
    return one == other


def _written(done: Done) -> str | None:
    """Return the text of a whole file that a call has written; None if it did something else."""
    if done.commands or not isinstance(done.arguments, dict) or {effect.deed for effect in done.effects} - {*_WRITTEN}:
        return None
    return _first(done.arguments, _CONTENTS)


def _edits(done: Done) -> Iterator[Edit]:
    """Yield what a call changes, in the order of its arguments."""
    if any(effect.deed not in ("modified", "appended", *_WRITTEN) for effect in done.effects):
        return
    if isinstance(done.arguments, str):
        yield Edit(done.arguments, is_patch=True)
        return
    given = done.arguments if isinstance(done.arguments, dict) else {}
    listed = [part for key in _LISTS if isinstance(parts := given.get(key), list) for part in parts]
    for part in (given, *listed):
        if not isinstance(part, dict):
            continue
        if (new := _first(part, _NEW)) is not None:
            yield Edit(new, _first(part, _OLD))
        elif (patch := _first(part, _DIFFS)) is not None:
            yield Edit(patch, is_patch=True)


def _first(given: Mapping[str, object], keys: Sequence[str]) -> str | None:
    return next((value for key in keys if isinstance(value := given.get(key), str)), None)


def block_in(text: str, path: str) -> str | None:
    """Return the block of a file in a text that shows several, without its heading; None without one."""
    at = text.find(f"{_BLOCK}{path}")
    if at < 0:
        return None
    start = text.find("\n", at)
    if start < 0 or text[at + len(_BLOCK) + len(path) : start].lstrip()[:1] not in ("", "(", ":"):
        return None
    ends = (end for sign in _BLOCK_ENDS if (end := text.find(sign, start)) >= 0)
    return text[start : min(ends, default=len(text))].strip("\n")


def whole_text(referent: Referent, rest: str) -> str:
    """Return what stands in a pointer's place: the text as it was, and the edits since. rest: see `Pointer`."""
    opening = {"read": _READ, "wrote": _WROTE, "shown": _SHOWN}[referent.how]
    return f"{opening}\n{referent.text}{''.join(_quoted(referent.edits))}{rest}"


def short_text(referent: Referent, rest: str) -> str:
    """Return the same if there is no room for it: beginning and end, visibly shortened."""
    left_out = len(referent.text) - 2 * _EXCERPT
    if left_out <= 0:
        return whole_text(referent, rest)
    text = f"{referent.text[:_EXCERPT]}\n[… {left_out:,} characters left out …]\n{referent.text[-_EXCERPT:]}"
    short = whole_text(replace(referent, text=text), rest)
    return f"[{_SHORTENED}]\n{short}"


def _quoted(edits: Sequence[Edit]) -> Iterator[str]:
    if edits:
        yield "\n[edited since then, the oldest edit first]"
    for number, edit in enumerate(edits, 1):
        if edit.old is not None:
            yield f"\n[edit {number}, old text]\n{edit.old}"
        yield f"\n[edit {number}, {'a patch' if edit.is_patch else 'new text'}]\n{edit.new}"


class Weighed(NamedTuple):
    """A pointer with its referent. number: of the result in its message.

    whole, short: tokens that its message gains by the text, and by the shortened one.
    """

    position: int
    number: int
    referent: Place
    whole: int
    short: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is put back. wholes, shorts: pointers that the text, or its beginning and end, stands for.

    spans: what other cuts would put back beside that.
    """

    wholes: tuple[Weighed, ...]
    shorts: tuple[Weighed, ...]
    spans: tuple[Span, ...]


def choose(
    pointers: Sequence[Weighed],
    covered: int,
    is_gone: Callable[[Place], bool],
    before: Callable[[int], int],
    room: int,
) -> Chosen:
    """Return which of the pointers behind `covered` messages get their text.

    The first pointer to a referent gets it, if that is gone. before: tokens of the prompt before a message, the record
    included; never what comes later. room: tokens that the prompt may have with the text.
    """
    wholes: list[Weighed] = []
    shorts: list[Weighed] = []
    spans: list[Span] = []
    firsts: dict[Place, Weighed] = {}
    lasts: dict[Place, int] = {}
    gained = 0
    for one in sorted(pointers):
        if one.position < covered:
            continue
        lasts[one.referent] = one.position
        if one.referent in firsts:
            continue
        firsts[one.referent] = one
        if not is_gone(one.referent):
            continue
        fits = before(one.position) + gained + one.whole <= room
        (wholes if fits else shorts).append(one)
        gained += one.whole if fits else one.short
        if not fits and one.whole <= room:
            spans.append(Span(covered, one.position, one.whole - one.short))
    holders = {*wholes, *shorts}
    for place, first in firsts.items():
        start = first.position if first in holders else max(place.position, covered)
        if start < lasts[place]:
            spans.append(Span(start, lasts[place], first.whole if first.whole <= room else first.short))
    return Chosen(tuple(wholes), tuple(shorts), tuple(spans))
