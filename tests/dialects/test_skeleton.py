"""What large bodies are parsed by says where the items lie in the body itself."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import bounds, json_array, skeleton
from proxy.dialects.skeleton import skeleton_of
from proxy.errors import InvalidJSONError

ARRAY = json_array.Array("messages", ["model"])
BASE64 = "QUJD" * 20_000

LONG = "QUJD" * 40
pieces = st.sampled_from(
    [LONG, LONG + "=", '"', "\\", '\\"', "/", " ", ";base64,", '"data":', "data:image/png", "\n", "é", "{", "],["]
)
texts = st.lists(pieces, max_size=6).map("".join)
values = st.recursive(
    texts | st.integers() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["data", "result", "x"]) | texts, inner)
    ),
    max_leaves=8,
)
items = st.dictionaries(st.sampled_from(["role", "content", "data"]), values, max_size=3)


@given(st.lists(items, max_size=4), st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")]), st.booleans())
def test_a_body_is_parsed_by_its_skeleton_as_it_is(
    messages: list[dict[str, object]], separators: tuple[str, str], is_ascii: bool
) -> None:
    body = json.dumps({"model": "m", "messages": messages}, separators=separators, ensure_ascii=is_ascii).encode()
    with pytest.MonkeyPatch.context() as patch:
        whole = json_array.parse(body, ARRAY)
        patch.setattr(bounds, "MOST_READ", 0)
        patch.setattr(skeleton, "_LEAST", 16)
        patch.setattr(skeleton, "_LOOKED_AT", 4)
        patch.setattr(bounds, "QUICK", 1 << 30)
        short = json_array.parse(body, ARRAY)
    assert (whole is None) == (short is None)
    if whole is not None and short is not None:
        assert (short.text, [*short.spans], short.array) == (body, [*whole.spans], whole.array)
        assert short.envelope.fields == whole.envelope.fields


@pytest.mark.parametrize(
    "value",
    [
        {"source": {"type": "base64", "data": BASE64}},
        {"image_url": "data:image/png;base64," + BASE64},
        {"image_url": {"url": "data:image/png;base64," + BASE64.replace("Q", "/")}},
        {"result": BASE64},
        {"input_audio": {"format": "wav", "data": BASE64}},
        {"file": {"file_data": "data:application/pdf;base64," + BASE64}},
    ],
)
def test_what_media_weigh_is_cut_out(value: object) -> None:
    body = json.dumps({"messages": [value]}).encode()
    assert len(skeleton_of(body).text) < 200


@pytest.mark.parametrize(
    "text",
    [
        "see data:image/png;base64," + BASE64 + " there",
        "data:image/png;base64,!" + BASE64,
        BASE64,
        'he said "data": "' + BASE64 + '" to me',
        "data:image/png;base64," + BASE64[:32_000],
    ],
)
def test_what_only_looks_like_media_counts_as_text(text: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    assert skeleton_of(body).text == body


def test_thousands_of_media_are_not_looked_for() -> None:
    body = json.dumps({"messages": [{"data": "QUJD" * 8_192} for _ in range(4_001)]}).encode()
    assert skeleton_of(body).text == body


@pytest.mark.parametrize("broken", [b'{"messages":[{"data":"%b"}', b'{"messages":[{"data":"%b"}]'])
def test_what_is_no_json_is_refused(broken: bytes) -> None:
    body = broken % (b"QUJD" * (bounds.MOST_READ // 4 + 1))
    with pytest.raises(InvalidJSONError):
        json_array.parse(body, ARRAY)


def test_texts_keep_their_bound() -> None:
    body = json.dumps({"messages": [{"content": "hello " * (bounds.MOST_READ // 6 + 1)}]}).encode()
    assert json_array.parse(body, ARRAY) is None
