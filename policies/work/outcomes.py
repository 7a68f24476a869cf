"""Whether a call worked, as far as the protocol proves it: ok, failed and why, else not known and quoted.

Evidence in this order: what the protocol says; an exit code; fields of a JSON result; verdict lines of known tools
(`verdicts.toml`). A call that reads worked if a text came.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from policies.voices.arguments import UnreadError, read
from policies.voices.wrappers import REJECTED
from policies.work import outcome_lines as lines
from policies.work.tallies import is_tally, what_failed
from policies.work.tools import Kind
from policies.work.verdicts import Proven, proven_first, proven_in

Result = Literal["ok", "failed", "unknown"]
# How sure a zero is: an exit code, or a protocol's word, which clients give to any result that came.
_Ground = Literal["none", "said", "code"]

# Characters of either end of a result that are read, and of a reason.
_READ = 800
# Characters of the beginning and of the end of a result in which verdict lines are looked for.
_HEAD, _TAIL = 1_500, 3_000
_QUOTED = 300
_WHY = 160
_NEAR = 320
_SHORT = 600
_MOST_JSON = 20_000
_TELLING_KEYS = ("output", "stdout", "stderr", "result", "content", "text", "message")
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
_TOLD_KEYS = frozenset({"error", "errormessage", "exception"})
_STATUS_KEYS = frozenset({"status", "statuscode", "httpstatus", "outcome"})
_FEW_KEYS = 4
_SAYS_NO_MORE = _FINE_STATUS | {"no output", "true", "null", "none", "finished"}
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
_DURATION = re.compile(
    r"\W{0,6}(?:\w{1,12} ){0,3}(?:in|took|after|time:?|duration:?) {0,4}[\d.]{1,12} ?"
    r"(?:m?s|secs?|seconds?|minutes?)\W{0,6}",
    re.IGNORECASE,
)
# Where somebody may type, or a traceback of a shell's own: nothing that a run says.
_PROMPT = re.compile(r"(?:[\w.@~:/-]{0,80}[$%#>]|>>>|\.\.\.) ?|\$ [^\n]{0,300}")
# Where a stack of calls was, behind what went wrong.
_STACK = re.compile(r"at [^\n]{1,300}[:(]\d{1,7}\)?")
_TELLING = re.compile(r"[^\W_]")
_COLOURS = re.compile(r"\x1b\[[\d;]{0,20}m")
_NUMBERED = re.compile(r" {0,8}\d{1,6}(?:\t|→|\||: )")
# A text of so many lines is no message in the place of a text: of a tool that reads, and of a shell.
_TEXT_LINES, _SHELL_LINES = 2, 4
_TRACE = "Traceback (most recent call last):"
_VISIBLE = re.compile(r"[^\n]")
_RETURNED = re.compile(r"<returncode>-?\d{1,10}</returncode>")
_RAISED = re.compile(
    r"^(?:[\w.]{1,80}\.)?[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit|Warning)\b[^\n]{0,400}", re.MULTILINE
)
_ESCAPE = re.compile(r"\\u((?!d[89a-f])[0-9a-f]{4})", re.IGNORECASE)
_TAGS = re.compile(r"</?[\w:-]{1,40}>")
_LABEL = re.compile(r"\W{0,4}\w{1,12}\s?[:：]\s{0,4}")
_UNINDENTED = re.compile(r"^[^\s][^\n]*", re.MULTILINE)
_LONE_VERDICT = re.compile(
    r"\W{0,20}(?:errors?|failed|fail|failures?|fatal|(?:the )?(?:command|script) failed)\W{0,20}",
    re.IGNORECASE,
)
_REFUSED = "refused by the user"
_PYTHON = re.compile(r"'(success|ok|isError|is_error)'\s?:\s?(True|False)")


class Outcome(NamedTuple):
    result: Result
    why: str = ""


OK = Outcome("ok")
NOT_KNOWN = Outcome("unknown")


class Ground(NamedTuple):
    """What is known of a call beside its result.

    is_shell: it runs commands, or may. shows: a shell's last command shows something, whose words are not about the
    call. stops: the call ends something, so that a signal's exit code is no failure. looks: the tool's name says that
    it gets something. ran: its commands, blanks around every word. is_one: it runs one command at most.
    """

    is_shell: bool
    shows: bool = False
    stops: bool = False
    looks: bool = False
    ran: str = ""
    is_one: bool = True


def outcome_of(kind: Kind, text: str | None, error: bool | None, ground: Ground) -> Outcome:
    """Return what became of a call. text: of its result, None if there is none; error: what the protocol says of it.

    `why` of a failure is the line that says why. That of a success is its result, if it is short, or the line that
    proves it. That of any other is the last line that says something.
    """
    outcome = _outcome_of(kind, text, error, ground)
    if outcome.result == "ok" and kind in ("change", "plan"):
        return OK
    if outcome == OK and text:
        return Outcome("ok", _whole(text))
    if not text or outcome.result != "failed":
        return outcome
    why = _said_around(outcome.why, text) if _is_wrapper(outcome.why) else outcome.why
    if "\n" in text.strip() and is_tally(why) and (what := what_failed(_lines_of(text))):
        why = _line(f"{why} … {what}")
    return Outcome("failed", why)


def _outcome_of(kind: Kind, text: str | None, error: bool | None, ground: Ground) -> Outcome:
    if text is None:
        return Outcome("failed") if error else NOT_KNOWN
    if error:
        return Outcome("failed", _reason(text))
    original = text
    if ground.stops and len(text) <= _MOST_JSON:  # the code of what it has ended is no code of its own
        text = lines.SIGNAL_CODE.sub(r"\g<before>0", text)
    if not text.strip():
        return OK if error is False else NOT_KNOWN
    if kind == "agent":
        return _of_report(text, error)
    seen = _ends_of(text)
    if _tells_nothing(seen[:400]):
        return NOT_KNOWN
    is_zero = False
    if ground.is_shell and (code := _framed_exit_code(seen)) is not None:
        if code:
            return Outcome("failed", _reason(text))
        is_zero = True
    outcome = _find_outcome(kind, text, seen, ground, is_zero=is_zero)
    if outcome is None or (outcome == NOT_KNOWN and is_zero):
        outcome = OK if is_zero or error is False else NOT_KNOWN
    return Outcome("unknown", _quotation(original)) if outcome == NOT_KNOWN else outcome


def _quotation(text: str) -> str:
    """Return the last line of a result that says something; of data all of it if it is short, else nothing."""
    if words := _whole(text):
        return words
    if text.lstrip()[:1] in ("{", "["):
        words = " ".join(text[: 4 * _WHY].split())
        return words if len(words) <= _WHY else ""
    end = text.partition(_REMINDER)[0][-2 * _READ :]
    for line in reversed(_TAGS.sub("", _COLOURS.sub("", end)).splitlines()):
        if _TELLING.search(line) and not _is_frame(line.strip()):
            words = " ".join(line.split())
            return words if len(words) <= _QUOTED else f"{words[:_QUOTED]}…"
    return ""


def _is_frame(line: str) -> bool:
    """Return True if a line is a harness's, a duration, a prompt or a place in a stack."""
    return any(pattern.fullmatch(line) for pattern in (lines.FRAME, _FRAMING, _DURATION, _PROMPT, _STACK))


