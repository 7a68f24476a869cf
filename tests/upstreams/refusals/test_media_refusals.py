"""What refusals of media say, in the words of providers and servers; and what is none."""

from __future__ import annotations

import json

import pytest

from proxy.upstreams.refusals.media_refusals import media_refusal

PAGE = "<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n<body>nginx</body>\r\n</html>"


def told(message: str, **more: object) -> bytes:
    return json.dumps(
        {"type": "error", "error": {"type": "invalid_request_error", "message": message, **more}}
    ).encode()


@pytest.mark.parametrize(
    ("status", "message", "what", "limit"),
    [
        (400, "messages: too many images and documents: 104 + 1 > 100", "pictures", 100),
        (400, "Too much media: 0 document pages + 107 images > 100", "pictures", 100),
        (400, "Too much media: 650 document pages + 3 images > 600", "pages", 600),
        (400, "Exceeded maximum number of images (50) in request.", "pictures", 50),
        (400, "At most 5 image(s) may be provided in one prompt.", "pictures", 5),
        (400, "This model supports a maximum of 10 images per request.", "pictures", 10),
        (500, "The number of images is 20, but the max allowed is 16", "pictures", 16),
        (400, "image dimensions exceed max allowed size for many-image requests: 2000 pixels", "wide", 2000),
        (400, "messages.3.content.1: image dimensions exceed max allowed size: 8000 pixels", "one", 8000),
        (400, "A maximum of 100 PDF pages may be provided.", "pages", 100),
        (400, "Exceeded limit on max bytes to request body : 6291456", "bytes", 6291456),
        (413, "Request exceeds the maximum size", "bytes", None),
        (400, "Unsupported image format: webp is not allowed", "one", None),
        (400, "Could not process image", "one", None),
    ],
)
def test_words(status: int, message: str, what: str, limit: int | None) -> None:
    refusal = media_refusal(status, told(message))
    assert refusal is not None
    assert (refusal.what, refusal.limit) == (what, limit)


@pytest.mark.parametrize("body", [b"", PAGE.encode(), b'{"error":{"message":"failed to parse request","code":""}}'])
def test_a_413_without_words_may_be_one(body: bytes) -> None:
    refusal = media_refusal(413, body)
    assert refusal is not None
    assert refusal.what == "bytes"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "prompt is too long: 210000 tokens > 200000 maximum"),
        (400, "This model's maximum context length is 128000 tokens."),
        (400, "tools: maximum of 128 tools"),
        (401, "At most 5 image(s) may be provided in one prompt."),
        (429, "Too many images per minute."),
        (200, "At most 5 image(s) may be provided in one prompt."),
        (400, ""),
    ],
)
def test_what_is_none(status: int, message: str) -> None:
    assert media_refusal(status, told(message)) is None


def test_what_a_model_answers_is_no_refusal() -> None:
    said = {"choices": [{"message": {"content": "At most 5 image(s) may be provided in one prompt."}}]}
    assert media_refusal(200, json.dumps(said).encode()) is None
