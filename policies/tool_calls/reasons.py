"""Find the line of a result that says why a call failed.

Lines of a wrapper, counts and lines of logs do not say why.
"""

import re
from collections.abc import Iterable

from policies.authorship.arguments import UnreadError, read, strings_in
from policies.authorship.wrappers import REJECTED
from policies.tool_calls.verdicts import EXIT_CODE_NAMES

REFUSED = "refused by the user"
# Characters of either end of a result that are read, and of a reason.
READ = 800
WHY = 160
# Lines of a result of which the first says why; of a longer one the last does.
_FEW_LINES = 4
# Words of a line from which on it says what the next one is.
_ANNOUNCING = 5

# Near the beginning or the end of a result.
CODE = re.compile(rf"(?:{EXIT_CODE_NAMES})['\"]?\s{{0,2}}[:：=>は]?\s{{0,2}}(-?\d{{1,10}})\b(?!\.\d)", re.IGNORECASE)
# The same at the end of a line, where less has to stand before it; what is asked of a server has codes above these.
LAST_CODE = re.compile(r"\b(?:code|status|errno|signal|Error)\W{0,3}(?:[01]?\d{1,2}|2[0-4]\d|25[0-5])\W{0,3}\Z")
# A line that a harness puts around an output, whatever that says.
FRAME = re.compile(
    r"^\W{0,2}(?:error: )?(?:exit code:? ?|exit status:? ?|returncode>|process exited with code "
    r"|(?:the )?command (?:exited|finished"
    r"|completed|failed)(?: successfully)? \(?with (?:exit )?(?:code|status) |[^\n]{0,80}?\. exit code: ?"
    r"|[^\n]{0,60}\(exit code:? )(-?\d{1,10})\b",
    re.IGNORECASE | re.MULTILINE,
)
# What some harnesses put around an output, beside its code.
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
# Where somebody may type, or a traceback of a shell's own: nothing that a run says.
_PROMPT = re.compile(r"(?:[\w.@~:/-]{0,80}[$%#>]|>>>|\.\.\.) ?|\$ [^\n]{0,300}")
# Where a stack of calls was, behind what went wrong.
_STACK = re.compile(r"at [^\n]{1,300}[:(]\d{1,7}\)?")
# A line of a log: a time, or a level below errors, begins it. A harness may label the first one.
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
# That a build failed: which of its steps did, and why, is said in another line.
_OF_BUILD = re.compile(
    r"\b[Bb]uild failed\b|\bBUILD FAIL|\b[Cc]ompilation failed\b|\bcould not compile\b|\b(?:make|ninja)\b[^\n]{0,20}: "
    r"(?:\*\*\*|build stopped)|ELIFECYCLE|\b[Ll]ifecycle script\b"
)
_COUNTED = r"(?:failed|failing|failures?|fails?|errors?|errored|broken|unexpected results?)"
_WHAT = r"(?:tests?|specs?|examples?|scenarios?|checks?|assertions?|steps?|suites?|targets?|files?|fatal|jobs?)"
# Of a run as a whole, whatever its exit code was: a pipe hides that.
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
# A test that has passed, whatever its name says. A count on the line may be of others that have not.
_PASSED_TEST = (
    r"^(?![^\n]{0,400}(?:[✗✕✘×❌]|\b(?:fail|err)\w{0,4}\W{0,3}[1-9]"
    r"|[1-9]\d{0,6} (?:\w{1,12} ){0,2}(?:fail|err|broken)))"
    r"(?:[ \t]{0,40}(?:[✓✔√] |--- PASS: |ok \d{1,6}\b)[^\n]{1,400}|PASS(?:ED)?:? [^\n]{1,400}"
    r"|[^\n]{1,400} (?:\.\.\. ok|PASSED(?: \W{0,3}\d{1,3}%\])?))$"
)
_PASSED = re.compile(_PASSED_TEST, re.MULTILINE)
# Counted, and none of them, or the name of a test that has passed: taken out before verdicts and words are looked for.
_NONE_OF_THEM = re.compile(
    rf"(?<![\d.])0\s{{1,3}}(?:{_WHAT}\s{{1,3}}){{0,2}}{_COUNTED}(?:\(s\))?(?: out of \d{{1,7}})?"
    r"|\b(?:failed|failures?|errors?|failing|skipped)\s{0,8}[:=]\s{0,8}0\b|\b[Ff]ixed \d{1,7} errors?"
    rf"|\(\d{{1,7}} fixed, 0 remaining\)|(?m:{_PASSED_TEST})"
)
# A program's own error, as a line of its own.
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
# All that such a line has beside numbers.
_COUNTING_WORDS = """
error errors errored fail fails failed failing failure failures problem problems issue issues warning warnings
pass passed passing ok skipped pending todo ignored xfailed deselected total found fixed
test tests suite suites file files spec specs example examples assertion assertions check checks source sources
run ran of in out and with checked completed time elapsed s ms sec second seconds
"""
_COUNTING = frozenset(_COUNTING_WORDS.split())
# What a line has that says what failed: a word for it, a mark, or a place.
_SAYS_WHAT = re.compile(
    r"\berrors?\b|(?:\b|_)fail|(?:Error|Exception)\b|[✗✕✘×❌]|[\w)][:(]\d{1,7}[:,]\d", re.IGNORECASE
)


def is_frame(line: str) -> bool:
    """Return True if a line is a harness's, a duration, a prompt or a place in a stack."""
    return FRAME.fullmatch(line.rstrip(".])")) is not None or any(
        pattern.fullmatch(line) for pattern in (_FRAMING, _DURATION, _PROMPT, _STACK)
    )


