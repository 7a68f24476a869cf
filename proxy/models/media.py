"""Count the tokens of images, audio, files and video in a prompt by the provider's formula, never as base64 text.

Sizes and durations come from the first bytes. Unknown ones count as typical and rather large. At most a megabyte of a
part is decoded.
"""

import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

import msgspec

from proxy.models.images import decode_beginning, image_size, is_data
from proxy.models.table import MAX_NAME, bare_name

Json = Mapping[str, object]
CountTokens = Callable[[str], int]

# The assumed size of unseen media: a screenshot, a minute, two pages.
UNSEEN_IMAGE: Final = (1920, 1080)
_UNSEEN_SECONDS: Final = 60
_UNSEEN_PAGES: Final = 2

# The bytes of a file that are read, and extrapolated. A PDF with hidden pages, and any other kind, has one page in so
# many bytes.
_READ_BYTES: Final = 1_000_000
_PAGE_BYTES: Final = 20_000
_PAGE: Final = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
# Since PDF 1.5, pages are in compressed streams of objects (ISO 32000-1, 7.5.7). The limits of one, packed and
# inflated.
_OBJECTS: Final = b"/ObjStm"
_STREAM: Final = b"stream"
_DICTIONARY_BYTES: Final = 600
_STREAM_BYTES: Final = 100_000
_INFLATED_BYTES: Final = 400_000
# Lists of objects compress to a tenth. A stream that expands more is not read further, so that the time is proportional
# to the PDF's size.
_MOST_EXPANSION: Final = 30
_MOST_STREAMS: Final = 100

# WAV states its rate. For other formats the lowest usual rate is assumed, at which a byte lasts longest.
_AUDIO_BYTES: Final = {"pcm16": 48_000, "flac": 16_000}
_OTHER_AUDIO_BYTES: Final = 4_000
_VIDEO_BYTES: Final = 100_000

# Longer strings without a space are no text: signatures, encrypted reasoning, data under unknown keys.
_TEXT_CHARS: Final = 2_000
# Base64 of encrypted text: 4 characters for 3 bytes, some 4 bytes a token.
_SEALED_CHARS_PER_TOKEN: Final = 5
_DEEPEST: Final = 30


@dataclass(frozen=True, slots=True)
class Image:
    """An image in pixels, and the requested detail."""

    width: float
    height: float
    detail: str = "auto"


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens of a family of models for an image, a second of audio or video, and a page of a file."""

    image: Callable[[Image], int]
    audio: int = 10
    video: int = 300
    page: int = 2_000


def _tiles(base: int, tile: int, image: Image) -> int:
    """Return tokens by tiles: scale to 2048 x 2048, then the shorter side to 768, then count squares of 512."""
    if image.detail == "low":
        return base
    sides = (image.width, image.height)
    scale = min(1.0, 2048 / max(sides), 768 / min(sides))
    return base + tile * math.prod(max(1, math.ceil(round(side * scale, 3) / 512)) for side in sides)


def _patches(factor: float, budgets: Mapping[str, int], image: Image) -> int:
    """Return tokens by squares of 32, up to the limit of the detail. A larger image is scaled down."""
    most = budgets.get(image.detail, budgets["high"])
    across, down = image.width / 32, image.height / 32
    if math.ceil(across) * math.ceil(down) > most:
        shrink = math.sqrt(most / (across * down))
        shrink *= min(max(1, math.floor(side * shrink)) / (side * shrink) for side in (across, down))
        across, down = across * shrink, down * shrink
    patches = math.prod(max(1, math.ceil(round(side, 3))) for side in (across, down))
    return math.ceil(min(most, patches) * factor)


def _area(longest: int, most: int, image: Image) -> int:
    """Return pixels / 750, after scaling down."""
    scale = min(1.0, longest / max(image.width, image.height))
    return max(1, min(most, math.ceil(image.width * image.height * scale * scale / 750)))


def _crops(image: Image) -> int:
    """Return 258 for a small image, or for each tile. A tile's side is the shorter side / 1.5, from 256 to 768."""
    sides = (image.width, image.height)
    if max(sides) <= 384:
        return 258
    unit = min(768, max(256, math.floor(min(sides) / 1.5)))
    return 258 * math.prod(math.ceil(min(side, 16_384) / unit) for side in sides)


_FEW: Final = {"low": 256, "high": 1_536}
_MANY: Final = {"low": 256, "high": 2_500, "original": 10_000}

