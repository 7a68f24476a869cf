"""What is a name: read off its spelling alone, in any language."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.record.names import NamedText, Names, Phrases, has_name, names_in, place_of

NAMES = {
    "src/app/fields.py": {"src/app/fields.py"},
    "see fields.py: the rest": {"fields.py"},
    "/var/log/order and ./run.sh or ../x/y1": {"/var/log/order", "./run.sh", "../x/y1"},
    "getUser get_user GetUser HTTPServer __init__": {"getUser", "get_user", "GetUser", "HTTPServer", "__init__"},
    "get https://example.com/a/b?c=1, not http://example.com": {"https://example.com/a/b"},
    "os.path.join(a, b)": {"os.path.join"},
    "--dry-run -name": {"--dry-run", "-name"},
    "deadbee7 4OG6T3 HAT123 1234": {"deadbee7", "4OG6T3", "HAT123", "1234"},
    r"C:\new_dir\readme_x.txt": {"new_dir", "readme_x.txt"},
    r'row_a\nrow_b "\nself.rows"': {"row_a", "nrow_b"},
    "文件foo_bar.py在这里": {"foo_bar.py"},
    "sophia_silva_7557,": {"sophia_silva_7557"},
}
ORDINARY = [
    "Hello, world",
    "e.g. this, i.e. that",
    "don't",
    "2024-05-01",
    "2026-11-01T08",
    "123",
    "a_b",
    "API",
    "well-known",
    "-v",
    "x" * 200,
    r'write("\nExpected: ")',
    r"write('\tself.rows')",
]


@pytest.mark.parametrize("text", NAMES)
def test_a_name_is_told_by_its_spelling(text: str) -> None:
    assert names_in(text) == NAMES[text]


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_word_is_no_name(text: str) -> None:
    assert names_in(text) == set()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("test_cmd", 0),
        ("run test_cmd now", 4),
        ("test_cmd_ask", -1),
        ("my_test_cmd", -1),
        ("a.test_cmd.b", 2),
        ("", -1),
    ],
)
def test_a_name_stands_where_no_letter_is_beside_it(text: str, place: int) -> None:
    assert place_of(text, "test_cmd") == place
    assert has_name(text, "test_cmd") == (place >= 0)
    assert Names([text]).contains("test_cmd") == (place >= 0)


@given(st.text(alphabet="ab_/.- \n", max_size=30), st.text(alphabet="ab_/.-", min_size=1, max_size=6))
def test_a_text_that_grows_has_the_names_that_stand_in_it(text: str, name: str) -> None:
    grown = NamedText(text)

    assert grown.contains(name) == (place_of(text, name) >= 0)
    grown.add(name)
    assert grown.contains(name)


@given(st.lists(st.text("ab_.é端", min_size=1, max_size=4), max_size=6), st.text("ab_. é端", max_size=20))
def test_phrases_are_found_as_each_of_them_is_found(phrases: list[str], text: str) -> None:
    assert Phrases(phrases).occur_in(text) == any(has_name(text, phrase) for phrase in phrases)