def is_framing(line: str) -> bool:
    """Return True if a harness puts such a line before or after an output. Other lines are told by their beginning."""
    return line.lstrip("[(*-# ").lower().startswith(_FRAMING_BEGINS) and is_frame(line)


def is_logged(line: str) -> bool:
    """Return True for a line of a log."""
    return _LOGGED.match(line) is not None


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """Return the text with spaces in the place of every match, so that a line is quoted from where a word stands."""
    return pattern.sub(_spaces, text) if text else ""


def _spaces(match: re.Match[str]) -> str:
    return _VISIBLE.sub(" ", match[0])


def _line_of(text: str, match: re.Match[str]) -> str:
    """Return the line of a match. For a trace, return the line that names the exception."""
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


def _says_no_why(line: str) -> bool:
    if not line.strip() or _FRAMING.fullmatch(line.strip()):
        return True
    if is_frame(line.strip()) or _LABEL.fullmatch(line) or _LONE_VERDICT.fullmatch(line):
        return True
    frame = FRAME.match(line)
    return frame is not None and not _tells_more(line[frame.end() :])


def _tells_more(text: str) -> bool:
    """Return True if words stand behind a frame."""
    return len(text.split()) > 1


def _is_wrapper(line: str) -> bool:
    """Return True if a line says that something failed and not why.

    It announces the next line, ends with an exit code, or is about a whole build.
    """
    if line.endswith((":", "：")) or _LONE_VERDICT.fullmatch(line) or _OF_BUILD.search(line):
        return True
    code = CODE.search(line) or LAST_CODE.search(line)
    return code is not None and not _tells_more(line[code.end() :])


def _end_of_trace(text: str) -> str:
    """Return the first line after the last trace that is not indented; for a long trace, the last one that is read."""
    start = text.rfind("Traceback")
    trace = text[start : start + 2 * READ].partition("\n")[2]
    if first := UNINDENTED.search(trace):
        return line_of(first[0])
    ends = UNINDENTED.findall(text[-READ:].partition("\n")[2])
    return line_of(ends[-1]) if ends else ""


def _lines_of(text: str) -> list[str]:
    """Return the lines with words at both ends of a result, without passed tests and lines of logs."""
    seen = without_logs(_ends_of(text))
    return [line for line in map(line_of, _blank(_PASSED, seen).splitlines()) if line]


def _said_around(wrapper: str, text: str) -> str:
    """Return the line of a failed result that says more than its wrapper.

    That is a line with an error, else the line after the wrapper. A wrapper that announces it in some words is returned
    with it. The line before a wrapper may not be the reason, so both are returned in one.
    """
    told = _lines_of(text)
    at = next((at for at, line in enumerate(told) if line == wrapper), None)
    if wrapper.startswith("Traceback"):
        return _end_of_trace(text) or wrapper
    for line in told:
        if _OWN_ERROR.search(line) and not _is_wrapper(line):
            return line
    if at is None:
        return wrapper
    following = next(iter(told[at + 1 : at + 2]), "")
    if following and not (_is_wrapper(following) or _says_no_why(following)):
        announces = wrapper.endswith((":", "：")) and len(wrapper.split()) >= _ANNOUNCING
        return line_of(f"{wrapper} {following}") if announces else following
    before = next((line for line in reversed(told[:at]) if not (_is_wrapper(line) or _says_no_why(line))), "")
    if is_tally(before) and _VERDICT.search(before):
        return before
    return line_of(f"{before} … {wrapper}") if before else wrapper


def _ends_of(text: str) -> str:
    return text if len(text) <= 2 * READ else f"{text[:READ]}\n{text[-READ:]}"


def without_logs(text: str) -> str:
    """Return the text without lines of logs, if any other line is left that may say why a call failed."""
    others = _blank(_LOGGED, text)
    return others if any(not _says_no_why(line) for line in others.splitlines()) else text


def reason_of(text: str) -> str:
    """Return the line of a failed result that says why, in at most 160 characters.

    That is a verdict, else an error, else a line beside what frames it: the first of a few lines, the last of more.
    Without any it is the exit code. Lines of logs count only if there are no others: then the last error does.
    """
    if REJECTED.match(text[:READ]):
        return REFUSED
    ends = _ends_of(text)
    seen = without_logs(ends)
    cleared = _blank(_NONE_OF_THEM, seen)
    for pattern in (_VERDICT, _OWN_ERROR):
        if match := pattern.search(cleared):
            return _line_of(seen, match)
    told = [line for line in TAGS.sub("\n", RETURNED.sub("", seen)).splitlines() if not _says_no_why(line)]
    if told and all(map(_LOGGED.match, told)):
        told = [line for line in told if _ERROR_LEVEL.search(line)][-1:] or told[-1:]
    elif len(told) > _FEW_LINES:
        told = told[-1:]
    code = CODE.search(ends)
    return line_of("\n".join(told)) or (f"exit code {code[1]}" if code else line_of(seen))


def refine_reason(why: str, text: str) -> str:
    """Return what a line that says why a call failed leaves open: `text`, its result, may say more beside it."""
    if text[:1] in ("{", "["):
        text = _strings_of(text)
    if _is_wrapper(why):
        why = _said_around(why, text)
    if "\n" in text.strip() and is_tally(why) and (what := what_failed(_lines_of(text))):
        return line_of(f"{why} … {what}")
    return why


def _strings_of(text: str) -> str:
    """Return the strings in a JSON result, a line each; another result as it is."""
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
    return next((line for line in telling if not (_OF_BUILD.search(line) or _says_no_why(line))), "")
