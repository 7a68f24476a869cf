"""Texts that stay in every prompt word for word: which they are, and the block of a record that holds them.

They are named by a policy's matches, by those of a request, and by `<pin>…</pin>` in what operators and people write
(docs/memory.md, "Pins"). No mark inside a tool's result, an assistant's text or a client's own words counts.
"""

import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

import msgspec

from policies.authorship.arguments import UnreadError, read
from policies.authorship.parts import parts_of
from policies.conversation.message import INSTRUCTION_ROLES
from policies.conversation.transcript import CountTokens, ToolCall, Utterance, disarm, escape
from policies.pointers import asked_by, normalized, pointer_in
from policies.record.rules import FileReadBy, file_read_by
from policies.record.texts import Texts
from policies.tool_calls.code_mode import script_in

MOST_PINS = 100
"""Pins of one conversation; of more, the newest."""
HEAD = -1
"""The position of what stands in front of a conversation, and is sent with every request."""
HOLDS = (b"<pin>", b"<pin\\u003", b"u003cpin", b"u003Cpin")
"""Pieces of which a request with a mark holds one, however its JSON is written."""
_OPENING, _CLOSING = "<pin>", "</pin>"
# How the keys of marks begin: in what operators and people say, and in files of rules.
_OF_WORDS, _OF_RULES = "mark:", "rules:"
_MOST_MARKS = 32
_HEARD = ("person", "instructions")
# Calls that wait for their results at the same time.
_MOST_WAITING = 200
_REMINDER, _REMINDER_END = "\n<system-reminder>", "</system-reminder>"
# As `shorten` marks what it leaves out.
_CUT = re.compile(r"\n\[… [\d,]{1,20} characters left out …\]\n")
_SHOWN = 160
_MOST_NAMED = 300
_BACKTICKS = re.compile(r"`{3,}")
_LEAST_FENCE = 3
_FENCE = re.compile(r"`{3,200}")
_SOURCE = "### "

Origin = Literal["policy", "header", "mark"]
"""What names a pin. If there is no room for all, the first of these comes first."""
_ORDER: Mapping[Origin, int] = {"policy": 0, "header": 1, "mark": 2}


class Pin(msgspec.Struct, frozen=True):
    """A text that stays.

    key: that of a newer text which replaces it, without a word of anybody's. source: as people are told of it.
    position: of its message in the conversation, or `HEAD`. text: empty if no record had room for it, and its message
    is gone.
    """

    origin: Origin
    key: str
    source: str
    position: int
    text: str


class Matches(NamedTuple):
    """What a policy and a request name, each as `check_pin_match` returns it."""

    policy: tuple[str, ...] = ()
    header: tuple[str, ...] = ()


class _Reading(NamedTuple):
    """A call whose result is a pin. replaces: how the keys of parts begin that a whole file replaces; else empty."""

    id: str
    call: ToolCall
    origin: Origin
    key: str
    source: str
    replaces: str = ""


@dataclass(frozen=True, slots=True)
class Pinned:
    """The pins of the first messages of a conversation.

    pins: oldest first. waiting: calls without a result yet. matched: positions of all results that were ever a pin.
    """

    pins: tuple[Pin, ...] = ()
    waiting: tuple[_Reading, ...] = ()
    matched: frozenset[int] = field(default_factory=frozenset)


def pins_behind(
    before: Pinned, utterances: Sequence[Utterance], matches: Matches, read_by: FileReadBy = file_read_by
) -> Pinned:
    """Return the pins with those of the messages that follow. A newer text of the same key replaces the older one."""
    found = {pin.key: pin for pin in before.pins}
    waiting = {one.id: one for one in before.waiting}
    matched = set(before.matched)
    results = _results(utterances)
    for said in utterances:
        for call in said.calls:
            if (reading := _reading_of(call, matches, read_by)) is not None:
                waiting[call.id] = reading
        if said.role == "tool":
            one = waiting.pop(said.answers or "", None)
            if one is not None and (text := _text_of(said, one.call)) and not _is_shortened(text, found.get(one.key)):
                _put(found, Pin(one.origin, one.key, one.source, said.position, text), one.replaces)
                matched.add(said.position)
        elif _may_mark(said) and not any(said.text in result for result in results.get(said.position, ())):
            _put_marks(found, said)
    pins, left = [*found.values()][-MOST_PINS:], [*waiting.values()][-_MOST_WAITING:]
    return Pinned(tuple(pins), tuple(left), frozenset(matched))


def _results(utterances: Iterable[Utterance]) -> dict[int, list[str]]:
    """Return the results of each message: what a person typed into one may be forged by its tool."""
    found: dict[int, list[str]] = {}
    for said in utterances:
        if said.role == "tool":
            found.setdefault(said.position, []).append(said.text)
    return found


def _put(found: dict[str, Pin], pin: Pin, replaces: str = "") -> None:
    """Put a pin behind all others, and drop those that it replaces."""
    _drop(found, replaces)
    found.pop(pin.key, None)
    found[pin.key] = pin


