"""The line of a failed result that has the reason.

Lines of wrappers, counts and log lines contain no reason.
"""

import re
from collections.abc import Iterable

from policies.authorship.arguments import UnreadError, read, strings_in
from policies.authorship.wrappers import REJECTED
from policies.tool_calls.verdicts import EXIT_CODE_NAMES

REFUSED = "refused by the user"
# Characters to read at either end of a result, and of a reason.
READ = 800
WHY = 160
# Up to this many lines, the first has the reason. Otherwise the last has it.
_FEW_LINES = 4
# Minimum words of a line that is returned together with the line it announces.
_ANNOUNCING = 5

# An exit code near the beginning or the end of a result.
CODE = re.compile(rf"(?:{EXIT_CODE_NAMES})['\"]?\s{{0,2}}[:：=>は]?\s{{0,2}}(-?\d{{1,10}})\b(?!\.\d)", re.IGNORECASE)
# An exit code at the end of a line, after a shorter name. Statuses of servers have larger codes.
LAST_CODE = re.compile(r"\b(?:code|status|errno|signal|Error)\W{0,3}(?:[01]?\d{1,2}|2[0-4]\d|25[0-5])\W{0,3}\Z")
# A line of a harness around any output.
FRAME = re.compile(
    r"^\W{0,2}(?:error: )?(?:exit code:? ?|exit status:? ?|returncode>|process exited with code "
    r"|(?:the )?command (?:exited|finished"
    r"|completed|failed)(?: successfully)? \(?with (?:exit )?(?:code|status) |[^\n]{0,80}?\. exit code: ?"
    r"|[^\n]{0,60}\(exit code:? )(-?\d{1,10})\b",
    re.IGNORECASE | re.MULTILINE,
)
# Other lines of harnesses around an output.
_FRAMING = re.compile(
    r"\W{0,6}(?:(?:wall|elapsed|total|run|real|user|sys|cpu)?[ _]?(?:time|duration|took|elapsed|real|user|sys)"
    r"(?: taken| elapsed)?\s?[:=]?\s?(?:\d{1,6}m)?[\d.]{1,12} ?(?:m?s|secs?|seconds?|milliseconds?|min(?:ute)?s?)"
    r"|(?:command |error |standard )?(?:output|stdout|stderr|error|errors)|chunk id: ?\w{1,40}"
    r"|script (?:completed|failed|error)|(?:total output lines|original token count): ?\d{1,12}"
    r"|(?:open file|current (?:working )?directory|python interpreter): [^\n]{1,300}|observation:)\W{0,6}",
    re.IGNORECASE,
)
_FRAMING_BEGINS = (
    *("exit code", "exit status", "error: exit", "returncode", "process exited", "command", "the command", "chunk id"),
    *("wall", "elapsed", "time", "duration", "total", "real", "user", "sys", "cpu", "execution", "output", "std"),
    *("script ", "original token", "open file", "current ", "python interpreter", "observation", "error"),
)
_DURATION = re.compile(
    r"\W{0,6}(?:\w{1,12} ){0,3}(?:in|took|after|time:?|duration:?) {0,4}[\d.]{1,12} ?"
    r"(?:m?s|secs?|seconds?|minutes?)\W{0,6}",
    re.IGNORECASE,
)
# A prompt, or a shell's own traceback: no output of a run.
_PROMPT = re.compile(r"(?:[\w.@~:/-]{0,80}[$%#>]|>>>|\.\.\.) ?|\$ [^\n]{0,300}")
# A frame of a stack after the error.
_STACK = re.compile(r"at [^\n]{1,300}[:(]\d{1,7}\)?")
# A log line, which begins with a time or a level below error. A harness may label the first one.
_DATE = r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}[T ,]{1,2}"
_LOGGED = re.compile(
    rf"^\W{{0,4}}(?:[A-Za-z]{{1,20}}:\s{{0,4}})?\W{{0,4}}(?:(?:{_DATE})?\d{{1,2}}:\d{{2}}:\d{{2}}\b|{_DATE}\d{{1,2}}:\d{{2}}"
    r"|[A-Z][a-z]{2} [ \d]\d \d{2}:\d{2}:\d{2} "
    r"|(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|trace|debug|info|notice|warn(?:ing)?)(?::|\]| \[|[ \t]{2}))"
    r"[^\n]{0,2000}",
    re.MULTILINE,
)
_ERROR_LEVEL = re.compile(r"\b(?:ERROR|FATAL|CRITICAL|PANIC|SEVERE)\b")
TAGS = re.compile(r"</?[\w:-]{1,40}>")
RETURNED = re.compile(r"<returncode>-?\d{1,10}</returncode>")
_VISIBLE = re.compile(r"[^\n]")
UNINDENTED = re.compile(r"^[^\s][^\n]*", re.MULTILINE)
_RAISED = re.compile(
    r"^(?:[\w.]{1,80}\.)?[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit|Warning)\b[^\n]{0,400}", re.MULTILINE
)
_LABEL = re.compile(r"\W{0,4}\w{1,12}\s?[:：]\s{0,4}")
_LONE_VERDICT = re.compile(
    r"\W{0,20}(?:errors?|failed|fail|failures?|fatal|(?:the )?(?:command|script) failed)\W{0,20}",
    re.IGNORECASE,
)
# The failure of a build. Another line has the failed step and the reason.
_OF_BUILD = re.compile(
    r"\b[Bb]uild failed\b|\bBUILD FAIL|\b[Cc]ompilation failed\b|\bcould not compile\b|\b(?:make|ninja)\b[^\n]{0,20}: "
    r"(?:\*\*\*|build stopped)|ELIFECYCLE|\b[Ll]ifecycle script\b"
)
_COUNTED = r"(?:failed|failing|failures?|fails?|errors?|errored|broken|unexpected results?)"
_WHAT = r"(?:tests?|specs?|examples?|scenarios?|checks?|assertions?|steps?|suites?|targets?|files?|fatal|jobs?)"
# A verdict on a run as a whole. It outweighs the exit code, which a pipe hides.
_VERDICT = re.compile(
    rf"(?<![\w.,:/-])[1-9]\d{{0,6}}\s{{1,3}}(?:{_WHAT}\s{{1,3}}){{0,2}}{_COUNTED}\b"
    r"|\b(?:failed|failures?|errors?|failing)\s{0,8}[:=]\s{0,8}[1-9]\d{0,6}\b"
    r"|^(?:--- FAIL|FAIL(?:ED|URE|URES)?\b|FAILURES!|not ok \d|\*\* BUILD FAILED|test result: FAILED)"
    r"|\bBUILD FAIL(?:ED|URE)|\bBuild (?:FAILED|failed)|\bCompilation (?:failed|error)|\bFailed to compile"
    r"|\bmake(?:\[\d+\])?: \*\*\*|ninja: build stopped"
    r"|\bcould not compile|\bAutomatic merge failed|^CONFLICT \(|! \[(?:remote )?rejected\]|\bhook (?:declined"
    r"|failed)|npm ERR!|npm error\b|ELIFECYCLE"
    r"|\b(?:command not found|is not recognized as)\b|\bpanicked at\b|\bSegmentation fault|\bcore dumped"
    r"|\bpatch does not apply|^Hunk #\d+ FAILED",
    re.MULTILINE,
)
# A test that has passed, whatever its name. A count on the line may be of others that have failed.
_PASSED_TEST = (
    r"^(?![^\n]{0,400}(?:[✗✕✘×❌]|\b(?:fail|err)\w{0,4}\W{0,3}[1-9]"
    r"|[1-9]\d{0,6} (?:\w{1,12} ){0,2}(?:fail|err|broken)))"
    r"(?:[ \t]{0,40}(?:[✓✔√] |--- PASS: |ok \d{1,6}\b)[^\n]{1,400}|PASS(?:ED)?:? [^\n]{1,400}"
    r"|[^\n]{1,400} (?:\.\.\. ok|PASSED(?: \W{0,3}\d{1,3}%\])?))$"
)
_PASSED = re.compile(_PASSED_TEST, re.MULTILINE)
# Zero counts and the names of passed tests, which are blanked before the search for verdicts and words.
_NONE_OF_THEM = re.compile(
    rf"(?<![\d.])0\s{{1,3}}(?:{_WHAT}\s{{1,3}}){{0,2}}{_COUNTED}(?:\(s\))?(?: out of \d{{1,7}})?"
    r"|\b(?:failed|failures?|errors?|failing|skipped)\s{0,8}[:=]\s{0,8}0\b|\b[Ff]ixed \d{1,7} errors?"
    rf"|\(\d{{1,7}} fixed, 0 remaining\)|(?m:{_PASSED_TEST})"
)
# The error of a program on a line of its own.
_OWN_ERROR = re.compile(
    r"^\S{1,200}:\d{1,7}:(?:\d{1,5}:)? (?:undefined|undeclared|unresolved|cannot|expected|invalid|unknown|missing"
    r"|no )"
    r"|^e: \S|\bERR_[A-Z]{2,}|\bE(?:CONNREFUSED|NOENT|ACCES|ADDRINUSE|TIMEDOUT|PERM|EXIST)\b|\b[Ff]atal error\b|"
    r"^\W{0,4}(?:error|fatal|panic|critical|fatal error|uncaught \w{1,20}"
    r"|unhandled \w{1,20})(?:\[\w{1,12}\])?(?: \w{1,8}\d{0,5})?\s?[:!]"
    r"|^Traceback\b|^(?:E {1,6})?(?:[\w.]{1,80}\.)?[A-Z]\w{0,40}(?:Error|Exception)(?::|\b$)|^Exception in thread"
    r"|^Error\b|^ERROR\b"
    r"|^\W{0,6}(?:[\w./-]{1,60}: ){1,3}[^\n]{0,120}\b(?:[Nn]o such file or directory|[Pp]ermission denied"
    r"|not found|cannot access|[Cc]annot open"
    r"|can't read|[Ii]s a directory|[Nn]ot a directory|[Oo]peration not permitted|[Uu]nable to"
    r"|[Cc]onnection refused|Could not resolve|timed out)"
    r"|: (?:fatal )?error(?: \w{1,8}\d{0,5})?:|\(\w{0,40}(?:Error|Exception)\)$|\bCannot find module\b"
    r"|\bNo module named\b|\bundefined reference\b"
    r"|\bno rule to make target\b|\bdid not match any file|\bnot a git repository\b|^Killed$|^Aborted\b"
    r"|^HTTP/[\d.]{1,3} [45]\d\d\b"
    r"|\b(?:status|status code|HTTP):? [45]\d\d\b|^[45]\d\d [A-Z][a-z]|\b(?:syntax error|SyntaxError)\b"
    r"|\bpre-commit hook\b|\bConnection refused\b"
    r"|^<tool_use_error>|\bInputValidationError\b|\bin non-zero exit\b|\bOut of memory\b|\bFileNotFoundError\b"
    r"|\bdoes not exist\b",
    re.MULTILINE,
)
_WORDS = re.compile(r"[^\W\d_]+")
_DIGIT = re.compile(r"\d")
# The only words on such a line apart from numbers.
_COUNTING_WORDS = """
error errors errored fail fails failed failing failure failures problem problems issue issues warning warnings
pass passed passing ok skipped pending todo ignored xfailed deselected total found fixed
test tests suite suites file files spec specs example examples assertion assertions check checks source sources
run ran of in out and with checked completed time elapsed s ms sec second seconds
"""
_COUNTING = frozenset(_COUNTING_WORDS.split())
# The part of a line that names what failed: a word, a mark, or a place.
_SAYS_WHAT = re.compile(
    r"\berrors?\b|(?:\b|_)fail|(?:Error|Exception)\b|[✗✕✘×❌]|[\w)][:(]\d{1,7}[:,]\d", re.IGNORECASE
)


