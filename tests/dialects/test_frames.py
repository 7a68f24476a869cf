"""What stands around the items of a request is read once, and never makes another request of one."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.base import Dialect
from proxy.dialects.frames import Repeated, repeated_frame
from proxy.dialects.json_array import parse
from proxy.dialects.spans import ByteSpans
from proxy.dialects.table import CHAT, DIALECTS
from proxy.errors import InvalidJSONError

_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def _body(dialect: Dialect, items: str, model: str = "m", beside: str = "") -> bytes:
    named = f'{{"model": "{model}", "stream": true, "{dialect.array.name}" : [{items}] , "tools": [{json.dumps(_TOOL)}]'
    return (named + beside + "}").encode()


def _repeated(dialect: Dialect, body: bytes) -> Repeated:
    parsed = parse(body, dialect.array)
    assert parsed is not None
    found = repeated_frame(parsed, dialect, lambda model: f"encoding of {model}")
    assert found is not None
    return found


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "items", ['{"role": "user", "content": "b"}', ' {"a": "]"} ,\n{"b": [[]]} ', '{"x": "\\"}],"}']
)
def test_other_items_are_found_where_the_parser_finds_them(dialect: Dialect, items: str) -> None:
    known, body = _repeated(dialect, _body(dialect, '{"role": "user", "content": "a"}')), _body(dialect, items)
    found, expected = known.parse(body), parse(body, dialect.array)
    assert found is not None
    assert expected is not None
    assert ([*found.spans], found.array, found.text) == ([*expected.spans], expected.array, expected.text)
    assert found.envelope.fields == expected.envelope.fields
    assert known.frame.settings == dialect.settings(expected.envelope.fields)
    assert known.frame.measure.encoding == "encoding of m"


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("behind", [',{"b": [1]}', ' , {"a": "]"} ,\n{"b": "\\"],"} '])
def test_items_behind_those_that_are_known_are_found(dialect: Dialect, behind: str) -> None:
    first = _body(dialect, '{"a": 1} , {"b": 2}')
    known, parsed = _repeated(dialect, first), parse(first, dialect.array)
    assert parsed is not None
    body = _body(dialect, '{"a": 1} , {"b": 2}' + behind)
    found, expected = (
        known.longer(body, parsed.spans[-1][1], ByteSpans(parsed.spans), parsed.array[0]),
        parse(body, dialect.array),
    )
    assert found is not None
    assert expected is not None
    assert known.is_around(found)
    assert ([*found.spans], found.array, found.text) == ([*expected.spans], expected.array, expected.text)
    assert found.envelope.fields == expected.envelope.fields


@pytest.mark.parametrize("behind", ["", " {}", ",", ',{}], "messages": [{}', ",nil", "}"])
def test_what_is_not_behind_them_as_items_is_read_in_another_way(behind: str) -> None:
    first = _body(CHAT, '{"a": 1}')
    known, parsed = _repeated(CHAT, first), parse(first, CHAT.array)
    assert parsed is not None
    body = _body(CHAT, '{"a": 1}' + behind)
    assert known.longer(body, parsed.spans[-1][1], ByteSpans(parsed.spans), parsed.array[0]) is None
    assert (
        known.longer(_body(CHAT, '{"a": 1},{}'), parsed.spans[-1][1], ByteSpans(parsed.spans), parsed.array[0] + 1)
        is None
    )


@pytest.mark.parametrize(
    "body",
    [
        _body(CHAT, '{"role": "user"}', model="n"),
        _body(CHAT, '{"role": "user"}', beside=', "n": 2'),
        _body(CHAT, ""),
        _body(CHAT, "{},"),
        _body(CHAT, "{} {}"),
        _body(CHAT, '{"role": "user"}], "messages": [{}'),
        _body(CHAT, '{"role": "user"}')[:-1],
        _body(CHAT, '{"role": "user"}') + b"}",
        b"",
    ],
)
def test_anything_else_is_read_as_a_whole(body: bytes) -> None:
    assert _repeated(CHAT, _body(CHAT, "{}")).parse(body) is None


def test_a_long_frame_is_read_anew() -> None:
    body = _body(CHAT, "{}", beside=f', "metadata": "{"x" * 40_000}"')
    parsed = parse(body, CHAT.array)
    assert parsed is not None
    assert repeated_frame(parsed, CHAT, str) is None


@given(st.lists(_values, max_size=3), st.data())
def test_what_is_read_is_what_the_parser_reads(values: list[object], data: st.DataObject) -> None:
    """Of items that were changed somewhere."""
    items = bytearray(msgspec.json.encode(values)[1:-1])
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(items)))
        piece = data.draw(st.sampled_from([b"", b"]", b"[", b'"', b"],", b'"messages":[', b"{", b"}", b"\\", b"\xff"]))
        items[at : at + data.draw(st.integers(0, 1))] = piece
    body = _body(CHAT, "@").replace(b"@", bytes(items))
    found = _repeated(CHAT, _body(CHAT, "{}")).parse(body)
    if found is None:
        return
    try:
        expected = parse(body, CHAT.array)
    except InvalidJSONError as error:
        raise AssertionError("the parser refuses what was read") from error
    assert expected is not None
    assert (found.spans, found.array) == (expected.spans, expected.array)
