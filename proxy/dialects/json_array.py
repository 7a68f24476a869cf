"""Requests that are an array of items in an envelope: the spans of the items, and new arrays of their bytes.

The last value of a repeated key counts, for every field. Most JSON readers do so (RFC 8259, section 4), and msgspec
does.
No kept item is copied or re-serialized, and this module knows nothing of the content of items.
"""

import re
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice

import msgspec

from proxy.dialects import bounds, pieces, surrogates
from proxy.dialects.skeleton import Skeleton, skeleton_of
from proxy.dialects.spans import Span
from proxy.errors import InvalidJSONError

MAX_DEPTH = 100
# A longer array is not a conversation, and reading every item would block other requests.
MAX_ITEMS = 10_000
# Objects and lists of one item. As Python objects they take a hundred times their bytes, and decoding blocks all
# threads.
MAX_VALUES = 10_000
# Longest field that is a number, a word or a switch. A list or an object in its place is not read.
_LONGEST_SCALAR = 4_096
_NOTHING = msgspec.Raw(b"")
# Real clients write less. Over megabytes of whitespace the search would block other requests.
_skip_whitespace = re.compile(rb"[ \t\r\n]{0,65536}+").match
# Matches up to the next object or list, or to the end, skipping strings, so no search begins inside a string.
_openings = re.compile(rb'(?:[^"\[{]++|%b)*+(?:([\[{])|\Z)' % bounds.TEXT, re.DOTALL).finditer
# Replaces a lone surrogate.
_REPLACEMENT = "\ufffd"
_SPACE = ord(" ")
_COMMA = ord(",")


class HugeNumberError(ValueError):
    """The JSON (RFC 8259, section 6) is valid, but has a number like 1e999 that no float can hold."""


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """A request's top level: its items, or a text in their place, and raw fields. An absent field is empty."""

    items: list[msgspec.Raw]
    fields: Mapping[str, msgspec.Raw]
    text: str = ""


_NEAR_AN_END = 64 * 1024
# Most places of a key to check. Each check may read the whole body.
_MOST_PLACES = 16
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_string = re.compile(rb'"(?:[^"\\]++|\\.)*+"').match


class Array:
    """The array of a dialect's requests: its key, and the other fields to read.

    Fields stay raw, since the upstream reports wrong types. or_text: a text may replace the array.
    """

    def __init__(self, key: str, fields: Sequence[str], *, or_text: bool = False) -> None:
        """Compile the decoder for these fields."""
        self.name = key
        self.key = msgspec.json.encode(key)
        self._fields = fields
        kind: object = list[msgspec.Raw] | str if or_text else list[msgspec.Raw]
        items: tuple[str, object, object] = ("items", kind, msgspec.field(default_factory=list))
        members = [items, *((field, msgspec.Raw, _NOTHING) for field in fields)]
        self._decode = msgspec.json.Decoder(msgspec.defstruct("Envelope", members, rename={"items": key})).decode
        self._read_key = _reader_of(key)

    def envelope(self, body: bytes) -> Envelope:
        """Return the envelope of a body. Raises msgspec's errors if it is not such an object."""
        items, *values = msgspec.structs.astuple(self._decode(body))
        text = items if isinstance(items, str) else ""
        return Envelope([] if text else [*items], dict(zip(self._fields, values, strict=True)), text)

    def is_absent(self, body: bytes) -> bool:
        """Return True if this is an object without the array.

        It proves that the array that was cut out of the body was the only one.
        """
        try:
            return not self._read_key(body)
        except (msgspec.DecodeError, RecursionError):
            return False

    def is_last(self, body: bytes, key: int, end: int) -> bool:
        """Return True if body[key:end] is the array with its key at the top level, and no other one follows."""
        try:
            self._read_key(body[:key] + b'"":0}')
        except (msgspec.DecodeError, RecursionError):
            return False
        return self.is_absent(b'{"":0' + body[end:])


class Parsed(msgspec.Struct, frozen=True, gc=False):
    """A request's top level, and the positions of its items in the body.

    text:  the body to read from: the client's bytes, with lone surrogates replaced at the same length.
    spans: (start, end) byte offsets of every item.
    array: offsets of the whole array, brackets included.
    """

    envelope: Envelope
    text: bytes
    spans: Sequence[Span]
    array: tuple[int, int]


