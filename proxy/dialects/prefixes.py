"""Memory of body prefixes that were read before, so that the next request costs only its new bytes.

An agent sends its history again with an item or two appended. Per caller the length and a keyed hash of the body up
to the last item but one are kept. So are the results of reading up to there. The next body that begins with those
bytes is parsed, digested and counted from there on.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import xxhash

from policies.conversation.message import Message
from proxy.dialects.bounds import QUICK
from proxy.dialects.frames import Repeated
from proxy.dialects.history import History
from proxy.dialects.json_array import MAX_ITEMS, Array, Envelope, Parsed, rest_position, walk
from proxy.dialects.spans import ByteSpans
from proxy.memory import Cache, Memory

_LEAST_BYTES = 4_096
_KEY_BYTES = 256
_TAIL_BYTES = 64
# Bytes of a remembered item: its entry, span and digest. Only the part before the items can be large.
_MESSAGE_BYTES = 320
_MARK = b'"cache_control"'
# The most marks that a provider accepts.
_MOST_MARKED = 4
# The caller, the array, and a hash of the body's beginning.
_Key = tuple[bytes, Array, int]


@dataclass(frozen=True, slots=True)
class Prefix:
    """The results of reading body[:length], which ends with an item. line: shared by the prefixes of one request."""

    length: int
    digest: int
    tail: bytes
    envelope: Envelope
    array_start: int
    measure: str
    spans: ByteSpans
    items: list[Message]
    history: History
    line: object

    @property
    def size(self) -> int:
        """Return its approximate size in bytes."""
        return self.array_start + _MESSAGE_BYTES * len(self.items)


class ReadBody(NamedTuple):
    """A body as it was read: its items, each described by this measure."""

    array: Array
    parsed: Parsed
    measure: str
    items: list[Message]


def worth_remembering(body: bytes, parsed: Parsed) -> list[int]:
    """Return the numbers of items to remember, ascending.

    They are all items but the last, which retries and edits change, and the items before the trailing ones with cache
    marks. Such marks move on with the next request.
    """
    settled = len(parsed.spans) - 1
    if len(body) < _LEAST_BYTES or settled < 1 or parsed.text is not body:
        return []
    unmarked = settled
    while unmarked > max(0, settled - _MOST_MARKED) and _MARK in body[slice(*parsed.spans[unmarked - 1])]:
        unmarked -= 1
    return [unmarked, settled] if 0 < unmarked < settled else [settled]


class PrefixCache:
    """The remembered prefixes of bodies, by their opening bytes. The newest few are kept for each opening."""

    def __init__(self, memory: Memory, per_opening: int = 8) -> None:
        """Create a cache that keeps `per_opening` prefixes for each opening."""
        self._per_opening = per_opening
        self._entries: Cache[_Key, list[Prefix]] = Cache(memory, "prefixes")
        # Hashes never leave the process. The seed keeps clients from aiming at a collision.
        self._seed = secrets.randbits(64)

    def find(
        self, scope: bytes, body: bytes, array: Array, before: Repeated | None = None
    ) -> tuple[Prefix, Parsed] | None:
        """Return the longest remembered prefix of this caller's body, and the body parsed with it; None without one.

        before: the frame of the sender's last request.
        """
        if len(body) < _LEAST_BYTES:
            return None
        key = self._key(scope, body, array)
        for prefix in sorted(self._entries.get(key) or (), key=lambda p: -p.length):
            if not self._matches(prefix, body):
                continue
            parsed = None if before is None else before.longer(body, prefix.length, prefix.spans, prefix.array_start)
            if parsed is not None or (parsed := _parse_rest(prefix, body, array)) is not None:
                return prefix, parsed
        return None

    def remember(
        self, scope: bytes, body: bytes, read: ReadBody, histories: Sequence[History], found: Prefix | None
    ) -> None:
        """Store the results up to the last item of each history, in place of the found prefix.

        A fork from the replaced prefix is read as a whole once.
        """
        histories = [history for history in histories if history.ends]
        if not histories:
            return
        key, start = self._key(scope, body, read.array), read.parsed.array[0]
        if found is not None and found.array_start == start:
            envelope = found.envelope
        else:
            envelope = read.array.envelope(body[:start] + b"[]}")
        entries = [entry for entry in self._entries.get(key) or () if found is None or entry.line is not found.line]
        spans = read.parsed.spans if isinstance(read.parsed.spans, ByteSpans) else ByteSpans(read.parsed.spans)
        line = object()
        for history in histories:
            number = history.ends[-1]
            length = read.parsed.spans[number - 1][1]
            prefix = Prefix(
                length=length,
                digest=self._hash(body, length),
                tail=body[length - _TAIL_BYTES : length],
                envelope=envelope,
                array_start=start,
                measure=read.measure,
                spans=spans[:number],
                items=history.messages if len(history.ends) == number else read.items[:number],
                history=history,
                line=line,
            )
            entries = [entry for entry in entries if (entry.length, entry.digest) != (prefix.length, prefix.digest)]
            entries.append(prefix)
        entries = entries[-self._per_opening :]
        self._entries.keep(key, entries, sum(entry.size for entry in entries))

    def _key(self, scope: bytes, body: bytes, array: Array) -> _Key:
        return scope, array, self._hash(body, _KEY_BYTES)

    def _hash(self, body: bytes, length: int) -> int:
        return xxhash.xxh3_128_intdigest(memoryview(body)[:length], self._seed)

    def _matches(self, prefix: Prefix, body: bytes) -> bool:
        # Comparing the tail first avoids a hash of the body for other sessions with the same opening.
        return body[prefix.length - _TAIL_BYTES : prefix.length] == prefix.tail and (
            len(body) > prefix.length and self._hash(body, prefix.length) == prefix.digest
        )


def _parse_rest(prefix: Prefix, body: bytes, array: Array) -> Parsed | None:
    """Parse from the prefix on; None if the rest is unusual. The body is then parsed as a whole."""
    start = rest_position(body, prefix.length)
    if start < 0 or len(body) - start > QUICK:  # a whole body is read off the event loop
        return None
    opening = b"{" + array.key + b":["
    new_part = opening + body[start:]
    try:
        envelope = array.envelope(new_part)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if not envelope.items and body[start - 1 : start] == b",":  # not JSON
        return None
    walked = walk(new_part, len(opening), envelope.items)
    if walked is None or len(prefix.items) + len(envelope.items) > MAX_ITEMS:
        return None
    shift = start - len(opening)
    spans, end = walked
    if new_part[end : end + 1] != b"]" or not array.is_absent(b'{"":0' + new_part[end + 1 :]):
        return None
    return Parsed(
        _merge(prefix.envelope, envelope),
        body,
        prefix.spans + ((item_start + shift, item_end + shift) for item_start, item_end in spans),
        (prefix.array_start, end + shift + 1),
    )


def _merge(earlier: Envelope, later: Envelope) -> Envelope:
    """Return the later value of every key, as JSON parsers read repeated keys."""
    return Envelope(later.items, {name: value or earlier.fields[name] for name, value in later.fields.items()})
