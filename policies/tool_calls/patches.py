"""Effects of patches on files: codex patches, unified diffs, and SEARCH/REPLACE blocks in an assistant's message."""

import re
from collections.abc import Iterator, Sequence
from posixpath import normpath

from policies.tool_calls.effects import Effect

_MOST = 200_000
_FILE = re.compile(r"^\*\*\* (Add|Update|Delete) File: ([^\n]{1,1000})$", re.MULTILINE)
_MOVE = re.compile(r"^\*\*\* Move to: ([^\n]{1,1000})$", re.MULTILINE)
_CHANGED = re.compile(r"^[+-](?![+-]{2} )[^\S\n]{0,200}(\S[^\n]{0,300})$", re.MULTILINE)
_DIFF = re.compile(r"^--- ([^\n\t]{1,1000})[^\n]{0,200}\n\+\+\+ ([^\n\t]{1,1000})", re.MULTILINE)
_GIT_RENAME = re.compile(r"^rename from ([^\n]{1,1000})\nrename to ([^\n]{1,1000})$", re.MULTILINE)
_BLOCK = re.compile(r"^([^\n`<>]{1,300})\n(?:```[^\n]{0,40}\n)?<{5,9} ?SEARCH[^\n]{0,80}\n", re.MULTILINE)
_BETWEEN = "======="
_PATH = re.compile(r"(?:[A-Za-z]:)?[^\s:]{1,300}")


def patch_effects(text: str) -> list[Effect]:
    """Return the effects of a codex patch or a unified diff; an empty list for any other text."""
    text = text[:_MOST]
    if "*** " in text and (effects := [*_codex(text)]):
        return effects
    return [*_unified_effects(text)] if "\n+++ " in text or text.startswith("rename from ") else []


def _codex(text: str) -> Iterator[Effect]:
    files = [*_FILE.finditer(text)]
    for match, following in zip(files, [*files[1:], None], strict=False):
        body = text[match.end() : following.start() if following else len(text)]
        path = match[2].strip()
        moved = _MOVE.search(body)
        if match[1] == "Add":
            yield Effect("created", path, line=first_change(body))
        elif match[1] == "Delete":
            yield Effect("deleted", path)
        elif moved:
            yield Effect("renamed", path, moved[1].strip(), first_change(body))
        else:
            yield Effect("modified", path, line=first_change(body))


def _unified_effects(text: str) -> Iterator[Effect]:
    for match in _GIT_RENAME.finditer(text):
        yield Effect("renamed", match[1].strip(), match[2].strip())
    files = [*_DIFF.finditer(text)]
    for match, following in zip(files, [*files[1:], None], strict=False):
        line = first_change(text[match.end() : following.start() if following else len(text)])
        old, new = _without_prefix(match[1]), _without_prefix(match[2])
        if new == "/dev/null":
            yield Effect("deleted", old)
        elif old == "/dev/null":
            yield Effect("created", new, line=line)
        else:
            yield Effect("modified", new, line=line)


def _without_prefix(path: str) -> str:
    """Return a path without the prefix `a/` or `b/`."""
    path = path.strip().strip('"')
    return normpath(path[2:] if path.startswith(("a/", "b/")) else path)


def first_change(diff: str) -> str:
    """Return the first line that a diff adds, else the first that it removes; empty if there is none."""
    matches = [*_CHANGED.finditer(diff[:8_000])]
    added = next((match[1] for match in matches if match[0].startswith("+")), None)
    return added if added is not None else (matches[0][1] if matches else "")


def block_effects(text: str) -> list[Effect]:
    """Return the effects of the SEARCH/REPLACE blocks in a message. The name of the file precedes each block."""
    if "SEARCH" not in text or "REPLACE" not in text:
        return []
    text = text[:_MOST]
    effects: list[Effect] = []
    for match in _BLOCK.finditer(text):
        between = text.find(_BETWEEN, match.end())
        path = match[1].strip(" *#:\t\r")
        if between >= 0 and _PATH.fullmatch(path):  # a sentence may precede a block too: why an edit failed
            old = text[match.end() : between].strip()
            line = text[between:].partition("\n")[2].partition("\n")[0].strip()
            effects.append(Effect("modified" if old else "created", path, line=line))
    return effects


def first_difference(old: str, new: str) -> str:
    """Return the first line of the new text that is not in the old one, else the first removed line."""
    return _first_not_in(new, old.splitlines()) or _first_not_in(old, new.splitlines())


def _first_not_in(text: str, excluded_lines: Sequence[str]) -> str:
    excluded = set(excluded_lines)
    return next((line.strip() for line in text.splitlines()[:400] if line.strip() and line not in excluded), "")
