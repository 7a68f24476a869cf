"""Outcomes of calls as far as the protocol proves them: ok, failed with a reason, or unknown with a quotation.

The evidence, in this order: the protocol's status, an exit code, fields of a JSON result, and verdict lines of known
tools (`verdicts.toml`). A call that reads has succeeded if it returned a text.
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
# Characters at either end of a result in which verdict lines are searched for.
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
# Minimum lines of a text that is not an error message: for reading tools, and for a shell.
_TEXT_LINES, _SHELL_LINES = 2, 4
_TRACE = "Traceback (most recent call last):"
_ESCAPE = re.compile(r"\\u((?!d[89a-f])[0-9a-f]{4})", re.IGNORECASE)
# The exit code of a process that a signal ended.
_SIGNAL_CODE = re.compile(
    rf"(?P<before>(?:{EXIT_CODE_NAMES})['\"]?\s{{0,2}}[:：=>は]?\s{{0,2}})(?:1(?:29|30|37|43)|-(?:1|2|9|15))\b(?!\.\d)",
    re.IGNORECASE,
)
# The JSON envelopes of harnesses for an output.
_ENVELOPE = re.compile(
    r"[\s\[]{0,8}\{\s{0,8}(?:\"(?:returncode|exit_?[cC]ode|output|stdout|chunk_id)\":|\"(?:query"
    r"|command)\":[^\n]{0,200}\"(?:result|success)\":)"
)
# Results that are gone, or that only report the start of a process.
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
    """The result of a call, and its reason or quotation."""

    result: Result
    why: str = ""


OK = Outcome("ok")
NOT_KNOWN = Outcome("unknown")


class Ground(NamedTuple):
    """The facts about a call apart from its result.

    is_shell: it runs commands, or may run them.
    shows: the last command of a shell shows a text, whose words are not about the call.
    stops: it ends something, so the exit code of a signal is no failure.
    looks: the tool's name has a word for reading.
    ran: its commands, every word between spaces.
    is_one: it runs at most one command.
    """

    is_shell: bool
    shows: bool = False
    stops: bool = False
    looks: bool = False
    ran: str = ""
    is_one: bool = True


def outcome_of(kind: Kind, text: str | None, error: bool | None, ground: Ground) -> Outcome:
    """Return the outcome of a call. text: its result; None if there is none. error: the protocol's status.

    `why` of a failure is the line with the reason. For a success it is a short result, or the line that proves it. For
    an unknown outcome it is the last informative line.
    """
    outcome = _outcome_of(kind, text, error, ground)
    if outcome.result == "ok" and kind in ("change", "plan"):
        return OK
    if outcome == OK and text:
        return Outcome("ok", _whole_if_short(text))
    if not text or outcome.result != "failed":
        return outcome
    return Outcome("failed", refine_reason(outcome.why, text))


def _outcome_of(kind: Kind, text: str | None, error: bool | None, ground: Ground) -> Outcome:
    if text is None:
        return Outcome("failed") if error else NOT_KNOWN
    if error:
        return Outcome("failed", _reason_in(text))
    original = text
    if ground.stops and len(text) <= _MOST_JSON:  # a signal's code belongs to the process that the call ended
        text = _SIGNAL_CODE.sub(r"\g<before>0", text)
    if not text.strip():
        return OK if error is False else NOT_KNOWN
    if kind == "agent":
        return _judge_report(text, error)
    ends = _ends_of(text)
    if _is_uninformative(ends[:400]):
        return NOT_KNOWN
    is_zero = False
    if ground.is_shell and (code := _framed_exit_code(ends)) is not None:
        if code:
            return Outcome("failed", reason_of(text))
        is_zero = True
    outcome = _find_outcome(kind, text, ends, ground, is_zero=is_zero)
    if outcome is None or (outcome == NOT_KNOWN and is_zero):
        outcome = OK if is_zero or error is False else NOT_KNOWN
    return Outcome("unknown", _quotation(original)) if outcome == NOT_KNOWN else outcome


def _quotation(text: str) -> str:
    """Return the last informative line of a result. Return data completely if it is short, else nothing."""
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


def _whole_if_short(text: str) -> str:
    """Return a result of one or two lines without its frame; empty for a longer one or a lone word of success."""
    output = output_in(text)
    return _short_words(text if output is None else output)


def _short_words(text: str) -> str:
    text = text[: 2 * _SHORT].partition(_REMINDER)[0]
    if len(text) > _SHORT or text.count("\n") > _MOST_FRAMED:
        return ""
    if "<" in text:
        text = TAGS.sub("", RETURNED.sub("", text))
    lines = [line for line in without_logs(text).splitlines() if line and not line.isspace()]
    if len(lines) > 1 or "xit" in text:
        lines = [line for line in lines if not is_frame(line)]
    words = " ".join(" ".join(lines).split())
    is_word = words.lower().strip(".!() ") in _SAYS_NO_MORE
    return words if len(words) <= WHY and len(lines) <= _MOST_LINES and not is_word else ""


def output_in(text: str) -> str | None:
    """Return the output of a shell in the JSON envelope of a harness; None for any other text."""
    if _ENVELOPE.match(text[:_NEAR]) is None or len(text) > _MOST_JSON:
        return None
    try:
        value = read(text)
    except UnreadError:
        return None
    fields = value if isinstance(value, dict) else {}
    output = fields.get("output", fields.get("stdout"))
    return output if isinstance(output, str) else None


def _judge_report(text: str, error: bool | None) -> Outcome:
    """Return the outcome of a call of another agent. Only the protocol counts: its report may mention any failure."""
    if REJECTED.match(text[:READ]):
        return Outcome("failed", reason_of(text))
    if (proven := _proven_first(text, "any")) is not None and proven.result == "failed":
        return _as_outcome(proven)
    is_json = text[:1] == "{" and len(text) <= _MOST_JSON
    failed = (
        next((outcome for outcome in _outcomes_in_json(text) if outcome.result == "failed"), None) if is_json else None
    )
    return failed or (OK if error is False else Outcome("unknown", _whole_if_short(text)))


def _reason_in(text: str) -> str:
    """Return the line with the reason in a failed result, an object or a text."""
    try:
        value = read(text) if text[:1] == "{" and len(text) <= _MOST_JSON else text
    except UnreadError:
        value = text
    return _reason_in_fields(value) if isinstance(value, dict) and value else reason_of(text)


def _outcomes_in_json(text: str) -> Sequence[Outcome]:
    try:
        return [*_outcomes_in_fields(read(text))]
    except UnreadError:
        return ()


def _find_outcome(kind: Kind, text: str, seen: str, ground: Ground, *, is_zero: bool) -> Outcome | None:
    """Return the outcome that the content of a result proves; None if it proves nothing."""
    if REJECTED.match(text[: 2 * READ]):
        return Outcome("failed", reason_of(text))
    is_json = text[:1] in "{["
    scope: Literal["change", "tool", "any"] = "change" if kind == "change" else "tool"
    if ground.ran or kind == "read":
        scope = "any"
    if (proven := _proven_first(seen, scope)) is not None:
        return _as_outcome(proven)
    if kind == "read" and not (is_json and ground.is_shell and _ENVELOPE.match(text[:_NEAR])):
        return _judge_reading(text, ground)
    if is_json and (outcome := _judge_json(text, ground, is_zero=is_zero)) is not None:
        return outcome
    if kind in ("change", "plan"):
        code = FRAME.match(seen.lstrip())
        return None if code is None else Outcome("failed", reason_of(text)) if int(code[1]) else OK
    return _judge_text(seen, ground, is_zero=is_zero)


def _proven_first(text: str, scope: Literal["change", "tool", "any"]) -> Proven | None:
    """Return the proof in the first line of a result, or in the first line that no harness added."""
    lines = [line[:_LONGEST_LINE] for line in map(str.strip, text[:READ].splitlines()) if line][:_MOST_FRAMED]
    if not lines:
        return None
    first_unframed = next((line for line in lines if not is_framing(line)), lines[0])
    return proven_first(lines[0], scope) or (
        None if first_unframed is lines[0] else proven_first(first_unframed, scope)
    )


def _as_outcome(proven: Proven) -> Outcome:
    return Outcome(proven.result, line_of(proven.line))


def _ends_of(text: str) -> str:
    """Return the ends of a result in whole lines, with letters for escapes and without colors."""
    ends = text
    if len(text) > _HEAD + _TAIL:
        beginning, end = text[:_HEAD].rpartition("\n")[0], text[-_TAIL:].partition("\n")[2]
        ends = f"{beginning or text[:READ]}\n{end or text[-READ:]}"
    if "\x1b" in ends:
        ends = _COLOURS.sub("", ends)
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), ends) if "\\u" in ends else ends


def _is_uninformative(beginning: str) -> bool:
    return has_any(beginning.lower(), _TELLS_NOTHING_STEMS) and _TELLS_NOTHING.search(beginning) is not None


def _framed_exit_code(seen: str) -> int | None:
    """Return the exit code in a harness's frame around an output; None if there is none."""
    for part in (seen[:_NEAR], seen[-_NEAR:]) if len(seen) > _NEAR else (seen,):
        low = part.lower()
        if ("exit" in low or "code" in low) and (match := FRAME.search(part)):
            return int(match[1])
    return None


