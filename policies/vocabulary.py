"""The names of agents' tools and arguments, from `vocabulary.toml`: what a name means for a call."""

import re
from collections.abc import Mapping
from typing import LiteralString

from policies.tables import read_table

_FILE = read_table("policies", "vocabulary")
_SIGNS = re.compile(r"[_\W]")


def _names_by_sort(kind: str, name: str) -> Mapping[str, tuple[str, ...]]:
    """Return the names of a table by sort, in the order of the file."""
    names_by_sort: dict[str, tuple[str, ...]] = {}
    for row in _FILE[kind]:
        for sort in row.get("sorts") or [row["sort"]]:
            names_by_sort[sort] = (*names_by_sort.get(sort, ()), row[name])
    return names_by_sort


_WORDS = {sort: frozenset(names) for sort, names in _names_by_sort("words", "word").items()}
_ARGUMENTS = _names_by_sort("arguments", "name")
_PARTS = _names_by_sort("parts", "part")
_TOOLS = _names_by_sort("tools", "tool")


def words_of_sort(sort: LiteralString) -> frozenset[str]:
    """Return the lower-case words in names of tools of a sort. Raises KeyError for an unknown sort."""
    return _WORDS[sort]


def arguments_of_sort(sort: LiteralString) -> tuple[str, ...]:
    """Return the names of arguments of a sort, the preferred first. Raises KeyError for an unknown sort."""
    return _ARGUMENTS[sort]


def pattern_of_parts(sort: LiteralString) -> re.Pattern[str]:
    """Return a pattern of the parts of tool names of a sort. Raises KeyError for an unknown sort."""
    return re.compile("|".join(map(re.escape, _PARTS[sort])), re.IGNORECASE)


def bare_name(tool: str) -> str:
    """Return a tool's name without its group, case and punctuation, to compare whole names."""
    return _SIGNS.sub("", tool.rpartition(".")[2]).lower()


def tools_of_sort(sort: LiteralString) -> frozenset[str]:
    """Return the bare names of tools of a sort. Raises KeyError for an unknown sort."""
    return frozenset(map(bare_name, _TOOLS[sort]))
