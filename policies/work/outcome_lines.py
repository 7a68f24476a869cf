"""Lines by which tools say themselves how a call ended: exit codes, verdicts of test runners and builds, own errors."""

import re

_CODE_NAMES = (
    r"\bexit(?:ed|s)?(?:[ _-](?:with|status|code|value|non-zero)){0,3}|\bexit(?:code|status)|\breturn[ _-]?code"
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
VERDICT_STEMS = (
    *("fail", "err", "broken", "not ok", "***", "stopped", "not compile", "conflict", "reject", "hook", "elife"),
    *("not found", "recogni", "panick", "fault", "dumped", "not apply"),
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
# One of these stands, in lower case, in every line that verdicts, own errors, refusals or words of failure match.
FAILING_STEMS = (
    *(
        "fail",
        "err",
        "xcept",
        "trace",
        "fatal",
        "panic",
        "critical",
        "not",
        "n't",
        "unable",
        "denied",
        "reject",
        "refus",
    ),
    *(
        "crash",
        "abort",
        "time",
        "invalid",
        "❌",
        "killed",
        "blocked",
        "forbid",
        "unauthor",
        "cancel",
        "exceed",
        "missing",
    ),
    *(
        "unsupport",
        "unexpected",
        "unknown",
        "no such",
        "directory",
        "no module",
        "undefined",
        "no rule",
        "http",
        "status",
    ),
    *("too many", "unavail", "bad ", "gateway", "hook", "memory", "fault", "dumped", "broken", "***", "stopped"),
    *(
        "conflict",
        "elife",
        "declin",
        "proceed",
        "interrupt",
        "skipped due",
        "拒",
        "取消",
        "uncaught",
        "unhandled",
        "undeclared",
        "unresolved",
        "expected",
        ": no",
        "enoent",
        "econn",
        "eacces",
        "eaddr",
        "eperm",
        "eexist",
    ),
)
# What harnesses put an output into.
ENVELOPE = re.compile(
    r"[\s\[]{0,8}\{\s{0,8}(?:\"(?:returncode|exit_?[cC]ode|output|stdout)\":|\"(?:query"
    r"|command)\":[^\n]{0,200}\"(?:result|success)\":)"
)
# What an edit says that found nothing to change.
NOT_EDITED = re.compile(
    r"not found in (?:the )?(?:file|content)|\b0 occurrences\b|[Nn]o replacement was|did not appear|did not match"
    r"|[Nn]o match(?:es)?\b|[Nn]o changes\b"
    r"|not (?:been )?read yet|modified since"
    r"|[Ff]ound (?:\d+|multiple) (?:matches|occurrences)(?![^\n]{0,60}\b[Rr]eplaced\b)|exactly the same"
    r"|are identical|multiple occurrences"
    r"|[Ff]ailed to (?:find|edit|apply|match)|[Cc]ould not find|old_?[sS]tring not found|unchanged\b|\bno edits?\b"
    r"|not unique|verification failed|没有找到|未找到|无需修改|没有修改",
)
NOT_EDITED_STEMS = (
    *("not", "no ", "0 occ", "since", "found ", "same", "identical", "multiple", "fail", "unchanged"),
    *("没有", "未", "无需"),
)
# A person or a harness that lets a call not be made.
REFUSED = re.compile(
    r"doesn't want to proceed|\b(?:user|operator) (?:rejected|denied|declined|cancel\w{1,4}|doesn't want"
    r"|chose not)|\brejected by (?:the )?user|\bdenied by|\bhas been denied"
    r"|\bcancell?ed by|\baborted by|\binterrupted by|\btool use was rejected|\bskipped due to"
    r"|用户(?:拒绝|取消)|ユーザーが拒否",
    re.IGNORECASE,
)
# What a call that ends something does, with who asked for it.
ENDED = re.compile(
    r"\b(?:kill(?:ed)?|terminated|stopped|cancell?ed|aborted|interrupted)\b(?: by\b)?|\bcancel(?:l?ing)?\b",
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
NOTHING_FOUND = re.compile(
    r"\A\W{0,3}no (?:files?|match(?:es)?|results?|such) ?(?:\w{1,12} ){0,2}(?:found|matched)?\b|\AFound 0 "
    r"|\A0 (?:files|matches)",
    re.IGNORECASE,
)
WENT_WELL = re.compile(
    r"^\s{0,8}OK\b(?: \(|$)|^ok\s{1,8}\t?[\w./-]|^\[[\w/.-]{1,80} (?:\(root-commit\) )?[0-9a-f]{7,40}\] "
    r"|^To [\w@:/.-]{5,200}$|^HTTP/[\d.]{1,3} 2\d\d\b|^BUILD SUCCESS|\bBuild succeeded\b|^Apply complete!"
    r"|^\s{0,6}Finished `|^Switched to |nothing to commit, working tree clean|^Deleted branch"
    r"|\bAlready (?:up to date|on)\b|^100% tests passed|^ {0,4}\d+ passing\b|^patching file|: OK\b"
    r"|\bcongratulations :\)|^Requirement already satisfied|^\(?no output\)?$"
    r"|^\[File: [^\n]{1,300} \(\d+ lines total\)\]|\bcompleted with no output\b|\bran without output\b"
    r"|<operation>(?:created|modified)</operation>|(?<![\d.])0 (?:\w{1,12} ){0,2}(?:failures|failed|errors"
    r"|failing)\b",
    re.MULTILINE,
)
# Of these and of English words of success.
WENT_WELL_STEMS = (
    *("ok", "[", "to ", "http", "build succe", "succe", "complet", "finish", "switched", "clean", "delet", "already"),
    *(
        "100%",
        "pass",
        "patching",
        "output",
        "operation",
        "0 ",
        "done",
        "fine",
        "saved",
        "yes",
        "creat",
        "updat",
        "written",
    ),
    *(
        "wrote",
        "edited",
        "remov",
        "added",
        "appl",
        "moved",
        "renam",
        "good",
        "well",
        "up-to",
        "modif",
        "copied",
        "instal",
    ),
    *("overwr", "append", "insert", "replac", "undone", "✅", "error", "issue", "problem", "chang"),
)
