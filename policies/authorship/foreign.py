"""Calls of a shell that bring what strangers wrote: what stands in their results as a client's words may be theirs."""

import re

from policies.authorship.arguments import strings_in
from policies.vocabulary import pattern_of_parts

_SHELL = pattern_of_parts("shell")
_READ = 4_000
# Programs that fetch, and libraries; what is told of a repository's history and of packages; files of others.
_BRINGING = re.compile(
    r"(?<![\w.-])(?:curl|wget|aria2c|lynx|w3m|elinks|https?|xh|gh|glab|hub|az|jira|acli|ssh|scp|sftp|rsync|telnet|nc"
    r"|ncat|socat|mail|mutt|iwr|irm|invoke-(?:webrequest|restmethod)|start-bitstransfer|yt-dlp|newsboat|aws|gsutil"
    r"|(?:npm|pnpm|yarn|cargo|gem) (?:view|info|search|show|outdated|audit)|pip3? (?:show|search|index)|docker logs"
    r"|kubectl logs|journalctl)(?![\w.-])"
    r"|(?<![\w.-])git\b[^\n;|&]{0,80}?\s(?:log|show|diff|pull|fetch|clone|blame|shortlog|cat-file|notes|grep|reflog)"
    r"(?![\w.-])"
    r"|\b(?:requests|httpx|urllib\w*|aiohttp|axios)\b|\bfetch\(|://"
    r"|(?:node_modules|site-packages|dist-packages|vendor|third_party|\.cargo/registry|go/pkg/mod|[Dd]ownloads?|\.cache)/",
    re.IGNORECASE,
)
# What runs is known to nobody who only reads it.
_UNKNOWN = re.compile(r"\beval\b|\bbase64 (?:-d|--decode|-D)\b|\bxxd -r\b|\bsource <\(")


def brings_foreign_text(tool: str, given: object) -> bool:
    """Whether a call of a shell may show what strangers wrote; `given`: its arguments, as text or as a value."""
    if not _SHELL.search(tool):
        return False
    told = given if isinstance(given, str) else "\n".join(strings_in(given))
    told = told[:_READ]
    return _BRINGING.search(told) is not None or _UNKNOWN.search(told) is not None