# By the beginning of the bare name. The first match wins.
# OpenAI: https://platform.openai.com/docs/guides/images-vision#calculating-costs. Its bill for gpt-5.2, which that page
# lacks: https://community.openai.com/t/1372291. Its audio: a token for 100 ms (docs/guides/realtime-costs). Its PDFs:
# text and picture of every page (docs/guides/pdf-files).
# Claude: https://platform.claude.com/docs/en/build-with-claude/vision and …/pdf-support (1,500 to 3,000 a page).
# Gemini: https://ai.google.dev/gemini-api/docs/tokens, …/media-resolution and …/document-processing.
_RATES: Final[Mapping[str, Rates]] = {
    "gpt-4o-mini": Rates(partial(_tiles, 2833, 5667)),
    r"gpt-(?:4\.1|5).*-mini": Rates(partial(_patches, 1.62, _FEW)),
    r"gpt-(?:4\.1|5).*-nano": Rates(partial(_patches, 2.46, _FEW)),
    "o4-mini": Rates(partial(_patches, 1.72, _FEW)),
    r"gpt-5\.[23]": Rates(partial(_patches, 1.2, _FEW)),
    r"gpt-(?:5\.[4-9]|[6-9])": Rates(partial(_patches, 1.2, _MANY)),
    "gpt-5": Rates(partial(_tiles, 70, 140)),
    "o[13]": Rates(partial(_tiles, 75, 150)),
    "computer-use": Rates(partial(_tiles, 65, 129)),
    r".*claude-[a-z]+-(?:4[-.][7-9]|[5-9])": Rates(partial(_area, 2576, 4_784), page=3_000),
    ".*claude": Rates(partial(_area, 1568, 1_600), page=3_000),
    r"gemini-(?:[12]|pro|flash)": Rates(_crops, audio=32, page=258),
    "gemini": Rates(lambda _: 1_120, audio=32, page=560),
    "": Rates(partial(_tiles, 85, 170)),
}


@lru_cache(1_000)
def _family(model: str) -> str:
    name = bare_name(model)
    return next(pattern for pattern in _RATES if re.match(pattern, name))


def family_of(model: str) -> str:
    """Return the family of a model. Models of one family count media equally."""
    return _family(model[:MAX_NAME])


def media_tokens(part: Json, count: CountTokens, family: str = "") -> int:
    """Return the tokens of a message part that is not text."""
    return _part_tokens(part, count, _RATES[family])


def sealed_tokens(text: str) -> int:
    """Return the approximate tokens of encrypted text."""
    return len(text) // _SEALED_CHARS_PER_TOKEN


@dataclass(frozen=True, slots=True)
class _CountedMedium:
    """A medium: its URL or base64 (empty if absent), its details, and how it is counted."""

    data: str
    details: Json
    count: CountTokens
    rates: Rates

    @property
    def is_here(self) -> bool:
        """Return True if its bytes were sent, and not an address."""
        return bool(self.data) and "://" not in self.data[:16]

    @property
    def url(self) -> str:
        """Return its data: URL. Some dialects send base64 only."""
        return self.data if self.data[:5].lower() == "data:" else f"data:;base64,{self.data}"

    @property
    def size(self) -> int:
        """Return the bytes of the base64."""
        return (len(self.data) - (self.data.index(",") + 1 if is_data(self.data) else 0)) * 3 // 4

    def text_of(self, key: str) -> str:
        """Return a detail if it is text; empty otherwise."""
        value = self.details.get(key)
        return value if isinstance(value, str) else ""


def _part_tokens(part: Json, count: CountTokens, rates: Rates) -> int:
    kind = part.get("type")
    measure = _KINDS.get(kind) if isinstance(kind, str) else None
    if measure is None:
        return _other(part, count, rates)
    inner = part.get(str(kind), part.get("source", part))
    return measure(_CountedMedium(_data(inner), inner if isinstance(inner, dict) else part, count, rates))


def _data(inner: object) -> str:
    """Return the URL or the base64 of a medium in any dialect of the API; empty if absent."""
    candidates = [inner, *map(inner.get, _DATA_KEYS)] if isinstance(inner, dict) else [inner]
    return next((text for text in candidates if isinstance(text, str)), "")


def data_of(part: Json) -> tuple[str, str]:
    """Return the URL or the base64 of a content part, and its separate media type; both empty if absent."""
    inner = part.get(str(part.get("type")), part.get("source", part))
    media_type = inner.get("media_type") if isinstance(inner, dict) else None
    return _data(inner), media_type if isinstance(media_type, str) else ""


_DATA_KEYS: Final = ("url", "data", "file_data", "image_url", "file_url")


def _image(medium: _CountedMedium) -> int:
    width, height = image_size(medium.url) or UNSEEN_IMAGE
    return medium.rates.image(Image(width, height, medium.text_of("detail")))


def _audio(medium: _CountedMedium) -> int:
    if not medium.is_here:
        return _UNSEEN_SECONDS * medium.rates.audio
    header = decode_beginning(medium.url, 64)
    per_second = _AUDIO_BYTES.get(medium.text_of("format"), _OTHER_AUDIO_BYTES)
    if header[:4] == b"RIFF" and header[12:16] == b"fmt ":
        per_second = max(1_000, int.from_bytes(header[28:32], "little"))
    return math.ceil(medium.size / per_second * medium.rates.audio)


