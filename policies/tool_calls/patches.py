"""What patches do to files: those of codex, unified diffs, and blocks of SEARCH and REPLACE in an answer's text."""

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
    """Of a codex patch, else of a unified diff; nothing of what is neither."""
    text = text[:_MOST]
    if "*** " in text and (found := [*_codex(text)]):
        return found
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
        old, new = _plain(match[1]), _plain(match[2])
        if new == "/dev/null":
            yield Effect("deleted", old)
        elif old == "/dev/null":
            yield Effect("created", new, line=line)
        else:
            yield Effect("modified", new, line=line)


def _plain(path: str) -> str:
    """Without the `a/` or `b/` in front."""
    path = path.strip().strip('"')
    return normpath(path[2:] if path.startswith(("a/", "b/")) else path)


def first_change(diff: str) -> str:
    """The first line that a diff adds, else takes away; empty if there is none."""
    found = [*_CHANGED.finditer(diff[:8_000])]
    added = next((match[1] for match in found if match[0].startswith("+")), None)
    return added if added is not None else (found[0][1] if found else "")


def block_effects(text: str) -> list[Effect]:
    """Return the file changes in the SEARCH/REPLACE blocks of an answer, each block under the name of its file."""
    if "SEARCH" not in text or "REPLACE" not in text:
        return []
    text = text[:_MOST]
    found: list[Effect] = []
    for match in _BLOCK.finditer(text):
        between = text.find(_BETWEEN, match.end())
        path = match[1].strip(" *#:\t\r")
        if between >= 0 and _PATH.fullmatch(path):  # a sentence may stand there too: why an edit failed
            old = text[match.end() : between].strip()
            line = text[between:].partition("\n")[2].partition("\n")[0].strip()
            found.append(Effect("modified" if old else "created", path, line=line))
    return found


def first_difference(old: str, new: str) -> str:
    """The first line of the new text that is not in the old one, else of the old one that is gone."""
    return _first_beside(new, old.splitlines()) or _first_beside(old, new.splitlines())


def _first_beside(text: str, others: Sequence[str]) -> str:
    known = set(others)
    return next((line.strip() for line in text.splitlines()[:400] if line.strip() and line not in known), "")
