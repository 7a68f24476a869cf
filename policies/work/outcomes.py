"""Whether a call worked, as far as its result shows: ok, failed and why, or not known; never ok without evidence.

Evidence in this order: what the protocol says; an exit code; fields of a JSON result; verdicts of test runners and
builds, programs' own errors and words of failure; signs of success. A call that reads worked if content came.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from policies.voices.arguments import UnreadError, read
from policies.voices.tables import REJECTED
from policies.work import outcome_lines as lines
from policies.work.outcome_words import ENGLISH, LANGUAGES, LATIN, OutcomeWords
from policies.work.tallies import is_tally, what_failed
from policies.work.tools import TEXT_PROGRAMS, Kind

Result = Literal["ok", "failed", "unknown"]
# How sure a zero is: an exit code, or a protocol's word, which clients give to any result that came.
_Ground = Literal["none", "said", "code"]

# Characters of either end of a result that are read, and of a reason.
_READ = 800
_WHY = 160
_NEAR = 320
_SHORT = 600
_MOST_JSON = 20_000
_TELLING_KEYS = ("message", "detail", "details", "msg", "output", "result", "content", "text", "stderr", "reason")
_FAILED_STATUS = frozenset(
    [
        *("error", "failed", "failure", "fail", "rejected", "denied", "timeout", "timed_out"),
        *("invalid", "not_found", "unauthorized", "forbidden"),
    ]
)
_FINE_STATUS = frozenset(
    [
        *("success", "ok", "succeeded", "completed", "passed", "done", "created", "updated"),
        *("successful",),
    ]
)
_CODE_KEYS = frozenset({"exitcode", "returncode", "exitstatus", "rc"})
_SUCCESS_KEYS = frozenset({"success", "ok", "succeeded", "successful", "issuccess"})
_ERROR_KEYS = frozenset({"iserror", "failed", "haserror"})
_TOLD_KEYS = frozenset({"error", "errors", "errormessage", "exception"})
_STATUS_KEYS = frozenset({"status", "state", "statuscode", "httpstatus", "outcome"})
_FEW_KEYS = 4
_SAYS_NO_MORE = _FINE_STATUS | {"no output", "true", "null", "none", "finished", "成功", "完成"}
_MOST_LINES = 2
_MOST_FRAMED = 8
_REMINDER = "<system-reminder"
# What some harnesses put around an output, beside its code.
_FRAMING = re.compile(
    r"\W{0,6}(?:(?:wall|elapsed|total|run|real|user|sys|cpu)?[ _]?(?:time|duration|took|elapsed|real|user|sys)"
    r"(?: taken| elapsed)?\s?[:=]?\s?(?:\d{1,6}m)?[\d.]{1,12} ?(?:m?s|secs?|seconds?|milliseconds?|min(?:ute)?s?)"
    r"|(?:command |error |standard )?(?:output|stdout|stderr|error|errors)|chunk id: ?\w{1,40}"
    r"|script (?:completed|failed|error)|(?:total output lines|original token count): ?\d{1,12})\W{0,6}",
    re.IGNORECASE,
)
_VISIBLE = re.compile(r"[^\n]")
_RETURNED = re.compile(r"<returncode>-?\d{1,10}</returncode>")
_RAISED = re.compile(
    r"^(?:[\w.]{1,80}\.)?[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit|Warning)\b[^\n]{0,400}", re.MULTILINE
)
_ESCAPE = re.compile(r"\\u((?!d[89a-f])[0-9a-f]{4})", re.IGNORECASE)
# Lines of differences, of numbered files and of searches.
_SHOWN = re.compile(r"^(?:[+@ -]|\d{1,6}[\t:|-]|[\w./-]{1,200}[:-]\d{1,6}[:-])[^\n]*$", re.MULTILINE)
_TAGS = re.compile(r"</?[\w:-]{1,40}>")
_PASSED = re.compile(r"\b\d{1,6} (?:tests? )?pass(?:ed|ing)\b")
_LABEL = re.compile(r"^(?:error|fehler|erreur|错误)\s?[:：]\s{0,4}$", re.IGNORECASE)
_UNINDENTED = re.compile(r"^[^\s][^\n]*", re.MULTILINE)
_LONE_VERDICT = re.compile(
    r"\W{0,20}(?:errors?|failed|fail|failures?|fatal|fehler|erreur|ошибка|失败|错误|エラー|失敗|오류|실패)\W{0,20}",
    re.IGNORECASE,
)
_REFUSED = "refused by the user"
# How a command that shows a text, or the shell that starts it, says that there is none.
_NOT_SHOWN = re.compile(
    rf"\W{{0,3}}(?:-?(?:/\w{{1,20}}){{0,4}}/?(?:(?:ba|da|z|k|fi)?sh|{'|'.join(map(re.escape, sorted(TEXT_PROGRAMS)))})"
    r"(?: error\])?\s?:|fatal: |error: |Error response from daemon|Error from server|usage: )",
)
_PYTHON = re.compile(r"'(success|ok|isError|is_error)'\s?:\s?(True|False)")


class Outcome(NamedTuple):
    result: Result
    why: str = ""


OK = Outcome("ok")
NOT_KNOWN = Outcome("unknown")


def outcome_of(
    kind: Kind, text: str | None, error: bool | None, *, is_shell: bool, shows: bool = False, stops: bool = False
) -> Outcome:
    """Return what became of a call. text: of its result, None if there is none; error: what the protocol says of it.

    shows: a shell's last command shows something, whose words are not about the call; of a call that reads, it shows a
    text whose words are not. stops: the call ends something, so that "killed" is no failure. `why` of one that did not
    fail is its result, where that is short, or the line of it that says so.
    """
    found = _outcome_of(kind, text, error, is_shell=is_shell, shows=shows, stops=stops)
    if found == OK and text and kind not in ("change", "plan"):
        return Outcome("ok", _whole(text))
    if not text or found.result != "failed":
        return found
    why = _said_around(found.why, text) if _is_wrapper(found.why) else found.why
    if "\n" in text.strip() and is_tally(why) and (what := what_failed(_lines_of(text))):
        why = _line(f"{why} … {what}")
    return Outcome("failed", why)


def _outcome_of(
    kind: Kind, text: str | None, error: bool | None, *, is_shell: bool, shows: bool, stops: bool
) -> Outcome:
    if text is None:
        return Outcome("failed") if error else NOT_KNOWN
    if error:
        return Outcome("failed", _reason(text))
    told = text
    if stops and len(text) <= _MOST_JSON:  # the code of what it has ended is no code of its own
        text = lines.SIGNAL_CODE.sub(r"\g<before>0", text)
    if not text.strip():
        return OK if error is False else NOT_KNOWN
    if kind == "agent":
        return _of_report(text, error)
    seen = _ends_of(text, shows=shows)
    if _tells_nothing(seen[:400]):
        return NOT_KNOWN
    ground: _Ground = "none" if error is None else "said"
    if is_shell and (code := _framed_exit_code(seen)) is not None:
        if code:
            return Outcome("failed", _reason(text))
        ground = "code"
    found = _find_outcome(kind, text, seen, ground, is_shell=is_shell, shows=shows, stops=stops)
    found = found or (OK if ground != "none" else NOT_KNOWN)
    return Outcome("unknown", _whole(told)) if found == NOT_KNOWN else found


def _whole(text: str) -> str:
    """A result of a line or two beside what frames it; empty for a longer one, and for a lone word of success."""
    text = text[: 2 * _SHORT].partition(_REMINDER)[0]
    if len(text) > _SHORT or text.count("\n") > _MOST_FRAMED:
        return ""
    if "<" in text:
        text = _TAGS.sub("", _RETURNED.sub("", text))
    told = [line for line in text.splitlines() if not line.isspace() and line]
    if len(told) > 1 or "xit" in text:
        told = [line for line in told if not (lines.FRAME.fullmatch(line) or _FRAMING.fullmatch(line))]
    words = " ".join(" ".join(told).split())
    is_word = words.lower().strip(".!() ") in _SAYS_NO_MORE
    return words if len(words) <= _WHY and len(told) <= _MOST_LINES and not is_word else ""


def _of_report(text: str, error: bool | None) -> Outcome:
    """Return the outcome of a call of another agent, by the protocol alone: a report may tell of any failure."""
    if lines.NOT_CALLED.match(text) or REJECTED.match(text[:_READ]):
        return Outcome("failed", _reason(text))
    is_json = text[:1] == "{" and len(text) <= _MOST_JSON
    failed = next((said for said in _fields_said(text) if said.result == "failed"), None) if is_json else None
    return failed or (OK if error is False else Outcome("unknown", _whole(text)))


def _fields_said(text: str) -> Sequence[Outcome]:
    try:
        return [*_said_by(read(text))]
    except UnreadError:
        return ()


def _find_outcome(
    kind: Kind, text: str, seen: str, ground: _Ground, *, is_shell: bool, shows: bool, stops: bool
) -> Outcome | None:
    """By what stands in a result; None if it says nothing."""
    is_json = text[:1] in "{["
    if kind == "read" and not (is_json and is_shell and lines.ENVELOPE.match(text[:_NEAR])):
        return _of_reading(text, ground, is_shell=is_shell, shows=shows)
    if is_json and (found := _of_json(text, stops=stops)) is not None:
        return found
    if kind in ("change", "plan") and (found := _of_first_line(seen)) is not None:
        return found
    if kind == "plan":
        return None
    return _of_text(seen, ground, is_change=kind == "change", by_words=not shows, stops=stops)


def _ends_of(text: str, *, shows: bool) -> str:
    """What is read of a result: its ends, letters for escapes, and of what shows something no lines of that."""
    seen = text if len(text) <= 2 * _READ else f"{text[:_READ]}\n{text[-_READ:]}"
    if "\\u" in seen:
        seen = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), seen)
    return _SHOWN.sub("", seen) if shows else seen


def _tells_nothing(beginning: str) -> bool:
    return _has(beginning.lower(), lines.TELLS_NOTHING_STEMS) and lines.TELLS_NOTHING.search(beginning) is not None


def _framed_exit_code(seen: str) -> int | None:
    """The exit code that a harness puts around an output, if it does."""
    for part in (seen[:_NEAR], seen[-_NEAR:]) if len(seen) > _NEAR else (seen,):
        low = part.lower()
        if ("exit" in low or "code" in low) and (match := lines.FRAME.search(part)):
            return int(match[1])
    return None


def _of_reading(text: str, ground: _Ground, *, is_shell: bool, shows: bool) -> Outcome:
    """Content is evidence; only what stands for it is an error: one that is all there is, in a line or three.

    shows: any error may be such content, but for one that the command itself says.
    """
    if lines.NOTHING_FOUND.search(text[:200]):
        return NOT_KNOWN if ground == "none" else OK
    if ground == "code":
        return OK
    if text[:1] == "{" and len(text) <= _SHORT and (found := _of_json(text)) is not None and found.result == "failed":
        return found if any(row.missing.search(found.why) for row in (ENGLISH, *LANGUAGES)) else NOT_KNOWN
    body = _TAGS.sub("", text[:_SHORT]).strip()
    if len(text) <= _SHORT and body.count("\n") < (2 if is_shell else 4):
        first = body.partition("\n")[0]
        if lines.REFUSED.search(body) and not shows:
            return Outcome("failed", _line(first))
        for row in (ENGLISH, *LANGUAGES) if not shows or _NOT_SHOWN.match(first) else ():
            if row.missing.search(first):
                return Outcome("failed", _line(first))
    return OK


def _of_json(text: str, *, stops: bool = False) -> Outcome | None:
    """What the fields of a JSON result say; not known if it is data that says nothing of the call; None for no JSON."""
    if len(text) > _MOST_JSON:
        return _of_code(text)
    try:
        value = read(text)
    except UnreadError:
        match = _PYTHON.search(text[:_READ])
        if match is None:
            return None
        is_fine = (match[2] == "True") != ("rror" in match[1])
        return OK if is_fine else Outcome("failed", _line(text))
    found = [*_said_by(value)]
    failed = next((each for each in found if each.result == "failed"), None)
    if failed is not None:
        return failed
    if Outcome("unknown") in found:
        return NOT_KNOWN
    if isinstance(value, dict):
        for told in (value.get(key) for key in _TELLING_KEYS):
            if isinstance(told, str) and (
                judged := _of_text(told[: 2 * _READ], "said" if found else "none", stops=stops)
            ):
                return judged
    return OK if found else NOT_KNOWN


def _said_by(value: object, depth: int = 0) -> Iterator[Outcome]:
    if isinstance(value, list):
        for part in value[:50]:
            if isinstance(part, dict) and depth < 2:
                yield from (
                    said
                    for said in _said_by(
                        {k: v for k, v in part.items() if _key(k) not in _STATUS_KEYS - {"outcome"}}, depth + 1
                    )
                )
        return
    if not isinstance(value, dict):
        return
    for name, told in value.items():
        key = _key(name)
        if isinstance(told, dict | list) and key in ("metadata", "result", "outcome", "output") and depth < 3:
            yield from _said_by(told, depth + 1)
        elif (said := _said_by_field(key, told, value)) is not None:
            yield said


def _key(name: object) -> str:
    return str(name).replace("_", "").replace("-", "").lower()


def _said_by_field(key: str, told: object, beside: Mapping[str, object]) -> Outcome | None:
    if key in _CODE_KEYS and isinstance(told, int):
        return OK if told == 0 else Outcome("failed", _beside(beside))
    if key in _SUCCESS_KEYS and isinstance(told, bool):
        return OK if told else Outcome("failed", _beside(beside))
    if key in _ERROR_KEYS and told is True:
        return Outcome("failed", _beside(beside))
    if key in _TOLD_KEYS and told and not (isinstance(told, str) and told.lower() in ("none", "null", "(none)")):
        return Outcome("failed", _beside(beside))
    if key in _STATUS_KEYS:
        return _of_status(told, beside)
    return None


def _of_status(told: object, beside: Mapping[str, object]) -> Outcome | None:
    """A status beside many other fields is that of what was asked about."""
    word = str(told).lower()
    is_bad = (isinstance(told, int) and told >= 400) or word in _FAILED_STATUS
    is_fine = (isinstance(told, int) and 200 <= told < 300) or word in _FINE_STATUS
    if not (is_bad or is_fine):
        return None
    if len(beside) > _FEW_KEYS:
        return NOT_KNOWN
    return Outcome("failed", _beside(beside)) if is_bad else OK


def _beside(fields: Mapping[str, object]) -> str:
    """What the fields tell of a failure."""
    for key in ("error", "message", "stderr", "errors", "detail", "reason", "output", "body", "content", "result"):
        told = fields.get(key)
        if isinstance(told, dict):
            told = told.get("message")
        if isinstance(told, str) and told.strip():
            return _reason(told)
    return _line(", ".join(f"{key}: {told}" for key, told in fields.items() if isinstance(told, int | str))[:_WHY])


def _of_code(text: str) -> Outcome | None:
    """By the code near either end."""
    for part in (text[-_NEAR:], text[:_NEAR]):
        low = part.lower()
        if any(stem in low for stem in lines.CODE_STEMS) and (codes := [int(m[1]) for m in lines.CODE.finditer(part)]):
            return OK if not any(codes) else Outcome("failed", _reason(text))
    return None


def _of_first_line(seen: str) -> Outcome | None:
    """Of what shows behind its first line what it wrote or planned, with whatever words that has."""
    first = _TAGS.sub("", seen[:_SHORT]).strip().partition("\n")[0]
    if lines.REFUSED.search(first) or any(row.missing.search(first) for row in (ENGLISH, *LANGUAGES)):
        return Outcome("failed", _line(first))
    said = re.split(r": | '|\"|`", first, maxsplit=1)[0]
    is_fine = (
        (found := _of_text(said, "none")) is not None
        and found.result == "ok"
        and lines.NOT_EDITED.search(first) is None
    )
    return OK if is_fine else None


def _of_text(
    seen: str, ground: _Ground, *, is_change: bool = False, by_words: bool = True, stops: bool = False
) -> Outcome | None:
    """By what a text says, in any language of the tables."""
    low = seen.lower()
    if ground == "code":
        told = _lines_with(lines.VERDICT_STEMS, seen, low)
        match = lines.VERDICT.search(_blank(lines.NONE_OF_THEM, told)) if told else None
        return Outcome("failed", _line_of(told, match)) if match else OK
    if is_change and _has(low[:400], lines.NOT_EDITED_STEMS) and (match := lines.NOT_EDITED.search(seen[:400])):
        return Outcome("failed", _line_of(seen, match))
    told = _lines_with(lines.FAILING_STEMS, seen, low)
    judged = _blank(lines.ENDED, told) if stops else told
    cleared = _blank(lines.NONE_OF_THEM, judged)
    if cleared and (match := lines.REFUSED.search(cleared)):
        return Outcome("failed", _line_of(told, match))
    if cleared and (match := lines.VERDICT.search(cleared)):
        return Outcome("failed", _line_of(told, match))
    coded = _of_code(seen)
    if coded is not None:
        return coded
    plain = _blank(ENGLISH.harmless, cleared)
    if plain and (match := lines.OWN_ERROR.search(plain)):
        return Outcome("failed", _line_of(told, match))
    return _of_words(seen, told, plain, low) if by_words else None


def _of_words(seen: str, failing: str, plain: str, low: str) -> Outcome | None:
    """Judge a text by its words. failing: the lines that may tell of a failure in English. plain: the same, with blanks
    in the place of what is harmless."""
    is_short, worked = len(seen) <= _SHORT, False
    well = _lines_with(lines.WENT_WELL_STEMS, seen, low)
    if well and (match := lines.WENT_WELL.search(well)):
        return Outcome("ok", _line_of(well, match))
    for row in _rows_for(seen, is_short=is_short):
        if told := _lines_with(row.stems, seen, low):
            cleared = _blank(row.harmless, _blank(ENGLISH.harmless, _blank(lines.NONE_OF_THEM, told)))
            if match := row.failed.search(cleared) or row.missing.search(cleared):
                return Outcome("failed", _line_of(told, match))
            worked = worked or row.worked.search(told) is not None
    if plain and (match := ENGLISH.failed.search(plain)):
        return Outcome("failed", _line_of(failing, match)) if is_short else NOT_KNOWN
    if well and (match := _PASSED.search(well)):
        return Outcome("ok", _line_of(well, match))
    return OK if worked or (well and ENGLISH.worked.search(well)) else None


def _rows_for(seen: str, *, is_short: bool) -> Sequence[OutcomeWords]:
    """The languages that a text may be in; a long one in Latin letters alone is a program's."""
    if not seen.isascii():
        return LANGUAGES
    return LATIN if is_short else ()


