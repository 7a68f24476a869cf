"""Pointers: results that only refer to an earlier one, and their referents (docs/memory.md, "What a client points to").

A client that has sent a file replies to the next reading of it with a line: "File unchanged since last read". It does
not know that a record or short form may have replaced the first result. The proxy therefore restores the text at the
pointer.
Everything is found in the request alone. The restored text depends on the messages up to the pointer. Whether it is
restored depends on the cut and the batches of short forms before it. So a pointer changes only if something before it
does.
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
"""Maximum characters of a pointer."""
# Maximum calls to search for one pointer, the newest first.
_MOST_CALLS = 400
_MOST_EDITS = 50
# Characters of either end of a text that does not fit.
_EXCERPT = 5 * numbers.EXCERPT
_WRITTEN = ("written", "created", "overwritten")
_PARTS = frozenset(arguments_of_sort("part"))
_CONTENTS, _DIFFS = arguments_of_sort("content"), arguments_of_sort("diff")
_OLD, _NEW, _LISTS = arguments_of_sort("old"), arguments_of_sort("new"), arguments_of_sort("edits")
_BLOCK = "Contents of "
# The texts after the block of a file.
_BLOCK_ENDS = ("\nContents of ", "\n# currentDate", "\n</system-reminder>", "\n      IMPORTANT: this context")
# The introductions of a restored text. They still state that the file is unchanged, as the pointer did.
_READ = "[unchanged: the text of the earlier reading, put back here by the gateway]"
_WROTE = "[unchanged: the text that was written, put back here by the gateway]"
_SHOWN = "[unchanged: the text from above, put back here by the gateway]"
_SHORTENED = "shortened; read the lines you need with offset and limit"


class _Row(NamedTuple):
    """A row of `pointers.toml`. One of the two recognizes its pointers."""

    says: re.Pattern[str] | None
    fields: Mapping[str, object] | None


_FILE = read_table("policies", "pointers")["pointers"]
_ROWS = tuple(
    _Row(re.compile(rf"\s{{0,20}}{row['says']}") if "says" in row else None, row.get("fields")) for row in _FILE
)
HOLDS: tuple[bytes, ...] = tuple(dict.fromkeys(row["holds"].encode() for row in _FILE))
"""Byte strings that reveal a pointer. A request with a pointer contains at least one, however its JSON is written."""


class Asked(NamedTuple):
    """The object that a call reads.

    path: normalized; empty if the tool reads no file, and its name identifies the call.
    part: the arguments that select a part; all arguments for a tool that reads no file.
    """

    tool: str
    path: str
    part: tuple[tuple[str, str], ...]


class Pointer(NamedTuple):
    """A result that refers to an earlier one.

    block: the file whose block "Contents of …" is the referent; None if it is a result.
    rest: the text after the pointer in the same result.
    """

    asked: Asked
    rest: str = ""
    block: str | None = None


class Exchange(NamedTuple):
    """A call and its result.

    position, number: of the result's message, and of the result in it.
    made: position of the call's message.
    answer: None without a result, or if it has media.
    """

    call: ToolCall
    made: int
    position: int
    number: int
    answer: Utterance | None


class Edit(NamedTuple):
    """A change to a file in its call: a patch, or the old and the new text."""

    new: str
    old: str | None = None
    is_patch: bool = False


class Place(NamedTuple):
    """The place of a referent: its message, and the number of the result in it, else -1."""

    position: int
    number: int


@dataclass(frozen=True, slots=True)
class Referent:
    """The object of a pointer.

    sources: positions of all messages with its text.
    edits: of the file since then, oldest first.
    """

    place: Place
    how: Literal["read", "wrote", "shown"]
    text: str
    sources: tuple[int, ...]
    edits: tuple[Edit, ...] = ()


def pointer_in(text: str, call: ToolCall) -> Pointer | None:
    """Return the pointer that the result of a call is; None if it is none, or if the tool does not read."""
    if len(text) > LONGEST:
        return None
    match = _match_pointer(text)
    asked = None if match is None else asked_by(call)
    if match is None or asked is None:
        return None
    text_after, block = match
    return Pointer(asked, text_after, block)


def asked_by(call: ToolCall) -> Asked | None:
    """Return the object that a reading call asks for; None for any other call."""
    words, arguments = words_of(call.name), arguments_of(call.arguments)
    if commands_in(words, arguments) or not reads_file(words, arguments):
        return None
    return _asked_of(call.name, arguments)


def _match_pointer(text: str) -> tuple[str, str | None] | None:
    """Return the text after the pointer in a result, and the file whose block it names; None if it is no pointer."""
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


def _asked_of(tool: str, arguments: object) -> Asked:
    arguments_by_name = arguments if isinstance(arguments, dict) else {}
    path = path_of(arguments_by_name)
    parts = {_plain(key): str(value) for key, value in arguments_by_name.items() if value not in (None, "", False)}
    if path is not None:
        parts = {key: value for key, value in parts.items() if key in _PARTS}
    return Asked(tool if path is None else "", "" if path is None else normalized(path), tuple(sorted(parts.items())))


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def normalized(path: str) -> str:
    """Return a path in the form in which paths are compared."""
    return posixpath.normpath(path.replace("\\", "/"))


def needle_of(asked: Asked) -> bytes:
    """Return a piece of text that every call for the same object contains; empty if there may be none."""
    name = posixpath.basename(asked.path) or asked.tool
    pieces = re.findall(r"[A-Za-z0-9_.-]+", name)
    longest = max(pieces, key=len, default="")
    return longest.encode() if len(longest) > 1 else b""


def referent_of(asked: Asked, earlier: Iterable[Exchange], judge: Judge = judge_call) -> Referent | None:
    """Return the referent of a pointer for this reading. earlier: the calls before it, the newest first.

    That is the newest reading of the same part, else of the whole file, or the call that wrote the file. Return None
    without one, or if the file was changed since then in a way that no call quotes.
    """
    edits: list[Edit] = []
    sources: list[int] = []
    whole_file: Referent | None = None
    for exchange in islice(earlier, _MOST_CALLS):
        for done in reversed(judge(exchange.call, exchange.made, exchange.answer)):
            if done.outcome.result == "failed":
                continue
            if (text := _text_read(done)) and exchange.answer is not None:
                reading = _asked_of(done.call.name, done.arguments)
                is_it = reading == asked
                if is_it or (reading == asked._replace(part=()) and asked.path and whole_file is None):
                    place = Place(exchange.position, exchange.number)
                    referent = Referent(place, "read", text, (exchange.position, *sources), tuple(edits[::-1]))
                    if is_it:
                        return referent
                    whole_file = referent
            elif not asked.path or not changes_path(done, asked.path):
                continue
            elif (written := _written(done)) is not None:
                place = Place(exchange.made, -1)
                return Referent(place, "wrote", written, (exchange.made, *sources), tuple(edits[::-1]))
            else:
                call_edits = [*_edits(done)]
                if not call_edits or done.commands or len(edits) + len(call_edits) > _MOST_EDITS:
                    return whole_file
                edits += reversed(call_edits)
                sources.append(exchange.made)
    return whole_file


def _text_read(done: Done) -> str:
    """Return the text that a call has read; empty if it does not read, or if the result is a pointer."""
    if done.commands or not done.result or not reads_file(done.words, done.arguments):
        return ""
    is_pointer = len(done.result) <= LONGEST and _match_pointer(done.result) is not None
    return "" if is_pointer else done.result


def changes_path(done: Done, path: str) -> bool:
    """Return True if a call may have changed the file. A command may name it from another folder."""
    return any(
        _is_same_path(normalized(changed_path), path)
        for effect in done.effects
        for changed_path in (effect.path, effect.other)
        if changed_path
    )


def _is_same_path(path: str, other_path: str) -> bool:
    if path.startswith("/") != other_path.startswith("/"):
        return path.endswith(f"/{other_path}") or other_path.endswith(f"/{path}")
    return path == other_path


def _written(done: Done) -> str | None:
    """Return the text of a whole file that a call has written; None if it did something else."""
    if done.commands or not isinstance(done.arguments, dict) or {effect.deed for effect in done.effects} - {*_WRITTEN}:
        return None
    return _first(done.arguments, _CONTENTS)


def _edits(done: Done) -> Iterator[Edit]:
    """Yield the changes of a call, in the order of its arguments."""
    if any(effect.deed not in ("modified", "appended", *_WRITTEN) for effect in done.effects):
        return
    if isinstance(done.arguments, str):
        yield Edit(done.arguments, is_patch=True)
        return
    arguments = done.arguments if isinstance(done.arguments, dict) else {}
    listed = [part for key in _LISTS if isinstance(parts := arguments.get(key), list) for part in parts]
    for part in (arguments, *listed):
        if not isinstance(part, dict):
            continue
        if (new := _first(part, _NEW)) is not None:
            yield Edit(new, _first(part, _OLD))
        elif (patch := _first(part, _DIFFS)) is not None:
            yield Edit(patch, is_patch=True)


def _first(arguments: Mapping[str, object], keys: Sequence[str]) -> str | None:
    return next((value for key in keys if isinstance(value := arguments.get(key), str)), None)


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
    """Return the text that replaces a pointer: the original text, and the edits since. rest: see `Pointer`."""
    opening = {"read": _READ, "wrote": _WROTE, "shown": _SHOWN}[referent.how]
    return f"{opening}\n{referent.text}{''.join(_quoted(referent.edits))}{rest}"


def short_text(referent: Referent, rest: str) -> str:
    """Return the text that replaces a pointer if the whole does not fit: its beginning and end, visibly shortened."""
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

    whole, short: tokens that its message gains by the whole text, and by the shortened one.
    """

    position: int
    number: int
    referent: Place
    whole: int
    short: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """The pointers to restore, in full (wholes) or shortened (shorts).

    spans: tokens that other cuts would restore in addition.
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
    """Return which of the pointers after `covered` messages are restored.

    The first pointer to a referent is, if the referent is gone.
    before: tokens of the prompt before a message, including the record; never of later messages.
    room: maximum tokens of the prompt with the restored text.
    """
    wholes: list[Weighed] = []
    shorts: list[Weighed] = []
    spans: list[Span] = []
    first_by_referent: dict[Place, Weighed] = {}
    lasts: dict[Place, int] = {}
    gained = 0
    for pointer in sorted(pointers):
        if pointer.position < covered:
            continue
        lasts[pointer.referent] = pointer.position
        if pointer.referent in first_by_referent:
            continue
        first_by_referent[pointer.referent] = pointer
        if not is_gone(pointer.referent):
            continue
        fits = before(pointer.position) + gained + pointer.whole <= room
        (wholes if fits else shorts).append(pointer)
        gained += pointer.whole if fits else pointer.short
        if not fits and pointer.whole <= room:
            spans.append(Span(covered, pointer.position, pointer.whole - pointer.short))
    holders = {*wholes, *shorts}
    for place, first_pointer in first_by_referent.items():
        start = first_pointer.position if first_pointer in holders else max(place.position, covered)
        if start < lasts[place]:
            spans.append(
                Span(start, lasts[place], first_pointer.whole if first_pointer.whole <= room else first_pointer.short)
            )
    return Chosen(tuple(wholes), tuple(shorts), tuple(spans))