def _video(medium: _CountedMedium) -> int:
    seconds = medium.size / _VIDEO_BYTES if medium.is_here else _UNSEEN_SECONDS
    return math.ceil(seconds * medium.rates.video)


def pages_of(part: Json) -> int:
    """Return the pages of a PDF part; 0 for any other part, or if its bytes were not sent."""
    inner = part.get(str(part.get("type")), part.get("source", part))
    medium = _CountedMedium(_data(inner), {}, len, _RATES[""])
    if not medium.is_here:
        return 0
    read = decode_beginning(medium.url, _READ_BYTES)
    return _pages(read, medium.size) if read.startswith(b"%PDF") else 0


def _pages(read: bytes, size: int) -> int:
    """Return the pages of a PDF of `size` bytes with this beginning. Hidden pages are estimated by size."""
    pages = len(_PAGE.findall(read)) + sum(len(_PAGE.findall(objects)) for objects in _object_streams(read))
    return math.ceil(pages * max(1.0, size / _READ_BYTES) or size / _PAGE_BYTES)


def _object_streams(read: bytes) -> Iterator[bytes]:
    """Yield the inflated streams of objects in a PDF, each once and within limits."""
    at = 0
    for _ in range(_MOST_STREAMS):
        if (at := read.find(_OBJECTS, at + 1)) < 0:
            return
        if (start := read.find(_STREAM, at, at + _DICTIONARY_BYTES)) < 0:
            continue
        at = start  # a second reference to the same stream is skipped
        packed = read[start + len(_STREAM) : start + _STREAM_BYTES].lstrip(b"\r\n")
        with suppress(zlib.error):  # another filter, or encryption
            yield zlib.decompressobj().decompress(packed, min(_INFLATED_BYTES, _MOST_EXPANSION * len(packed) + 1))


def _file(medium: _CountedMedium) -> int:
    """Return the tokens of a file: text as text, a PDF by its pages, anything else by its size."""
    page, size = medium.rates.page, medium.size
    if medium.text_of("type") == "text":
        return medium.count(medium.data)
    if not medium.is_here:
        return _UNSEEN_PAGES * page
    read = decode_beginning(medium.url, _READ_BYTES)
    unread = max(1.0, size / _READ_BYTES)
    if read.startswith(b"%PDF"):
        return _pages(read, size) * page
    if (text := _text(read)) is not None:
        return math.ceil(medium.count(text) * unread)
    return _image(medium) if image_size(medium.url) else math.ceil(size / _PAGE_BYTES) * page


def _text(data: bytes) -> str | None:
    """Return bytes as text if they are text. The last character may be incomplete."""
    text = data.decode("utf-8", "ignore")
    return text if text and "\0" not in text and len(text.encode()) > len(data) - 4 else None


_KINDS: Final[Mapping[str, Callable[[_CountedMedium], int]]] = {
    **dict.fromkeys(("image_url", "image", "input_image"), _image),
    **dict.fromkeys(("input_audio", "audio_url", "audio"), _audio),
    **dict.fromkeys(("video_url", "video", "input_video"), _video),
    **dict.fromkeys(("file", "input_file", "document"), _file),
}

KINDS: Final = frozenset(_KINDS)


def _other(part: Json, count: CountTokens, rates: Rates) -> int:
    """Return the tokens of an unknown kind: its approximate JSON, and the media in it."""
    media: list[int] = []
    texts = _without_media(part, media, count, rates, 0)
    return sum(media) + count(msgspec.json.encode(texts).decode())


def _without_media(value: object, media: list[int], count: CountTokens, rates: Rates, depth: int) -> object:
    """Return a copy with null for media, whose tokens are added to `media`. Too deep values are left out."""
    if isinstance(value, str):
        if len(value) <= _TEXT_CHARS or not _is_sealed(value):
            return value
        media.append(_image(_CountedMedium(value, {}, count, rates)) if is_data(value) else sealed_tokens(value))
        return None
    if not isinstance(value, dict | list) or depth > _DEEPEST:
        return None if isinstance(value, dict | list) else value
    if isinstance(value, list):
        return [_without_media(item, media, count, rates, depth + 1) for item in value]
    if depth and isinstance(kind := value.get("type"), str) and kind in KINDS:
        media.append(_part_tokens(value, count, rates))
        return None
    return {key: _without_media(item, media, count, rates, depth + 1) for key, item in value.items()}


def _is_sealed(text: str) -> bool:
    return not any(sign in text[:_TEXT_CHARS] for sign in " \n\t{") and text[:_TEXT_CHARS].isascii()
