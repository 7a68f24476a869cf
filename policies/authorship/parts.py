"""Takes a text of the user role apart by whose words it holds, and finds a person's words inside of a result.

By the tables; beyond them by form, and what is not known by its form is marked so.
"""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from policies.authorship import wrappers
from policies.authorship.wrappers import Voice
from policies.vocabulary import bare_name, pattern_of_parts, tools_of_sort

# An element at the beginning of a line, as harnesses write them.
_NAME = r"(?P<name>permissions instructions|[A-Za-z][\w:.-]{1,60}+)"
_OPENING = re.compile(rf"^[ \t]{{0,20}}<{_NAME}(?:[ \t][^<>\n]{{0,400}})?>", re.MULTILINE)
_CLOSING = re.compile(f"</{_NAME}>")
_NEXT_OPENING = re.compile(rf"\n<{_NAME}(?![\w:.-])")
_RULES = re.compile(
    r"^(?:# claudeMd\b|Contents of [^\n]{1,300}?\.(?:md|mdc|txt)\b"
    r"|(?:Instructions from:|--- Context from:)[ \t]{0,9}[^\n]{1,300}?\.(?:md|mdc)\b)",
    re.MULTILINE,
)
_FILE = re.compile(
    r"(?:# AGENTS\.md instructions for|Contents of|Instructions from:|--- Context from:|Base directory for this"
    r" skill:)[ \t]{1,9}(?P<path>[^\s<>()]{1,300})"
)
# Tags that people write themselves.
_HTML_NAMES = """
a abbr article aside audio b blockquote body br button canvas center code col dd details div dl dt em figure font footer
form frame h1 h2 h3 h4 h5 h6 head header hr html i iframe img input ins kbd label li link main mark meta nav ol option p
path pre q rect s samp script section select small span strike strong style sub sup svg table tbody td template text
textarea tfoot th thead time title tr u ul var video
"""
_HTML = frozenset(_HTML_NAMES.split())
# As people name no element.
_COMPOUND = re.compile(r"[-_:.]")
# A command's arguments and what it printed; its own text stands between them.
_COMMAND, _PRINTED = "command-name", frozenset({"local-command-stdout", "local-command-stderr"})
# Where a person's words may be found in a result: within so much of its end.
_END = 200_000
# Characters at the end of a text in which a row of `endings` is looked for.
_ENDING = 800
REMINDER = "system-reminder"
_ASKING = tools_of_sort("ask")
# Of tools that bring what strangers wrote a reminder at the end of a result may be forged.
_FOREIGN = pattern_of_parts("foreign")
_REMINDER = f"<{REMINDER}>"
_REMINDER_END = f"</{REMINDER}>"


class Part(NamedTuple):
    """A piece of a text. by: which file, element or client; is_sure: whether a table says so.

    A part that is not sure is a person's only if nothing else in the conversation can be.
    """

    voice: Voice
    text: str
    by: str = ""
    is_sure: bool = True


def parts_of(blocks: Sequence[str]) -> list[Part]:
    """The parts of a message in the user role that consists of these texts, in order."""
    return [part for parts in parts_by_block(blocks) for part in parts]


def parts_by_block(blocks: Sequence[str]) -> list[list[Part]]:
    """The same, by text."""
    found: list[list[Part]] = []
    command = ""
    is_result = False
    for block in blocks:
        parts = _expansion(block, command) if command else None
        parts = [Part("report", block, "tool")] if is_result else parts or [*_parts(block)]
        is_result = wrappers.RESULT_HEADER.fullmatch(block) is not None
        names = {part.by for part in parts}
        command = block if _COMMAND in names else "" if not _PRINTED.isdisjoint(names) else command
        command = (
            ""
            if any(part.voice in ("person", "instructions") and part.by != "command-args" for part in parts)
            else command
        )
        found.append(parts)
    return found


def is_bare(text: str) -> bool:
    """Whether a text is a person's as a whole: no element, no line and no beginning that a client writes is in it."""
    return (
        "<" not in text
        and not _holds_lines(text)
        and wrappers.EDITOR.match(text) is None
        and wrappers.ANY_FRAME.match(text) is None
        and _whole(text) is None
        and bool(text.strip())
    )


def _expansion(block: str, command: str) -> list[Part] | None:
    """What a command stands for is rules that a person has called for by its name."""
    if _OPENING.match(block):
        return None
    name = command.partition(f"<{_COMMAND}>")[2].partition("<")[0].strip()
    return [Part("instructions", block, name or _COMMAND)]


def _parts(text: str) -> Iterator[Part]:
    """Of one text."""
    if not text.strip():
        return
    if (setup := wrappers.EDITOR.match(text)) is not None:
        yield Part("harness", setup[0], "codex")
        text = text[setup.end() :]
    if framed := _framed(text):
        yield from framed
        return
    spans = [*_elements(text)] if "<" in text else []
    typed = [span for span in spans if _is_typed(span, text)]
    if typed and _is_written_by_hand(text, spans):
        yield Part("person", text)
        return
    outside: Voice = "harness" if typed else "person"
    if not typed and spans and not text[: spans[0].start].strip() and spans[0].name in wrappers.ALONE:
        yield Part("report", text, spans[0].name)
        return
    if (known := _whole(text)) is not None and not typed:
        yield known
        return
    at = 0
    is_whole = not any(outer.strip() for outer in _texts_outside(text, spans))
    for span in spans:
        yield from _outside(text[at : span.start], outside)
        yield from _element(span, text, outside, is_whole=is_whole)
        at = span.end
    yield from _outside(text[at:], outside)


