"""What is documented of the log is what is written."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from proxy.telemetry.events import CompactionEnded, End, Overflow, RequestEnded
from proxy.telemetry.log_lines import LINES, CutOff, NearWindow, UpstreamChanged
from proxy.telemetry.notes import NOTES

if TYPE_CHECKING:
    import msgspec

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/reference/log.md").read_text("utf-8")
_CODE = re.compile(r"`([^`\n]+)`")


def rows(heading: str) -> dict[str, str]:
    """What a table says of each field, by the section that it stands in."""
    return table(DOCUMENT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0])


def table(section: str) -> dict[str, str]:
    found = re.findall(r"^\| (`[^|]+) \| (.+) \|$", section, re.MULTILINE)
    return {name: meaning for names, meaning in found for name in _CODE.findall(names)}


@pytest.mark.parametrize(("heading", "event"), [("A request", RequestEnded), ("A compaction", CompactionEnded)])
def test_every_field_of_a_line_is_documented_and_no_other(heading: str, event: type[msgspec.Struct]) -> None:
    assert rows(heading).keys() == set(event.__struct_fields__)


def others() -> dict[str, set[str]]:
    """Fields by event, of the table of all other events."""
    section = DOCUMENT.partition("\n## Other events\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| (.+?) \| .+ \|$", section, re.MULTILINE)
    return {name: set(_CODE.findall(fields)) for names, fields in found for name in _CODE.findall(names)}


def test_every_other_event_is_documented_with_its_fields() -> None:
    structs = {name: kind for kind, (_, name) in LINES.items() if kind is not CompactionEnded}
    structs |= {"near_window": NearWindow, "cut_off": CutOff}
    structs |= {"upstream_down": UpstreamChanged, "upstream_up": UpstreamChanged}
    fields = {name: set(kind.__struct_fields__) for name, kind in structs.items()}
    fields |= {str(name): set(kind.fields) for name, kind in NOTES.items() if kind.level is not None}
    fields["upstream_down"].discard("failures")
    fields["upstream_up"].discard("cause")
    assert {name: others()[name] for name in fields} == fields


def test_every_line_that_is_written_without_an_event_is_documented() -> None:
    for file in sorted((ROOT / "proxy").rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
                continue
            name, target = call.args[0], ast.unparse(call.func)
            if target in ("self._log.info", "self._log.warning") and isinstance(name, ast.Constant):
                fields = {keyword.arg for keyword in call.keywords if keyword.arg}
                assert fields <= others()[str(name.value)], f"{file.name}: {name.value}"


@pytest.mark.parametrize(("field", "words"), [("end", get_args(End)), ("overflow", get_args(Overflow))])
def test_every_word_that_a_field_may_hold_is_documented(field: str, words: tuple[str, ...]) -> None:
    assert set(words) <= set(_CODE.findall(rows("A request")[field]))