def _judge_reading(text: str, ground: Ground) -> Outcome:
    """Return the outcome of a reading call. A short text may be an error message, so it is unknown."""
    opening = text[: 2 * READ]
    if ground.is_shell and not ground.shows:
        first_lines = [line for line in map(str.rstrip, opening.splitlines()) if line][:1]
        for proven in proven_in(first_lines, ground.ran):
            if proven.result == "failed" and proven.scope == "error":
                return _as_outcome(proven)
    least = _SHELL_LINES if ground.ran else _TEXT_LINES
    is_text = len(text) > _SHORT or opening.strip().count("\n") + 1 >= least or _NUMBERED.match(opening)
    return OK if is_text else NOT_KNOWN


def _judge_json(text: str, ground: Ground, *, is_zero: bool) -> Outcome | None:
    """Return the outcome in the fields of a JSON result; unknown for data without a status; None if it is no JSON."""
    if len(text) > _MOST_JSON:
        return _judge_exit_code(text)
    try:
        value = read(text)
    except UnreadError:
        match = _PYTHON.match(text, 1) if text[:1] == "{" else None
        if match is None:
            return None
        is_fine = (match[2] == "True") != ("rror" in match[1])
        return OK if is_fine else Outcome("failed", line_of(text))
    if isinstance(value, list) and ground.ran and _ENVELOPE.match(text[:_NEAR]):
        outcomes = [outcome for part in value[:50] for outcome in _outcomes_in_fields(part)]
    else:
        outcomes = [*_outcomes_in_fields(value, looks=ground.looks)]
    failed = next((outcome for outcome in outcomes if outcome.result == "failed"), None)
    if failed is not None:
        return failed
    if Outcome("unknown") in outcomes:
        return NOT_KNOWN
    if (
        isinstance(value, dict)
        and not ground.looks
        and (judged := _judge_texts(value, ground, is_zero=is_zero or OK in outcomes))
    ):
        return judged
    return OK if outcomes else NOT_KNOWN


