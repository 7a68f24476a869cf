"""Shell calls that may show strangers' text. Text that looks like a client's in their results may be forged."""

import re

from policies.authorship.arguments import strings_in
from policies.searching import has_any
from policies.vocabulary import pattern_of_parts

_SHELL = pattern_of_parts("shell")
_READ = 4_000
# Programs that fetch data.
_PROGRAM_NAMES = """
curl wget aria2c lynx w3m elinks http https xh gh glab hub az jira acli ssh scp sftp rsync telnet nc ncat socat mail
mutt iwr irm invoke-webrequest invoke-restmethod start-bitstransfer yt-dlp newsboat aws gsutil journalctl
"""
_PROGRAMS = frozenset(_PROGRAM_NAMES.split())
_WORD = re.compile(r"[\w.-]+")
# Addresses, and folders with other people's files.
_PLACES = (
    *("://", "node_modules/", "site-packages/", "dist-packages/", "vendor/", "third_party/", ".cargo/registry/"),
    *("go/pkg/mod/", "download/", "downloads/", ".cache/"),
)
# Commands about packages, logs and repository history, and libraries. Each has texts that every such command contains.
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
# Commands whose code cannot be seen in their text.
_UNKNOWN_STEMS = ("eval", "base64", "xxd", "source <(")
_UNKNOWN = re.compile(r"\beval\b|\bbase64 (?:-d|--decode|-D)\b|\bxxd -r\b|\bsource <\(")


def brings_foreign_text(tool: str, given: object) -> bool:
    """Return True if a shell call may show strangers' text. given: its arguments, as text or as a value."""
    if not _SHELL.search(tool):
        return False
    text = given if isinstance(given, str) else "\n".join(strings_in(given))
    text = text[:_READ]
    small = text.replace("İ", "i").lower()  # the only letter that would become two
    if has_any(small, _PLACES) or not _PROGRAMS.isdisjoint(_WORD.findall(small)):
        return True
    if any(has_any(small, stems) and pattern.search(small) for stems, pattern in _BRINGING):
        return True
    return has_any(text, _UNKNOWN_STEMS) and _UNKNOWN.search(text) is not None