def _lines_with(stems: Sequence[str], seen: str, low: str) -> str:
    """The lines that hold one of the stems: all that patterns are tried on. low: the text in lower case."""
    found: set[tuple[int, int]] = set()
    if len(low) != len(seen):
        return seen if any(stem in low for stem in stems) else ""
    for stem in stems:
        at = low.find(stem)
        while at >= 0:
            end = low.find("\n", at)
            end = len(low) if end < 0 else end
            found.add((low.rfind("\n", 0, at) + 1, end))
            at = low.find(stem, end)
    return "\n".join(seen[start:end] for start, end in sorted(found))


def _has(low: str, stems: Sequence[str]) -> bool:
    for stem in stems:  # noqa: SIM110 - a generator takes three times as long
        if stem in low:
            return True
    return False


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """Return the text with spaces in the place of every match, so that a line is quoted from where a word stands."""
    return pattern.sub(_spaces, text) if text else ""


def _spaces(match: re.Match[str]) -> str:
    return _VISIBLE.sub(" ", match[0])


def _line_of(text: str, match: re.Match[str]) -> str:
    """The line of a match; of a trace, the one that says what was raised."""
    start = text.rfind("\n", 0, match.start() + 1) + 1 if not match[0].startswith("\n") else match.start() + 1
    line = _line(text[start:])
    if not line.startswith("Traceback"):
        return line
    raised = [*_RAISED.finditer(text, start)]
    return _line(raised[-1][0]) if raised else line


