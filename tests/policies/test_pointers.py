"""Results that only point to an earlier one: the rows of `pointers.toml`, and what is found for a pointer."""

from __future__ import annotations

import json
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.conversation import Span
from policies.conversation.transcript import ToolCall, Utterance
from policies.pointers import (
    HOLDS,
    LONGEST,
    Asked,
    Exchange,
    Place,
    Referent,
    Weighed,
    block_in,
    choose,
    needle_of,
    pointer_in,
    referent_of,
    short_text,
    whole_text,
)
from policies.tables import read_table
from tests.support.conversations import assistant, conversation, user
from tests.support.conversations import tool as result_of

ROWS = read_table("policies", "pointers")["pointers"]
_KEYS = {"client", "source", "date", "holds", "tool", "arguments", "example"}
STUB = "File unchanged since last read. Refer to that instead of re-reading."
ASKED = Asked("", "/r/a.py", ())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['client']} {row['example'][:30]}")
def test_every_row_says_whose_it_is_and_is_read_as_a_pointer(row: dict[str, str]) -> None:
    assert row.keys() - {"version", "says", "fields"} == _KEYS
    assert ("says" in row) != ("fields" in row)
    assert row["source"] in ("client", "issue", "memory")
    assert isinstance(row["date"], date)
    assert row["holds"].encode() in HOLDS
    assert row["holds"] in json.dumps({"content": row["example"]})
    pointer = pointer_in(row["example"], ToolCall(row["tool"], row["arguments"]))
    assert pointer is not None
    assert not pointer.rest
    assert (pointer.block is not None) == ("path" in row.get("says", ""))
    assert needle_of(pointer.asked)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['client']} {row['example'][:30]}")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Bash", '{"command": "cat /r/a.py"}'),
        ("Write", '{"file_path": "/r/a.py", "content": "x"}'),
        ("Task", '{"prompt": "read"}'),
        ("mcp__x__query", "{}"),
    ],
)
def test_only_a_tool_that_reads_points(row: dict[str, str], name: str, arguments: str) -> None:
    assert pointer_in(row["example"], ToolCall(name, arguments)) is None


@pytest.mark.parametrize(
    "text",
    [
        f"     1→{STUB}",
        f"The client says: {STUB}",
        f"{STUB}\n" + "x" * LONGEST,
        '{"status": "unchanged"}',
        '{"status": "unchanged", "dedup": true, "content_returned": true}',
        "[Old tool result content cleared]",
        "",
    ],
)
def test_words_of_a_pointer_elsewhere_are_none(text: str) -> None:
    assert pointer_in(text, ToolCall("Read", '{"file_path": "/r/a.py"}')) is None


def test_what_stands_behind_a_pointer_stays() -> None:
    pointer = pointer_in(f"{STUB}\n<system-reminder>Be brief.</system-reminder>", ToolCall("Read", '{"path": "a"}'))
    assert pointer is not None
    assert pointer.rest == "\n<system-reminder>Be brief.</system-reminder>"