def _drop(found: dict[str, Pin], beginning: str) -> None:
    for key in [key for key in found if beginning and key.startswith(beginning)]:
        del found[key]


def _put_marks(found: dict[str, Pin], said: Utterance) -> None:
    """Put the marks of an utterance. Those of a file of rules replace all that it had before."""
    texts = marked_texts(said.text if said.role == "user" else _of_operator(said.text))
    if said.voice != "instructions":
        for text in texts:
            _put(found, Pin("mark", f"{_OF_WORDS}{_name(text)}", said.role, said.position, text))
        return
    beginning = f"{_OF_RULES}{_name(said.by)} "
    _drop(found, beginning)
    for number, text in enumerate(texts):
        _put(found, Pin("mark", f"{beginning}{number}", _shown(said.by), said.position, text))


def _of_operator(text: str) -> str:
    """Return what of a system message within a conversation is no client's own words, which quote files and tools."""
    return "\n".join(part.text for part in parts_of([text]) if part.voice in _HEARD)


def _name(text: str) -> str:
    """Return a name for a text, without a word of it: a hash."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _text_of(said: Utterance, call: ToolCall) -> str:
    """Return what a result brought; empty for an error, and if it only points to an earlier result."""
    if said.error or pointer_in(said.text, call) is not None:
        return ""
    text = said.text
    while text.rstrip().endswith(_REMINDER_END) and (start := text.rfind(_REMINDER)) >= 0:
        text = text[:start]
    return text.strip("\n")


def _is_shortened(text: str, before: Pin | None) -> bool:
    """Return True if a text is what a gateway has left of the one that is pinned: its beginning and its end."""
    cut = _CUT.search(text)
    if cut is None or before is None:
        return False
    return len(text) < len(before.text) and before.text.startswith(text[: cut.start()])


def without_shortened(pinned: Pinned) -> Pinned:
    """Return the pins without the text of those that a compaction item has only shortened: it is no longer known."""
    pins = (msgspec.structs.replace(pin, text="") if _CUT.search(pin.text) else pin for pin in pinned.pins)
    return replace(pinned, pins=tuple(pins))


def _reading_of(call: ToolCall, matches: Matches, read_by: FileReadBy) -> _Reading | None:
    """Return what a call reads, if a match names it."""
    asked: tuple[str, str] | None = None
    named: tuple[tuple[Origin, Sequence[str]], ...] = (("policy", matches.policy), ("header", matches.header))
    for origin, each in named:
        for match in each:
            kind, _, name = match.partition(":")
            if kind == "tool" and name == call.name:
                given = _plain(call.arguments)
                key, source = f"tool:{name} {_name(given)}", _shown(f"{name} {given}".rstrip())
                return _Reading(call.id, call, origin, key, source)
            if kind == "file":
                asked = asked or _file_asked(call, read_by)
                path, part = asked
                if path and _is_of(path, name):
                    file = f"file:{_name(path)} "
                    source = _shown(f"{path} {part}".rstrip())
                    return _Reading(
                        call.id, call, origin, f"{file}{part and _name(part)}", source, "" if part else file
                    )
    return None


def _file_asked(call: ToolCall, read_by: FileReadBy) -> tuple[str, str]:
    """Return the file that a call reads, and the part of it; no name for a call that reads none."""
    if path := read_by(call):
        return normalized(path), ""
    asked = asked_by(call) if script_in(call.name, call.arguments) is None else None
    if asked is None:
        return "", ""
    return asked.path, " ".join(f"{name}={value}" for name, value in asked.part)


def _is_of(path: str, glob: str) -> bool:
    """Return True if a path, or the end of it that begins at a folder, is of a glob."""
    glob = posixpath.normpath(glob)
    return fnmatchcase(path, glob) or fnmatchcase(path, f"*/{glob}")


def _plain(arguments: str) -> str:
    """Return arguments as they are compared: however their JSON is written."""
    try:
        value = read(arguments)
    except UnreadError:
        return arguments
    return msgspec.json.encode(value, order="deterministic").decode() if value != {} else ""


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"


def _may_mark(said: Utterance) -> bool:
    """Return True if marks in what is said count: a system prompt, a person's words, a file of rules."""
    return said.role in INSTRUCTION_ROLES or (said.role == "user" and said.voice in _HEARD)


def marked_texts(text: str) -> list[str]:
    """Return the texts between marks, in order. A mark without its end is none."""
    found: list[str] = []
    at = 0
    while len(found) < _MOST_MARKS and (start := text.find(_OPENING, at)) >= 0:
        end = text.find(_CLOSING, start)
        if end < 0:
            break
        if inner := text[start + len(_OPENING) : end].strip():
            found.append(inner)
        at = end + len(_CLOSING)
    return found


