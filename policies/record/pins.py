"""Pins: texts that stay in every prompt word for word, and the block of a record that holds them.

A policy's matches, a request's matches and `<pin>…</pin>` in the words of operators and people name them
(docs/memory.md, "Pins"). Marks in tool results, assistant messages and client-generated texts are ignored.
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
"""Maximum pins of one conversation. The newest are kept."""
HEAD = -1
"""The position of texts before the conversation, which are sent with every request."""
HOLDS = (b"<pin>", b"<pin\\u003", b"u003cpin", b"u003Cpin")
"""Byte strings that reveal a mark. A request with a mark contains at least one, however its JSON is written."""
_OPENING, _CLOSING = "<pin>", "</pin>"
# Prefixes of the keys of marks: in the words of operators and people, and in files of rules.
_OF_WORDS, _OF_RULES = "mark:", "rules:"
_MOST_MARKS = 32
_HEARD = ("person", "instructions")
# Maximum calls whose results are pending at the same time.
_MOST_WAITING = 200
_REMINDER, _REMINDER_END = "\n<system-reminder>", "</system-reminder>"
# The mark of `shorten` for the text that it leaves out.
_CUT = re.compile(r"\n\[… [\d,]{1,20} characters left out …\]\n")
_SHOWN = 160
_MOST_NAMED = 300
_BACKTICKS = re.compile(r"`{3,}")
_LEAST_FENCE = 3
_FENCE = re.compile(r"`{3,200}")
_SOURCE = "### "

Origin = Literal["policy", "header", "mark"]
"""The source of a pin. If room is short, the pins of an earlier source come first."""
_ORDER: Mapping[Origin, int] = {"policy": 0, "header": 1, "mark": 2}


class Pin(msgspec.Struct, frozen=True):
    """A text that stays in every prompt.

    key: identifies a newer text that replaces it. It contains none of the user's text.
    source: its description for people.
    position: of its message in the conversation, or `HEAD`.
    text: empty if no record had room for it and its message is gone.
    """

    origin: Origin
    key: str
    source: str
    position: int
    text: str


class Matches(NamedTuple):
    """The matches of a policy and of a request, as `check_pin_match` returns them."""

    policy: tuple[str, ...] = ()
    header: tuple[str, ...] = ()


class _Reading(NamedTuple):
    """A call whose result is a pin.

    replaces: prefix of the keys of file parts that a whole file replaces; else empty.
    """

    id: str
    call: ToolCall
    origin: Origin
    key: str
    source: str
    replaces: str = ""


@dataclass(frozen=True, slots=True)
class Pinned:
    """The pins of the first messages of a conversation.

    pins: oldest first.
    waiting: calls without a result yet.
    matched: positions of all results that were ever a pin.
    """

    pins: tuple[Pin, ...] = ()
    waiting: tuple[_Reading, ...] = ()
    matched: frozenset[int] = field(default_factory=frozenset)


def update_pins(
    older: Pinned, utterances: Sequence[Utterance], matches: Matches, read_by: FileReadBy = file_read_by
) -> Pinned:
    """Return the pins with those of further messages. A newer text replaces an older one with the same key."""
    pins_by_key = {pin.key: pin for pin in older.pins}
    waiting = {reading.id: reading for reading in older.waiting}
    matched = set(older.matched)
    results = _results_by_position(utterances)
    for utterance in utterances:
        for call in utterance.calls:
            if (reading := _reading_of(call, matches, read_by)) is not None:
                waiting[call.id] = reading
        if utterance.role == "tool":
            reading = waiting.pop(utterance.answers or "", None)
            if (
                reading is not None
                and (text := _text_of(utterance, reading.call))
                and not _is_shortened(text, pins_by_key.get(reading.key))
            ):
                _add_pin(
                    pins_by_key,
                    Pin(reading.origin, reading.key, reading.source, utterance.position, text),
                    reading.replaces,
                )
                matched.add(utterance.position)
        elif _may_mark(utterance) and not any(
            utterance.text in result for result in results.get(utterance.position, ())
        ):
            _add_marks(pins_by_key, utterance)
    pins, waiting_newest = [*pins_by_key.values()][-MOST_PINS:], [*waiting.values()][-_MOST_WAITING:]
    return Pinned(tuple(pins), tuple(waiting_newest), frozenset(matched))


def _results_by_position(utterances: Iterable[Utterance]) -> dict[int, list[str]]:
    """Return the tool results by message. A tool may forge text of a person within its own result."""
    results: dict[int, list[str]] = {}
    for utterance in utterances:
        if utterance.role == "tool":
            results.setdefault(utterance.position, []).append(utterance.text)
    return results


def _add_pin(pins_by_key: dict[str, Pin], pin: Pin, replaces: str = "") -> None:
    """Append a pin, and drop those that it replaces."""
    _drop_keys(pins_by_key, replaces)
    pins_by_key.pop(pin.key, None)
    pins_by_key[pin.key] = pin


def _drop_keys(pins_by_key: dict[str, Pin], prefix: str) -> None:
    for key in [key for key in pins_by_key if prefix and key.startswith(prefix)]:
        del pins_by_key[key]


def _add_marks(pins_by_key: dict[str, Pin], utterance: Utterance) -> None:
    """Add the marks of an utterance. Those of a file of rules replace all earlier ones of that file."""
    texts = marked_texts(utterance.text if utterance.role == "user" else _operator_text(utterance.text))
    if utterance.voice != "instructions":
        for text in texts:
            _add_pin(pins_by_key, Pin("mark", f"{_OF_WORDS}{_hash_of(text)}", utterance.role, utterance.position, text))
        return
    prefix = f"{_OF_RULES}{_hash_of(utterance.by)} "
    _drop_keys(pins_by_key, prefix)
    for number, text in enumerate(texts):
        _add_pin(pins_by_key, Pin("mark", f"{prefix}{number}", _abbreviate(utterance.by), utterance.position, text))


def _operator_text(text: str) -> str:
    """Return the operator's text of a system message within a conversation, without text that the client generated."""
    return "\n".join(part.text for part in parts_of([text]) if part.voice in _HEARD)


