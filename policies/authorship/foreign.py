"""Calls of a shell that bring what strangers wrote: what stands in their results as a client's words may be theirs."""

import re

from policies.authorship.arguments import strings_in
from policies.searching import has_any
from policies.vocabulary import pattern_of_parts

_SHELL = pattern_of_parts("shell")
_READ = 4_000
# Programs that fetch.
_PROGRAM_NAMES = """
curl wget aria2c lynx w3m elinks http https xh gh glab hub az jira acli ssh scp sftp rsync telnet nc ncat socat mail
mutt iwr irm invoke-webrequest invoke-restmethod start-bitstransfer yt-dlp newsboat aws gsutil journalctl
"""
_PROGRAMS = frozenset(_PROGRAM_NAMES.split())
_WORD = re.compile(r"[\w.-]+")
# Addresses, and folders with files of others.
_PLACES = (
    *("://", "node_modules/", "site-packages/", "dist-packages/", "vendor/", "third_party/", ".cargo/registry/"),
    *("go/pkg/mod/", "download/", "downloads/", ".cache/"),
)
# What is told of packages, of logs and of a repository's history, and libraries; with what a command with it holds.
_BRINGING = (
    (
        ("npm ", "yarn ", "cargo ", "gem ", "pip ", "pip3 ", " logs"),
        re.compile(
            r"(?<![\w.-])(?:(?:npm|pnpm|yarn|cargo|gem) (?:view|info|search|show|outdated|audit)"
            r"|pip3? (?:show|search|index)|(?:docker|kubectl) logs)(?![\w.-])"
        ),
    ),
    (
        ("git",),
        re.compile(
            r"git(?<![\w.-]git)\b[^\n;|&]{0,80}?\s(?:log|show|diff|pull|fetch|clone|blame|shortlog|cat-file|notes|grep"
            r"|reflog)(?![\w.-])"
        ),
    ),
    (
        ("requests", "httpx", "urllib", "aiohttp", "axios", "fetch("),
        re.compile(r"\b(?:requests|httpx|urllib\w*|aiohttp|axios)\b|\bfetch\("),
    ),
)
# What runs is known to nobody who only reads it.
_UNKNOWN_STEMS = ("eval", "base64", "xxd", "source <(")
_UNKNOWN = re.compile(r"\beval\b|\bbase64 (?:-d|--decode|-D)\b|\bxxd -r\b|\bsource <\(")


def brings_foreign_text(tool: str, given: object) -> bool:
    """Whether a call of a shell may show what strangers wrote; `given`: its arguments, as text or as a value."""
    if not _SHELL.search(tool):
        return False
    told = given if isinstance(given, str) else "\n".join(strings_in(given))
    told = told[:_READ]
    small = told.replace("İ", "i").lower()  # the only letter that would become two
    if has_any(small, _PLACES) or not _PROGRAMS.isdisjoint(_WORD.findall(small)):
        return True
    if any(has_any(small, stems) and pattern.search(small) for stems, pattern in _BRINGING):
        return True
    return has_any(told, _UNKNOWN_STEMS) and _UNKNOWN.search(told) is not None