def model_of(body: bytes, key: str = "model") -> str:
    """Return the model that a body names under this key; empty if it names none.

    In a very large body, only members of the top level near both ends are found.
    """
    body = body.removeprefix(BOM_UTF8)
    if len(body) <= bounds.MOST_SKIPPED:
        return _text_of(body, key) or ""
    tail, head = body[-_NEAR_AN_END:], body[:_NEAR_AN_END]
    for match in reversed(_places_of(tail, key)):
        if (text := _text_of(b"{" + tail[match.start() :], key)) is not None:
            return text
    for match in reversed(_places_of(head, key)):
        if (value := _string(head, match.end())) and (text := _text_of(head[: value.end()] + b"}", key)) is not None:
            return text
    return ""


def _text_of(body: bytes, key: str) -> str | None:
    """Return the text under this key of an object; empty if it has no such text.

    None if it is no object, or has too many lone surrogates.
    """
    with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return decode_text(_reader_of(key)(body)) or ""
    # Only now, since a search for surrogates reads the whole body.
    if surrogates.has_many(body):
        return None
    with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return decode_text(_reader_of(key)(surrogates.readable(body))) or ""
    return None


def _places_of(body: bytes, key: str) -> deque[re.Match[bytes]]:
    """Return the last `_MOST_PLACES` matches that may be this key with any escapes, up to its value."""
    return deque(_spellings(key).finditer(body), _MOST_PLACES)


@cache
def _spellings(key: str) -> re.Pattern[bytes]:
    letters = (rb"(?:%b|\\u00(?i:%02x))" % (re.escape(letter.encode()), ord(letter)) for letter in key)
    return re.compile(rb'"%b"[ \t\r\n]{0,1000}:[ \t\r\n]{0,1000}' % b"".join(letters))


def decode_text(raw: msgspec.Raw) -> str | None:
    """Return a JSON string; None for any other value."""
    try:
        return _decode_text(raw) if raw else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def decode_object(raw: bytes) -> dict[str, object] | None:
    """Return a JSON object, with lone surrogates replaced; None for any other value."""
    try:
        value = msgspec.json.decode(surrogates.readable(raw))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) else None


def parse(body: bytes, array: Array) -> Parsed | None:
    """Parse a body. Returns None for valid JSON of an unsupported shape, and for a body over a bound.

    Raises InvalidJSONError for invalid JSON. Strict readers count lone surrogates as invalid.
    """
    if len(body) > bounds.MOST_READ:
        skeleton = skeleton_of(body)
        parsed = _parse(skeleton.text, array)
        return None if parsed is None else _map_to_body(parsed, body, skeleton)
    return _parse(body, array)


def bound_over(body: bytes) -> bounds.Bound | None:
    """Return the bound that a body exceeds without its media; None if it exceeds none."""
    return bounds.bound_over(skeleton_of(body).text if len(body) > bounds.MOST_READ else body)


def _map_to_body(parsed: Parsed, body: bytes, skeleton: Skeleton) -> Parsed:
    """Return the result of parsing a skeleton, with the positions in the body."""
    original = skeleton.original
    spans = [(original(start), original(end)) for start, end in parsed.spans]
    start, end = parsed.array
    return msgspec.structs.replace(parsed, text=body, spans=spans, array=(original(start), original(end)))


def _parse(body: bytes, array: Array) -> Parsed | None:
    if bounds.bound_over(body) is not None:
        return None
    try:
        envelope = array.envelope(body)
    except msgspec.ValidationError:
        decode_raw(body)
        return None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _invalid(error) from None
    text_alone = Parsed(envelope, body, [], (0, 0)) if envelope.text else None
    return _locate(body, envelope, array) if 0 < len(envelope.items) <= MAX_ITEMS else text_alone


