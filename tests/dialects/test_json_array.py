"""Chat requests as bytes: where messages lie, what is no JSON, and rebuilding around the client's own bytes."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decision.assemble import Injected, MergedMessage
from proxy.dialects import json_array, surrogates
from proxy.dialects.table import CHAT
from proxy.errors import InvalidJSONError
from tests.support.conversations import body_of, parsed, requests, user
from tests.support.timing import cpu_seconds


@given(requests())
def test_messages_are_found_where_they_stand_whatever_the_style(made: tuple[bytes, list[bytes]]) -> None:
    body, messages = made
    found = parsed(body)
    assert [body[start:end] for start, end in found.spans] == messages
    assert body[found.array[0] : found.array[0] + 1] == b"["
    assert body[found.array[1] - 1 : found.array[1]] == b"]"


@pytest.mark.requirement("R0 1.1")
@given(requests(), st.data())
def test_rebuilding_keeps_every_byte_but_those_of_the_messages_that_go(
    made: tuple[bytes, list[bytes]], data: st.DataObject
) -> None:
    body, messages = made
    found = parsed(body)
    kept = data.draw(st.lists(st.integers(0, len(messages) - 1), max_size=5))
    rebuilt = CHAT.rebuild(body, found, [*kept, Injected("a\nsummary")], {})
    injected = b'{"role":"user","content":"a\\nsummary"}'
    array = b"[" + b",".join([*(messages[i] for i in kept), injected]) + b"]"
    assert rebuilt == body[: found.array[0]] + array + body[found.array[1] :]


def test_replaced_messages_take_the_place_of_the_clients() -> None:
    body = body_of([user("one"), user("two")])
    rebuilt = CHAT.rebuild(body, parsed(body), [0, 1], {1: b'{"role":"user","content":"2"}'})
    assert json.loads(rebuilt)["messages"] == [user("one"), user("2")]


IMAGE = {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}


@pytest.mark.parametrize(
    ("content", "merged"),
    [
        ("two", "record\n\ntwo"),
        ("", "record\n\n"),
        (None, "record"),
        ([IMAGE], [{"type": "text", "text": "record"}, IMAGE]),
        ([], [{"type": "text", "text": "record"}]),
    ],
)
def test_a_merged_message_begins_with_the_record_and_keeps_all_else(content: object, merged: object) -> None:
    message = {"role": "user", "name": "ann", "content": content, "seed": 12345678901234567890123}
    body = body_of([user("one"), message])
    rebuilt = json.loads(CHAT.rebuild(body, parsed(body), [MergedMessage("record", 1)], {}))["messages"]
    assert rebuilt == [message | {"content": merged}]


M = '[{"role":"user","content":"a"}]'
NESTED = ",".join([f'{{"messages":{M}}}'] * 20)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("null", "no object"),
        ("[]", "no object"),
        ('"text"', "no object"),
        ("{}", "no messages"),
        ('{"messages":[]}', "nothing to compact"),
        ('{"messages":null}', "no list"),
        ('{"messages":"a"}', "no list"),
        ('{"messages":{"role":"user"}}', "no list"),
        (f'{{"messages":{M},"messages":[]}}', "the second one empty"),
        (f'{{"messages":1,"messages":{M}}}', "the first one is none"),
        (f'{{"messages":{M},"messages":1}}', "the second one is none"),
        (f'{{"messages":{M},"messages":{M},"x":[{NESTED}]}}', "more places of the key than are looked at"),
    ],
)
def test_shapes_that_are_not_certain_are_not_understood(body: str, reason: str) -> None:
    assert json_array.parse(body.encode(), CHAT.array) is None, reason


@pytest.mark.parametrize(
    "marked",
    [
        '{"mess\\u0061ges":@[{}]}',
        '{"\\u006D\\u0065ssage\\u0073" :\n@[{}]}',
        f'{{"messages":{M},"messages":@{M}}}',
        f'{{"messages":{M},"messages":@[{{}}]}}',
        f'{{"messages":[{{}}],"messages":@{M},"stream":true}}',
        f'{{"messages":[],"messages":@{M}}}',
        f'{{"messages":{M},"mess\\u0061ges":@{M}}}',
        f'{{"mess\\u0061ges":{M},"messages":@{M}}}',
        f'{{"metadata":{{"messages":{M}}},"messages":@{M}}}',
        f'{{"messages":@{M},"metadata":{{"messages":{M}}}}}',
        f'{{"a":[{{"messages":{M}}}],"messages":@{M}}}',
    ],
)
def test_of_a_key_that_comes_twice_the_last_counts_however_it_is_escaped(marked: str) -> None:
    body = marked.replace("@", "").encode()
    found = parsed(body)
    assert found.array[0] == marked.index("@")
    rebuilt = CHAT.rebuild(body, found, [Injected("a summary")], {})
    assert json.loads(rebuilt)["messages"] == [user("a summary")]


@pytest.mark.parametrize("twice", ["model", "stream", "max_tokens"])
def test_every_field_that_comes_twice_has_its_last_value(twice: str) -> None:
    values = {"model": ("a", "b"), "stream": (False, True), "max_tokens": (7, 9)}[twice]
    escaped = f"\\u{ord(twice[0]):04X}{twice[1:]}"
    for keys in ((twice, twice), (twice, escaped), (escaped, twice)):
        members = [f'"{key}":{json.dumps(value)}' for key, value in zip(keys, values, strict=True)]
        body = f'{{{members[0]},"messages":{M},{members[1]}}}'.encode()
        settings = CHAT.settings(parsed(body).envelope.fields)
        assert {"model": settings.model, "stream": settings.stream, "max_tokens": settings.max_output}[twice] == values[
            1
        ]
        assert json.loads(json_array.with_fields(body, {}, without=()))[twice] == values[1]
        assert twice != "model" or json_array.model_of(body) == "b"


@pytest.mark.parametrize(("number", "understood"), [(json_array.MAX_ITEMS, True), (json_array.MAX_ITEMS + 1, False)])
def test_more_messages_than_any_conversation_has_are_not_looked_at(number: int, understood: bool) -> None:
    assert (json_array.parse(body_of([user("a")] * number), CHAT.array) is not None) == understood


@pytest.mark.parametrize(
    "marked",
    [
        f'{{"x":{{"messages":[{{}}]}},"messages":@{M}}}',
        f'{{"x":"\\"messages\\":[","messages":@{M}}}',
        f'{{"x":"messages","messages":@{M}}}',
        f'{{"x":{{"messages":1}},"messages":@{M}}}',
        f'{{"messages" :\n@{M},"x":{{"messages":[{{}}]}}}}',
        f'{{"messages":@{M},"x":{{"messages":[{{}}]}}}}',
    ],
)
def test_what_only_looks_like_the_messages_is_passed_over(marked: str) -> None:
    assert parsed(marked.replace("@", "").encode()).array[0] == marked.index("@")


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "Input data was truncated"),
        (b"{}x", "trailing characters"),
        (b'{"messages":[1,]}', "trailing comma"),
        (b'{"t":NaN}', "invalid character"),
        (b'{"t":1e}', "invalid number"),
        (b"{'a':1}", "object keys must be strings"),
        (b'{"a":"\x00"}', "invalid character"),
        (b'\xef\xbb\xbf{"messages":[]}', "invalid character"),
        ('{"messages":[]}'.encode("utf-16"), "invalid character"),
        (b'{"x":' + nested(100_000) + b"}", "nested too deeply"),
    ],
)
def test_what_is_no_json_is_refused_with_the_reason(body: bytes, message: str) -> None:
    with pytest.raises(InvalidJSONError, match=message):
        json_array.parse(body, CHAT.array)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"content":"\xff"}', "not valid UTF-8"),
        (b'{"content":"\xed\xa0\x80"}', "not valid UTF-8"),  # a surrogate in UTF-8 is none
        (nested(101), "more than 100 levels"),
        (nested(100_000), "nested too deeply"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "more than 100 levels"),
    ],
)
def test_a_value_that_cannot_be_read_says_why(raw: bytes, message: str) -> None:
    with pytest.raises(InvalidJSONError, match=message):
        json_array.decode(raw)


@pytest.mark.parametrize("number", [b"9" * 5_000, b"1e999", b"-1E+400"])
def test_a_number_that_is_too_large_is_json_and_not_understood(number: bytes) -> None:
    with pytest.raises(json_array.HugeNumberError):
        json_array.decode(b'{"content":' + number + b"}")
    assert json_array.scalar(msgspec.Raw(number)) == []


def test_a_hundred_levels_are_not_too_deep() -> None:
    assert json_array.decode(b'{"a":' + nested(99) + b"}")


def test_large_integers_stay_what_they_are() -> None:
    assert json_array.decode(b"123456789012345678901234567890") == 123456789012345678901234567890


@pytest.mark.parametrize(
    ("written", "readable"),
    [
        (r"\ud83d", r"\ufffd"),
        (r"\uDC00", r"\ufffd"),
        (r"\ud83d\ude00", r"\ud83d\ude00"),
        (r"\uD83D\uDE00\ud83d", r"\uD83D\uDE00\ufffd"),
        (r"\ud83d\ud83d\ude00", r"\ufffd\ud83d\ude00"),
        (r"\ude00\ud83d", r"\ufffd\ufffd"),
        (r"\\ud83d", r"\\ud83d"),
        (r"\\\ud83d", r"\\\ufffd"),
        (r"\\\\ud83d\ude00", r"\\\\ud83d\ufffd"),
        (r"\\ud83d\\ude00", r"\\ud83d\\ude00"),
        (r"\ud83d\n", r"\ufffd\n"),
        (r"\ud7ff\ue000", r"\ud7ff\ue000"),
        (r"\ud83d\\ude00", r"\ufffd\\ude00"),
    ],
)
def test_halves_of_pairs_are_made_readable_in_place_and_nothing_else(written: str, readable: str) -> None:
    assert surrogates.readable(written.encode()) == readable.encode()


ESCAPES = st.sampled_from(["\\\\", "\\n", '\\"', "\\ud83d", "\\ude00", "\\uD83D", "\\u0041", "ud83d", "a", "é"])


@given(st.lists(ESCAPES, max_size=12).map("".join))
def test_whatever_is_escaped_becomes_readable_at_the_same_length(text: str) -> None:
    body = f'{{"messages":[{{"role":"user","content":"{text}"}}],"user":"{text}"}}'.encode()
    readable = surrogates.readable(body)
    assert len(readable) == len(body)
    assert json_array.parse(readable, CHAT.array) is not None
    told = json.loads(body)["user"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert json.loads(readable)["user"] == told


@pytest.mark.parametrize(
    ("content", "crowded"),
    [
        (b"[" + b"{}," * 9_000 + b"{}]", False),
        (b"[" + b"{}," * 10_000 + b"{}]", True),
        (b"[" * 95 + b"[]," * 10_000 + b"[]" + b"]" * 95, True),
        (b'"' + b"[{" * 20_000 + b'"', False),
        (rb'["\"' + b"[{" * 20_000 + rb'\\",{}]', False),
        (rb'["\\",' + b"{}," * 10_000 + b'"]"]', True),
        (b"[" + b"0," * 20_000 + b"0]", False),
    ],
    ids=["few", "many", "deep", "in a text", "behind an escaped quote", "behind a backslash", "numbers"],
)
def test_a_message_of_too_many_values_is_known_without_decoding_it(content: bytes, crowded: bool) -> None:
    assert json_array.is_crowded(b'{"role":"user","content":' + content + b"}") == crowded


def test_looking_for_values_goes_over_a_text_once() -> None:
    steps = sum(1 for _ in json_array._openings(b'{"a":"' + b"[{" * 5_000 + b'"}'))
    assert steps <= 3


@pytest.mark.parametrize("value", [b"[" + b"0," * 5_000 + b"0]", b'{"a":"' + b"a" * 5_000 + b'"}'])
def test_a_long_list_in_the_place_of_a_word_is_not_read(value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "decode", None)
    assert json_array.scalar(msgspec.Raw(value)) == []


@pytest.mark.parametrize(
    ("value", "path", "text"),
    [
        (b'"t"', (), "t"),
        (b'{"id":"t"}', ("id",), "t"),
        (b'{"id":"s","id":"t"}', ("id",), "t"),
        (b'{"a":[1e999],"id":"t"}', ("id",), "t"),
        (b'{"a":{"id":"t"}}', ("a", "id"), "t"),
        (b'{"id":7}', ("id",), None),
        (b'{"id":null}', ("id",), None),
        (b'{"a":1}', ("id",), None),
        (b'["id"]', ("id",), None),
        (b'{"id":"\xff"}', ("id",), None),
        (b"", ("id",), None),
    ],
)
def test_a_text_inside_of_objects_is_read_and_nothing_else(
    value: bytes, path: tuple[str, ...], text: str | None
) -> None:
    assert json_array.text_at(msgspec.Raw(value), path) == text


def test_a_large_body_is_rebuilt_as_a_small_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"messages": [{"a": 1}, {"b": "x"} , {"c": 3}], "model": "m"}'
    parsed = json_array.parse(body, json_array.Array("messages", ["model"]))
    assert parsed is not None
    small = json_array.rebuild(body, parsed, [2, b'{"d":4}', 0])
    monkeypatch.setattr(json_array.bounds, "MOST_SKIPPED", 0)
    assert json_array.rebuild(body, parsed, [2, b'{"d":4}', 0]) == small
    assert small == b'{"messages": [{"c": 3},{"d":4},{"a": 1}], "model": "m"}'


def test_a_body_that_can_be_read_is_not_searched_for_surrogates(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[bytes] = []
    monkeypatch.setattr(surrogates, "readable", searched.append)
    monkeypatch.setattr(surrogates, "has_many", searched.append)
    assert json_array.model_of(b'{"messages": ["\\ud83d\\ude00"], "model": "m"}') == "m"
    assert searched == []


def test_a_body_of_lone_surrogates_names_no_model_and_is_given_up_soon() -> None:
    body = b'{"messages": ["' + b"\\ud83d" * 1_300_000 + b'"], "model": "m"}'
    assert json_array.model_of(body) == ""
    assert cpu_seconds(lambda: json_array.model_of(body), enough=0.3) < 0.3