def is_frame(line: str) -> bool:
    """Return True if a line is a harness's frame, a duration, a prompt or a stack frame."""
    return FRAME.fullmatch(line.rstrip(".])")) is not None or any(
        pattern.fullmatch(line) for pattern in (_FRAMING, _DURATION, _PROMPT, _STACK)
    )


def is_framing(line: str) -> bool:
    """Return True if a harness puts such a line around an output. The beginning of a line rules out most lines."""
    return line.lstrip("[(*-# ").lower().startswith(_FRAMING_BEGINS) and is_frame(line)


def is_logged(line: str) -> bool:
    """Return True for a log line."""
    return _LOGGED.match(line) is not None


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """Return the text with spaces in place of every match. Positions stay valid, so the original line can be quoted."""
    return pattern.sub(_spaces, text) if text else ""


def _spaces(match: re.Match[str]) -> str:
    return _VISIBLE.sub(" ", match[0])


def _line_of(text: str, match: re.Match[str]) -> str:
    """Return the line of a match. For a traceback, return the line that names the exception."""
    start = text.rfind("\n", 0, match.start() + 1) + 1 if not match[0].startswith("\n") else match.start() + 1
    line = line_of(text[start:])
    if not line.startswith("Traceback"):
        return line
    raised = [*_RAISED.finditer(text, start)]
    return line_of(raised[-1][0]) if raised else line


