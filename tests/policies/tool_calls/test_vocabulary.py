"""The rows of `vocabulary.toml`: each call is read as what its row says, and no row is left without a use."""

from __future__ import annotations

import json
from datetime import date

import pytest

from policies.authorship.arguments import is_path_key
from policies.authorship.parts import is_asking, is_foreign
from policies.conversation.transcript import ToolCall
from policies.tables import read_table
from policies.tool_calls.calls import judge_call
from policies.tool_calls.sorts import sort_of
from policies.tool_calls.tools import reads_file, words_of
from policies.vocabulary import arguments_of_sort, words_of_sort

FILE = read_table("policies", "vocabulary")
_KEYS = {
    "words": {"word", "sorts"},
    "parts": {"part", "sort"},
    "tools": {"tool", "sort"},
    "arguments": {"name", "sort"},
    "calls": {"tool", "arguments", "sort"},
}
# What each sort of calls is: its kind, and whether it returns a file's text.
_KINDS = {
    "read": ("read", True),
    "read several": ("read", None),
    "search": ("read", False),
    "list": ("read", False),
    "change": ("change", False),
    "run": ("shell", False),
    "plan": ("plan", False),
    "agent": ("agent", False),
    "ask": ("other", False),
    "foreign": ("other", False),
    "other": ("other", False),
}


@pytest.mark.parametrize("kind", FILE)
def test_every_row_says_whose_it_is_and_since_when(kind: str) -> None:
    for row in FILE[kind]:
        assert row.keys() == _KEYS[kind] | {"client", "source", "date"}
        assert row["client"]
        assert row["source"] in ("capture", "memory")
        assert isinstance(row["date"], date)


@pytest.mark.parametrize("kind", FILE)
def test_no_row_stands_there_twice(kind: str) -> None:
    rows = [tuple(str(row.get(key)) for key in sorted(_KEYS[kind])) for row in FILE[kind]]
    assert len(rows) == len({*rows})


@pytest.mark.parametrize("row", FILE["words"], ids=lambda row: row["word"])
def test_a_word_is_one_of_a_tools_name(row: dict[str, str]) -> None:
    word = row["word"]
    assert words_of(word) == (word,)
    assert all(word in words_of_sort(sort) for sort in row["sorts"])


@pytest.mark.parametrize("row", FILE["tools"], ids=lambda row: row["tool"])
def test_a_tool_of_its_name_asks_a_person(row: dict[str, str]) -> None:
    name = row["tool"]
    assert is_asking(name)
    assert is_asking(f"default_api.{name}")
    assert not is_asking(f"mcp__server__{name}")


@pytest.mark.parametrize("name", [row["name"] for row in FILE["arguments"] if row["sort"] == "path"])
def test_the_name_of_a_path_is_known_however_it_is_spelled(name: str) -> None:
    assert is_path_key(name)
    assert is_path_key(f"{name[:2]}_{name[2:].upper()}")


def test_the_first_name_of_an_argument_counts_first() -> None:
    assert arguments_of_sort("command")[:2] == ("command", "cmd")
    assert arguments_of_sort("source")[-2:] == ("file_path", "filePath")


@pytest.mark.parametrize("row", FILE["calls"], ids=lambda row: f"{row['tool']} of {row['client']}")
def test_a_call_is_read_as_its_row_says(row: dict[str, str]) -> None:
    (done,) = judge_call(ToolCall(row["tool"], row["arguments"], "c"), 0, None)
    kind, is_reading = _KINDS[row["sort"]]
    assert done.kind == kind
    assert bool(done.commands) == (row["sort"] == "run")
    assert is_asking(row["tool"]) == (row["sort"] == "ask")
    assert is_foreign(row["tool"]) or row["sort"] != "foreign"
    if is_reading is not None:
        assert reads_file(done.words, json.loads(row["arguments"])) == is_reading
    if row["sort"] in ("search", "list"):
        assert sort_of(done)[1] == ""
    if row["sort"] == "change":
        assert done.effects
