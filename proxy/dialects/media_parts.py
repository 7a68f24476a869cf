"""Images, documents and recordings inside an item of any dialect, and the item without some of them."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from proxy.dialects.json_array import decode, split_items
from proxy.dialects.skeleton import cut_items
from proxy.dialects.surrogates import readable
from proxy.models.images import MOST_LOOKED_AT, image_size, is_data
from proxy.models.media import KINDS, CountTokens, data_of, media_tokens, pages_of

# A picture of one grey point, for tools that accept only a screenshot.
GREY = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)
_LISTS = ("content", "output")
_RESULT = "tool_result"
_NAMES = {
    **dict.fromkeys(("input_image", "image_url"), "image"),
    **dict.fromkeys(("input_file", "file"), "document"),
    **dict.fromkeys(("input_audio", "audio_url"), "audio"),
    **dict.fromkeys(("video_url", "input_video"), "video"),
}


class MediaPart(NamedTuple):
    """A medium in an item.

    size:  bytes on the wire; 0 for a reference.
    what:  a description for people.
    side:  the longer side in pixels; 0 if unknown.
    pages: pages of a document; 0 if unknown.
    """

    kind: str
    size: int
    what: str
    is_of_result: bool
    side: int = 0
    pages: int = 0


def parts_of(item: object) -> list[MediaPart]:
    """Return the media of a decoded item, in order."""
    return [_describe(part, is_of_result=is_of_result) for part, is_of_result in _find_media(item)]


def tokens_in_results(item: object, count: CountTokens, family: str) -> int:
    """Return the tokens of the media in an item's results."""
    media = [part for part, is_of_result in _find_media(item) if is_of_result]
    counted = [{**part, "type": "input_image"} if _is_screenshot(part) else part for part in media]
    return sum(media_tokens(part, count, family) for part in counted)


def with_notes(raw: bytes, notes: Mapping[int, str], text_kind: str) -> bytes:
    """Return a message of one or several items with notes in place of some of its media.

    notes: by the number of a medium in the message. Everything else keeps its meaning.
    """
    cut = cut_items(raw)
    changed, number = [], 0
    for item in split_items(cut.text):
        decoded = decode(readable(item))
        media = [part for part, _ in _find_media(decoded)]
        notes_by_id = {id(part): notes[at] for at, part in enumerate(media, number) if at in notes}
        changed.append(_with_texts(decoded, notes_by_id, text_kind) if notes_by_id else item)
        number += len(media)
    return cut.restore(b",".join(changed))


def _with_texts(item: object, texts: Mapping[int, str], text_kind: str) -> bytes:
    """Return an item with texts in place of parts. The keys are the identities of these parts."""

    def replace_parts(value: object) -> object:
        if isinstance(value, list):
            return [replace_parts(child) for child in value]
        if not isinstance(value, dict):
            return value
        note = texts.get(id(value))
        if note is None:
            return {key: replace_parts(child) if key in _LISTS else child for key, child in value.items()}
        if _is_screenshot(value):
            return {**value, "image_url": GREY}
        mark = {"cache_control": value["cache_control"]} if "cache_control" in value else {}
        return {"type": text_kind, "text": note, **mark}

    return msgspec.json.encode(replace_parts(item))


def _find_media(item: object) -> Iterator[tuple[dict[str, object], bool]]:
    """Yield the media of an item, and True if they are in a result."""
    if not isinstance(item, dict):
        return
    is_result = str(item.get("type")).endswith("_output") or item.get("role") == "tool"
    for key in _LISTS:
        content = item.get(key)
        if isinstance(content, dict) and _is_screenshot(content):
            yield content, True
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict):
                continue
            if part.get("type") == _RESULT:
                inner = part.get("content")
                yield from (
                    (inner_part, True)
                    for inner_part in (inner if isinstance(inner, list) else ())
                    if _is_medium(inner_part)
                )
            elif _is_medium(part):
                yield part, is_result


def _is_medium(part: object) -> bool:
    return isinstance(part, dict) and isinstance(kind := part.get("type"), str) and kind in KINDS


def _is_screenshot(part: Mapping[str, object]) -> bool:
    """Return True if this is a screenshot that was not left out before."""
    return part.get("type") == "computer_screenshot" and isinstance(url := part.get("image_url"), str) and url != GREY


def _describe(part: Mapping[str, object], *, is_of_result: bool) -> MediaPart:
    data, media_type = data_of(part)
    kind = _NAMES.get(str(part.get("type")), str(part.get("type"))) if not _is_screenshot(part) else "image"
    is_inline = is_data(data) or bool(media_type)
    size = len(data) if is_inline else 0
    url = data if is_data(data) else f"data:{media_type or 'image/png'};base64,{data[:MOST_LOOKED_AT]}"
    form = (media_type or url[5 : url.find(";")]).rpartition("/")[2].upper()[:12] if is_inline else ""
    sides = image_size(url) if is_inline and kind == "image" else None
    description = [form, f"{sides[0]} x {sides[1]}" if sides else ""]
    pages = pages_of(part) if kind == "document" else 0
    return MediaPart(kind, size, " ".join(filter(None, description)), is_of_result, max(sides or (0,)), pages)
