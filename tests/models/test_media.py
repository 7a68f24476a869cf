"""What media cost, by the providers' published examples, and in bounded time whatever is sent."""

from __future__ import annotations

import base64
import struct
import time
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.models.media import KINDS, family_of, media_tokens, pages_of
from tests.support.conversations import ANYTHING, Json, count
from tests.support.images import data_url, gif, png

PDF = b"%PDF-1.7\n" + b"<< /Type /Pages /Count 3 >>\n" + b"<< /Type /Page >> << /Type/Page\n>> << /Type /Page/X 1 >>"


def tokens(part: Json, model: str = "gpt-4o") -> int:
    return media_tokens(part, count, family_of(model))


def image(width: int, height: int, detail: str = "auto") -> Json:
    return {"type": "image_url", "image_url": {"url": data_url(png(width, height)), "detail": detail}}


def packed_pdf(pages: int, filtered: bytes = b"/FlateDecode") -> bytes:
    """As most programs write one today: its pages lie in compressed streams of objects, ten in each."""
    parts = [b"%PDF-1.7\n"]
    for first in range(0, pages, 10):
        objects = b" ".join(b"<</Type/Page/Parent 2 0 R/N %d>>" % page for page in range(first, min(first + 10, pages)))
        packed = zlib.compress(objects) if filtered == b"/FlateDecode" else bytes(60)
        head = b"<< /Type /ObjStm /N 10 /First 60 /Length %d /Filter %b >>\nstream\r\n" % (len(packed), filtered)
        parts += [b"%d 0 obj\n" % first, head, packed, b"\nendstream\nendobj\n"]
    return b"".join(parts)


def file(data: bytes, kind: str = "application/pdf") -> Json:
    return {"type": "file", "file": {"filename": "f", "file_data": data_url(data, kind)}}


def wav(seconds: int, rate: int = 24_000) -> bytes:
    head = b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, rate * 2, 2, 16) + b"data\0\0\0\0"
    return head + bytes(seconds * rate * 2)


@pytest.mark.parametrize(
    ("model", "width", "height", "detail", "expected"),
    [
        ("gpt-4o", 1024, 1024, "high", 765),  # OpenAI's first example: 768 x 768, 4 tiles
        ("gpt-4o", 2048, 4096, "high", 1105),  # its second: 768 x 1536, 6 tiles
        ("gpt-4o", 4096, 8192, "low", 85),  # its third
        ("gpt-4.1", 4096, 2048, "auto", 1105),
        ("gpt-4o", 512, 512, "auto", 255),
        ("gpt-4o", 513, 512, "auto", 425),
        ("gpt-4o", 1, 1, "auto", 255),
        ("gpt-4o", 16_383, 1, "auto", 765),
        ("openai/gpt-4o-mini-2024-07-18", 1024, 1024, "high", 2833 + 4 * 5667),
        ("gpt-4o-mini", 1024, 1024, "low", 2833),
        ("o4-mini", 1024, 1024, "auto", 1762),  # OpenAI's: 1024 patches, times 1.72
        ("gpt-4.1-mini", 1800, 2400, "auto", 2353),  # OpenAI's: 1452 patches, times 1.62
        ("gpt-4.1-nano-2025-04-14", 1024, 1024, "auto", 2520),
        ("gpt-5-mini", 1024, 1024, "low", 415),
        ("gpt-5-nano", 100_000, 10, "auto", 3779),
        ("gpt-5", 1024, 1024, "auto", 70 + 4 * 140),
        ("gpt-5.1-chat", 1024, 1024, "low", 70),
        ("gpt-5.2", 4000, 4000, "auto", 1826),  # 39 x 39 patches, times 1.2
        ("gpt-5.4", 4000, 4000, "auto", 3000),
        ("gpt-5.4", 3200, 3200, "original", 12_000),
        ("o3", 1024, 1024, "auto", 75 + 4 * 150),
        ("claude-sonnet-4-5", 200, 200, "auto", 54),  # Anthropic's examples
        ("anthropic/claude-3-5-sonnet-20241022", 1000, 1000, "auto", 1334),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 1092, 1092, "auto", 1590),
        ("claude-sonnet-4-5", 8000, 8000, "auto", 1600),
        ("claude-opus-4-7", 2000, 1500, "auto", 4000),
        ("claude-opus-4.7", 8000, 8000, "auto", 4784),
        ("claude-sonnet-5", 8000, 8000, "auto", 4784),
        ("gemini-2.5-pro", 384, 384, "auto", 258),
        ("gemini-2.5-flash", 960, 540, "auto", 6 * 258),  # Google's example: tiles of 360
        ("google/gemini-3-pro", 4000, 4000, "auto", 1120),
        ("some-other-model", 1024, 1024, "auto", 765),
    ],
)
def test_an_image_costs_what_its_provider_says(model: str, width: int, height: int, detail: str, expected: int) -> None:
    assert tokens(image(width, height, detail), model) == expected


B64 = base64.b64encode(gif(512, 512)).decode()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": data_url(gif(512, 512))},
        {"type": "input_image", "image_url": data_url(gif(512, 512)), "detail": "high"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": B64}},
        {"type": "file", "file": {"file_data": data_url(gif(512, 512))}},
    ],
)
def test_every_dialects_image_is_read(part: Json) -> None:
    assert tokens(part) == 255


