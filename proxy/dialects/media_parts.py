"""Pictures, papers and recordings inside of an item, in whichever dialect, and the item without some of them."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from proxy.dialects.json_array import decode, split_items
from proxy.dialects.skeleton import cut_items
from proxy.dialects.surrogates import readable
from proxy.models.images import MOST_LOOKED_AT, image_size, is_data
from proxy.models.media import KINDS, CountTokens, data_of, media_tokens, pages_of

# A picture of one grey point: what takes a screenshot and nothing else is sent this.
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
    """A medium in an item. size: bytes of it on the wire, 0 for one that is only named. what: for people. side: the
    longer one in pixels, pages: of a paper; 0 where that is not known."""

    kind: str
    size: int
    what: str
    is_of_result: bool
    side: int = 0
    pages: int = 0


def parts_of(item: object) -> list[MediaPart]:
    """Those of a decoded item, in their order."""
    return [_describe(part, is_of_result=is_of_result) for part, is_of_result in _find_media(item)]


def tokens_in_results(item: object, count: CountTokens, family: str) -> int:
    """Tokens of those that stand in results."""
    found = [part for part, is_of_result in _find_media(item) if is_of_result]
    pictures = [{**part, "type": "input_image"} if _is_screenshot(part) else part for part in found]
    return sum(media_tokens(part, count, family) for part in pictures)


def with_notes(raw: bytes, notes: Mapping[int, str], text_kind: str) -> bytes:
    """A message of one item or of several, with texts in the place of some of its media, which are numbered through;
    all else says what it said."""
    cut = cut_items(raw)
    changed, before = [], 0
    for item in split_items(cut.text):
        decoded = decode(readable(item))
        found = [part for part, _ in _find_media(decoded)]
        own = {id(part): notes[at] for at, part in enumerate(found, before) if at in notes}
        changed.append(_with_texts(decoded, own, text_kind) if own else item)
        before += len(found)
    return cut.restore(b",".join(changed))


def _with_texts(item: object, texts: Mapping[int, str], text_kind: str) -> bytes:
    """An item with texts in the place of parts, by the identity of these."""

    def replaced(value: object) -> object:
        if isinstance(value, list):
            return [replaced(each) for each in value]
        if not isinstance(value, dict):
            return value
        note = texts.get(id(value))
        if note is None:
            return {key: replaced(each) if key in _LISTS else each for key, each in value.items()}
        if _is_screenshot(value):
            return {**value, "image_url": GREY}
        mark = {"cache_control": value["cache_control"]} if "cache_control" in value else {}
        return {"type": text_kind, "text": note, **mark}

    return msgspec.json.encode(replaced(item))


def _find_media(item: object) -> Iterator[tuple[dict[str, object], bool]]:
    """Media of an item, and whether they stand in a result."""
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
                yield from ((one, True) for one in (inner if isinstance(inner, list) else ()) if _is_medium(one))
            elif _is_medium(part):
                yield part, is_result


def _is_medium(part: object) -> bool:
    return isinstance(part, dict) and isinstance(kind := part.get("type"), str) and kind in KINDS


def _is_screenshot(part: Mapping[str, object]) -> bool:
    """Whether it is one that was not left out before."""
    return part.get("type") == "computer_screenshot" and isinstance(url := part.get("image_url"), str) and url != GREY


def _describe(part: Mapping[str, object], *, is_of_result: bool) -> MediaPart:
    data, media_type = data_of(part)
    kind = _NAMES.get(str(part.get("type")), str(part.get("type"))) if not _is_screenshot(part) else "image"
    is_inline = is_data(data) or bool(media_type)
    size = len(data) if is_inline else 0
    url = data if is_data(data) else f"data:{media_type or 'image/png'};base64,{data[:MOST_LOOKED_AT]}"
    form = (media_type or url[5 : url.find(";")]).rpartition("/")[2].upper()[:12] if is_inline else ""
    sides = image_size(url) if is_inline and kind == "image" else None
    told = [form, f"{sides[0]} x {sides[1]}" if sides else ""]
    pages = pages_of(part) if kind == "document" else 0
    return MediaPart(kind, size, " ".join(filter(None, told)), is_of_result, max(sides or (0,)), pages)
