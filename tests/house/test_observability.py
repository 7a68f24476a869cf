"""What is documented of the log is what is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from proxy.observing.events import CompactionEnded, End, Overflow, RequestEnded

if TYPE_CHECKING:
    import msgspec

DOCUMENT = (Path(__file__).parents[2] / "docs/observability.md").read_text("utf-8")
_CODE = re.compile(r"`([^`\n]+)`")


def rows(heading: str) -> dict[str, str]:
    """What a table says of each field, by the section that it stands in."""
    section = DOCUMENT.partition(f"\n### {heading}\n")[2].partition("\n### ")[0].partition("\n## ")[0]
    found = re.findall(r"^\| (`[^|]+) \| (.+) \|$", section, re.MULTILINE)
    return {name: meaning for names, meaning in found for name in _CODE.findall(names)}


@pytest.mark.parametrize(("heading", "event"), [("A request", RequestEnded), ("A compaction", CompactionEnded)])
def test_every_field_of_a_line_is_documented_and_no_other(heading: str, event: type[msgspec.Struct]) -> None:
    assert rows(heading).keys() == set(event.__struct_fields__)


@pytest.mark.parametrize(("field", "words"), [("end", get_args(End)), ("overflow", get_args(Overflow))])
def test_every_word_that_a_field_may_hold_is_documented(field: str, words: tuple[str, ...]) -> None:
    assert set(words) <= set(_CODE.findall(rows("A request")[field]))
