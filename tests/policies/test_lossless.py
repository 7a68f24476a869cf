"""What results say twice is said once, and nothing of it is lost."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.transcript import ToolCall, Utterance
from policies.lossless import compacted, is_repeat, repeat_text
from policies.pointers import Exchange
from policies.settings import ShortenSettings

Given = dict[str, object]

ORDER = {"order": 7, "items": [{"sku": "a b", "price": 1.0}, {"sku": 'c "d" \\', "price": 1e3}], "paid": False}
PRETTY = json.dumps(ORDER, indent=4)
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s",:{}\[\]]+|[,:{}\[\]]')


def exchange(text: str, name: str, given: Given, position: int = 3, *, error: bool = False) -> Exchange:
    call = ToolCall(name, json.dumps(given), f"c{position}")
    answer = Utterance(position, "tool", text, tool=name, answers=call.id, error=error or None)
    return Exchange(call, position - 1, position, 0, answer)


def short(
    text: str,
    name: str = "get_order",
    given: Given | None = None,
    settings: ShortenSettings | None = None,
) -> str | None:
    return compacted(exchange(text, name, given or {}), text, settings or ShortenSettings())


def test_json_loses_its_whitespace_and_nothing_else() -> None:
    assert short(PRETTY) == json.dumps(ORDER, separators=(",", ":"))
    odd = (
        " " * 50
        + '[ 1.0,  1e3,\t123456789012345678901234567890,\n\n {"a": 1,     "a": 2},  "\\u00e9  \\/",       -0.0 ]'
    )
    assert short(odd) == '[1.0,1e3,123456789012345678901234567890,{"a":1,"a":2},"\\u00e9  \\/",-0.0]'


@pytest.mark.parametrize(
    ("text", "name", "given"),
    [
        (PRETTY, "Read", {"file_path": "package.json"}),
        (PRETTY, "Bash", {"command": "cat package.json"}),
        (PRETTY, "Bash", {"command": "cd /r && head -50 package.json"}),
        (PRETTY, "Bash", {"command": "git show HEAD:package.json"}),
        (PRETTY + " trailing", "get_order", {}),
        (PRETTY[:-1], "get_order", {}),
        ("[INFO] " + " " * 80 + "done", "run_tests", {}),
        ('{"a":1}', "get_order", {}),
        ("plain text   with   blanks" * 10, "get_order", {}),
    ],
)
def test_what_is_no_json_or_shows_a_file_stays(text: str, name: str, given: Given) -> None:
    assert short(text, name, given) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[32m✓\x1b[0m test one\n\x1b[1;31m✗ test two\x1b[0m\n" * 3, "✓ test one\n✗ test two\n" * 3),
        ("\x1b]0;a window's title, which is long enough to count here\x07ready", "ready"),
        ("\r".join(f"downloading {n:3} %" for n in range(20)) + "\ndone\n", "downloading  19 %\ndone\n"),
        ("10 %\r20 %\r100 % of all that there is to be downloaded here\r\x1b[2Kdone\n", "done\n"),
        ("a very long first line that is not covered by what follows\rshort\n" + "x\ry\n" * 30,
         "a very long first line that is not covered by what follows\rshort\n" + "y\n" * 30),
    ],
)  # fmt: skip
def test_a_terminal_would_show_the_same(text: str, shown: str) -> None:
    assert short(text, "Bash", {"command": "make"}) == shown


def test_lines_of_windows_stay() -> None:
    assert short("one\r\ntwo\r\n" * 40, "Bash", {"command": "dir"}) is None


@pytest.mark.parametrize("key", ["json", "terminal"])
def test_each_can_be_switched_off(key: str) -> None:
    settings = ShortenSettings.model_validate({key: False})
    texts = {"json": PRETTY, "terminal": "\x1b[32mgreen\x1b[0m " * 20}
    assert short(texts[key], "run", settings=settings) is None
    assert all(short(text, "run", settings=settings) for other, text in texts.items() if other != key)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(value=VALUES, indent=st.integers(0, 8))
def test_the_tokens_of_json_are_the_same(value: object, indent: int) -> None:
    text = json.dumps({"value": value}, indent=indent)
    made = short(text)
    assert made is None or (TOKEN.findall(made) == TOKEN.findall(text) and json.loads(made) == json.loads(text))


@given(st.text(alphabet="ab \r\n\x1b[]0;31mK\x07\\", max_size=200))
def test_any_output_is_read_once_and_then_stays(text: str) -> None:
    made = short(text, "Bash", {"command": "make"})
    if made is not None:
        assert len(made) < len(text)
        again = short(made, "Bash", {"command": "make"})
        assert again is None or len(again) <= len(made)


CHANGE: Given = {"file_path": "/r/a.py", "old_string": "a", "new_string": "b"}
READ = ("Read", {"file_path": "/r/a.py"})
STATUS = ("Bash", {"command": "git status"})
ORDERED = ("get_order", {"id": 7})
EDIT = exchange("The file was updated.", "Edit", CHANGE, 5)
OTHER_EDIT = exchange(
    "The file was updated.", "Edit", {"file_path": "/r/b.py", "old_string": "a", "new_string": "b"}, 5
)
LOOK = exchange("1 passed", "Bash", {"command": "pytest -q"}, 5)
SHELL_EDIT = exchange("", "Bash", {"command": "sed -i s/a/b/ /r/a.py"}, 5)
UPDATE = exchange('{"ok": true}', "update_order", {"id": 7}, 5)


@pytest.mark.parametrize(
    ("later", "between", "repeats"),
    [
        (READ, [], True),
        (READ, [LOOK], True),
        (READ, [OTHER_EDIT], True),
        (READ, [EDIT], False),
        (READ, [SHELL_EDIT], False),
        (STATUS, [LOOK], True),
        (STATUS, [OTHER_EDIT], False),
        (ORDERED, [], True),
        (ORDERED, [UPDATE], False),
    ],
)
def test_sameness_behind_a_change_is_news(later: tuple[str, Given], between: list[Exchange], *, repeats: bool) -> None:
    assert is_repeat(exchange("line 1\nline 2", *later, 7), between) is repeats


def test_a_failure_is_no_repeat() -> None:
    failed = exchange("KeyError: 7", "Bash", {"command": "python a.py"}, 7, error=True)
    assert not is_repeat(failed, [])


def test_the_line_names_the_call_in_one_line() -> None:
    line = repeat_text(ToolCall("Bash", json.dumps({"command": "a\n" * 500}), "c1"))
    assert "Bash" in line
    assert "\n" not in line
    assert len(line) < 450
