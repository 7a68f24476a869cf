"""Putting a compaction item into a model's answer while it passes: the only answers that are rewritten."""

from collections.abc import Callable

import msgspec

from proxy.dialects.compaction import Inserter
from proxy.dialects.surrogates import readable
from proxy.server.sse import EVENT_END, data_of

_DATA = b"data:"


class ItemInAnswer:
    """What is passed on of an answer, in place of what has come of it: whole events, or all of it at the end."""

    def __init__(self, inserter: Inserter, *, is_stream: bool) -> None:
        self._inserter = inserter
        self._is_stream = is_stream
        self._held = bytearray()

    def __call__(self, chunk: bytes, *, is_last: bool) -> bytes:
        self._held += chunk
        if not self._is_stream:
            return self._whole() if is_last else b""
        ends = [found.end() for found in EVENT_END.finditer(self._held)]
        if is_last and (not ends or ends[-1] < len(self._held)):
            ends.append(len(self._held))
        passed, start = [], 0
        for end in ends:
            passed.append(self._event(bytes(self._held[start:end])))
            start = end
        del self._held[:start]
        return b"".join(passed)

    def _whole(self) -> bytes:
        answer = _decoded(bytes(self._held))
        return bytes(self._held) if answer is None else msgspec.json.encode(self._inserter.whole(answer))

    def _event(self, event: bytes) -> bytes:
        told = _decoded(data_of(event))
        if told is None:
            return event
        beside = [line for line in event.splitlines() if line and not line.startswith((_DATA, b"event:"))]
        written = [_written(each) for each in self._inserter.events(told)]
        return b"".join([*(line + b"\n" for line in beside), *written])


class WholeRewritten:
    """Passes on something else in the place of an answer, once it is whole."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change = change
        self._held = bytearray()

    def __call__(self, chunk: bytes, *, is_last: bool) -> bytes:
        self._held += chunk
        return self._change(bytes(self._held)) if is_last else b""


def _written(event: dict[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event.get("type")).encode(), msgspec.json.encode(event))


def _decoded(data: bytes) -> dict[str, object] | None:
    try:
        found = msgspec.json.decode(readable(data))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) else None
