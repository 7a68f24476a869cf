"""Requests that are one array of items in an envelope: where the items lie, and another array around their own bytes.

Of a key that comes twice the last value counts, for every field: most JSON readers do so (RFC 8259, section 4), and
msgspec does.
Nothing here copies or re-serializes an item that is kept, and nothing knows what an item says.
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
# Beyond this it is no conversation, and looking at every item would hold up all others.
MAX_ITEMS = 10_000
# Objects and lists of one item: the same. As Python's they take a hundred times their bytes, and nothing else of
# the process runs while they are made.
MAX_VALUES = 10_000
# A field that is a number, a word or a switch; of a list or an object in its place nothing needs to be known.
_LONGEST_SCALAR = 4_096
_NOTHING = msgspec.Raw(b"")
# Nobody writes more; over megabytes of it the search would hold up others.
_skip_whitespace = re.compile(rb"[ \t\r\n]{0,65536}+").match
# Up to the next object or list, or to the end, over strings and what is in them: so no search begins inside of one.
_openings = re.compile(rb'(?:[^"\[{]++|%b)*+(?:([\[{])|\Z)' % bounds.TEXT, re.DOTALL).finditer
# In the place of a lone surrogate.
_REPLACEMENT = "\ufffd"
_SPACE = ord(" ")
_COMMA = ord(",")


class HugeNumberError(ValueError):
    """Valid JSON (RFC 8259, section 6) that holds a number like 1e999, which no float takes: it is not understood."""


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """A request's top level: its items or a text in their place, and the rest raw; an absent field is empty."""

    items: list[msgspec.Raw]
    fields: Mapping[str, msgspec.Raw]
    text: str = ""


_NEAR_AN_END = 64 * 1024
# Places of a key that are looked at, each of which may take a look at the whole body; what has more is not read.
_MOST_PLACES = 16
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_string = re.compile(rb'"(?:[^"\\]++|\\.)*+"').match


class Array:
    """Where a dialect's items stand in a request: under which key, and which fields beside it are of use.

    Fields are taken raw: a wrong type is the upstream's to refuse, not ours. `or_text` where a text may stand there.
    """

    def __init__(self, key: str, fields: Sequence[str], *, or_text: bool = False) -> None:
        self.name = key
        self.key = msgspec.json.encode(key)
        self._fields = fields
        kind: object = list[msgspec.Raw] | str if or_text else list[msgspec.Raw]
        items: tuple[str, object, object] = ("items", kind, msgspec.field(default_factory=list))
        members = [items, *((field, msgspec.Raw, _NOTHING) for field in fields)]
        self._decode = msgspec.json.Decoder(msgspec.defstruct("Envelope", members, rename={"items": key})).decode
        self._read_key = _reader_of(key)

    def envelope(self, body: bytes) -> Envelope:
        """Of a body; raises as msgspec does where it is no such object."""
        items, *values = msgspec.structs.astuple(self._decode(body))
        text = items if isinstance(items, str) else ""
        return Envelope([] if text else [*items], dict(zip(self._fields, values, strict=True)), text)

    def is_absent(self, body: bytes) -> bool:
        """Whether this is an object without the array: the proof that the one taken out of it was all it had."""
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
    """A request's top level and where its items lie in the body.

    text:  the body to read from: the client's bytes, with lone surrogates made readable at the same length.
    spans: (start, end) byte offsets of every item. array: offsets of the whole array, brackets included.
    """

    envelope: Envelope
    text: bytes
    spans: Sequence[Span]
    array: tuple[int, int]


def model_of(body: bytes, key: str = "model") -> str:
    """Return the model that a body names under this key; empty if it names none.

    Of a body that is too large to be passed over, only members of its top level near its ends are found.
    """
    body = body.removeprefix(BOM_UTF8)
    if len(body) <= bounds.MOST_SKIPPED:
        return _text_of(body, key) or ""
    tail, head = body[-_NEAR_AN_END:], body[:_NEAR_AN_END]
    for place in reversed(_places_of(tail, key)):
        if (text := _text_of(b"{" + tail[place.start() :], key)) is not None:
            return text
    for place in reversed(_places_of(head, key)):
        if (value := _string(head, place.end())) and (text := _text_of(head[: value.end()] + b"}", key)) is not None:
            return text
    return ""