def _line(text: str) -> str:
    """The first line with words, in at most 160 characters."""
    line = next((line for line in _TAGS.sub("", text[:2_000]).splitlines() if line.strip(" \t=-_*#|>.")), "")
    words = " ".join(line.split())
    if len(words) <= _WHY:
        return words
    return f"{words[: max(words.rfind(' ', 60, _WHY), 0) or _WHY]}…"


def _says_no_why(line: str) -> bool:
    if not line.strip() or _FRAMING.fullmatch(line.strip()):
        return True
    frame = lines.FRAME.match(line)
    if frame is not None and _tells_of_failure(line[frame.end() :]):
        return False
    return frame is not None or any(pattern.match(line) for pattern in (_LABEL, lines.WENT_WELL))


def _tells_of_failure(text: str) -> bool:
    return any(pattern.search(text) for pattern in (lines.OWN_ERROR, ENGLISH.failed, ENGLISH.missing))


def _is_wrapper(line: str) -> bool:
    """Whether a line says that something failed and not why: it announces what follows, ends with a code, or is about a
    whole build."""
    if line.endswith((":", "：")) or _LONE_VERDICT.fullmatch(line) or lines.OF_BUILD.search(line):
        return True
    code = lines.CODE.search(line) or lines.LAST_CODE.search(line)
    return code is not None and not _tells_of_failure(line[code.end() :])


