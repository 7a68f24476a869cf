"""The working set: names that the work used and may need again, with lines that contain them (docs/memory.md).

Records pass it on as data, so the cost of a compaction depends only on the newly covered messages.
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
# The first of them keep a line.
_MOST_LINES = 400
_LINE_CHARACTERS = 160
# A longer line is shortened to about this many characters around its name.
_CUT_CHARACTERS = 48
# Minimum and maximum share of the room for lines. Bare names, which cost and say less, have the rest.
_LEAST_SHARE, _MOST_SHARE = 0.4, 0.6
# The share for lines of names that only one result contains.
_UNUSED_SHARE = 0.1
# The line of a name is chosen from this many newest texts with the name.
_NEWEST = 3
# After this many messages a name counts half.
_HALF_LIFE = 150
# The weight of a number that only tools have shown: mostly a line number, a size or a time.
_NUMBER = 0.2
_LEAST_ROOM = 8
_NUMBER_ALONE = re.compile(r"\d{1,200}|(?=[a-f]{0,40}\d)[0-9a-f]{8,40}")
_JOINT = re.compile(r"[./]")
# Characters of one text to read, from both ends. 4 MB of names would take seconds.
_READ = 200_000
_MOST_BYTES = 4_000_000
# Characters of a line in which noise is detected.
_NOISE_READ = 400
# Characters of lines in the cache of noise. Many names share a line.
_NOISE_REMEMBERED = 400_000
_FAILED = "<tool_use_error>"
# Voices in the user role that are sent unchanged or that no work uses.
_UNUSED = ("harness", "instructions")


class NameUse(msgspec.Struct, frozen=True, array_like=True):
    """The uses of a name: the number of messages with it, and of those of the agent and the user.

    last: position of the newest of these messages.
    line, source: a line that contains the name, and its file or tool. A line without a source is not quoted.
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
        """Return True if the name occurs in more than a single result. Only then its line is worth much room."""
        return self.agent > 0 or self.user > 0 or self.messages > 1

    @property
    def is_shown_number(self) -> bool:
        """Return True for a decimal or hexadecimal number that only tools have shown. Alone it has no meaning."""
        return not (self.agent or self.user) and _NUMBER_ALONE.fullmatch(self.name) is not None

    def worth(self, now: int) -> float:
        """Return the weight of the name at position `now`: how likely it is needed again."""
        used = 3 * self.agent + 2 * min(self.user, 2) + 0.3 * self.messages
        if self.is_shown_number:
            used *= _NUMBER
        return used / (1 + max(0, now - self.last) / _HALF_LIFE)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[NameUse]).decode


def pack_names(uses: Sequence[NameUse]) -> bytes:
    """Return the names compressed to a fifth of their size. Unpacked they are thousands of objects."""
    return zlib.compress(_encode(uses)) if uses else b""


def unpack_names(data: bytes) -> list[NameUse]:
    """Return the packed names; an empty list if they are unreadable or too large."""
    if not data:
        return []
    try:
        return _decode(zlib.decompressobj().decompress(data, _MOST_BYTES))
    except (zlib.error, msgspec.DecodeError):
        return []


# Lines without information on the work: a lone tag, the number of remaining steps, rows of a directory listing,
# licenses, a lone status, a failure (the call has it), a stack frame, a log line.
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
    """A text with names. source: its origin; empty if none of its lines is quoted."""

    text: str
    source: str


@dataclass(slots=True)
class _NameSpan:
    """The uses of a name in one span. texts: indexes of the texts with it, oldest first."""

    messages: int = 0
    agent: int = 0
    user: int = 0
    last: int = 0
    texts: list[int] = field(default_factory=list)


def name_uses(
    parent: Sequence[NameUse], utterances: Sequence[Utterance], now: int, names: NamesOf = names_in
) -> list[NameUse]:
    """Return the names of everything covered, the most valuable first. now: the position of the cut."""
    texts: list[_SpanText] = []
    spans_by_name = _find_names(utterances, texts, names)
    uses = {use.name: use for use in parent}
    for name, new in spans_by_name.items():
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
    uses_with_lines = (_with_line(use, spans_by_name.get(use.name), texts, names) for use in best[:_MOST_LINES])
    return [
        *(use for use in uses_with_lines if use is not None),
        *(
            msgspec.structs.replace(use, line="", source="") if use.line else use
            for use in best[_MOST_LINES:]
            if not use.is_shown_number
        ),
    ]


