"""Problems of a config file, one line each: file, line, YAML path and the remedy, never a value."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from policies.settings import PolicySettings

Location = tuple[str | int, ...]
"""Keys and list positions from the top of the file down to one value."""

# pydantic's error types in plain words. The texts never show the value: it may be a secret.
_PLAIN = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text; put it in quotes",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "literal_error": "must be {expected}",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "tuple_type": "must be a list, such as [a, b]",
    "mapping_type": "must be a mapping of names to settings",
    "dict_type": "must be a mapping of names to settings",
    "model_type": "must be a mapping of keys to values",
    "value_error": "{error}",
}

REMOVED_SETTINGS: Mapping[str, str] = {
    "policies.*.join_wait": "the wait is 2 s",
    "policies.*.summarizer.segment_characters": "the limit is 500 characters",
    "policies.*.usage": "the upstream's usage is reported as it came",
    "server.memory": "the bound is 64 MB, which workers share",
    "server.name": "a replica's name is HOSTNAME:PORT",
    "telemetry.trail": "the requests of a session are always kept in the store",
    "telemetry.traces.propagate": "upstreams always get the traceparent of a traced request",
}
"""The behavior that replaces each setting of an earlier release. `*` is any name. docs/upgrading.md has the same rows.
"""


_ROUTER = (
    "an upstream has one address and one key; for several keys, fallbacks or weights put a router, such as LiteLLM's"
    " proxy, after Concertina and name it as the upstream"
)
_OF_A_ROUTER = frozenset(
    {
        *("api_keys", "keys", "base_urls", "urls", "targets", "providers", "deployments", "upstreams"),
        *("fallback", "fallbacks", "retries", "weight", "weights", "load_balance", "routing", "router_settings"),
    }
)
"""Keys of a router that people write into an upstream, into a model or at the top."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a config file.

    path: empty if the problem concerns the whole file.
    """

    file: str
    line: int | None
    path: str
    message: str

    def __str__(self) -> str:
        """Return `FILE:LINE: PATH: MESSAGE`."""
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (where, self.path, self.message) if part)


class ConfigError(Exception):
    """A config that cannot be used, with all its problems."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Create an error with these problems, sorted by line."""
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line or 0))
        super().__init__("\n".join(map(str, self.problems)))


def dotted_path(location: Location) -> str:
    """Return a YAML path in the usual notation: `tenants.acme.keys[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{shown_key(part)}" for part in location).lstrip(".")


def shown_key(key: str) -> str:
    """Return a key of the file that fits into one line. A key that looks like an API key is shortened to `sk-…`."""
    if key.startswith("sk-"):
        return "sk-…"
    printable = "".join(character if character.isprintable() else "�" for character in key)
    return printable if len(printable) <= 64 else printable[:63] + "…"


_NO_MERGE = "a policy takes another's settings by `extends: NAME`; write anything else out"


def plain(error: ErrorDetails, model: type[BaseModel]) -> str:
    """Return pydantic's error about a value of `model` in plain words, with the remedy."""
    if error["type"] == "extra_forbidden":
        *above, key = error["loc"]
        if str(key) == "<<":
            return f"merge keys are not read; {_NO_MERGE}"
        if instead := REMOVED_SETTINGS.get(_path_of_any_name(error["loc"])):
            return f"was removed in 0.3.0: {instead}; remove it"
        if str(key) in _OF_A_ROUTER and above[:1] in ([], ["upstreams"], ["models"]):
            return f"unknown key; {_ROUTER}"
        return "unknown key; " + suggest(str(key), _keys(_model_at(model, above)), "known keys")
    template = _PLAIN.get(error["type"])
    return template.format(**error.get("ctx", {})) if template else f"is not valid: {error['msg']}"


def _path_of_any_name(location: Location) -> str:
    """Return the dotted path, with `*` for the name of a policy."""
    parts = ("*" if index == 1 and location[0] == "policies" else str(part) for index, part in enumerate(location))
    return ".".join(parts)


def suggest(given: str, known: Iterable[str], label: str) -> str:
    """Return the name that was probably meant, or all known names.

    label: the text before the list of known names.
    """
    names = sorted(known)
    if close := difflib.get_close_matches(given[:64], names, n=1):
        return f"did you mean '{shown_key(close[0])}'?"
    return f"{label}: {', '.join(map(shown_key, names)) or 'none'}"


def _keys(model: type[BaseModel]) -> set[str]:
    """Return the keys that a section may have in the file. A policy may also extend another."""
    keys = {field.alias or name for name, field in model.model_fields.items()}
    return {*keys, "extends"} if model is PolicySettings else keys


def _model_at(model: type[BaseModel], location: Sequence[str | int]) -> type[BaseModel]:
    """Return the model of the section at a location of the file."""
    parts = iter(location)
    for part in parts:
        annotation = model.model_fields[str(part)].annotation
        models = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        model = next(kind for kind in models if issubclass(kind, BaseModel))
        if model is not annotation:  # a mapping or a list of models: the next part is a name or a position
            next(parts)
    return model
