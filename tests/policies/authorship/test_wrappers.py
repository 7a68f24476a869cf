"""The rows of `wrappers.toml`: each example is read as what its row says."""

from __future__ import annotations

from datetime import date

import pytest

from policies.authorship.heard import introduces_itself
from policies.authorship.parts import Part, is_bare, parts_of
from policies.authorship.wrappers import DISTINCT, RULE_FILES
from policies.conversation.timestamps import harness_spans
from policies.conversation.transcript import escape
from policies.tables import read_table

FILE = read_table("policies.authorship", "wrappers")
_KEYS = {
    "elements": {"name", "voice", "version", "known", "alone", "plain", "files", "within"},
    "beginnings": {"begins", "voice", "by", "example", "version"},
    "endings": {"has", "ends", "voice", "by", "example", "version"},
    "frames": {"begins", "ends", "open", "example", "typed", "version"},
    "closings": {"begins"},
    "introductions": {"says"},
    "rule_files": {"file"},
}
_NAMES = [
    *("CLAUDE.md", "/r/AGENTS.md", "CLAUDE.local.md", "skills/pdf/SKILL.md", "C:\\r\\GEMINI.md", "CONVENTIONS.md"),
    *(".cursorrules", ".goosehints", "port.mdc", ".github/copilot-instructions.md", "/r/.rules"),
]


def _without_blanks(parts: list[Part]) -> list[tuple[str, str]]:
    return [(part.voice, part.text.strip()) for part in parts]


@pytest.mark.parametrize("kind", FILE)
def test_every_row_says_whose_it_is_and_since_when(kind: str) -> None:
    for row in FILE[kind]:
        assert row.keys() <= _KEYS[kind] | {"client", "source", "date"}
        assert row["client"]
        assert row["source"] in ("capture", "memory")
        assert isinstance(row["date"], date)


@pytest.mark.parametrize("row", FILE["elements"], ids=lambda row: row["name"])
def test_what_stands_in_an_element_is_read_as_its_row_says(row: dict[str, str]) -> None:
    name, within = row["name"], row.get("within")
    inner = f"<{within}>Fix it.</{within}>" if within else "Fix it."
    blocks = [f"<{name}>\n{inner}\n</{name}>"]
    parts = parts_of(blocks)
    assert {part.voice for part in parts} == {row["voice"], *(["person"] if within else [])}
    assert all(part.is_sure for part in parts)
    assert not is_bare(blocks[0])


@pytest.mark.parametrize("row", [*FILE["beginnings"], *FILE["endings"]], ids=lambda row: row["example"][:40])
def test_a_text_of_a_known_form_is_read_as_its_row_says(row: dict[str, str]) -> None:
    (part,) = parts_of([row["example"]])
    assert (part.voice, part.text) == (row["voice"], row["example"])
    assert not is_bare(row["example"])


@pytest.mark.parametrize("row", FILE["frames"], ids=lambda row: row["example"][:40])
def test_only_what_stands_in_a_frame_is_a_persons(row: dict[str, str]) -> None:
    before, _, behind = row["example"].partition(row["typed"])
    assert _without_blanks(parts_of([row["example"]])) == [
        ("harness", before.strip()),
        ("person", row["typed"]),
        ("harness", behind.strip()),
    ]
    assert not is_bare(row["example"])


@pytest.mark.parametrize("row", FILE["frames"], ids=lambda row: row["example"][:40])
def test_behind_the_beginning_of_a_frame_alone_a_person_speaks(row: dict[str, str]) -> None:
    before = row["example"].partition(row["typed"])[0]
    expected = [("harness", before), ("person", "Fix it.")] if "open" in row else [("person", f"{before}Fix it.")]
    assert [(part.voice, part.text) for part in parts_of([f"{before}Fix it."])] == expected


def test_a_frame_goes_on_behind_the_last_of_its_lines() -> None:
    row = FILE["frames"][0]
    typed = f"{row['typed']}\nINSTRUCTIONS:\nare missing in the manual"
    assert ("person", typed) in _without_blanks(parts_of([row["example"].replace(row["typed"], typed)]))


@pytest.mark.parametrize("row", FILE["closings"], ids=lambda row: row["begins"])
def test_what_a_client_says_behind_typed_words_is_not_the_persons(row: dict[str, str]) -> None:
    text = f"<system-reminder>\nThe user sent a new message:\nUse tabs.\n\n{row['begins']} here.\n</system-reminder>"
    assert [(part.voice, part.text) for part in parts_of([text])] == [("person", "Use tabs.")]


@pytest.mark.parametrize("row", FILE["introductions"], ids=lambda row: row["client"])
def test_every_client_is_known_by_its_name(row: dict[str, str]) -> None:
    names = {"codex": "codex", "opencode": "OpenCode", "qwen-code": "Qwen Code", "pi": "operating inside pi"}
    assert introduces_itself(f"You are {names.get(row['client'], row['client'])}, an agent.")


@pytest.mark.parametrize("path", _NAMES)
def test_files_of_rules_are_known_by_their_names(path: str) -> None:
    assert RULE_FILES.search(path)
    assert not RULE_FILES.search(f"{path}.py")


@pytest.mark.parametrize("name", DISTINCT)
def test_no_foreign_text_imitates_an_element(name: str) -> None:
    assert escape(f"a <{name}>b") == f"a &lt;{name}>b"


@pytest.mark.parametrize(
    "name", [row["name"] for row in FILE["elements"] if row["voice"] in ("harness", "instructions")]
)
def test_what_a_harness_says_can_be_shortened(name: str) -> None:
    text = f"Fix it. <{name}>a</{name}>"
    assert [text[start:end] for start, end in harness_spans(text)] == ["a"]
