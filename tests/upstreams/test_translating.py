"""A chat request on its way to litellm: what passes, what is refused, and a provider's error in OpenAI's shape."""

from __future__ import annotations

import gzip
import json
from codecs import BOM_UTF8

import pytest
from backports import zstd

from proxy.errors import InvalidJSONError, InvalidRequestError
from proxy.server.headers import Headers
from proxy.upstreams.litellm.translating import LEFT_OUT, PASSED, error_body, key_of, parameters


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": [], **fields}).encode()


def test_parameters_of_a_chat_completion_pass_and_null_is_none() -> None:
    assert parameters([], body(temperature=0.5, tools=None, top_k=3)) == {
        "model": "m",
        "messages": [],
        "temperature": 0.5,
        "top_k": 3,
    }


@pytest.mark.parametrize("name", sorted(LEFT_OUT))
def test_what_openai_keeps_its_books_with_is_left_out(name: str) -> None:
    assert name not in PASSED
    assert parameters([], body(**{name: "x"})) == {"model": "m", "messages": []}


@pytest.mark.parametrize("name", ["api_base", "mock_response", "drop_params", "Temperature", "", "x" * 1000])
def test_anything_else_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parameters([], body(**{name: 0}))
    assert refused.value.param == name[:64]


@pytest.mark.parametrize(
    "model", ["claude-sonnet-4-5", "amazon.nova-pro-v1:0", "meta-llama/Llama-3.1-8B", "gpt-4o@latest", "a+b_c"]
)
def test_models_have_names_like_these(model: str) -> None:
    assert parameters([], body(model=model))["model"] == model


@pytest.mark.parametrize(
    "model", ["", "../x", "a/../b", "a?b", "a#b", "a%2fb", "a b", "a\n", "ä", "/a", 7, None, "a" * 300]
)
def test_and_none_that_would_lead_elsewhere(model: object) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parameters([], body(model=model))
    assert refused.value.param == "model"


def test_compressed_bodies_are_read_and_broken_ones_refused() -> None:
    coded: Headers = [(b"content-encoding", b"gzip")]
    assert parameters(coded, gzip.compress(body()))["model"] == "m"
    assert parameters([(b"content-encoding", b"zstd")], zstd.compress(body()))["model"] == "m"
    assert parameters([], BOM_UTF8 + body())["model"] == "m"
    for headers, broken in ((coded, b"x"), ([], b"[]"), ([], b"{"), ([(b"content-encoding", b"br")], b"x")):
        with pytest.raises(InvalidJSONError):
            parameters(headers, broken)


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([(b"authorization", b"Bearer k")], "k"),
        ([(b"authorization", b"bearer  k ")], "k"),
        ([(b"authorization", b"Bearer k"), (b"x-api-key", b"other")], "k"),
        ([(b"authorization", b"Basic abc"), (b"x-api-key", b"k")], "k"),
        ([(b"api-key", b"k")], "k"),
        ([(b"authorization", b"Basic abc")], None),
        ([(b"authorization", b"Bearer ")], None),
        ([], None),
    ],
)
def test_the_key_is_the_one_that_the_request_carries(headers: Headers, key: str | None) -> None:
    assert key_of(headers) == key


@pytest.mark.parametrize(
    ("report", "message", "kind", "code"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}, "Busy", "overloaded_error", None),
        ({"error": {"code": 429, "message": "Busy", "status": "EXHAUSTED"}}, "Busy", "EXHAUSTED", None),
        ([{"error": {"code": 429, "message": "Busy", "status": "EXHAUSTED"}}], "Busy", "EXHAUSTED", None),
        ({"error": {"message": "Busy", "type": "tokens", "code": "rate"}}, "Busy", "tokens", "rate"),
        ({"error": "Busy"}, "Busy", "upstream_error", None),
        ({"message": "Busy"}, "Busy", "upstream_error", None),
        ({"Message": "Busy"}, "Busy", "upstream_error", None),
        ({"error": {"message": 7}}, "said", "upstream_error", None),
        ([], "said", "upstream_error", None),
        (7, "said", "upstream_error", None),
    ],
)
def test_an_error_keeps_the_providers_words(report: object, message: str, kind: str, code: str | None) -> None:
    expected = {"message": message, "type": kind, "param": None, "code": code}
    assert json.loads(error_body(json.dumps(report).encode(), "said", None)) == {"error": expected}


@pytest.mark.parametrize(("report", "message"), [(b"Bad gateway", "Bad gateway"), (b"", "said"), (b"\xff", "�")])
def test_an_error_that_is_text_is_its_message(report: bytes, message: str) -> None:
    assert json.loads(error_body(report, "said", "ours"))["error"]["message"] == message
    assert json.loads(error_body(report, "said", "ours"))["error"]["code"] == "ours"