def _whole(text: str) -> str:
    """A result of a line or two beside what frames it; empty for a longer one, and for a lone word of success."""
    text = text[: 2 * _SHORT].partition(_REMINDER)[0]
    if len(text) > _SHORT or text.count("\n") > _MOST_FRAMED:
        return ""
    if "<" in text:
        text = _TAGS.sub("", _RETURNED.sub("", text))
    told = [line for line in text.splitlines() if not line.isspace() and line]
    if len(told) > 1 or "xit" in text:
        told = [line for line in told if not _is_frame(line)]
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


def _find_outcome(kind: Kind, text: str, seen: str, ground: Ground, *, is_zero: bool) -> Outcome | None:
    """By what stands in a result; None if it proves nothing."""
    is_json = text[:1] in "{["
    first = seen.lstrip().partition("\n")[0].rstrip()
    scope: Literal["change", "tool", "any"] = "change" if kind == "change" else "tool"
    if ground.ran or kind == "read":
        scope = "any"
    if (proven := proven_first(first, scope)) is not None:
        return _as_outcome(proven)
    if REJECTED.match(text[: 2 * _READ]) or lines.NOT_CALLED.match(text):
        return Outcome("failed", _reason(text))
    if kind == "read" and not (is_json and ground.is_shell and lines.ENVELOPE.match(text[:_NEAR])):
        return _of_reading(text, ground)
    if is_json and (found := _of_json(text, ground, is_zero=is_zero)) is not None:
        return found
    if kind in ("change", "plan"):
        return Outcome("failed", _reason(text)) if (code := lines.FRAME.match(first)) and int(code[1]) else None
    return _of_text(seen, ground, is_zero=is_zero)


