"""Arguments for a reader: fields that say most first, escapes undone, paths whole."""

from __future__ import annotations

import json

import pytest

from policies.tool_calls.tools import arguments_of
from policies.tool_calls.wording import readable

LONG = "src/" + "very/long/folder/" * 20 + "name.py"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"path": "src/f0.py"}, '{"path": "src/f0.py"}'),
        ({"q": "模块"}, '{"q": "模块"}'),
        ({"content": "x" * 500, "path": "a.py"}, '{"path": "a.py", "content": "' + "x" * 48 + '…"}'),
        ({"text": "y" * 500, "command": "make"}, '{"command": "make", "text": "' + "y" * 48 + '…"}'),
        ({"command": "cat > a.py <<'EOF'\n" + "x = 1\n" * 40 + "EOF"}, '{"command": "cat > a.py <<\'EOF\' …"}'),
        ({"command": 'grep -n "a b" x'}, '{"command": "grep -n "a b" x"}'),
    ],
)
def test_arguments_are_told_by_field(arguments: object, told: str) -> None:
    assert readable(arguments_of(json.dumps(arguments))) == told


def test_a_path_is_never_cut() -> None:
    assert LONG in readable({"content": "x" * 900, "file_path": LONG})


def test_a_text_is_told_in_one_line_up_to_a_word() -> None:
    told = readable("a\n  b " + "word " * 400)
    assert told.startswith("a b word word")
    assert told.endswith("word…")
    assert len(told) < 200