def decode_raw(body: bytes | memoryview) -> None:
    """Raise InvalidJSONError unless this is JSON. Only the structure is checked."""
    try:
        _decode_raw(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid(error) from None


def _invalid(error: Exception) -> InvalidJSONError:
    if isinstance(error, msgspec.DecodeError):
        return InvalidJSONError(f"The request body is not valid JSON: {error}.")
    if isinstance(error, RecursionError):
        return InvalidJSONError("The request body is nested too deeply.")
    return InvalidJSONError("The request body is not valid UTF-8.")


def _locate(body: bytes, envelope: Envelope, array: Array) -> Parsed | None:
    """Find the bytes of the items; None if they cannot be found beyond doubt."""
    key = body.find(array.key)
    while key >= 0:
        start = _skip_past(body, _skip_past(body, key + len(array.key), ord(":")), ord("["))
        if start > 0 and (walked := walk(body, start, envelope.items)) is not None:
            spans, end = walked
            if body[end : end + 1] == b"]" and array.is_absent(body[:key] + b'"":0' + body[end + 1 :]):
                return Parsed(envelope, body, spans, (start - 1, end + 1))
            break
        key = body.find(array.key, key + 1)
    return _locate_last(body, envelope, array)


def _locate_last(body: bytes, envelope: Envelope, array: Array) -> Parsed | None:
    """Find the items if their key is repeated, escaped, or appears elsewhere too."""
    for match in reversed(_places_of(body, array.name)):
        start = _skip_past(body, match.end(), ord("["))
        walked = walk(body, start, envelope.items) if start > 0 else None
        if walked is None or body[walked[1] : walked[1] + 1] != b"]":
            continue
        spans, end = walked
        if array.is_last(body, match.start(), end + 1):
            return Parsed(envelope, body, spans, (start - 1, end + 1))
    return None


def with_items(body: bytes, envelope: Envelope, start: int, end: int) -> Parsed | None:
    """Parse a body whose array is at body[start:end], brackets included; None if that is not an array."""
    try:
        items = _decode_items(memoryview(body)[start:end])
    except (msgspec.DecodeError, RecursionError):
        return None
    walked = walk(body, start + 1, items) if 0 < len(items) <= MAX_ITEMS else None
    return None if walked is None else Parsed(envelope, body, walked[0], (start, end))


def rest_position(body: bytes, position: int) -> int:
    """Return the position of the next item or the end after an item that ends at `position`; -1 if invalid."""
    position = _skip(body, position)
    if body[position : position + 1] == b"]":
        return position
    return _skip_past(body, position, _COMMA)


def _skip_past(body: bytes, position: int, character: int) -> int:
    """Return the position after `character`, which may follow whitespace; -1 if something else follows."""
    if position < 0:
        return -1
    position = _skip(body, position)
    return position + 1 if position < len(body) and body[position] == character else -1


def _skip(body: bytes, position: int) -> int:
    if position < len(body) and body[position] > _SPACE:
        return position
    match = _skip_whitespace(body, position)
    return match.end() if match else position


def walk(body: bytes, position: int, items: Sequence[msgspec.Raw]) -> tuple[list[Span], int] | None:
    """Return the spans of `items`, comma-separated from `position`, and their end; None if they are not there."""
    spans: list[Span] = []
    for raw in items:
        if spans and (position := _skip_past(body, position, _COMMA)) < 0:
            return None
        position, item = _skip(body, position), memoryview(raw)
        if not body.startswith(item, position):
            return None
        spans.append((position, position := position + len(item)))
    return spans, _skip(body, position)


def decode(raw: bytes | memoryview) -> object:
    """Return one JSON value. Raises HugeNumberError, or InvalidJSONError for invalid or too deep JSON."""
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if "out of range" in str(error):
            raise HugeNumberError from None
        raise _invalid(error) from None
    if _too_deep(value, MAX_DEPTH):
        raise InvalidJSONError(f"The request body is nested more than {MAX_DEPTH} levels deep.")
    return value


def _too_deep(value: object, levels: int) -> bool:
    if levels <= 0:
        return True
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(child, dict | list) and _too_deep(child, levels - 1):
            return True
    return False


def is_crowded(item: bytes | memoryview) -> bool:
    """Return True if an item is too large to decode, or has more objects and lists than MAX_VALUES.

    Brackets inside strings do not count.
    """
    if not MAX_VALUES < len(item) <= bounds.MOST_OF_MESSAGE:
        return len(item) > MAX_VALUES
    text = skeleton_of(bytes(item)).text
    if text.count(b"{") + text.count(b"[") <= MAX_VALUES:
        return False
    return sum(1 for match in islice(_openings(text), MAX_VALUES + 1) if match[1]) > MAX_VALUES


def scalar(raw: msgspec.Raw) -> object:
    """Return the value of a top-level field, None if absent or null. A long or huge value becomes an empty list."""
    if not raw:
        return None
    value = memoryview(raw)
    try:
        return [] if len(value) > _LONGEST_SCALAR else decode(value)
    except HugeNumberError:
        return []


def text_at(raw: msgspec.Raw, path: Sequence[str]) -> str | None:
    """Return a string inside nested objects; None if it is absent or long. Nothing else is decoded."""
    try:
        for name in path:
            raw = _reader_of(name)(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return decode_text(raw) if len(memoryview(raw)) <= _LONGEST_SCALAR else None


def label_in(fields: Mapping[str, msgspec.Raw], paths: Iterable[Sequence[str]]) -> str:
    """Return the first string at one of these paths; empty if there is none."""
    texts = (text_at(fields[name], path) for name, *path in paths if fields[name])
    return next(filter(None, texts), "")


def split_items(raw: bytes | memoryview) -> list[bytes]:
    """Return the items of a part of an array, without brackets, as written."""
    array = b"[" + raw + b"]"
    readable = surrogates.readable(array)
    spans, _ = walk(readable, 1, _decode_items(readable)) or ([], 0)
    return [array[start:end] for start, end in spans]


@cache
def _reader_of(name: str) -> Callable[[bytes | msgspec.Raw], msgspec.Raw]:
    """Return a function that reads one field of an object and skips all others."""
    field = msgspec.defstruct("Field", [("value", msgspec.Raw, _NOTHING)], rename={"value": name})
    decode_field = msgspec.json.Decoder(field).decode

    def read(raw: bytes | msgspec.Raw) -> msgspec.Raw:
        value: msgspec.Raw = msgspec.structs.astuple(decode_field(raw))[0]
        return value

    return read


def rebuild(body: bytes, parsed: Parsed, items: Iterable[int | bytes]) -> bytes:
    """Return the body with another array.

    Kept items, given by index, and everything around them keep the client's bytes.
    """
    view = memoryview(body)
    parts: list[bytes | memoryview] = []
    for item in items:
        parts.append(b"," if parts else b"[")
        if isinstance(item, int):
            start, end = parsed.spans[item]
            parts.append(view[start:end])
        else:
            parts.append(item)
    return pieces.join_pieces([view[: parsed.array[0]], *parts, b"]", view[parsed.array[1] :]], len(body))


def select(body: bytes, parsed: Parsed, indexes: Sequence[int]) -> tuple[bytes, Parsed]:
    """Return the body with only these items, and their positions in it."""
    spans = []
    position = parsed.array[0] + 1
    for i in indexes:
        start, end = parsed.spans[i]
        spans.append((position, position + end - start))
        position += end - start + 1
    text = rebuild(parsed.text, parsed, indexes)
    selected = Parsed(parsed.envelope, text, spans, (parsed.array[0], position))
    return rebuild(body, parsed, indexes), selected


def with_fields(body: bytes, fields: Mapping[str, object], without: Sequence[str]) -> bytes:
    """Return the body with some top-level fields set and others removed. All others keep their bytes and their order.

    Raises InvalidJSONError if it is not an object, or if two keys differ only in lone surrogates.
    """
    members = {key: member for key, member in members_of(body).items() if key not in without}
    for key, value in fields.items():
        members[key] = msgspec.json.encode(key) + b":" + msgspec.json.encode(value)
    return b"{" + b",".join(members.values()) + b"}"


def with_field(body: bytes, key: str, value: object) -> bytes:
    """Return the body with one top-level field set."""
    return with_fields(body, {key: value}, without=())


def members_of(body: bytes) -> dict[str, bytes]:
    """Return the members of an object by key, each as the written `"key": value`."""
    try:
        decoded = _decode_members(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _members_with_surrogates(body)
    return _members(decoded)


def _members(decoded: Mapping[str, msgspec.Raw]) -> dict[str, bytes]:
    return {key: msgspec.json.encode(key) + b":" + raw for key, raw in decoded.items()}


def _members_with_surrogates(body: bytes) -> dict[str, bytes]:
    """Return the members of an object that strict readers reject.

    They are found in a readable copy and cut from the body, or from the copy if a key is repeated.
    """
    if surrogates.has_many(body):
        raise InvalidJSONError("The request body has too many lone surrogates.")
    readable = surrogates.readable(body)
    try:
        decoded = _decode_members(readable)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _invalid(error) from None
    members = {}
    position = _skip_past(readable, 0, ord("{"))
    for key, raw in decoded.items():
        start = _skip(readable, position)
        name = _string(readable, start)
        value = _skip(readable, _skip_past(readable, name.end(), ord(":"))) if name else -1
        if value < 0 or not readable.startswith(memoryview(raw), value):
            break
        end = value + len(memoryview(raw))
        members[key] = body[start:end]
        position = _skip_past(readable, end, _COMMA)
    if len(members) == len(decoded) and (position < 0 or not decoded):
        return members
    if any(_REPLACEMENT in key for key in decoded):  # two keys may have become equal
        raise InvalidJSONError("The request body has a key twice.")
    return _members(decoded)
