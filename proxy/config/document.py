"""Reads one YAML file into plain values: each with its line, `${NAME}` filled in, and all of it within bounds."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import yaml

from proxy.config.errors import ConfigError, Location, Problem, dotted_path

MAX_BYTES = 1_000_000
MAX_VALUES = 10_000
MAX_DEPTH = 32

_STR = "tag:yaml.org,2002:str"


class _Scalar(NamedTuple):
    """How values of one kind are written, which characters they begin with, and what they stand for."""

    pattern: str
    first: Sequence[str]
    value: Callable[[str], object]


# YAML 1.2's core schema: `on`, `off`, `no`, 12:30 and 2026-01-01 are text. PyYAML's own rules are those of 1.1,
# where `mode: off` says false and editors, which go by 1.2, would not agree.
_SCALARS = {
    "tag:yaml.org,2002:null": _Scalar(r"(?:~|null|Null|NULL|)$", ["~", "n", "N", ""], lambda _: None),
    "tag:yaml.org,2002:bool": _Scalar(
        r"(?:true|True|TRUE|false|False|FALSE)$", "tTfF", lambda text: text.lower() == "true"
    ),
    "tag:yaml.org,2002:int": _Scalar(r"[-+]?[0-9]{1,18}$", "-+0123456789", int),
    "tag:yaml.org,2002:float": _Scalar(
        r"\A[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,4})?$", "-+.0123456789", float
    ),
}

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_REFERENCE = re.compile(rf"\$\$\{{|\$\{{(?:(?P<name>{_NAME})(?P<fallback>:-[^}}]*)?\}})?")
_WHOLE = re.compile(rf"os\.environ/(?P<name>{_NAME})")
# How other programs write a variable: a part of an address, or a whole value.
_SHELL = re.compile(rf"\${_NAME}")
_FOREIGN = re.compile(
    rf"\$\({_NAME}\)|%{_NAME}%|\{{(?:env|file):[^{{}}]+\}}|\{{\{{.*\}}\}}"
    rf"|(?:env|secrets?|process\.env)[.:]{_NAME}|os\.(?:environ|getenv)\b.*|ENV\[.*\]",
    re.ASCII,
)
_PARTS = re.compile(r"[:/@ ]")

# YAML's messages quote what they stumbled over: `<block end>` and single characters may stay, more may be secret.
_QUOTED = re.compile(r" '(?!<|\\.')[^']{2,}'")


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says: its values, the line of each, and what was wrong with single ones."""

    file: str
    values: Mapping[str, object]
    lines: Mapping[Location, int]
    problems: tuple[Problem, ...]


def read_config(path: Path) -> str:
    """The text of a config file, or a ConfigError that says why it cannot be had."""
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
    """The values of a YAML text, with the variables of `env` filled in."""
    root = _compose(text, file)
    if root is None or root.tag.endswith(":null"):
        raise _fatal(file, "is empty; write at least one section, or name no file to use the built-in defaults")
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError([Problem(file, _line(root), "", "must be a mapping of sections, such as `server:`")])
    reader = _NodeReader(file, env)
    values = reader.mapping(root, ())
    return Document(file, MappingProxyType(values), MappingProxyType(reader.lines), tuple(reader.problems))


def _fatal(file: object, message: str) -> ConfigError:
    return ConfigError([Problem(str(file), None, "", message)])


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Loader(yaml.SafeLoader):
    """PyYAML's parser with YAML 1.2's scalars, and bounds: it recurses once a level and keeps every node."""

    yaml_implicit_resolvers: ClassVar[dict[str, object]] = {}  # type: ignore[misc]  # the stub calls it an attribute
    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        self.nodes += 1
        if self.depth > MAX_DEPTH or self.nodes > 2 * MAX_VALUES:
            raise yaml.MarkedYAMLError(problem=_too_large(), problem_mark=parent.start_mark if parent else None)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


for _tag, _scalar in _SCALARS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(_scalar.pattern, re.ASCII), list(_scalar.first))


def _too_large() -> str:
    return f"more than {MAX_VALUES:,} values or {MAX_DEPTH} levels"


def _compose(text: str, file: str) -> yaml.Node | None:
    if yaml.reader.Reader.NON_PRINTABLE.search(text) is not None:
        raise _fatal(file, "holds a control character that YAML does not allow; remove it")
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        message = _QUOTED.sub("", error.problem or "it cannot be parsed")
        raise ConfigError([Problem(file, line, "", f"is not valid YAML: {message}")]) from None
    finally:
        loader.dispose()


@dataclass(slots=True)
class _NodeReader:
    """Turns nodes into values; aliases are expanded here, so the values are counted here."""

    file: str
    env: Mapping[str, str]
    lines: dict[Location, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    values: int = 0

    def value(self, node: yaml.Node, at: Location) -> object:
        self.values += 1
        if self.values > MAX_VALUES or len(at) > MAX_DEPTH:
            raise ConfigError([Problem(self.file, _line(node), "", f"aliases expand to {_too_large()}")])
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, at)
        if isinstance(node, yaml.SequenceNode):
            return self.sequence(node, at)
        return self.scalar(node, at)

    def mapping(self, node: yaml.MappingNode, at: Location) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
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

    def sequence(self, node: yaml.SequenceNode, at: Location) -> list[object]:
        result: list[object] = []
        for index, item in enumerate(node.value):
            self.lines[*at, index] = _line(item)
            result.append(self.value(item, (*at, index)))
        return result

    def scalar(self, node: yaml.Node, at: Location) -> object:
        text = str(node.value)
        if node.tag == _STR:
            return self.text(text, at)
        if node.tag not in _SCALARS:
            self.report(_line(node), at, "has a YAML tag that is not understood; put text that starts with ! in quotes")
            return None
        return _SCALARS[node.tag].value(text)

    def text(self, text: str, at: Location) -> str:
        if _is_foreign_variable(text):
            self.report(self.lines[at], at, "would be used as it is written; here a variable is written ${NAME}")
        try:
            return interpolate(text, self.env)
        except InterpolationError as error:
            self.report(self.lines[at], at, str(error))
            return ""

    def report(self, line: int, at: Location, message: str) -> None:
        self.problems.append(Problem(self.file, line, dotted_path(at), message))


def _is_foreign_variable(text: str) -> bool:
    """Return True if a value names a variable in the way of a shell or of another program."""
    if any(map(_SHELL.fullmatch, _PARTS.split(text))):
        return True
    return _FOREIGN.fullmatch(text) is not None and not _WHOLE.fullmatch(text)


class InterpolationError(ValueError):
    """A `${…}` that cannot be filled in."""


def interpolate(text: str, env: Mapping[str, str]) -> str:
    """Fill in `${NAME}`, `${NAME:-default}` (also for an empty variable, as in a shell) and a whole `os.environ/NAME`.

    A variable that is unset or empty is the content of the file that NAME_FILE names, as containers are given secrets.
    `$${` stands for a literal `${`. What is filled in stays text: it can add no keys and no further references.
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
    """Of the file that this variable names, without the end of its last line; None if there is no such variable."""
    if not (file := env.get(name)):
        return None
    try:
        return Path(file).read_text("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise InterpolationError(f"the file that {name} names cannot be read: {reason}") from None
