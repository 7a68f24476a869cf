"""Splitting of a text in the user role by author, and detection of a person's words within a result.

The tables decide. Unknown texts are judged by their form and marked as unsure.
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
# Characters in names of elements that people do not use.
_COMPOUND = re.compile(r"[-_:.]")
# The elements of a command's arguments and output. The text of the command is between them.
_COMMAND, _PRINTED = "command-name", frozenset({"local-command-stdout", "local-command-stderr"})
# A person's words in a result are searched for in this many characters at its end.
_END = 200_000
# Rows of `endings` are matched in this many characters at the end of a text.
_ENDING = 800
REMINDER = "system-reminder"
_ASKING = tools_of_sort("ask")
# Tools that show strangers' text. A reminder at the end of their results may be forged.
_FOREIGN = pattern_of_parts("foreign")
_REMINDER = f"<{REMINDER}>"
_REMINDER_END = f"</{REMINDER}>"


class Part(NamedTuple):
    """A piece of a text.

    by: its file, element or client.
    is_sure: True if a table decided. An unsure part is a person's only if nothing else in the conversation can be.
    """

    voice: Voice
    text: str
    by: str = ""
    is_sure: bool = True


def parts_of(blocks: Sequence[str]) -> list[Part]:
    """Return the parts of a message in the user role that consists of these texts, in order."""
    return [part for parts in parts_by_block(blocks) for part in parts]


def parts_by_block(blocks: Sequence[str]) -> list[list[Part]]:
    """Return the parts of each text of a message in the user role."""
    parts_of_blocks: list[list[Part]] = []
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
        parts_of_blocks.append(parts)
    return parts_of_blocks


def is_bare(text: str) -> bool:
    """Return True if a text is entirely a person's: it has no element, line or beginning of a client."""
    return (
        "<" not in text
        and not _may_have_client_lines(text)
        and wrappers.EDITOR.match(text) is None
        and wrappers.ANY_FRAME.match(text) is None
        and _whole_text_part(text) is None
        and bool(text.strip())
    )


def _expansion(block: str, command: str) -> list[Part] | None:
    """Return the text that a command expands to, as rules; None if the block begins with an element."""
    if _OPENING.match(block):
        return None
    name = command.partition(f"<{_COMMAND}>")[2].partition("<")[0].strip()
    return [Part("instructions", block, name or _COMMAND)]


def _parts(text: str) -> Iterator[Part]:
    """Yield the parts of one text."""
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
    if (whole_part := _whole_text_part(text)) is not None and not typed:
        yield whole_part
        return
    at = 0
    is_whole = not any(outer.strip() for outer in _texts_outside(text, spans))
    for span in spans:
        yield from _outside(text[at : span.start], outside)
        yield from _element(span, text, outside, is_whole=is_whole)
        at = span.end
    yield from _outside(text[at:], outside)


class _PartSpan(NamedTuple):
    """The range of an element. is_first: True if nothing precedes it."""

    name: str
    is_first: bool
    start: int
    inner: int
    inner_end: int
    end: int


def _elements(text: str) -> Iterator[_PartSpan]:
    """Yield the outermost elements of harnesses, and unknown ones, that begin a line.

    Each extends to the last of its closing tags before the next element of its name: a closing tag within it is
    ignored.
    """
    at = 0
    is_first = True
    tags: _Tags | None = None
    while (opening := _OPENING.search(text, at)) is not None:
        name = opening["name"]
        at = opening.end()
        if name.lower() in _HTML and name not in wrappers.ELEMENTS:
            continue
        if tags is None:
            tags, is_first = _Tags(text), not text[: opening.start()].strip()
        closing = tags.closing_of(name, at)
        if closing is not None:
            inner_end, end = closing
            yield _PartSpan(name, is_first, opening.start(), at, inner_end, end)
            at = end
        elif name in wrappers.ELEMENTS:  # an element that is cut off: its text is not the person's
            yield _PartSpan(name, is_first, opening.start(), at, len(text), len(text))
            return
        is_first = False


class _Tags:
    """The positions of tags in a text by name. A search for each element would read the remaining text each time."""

    def __init__(self, text: str) -> None:
        """Find the tags of a text."""
        self._openings = _tag_starts(_NEXT_OPENING, text)
        self._closings = _tag_starts(_CLOSING, text)

    def closing_of(self, name: str, at: int) -> tuple[int, int] | None:
        """Return the start and end of the closing tag for an element whose inner text begins at `at`; None without one.

        This is the last one before the next element of this name that begins a line, else the first one after that.
        """
        closed = name if " " not in name or name in self._closings else name.partition(" ")[0]
        closings = self._closings.get(closed, ())
        first_at = bisect_left(closings, at)
        if first_at == len(closings):
            return None
        openings = self._openings.get(name, ())
        following = bisect_left(openings, at)
        limit = bisect_left(closings, openings[following]) if following < len(openings) else len(closings)
        start = closings[max(first_at, limit - 1)]
        return start, start + len(f"</{closed}>")


def _tag_starts(tag: re.Pattern[str], text: str) -> Mapping[str, Sequence[int]]:
    """Return the start of every matching tag, in order, by name."""
    starts: defaultdict[str, list[int]] = defaultdict(list)
    for match in tag.finditer(text):
        starts[match["name"]].append(match.start())
    return starts


