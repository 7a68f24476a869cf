"""Parse a YAML file into plain values with line numbers, `${NAME}` filled in, within fixed bounds."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

from proxy.config.errors import ConfigError, Location, Problem, dotted_path

MAX_BYTES = 1_000_000
MAX_VALUES = 10_000
MAX_DEPTH = 32

_TAG = "tag:yaml.org,2002:"

# YAML 1.2's core schema: `on`, `off`, `no`, 12:30 and 2026-01-01 are text. ruamel.yaml's own rules also read dates, and
# numbers such as 1_000 and -_.
_SCALARS: Mapping[str, tuple[re.Pattern[str], Callable[[str], object]]] = {
    f"{_TAG}null": (re.compile(r"~|null|Null|NULL|"), lambda _: None),
    f"{_TAG}bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    f"{_TAG}int": (re.compile(r"[-+]?[0-9]{1,18}"), int),
    f"{_TAG}float": (re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,4})?"), float),
}

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_REFERENCE = re.compile(rf"\$\$\{{|\$\{{(?:(?P<name>{_NAME})(?P<fallback>:-[^}}]*)?\}})?")
_WHOLE = re.compile(rf"os\.environ/(?P<name>{_NAME})")
# Syntax of variables in other programs: a part of an address, or a complete value.
_SHELL = re.compile(rf"\${_NAME}")
_FOREIGN = re.compile(
    rf"\$\({_NAME}\)|%{_NAME}%|\{{(?:env|file):[^{{}}]+\}}|\{{\{{.*\}}\}}"
    rf"|<[A-Za-z_][\w-]*>|(?:env|secrets?|process\.env)[.:]{_NAME}|os\.(?:environ|getenv)\b.*|ENV\[.*\]",
    re.ASCII,
)
# The text before a variable in a longer value: `Bearer `, `token=`.
_SCHEME = re.compile(r"[\w-]{1,30}[ =:][ ]{0,2}")
_IN_BRACES = re.compile(r"\{(?:env|file):[^{}]+\}")
_PARTS = re.compile(r"[:/@ ]")

# ruamel.yaml's messages quote the file. `<block end>` and single characters may stay, longer quotes may be secret.
_QUOTED = re.compile(r""" (?:'(?!<[a-z ]+>'|\\.')(?:\\.|[^'\\]){2,}'|"(?:\\.|[^"\\]){2,}")""")


@dataclass(frozen=True, slots=True)
class Document:
    """The values of a file, the line of each, and the problems of single values."""

    file: str
    values: Mapping[str, object]
    lines: Mapping[Location, int]
    problems: tuple[Problem, ...]


def read_config(path: Path) -> str:
    """Return the text of a config file. Raises ConfigError with the reason if it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _fatal(path, "not found; create it, or name no file to use the built-in defaults") from None
    except IsADirectoryError:
        raise _fatal(path, "is a directory; name the file inside it") from None
    except OSError as error:
        raise _fatal(path, f"cannot be read ({error.strerror}); check its permissions") from None
    if len(content) > MAX_BYTES:
        raise _fatal(path, f"is larger than {MAX_BYTES:,} bytes; this is not a config file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError([Problem(str(path), line, "", "is not UTF-8; save it as UTF-8")]) from None


def parse(text: str, file: str, env: Mapping[str, str]) -> Document:
    """Parse a YAML text and fill in the variables of `env`. Raises ConfigError."""
    root = _compose(text, file)
    if root is None or str(root.tag).endswith(":null"):
        raise _fatal(file, "is empty; write at least one section, or name no file to use the built-in defaults")
    if not isinstance(root, MappingNode):
        raise ConfigError([Problem(file, _line(root), "", "must be a mapping of sections, such as `server:`")])
    reader = _NodeReader(file, env)
    values = reader.mapping(root, ())
    return Document(file, MappingProxyType(values), MappingProxyType(reader.lines), tuple(reader.problems))


def _fatal(file: object, message: str) -> ConfigError:
    return ConfigError([Problem(str(file), None, "", message)])


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


class _Composer(Composer):
    """A composer that refuses too many values or levels: it recurses once per level and keeps every node."""

    nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.nodes += 1
        if self.nodes > 2 * MAX_VALUES or self.depth >= MAX_DEPTH:
            raise MarkedYAMLError(problem=_too_large(), problem_mark=parent.start_mark)
        return super().compose_node(parent, index)


class _Resolver(VersionedResolver):
    """A resolver that reads a plain scalar by `_SCALARS`."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is ScalarNode and implicit[0]:
            tags = (tag for tag, (pattern, _) in _SCALARS.items() if pattern.fullmatch(value))
            return Tag(suffix=next(tags, f"{_TAG}str"))
        return super().resolve(kind, value, implicit)


def _too_large() -> str:
    return f"more than {MAX_VALUES:,} values or {MAX_DEPTH} levels"


