"""Whether a call worked, as far as the protocol proves it: ok, failed and why, else not known and quoted.

Evidence in this order: what the protocol says; an exit code; fields of a JSON result; verdict lines of known tools
(`verdicts.toml`). A call that reads worked if a text came.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from policies.authorship.arguments import UnreadError, read
from policies.authorship.wrappers import REJECTED
from policies.searching import has_any
from policies.tool_calls.reasons import (
    CODE,
    FRAME,
    READ,
    RETURNED,
    TAGS,
    UNINDENTED,
    WHY,
    is_frame,
    is_framing,
    line_of,
    reason_of,
    refine_reason,
    without_logs,
)
from policies.tool_calls.tools import Kind
from policies.tool_calls.verdicts import EXIT_CODE_NAMES, EXIT_CODE_STEMS, Proven, proven_first, proven_in

Result = Literal["ok", "failed", "unknown"]
# Characters of the beginning and of the end of a result in which verdict lines are looked for.
_HEAD, _TAIL = 1_500, 3_000
_QUOTED = 300
_LONGEST_LINE = 400
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
_TELLING = re.compile(r"[^\W_]")
_COLOURS = re.compile(r"\x1b\[[\d;]{0,20}m")
_NUMBERED = re.compile(r" {0,8}\d{1,6}(?:\t|→|\||: )")
# A text of so many lines is no message in the place of a text: of a tool that reads, and of a shell.
_TEXT_LINES, _SHELL_LINES = 2, 4
_TRACE = "Traceback (most recent call last):"
_ESCAPE = re.compile(r"\\u((?!d[89a-f])[0-9a-f]{4})", re.IGNORECASE)
# The code of what a signal has ended.
_SIGNAL_CODE = re.compile(
    rf"(?P<before>(?:{EXIT_CODE_NAMES})['\"]?\s{{0,2}}[:：=>は]?\s{{0,2}})(?:1(?:29|30|37|43)|-(?:1|2|9|15))\b(?!\.\d)",
    re.IGNORECASE,
)
# What harnesses put an output into.
_ENVELOPE = re.compile(
    r"[\s\[]{0,8}\{\s{0,8}(?:\"(?:returncode|exit_?[cC]ode|output|stdout|chunk_id)\":|\"(?:query"
    r"|command)\":[^\n]{0,200}\"(?:result|success)\":)"
)
# A result that is gone, or that says only that a process was started.
_TELLS_NOTHING = re.compile(
    r"\A\W{0,3}(?:old tool result|tool result (?:content )?cleared|content (?:was )?(?:cleared|removed|omitted)"
    r"|output (?:removed|pruned|omitted))"
    r"|\bcontent cleared\b|\A[^\n]{0,60}\b(?:running|started|moved|continues?) in (?:the )?background\b"
    r"|\A[^\n]{0,80}\bstill running\b"
    r"|\bprocess running with session id\b|\bno new output after\b|\A\W{0,3}command running\b",
    re.IGNORECASE,
)
_TELLS_NOTHING_STEMS = (
    *("cleared", "removed", "omitted", "pruned", "background", "still running", "session id", "no new output"),
    "command running",
)
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
    return Outcome("failed", refine_reason(outcome.why, text))


def _outcome_of(kind: Kind, text: str | None, error: bool | None, ground: Ground) -> Outcome:
    if text is None:
        return Outcome("failed") if error else NOT_KNOWN
    if error:
        return Outcome("failed", _reason_in(text))
    original = text
    if ground.stops and len(text) <= _MOST_JSON:  # the code of what it has ended is no code of its own
        text = _SIGNAL_CODE.sub(r"\g<before>0", text)
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
            return Outcome("failed", reason_of(text))
        is_zero = True
    outcome = _find_outcome(kind, text, seen, ground, is_zero=is_zero)
    if outcome is None or (outcome == NOT_KNOWN and is_zero):
        outcome = OK if is_zero or error is False else NOT_KNOWN
    return Outcome("unknown", _quotation(original)) if outcome == NOT_KNOWN else outcome


def _quotation(text: str) -> str:
    """Return the last line of a result that says something; of data all of it if it is short, else nothing."""
    output = output_in(text)
    if words := _short_words(text if output is None else output):
        return words
    if output is not None:
        return _quotation(output)
    if text.lstrip()[:1] in ("{", "["):
        words = " ".join(text[: 4 * WHY].split())
        return words if len(words) <= WHY else ""
    end = text.partition(_REMINDER)[0][-2 * READ :]
    for line in reversed(TAGS.sub("", without_logs(_COLOURS.sub("", end))).splitlines()):
        if _TELLING.search(line) and not is_frame(line.strip()):
            words = " ".join(line.split())
            return words if len(words) <= _QUOTED else f"{words[:_QUOTED]}…"
    return ""


def _whole(text: str) -> str:
    """A result of a line or two beside what frames it; empty for a longer one, and for a lone word of success."""
    output = output_in(text)
    return _short_words(text if output is None else output)


def _short_words(text: str) -> str:
    text = text[: 2 * _SHORT].partition(_REMINDER)[0]
    if len(text) > _SHORT or text.count("\n") > _MOST_FRAMED:
        return ""
    if "<" in text:
        text = TAGS.sub("", RETURNED.sub("", text))
    told = [line for line in without_logs(text).splitlines() if line and not line.isspace()]
    if len(told) > 1 or "xit" in text:
        told = [line for line in told if not is_frame(line)]
    words = " ".join(" ".join(told).split())
    is_word = words.lower().strip(".!() ") in _SAYS_NO_MORE
    return words if len(words) <= WHY and len(told) <= _MOST_LINES and not is_word else ""


def output_in(text: str) -> str | None:
    """Return the output of a shell in the JSON that a harness puts it into; None for any other text."""
    if _ENVELOPE.match(text[:_NEAR]) is None or len(text) > _MOST_JSON:
        return None
    try:
        value = read(text)
    except UnreadError:
        return None
    fields = value if isinstance(value, dict) else {}
    output = fields.get("output", fields.get("stdout"))
    return output if isinstance(output, str) else None


def _of_report(text: str, error: bool | None) -> Outcome:
    """Return the outcome of a call of another agent, by the protocol alone: a report may tell of any failure."""
    if REJECTED.match(text[:READ]):
        return Outcome("failed", reason_of(text))
    if (proven := _proven_first(text, "any")) is not None and proven.result == "failed":
        return _as_outcome(proven)
    is_json = text[:1] == "{" and len(text) <= _MOST_JSON
    failed = next((said for said in _fields_said(text) if said.result == "failed"), None) if is_json else None
    return failed or (OK if error is False else Outcome("unknown", _whole(text)))


def _reason_in(text: str) -> str:
    """Return the line of a failed result, an object or a text, that says why."""
    try:
        value = read(text) if text[:1] == "{" and len(text) <= _MOST_JSON else text
    except UnreadError:
        value = text
    return _beside(value) if isinstance(value, dict) and value else reason_of(text)


def _fields_said(text: str) -> Sequence[Outcome]:
    try:
        return [*_said_by(read(text))]
    except UnreadError:
        return ()


def _find_outcome(kind: Kind, text: str, seen: str, ground: Ground, *, is_zero: bool) -> Outcome | None:
    """By what stands in a result; None if it proves nothing."""
    if REJECTED.match(text[: 2 * READ]):
        return Outcome("failed", reason_of(text))
    is_json = text[:1] in "{["
    scope: Literal["change", "tool", "any"] = "change" if kind == "change" else "tool"
    if ground.ran or kind == "read":
        scope = "any"
    if (proven := _proven_first(seen, scope)) is not None:
        return _as_outcome(proven)
    if kind == "read" and not (is_json and ground.is_shell and _ENVELOPE.match(text[:_NEAR])):
        return _of_reading(text, ground)
    if is_json and (found := _of_json(text, ground, is_zero=is_zero)) is not None:
        return found
    if kind in ("change", "plan"):
        code = FRAME.match(seen.lstrip())
        return None if code is None else Outcome("failed", reason_of(text)) if int(code[1]) else OK
    return _of_text(seen, ground, is_zero=is_zero)


def _proven_first(text: str, scope: Literal["change", "tool", "any"]) -> Proven | None:
    """Return what the first line of a result proves, or the first one behind those of a harness."""
    lines = [line[:_LONGEST_LINE] for line in map(str.strip, text[:READ].splitlines()) if line][:_MOST_FRAMED]
    if not lines:
        return None
    told = next((line for line in lines if not is_framing(line)), lines[0])
    return proven_first(lines[0], scope) or (None if told is lines[0] else proven_first(told, scope))


def _as_outcome(proven: Proven) -> Outcome:
    return Outcome(proven.result, line_of(proven.line))


def _ends_of(text: str) -> str:
    """Return what is read of a result: whole lines of its beginning and its end, letters for escapes, no colours."""
    seen = text
    if len(text) > _HEAD + _TAIL:
        beginning, end = text[:_HEAD].rpartition("\n")[0], text[-_TAIL:].partition("\n")[2]
        seen = f"{beginning or text[:READ]}\n{end or text[-READ:]}"
    if "\x1b" in seen:
        seen = _COLOURS.sub("", seen)
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), seen) if "\\u" in seen else seen


def _tells_nothing(beginning: str) -> bool:
    return has_any(beginning.lower(), _TELLS_NOTHING_STEMS) and _TELLS_NOTHING.search(beginning) is not None


def _framed_exit_code(seen: str) -> int | None:
    """The exit code that a harness puts around an output, if it does."""
    for part in (seen[:_NEAR], seen[-_NEAR:]) if len(seen) > _NEAR else (seen,):
        low = part.lower()
        if ("exit" in low or "code" in low) and (match := FRAME.search(part)):
            return int(match[1])
    return None


def _of_reading(text: str, ground: Ground) -> Outcome:
    """Return whether a text came: a short one may be a message in its place."""
    seen = text[: 2 * READ]
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
        return OK if is_fine else Outcome("failed", line_of(text))
    if isinstance(value, list) and ground.ran and _ENVELOPE.match(text[:_NEAR]):
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
    for key in (
        "error",
        "message",
        "stderr",
        "errors",
        "detail",
        "reason",
        "output",
        "stdout",
        "body",
        "content",
        "result",
    ):
        told = fields.get(key)
        if isinstance(told, dict):
            told = told.get("message")
        if isinstance(told, str) and told.strip():
            return reason_of(told)
    return line_of(", ".join(f"{key}: {told}" for key, told in fields.items() if isinstance(told, int | str))[:WHY])


def _of_code(text: str) -> Outcome | None:
    """By the code near either end."""
    for part in (text[-_NEAR:], text[:_NEAR]):
        low = part.lower()
        if any(stem in low for stem in EXIT_CODE_STEMS) and (codes := [int(m[1]) for m in CODE.finditer(part)]):
            return OK if not any(codes) else Outcome("failed", reason_of(text))
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
        last = next((line for line in reversed(told) if not is_frame(line.strip())), "")
        fine = [each for each in fine if each.line == last]
    return _as_outcome(fine[-1]) if fine else None


def _ends_with_trace(seen: str) -> bool:
    """Return True if nothing stands behind the last traceback but what was raised."""
    return len(UNINDENTED.findall(seen[seen.rfind(_TRACE) + len(_TRACE) :])) == 1