@pytest.mark.parametrize("url", ["https://example.com/a.png", "", None, 7, [], {}])
def test_an_image_that_cannot_be_seen_counts_as_a_screenshot(url: object) -> None:
    assert tokens({"type": "image_url", "image_url": {"url": url}}) == 1105


@pytest.mark.parametrize(
    ("part", "model", "expected"),
    [
        ({"data": base64.b64encode(wav(10)).decode(), "format": "wav"}, "gpt-4o-audio-preview", 100),
        ({"data": base64.b64encode(wav(10)).decode(), "format": "wav"}, "gemini-2.5-pro", 320),
        ({"data": "A" * 160_000, "format": "mp3"}, "gpt-4o-audio-preview", 300),  # half a minute of 32 kbit/s
        ({"data": "A" * 64_000, "format": "pcm16"}, "gpt-4o-audio-preview", 10),
        ({"data": "https://example.com/a.wav"}, "gpt-4o-audio-preview", 600),
        ({}, "gpt-4o-audio-preview", 600),
    ],
)
def test_audio_costs_by_its_duration(part: Json, model: str, expected: int) -> None:
    assert tokens({"type": "input_audio", "input_audio": part}, model) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("part", "model", "expected"),
    [
        (file(PDF), "gpt-4o", 3 * 2_000),
        (file(PDF), "claude-sonnet-4-5", 3 * 3_000),
        (file(PDF), "gemini-2.5-pro", 3 * 258),
        (file(b"%PDF-1.7\n" + bytes(90_000)), "gpt-4o", 5 * 2_000),
        (file(packed_pdf(43)), "gpt-4o", 43 * 2_000),
        (file(packed_pdf(43, filtered=b"/LZWDecode")), "gpt-4o", 2_000),
        (file(b"word " * 80, "text/plain"), "gpt-4o", 100),
        (file("词".encode() * 1_000_000, "text/plain"), "gpt-4o", 250_000),
        (file(b"PK\3\4" + bytes(50_000)), "gpt-4o", 3 * 2_000),
        ({"type": "file", "file": {"file_data": "https://example.com/f.pdf"}}, "gpt-4o", 4_000),
        ({"type": "document", "source": {"type": "text", "data": "word " * 80}}, "claude-sonnet-4-5", 100),
        ({"type": "document", "source": {"data": base64.b64encode(PDF).decode()}}, "claude-sonnet-4-5", 9_000),
    ],
)
def test_a_file_costs_by_its_pages_or_its_text(part: Json, model: str, expected: int) -> None:
    assert tokens(part, model) == pytest.approx(expected, rel=0.001)


def test_a_film_costs_by_its_size_or_a_minute() -> None:
    assert tokens({"type": "video_url", "video_url": {"url": "https://example.com/v.mp4"}}) == 18_000
    assert tokens({"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + "A" * 400_000}}) == 900


def test_media_inside_an_unknown_part_are_media_and_its_secrets_no_text() -> None:
    plain = tokens({"type": "tool_result", "content": [None]})
    assert tokens({"type": "tool_result", "content": [image(512, 512)]}) == plain + 255
    assert tokens({"type": "new", "blob": data_url(png(512, 512) + bytes(3_000))}) < 300
    assert tokens({"type": "new", "signature": "A" * 5_000}) < 1_050
    assert tokens({"type": "new", "note": "word " * 800}) > 1_000


@pytest.mark.parametrize("kind", [*sorted(KINDS), "unheard_of"])
def test_fifty_megabytes_are_not_read(kind: str) -> None:
    part = {"type": kind, kind: {"url": "data:application/octet-stream;base64," + "AAAA" * 12_500_000}}
    started = time.process_time()
    assert tokens(part) > 0
    assert time.process_time() - started < 5


def test_what_lies_too_deep_is_left_out() -> None:
    part: object = "x"
    for _ in range(500):
        part = {"content": [part]}
    assert tokens({"type": "new", "content": part}) > 0


PARTS = st.dictionaries(
    st.sampled_from(["type", "source", "detail", "format", *sorted(KINDS)]),
    st.sampled_from([*sorted(KINDS), *map(data_url, (png(9, 9), PDF, wav(0), b"", b"x"))]) | ANYTHING,
    max_size=5,
)


@given(part=PARTS, model=st.sampled_from(["gpt-4o", "gpt-5-mini", "claude-opus-4-7", "gemini-2.5-pro", "", "x" * 999]))
def test_no_shape_is_an_error(part: Json, model: str) -> None:
    assert tokens(msgspec.json.decode(msgspec.json.encode(part)), model) >= 0


def test_a_small_pdf_that_names_one_stream_many_times_is_inflated_once_and_no_further_than_it_weighs() -> None:
    packed = zlib.compress(b"/Type/Page " * 36_000, 9)
    data = b"%PDF-1.5\n" + b"/ObjStm" * 84 + b"stream\n" + packed
    assert pages_of(file(data)) <= 40 * len(data) / len(b"/Type/Page ")