class _PartSpan(NamedTuple):
    """is_first: nothing stands before it."""

    name: str
    is_first: bool
    start: int
    inner: int
    inner_end: int
    end: int


def _elements(text: str) -> Iterator[_PartSpan]:
    """The outermost elements of a harness, or of nobody known, that begin a line, each up to the last of its closings
    before the next one of its name: a closing tag within it ends nothing."""
    at = 0
    is_first = True
    tags: _Tags | None = None
    while (found := _OPENING.search(text, at)) is not None:
        name = found["name"]
        at = found.end()
        if name.lower() in _HTML and name not in wrappers.ELEMENTS:
            continue
        if tags is None:
            tags, is_first = _Tags(text), not text[: found.start()].strip()
        closing = tags.closing_of(name, at)
        if closing is not None:
            inner_end, end = closing
            yield _PartSpan(name, is_first, found.start(), at, inner_end, end)
            at = end
        elif name in wrappers.ELEMENTS:  # cut off: what began is not the person's
            yield _PartSpan(name, is_first, found.start(), at, len(text), len(text))
            return
        is_first = False


class _Tags:
    """Where the tags of a text stand, by name. A search for each element would read the rest of the text each time."""

    def __init__(self, text: str) -> None:
        self._openings = _places(_NEXT_OPENING, text)
        self._closings = _places(_CLOSING, text)

    def closing_of(self, name: str, at: int) -> tuple[int, int] | None:
        """Return where the closing tag begins and ends of an element whose inner text begins here; None without one.

        It is the last one before the next element of this name that begins a line, else the first one behind that.
        """
        closed = name if " " not in name or name in self._closings else name.partition(" ")[0]
        closings = self._closings.get(closed, ())
        first = bisect_left(closings, at)
        if first == len(closings):
            return None
        openings = self._openings.get(name, ())
        following = bisect_left(openings, at)
        behind = bisect_left(closings, openings[following]) if following < len(openings) else len(closings)
        start = closings[max(first, behind - 1)]
        return start, start + len(f"</{closed}>")


def _places(tag: re.Pattern[str], text: str) -> Mapping[str, Sequence[int]]:
    """Return where the tags begin that match, in order, by their names."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for found in tag.finditer(text):
        places[found["name"]].append(found.start())
    return places


def _is_typed(span: _PartSpan, text: str) -> bool:
    if span.name not in wrappers.TYPED:
        return False
    if span.is_first or wrappers.ANSWER_HEADER.search(text[max(0, span.start - 400) : span.start]):
        return True
    return span.name not in wrappers.PLAIN_TYPED and wrappers.RESULT_HEADER.match(text) is None


def _is_written_by_hand(text: str, spans: Sequence[_PartSpan]) -> bool:
    """Whether somebody writes prompts with elements: words around them, and nothing that a client puts there."""
    if any(span.name in wrappers.ELEMENTS for span in spans) or wrappers.ANSWER_HEADER.search(
        text[max(0, spans[0].start - 400) : spans[0].start]
    ):
        return False
    return any(outer.strip() for outer in _texts_outside(text, spans))


def _texts_outside(text: str, spans: Sequence[_PartSpan]) -> Iterator[str]:
    """Return what stands before, between and behind the elements of a text."""
    ends = [0, *(span.end for span in spans)]
    starts = [*(span.start for span in spans), len(text)]
    return (text[end:start] for end, start in zip(ends, starts, strict=True))


def _element(span: _PartSpan, text: str, outside: Voice, *, is_whole: bool) -> Iterator[Part]:
    inner = text[span.inner : span.inner_end].strip()
    voice = wrappers.ELEMENTS.get(span.name)
    if _is_typed(span, text):
        if inner:
            yield Part("person", inner, span.name)
    elif voice == "harness":
        yield from _of_harness(inner, span.name)
    elif voice == "summary":
        yield Part("summary" if is_whole else "person", inner if is_whole else text[span.start : span.end], span.name)
    elif voice is not None:
        file = _FILE.search(inner)
        yield Part(voice, text[span.start : span.end], file["path"] if file and voice == "instructions" else span.name)
    elif outside != "person":
        yield Part("report", text[span.start : span.end], span.name)
    elif is_whole and _COMPOUND.search(span.name):
        yield Part("report", text[span.start : span.end], span.name, is_sure=False)
    else:
        yield Part("person", text[span.start : span.end], span.name)


def _of_harness(inner: str, name: str) -> Iterator[Part]:
    """A reminder may hold what a person typed meanwhile, or a file of rules."""
    if said := typed_while_working(inner):
        yield Part("person", said, name)
        return
    if (within := wrappers.TYPED_WITHIN.get(name)) and f"<{within}>" in inner:
        said = inner.partition(f"<{within}>")[2].partition(f"</{within}>")[0].strip()
        yield Part("person", said, within)
    if _RULES.search(inner) is not None:
        file = _FILE.search(inner)
        yield Part("instructions", f"<{name}>\n{inner}\n</{name}>", file["path"].rstrip(":") if file else name)
    else:
        yield Part("harness", inner, name)


def _outside(text: str, voice: Voice) -> Iterator[Part]:
    if not text.strip():
        return
    if voice == "person":
        yield from _bare(text)
    else:
        yield Part(voice, text)


def _bare(text: str) -> Iterator[Part]:
    """A text without elements: a person's, but for single lines."""
    if _holds_lines(text):
        text = wrappers.LINES.sub("", text)
    if text.strip():
        yield Part("person", text)