def _compose(text: str, file: str) -> Node | None:
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer, yaml.Resolver = _Composer, _Resolver
    yaml.composer.warn_double_anchors = False
    try:
        root: Node | None = yaml.compose(text)
    except ReaderError:
        raise _fatal(file, "contains a control character that YAML does not allow; remove it") from None
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        message = _QUOTED.sub("", error.problem or "it cannot be parsed")
        raise ConfigError([Problem(file, line, "", f"is not valid YAML: {message}")]) from None
    return root


@dataclass(slots=True)
class _NodeReader:
    """Convert nodes into values.

    Aliases are expanded here, so the values are counted here.
    """

    file: str
    env: Mapping[str, str]
    lines: dict[Location, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    values: int = 0

    def value(self, node: Node, at: Location) -> object:
        self.values += 1
        if self.values > MAX_VALUES or len(at) > MAX_DEPTH:
            raise ConfigError([Problem(self.file, _line(node), "", f"aliases expand to {_too_large()}")])
        if isinstance(node, MappingNode):
            return self.mapping(node, at)
        if isinstance(node, SequenceNode):
            return self.sequence(node, at)
        return self.scalar(node, at)

    def mapping(self, node: MappingNode, at: Location) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self.report(_line(key_node), at, "a key must be plain text; put `${…}` values in quotes")
                continue
            key = str(key_node.value)
            here = (*at, key)
            if key in result:
                self.report(_line(key_node), here, f"is given twice, first in line {self.lines[here]}; remove one")
                continue
            self.lines[here] = _line(key_node)
            result[key] = self.value(value_node, here)
        return result

    def sequence(self, node: SequenceNode, at: Location) -> list[object]:
        result: list[object] = []
        for index, item in enumerate(node.value):
            self.lines[*at, index] = _line(item)
            result.append(self.value(item, (*at, index)))
        return result

    def scalar(self, node: Node, at: Location) -> object:
        text, tag = str(node.value), str(node.tag)
        if tag == f"{_TAG}str":
            return self.text(text, at)
        if tag in _SCALARS and _SCALARS[tag][0].fullmatch(text):
            return _SCALARS[tag][1](text)
        self.report(_line(node), at, "has a YAML tag that is not understood; put text that starts with ! in quotes")
        return None

    def text(self, text: str, at: Location) -> str:
        if _is_foreign_variable(text):
            self.report(self.lines[at], at, "would be used literally; write a variable as ${NAME}")
        try:
            return interpolate(text, self.env)
        except InterpolationError as error:
            self.report(self.lines[at], at, str(error))
            return ""

    def report(self, line: int, at: Location, message: str) -> None:
        self.problems.append(Problem(self.file, line, dotted_path(at), message))


def _is_foreign_variable(text: str) -> bool:
    """Return True if a value contains a variable in the syntax of a shell or of another program."""
    if any(map(_SHELL.fullmatch, _PARTS.split(text))):
        return True
    if _IN_BRACES.search(text):
        return True
    scheme = _SCHEME.match(text)
    values = (text, text[scheme.end() :]) if scheme else (text,)
    return any(map(_FOREIGN.fullmatch, values)) and not _WHOLE.fullmatch(text)


class InterpolationError(ValueError):
    """A `${…}` that cannot be filled in."""


def interpolate(text: str, env: Mapping[str, str]) -> str:
    """Fill in `${NAME}`, `${NAME:-default}` and a complete `os.environ/NAME`.

    The default also replaces an empty variable, as in a shell. An unset or empty variable takes the content of the file
    in NAME_FILE, as containers receive secrets. `$${` is a literal `${`. The inserted text stays text: it adds no keys
    and no further references.
    """
    if whole := _WHOLE.fullmatch(text):
        return _variable(whole["name"], None, env)
    return _REFERENCE.sub(lambda match: _fill_variable(match, env), text)


def _fill_variable(match: re.Match[str], env: Mapping[str, str]) -> str:
    if match[0] == "$${":
        return "${"
    if match["name"] is None:
        raise InterpolationError("has a ${ that is not ${NAME} or ${NAME:-default}; write $${ for a literal one")
    return _variable(match["name"], match["fallback"], env)


def _variable(name: str, fallback: str | None, env: Mapping[str, str]) -> str:
    value = env.get(name) or _content(f"{name}_FILE", env) or env.get(name)
    if fallback is not None:
        return value or fallback.removeprefix(":-")
    if value is None:
        raise InterpolationError(
            f"the environment variable {name} is not set; set it, or give a default: ${{{name}:-…}}"
        )
    return value


def _content(name: str, env: Mapping[str, str]) -> str | None:
    """Return the content of the file that this variable names, without the last line end; None without the variable."""
    if not (file := env.get(name)):
        return None
    try:
        return Path(file).read_text("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise InterpolationError(f"the file that {name} names cannot be read: {reason}") from None