def _text_of(body: bytes, key: str) -> str | None:
    """Return the text under this key of an object; None if it is no object, empty if it has no such text."""
    for text in (body, surrogates.readable(body)):
        with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return decode_text(_reader_of(key)(text)) or ""
    return None


def _places_of(body: bytes, key: str) -> deque[re.Match[bytes]]:
    """Return where this may be a key, however it is escaped, up to its value; the last `_MOST_PLACES`."""
    return deque(_spellings(key).finditer(body), _MOST_PLACES)


@cache
def _spellings(key: str) -> re.Pattern[bytes]:
    letters = (rb"(?:%b|\\u00(?i:%02x))" % (re.escape(letter.encode()), ord(letter)) for letter in key)
    return re.compile(rb'"%b"[ \t\r\n]{0,1000}:[ \t\r\n]{0,1000}' % b"".join(letters))


def decode_text(raw: msgspec.Raw) -> str | None:
    """A string of JSON; None for anything else."""
    try:
        return _decode_text(raw) if raw else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def decode_object(raw: bytes) -> dict[str, object] | None:
    """An object of JSON, lone surrogates made readable; None for anything else."""
    try:
        found = msgspec.json.decode(surrogates.readable(raw))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) else None


def parse(body: bytes, array: Array) -> Parsed | None:
    """Parse a body; None for valid JSON of a shape we do not understand, and for what is not read at all.

    Raises InvalidJSONError for anything that is not JSON, which is how strict readers see lone surrogates.
    """
    if len(body) > bounds.MOST_READ:
        skeleton = skeleton_of(body)
        parsed = _parse(skeleton.text, array)
        return None if parsed is None else _in_body(parsed, body, skeleton)
    return _parse(body, array)


def bound_over(body: bytes) -> bounds.Bound | None:
    """Which bound keeps a body from being read, without what its media weigh; None if none does."""
    return bounds.bound_over(skeleton_of(body).text if len(body) > bounds.MOST_READ else body)


def _in_body(parsed: Parsed, body: bytes, skeleton: Skeleton) -> Parsed:
    """What was parsed of a skeleton, with the places in the body."""
    original = skeleton.original
    spans = [(original(first), original(last)) for first, last in parsed.spans]
    first, last = parsed.array
    return msgspec.structs.replace(parsed, text=body, spans=spans, array=(original(first), original(last)))


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
    """Raise InvalidJSONError unless this is JSON, looking at its structure only."""
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
        start = _after(body, _after(body, key + len(array.key), ord(":")), ord("["))
        if start > 0 and (found := walk(body, start, envelope.items)) is not None:
            spans, end = found
            if body[end : end + 1] == b"]" and array.is_absent(body[:key] + b'"":0' + body[end + 1 :]):
                return Parsed(envelope, body, spans, (start - 1, end + 1))
            break
        key = body.find(array.key, key + 1)
    return _locate_last(body, envelope, array)


def _locate_last(body: bytes, envelope: Envelope, array: Array) -> Parsed | None:
    """Find the items if their key comes twice, is escaped or stands elsewhere too."""
    for place in reversed(_places_of(body, array.name)):
        start = _after(body, place.end(), ord("["))
        found = walk(body, start, envelope.items) if start > 0 else None
        if found is None or body[found[1] : found[1] + 1] != b"]":
            continue
        spans, end = found
        if array.is_last(body, place.start(), end + 1):
            return Parsed(envelope, body, spans, (start - 1, end + 1))
    return None


