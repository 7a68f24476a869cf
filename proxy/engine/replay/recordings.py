"""Recorded conversations, in the forms people have them, as the requests that their clients sent."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from policies.message import Message
from proxy.dialects.base import Dialect
from proxy.dialects.json_array import model_of, with_fields
from proxy.dialects.surrogates import readable
from proxy.dialects.table import CHAT, DIALECTS, MESSAGES, dialect_of, written_in
from proxy.server.paths import reading, resource

DEFAULT_MODEL = "gpt-4o"

_FORMS = "a request body, a list of messages, JSON lines of either, or a trajectory with messages"
# What of a request goes with its messages: the rest has no tokens.
_FIELDS = {
    "chat": ("tools", "functions", "response_format", "max_tokens", "max_completion_tokens"),
    "responses": ("instructions", "tools", "text", "max_output_tokens"),
    "messages": ("system", "tools", "thinking", "output_format", "max_tokens"),
}
_MESSAGE = (
    *("role", "content", "name", "tool_calls", "tool_call_id", "refusal"),
    *("reasoning_content", "reasoning", "reasoning_details"),
)
_ROLES = ("system", "developer", "user", "assistant", "tool")
# Parts of content that only Anthropic's messages have.
_ANTHROPIC = ("tool_use", "tool_result")

Item = dict[str, object]


class RecordingError(Exception):
    """A file that cannot be replayed: why, and the way out."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One session: `bodies` gives the `requests` that its client sent, oldest first."""

    name: str
    dialect: Dialect
    requests: int
    bodies: Callable[[], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One JSON value of a file, its bytes, and the dialect it is in."""

    value: object
    raw: bytes
    dialect: Dialect = CHAT

    @property
    def messages(self) -> list[object] | None:
        """The conversation it holds; None where it holds none."""
        found = self.value.get(self.dialect.array.name) if isinstance(self.value, dict) else None
        return found if isinstance(found, list) and found else None

    @property
    def is_request(self) -> bool:
        """Whether it is what a client sent, and no conversation that has ended: that ends with an answer."""
        last = (self.messages or [None])[-1]
        message = _described(last, self.dialect)
        return message is not None and message.role != "assistant"


def read(path: Path, model: str | None) -> list[Recording]:
    """The sessions of a file, for `model` where one is named; raises RecordingError."""
    try:
        return read_from(path.name, path.read_bytes(), model)
    except OSError as error:
        raise RecordingError(f"{error.strerror}; name a file or a directory that can be read") from None


def read_from(name: str, data: bytes, model: str | None) -> list[Recording]:
    """The same of what a file of this name holds."""
    entries = [_unwrapped(entry) for entry in _entries(readable(data))]
    if len(entries) == 1 and entries[0].messages is not None:
        return [_history(name, entries[0], entries[0].messages, model)]
    first = entries[0]
    if all(entry.is_request and entry.dialect is first.dialect for entry in entries):
        bodies = partial(_as_they_are, [entry.raw for entry in entries], model)
        return [Recording(name, first.dialect, len(entries), bodies)]
    if all(isinstance(entry.value, dict) and "role" in entry.value for entry in entries):
        messages = [entry.value for entry in entries]
        return [_history(name, _Entry({}, b"", _dialect_of(messages)), messages, model)]
    if all(entry.messages is not None for entry in entries):
        return [
            _history(f"{name}#{number}", entry, entry.messages or [], model) for number, entry in enumerate(entries, 1)
        ]
    raise RecordingError(f"holds no conversation; give {_FORMS}")


def _entries(data: bytes) -> list[_Entry]:
    """What a file holds: the elements of its one JSON list, its one JSON value, or one value a line."""
    if not data.strip():
        raise RecordingError(f"is empty; give {_FORMS}")
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _lines(data, str(error))
    if isinstance(value, list) and value:
        return [_Entry(element, msgspec.json.encode(element)) for element in value]
    return [_Entry(value, data)]


def _lines(data: bytes, whole: str) -> list[_Entry]:
    """`whole` is what is wrong with the file as one JSON value."""
    entries: list[_Entry] = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entries.append(_Entry(msgspec.json.decode(line), line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not entries:
                raise RecordingError(f"is neither JSON nor JSON lines ({whole}); give {_FORMS}") from None
            raise RecordingError(f"line {number} is not JSON ({error}); mend or remove it") from None
    return entries


def _unwrapped(entry: _Entry) -> _Entry:
    """The body of a captured HTTP request, else the entry itself, and its dialect; raises RecordingError for others."""
    value = entry.value
    if not isinstance(value, dict):
        return entry
    if not isinstance(value.get("body"), dict) or entry.messages is not None:
        return replace(entry, dialect=written_in(entry.raw) or _dialect_of(entry.messages or ()))
    body, path = value["body"], value.get("path")
    found = _Entry(body, msgspec.json.encode(body))
    if path is None:
        return _unwrapped(found)
    asked = reading(str(path).partition("?")[0].encode())
    dialect = dialect_of(resource(asked))
    if dialect is None:
        taken = ", ".join("/".join(("", *each.path)) for each in DIALECTS)
        raise RecordingError(f"is a request to {path}, which is relayed as it is; record one of {taken}")
    if asked.mount.model:
        body = body | {"model": asked.mount.model}
        found = _Entry(body, msgspec.json.encode(body))
    return replace(found, dialect=dialect)


def _dialect_of(messages: Iterable[object]) -> Dialect:
    """Of messages alone."""
    return MESSAGES if any(map(_is_anthropic, messages)) else CHAT


def _is_anthropic(message: object) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(isinstance(p, dict) and p.get("type") in _ANTHROPIC for p in content)


def _as_they_are(raws: Sequence[bytes], model: str | None) -> Iterator[bytes]:
    """Requests as they were sent, but for the model where another one is wanted or none is named."""
    for raw in raws:
        named = model_of(raw)
        wanted = model or named or DEFAULT_MODEL
        yield raw if wanted == named else with_fields(raw, {"model": wanted}, without=())


def _history(name: str, holder: _Entry, items: Sequence[object], model: str | None) -> Recording:
    """A conversation as the requests that led to it: one before every answer, and one for what is not answered yet."""
    dialect = holder.dialect
    kept = [item for found in items if (item := _item(found, dialect)) is not None]
    ends = list(_ends([message for item in kept if (message := _described(item, dialect)) is not None]))
    if not ends:
        raise RecordingError(f"holds no message of a user that a request could have been made for; give {_FORMS}")
    fields: Mapping[str, object] = holder.value if isinstance(holder.value, dict) else {}
    named = fields.get("model")
    request: Item = {"model": model or (named if isinstance(named, str) and named else DEFAULT_MODEL)}
    request |= {key: fields[key] for key in _FIELDS[dialect.name] if fields.get(key) is not None}
    opening = msgspec.json.encode(request)[:-1] + b"," + dialect.array.key + b":["
    raws = [msgspec.json.encode(item) for item in kept]
    return Recording(name, dialect, len(ends), lambda: (opening + b",".join(raws[:end]) + b"]}" for end in ends))


def _item(found: object, dialect: Dialect) -> Item | None:
    """An item as clients send it, without what tools noted beside a message of chat; None for what is none."""
    if not isinstance(found, dict) or _described(found, dialect) is None:
        return None
    if dialect is not CHAT:
        return found
    return {key: found[key] for key in _MESSAGE if key in found} if found.get("role") in _ROLES else None


def _described(item: object, dialect: Dialect) -> Message | None:
    """What is said by it, without its tokens."""
    return dialect.items.describe(item, lambda _: 0)


def _ends(messages: Sequence[Message]) -> Iterator[int]:
    """How many messages each request had: it ends with a user message, or with the last result of the calls made."""
    unanswered: set[str] = set()
    asked = False
    for position, message in enumerate(messages):
        if message.role == "assistant":
            if asked and not unanswered:
                yield position
            asked = False
            unanswered.update(call.id for call in message.calls)
        elif message.results:
            asked = True
            unanswered.difference_update(message.results)
        elif message.role == "user":
            asked = True
            unanswered = set()
    if asked and not unanswered:
        yield len(messages)