def _judge_texts(fields: Mapping[str, object], ground: Ground, *, is_zero: bool) -> Outcome | None:
    """Return the first outcome that a text in an object proves; None if there is none."""
    for text in (fields.get(key) for key in _TELLING_KEYS):
        if not isinstance(text, str):
            continue
        if not ground.ran and (proven := proven_first(text.strip(), "tool")) is not None:
            return _as_outcome(proven)
        if (judged := _judge_text(_ends_of(text), ground, is_zero=is_zero)) is not None:
            return judged
    return None


def _outcomes_in_fields(value: object, depth: int = 0, *, looks: bool = False) -> Iterator[Outcome]:
    """Yield the outcomes in the fields of an object. looks: a status or error belongs to the object looked up."""
    if not isinstance(value, dict):
        return
    for name, field_value in value.items():
        key = _key(name)
        if isinstance(field_value, dict) and key == "metadata" and depth < 1:
            yield from _outcomes_in_fields(field_value, depth + 1, looks=looks)
        elif not looks or key in _SUCCESS_KEYS or key in _ERROR_KEYS or isinstance(field_value, int):
            outcome = _outcome_of_field(key, field_value, value)
            if outcome is not None:
                yield outcome


def _key(name: object) -> str:
    return str(name).replace("_", "").replace("-", "").lower()