def with_items(body: bytes, envelope: Envelope, start: int, end: int) -> Parsed | None:
    """A body whose array is known to stand at body[start:end], brackets included; None where it is none."""
    try:
        items = _decode_items(memoryview(body)[start:end])
    except (msgspec.DecodeError, RecursionError):
        return None
    found = walk(body, start + 1, items) if 0 < len(items) <= MAX_ITEMS else None
    return None if found is None else Parsed(envelope, body, found[0], (start, end))


def rest_position(body: bytes, position: int) -> int:
    """Where the array goes on behind an item that ends at `position`: its next item or its end; -1 if neither."""
    position = _skip(body, position)
    if body[position : position + 1] == b"]":
        return position
    return _after(body, position, _COMMA)


def _after(body: bytes, position: int, character: int) -> int:
    """The position behind `character`, which may follow whitespace; -1 where something else stands."""
    if position < 0:
        return -1
    position = _skip(body, position)
    return position + 1 if position < len(body) and body[position] == character else -1


def _skip(body: bytes, position: int) -> int:
    if position < len(body) and body[position] > _SPACE:
        return position
    found = _skip_whitespace(body, position)
    return found.end() if found else position


def walk(body: bytes, position: int, items: Sequence[msgspec.Raw]) -> tuple[list[Span], int] | None:
    """Spans of `items`, which stand comma-separated from `position` on, and where they end; None if they do not."""
    spans: list[Span] = []
    for raw in items:
        if spans and (position := _after(body, position, _COMMA)) < 0:
            return None
        position, item = _skip(body, position), memoryview(raw)
        if not body.startswith(item, position):
            return None
        spans.append((position, position := position + len(item)))
    return spans, _skip(body, position)


def decode(raw: bytes | memoryview) -> object:
    """One JSON value. Raises InvalidJSONError for what is none, or nested too deeply, and HugeNumberError."""
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if "out of range" in str(error):
            raise HugeNumberError from None
        raise _invalid(error) from None
    if _too_deep(value, MAX_DEPTH):
        raise InvalidJSONError(f"The request body is nested more than {MAX_DEPTH} levels deep.")
    return value


def _too_deep(value: object, left: int) -> bool:
    if left <= 0:
        return True
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(each, dict | list) and _too_deep(each, left - 1):
            return True
    return False


def is_crowded(item: bytes | memoryview) -> bool:
    """Whether an item is too large to be decoded, or has more objects and lists than MAX_VALUES.

    Brackets inside of texts are none.
    """
    if not MAX_VALUES < len(item) <= bounds.MOST_OF_MESSAGE:
        return len(item) > MAX_VALUES
    text = skeleton_of(bytes(item)).text
    if text.count(b"{") + text.count(b"[") <= MAX_VALUES:
        return False
    return sum(1 for found in islice(_openings(text), MAX_VALUES + 1) if found[1]) > MAX_VALUES


def scalar(raw: msgspec.Raw) -> object:
    """The value of a top-level field, None where it is absent or null; an empty list for anything long or huge."""
    if not raw:
        return None
    value = memoryview(raw)
    try:
        return [] if len(value) > _LONGEST_SCALAR else decode(value)
    except HugeNumberError:
        return []


