"""Splitting of a user's message into sentences: prose, and pasted text."""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from policies.conversation.transcript import shorten
from policies.memo import memoize

_MAX_MESSAGE = 400_000
# Characters of messages in the cache of prose.
_REMEMBERED = 200_000
_MAX_SENTENCE = 600
_MAX_PASTED = 200
# A longer sentence is split at commas, so that a rule within it becomes an entry of its own.
_LONG = 240
_LONG_CHINESE = 80

_FENCE = re.compile(r"\s{0,3}(?:```|~~~)")
_PASTED = re.compile(
    r"\A\s*(?:>|\||[$%❯] |(?:[\w.-]{1,40}@[\w.-]{1,60}[:~ ]|PS [A-Z]:\\)|at [\w.$<>]+\s?\(|Traceback "
    r"|Unhandled exception\. [\w.]+: "
    r"|File \""
    r"|[{}<]|\]|\)[;,)]"
    r"|(?:\+\+\+|---|@@) |\[?(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\b"
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\[?\d\d:\d\d:\d\d"
    r"|(?:import|from|def|class|return|const|let|var|function|package|#include|public|private|export|async|func|fn)\b.*[;:({)]\s*$)"
)
# Beginnings of lines of traces, diffs, SQL statements and logs. None of them ends like a sentence.
_OUTPUT = re.compile(
    r"\A\s*(?:Exception in thread \"|Caused by: [\w.]+\b|panic: |goroutine \d+ \[|\[signal SIG"
    r"|thread '[^']{1,60}' panicked|stack backtrace:|Stack trace:|PHP (?:Fatal|Warning|Notice|Parse)"
    r"|#\d+ (?:\S+\(\d+\)|\{main\})"
    r"|error\[E\d+\]: |--> \S+:\d+|\d+: \w+::|\.{3} \d+ more\b|at /\S+:\d+|/\S+:\d+ \+0x|main\.\S{0,200}\(0x[0-9a-f]"
    r"|exit status \d"
    r"|[\w.]{1,80}+(?:(?<=Error)|(?<=Exception)): \S|diff --git |index [0-9a-f]{3,40}\.\."
    r"|SELECT (?:\*|[\w.]{1,60}(?:,| FROM\b|\Z))"
    r"|INSERT INTO |DELETE FROM |CREATE (?:TABLE|INDEX|VIEW) |ALTER TABLE |DROP TABLE "
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |\d{1,2}/[A-Z][a-z]{2}/\d{4}:|\d{1,3}(?:\.\d{1,3}){3} - "
    r"|[a-z][\w.-]{0,40}+(?<=\d) +\| |\w{1,60}+=\S{1,200} \w{1,60}=\S"
    r"|export [A-Z][A-Z0-9_]*=|[A-Z][A-Z0-9_]{2,}=\S*\Z|\[[\w.-]+\]\s*\Z)"
)
_TRACE = re.compile(r"\s{0,40}Traceback ")
_FRAME = re.compile(r"\s{0,40}File \"")
_SENTENCE_END = re.compile(r"[.!?。！？](?<!\.\.)\s*\Z")
# Additional beginnings for the line right below such a line.
_OUTPUT_BELOW = re.compile(
    r"\A\s*(?:(?:error|fatal|warning|help|remote): |note: run with |!? ?\[rejected\]"
    r"|hint: Updates |FAIL +\S+[/.]|thrown in /|(?:\w{1,60} ){1,3}(?:NOT NULL|PRIMARY KEY)|[-+](?:\s{2,}|[^\s\d-]))"
)
_STATEMENT_BELOW = re.compile(
    r"\A\s*(?:To \S+\Z|Tests?:?\s+\d|PASS "
    r"|[\w.-]{1,40} = \S"
    r"|(?:FROM|WHERE|AND|OR|ON|SET|VALUES|GROUP BY|ORDER BY|HAVING|LIMIT|(?:LEFT |INNER |RIGHT )?JOIN)\b)"
)


class _Block(NamedTuple):
    """A form of pasted lines.

    least: the minimum number of such lines in a row. needs: a pattern that one of them must contain.
    """

    least: int
    form: re.Pattern[str]
    needs: re.Pattern[str]


_BLOCKS = (
    # Keys of YAML.
    _Block(
        4,
        re.compile(r"\A\s*(?:- )?[\"']?[\w./-]{1,60}[\"']?:(?:\s+\S{1,80})?\s*\Z|\A\s+- \S{1,80}\s*\Z"),
        re.compile(r"(?m)^[ \t]+(?:- )?[\"']?[\w./-]{1,60}[\"']?:"),
    ),
    # Comma-separated cells.
    _Block(
        3, re.compile(r"\A[^\s,]{1,80}(?:,[^\s,]{0,80}){2,40}\s*\Z"), re.compile(r"(?m)^[^\s,]{1,80},[^\s,]{0,80},")
    ),
    # Columns.
    _Block(
        2,
        re.compile(r"\A\S[^.!?]{0,80}?(?: {2,}|\t)\S.{0,80}?(?: {2,}|\t)\S"),
        re.compile(r" {3}\S|\t\S"),
    ),
    # Headers of a mail.
    _Block(
        2,
        re.compile(
            r"\A(?:From|To|Cc|Subject|Date|Sent|Reply-To|Von|An|Betreff|De|Para|Assunto|发件人|收件人|主题): ?\S"
        ),
        re.compile(r"(?m)^(?:From|Von|De|发件人):"),
    ),
    # A Dockerfile.
    _Block(
        2,
        re.compile(r"\A(?:FROM|RUN|CMD|COPY|ADD|ENV|ARG|WORKDIR|EXPOSE|ENTRYPOINT|USER) \S.{0,200}(?<![.!?])\s*\Z"),
        re.compile(r"(?m)^FROM \S+(?: AS \w+)?[ \t]*$"),
    ),
)
# A line of code ends like code and contains a sign of it. A sentence has more words.
_CODE_END = re.compile(r"[;{}]\s*\Z")
_CODE_SIGN = re.compile(r"[=(){}<>\[\]]|\w[:.]\s?\w")
_WORD = re.compile(r"(?<!\S)[^\W\d_]{2,}(?!\S)")
_MOST_WORDS = 3
# After a line of code, a line is code if it is indented, calls something, names an error or ends like code.
_CODE_NEXT = re.compile(
    r"\A(?:\s{2,}|\t|[\w.]{1,80}\(|[\w.]{1,80}(?:Error|Exception|Warning)\b|FAIL|PASS|ok\b|not ok\b)"
)
_CODE_NEXT_END = re.compile(r"[;{},)\]]\s*\Z")
_BULLET = re.compile(r"\A\s*(?:[-*•+]|#{1,6}|\(?\d{1,3}[.)、])\s+")
# The final character of a sentence comes first, so that others are skipped in one pass; then what follows it, which is
# rarely there otherwise.
_END = re.compile(
    r"[.!?。！？；](?:(?<=[。！？；])|(?=[\"')\]\s])(?<!\bDr\.)(?<!\bMr\.)(?<!\bMs\.)(?<!\bMrs\.)(?<!\bSt\.)(?<!\bvs\.)(?<!e\.g\.)"
    r"(?<!i\.e\.)(?<!\bNo\.)(?<!approx\.)[\"')\]]?\s+)"
)
_PAUSE = re.compile(r"(?<=[,;，；])\s*| (?=(?:and|but|so|btw|also|because|then) )")
# "The A is B and the C is D" states two things that change separately. A condition or a rule does not.
_TWO = re.compile(
    r",? and (?=(?:the|our|my) (?:[\w-]{1,30} ){1,4}(?:is|are) )|, (?=(?:the|our|my) (?:[\w-]{1,30} ){1,6}(?:is|are) )"
    r"|，(?=[^，。]{1,12}(?:是|为|叫|在)[^，。]{1,20}[。]?\Z)",
    re.IGNORECASE,
)
_FIRST_OF_TWO = re.compile(
    r"(?:[A-Z][A-Z _]{1,30}: ?)?(?:the|our|my) (?:[\w-]{1,30} ){1,6}(?:is|are) "
    r"|[^，。]{1,12}(?:是|为|叫|在)[^，。]{1,20}\Z",
    re.IGNORECASE,
)
_ONE = re.compile(
    r"\b(?:if|when|unless|while|that|because|never|must|only|before|after|until|not)\b|如果|除非|必须|不|时|只|禁止",
    re.IGNORECASE,
)
_CHINESE = re.compile(r"[\u4e00-\u9fff]")


def sentences(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the sentences of a message in order with whitespace folded, and False for pasted text.

    Of pasted code, logs and terminal output only the first and the last line are yielded.
    """
    pasted: list[str] = []
    for line, prose in _lines(shorten(text, _MAX_MESSAGE)):
        if not prose:
            pasted.append(line)
            continue
        yield from _ends(pasted)
        pasted = []
        for sentence in _ended_sentences(_BULLET.sub("", line, count=1)):
            for statement in _statements(" ".join(sentence.split())):
                for part in _parts(statement):
                    yield part, True
    yield from _ends(pasted)


@memoize(characters=_REMEMBERED)
def prose_of(text: str) -> list[str]:
    """Return the sentences of a message without pasted text. Cached, as a compaction needs it several times."""
    return [sentence for sentence, is_prose in sentences(text) if is_prose]


def _ends(lines: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield the first and the last line of pasted text. For a trace, the newest frame replaces the heading."""
    frames = [line for line in lines if _FRAME.match(line)] if lines and _TRACE.match(lines[0]) else []
    for line in dict.fromkeys([*(frames[-1:] or lines[:1]), *lines[-1:]]):
        yield shorten(" ".join(line.split()), _MAX_PASTED), False


def _ended_sentences(line: str) -> Iterator[str]:
    start = 0
    for end in _END.finditer(line):
        yield line[start : end.start() + 1]
        start = end.end()
    yield line[start:]


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the nonempty lines, and False for pasted ones. A wrapped sentence is joined into one line."""
    fenced = False
    is_pasted = False
    wrapped = ""
    lines = text.splitlines()
    blocks = _in_blocks(text, lines) if len(lines) > 1 else frozenset[int]()
    for number, line in enumerate(lines):
        if _FENCE.match(line):
            fenced = not fenced
            continue
        if not line.strip():
            if wrapped:
                yield wrapped, True
            wrapped = ""
            continue
        is_pasted = (
            fenced
            or number in blocks
            or _is_pasted(line[:400], is_in_run=is_pasted, is_below=is_pasted and bool(lines[number - 1].strip()))
        )
        if is_pasted:
            if wrapped:
                yield wrapped, True
            wrapped = ""
            yield line, False
            continue
        if wrapped and not (
            40 <= len(wrapped) <= _MAX_SENTENCE and wrapped[-1].islower() and line.lstrip()[0].islower()
        ):
            yield wrapped, True
            wrapped = ""
        wrapped = f"{wrapped} {line.strip()}" if wrapped else line.rstrip()
    if wrapped:
        yield wrapped, True


def _in_blocks(text: str, lines: Sequence[str]) -> Collection[int]:
    """Return the numbers of lines that are pasted because their neighbours look alike."""
    pasted: set[int] = set()
    for block in _BLOCKS:
        if not block.needs.search(text):
            continue
        run: list[int] = []
        for number, line in enumerate([*lines, ""]):
            if block.form.match(line[:400]):
                run.append(number)
            elif run:
                if len(run) >= block.least and any(block.needs.search(lines[run_number][:400]) for run_number in run):
                    pasted.update(run)
                run = []
    return pasted


def _is_pasted(line: str, *, is_in_run: bool, is_below: bool) -> bool:
    """Return True for a line of code, a log or a terminal.

    is_in_run: True if the last nonempty line is pasted.
    is_below: True if that line is right above.
    """
    if _PASTED.match(line) or (_OUTPUT.match(line) and not _SENTENCE_END.search(line)):
        return True
    if is_below and _OUTPUT_BELOW.match(line):
        return True
    if _BULLET.match(line) or _CHINESE.search(line) or len(_WORD.findall(line)) > _MOST_WORDS:
        return False
    if is_below and _STATEMENT_BELOW.match(line):
        return True
    if _CODE_END.search(line) and _CODE_SIGN.search(line):
        return True
    return is_in_run and bool(_CODE_NEXT.match(line) or (_CODE_NEXT_END.search(line) and _CODE_SIGN.search(line)))


def _statements(sentence: str) -> list[str]:
    joined = ", " in sentence or "，" in sentence or " and " in sentence.lower()
    if not joined or len(sentence) > _LONG:
        return [sentence]
    first_part, *other_parts = _TWO.split(sentence)
    return (
        [first_part, *other_parts]
        if other_parts and _FIRST_OF_TWO.match(first_part) and not _ONE.search(sentence)
        else [sentence]
    )


def _parts(sentence: str) -> Iterator[str]:
    if len(sentence) <= _LONG_CHINESE or len(sentence) <= (limit := _limit(sentence)):
        if sentence:
            yield sentence
        return
    part = ""
    for piece in _PAUSE.split(sentence):
        if part and len(part) + len(piece) > limit:
            yield part
            part = ""
        part = f"{part} {piece}".strip() if part and part[-1].isascii() else part + piece
    if part:
        yield shorten(part, _MAX_SENTENCE)


def _limit(sentence: str) -> int:
    return _LONG_CHINESE if len(_CHINESE.findall(sentence[:_LONG])) > 20 else _LONG
