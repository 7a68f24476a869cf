"""Files that a script writes by calls with literal names: Python, JavaScript, Ruby."""

import re
from collections.abc import Iterator, Mapping

from policies.tool_calls.effects import Deed, Effect

_MOST = 20_000
_TEXT = r"""[rbfu]{0,2}(?:"([^"\n{}]{1,300})"|'([^'\n{}]{1,300})'|`([^`\n{}]{1,300})`)"""
_NAMED = r"([A-Za-z_]\w{0,60})"
_PATH = rf"(?:(?:pathlib\.)?Path\(\s{{0,4}})?(?:{_TEXT}|{_NAMED})\)?"
_ASSIGNED = re.compile(
    rf"^[ \t]{{0,40}}(?:const |let |var )?{_NAMED}\s{{0,4}}=\s{{0,4}}(?:(?:pathlib\.)?Path\()?{_TEXT}\)?"
    rf"(?:\s{{0,4}}/\s{{0,4}}{_TEXT})?[ \t]{{0,4}};?[ \t]{{0,4}}(?:#[^\n]{{0,200}})?$",
    re.MULTILINE,
)
_JOINED = re.compile(
    rf"^[ \t]{{0,40}}{_NAMED}\s{{0,4}}=\s{{0,4}}{_NAMED}\s{{0,4}}/\s{{0,4}}{_TEXT}[ \t]{{0,4}}$", re.MULTILINE
)
_OPEN = re.compile(
    rf"\bopen\(\s{{0,4}}{_PATH}\s{{0,4}},\s{{0,4}}(?:mode\s{{0,2}}=\s{{0,2}})?['\"]([rwax])[bt+]{{0,2}}['\"]"
)
_OPENED = re.compile(rf"(?:Path\(\s{{0,4}}{_TEXT}\s{{0,4}}\)|\b{_NAMED})\.open\(\s{{0,4}}['\"]([wax])[bt+]{{0,2}}['\"]")
_OPEN_MODES: Mapping[str, Deed] = {"w": "written", "x": "created", "a": "appended"}
_OF_PATH = re.compile(
    rf"(?:Path\(\s{{0,4}}{_TEXT}\s{{0,4}}\)|\b{_NAMED})\.(write_text|write_bytes|touch|unlink|mkdir)\("
)
_PATH_DEEDS: Mapping[str, Deed] = {"touch": "touched", "unlink": "deleted", "mkdir": "touched"}
_ONE = re.compile(
    r"\b(os\.(?:remove|unlink|rmdir|makedirs|mkdir)|shutil\.rmtree|(?:fs\.|fsp\.|promises\.)?(?:writeFile"
    r"|appendFile|unlink|rm|mkdir)(?:Sync)?"
    rf"|File\.(?:write|delete)|savefig|to_csv|to_json|to_excel|np\.save|Bun\.write)\(\s{{0,4}}{_PATH}\s{{0,4}}[,)]"
)
_TWO = re.compile(
    rf"\b(os\.(?:rename|replace)|shutil\.(?:move|copy2?|copyfile|copytree)|(?:fs\.|fsp\.|promises\.)?(?:rename"
    rf"|copyFile)(?:Sync)?)\(\s{{0,4}}{_PATH}\s{{0,4}},\s{{0,4}}{_PATH}"
)
_STEMS = (
    "open(",
    "write",
    "remove",
    "unlink",
    "rename",
    "replace",
    "touch",
    "mk",
    "rm",
    "copy",
    "move",
    "save",
    "to_",
    "delete",
    "append",
)


def script_effects(code: str) -> list[Effect]:
    """Return the effects of a script on files, sorted by kind of call. Computed paths are left out."""
    code = code[:_MOST]
    return [*_effects(code)] if any(stem in code for stem in _STEMS) else []


def _effects(code: str) -> Iterator[Effect]:
    values = _values(code)
    yield from _written(code, values)
    for match in _ONE.finditer(code):
        if path := _path(match.groups()[1:5], values):
            yield Effect(_deed_of(match[1]), path)
    for match in _TWO.finditer(code):
        source, target = _path(match.groups()[1:5], values), _path(match.groups()[5:9], values)
        if source and target:
            yield Effect("copied", target, source) if "copy" in match[1] else Effect("renamed", source, target)


def _written(code: str, values: Mapping[str, str]) -> Iterator[Effect]:
    """Yield the effects of files opened for writing, and of methods of paths."""
    for pattern in (_OPEN, _OPENED):
        for match in pattern.finditer(code):
            if (deed := _OPEN_MODES.get(match[5])) and (path := _path(match.groups()[:4], values)):
                yield Effect(deed, path)
    for match in _OF_PATH.finditer(code):
        if path := _path(match.groups()[:4], values):
            yield Effect(_PATH_DEEDS.get(match[5], "written"), path)


def _deed_of(call: str) -> Deed:
    if any(word in call for word in ("remove", "unlink", "rmdir", "rmtree", "rm", "delete")):
        return "deleted"
    if "mk" in call or "makedirs" in call:
        return "touched"
    return "appended" if "append" in call else "written"


def _values(code: str) -> dict[str, str]:
    """Return the texts and paths assigned to names; the last value of each."""
    values: dict[str, str] = {}
    for match in _ASSIGNED.finditer(code):
        name, *texts = match.groups()
        base = next(filter(None, texts[:3]), "")
        suffix = next(filter(None, texts[3:]), "")
        values[name] = f"{base.rstrip('/')}/{suffix}" if suffix else base
    for match in _JOINED.finditer(code):
        if (folder := values.get(match[2])) is not None:
            values[match[1]] = f"{folder.rstrip('/')}/{next(filter(None, match.groups()[2:]))}"
    return values


def _path(groups: tuple[str | None, ...], values: Mapping[str, str]) -> str | None:
    *texts, name = groups
    path = next(filter(None, texts), None) or values.get(name or "")
    return path.removeprefix("./") if path and not path.startswith("/dev/") else None