def without(uses: Sequence[NameUse], texts: Sequence[str], names: Set[str]) -> list[NameUse]:
    """Return the uses without these names, and without lines that contain a name, a text or part of a text."""
    if not texts:
        return [*uses]
    stale_names, stale_texts, joined = Phrases(names), Phrases(texts), "\n".join(texts)

    def is_stale(line: str) -> bool:
        return line in joined or stale_texts.occur_in(line) or stale_names.occur_in(line)

    return [
        msgspec.structs.replace(use, line="", source="") if use.line and is_stale(use.line) else use
        for use in uses
        if not stale_names.occur_in(use.name)
    ]


def name_lines(
    uses: Sequence[NameUse],
    room: int,
    now: int,
    is_sent: Callable[[str], bool],
    count: CountTokens,
    names_of: NamesOf = names_in,
) -> tuple[list[str], list[str]]:
    """Return lines below a line with their source, and bare names, within `room` tokens in all.

    is_sent: returns True if what is sent anyway contains a name. Such a name needs no room.
    """
    worth = {use.name: use.worth(now) for use in uses if not is_sent(use.name)}
    costs = {name: count(f" {name}") for name in worth}
    room_for_lines = max(int(_LEAST_SHARE * room), min(int(_MOST_SHARE * room), room - sum(costs.values())))
    chosen = _choose_lines([use for use in uses if use.is_used], worth, room_for_lines, count, names_of)
    room_for_unused = min(int(_UNUSED_SHARE * room), room_for_lines - count("\n".join(_grouped_by_source(chosen))))
    chosen += _choose_lines([use for use in uses if not use.is_used], worth, room_for_unused, count, names_of)
    lines = [*_grouped_by_source(chosen)]
    text = "\n".join(lines)
    room -= count(text)
    shown, names = NamedText(text), dict[str, int]()
    for name in sorted(worth, key=lambda name: (-worth[name] / costs[name], name)):
        if room < _LEAST_ROOM:
            break
        if not shown.contains(name):
            room += sum(names.pop(part, 0) for part in _parts(name)) - costs[name]
            names[name] = costs[name]
            shown.add(name)
    return lines, sorted(names)


def _parts(name: str) -> Iterator[str]:
    """Yield the beginnings and ends of a longer name that may be names themselves. The longer name contains them."""
    for joint in _JOINT.finditer(name):
        yield name[: joint.start()]
        yield name[joint.end() :]


def _find_names(utterances: Iterable[Utterance], texts: list[_SpanText], names: NamesOf) -> dict[str, _NameSpan]:
    """Return every name of a span with its uses. The texts with names are added to `texts`."""
    spans_by_name: defaultdict[str, _NameSpan] = defaultdict(_NameSpan)
    paths: dict[str, str] = {}
    for utterance in utterances:
        if utterance.voice in _UNUSED:
            continue
        counted: set[str] = set()
        for text in _texts(utterance, paths):
            at = len(texts)
            texts.append(text)
            text_names = names(text.text)
            for name in text_names:
                spans_by_name[name].texts.append(at)
            counted |= text_names
        by_agent = utterance.role == "assistant"
        names_of_person = names("\n".join(prose_of(utterance.text))) if utterance.is_persons else ()
        for name in counted:
            new = spans_by_name[name]
            new.messages += 1
            new.agent += by_agent
            new.user += name in names_of_person
            new.last = utterance.position
    return spans_by_name


def _texts(utterance: Utterance, paths: dict[str, str]) -> Iterator[_SpanText]:
    """Yield the text and the calls of an utterance, each with its source. paths: files of calls by call id."""
    if utterance.text:
        source = paths.get(utterance.answers or "", utterance.tool or utterance.by or utterance.role)
        has_tags = utterance.voice == "report" or utterance.text.startswith(_FAILED)
        visible_text = (
            without_tags(utterance.text) if has_tags else output_in(utterance.text) or printed_text(utterance.text)
        )
        is_claim = utterance.voice == "report" or source == "assistant"
        yield _SpanText(shorten(visible_text, _READ), "" if is_claim else source)
    for call in (inner for outer in utterance.calls for inner in inner_calls(outer) or (outer,)):
        try:
            arguments = read(call.arguments)
        except UnreadError:
            arguments = call.arguments
        path = path_of(arguments)
        if path:
            paths[call.id] = path
        strings = strings_in(arguments)
        if not path and is_plan_tool(words_of(call.name)):
            strings = (text for text in strings if " " in text)  # items, not statuses
        yield _SpanText(shorten("\n".join(strings), _READ), path or f"{call.name}(…)")


