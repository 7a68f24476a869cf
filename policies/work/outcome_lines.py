"""Lines by which tools say themselves how a call ended: exit codes, verdicts of test runners and builds, own errors."""

import re

_CODE_NAMES = (
    r"(?<!to )\bexit(?:ed|s)?(?:[ _-](?:with|status|code|value|non-zero)){0,3}|\bexit(?:code|status)|\breturn[ _-]?code"
    r"|\bexit-code"
    r"|退出(?:状态码|代码|码|状态)|返回(?:代码|码)|終了(?:コード|ステータス)|종료 (?:코드|상태)"
    r"|rückgabewert|code de (?:sortie|retour)"
    r"|c[óo]digo de (?:salida|sa[íi]da|retorno)|код(?:ом)? (?:выхода|возврата|завершения)|codice di uscita"
)
# Near the beginning or the end of a result.
CODE = re.compile(rf"(?:{_CODE_NAMES})['\"]?\s{{0,2}}[:：=>は]?\s{{0,2}}(-?\d{{1,10}})\b(?!\.\d)", re.IGNORECASE)
# The same at the end of a line, where less has to stand before it; what is asked of a server has codes above these.
LAST_CODE = re.compile(r"\b(?:code|status|errno|signal|Error)\W{0,3}(?:[01]?\d{1,2}|2[0-4]\d|25[0-5])\W{0,3}\Z")
# That a build failed: which of its steps did, and why, is said in another line.
OF_BUILD = re.compile(
    r"\b[Bb]uild failed\b|\bBUILD FAIL|\b[Cc]ompilation failed\b|\bcould not compile\b|\b(?:make|ninja)\b[^\n]{0,20}: "
    r"(?:\*\*\*|build stopped)|ELIFECYCLE|\b[Ll]ifecycle script\b"
)
# A line that a harness puts around an output, whatever that says.
FRAME = re.compile(
    r"^\W{0,2}(?:error: )?(?:exit code:? ?|exit status:? ?|returncode>|process exited with code "
    r"|(?:the )?command (?:exited|finished"
    r"|completed|failed)(?: successfully)? \(?with (?:exit )?(?:code|status) |[^\n]{0,80}?\. exit code: ?"
    r"|[^\n]{0,60}\(exit code:? )(-?\d{1,10})\b",
    re.IGNORECASE | re.MULTILINE,
)
# The code of what a signal has ended.
SIGNAL_CODE = re.compile(
    rf"(?P<before>(?:{_CODE_NAMES})['\"]?\s{{0,2}}[:：=>は]?\s{{0,2}})(?:1(?:29|30|37|43)|-(?:1|2|9|15))\b(?!\.\d)",
    re.IGNORECASE,
)
CODE_STEMS = (
    "exit",
    "return code",
    "return_code",
    "returncode",
    "return-code",
    "退出",
    "返回",
    "終了",
    "종료",
    "rückgabe",
    "code de",
    "digo de",
    "код",
    "codice",
)

_COUNTED = r"(?:failed|failing|failures?|fails?|errors?|errored|broken|unexpected results?)"
_WHAT = r"(?:tests?|specs?|examples?|scenarios?|checks?|assertions?|steps?|suites?|targets?|files?|fatal|jobs?)"
# Of a run as a whole, whatever its exit code was: a pipe hides that.
VERDICT = re.compile(
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
PASSED_TEST = re.compile(_PASSED_TEST, re.MULTILINE)
# Counted, and none of them, or the name of a test that has passed: taken out before verdicts and words are looked for.
NONE_OF_THEM = re.compile(
    rf"(?<![\d.])0\s{{1,3}}(?:{_WHAT}\s{{1,3}}){{0,2}}{_COUNTED}(?:\(s\))?(?: out of \d{{1,7}})?"
    r"|\b(?:failed|failures?|errors?|failing|skipped)\s{0,8}[:=]\s{0,8}0\b|\b[Ff]ixed \d{1,7} errors?"
    rf"|\(\d{{1,7}} fixed, 0 remaining\)|(?m:{_PASSED_TEST})"
)
# A program's own error, as a line of its own.
OWN_ERROR = re.compile(
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
# What harnesses put an output into.
ENVELOPE = re.compile(
    r"[\s\[]{0,8}\{\s{0,8}(?:\"(?:returncode|exit_?[cC]ode|output|stdout)\":|\"(?:query"
    r"|command)\":[^\n]{0,200}\"(?:result|success)\":)"
)
# A person or a harness that lets a call not be made.
REFUSED = re.compile(
    r"doesn't want to proceed|\b(?:user|operator) (?:rejected|denied|declined|cancel\w{1,4}|doesn't want"
    r"|chose not)|\brejected by (?:the )?user|\bdenied by|\bhas been denied"
    r"|\bcancell?ed by|\baborted by|\binterrupted by|\btool use was rejected|\bskipped due to"
    r"|用户(?:拒绝|取消)|ユーザーが拒否",
    re.IGNORECASE,
)
# What a harness says in the place of a report: the other agent was not called.
NOT_CALLED = re.compile(
    r"\s{0,20}(?:<tool_use_error>|(?:Error: )?(?:InputValidationError|(?:unknown|invalid|no such) (?:sub)?agent\b"
    r"|(?:sub)?agent (?:type )?[^\n]{1,80} not found)|\[Request interrupted|Tool use was rejected"
    r"|The user doesn't want to (?:proceed|take))",
    re.IGNORECASE,
)
# A result that is gone, or that says only that a process was started.
TELLS_NOTHING = re.compile(
    r"\A\W{0,3}(?:old tool result|tool result (?:content )?cleared|content (?:was )?(?:cleared|removed|omitted)"
    r"|output (?:removed|pruned|omitted))"
    r"|\bcontent cleared\b|\A[^\n]{0,60}\b(?:running|started|moved|continues?) in (?:the )?background\b"
    r"|\A[^\n]{0,80}\bstill running\b"
    r"|\bprocess running with session id\b|\bno new output after\b|\A\W{0,3}command running\b",
    re.IGNORECASE,
)
TELLS_NOTHING_STEMS = (
    *("cleared", "removed", "omitted", "pruned", "background", "still running", "session id", "no new output"),
    "command running",
)