def _outcome_of_field(key: str, value: object, fields: Mapping[str, object]) -> Outcome | None:
    if key in _CODE_KEYS and isinstance(value, int):
        return OK if value == 0 else Outcome("failed", _reason_in_fields(fields))
    if key in _SUCCESS_KEYS and isinstance(value, bool):
        return OK if value else Outcome("failed", _reason_in_fields(fields))
    if key in _ERROR_KEYS and value is True:
        return Outcome("failed", _reason_in_fields(fields))
    if key in _TOLD_KEYS and value and not (isinstance(value, str) and value.lower() in ("none", "null", "(none)")):
        return Outcome("failed", _reason_in_fields(fields))
    if key in _STATUS_KEYS:
        return _judge_status(value, fields)
    return None


def _judge_status(status: object, fields: Mapping[str, object]) -> Outcome | None:
    """Return the outcome of a status. Among many fields it belongs to the object asked about."""
    word = str(status).lower()
    is_bad = (isinstance(status, int) and status >= 400) or word in _FAILED_STATUS
    is_fine = (isinstance(status, int) and 200 <= status < 300) or word in _FINE_STATUS
    if not (is_bad or is_fine):
        return None
    if len(fields) > _FEW_KEYS:
        return NOT_KNOWN
    return Outcome("failed", _reason_in_fields(fields)) if is_bad else OK


def _reason_in_fields(fields: Mapping[str, object]) -> str:
    """Return the reason for a failure in an object's fields."""
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
        text = fields.get(key)
        if isinstance(text, dict):
            text = text.get("message")
        if isinstance(text, str) and text.strip():
            return reason_of(text)
    return line_of(", ".join(f"{key}: {text}" for key, text in fields.items() if isinstance(text, int | str))[:WHY])


def _judge_exit_code(text: str) -> Outcome | None:
    """Return the outcome by an exit code near either end; None if there is none."""
    for part in (text[-_NEAR:], text[:_NEAR]):
        low = part.lower()
        if any(stem in low for stem in EXIT_CODE_STEMS) and (codes := [int(m[1]) for m in CODE.finditer(part)]):
            return OK if not any(codes) else Outcome("failed", reason_of(text))
    return None


def _judge_text(seen: str, ground: Ground, *, is_zero: bool) -> Outcome | None:
    """Return the outcome that verdict lines and exit codes prove; None if neither proves one.

    is_zero: the exit code is 0, which outweighs single errors. A verdict on a run outweighs it: a pipe hides its code.
    """
    lines = [line for line in map(str.rstrip, seen.splitlines()) if line]
    proofs = proven_in(lines, ground.ran)
    if ground.shows and len(lines) > 1:
        proofs = [proof for proof in proofs if proof.scope == "run"]
    if ground.stops:
        proofs = [proof for proof in proofs if proof.scope != "last"]
    failures = [proof for proof in proofs if proof.result == "failed" and (proof.scope == "run" or not is_zero)]
    if failures:
        run = next((proof for proof in failures if proof.scope == "run"), failures[0])
        return _as_outcome(run)
    if is_zero:
        return next((_as_outcome(proof) for proof in proofs if proof.result == "ok"), OK)
    if (coded := _judge_exit_code(seen)) is not None:
        return coded
    if _TRACE in seen and not ground.shows and _ends_with_trace(seen):
        return Outcome("failed", _TRACE)
    fine = [proof for proof in proofs if proof.result == "ok"]
    if fine and not ground.is_one:  # the end of a result belongs to the last command only
        last_line = next((line for line in reversed(lines) if not is_frame(line.strip())), "")
        fine = [proof for proof in fine if proof.line == last_line]
    return _as_outcome(fine[-1]) if fine else None


def _ends_with_trace(seen: str) -> bool:
    """Return True if only the exception follows the last traceback."""
    return len(UNINDENTED.findall(seen[seen.rfind(_TRACE) + len(_TRACE) :])) == 1