def line_of(text: str) -> str:
    """Return the first line with words, in at most 160 characters."""
    line = next((line for line in TAGS.sub("", text[:2_000]).splitlines() if line.strip(" \t=-_*#|>.")), "")
    words = " ".join(line.split())
    if len(words) <= WHY:
        return words
    return f"{words[: max(words.rfind(' ', 60, WHY), 0) or WHY]}…"


def _has_no_reason(line: str) -> bool:
    if not line.strip() or _FRAMING.fullmatch(line.strip()):
        return True
    if is_frame(line.strip()) or _LABEL.fullmatch(line) or _LONE_VERDICT.fullmatch(line):
        return True
    frame = FRAME.match(line)
    return frame is not None and not _has_words(line[frame.end() :])


def _has_words(text: str) -> bool:
    """Return True if several words follow a frame."""
    return len(text.split()) > 1


def _is_wrapper(line: str) -> bool:
    """Return True if a line reports a failure without a reason.

    It announces the next line, ends with an exit code, or concerns a whole build.
    """
    if line.endswith((":", "：")) or _LONE_VERDICT.fullmatch(line) or _OF_BUILD.search(line):
        return True
    code = CODE.search(line) or LAST_CODE.search(line)
    return code is not None and not _has_words(line[code.end() :])


def _end_of_trace(text: str) -> str:
    """Return the first unindented line after the last traceback; for a long one, the last one read."""
    start = text.rfind("Traceback")
    trace = text[start : start + 2 * READ].partition("\n")[2]
    if first_line := UNINDENTED.search(trace):
        return line_of(first_line[0])
    ends = UNINDENTED.findall(text[-READ:].partition("\n")[2])
    return line_of(ends[-1]) if ends else ""


