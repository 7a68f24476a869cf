"""How agents name tools and their arguments, read from `vocabulary.toml`: what a name says of a call."""

import re
from collections.abc import Mapping
from typing import LiteralString

from policies.tables import read_table

_FILE = read_table("policies", "vocabulary")
_SIGNS = re.compile(r"[_\W]")


def _names_by_sort(kind: str, name: str) -> Mapping[str, tuple[str, ...]]:
    """Return the names of a table in the order of the file, by their sort."""
    found: dict[str, tuple[str, ...]] = {}
    for row in _FILE[kind]:
        for sort in row.get("sorts") or [row["sort"]]:
            found[sort] = (*found.get(sort, ()), row[name])
    return found


_WORDS = {sort: frozenset(names) for sort, names in _names_by_sort("words", "word").items()}
_ARGUMENTS = _names_by_sort("arguments", "name")
_PARTS = _names_by_sort("parts", "part")
_TOOLS = _names_by_sort("tools", "tool")


def words_of_sort(sort: LiteralString) -> frozenset[str]:
    """Return the words of tools' names of a sort, in small letters. Raises KeyError if there is no such sort."""
    return _WORDS[sort]


def arguments_of_sort(sort: LiteralString) -> tuple[str, ...]:
    """Return the names of arguments of a sort, the first to look for first. Raises KeyError if there is none."""
    return _ARGUMENTS[sort]


def pattern_of_parts(sort: LiteralString) -> re.Pattern[str]:
    """Return a pattern of the pieces of tools' names of a sort. Raises KeyError if there is no such sort."""
    return re.compile("|".join(map(re.escape, _PARTS[sort])), re.IGNORECASE)


def bare_name(tool: str) -> str:
    """Return a tool's name without its group, case and signs, as rows of whole names are compared."""
    return _SIGNS.sub("", tool.rpartition(".")[2]).lower()


def tools_of_sort(sort: LiteralString) -> frozenset[str]:
    """Return the bare names of tools of a sort. Raises KeyError if there is no such sort."""
    return frozenset(map(bare_name, _TOOLS[sort]))