def _hash_of(text: str) -> str:
    """Return a hash that identifies a text without revealing it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _text_of(utterance: Utterance, call: ToolCall) -> str:
    """Return the content of a result; empty for an error, and for a reference to an earlier result."""
    if utterance.error or pointer_in(utterance.text, call) is not None:
        return ""
    text = utterance.text
    while text.rstrip().endswith(_REMINDER_END) and (start := text.rfind(_REMINDER)) >= 0:
        text = text[:start]
    return text.strip("\n")


def _is_shortened(text: str, pinned: Pin | None) -> bool:
    """Return True if a gateway has shortened the pinned text to its beginning and end."""
    cut = _CUT.search(text)
    if cut is None or pinned is None:
        return False
    return len(text) < len(pinned.text) and pinned.text.startswith(text[: cut.start()])


def without_shortened(pinned: Pinned) -> Pinned:
    """Return the pins without texts that a compaction item has shortened: the full text is no longer known."""
    pins = (msgspec.structs.replace(pin, text="") if _CUT.search(pin.text) else pin for pin in pinned.pins)
    return replace(pinned, pins=tuple(pins))


def _reading_of(call: ToolCall, matches: Matches, read_by: FileReadBy) -> _Reading | None:
    """Return the reading of a call whose tool or file a match names; else None."""
    file_and_part: tuple[str, str] | None = None
    matches_by_origin: tuple[tuple[Origin, Sequence[str]], ...] = (
        ("policy", matches.policy),
        ("header", matches.header),
    )
    for origin, origin_matches in matches_by_origin:
        for match in origin_matches:
            kind, _, name = match.partition(":")
            if kind == "tool" and name == call.name:
                arguments = _canonical(call.arguments)
                key, source = f"tool:{name} {_hash_of(arguments)}", _abbreviate(f"{name} {arguments}".rstrip())
                return _Reading(call.id, call, origin, key, source)
            if kind == "file":
                file_and_part = file_and_part or _file_read_by(call, read_by)
                path, part = file_and_part
                if path and _matches_glob(path, name):
                    file = f"file:{_hash_of(path)} "
                    source = _abbreviate(f"{path} {part}".rstrip())
                    return _Reading(
                        call.id, call, origin, f"{file}{part and _hash_of(part)}", source, "" if part else file
                    )
    return None


def _file_read_by(call: ToolCall, read_by: FileReadBy) -> tuple[str, str]:
    """Return the file that a call reads, and the part of it. Return an empty name if it reads none."""
    if path := read_by(call):
        return normalized(path), ""
    request = asked_by(call) if script_in(call.name, call.arguments) is None else None
    if request is None:
        return "", ""
    return request.path, " ".join(f"{name}={value}" for name, value in request.part)


def _matches_glob(path: str, glob: str) -> bool:
    """Return True if a path matches a glob, as a whole or from a folder on."""
    glob = posixpath.normpath(glob)
    return fnmatchcase(path, glob) or fnmatchcase(path, f"*/{glob}")


def _canonical(arguments: str) -> str:
    """Return arguments in a canonical form that does not depend on how their JSON is written."""
    try:
        value = read(arguments)
    except UnreadError:
        return arguments
    return msgspec.json.encode(value, order="deterministic").decode() if value != {} else ""


def _abbreviate(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"


def _may_mark(utterance: Utterance) -> bool:
    """Return True if marks in an utterance count: a system prompt, a person's words, a file of rules."""
    return utterance.role in INSTRUCTION_ROLES or (utterance.role == "user" and utterance.voice in _HEARD)