def _as_outcome(proven: Proven) -> Outcome:
    return Outcome(proven.result, _line(proven.line))


def _ends_of(text: str) -> str:
    """Return what is read of a result: whole lines of its beginning and its end, letters for escapes, no colours."""
    seen = text
    if len(text) > _HEAD + _TAIL:
        beginning, end = text[:_HEAD].rpartition("\n")[0], text[-_TAIL:].partition("\n")[2]
        seen = f"{beginning or text[:_READ]}\n{end or text[-_READ:]}"
    if "\x1b" in seen:
        seen = _COLOURS.sub("", seen)
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), seen) if "\\u" in seen else seen


def _tells_nothing(beginning: str) -> bool:
    return _has(beginning.lower(), lines.TELLS_NOTHING_STEMS) and lines.TELLS_NOTHING.search(beginning) is not None


def _framed_exit_code(seen: str) -> int | None:
    """The exit code that a harness puts around an output, if it does."""
    for part in (seen[:_NEAR], seen[-_NEAR:]) if len(seen) > _NEAR else (seen,):
        low = part.lower()
        if ("exit" in low or "code" in low) and (match := lines.FRAME.search(part)):
            return int(match[1])
    return None


def _of_reading(text: str, ground: Ground) -> Outcome:
    """Return whether a text came: a short one may be a message in its place."""
    seen = text[: 2 * _READ]
    if ground.is_shell and not ground.shows:
        told = [line for line in map(str.rstrip, seen.splitlines()) if line][:1]
        for proven in proven_in(told, ground.ran):
            if proven.result == "failed" and proven.scope == "error":
                return _as_outcome(proven)
    least = _SHELL_LINES if ground.ran else _TEXT_LINES
    is_text = len(text) > _SHORT or seen.strip().count("\n") + 1 >= least or _NUMBERED.match(seen)
    return OK if is_text else NOT_KNOWN


def _of_json(text: str, ground: Ground, *, is_zero: bool) -> Outcome | None:
    """What the fields of a JSON result say; not known if it is data that says nothing of the call; None for no JSON."""
    if len(text) > _MOST_JSON:
        return _of_code(text)
    try:
        value = read(text)
    except UnreadError:
        match = _PYTHON.match(text, 1) if text[:1] == "{" else None
        if match is None:
            return None
        is_fine = (match[2] == "True") != ("rror" in match[1])
        return OK if is_fine else Outcome("failed", _line(text))
    if isinstance(value, list) and ground.ran and lines.ENVELOPE.match(text[:_NEAR]):
        found = [said for part in value[:50] for said in _said_by(part)]
    else:
        found = [*_said_by(value, looks=ground.looks)]
    failed = next((each for each in found if each.result == "failed"), None)
    if failed is not None:
        return failed
    if Outcome("unknown") in found:
        return NOT_KNOWN
    if (
        isinstance(value, dict)
        and not ground.looks
        and (judged := _of_texts(value, ground, is_zero=is_zero or OK in found))
    ):
        return judged
    return OK if found else NOT_KNOWN