def _lines_of(text: str) -> list[str]:
    """Return the lines with words at both ends of a result, without passed tests and log lines."""
    unlogged = without_logs(_ends_of(text))
    return [line for line in map(line_of, _blank(_PASSED, unlogged).splitlines()) if line]


def _reason_around(wrapper: str, text: str) -> str:
    """Return the line of a failed result that is more specific than its wrapper.

    That is a line with an error, else the line after the wrapper. A wrapper of several words that announces it is
    returned with it. The line before a wrapper may not be the reason, so both are returned in one.
    """
    lines = _lines_of(text)
    at = next((at for at, line in enumerate(lines) if line == wrapper), None)
    if wrapper.startswith("Traceback"):
        return _end_of_trace(text) or wrapper
    for line in lines:
        if _OWN_ERROR.search(line) and not _is_wrapper(line):
            return line
    if at is None:
        return wrapper
    following = next(iter(lines[at + 1 : at + 2]), "")
    if following and not (_is_wrapper(following) or _has_no_reason(following)):
        announces = wrapper.endswith((":", "：")) and len(wrapper.split()) >= _ANNOUNCING
        return line_of(f"{wrapper} {following}") if announces else following
    previous = next((line for line in reversed(lines[:at]) if not (_is_wrapper(line) or _has_no_reason(line))), "")
    if is_tally(previous) and _VERDICT.search(previous):
        return previous
    return line_of(f"{previous} … {wrapper}") if previous else wrapper


def _ends_of(text: str) -> str:
    return text if len(text) <= 2 * READ else f"{text[:READ]}\n{text[-READ:]}"


def without_logs(text: str) -> str:
    """Return the text without log lines, if another line is left that may have the reason."""
    other_lines = _blank(_LOGGED, text)
    return other_lines if any(not _has_no_reason(line) for line in other_lines.splitlines()) else text


def reason_of(text: str) -> str:
    """Return the line of a failed result with the reason, in at most 160 characters.

    Prefer a verdict, then an error, then a line outside frames: the first of a few lines, the last of more. Without
    any, return the exit code. If there are only log lines, return the last error among them.
    """
    if REJECTED.match(text[:READ]):
        return REFUSED
    ends = _ends_of(text)
    unlogged = without_logs(ends)
    cleared = _blank(_NONE_OF_THEM, unlogged)
    for pattern in (_VERDICT, _OWN_ERROR):
        if match := pattern.search(cleared):
            return _line_of(unlogged, match)
    lines = [line for line in TAGS.sub("\n", RETURNED.sub("", unlogged)).splitlines() if not _has_no_reason(line)]
    if lines and all(map(_LOGGED.match, lines)):
        lines = [line for line in lines if _ERROR_LEVEL.search(line)][-1:] or lines[-1:]
    elif len(lines) > _FEW_LINES:
        lines = lines[-1:]
    code = CODE.search(ends)
    return line_of("\n".join(lines)) or (f"exit code {code[1]}" if code else line_of(unlogged))


def refine_reason(why: str, text: str) -> str:
    """Return the reason with more details from its result, if `why` alone is not specific."""
    if text[:1] in ("{", "["):
        text = _strings_of(text)
    if _is_wrapper(why):
        why = _reason_around(why, text)
    if "\n" in text.strip() and is_tally(why) and (what := what_failed(_lines_of(text))):
        return line_of(f"{why} … {what}")
    return why


def _strings_of(text: str) -> str:
    """Return the strings in a JSON result, one a line; any other result unchanged."""
    try:
        return "\n".join(strings_in(read(text)))
    except UnreadError:
        return text


def is_tally(line: str) -> bool:
    """Return True if a line has counts and names nothing that was counted."""
    if not _DIGIT.search(line):
        return False
    words = _WORDS.findall(line.lower())
    return bool(words) and _COUNTING.issuperset(words)


def what_failed(lines: Iterable[str]) -> str:
    """Return the first line that names what failed; empty if there is none."""
    telling = (line for line in lines if _SAYS_WHAT.search(line) and not is_tally(line))
    return next((line for line in telling if not (_OF_BUILD.search(line) or _has_no_reason(line))), "")