class History:
    """Calls with their results, as they are made; each takes two messages."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def call(self, tool: str, result: str = "ok", /, *, error: bool | None = None, **arguments: object) -> int:
        made = 2 * len(self.exchanges)
        call = ToolCall(tool, json.dumps(arguments), f"c{made}")
        answer = Utterance(made + 1, "tool", result, answers=call.id, tool=tool, error=error)
        self.exchanges.append(Exchange(call, made, made + 1, 0, answer))
        return made

    def read(self, text: str, path: str = "/r/a.py", **part: object) -> int:
        return self.call("Read", text, file_path=path, **part)

    def edit(self, old: str, new: str, path: str = "/r/a.py", **more: object) -> int:
        return self.call("Edit", "The file has been updated.", file_path=path, old_string=old, new_string=new, **more)

    def referent(self, asked: Asked = ASKED) -> Referent | None:
        return referent_of(asked, reversed(self.exchanges))


def test_the_newest_reading_is_the_referent() -> None:
    history = History()
    history.read("old")
    at = history.read("new")
    history.read("other", path="/r/b.py")
    history.read(STUB)
    found = history.referent()
    assert found == Referent(Place(at + 1, 0), "read", "new", (at + 1,))


def test_the_asked_range_comes_before_the_whole_file_and_another_range_is_none() -> None:
    history, asked = History(), ASKED._replace(part=(("limit", "10"), ("offset", "5")))
    history.read("another range", offset=50, limit=10)
    assert history.referent(asked) is None
    whole = history.read("whole")
    assert (found := history.referent(asked)) is not None
    assert found.place.position == whole + 1
    ranged = history.read("range", offset=5, limit=10)
    history.read("whole again")
    assert (found := history.referent(asked)) is not None
    assert found.place.position == ranged + 1
    assert history.referent(ASKED) is not None


@pytest.mark.parametrize("path", ["/r/./a.py", "/r/b/../a.py", "\\r\\a.py"])
def test_a_path_may_be_written_in_another_way(path: str) -> None:
    history = History()
    history.read("text", path=path)
    assert history.referent() is not None


def test_edits_since_then_are_quoted_in_their_order() -> None:
    history = History()
    history.read("one two")
    history.edit("one", "1")
    history.call("Edit", "no match", error=True, file_path="/r/a.py", old_string="x", new_string="y")
    edits = [{"old_string": "two", "new_string": "2"}, {"old_string": "1", "new_string": "eins"}]
    history.call("MultiEdit", "updated", file_path="/r/a.py", edits=edits)
    history.edit("two", "zwei", path="/r/b.py")
    found = history.referent()
    assert found is not None
    assert [(edit.old, edit.new) for edit in found.edits] == [("one", "1"), ("two", "2"), ("1", "eins")]
    text = whole_text(found, "")
    assert "one two" in text
    assert text.index("[edit 1, old text]\none") < text.index("[edit 1, new text]\n1") < text.index("[edit 2, old")


def test_a_file_that_was_written_is_its_own_referent() -> None:
    history = History()
    history.read("before")
    at = history.call("Write", "File created successfully.", file_path="/r/a.py", content="after")
    history.edit("after", "last")
    found = history.referent()
    assert found is not None
    assert (found.place, found.how, found.text) == (Place(at, -1), "wrote", "after")
    assert len(found.edits) == 1


@pytest.mark.parametrize(
    "command", ["sed -i s/a/b/ /r/a.py", "echo x > /r/a.py", "cd /r && mv a.py b.py", "rm /r/a.py"]
)
def test_behind_a_change_that_no_call_quotes_nothing_is_a_referent(command: str) -> None:
    history = History()
    history.read("text")
    history.call("Bash", "", command=command)
    assert history.referent() is None
    history.read("later")
    assert history.referent() is not None


def test_failed_readings_and_pointers_are_no_referents() -> None:
    history = History()
    history.call("Read", "File does not exist.", error=True, file_path="/r/a.py")
    history.read(STUB)
    history.call("Grep", "a.py:1:x", pattern="x", path="/r/a.py")
    assert history.referent() is None


def test_a_tool_that_reads_no_file_is_told_by_its_arguments() -> None:
    history = History()
    at = history.call("skill_view", '{"content": "pdf"}', name="pdf")
    history.call("skill_view", '{"content": "docx"}', name="docx")
    pointer = pointer_in(ROWS[-1]["example"], ToolCall("skill_view", '{"name": "pdf"}'))
    assert pointer is not None
    assert (found := history.referent(pointer.asked)) is not None
    assert found.place.position == at + 1


BLOCKS = (
    "<system-reminder>\n# claudeMd\n\nContents of /r/CLAUDE.md (project instructions):\n\nNever push.\n\n"
    "Contents of /r/b.md (more):\n\nBe brief.\n# currentDate\nToday.\n</system-reminder>"
)


@pytest.mark.parametrize(("path", "block"), [("/r/CLAUDE.md", "Never push."), ("/r/b.md", "Be brief."), ("/r/b", None)])
def test_a_block_of_a_file_is_found(path: str, block: str | None) -> None:
    assert block_in(BLOCKS, path) == block


def test_what_does_not_fit_is_visibly_shortened() -> None:
    long = Referent(Place(1, 0), "read", "begin " + "x" * 30_000 + " end", (1,))
    short = short_text(long, "\nrest")
    assert len(short) < 6_000
    assert "shortened; read the lines you need with offset and limit" in short
    assert "begin " in short
    assert short.endswith(" end\nrest")
    brief = Referent(Place(1, 0), "read", "text", (1,))
    assert short_text(brief, "") == whole_text(brief, "")


def _weighed(position: int, referent: int, whole: int = 100, short: int = 10) -> Weighed:
    return Weighed(position, 0, Place(referent, 0), whole, short)


def test_the_first_pointer_in_the_prompt_gets_the_text() -> None:
    pointers = [_weighed(5, 1), _weighed(9, 1), _weighed(7, 3)]

    def chosen(covered: int, room: int = 1_000) -> tuple[list[int], list[int]]:
        found = choose(pointers, covered, lambda place: place.position < covered, lambda _: 500, room)
        return [one.position for one in found.wholes], [one.position for one in found.shorts]

    assert chosen(0) == ([], [])
    assert chosen(2) == ([5], [])
    assert chosen(4) == ([5, 7], [])
    assert chosen(6) == ([7, 9], [])
    assert chosen(4, room=599) == ([], [5, 7])
    assert chosen(4, room=610) == ([5], [7])
    assert chosen(10) == ([], [])


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8), st.integers(1, 90)), max_size=8),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_a_cut_weighs_what_it_puts_back(made: list[tuple[int, int, int]], covered: int, cut: int) -> None:
    weights: dict[int, int] = {}
    pointers = [_weighed(at + more, at, weights.setdefault(at, whole), 1) for at, more, whole in made]
    pointers = [*{one.position: one for one in pointers}.values()]

    def chosen(covered: int) -> tuple[int, tuple[Span, ...]]:
        found = choose(pointers, covered, lambda place: place.position < covered, lambda _: 0, 10_000)
        assert not found.shorts
        return sum(one.whole for one in found.wholes if one.position >= max(covered, cut)), found.spans

    cut = max(cut, covered)
    said = [user("hi"), *(each for at in range(10) for each in (assistant(None, f"c{at}"), result_of(f"c{at}")))]
    plain = conversation(said)
    carried, spans = chosen(covered)
    expected = sum(one.whole for one in choose(pointers, cut, lambda p: p.position < cut, lambda _: 0, 10_000).wholes)
    assert carried + plain.with_spans(spans).kept_tokens(cut) - plain.kept_tokens(cut) == expected


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8)), max_size=8), st.integers(0, 20), st.integers(0, 900))
def test_later_pointers_change_nothing_before_them(made: list[tuple[int, int]], covered: int, room: int) -> None:
    pointers = [*{at + more: _weighed(at + more, at) for at, more in made}.values()]
    everything = choose(pointers, covered, lambda p: p.position < covered, lambda at: 20 * at, room)
    for one in pointers:
        earlier = [each for each in pointers if each.position <= one.position]
        part = choose(earlier, covered, lambda p: p.position < covered, lambda at: 20 * at, room)
        assert part.wholes == tuple(each for each in everything.wholes if each in earlier)
        assert part.shorts == tuple(each for each in everything.shorts if each in earlier)