def _holds_lines(text: str) -> bool:
    """Whether single lines of it may be a client's."""
    return "[Request int" in text or " loaded." in text


def _whole(text: str) -> Part | None:
    """Return what a text is as a whole by how it begins or ends; None if no row says so."""
    if wrappers.ANY_BEGINNING.match(text) is not None:
        for voice, by, pattern in wrappers.BEGINNINGS:
            if pattern.match(text):
                file = _FILE.match(text.lstrip()) if voice == "instructions" else None
                return Part(voice, text, file["path"] if file else by)
    for has, (voice, by, pattern) in wrappers.ENDINGS:
        start = max(0, len(text) - _ENDING)
        if text.find(has, start) >= 0 and pattern.search(text, start):
            return Part(voice, text, by)
    return None


def _framed(text: str) -> list[Part]:
    """Return the parts of a text in which a client frames what a person typed; none of any other text."""
    if wrappers.ANY_FRAME.match(text) is None:
        return []
    for frame in wrappers.FRAMES:
        front = frame.begins.match(text)
        if front is None:
            continue
        backs = [*frame.ends.finditer(text, front.end())]
        if backs or frame.is_open:
            end = backs[-1].start() if backs else len(text)
            before, typed, behind = front[0], text[front.end() : end].strip(), text[end:]
            parts = (
                Part("harness", before, frame.client),
                Part("person", typed),
                Part("harness", behind, frame.client),
            )
            return [part for part in parts if part.text]
    return []


def typed_while_working(text: str) -> str:
    """What a person typed while the agent worked, of a reminder that says so; empty for any other text."""
    found = wrappers.WHILE_WORKING.match(text)
    if found is None:
        return ""
    said = found["said"]
    closing = wrappers.CLOSING.search(said)
    return (said[: closing.start()] if closing else said).strip()


def typed_in_result(text: str, tool: str | None, *, is_brought: bool = False) -> list[Part]:
    """What a person typed, of the result of a tool: at its end, as a client adds it; why a call was refused; answers.

    What strangers wrote may end in the same words, so of tools that bring such it is a report. is_brought: so does this
    call of a shell, see `brings_foreign_text`.
    """
    found: list[Part] = []
    if _REMINDER_END in text[-2_000:]:
        found += _reminders(text.rstrip(), "report" if tool is None or is_brought or is_foreign(tool) else "person")
    if not is_foreign(tool) and (said := wrappers.REJECTED.match(text[:_END])) is not None:
        words = _without_reminders(said["said"])
        closing = wrappers.CLOSING.search(f"{words}\n")
        voice: Voice = "report" if is_brought else "person"
        found.append(Part(voice, words[: closing.start()].strip() if closing else words, "refusal"))
    elif is_asking(tool) and not wrappers.FAILED_ANSWER.match(text[:200]):
        answer = wrappers.ANSWERED.match(text[:_END])
        said_so = _without_reminders(answer["said"] if answer else text[:_END])
        if said_so:
            found.append(Part("person", wrappers.ANSWERED_CLOSING.sub("", said_so).strip(), tool or ""))
    return found


def is_foreign(tool: str | None) -> bool:
    """Whether a tool brings what strangers wrote."""
    return tool is not None and _FOREIGN.search(tool) is not None


def is_asking(tool: str | None) -> bool:
    """Whether a tool asks the person at the keyboard."""
    if tool is None or tool.startswith("mcp__"):
        return False
    return bare_name(tool) in _ASKING


def _reminders(text: str, voice: Voice) -> Iterator[Part]:
    """Of the reminders that end a result."""
    end = len(text)
    while text.endswith(_REMINDER_END, 0, end):
        start = text.rfind(_REMINDER, 0, end)
        if start < 0 or not (start == 0 or text[start - 1] == "\n"):
            return
        inner = text[start + len(_REMINDER) : end - len(_REMINDER_END)]
        if said := typed_while_working(inner):
            yield Part(voice, said, REMINDER)
        end = start
        while end and text[end - 1].isspace():
            end -= 1


def _without_reminders(text: str) -> str:
    return text.partition(f"\n{_REMINDER}")[0].strip()