def _with_line(use: NameUse, new: _NameSpan | None, texts: Sequence[_SpanText], names: NamesOf) -> NameUse | None:
    """Return the use with the line that has the most names, among its newest lines and its current one.

    Return None if the name occurs only in noise, such as a line of a log, and is no path.
    """
    if new is None:
        return use
    newest_texts = [texts[at] for at in new.texts[-_NEWEST:]]
    lines_found = [(text, _line(text.text, use.name)) for text in newest_texts]
    informative = [(text, line) for text, (line, is_noise) in lines_found if not is_noise]
    lines = [(line, text.source) for text, line in informative if text.source and line != text.source]
    if use.line and use.source:
        lines.append((use.line, use.source))
    if not (lines or informative or use.line or use.agent or use.user or "/" in use.name):
        return None
    # A line without a source is never quoted. It later helps to detect that the name is a secret.
    lines = lines or [(line, "") for _, (line, _) in lines_found]
    line, source = max(lines, key=lambda each: (len(names(each[0])) / (len(each[0]) + 30), each[0]))
    return msgspec.structs.replace(use, line=line, source=source)


def _line(text: str, name: str) -> tuple[str, bool]:
    """Return the first line of a text with the name, and True if it is noise.

    A long line is cut between words to the part around the name.
    """
    start = place_of(text, name)
    line_start = text.rfind("\n", 0, start) + 1
    is_noise = _is_noise(text, line_start)
    line_end = text.find("\n", start)
    line_end = len(text) if line_end < 0 else line_end
    if line_end - line_start > _LINE_CHARACTERS:
        end, half = start + len(name), _CUT_CHARACTERS // 2
        line_start = _between_words(
            text, max(line_start, start - _CUT_CHARACTERS), max(line_start, start - half), line_start
        )
        line_end = min(line_end, end + _CUT_CHARACTERS)
        if (space := text.find(" ", end + half, line_end)) >= 0:
            line_end = space
    return " ".join(text[line_start:line_end].split()), is_noise


def _is_noise(text: str, start: int) -> bool:
    """Return True if the line that begins at `start` has no information on the work."""
    end = text.find("\n", start)
    line = text[start : len(text) if end < 0 else end][:_NOISE_READ]
    above = text.rfind("\n", 0, max(0, start - 1)) + 1
    return _FRAME.match(text, above) is not None or _is_uninformative(line)


@memoize(characters=_NOISE_REMEMBERED)
def _is_uninformative(line: str) -> bool:
    forms = (_NOISE, _FRAME)
    return any(form.match(line) for form in forms) or is_logged(line) or is_framing(line.strip())


def _between_words(text: str, minimum: int, wanted: int, line: int) -> int:
    """Return the last start of a word up to `wanted`; `least` if there is none."""
    return line if wanted == line else max(minimum, text.rfind(" ", minimum, wanted) + 1)


def _choose_lines(
    uses: Sequence[NameUse], worth: dict[str, float], room: int, count: CountTokens, names_of: NamesOf
) -> list[NameUse]:
    """Return the uses whose lines add the most weight per token, in the order of their messages.

    Greedy: the gain of a line only falls as others are chosen, so the best line is weighed again before it is taken.
    """
    lines = {use.line: use for use in uses if use.line and use.source and use.name in worth}
    names = {line: names_of(line) & worth.keys() for line in lines}
    costs = {line: count(line) + 2 for line in lines}
    covered: set[str] = set()

    def gain(line: str) -> float:
        return sum(worth[name] for name in names[line] - covered) / costs[line]

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
            covered |= names[line]
            headed.add(source)
            chosen.append(lines[line])
    return chosen


def _grouped_by_source(chosen: Sequence[NameUse]) -> Iterator[str]:
    """Yield the lines under the name of their source, the newest source last."""
    sources: dict[str, list[NameUse]] = {}
    for use in sorted(chosen, key=attrgetter("last")):
        sources.setdefault(use.source, []).append(use)
    for source, uses in sorted(sources.items(), key=lambda each: each[1][-1].last):
        yield f"{escape(source)}:"
        yield from (f"- {escape(use.line)}" for use in uses)