def text_at(raw: msgspec.Raw, path: Sequence[str]) -> str | None:
    """A string inside of objects, which are read no further than it takes; None where there is none, or a long one."""
    try:
        for name in path:
            raw = _reader_of(name)(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return decode_text(raw) if len(memoryview(raw)) <= _LONGEST_SCALAR else None


def label_in(fields: Mapping[str, msgspec.Raw], paths: Iterable[Sequence[str]]) -> str:
    """The first string that stands at one of these paths; empty where there is none."""
    found = (text_at(fields[name], rest) for name, *rest in paths if fields[name])
    return next(filter(None, found), "")


def split_items(raw: bytes | memoryview) -> list[bytes]:
    """The items of a part of an array, which stands between its brackets, as they were written."""
    array = b"[" + raw + b"]"
    readable = surrogates.readable(array)
    spans, _ = walk(readable, 1, _decode_items(readable)) or ([], 0)
    return [array[first:last] for first, last in spans]


@cache
def _reader_of(name: str) -> Callable[[bytes | msgspec.Raw], msgspec.Raw]:
    """Reads one field of an object and passes over all others."""
    field = msgspec.defstruct("Field", [("value", msgspec.Raw, _NOTHING)], rename={"value": name})
    decode_field = msgspec.json.Decoder(field).decode

    def read(raw: bytes | msgspec.Raw) -> msgspec.Raw:
        value: msgspec.Raw = msgspec.structs.astuple(decode_field(raw))[0]
        return value

    return read


def rebuild(body: bytes, parsed: Parsed, items: Iterable[int | bytes]) -> bytes:
    """The body with another array: kept items, by their index, as the client's bytes; all around it untouched."""
    view = memoryview(body)
    parts: list[bytes | memoryview] = []
    for item in items:
        parts.append(b"," if parts else b"[")
        if isinstance(item, int):
            start, end = parsed.spans[item]
            parts.append(view[start:end])
        else:
            parts.append(item)
    return pieces.joined([view[: parsed.array[0]], *parts, b"]", view[parsed.array[1] :]], len(body))


def select(body: bytes, parsed: Parsed, indexes: Sequence[int]) -> tuple[bytes, Parsed]:
    """The body with only these of its items, and where they lie in it."""
    spans = []
    position = parsed.array[0] + 1
    for i in indexes:
        first, last = parsed.spans[i]
        spans.append((position, position + last - first))
        position += last - first + 1
    text = rebuild(parsed.text, parsed, indexes)
    selected = Parsed(parsed.envelope, text, spans, (parsed.array[0], position))
    return rebuild(body, parsed, indexes), selected


def with_fields(body: bytes, fields: Mapping[str, object], without: Sequence[str]) -> bytes:
    """The body with some top-level fields set and others gone; all others keep their bytes and their order.

    Raises InvalidJSONError for what is no object, and for two keys that differ in lone surrogates alone.
    """
    kept = {key: member for key, member in members_of(body).items() if key not in without}
    for key, value in fields.items():
        kept[key] = msgspec.json.encode(key) + b":" + msgspec.json.encode(value)
    return b"{" + b",".join(kept.values()) + b"}"


def with_field(body: bytes, key: str, value: object) -> bytes:
    """The same with one of them set."""
    return with_fields(body, {key: value}, without=())


def members_of(body: bytes) -> dict[str, bytes]:
    """The members of an object, `"key": value` as they were written, by their keys."""
    try:
        decoded = _decode_members(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _members_with_surrogates(body)
    return _members(decoded)


def _members(decoded: Mapping[str, msgspec.Raw]) -> dict[str, bytes]:
    return {key: msgspec.json.encode(key) + b":" + raw for key, raw in decoded.items()}


def _members_with_surrogates(body: bytes) -> dict[str, bytes]:
    """Return the members of an object that strict readers refuse.

    They are found in a readable copy and taken from the body, or from the copy if a key comes twice.
    """
    if surrogates.has_many(body):
        raise InvalidJSONError("The request body has too many halves of surrogate pairs.")
    readable = surrogates.readable(body)
    try:
        decoded = _decode_members(readable)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _invalid(error) from None
    members = {}
    position = _after(readable, 0, ord("{"))
    for key, raw in decoded.items():
        start = _skip(readable, position)
        name = _string(readable, start)
        value = _skip(readable, _after(readable, name.end(), ord(":"))) if name else -1
        if value < 0 or not readable.startswith(memoryview(raw), value):
            break
        end = value + len(memoryview(raw))
        members[key] = body[start:end]
        position = _after(readable, end, _COMMA)
    if len(members) == len(decoded) and (position < 0 or not decoded):
        return members
    if any(_REPLACEMENT in key for key in decoded):  # two keys may have become one
        raise InvalidJSONError("The request body has a key twice.")
    return _members(decoded)