def _is_typed(span: _PartSpan, text: str) -> bool:
    if span.name not in wrappers.TYPED:
        return False
    if span.is_first or wrappers.ANSWER_HEADER.search(text[max(0, span.start - 400) : span.start]):
        return True
    return span.name not in wrappers.PLAIN_TYPED and wrappers.RESULT_HEADER.match(text) is None


def _is_written_by_hand(text: str, spans: Sequence[_PartSpan]) -> bool:
    """Return True if a person writes prompts with elements: words around them, and nothing of a client."""
    if any(span.name in wrappers.ELEMENTS for span in spans) or wrappers.ANSWER_HEADER.search(
        text[max(0, spans[0].start - 400) : spans[0].start]
    ):
        return False
    return any(outer.strip() for outer in _texts_outside(text, spans))


def _texts_outside(text: str, spans: Sequence[_PartSpan]) -> Iterator[str]:
    """Return the texts before, between and after the elements of a text."""
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
        yield from _harness_parts(inner, span.name)
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


def _harness_parts(inner: str, name: str) -> Iterator[Part]:
    """Yield the parts of a harness element. It may contain what a person typed meanwhile, or a file of rules."""
    if typed := typed_while_working(inner):
        yield Part("person", typed, name)
        return
    if (within := wrappers.TYPED_WITHIN.get(name)) and f"<{within}>" in inner:
        typed = inner.partition(f"<{within}>")[2].partition(f"</{within}>")[0].strip()
        yield Part("person", typed, within)
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
    """Yield a text without elements. It is a person's, except for single lines."""
    if _may_have_client_lines(text):
        text = wrappers.LINES.sub("", text)
    if text.strip():
        yield Part("person", text)


def _may_have_client_lines(text: str) -> bool:
    """Return True if a client may have written some lines of the text."""
    return "[Request int" in text or " loaded." in text


def _whole_text_part(text: str) -> Part | None:
    """Return the author of a whole text by its beginning or end; None if no row of a table matches."""
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
    """Return the parts of a text in which a client frames a person's words; an empty list for any other text."""
    if wrappers.ANY_FRAME.match(text) is None:
        return []
    for frame in wrappers.FRAMES:
        front = frame.begins.match(text)
        if front is None:
            continue
        backs = [*frame.ends.finditer(text, front.end())]
        if backs or frame.is_open:
            end = backs[-1].start() if backs else len(text)
            frame_start, typed, frame_end = front[0], text[front.end() : end].strip(), text[end:]
            parts = (
                Part("harness", frame_start, frame.client),
                Part("person", typed),
                Part("harness", frame_end, frame.client),
            )
            return [part for part in parts if part.text]
    return []


def typed_while_working(text: str) -> str:
    """Return what a person typed while the agent worked from a reminder about it; empty for any other text."""
    match = wrappers.WHILE_WORKING.match(text)
    if match is None:
        return ""
    typed = match["said"]
    closing = wrappers.CLOSING.search(typed)
    return (typed[: closing.start()] if closing else typed).strip()


def typed_in_result(text: str, tool: str | None, *, is_brought: bool = False) -> list[Part]:
    """Return a person's words in a tool result: text added by a client, the reason for a refusal, or a reply.

    Strangers' text may end in the same words. For tools that show such text, the words are a report.
    is_brought: True if this shell call shows such text, see `brings_foreign_text`.
    """
    parts: list[Part] = []
    if _REMINDER_END in text[-2_000:]:
        parts += _reminders(text.rstrip(), "report" if tool is None or is_brought or is_foreign(tool) else "person")
    if not is_foreign(tool) and (rejected := wrappers.REJECTED.match(text[:_END])) is not None:
        words = _without_reminders(rejected["said"])
        closing = wrappers.CLOSING.search(f"{words}\n")
        voice: Voice = "report" if is_brought else "person"
        parts.append(Part(voice, words[: closing.start()].strip() if closing else words, "refusal"))
    elif is_asking(tool) and not wrappers.FAILED_ANSWER.match(text[:200]):
        answer = wrappers.ANSWERED.match(text[:_END])
        reply = _without_reminders(answer["said"] if answer else text[:_END])
        if reply:
            parts.append(Part("person", wrappers.ANSWERED_CLOSING.sub("", reply).strip(), tool or ""))
    return parts


def is_foreign(tool: str | None) -> bool:
    """Return True if a tool shows strangers' text."""
    return tool is not None and _FOREIGN.search(tool) is not None


def is_asking(tool: str | None) -> bool:
    """Return True if a tool asks the person at the keyboard."""
    if tool is None or tool.startswith("mcp__"):
        return False
    return bare_name(tool) in _ASKING


def _reminders(text: str, voice: Voice) -> Iterator[Part]:
    """Yield the words in the reminders at the end of a result."""
    end = len(text)
    while text.endswith(_REMINDER_END, 0, end):
        start = text.rfind(_REMINDER, 0, end)
        if start < 0 or not (start == 0 or text[start - 1] == "\n"):
            return
        inner = text[start + len(_REMINDER) : end - len(_REMINDER_END)]
        if typed := typed_while_working(inner):
            yield Part(voice, typed, REMINDER)
        end = start
        while end and text[end - 1].isspace():
            end -= 1


def _without_reminders(text: str) -> str:
    return text.partition(f"\n{_REMINDER}")[0].strip()