def _end_of_trace(text: str) -> str:
    """The first line behind the last trace that is not indented, or the last of what is read of a long one."""
    start = text.rfind("Traceback")
    trace = text[start : start + 2 * _READ].partition("\n")[2]
    if first := _UNINDENTED.search(trace):
        return _line(first[0])
    ends = _UNINDENTED.findall(text[-_READ:].partition("\n")[2])
    return _line(ends[-1]) if ends else ""


def _lines_of(text: str) -> list[str]:
    """The lines with words of a result's ends, without tests that have passed."""
    seen = text if len(text) <= 2 * _READ else f"{text[:_READ]}\n{text[-_READ:]}"
    return [line for line in map(_line, _blank(lines.PASSED_TEST, seen).splitlines()) if line]


def _said_around(wrapper: str, text: str) -> str:
    """What a failed result says beside a line that wraps it: an error of its own, else the next line; of a line before
    it nobody knows whether it is why, so that both are told."""
    if lines.REFUSED.search(wrapper):
        return _REFUSED
    told = _lines_of(text)
    at = next((at for at, line in enumerate(told) if line == wrapper), None)
    if wrapper.startswith("Traceback"):
        return _end_of_trace(text) or wrapper
    for line in told:
        if lines.OWN_ERROR.search(line) and not _is_wrapper(line):
            return line
    if at is None:
        return wrapper
    following = next(iter(told[at + 1 : at + 2]), "")
    if following and not (_is_wrapper(following) or _says_no_why(following)):
        return following
    before = next((line for line in reversed(told[:at]) if not (_is_wrapper(line) or _says_no_why(line))), "")
    return _line(f"{before} … {wrapper}") if before else wrapper


def _reason(text: str) -> str:
    """The line of a failed result that says why: a verdict, else an error, else the first behind what frames it, else
    the exit code."""
    if REJECTED.match(text[:_READ]):
        return _REFUSED
    seen = text if len(text) <= 2 * _READ else f"{text[:_READ]}\n{text[-_READ:]}"
    cleared = _blank(lines.NONE_OF_THEM, seen)
    for pattern in (lines.VERDICT, lines.OWN_ERROR):
        if match := pattern.search(cleared):
            return _line_of(seen, match)
    plain = _TAGS.sub("\n", _RETURNED.sub("", seen)).splitlines()
    told = [line for line in plain if not _says_no_why(line)]
    code = lines.CODE.search(seen)
    return _line("\n".join(told)) or (f"exit code {code[1]}" if code else _line(seen))