def marked_texts(text: str) -> list[str]:
    """Return the texts between marks, in order. A mark without an end is ignored."""
    marked: list[str] = []
    at = 0
    while len(marked) < _MOST_MARKS and (start := text.find(_OPENING, at)) >= 0:
        end = text.find(_CLOSING, start)
        if end < 0:
            break
        if inner := text[start + len(_OPENING) : end].strip():
            marked.append(inner)
        at = end + len(_CLOSING)
    return marked


def with_head_pins(pins: Sequence[Pin], texts: Iterable[str]) -> tuple[Pin, ...]:
    """Return the pins with those that are marked in a system prompt, each once."""
    head_pins = [
        Pin("mark", f"{_OF_WORDS}{_hash_of(marked)}", "system", HEAD, marked)
        for text in texts
        for marked in marked_texts(text)
    ]
    return tuple({pin.key: pin for pin in (*head_pins, *pins)}.values())


class SeparatePositions(NamedTuple):
    """Positions of covered messages that are sent next to a record.

    whole: sent unchanged. said: only a person's words are sent. rules: only files of rules are sent.
    """

    whole: frozenset[int]
    said: frozenset[int]
    rules: frozenset[int]


def is_sent_separately(pin: Pin, beside: SeparatePositions) -> bool:
    """Return True if the text of a pin is sent next to a record."""
    if pin.position in beside.whole:
        return True
    if pin.key.startswith(_OF_RULES):
        return pin.position in beside.rules
    return pin.key.startswith(_OF_WORDS) and pin.position in beside.said


class SpanPins(NamedTuple):
    """The pins of everything covered: those that the record must hold, and those that are sent next to it."""

    held: tuple[Pin, ...] = ()
    beside: tuple[Pin, ...] = ()


@dataclass(frozen=True, slots=True)
class PinBlock:
    """The lines of the pins in a record, and all pins. Pins that did not fit have no text."""

    lines: Sequence[str] = ()
    pins: tuple[Pin, ...] = ()


def carried_text(text: str) -> str:
    """Return the text of a pin as a record holds it. Tags of the proxy and of chat templates are disarmed."""
    return disarm(text)


def pins_block(pins: Sequence[Pin], texts: Texts, room: int, count: CountTokens) -> PinBlock:
    """Return the pins that fit into `room` tokens, each whole or not at all. Sort by source, then newest first."""
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
    carried = (pin if pin.key in shown else msgspec.structs.replace(pin, text="") for pin in pins)
    return PinBlock(["", f"## {texts.pinned}", *lines] if lines else [], tuple(carried))


def _lines_of(pin: Pin) -> list[str]:
    """Return a text below its source. No line of the text can end the fence around it."""
    fence = "`" * max(_LEAST_FENCE, 1 + max(map(len, _BACKTICKS.findall(pin.text)), default=0))
    return ["", f"{_SOURCE}{escape(pin.source)}", fence, pin.text, fence]


def _left_out_line(pins: Sequence[Pin], texts: Texts) -> str:
    sources = escape(", ".join(dict.fromkeys(pin.source for pin in pins)))
    sources = sources if len(sources) <= _MOST_NAMED else f"{sources[:_MOST_NAMED]} …"
    return texts.pins_left_out.format(sources=sources)


def without_pins(lines: Sequence[str], texts: Texts) -> tuple[list[str], tuple[Pin, ...]]:
    """Split the lines after the opening of a record: those without its pins, and the pins as marks.

    The pins are the first block of a record. A similar block further down is the text of another author.
    """
    at = _next_line(lines, 0)
    if at == len(lines) or lines[at] != f"## {texts.pinned}":
        return [*lines], ()
    pins: list[Pin] = []
    at = _next_line(lines, at + 1)
    while at + 1 < len(lines) and lines[at].startswith(_SOURCE) and _FENCE.fullmatch(lines[at + 1]):
        fence = lines[at + 1]
        end = next((end for end in range(at + 2, len(lines)) if lines[end] == fence), None)
        if end is None or len(pins) == MOST_PINS:
            break
        text = "\n".join(lines[at + 2 : end])
        pins.append(Pin("mark", f"{_OF_WORDS}{_hash_of(text)}", lines[at].removeprefix(_SOURCE), HEAD + 1, text))
        at = _next_line(lines, end + 1)
    note_start, _, note_end = texts.pins_left_out.partition("{sources}")
    if at < len(lines) and lines[at].startswith(note_start) and lines[at].endswith(note_end):
        at += 1
    return [*lines[at:]], tuple(pins)


def _next_line(lines: Sequence[str], at: int) -> int:
    """Return the index of the first line from `at` on that is not empty."""
    return next((at for at in range(at, len(lines)) if lines[at]), len(lines))
