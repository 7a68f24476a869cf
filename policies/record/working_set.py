"""The working set: names that the work used and may need again, with lines they stood in (docs/memory.md).

It goes from one record to the next as data, so that a compaction takes work in proportion to what it newly covers.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from operator import attrgetter

import msgspec

from policies.authorship.arguments import UnreadError, path_of, read, strings_in
from policies.conversation.transcript import CountTokens, Utterance, escape, shorten
from policies.memo import memoize
from policies.record.names import NamedText, NamesOf, Phrases, names_in, place_of
from policies.record.reports import without_tags
from policies.statements.sentences import prose_of
from policies.tool_calls.code_mode import inner_calls, printed_text
from policies.tool_calls.outcomes import output_in
from policies.tool_calls.reasons import is_framing, is_logged
from policies.tool_calls.tools import is_plan_tool, words_of

_MOST_NAMES = 2_000
# Of these, the first keep a line.
_MOST_LINES = 400
_LINE_CHARACTERS = 160
# A line that is longer is cut around its name to about so many.
_CUT_CHARACTERS = 48
# Shares of the room for lines: so much where names alone, which cost less and say less, want the rest, and at most.
_LEAST_SHARE, _MOST_SHARE = 0.4, 0.6
# Share of it for lines of names that one result alone holds.
_UNUSED_SHARE = 0.1
# Newest texts with a name from which its line is chosen.
_NEWEST = 3
# Messages after which a name counts half.
_HALF_LIFE = 150
# What a number counts that only tools have shown: mostly that of a line, a size or a time.
_NUMBER = 0.2
_LEAST_ROOM = 8
_NUMBER_ALONE = re.compile(r"\d{1,200}|(?=[a-f]{0,40}\d)[0-9a-f]{8,40}")
_JOINT = re.compile(r"[./]")
# Characters of one text that are read, at its beginning and its end: 4 MB of names would take seconds.
_READ = 200_000
_MOST_BYTES = 4_000_000
# Characters of a line in which noise is looked for.
_NOISE_READ = 400
# Characters of lines that were read for it and are remembered: many names stand in one line.
_NOISE_REMEMBERED = 400_000
_FAILED = "<tool_use_error>"
# What clients put into the user role is sent as it came, or nobody works with it.
_UNUSED = ("harness", "instructions")


class NameUse(msgspec.Struct, frozen=True, array_like=True):
    """How a name was used: in how many messages, and in how many of the agent's and of the user's.

    last: position of the newest message with it. line, source: a line it stands in, and the file or tool of that; a
    line without a source is not quoted.
    """

    name: str
    messages: int
    agent: int
    user: int
    last: int
    line: str = ""
    source: str = ""

    @property
    def is_used(self) -> bool:
        """Return True if it is not in one result alone: only then its line is worth much room."""
        return self.agent > 0 or self.user > 0 or self.messages > 1

    @property
    def is_shown_number(self) -> bool:
        """Return True for a number, also a hexadecimal one, that only tools have shown: alone it says nothing."""
        return not (self.agent or self.user) and _NUMBER_ALONE.fullmatch(self.name) is not None

    def worth(self, now: int) -> float:
        """The higher, the sooner it may be needed again, seen from position `now`."""
        used = 3 * self.agent + 2 * min(self.user, 2) + 0.3 * self.messages
        if self.is_shown_number:
            used *= _NUMBER
        return used / (1 + max(0, now - self.last) / _HALF_LIFE)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[NameUse]).decode


def pack_names(uses: Sequence[NameUse]) -> bytes:
    """For a record: a fifth of the size, and not spread over thousands of objects while nobody needs it."""
    return zlib.compress(_encode(uses)) if uses else b""


def unpack_names(data: bytes) -> list[NameUse]:
    """What was packed; nothing where that cannot be read, or is more than was ever packed."""
    if not data:
        return []
    try:
        return _decode(zlib.decompressobj().decompress(data, _MOST_BYTES))
    except (zlib.error, msgspec.DecodeError):
        return []


# Lines that say nothing of the work: a tag alone, how many steps are left, rows of a directory listing, licences, a
# status alone, that a call failed, which is told with the call, a frame of a stack, and a line of a log.
_NOISE = re.compile(
    r"\s{0,40}(?:</?[\w:.-]{1,60}>\s{0,20}\Z|(?:current )?step:? {1,3}\d{1,5} ?(?:/|of) ?\d"
    r"|</?(?:tool_use_)?error>|traceback \(most recent call last\):"
    r"|[^\n]{0,60}\bexit(?:ed)?\b[^\n]{0,20}\b\d{1,3}\W{0,3}\Z"
    r"|[\"']?(?:status|state)[\"']?\s{0,3}[:=]\s{0,3}[\"']?\w{1,30}\W{0,3}\Z"
    r"|[-dlbcps][r-][w-][xsS-][rwxsStT-]{6}|total \d{1,9}\s{0,20}\Z"
    r"|[#/*;%\s]{0,12}(?:copyright\b|licen[cs]ed under\b|spdx-license|permission is hereby granted)"
    r"|at [\w.$<>]{1,200} ?\()",
    re.IGNORECASE,
)
_FRAME = re.compile(r"\s{0,40}File \"[^\"\n]{1,300}\", line \d")


@dataclass(frozen=True, slots=True)
class _SpanText:
    """A text with names. source: where it is from; empty if no line of it is quoted."""

    text: str
    source: str


@dataclass(slots=True)
class _NameSpan:
    """What one span says of a name. texts: the indexes of those it stands in, oldest first."""

    messages: int = 0
    agent: int = 0
    user: int = 0
    last: int = 0
    texts: list[int] = field(default_factory=list)


def name_uses(
    parent: Sequence[NameUse], utterances: Sequence[Utterance], now: int, names: NamesOf = names_in
) -> list[NameUse]:
    """The names of everything covered, most worth first: the parent's and the span's. now: the position of the cut."""
    texts: list[_SpanText] = []
    found = _find_names(utterances, texts, names)
    uses = {use.name: use for use in parent}
    for name, new in found.items():
        old = uses.get(name)
        uses[name] = (
            NameUse(name, new.messages, new.agent, new.user, new.last)
            if old is None
            else NameUse(
                name,
                old.messages + new.messages,
                old.agent + new.agent,
                old.user + new.user,
                new.last,
                old.line,
                old.source,
            )
        )
    best = sorted(uses.values(), key=lambda use: (-use.worth(now), use.name))[:_MOST_NAMES]
    told = (_with_line(use, found.get(use.name), texts, names) for use in best[:_MOST_LINES])
    return [
        *(use for use in told if use is not None),
        *(
            msgspec.structs.replace(use, line="", source="") if use.line else use
            for use in best[_MOST_LINES:]
            if not use.is_shown_number
        ),
    ]


def without(uses: Sequence[NameUse], texts: Sequence[str], names: Set[str]) -> list[NameUse]:
    """Return the uses without these names, and without lines that hold one of the names or texts, or part of a text."""
    if not texts:
        return [*uses]
    stale_names, stale_texts, joined = Phrases(names), Phrases(texts), "\n".join(texts)

    def is_stale(line: str) -> bool:
        return line in joined or stale_texts.stand_in(line) or stale_names.stand_in(line)

    return [
        msgspec.structs.replace(use, line="", source="") if use.line and is_stale(use.line) else use
        for use in uses
        if not stale_names.stand_in(use.name)
    ]


def name_lines(
    uses: Sequence[NameUse],
    room: int,
    now: int,
    stands: Callable[[str], bool],
    count: CountTokens,
    names_of: NamesOf = names_in,
) -> tuple[list[str], list[str]]:
    """Lines, under a line with their source, and bare names to be joined by spaces, within `room` tokens in all.

    stands: whether a name stands in what is sent anyway; it needs no room.
    """
    worth = {use.name: use.worth(now) for use in uses if not stands(use.name)}
    costs = {name: count(f" {name}") for name in worth}
    beside = max(int(_LEAST_SHARE * room), min(int(_MOST_SHARE * room), room - sum(costs.values())))
    chosen = _chosen([use for use in uses if use.is_used], worth, beside, count, names_of)
    least = min(int(_UNUSED_SHARE * room), beside - count("\n".join(_by_source(chosen))))
    chosen += _chosen([use for use in uses if not use.is_used], worth, least, count, names_of)
    lines = [*_by_source(chosen)]
    text = "\n".join(lines)
    room -= count(text)
    told, names = NamedText(text), dict[str, int]()
    for name in sorted(worth, key=lambda name: (-worth[name] / costs[name], name)):
        if room < _LEAST_ROOM:
            break
        if not told.have(name):
            room += sum(names.pop(part, 0) for part in _parts(name)) - costs[name]
            names[name] = costs[name]
            told.add(name)
    return lines, sorted(names)


def _parts(name: str) -> Iterator[str]:
    """What a longer name begins or ends with that may be a name for itself: it stands in it."""
    for joint in _JOINT.finditer(name):
        yield name[: joint.start()]
        yield name[joint.end() :]


def _find_names(utterances: Iterable[Utterance], texts: list[_SpanText], names: NamesOf) -> dict[str, _NameSpan]:
    """Every name of a span; what it stands in is added to `texts`."""
    found: defaultdict[str, _NameSpan] = defaultdict(_NameSpan)
    paths: dict[str, str] = {}
    for utterance in utterances:
        if utterance.voice in _UNUSED:
            continue
        counted: set[str] = set()
        for text in _texts(utterance, paths):
            at = len(texts)
            texts.append(text)
            here = names(text.text)
            for name in here:
                found[name].texts.append(at)
            counted |= here
        by_agent = utterance.role == "assistant"
        said = names("\n".join(prose_of(utterance.text))) if utterance.is_persons else ()
        for name in counted:
            new = found[name]
            new.messages += 1
            new.agent += by_agent
            new.user += name in said
            new.last = utterance.position
    return found


def _texts(utterance: Utterance, paths: dict[str, str]) -> Iterator[_SpanText]:
    """What an utterance says and calls, each with its source. paths: of the files that calls were for, by id."""
    if utterance.text:
        source = paths.get(utterance.answers or "", utterance.tool or utterance.by or utterance.role)
        has_tags = utterance.voice == "report" or utterance.text.startswith(_FAILED)
        said = without_tags(utterance.text) if has_tags else output_in(utterance.text) or printed_text(utterance.text)
        is_claim = utterance.voice == "report" or source == "assistant"
        yield _SpanText(shorten(said, _READ), "" if is_claim else source)
    for call in (inner for outer in utterance.calls for inner in inner_calls(outer) or (outer,)):
        try:
            arguments = read(call.arguments)
        except UnreadError:
            arguments = call.arguments
        path = path_of(arguments)
        if path:
            paths[call.id] = path
        told = strings_in(arguments)
        if not path and is_plan_tool(words_of(call.name)):
            told = (text for text in told if " " in text)  # items, and no statuses
        yield _SpanText(shorten("\n".join(told), _READ), path or f"{call.name}(…)")


def _with_line(use: NameUse, new: _NameSpan | None, texts: Sequence[_SpanText], names: NamesOf) -> NameUse | None:
    """Return the use with the line that has the most names, of the newest ones and the one it had.

    Return None if the name stands in noise only, such as a line of a log, and is no path.
    """
    if new is None:
        return use
    found = [texts[at] for at in new.texts[-_NEWEST:]]
    seen = [(text, _line(text.text, use.name)) for text in found]
    told = [(text, line) for text, (line, is_noise) in seen if not is_noise]
    lines = [(line, text.source) for text, line in told if text.source and line != text.source]
    if use.line and use.source:
        lines.append((use.line, use.source))
    if not (lines or told or use.line or use.agent or use.user or "/" in use.name):
        return None
    # A line without a source is quoted nowhere. It tells, later, whether the name is a secret.
    lines = lines or [(line, "") for _, (line, _) in seen]
    line, source = max(lines, key=lambda each: (len(names(each[0])) / (len(each[0]) + 30), each[0]))
    return msgspec.structs.replace(use, line=line, source=source)


def _line(text: str, name: str) -> tuple[str, bool]:
    """Return the first line of a text with the name, and whether it is noise.

    Of a long line, return what is around the name, cut between words.
    """
    start = place_of(text, name)
    first = text.rfind("\n", 0, start) + 1
    is_noise = _is_noise(text, first)
    last = text.find("\n", start)
    last = len(text) if last < 0 else last
    if last - first > _LINE_CHARACTERS:
        end, half = start + len(name), _CUT_CHARACTERS // 2
        first = _between_words(text, max(first, start - _CUT_CHARACTERS), max(first, start - half), first)
        last = min(last, end + _CUT_CHARACTERS)
        if (space := text.find(" ", end + half, last)) >= 0:
            last = space
    return " ".join(text[first:last].split()), is_noise


def _is_noise(text: str, start: int) -> bool:
    """Return True if the line of a text that begins at `start` says nothing of the work."""
    end = text.find("\n", start)
    line = text[start : len(text) if end < 0 else end][:_NOISE_READ]
    above = text.rfind("\n", 0, max(0, start - 1)) + 1
    return _FRAME.match(text, above) is not None or _says_nothing(line)


@memoize(characters=_NOISE_REMEMBERED)
def _says_nothing(line: str) -> bool:
    forms = (_NOISE, _FRAME)
    return any(form.match(line) for form in forms) or is_logged(line) or is_framing(line.strip())


def _between_words(text: str, least: int, wanted: int, line: int) -> int:
    """The last place between words up to `wanted`; `least` where there is none."""
    return line if wanted == line else max(least, text.rfind(" ", least, wanted) + 1)


def _chosen(
    uses: Sequence[NameUse], worth: dict[str, float], room: int, count: CountTokens, names_of: NamesOf
) -> list[NameUse]:
    """The lines with the most worth a token that no other line has told, in the order of their messages.

    Greedy: what a line adds only falls with every other line, so that one whose turn it was may just be weighed again.
    """
    lines = {use.line: use for use in uses if use.line and use.source and use.name in worth}
    names = {line: names_of(line) & worth.keys() for line in lines}
    costs = {line: count(line) + 2 for line in lines}
    told: set[str] = set()

    def gain(line: str) -> float:
        return sum(worth[name] for name in names[line] - told) / costs[line]

    heap = [(-gain(line), at, line) for at, line in enumerate(lines)]
    heapify(heap)
    chosen: list[NameUse] = []
    headed: set[str] = set()
    while heap and room >= _LEAST_ROOM:
        weighed, at, line = heap[0]
        now = -gain(line)
        if now > weighed and now < 0:
            heapreplace(heap, (now, at, line))
            continue
        heappop(heap)
        source = lines[line].source
        cost = costs[line] if source in headed else costs[line] + count(source) + 2
        if now < 0 and cost <= room:
            room -= cost
            told |= names[line]
            headed.add(source)
            chosen.append(lines[line])
    return chosen


def _by_source(chosen: Sequence[NameUse]) -> Iterator[str]:
    """The lines under the name of their source, those of the newest at the end."""
    sources: dict[str, list[NameUse]] = {}
    for use in sorted(chosen, key=attrgetter("last")):
        sources.setdefault(use.source, []).append(use)
    for source, uses in sorted(sources.items(), key=lambda each: each[1][-1].last):
        yield f"{escape(source)}:"
        yield from (f"- {escape(use.line)}" for use in uses)