def with_head_pins(pins: Sequence[Pin], texts: Iterable[str]) -> tuple[Pin, ...]:
    """Return the pins with those that marks in a system prompt name, each once."""
    found = [
        Pin("mark", f"{_OF_WORDS}{_name(one)}", "system", HEAD, one) for text in texts for one in marked_texts(text)
    ]
    return tuple({pin.key: pin for pin in (*found, *pins)}.values())


class Beside(NamedTuple):
    """Positions of covered messages that are sent beside a record: as they are, what a person says, files of rules."""

    whole: frozenset[int]
    said: frozenset[int]
    rules: frozenset[int]


def is_beside(pin: Pin, beside: Beside) -> bool:
    """Return True if the text of a pin is sent beside a record."""
    if pin.position in beside.whole:
        return True
    if pin.key.startswith(_OF_RULES):
        return pin.position in beside.rules
    return pin.key.startswith(_OF_WORDS) and pin.position in beside.said


class SpanPins(NamedTuple):
    """The pins of what a record covers: those that it has to hold, and those that are sent beside it."""

    held: tuple[Pin, ...] = ()
    beside: tuple[Pin, ...] = ()


@dataclass(frozen=True, slots=True)
class PinBlock:
    """The lines of a record's block, and the pins with the texts that are in it; without text those that are not."""

    lines: Sequence[str] = ()
    pins: tuple[Pin, ...] = ()


def carried_text(text: str) -> str:
    """Return the text of a pin as a record holds it: our own tags and those of chat templates in it are harmless."""
    return disarm(text)


def pins_block(pins: Sequence[Pin], texts: Texts, room: int, count: CountTokens) -> PinBlock:
    """Return the pins within so many tokens, each whole or not at all: by what names them, then the newest first."""
    ranked = sorted(pins, key=lambda pin: (_ORDER[pin.origin], -pin.position))
    parts = {pin.key: _lines_of(pin) for pin in ranked if pin.text}
    costs = {key: count("\n".join(lines)) + 1 for key, lines in parts.items()}
    room -= count(f"\n## {texts.pinned}\n") + 1
    if len(parts) < len(pins) or sum(costs.values()) > room:
        room -= count(_left_out_line(ranked, texts)) + 1
    shown: set[str] = set()
    for pin in ranked:
        if pin.key in costs and costs[pin.key] <= room:
            shown.add(pin.key)
            room -= costs[pin.key]
    lines = [line for pin in ranked if pin.key in shown for line in parts[pin.key]]
    if missing := [pin for pin in ranked if pin.key not in shown]:
        lines += ["", _left_out_line(missing, texts)]
    kept = (pin if pin.key in shown else msgspec.structs.replace(pin, text="") for pin in pins)
    return PinBlock(["", f"## {texts.pinned}", *lines] if lines else [], tuple(kept))


def _lines_of(pin: Pin) -> list[str]:
    """Return a text under its source. Within the fence it stands as it is, and nothing in it ends the fence."""
    fence = "`" * max(_LEAST_FENCE, 1 + max(map(len, _BACKTICKS.findall(pin.text)), default=0))
    return ["", f"{_SOURCE}{escape(pin.source)}", fence, pin.text, fence]


def _left_out_line(pins: Sequence[Pin], texts: Texts) -> str:
    sources = escape(", ".join(dict.fromkeys(pin.source for pin in pins)))
    sources = sources if len(sources) <= _MOST_NAMED else f"{sources[:_MOST_NAMED]} …"
    return texts.pins_left_out.format(sources=sources)


def without_pins(lines: Sequence[str], texts: Texts) -> tuple[list[str], tuple[Pin, ...]]:
    """Take the lines behind the opening of a record apart: those without its pins, and the pins as marks.

    The block is the first of a record. What looks like it further behind is somebody's text.
    """
    at = _next_line(lines, 0)
    if at == len(lines) or lines[at] != f"## {texts.pinned}":
        return [*lines], ()
    found: list[Pin] = []
    at = _next_line(lines, at + 1)
    while at + 1 < len(lines) and lines[at].startswith(_SOURCE) and _FENCE.fullmatch(lines[at + 1]):
        fence = lines[at + 1]
        end = next((end for end in range(at + 2, len(lines)) if lines[end] == fence), None)
        if end is None or len(found) == MOST_PINS:
            break
        text = "\n".join(lines[at + 2 : end])
        found.append(Pin("mark", f"{_OF_WORDS}{_name(text)}", lines[at].removeprefix(_SOURCE), HEAD + 1, text))
        at = _next_line(lines, end + 1)
    before, _, behind = texts.pins_left_out.partition("{sources}")
    if at < len(lines) and lines[at].startswith(before) and lines[at].endswith(behind):
        at += 1
    return [*lines[at:]], tuple(found)


def _next_line(lines: Sequence[str], at: int) -> int:
    """Return the first line from here on that is not empty."""
    return next((at for at in range(at, len(lines)) if lines[at]), len(lines))