def _of_texts(fields: Mapping[str, object], ground: Ground, *, is_zero: bool) -> Outcome | None:
    """Return what the texts in an object prove: the first that proves anything."""
    for text in (fields.get(key) for key in _TELLING_KEYS):
        if not isinstance(text, str):
            continue
        if not ground.ran and (proven := proven_first(text.strip(), "tool")) is not None:
            return _as_outcome(proven)
        if (judged := _of_text(_ends_of(text), ground, is_zero=is_zero)) is not None:
            return judged
    return None


def _said_by(value: object, depth: int = 0, *, looks: bool = False) -> Iterator[Outcome]:
    """Yield what the fields of an object say. looks: a status, or an error, is that of what was looked up."""
    if not isinstance(value, dict):
        return
    for name, told in value.items():
        key = _key(name)
        if isinstance(told, dict) and key == "metadata" and depth < 1:
            yield from _said_by(told, depth + 1, looks=looks)
        elif not looks or key in _SUCCESS_KEYS or key in _ERROR_KEYS or isinstance(told, int):
            said = _said_by_field(key, told, value)
            if said is not None:
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


def _of_text(seen: str, ground: Ground, *, is_zero: bool) -> Outcome | None:
    """Return what verdict lines and exit codes prove; None if neither does.

    is_zero: its exit code is 0, which outweighs single errors. A verdict on a run outweighs it: a pipe hides its code.
    """
    told = [line for line in map(str.rstrip, seen.splitlines()) if line]
    found = proven_in(told, ground.ran)
    if ground.shows and len(told) > 1:
        found = [each for each in found if each.scope == "run"]
    if ground.stops:
        found = [each for each in found if each.scope != "last"]
    weighed = [each for each in found if each.result == "failed" and (each.scope == "run" or not is_zero)]
    if weighed:
        run = next((each for each in weighed if each.scope == "run"), weighed[0])
        return _as_outcome(run)
    if is_zero:
        return next((_as_outcome(each) for each in found if each.result == "ok"), OK)
    if (coded := _of_code(seen)) is not None:
        return coded
    if _TRACE in seen and not ground.shows and _ends_with_trace(seen):
        return Outcome("failed", _TRACE)
    fine = [each for each in found if each.result == "ok"]
    if fine and not ground.is_one:  # of the last command alone a result's end is known to be
        last = next((line for line in reversed(told) if not _is_frame(line.strip())), "")
        fine = [each for each in fine if each.line == last]
    return _as_outcome(fine[-1]) if fine else None


def _ends_with_trace(seen: str) -> bool:
    """Return True if nothing stands behind the last traceback but what was raised."""
    return len(_UNINDENTED.findall(seen[seen.rfind(_TRACE) + len(_TRACE) :])) == 1


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
    if _is_frame(line.strip()) or _LABEL.fullmatch(line) or _LONE_VERDICT.fullmatch(line):
        return True
    frame = lines.FRAME.match(line)
    return frame is not None and not _tells_more(line[frame.end() :])


def _tells_more(text: str) -> bool:
    """Return True if words stand behind a frame."""
    return len(text.split()) > 1


def _is_wrapper(line: str) -> bool:
    """Whether a line says that something failed and not why: it announces what follows, ends with a code, or is about a
    whole build."""
    if line.endswith((":", "：")) or _LONE_VERDICT.fullmatch(line) or lines.OF_BUILD.search(line):
        return True
    code = lines.CODE.search(line) or lines.LAST_CODE.search(line)
    return code is not None and not _tells_more(line[code.end() :])


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
