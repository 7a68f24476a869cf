"""Recorded conversations, in the forms people have them, as the requests that their clients sent."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from policies.conversation.message import Message
from proxy.callers.api_paths import reading
from proxy.dialects.base import Dialect
from proxy.dialects.json_array import members_of, with_field
from proxy.dialects.surrogates import readable
from proxy.dialects.table import DEFAULT_DIALECT, dialect_of_body, dialect_of_items, shown_paths

DEFAULT_MODEL = "gpt-4o"

_FORMS = "a request body, a list of messages, JSON lines of either, or a trajectory with messages"

Item = Mapping[str, object]


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
class _RecordedValue:
    """One JSON value of a file, its bytes, and the dialect it is in."""

    value: object
    raw: bytes
    dialect: Dialect = DEFAULT_DIALECT

    @property
    def messages(self) -> list[object] | None:
        """The conversation it holds; None where it holds none."""
        found = self.value.get(self.dialect.array.name) if isinstance(self.value, dict) else None
        return found if isinstance(found, list) and found else None

    @property
    def is_request(self) -> bool:
        """Whether it is what a client sent, and no conversation that has ended: that ends with an answer."""
        last = (self.messages or [None])[-1]
        message = _describe(last, self.dialect)
        return message is not None and message.role != "assistant"


def read_recordings(path: Path, model: str | None) -> list[Recording]:
    """The sessions of a file, for `model` where one is named; raises RecordingError."""
    try:
        return read_from(path.name, path.read_bytes(), model)
    except OSError as error:
        raise RecordingError(f"{error.strerror}; name a file or a directory that can be read") from None


def read_from(name: str, data: bytes, model: str | None) -> list[Recording]:
    """The same of what a file of this name holds."""
    entries = [_unwrap(entry) for entry in _entries(readable(data))]
    if len(entries) == 1 and entries[0].messages is not None:
        return [_history(name, entries[0], entries[0].messages, model)]
    first = entries[0]
    if all(entry.is_request and entry.dialect is first.dialect for entry in entries):
        dialect = _dialect_of_path(first.dialect, model)
        bodies = partial(_as_they_are, [entry.raw for entry in entries], dialect, model)
        return [Recording(name, dialect, len(entries), bodies)]
    if all(isinstance(entry.value, dict) and "role" in entry.value for entry in entries):
        messages = [entry.value for entry in entries]
        return [_history(name, _RecordedValue({}, b"", dialect_of_items(messages) or DEFAULT_DIALECT), messages, model)]
    if all(entry.messages is not None for entry in entries):
        return [
            _history(f"{name}#{number}", entry, entry.messages or [], model) for number, entry in enumerate(entries, 1)
        ]
    raise RecordingError(f"holds no conversation; give {_FORMS}")


def _entries(data: bytes) -> list[_RecordedValue]:
    """What a file holds: the elements of its one JSON list, its one JSON value, or one value a line."""
    if not data.strip():
        raise RecordingError(f"is empty; give {_FORMS}")
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _lines(data, str(error))
    if isinstance(value, list) and value:
        return [_RecordedValue(element, msgspec.json.encode(element)) for element in value]
    return [_RecordedValue(value, data)]


def _lines(data: bytes, whole: str) -> list[_RecordedValue]:
    """Parse one JSON value per line; `whole` is the error of the attempt to parse the file as one value."""
    entries: list[_RecordedValue] = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entries.append(_RecordedValue(msgspec.json.decode(line), line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not entries:
                raise RecordingError(f"is neither JSON nor JSON lines ({whole}); give {_FORMS}") from None
            raise RecordingError(f"line {number} is not JSON ({error}); mend or remove it") from None
    return entries


def _unwrap(entry: _RecordedValue) -> _RecordedValue:
    """The body of a captured HTTP request, else the entry itself, and its dialect; raises RecordingError for others."""
    value = entry.value
    if not isinstance(value, dict):
        return entry
    if not isinstance(value.get("body"), dict) or entry.messages is not None:
        return replace(entry, dialect=_dialect_of(entry))
    body, path = value["body"], value.get("path")
    found = _RecordedValue(body, msgspec.json.encode(body))
    if path is None:
        return _unwrap(found)
    asked = reading(str(path).partition("?")[0].encode())
    if asked.found is None or asked.found.path.does != "converse":
        taken = ", ".join(path.removeprefix("/v1") for path in shown_paths())
        raise RecordingError(f"is a request to {path}, which is relayed as it is; record one of {taken}")
    dialect = asked.found.dialect
    if asked.model and dialect.model_key:
        body = body | {dialect.model_key: asked.model}
        found = _RecordedValue(body, msgspec.json.encode(body))
    return replace(found, dialect=dialect if dialect.model_key else dialect.of_path(asked.model))


def _dialect_of(entry: _RecordedValue) -> Dialect:
    """By its fields, else by its items."""
    return dialect_of_body(entry.raw) or dialect_of_items(entry.messages or ()) or DEFAULT_DIALECT


def _dialect_of_path(dialect: Dialect, model: str | None) -> Dialect:
    """That of requests for a model, where their path names it."""
    return dialect if dialect.model_key else dialect.of_path(model or dialect.model or DEFAULT_MODEL)


def _as_they_are(raws: Sequence[bytes], dialect: Dialect, model: str | None) -> Iterator[bytes]:
    """Requests as they were sent, but for the model where another one is wanted or none is named."""
    for raw in raws:
        named = dialect.model_of(raw)
        wanted = model or named or DEFAULT_MODEL
        yield raw if wanted == named or not dialect.model_key else with_field(raw, dialect.model_key, wanted)


def _history(name: str, holder: _RecordedValue, items: Sequence[object], model: str | None) -> Recording:
    """A conversation as the requests that led to it: one before every answer, and one for what is not answered yet."""
    dialect = _dialect_of_path(holder.dialect, model)
    kept = [item for found in items if (item := _item(found, dialect)) is not None]
    ends = list(_ends([message for item in kept if (message := _describe(item, dialect)) is not None]))
    if not ends:
        raise RecordingError(f"holds no message of a user that a request could have been made for; give {_FORMS}")
    fields: Mapping[str, object] = holder.value if isinstance(holder.value, dict) else {}
    request = {key: fields[key] for key in dialect.recorded.FIELDS if fields.get(key) is not None}
    if dialect.model_key:
        named = fields.get(dialect.model_key)
        told = named if isinstance(named, str) and named else DEFAULT_MODEL
        request = {dialect.model_key: model or told, **request}
    opening = b"".join(member + b"," for member in members_of(msgspec.json.encode(request)).values())
    opening = b"{" + opening + dialect.array.key + b":["
    raws = [msgspec.json.encode(item) for item in kept]
    return Recording(name, dialect, len(ends), lambda: (opening + b",".join(raws[:end]) + b"]}" for end in ends))


def _item(found: object, dialect: Dialect) -> Item | None:
    """An item as clients send it; None for what is none."""
    if not isinstance(found, dict) or _describe(found, dialect) is None:
        return None
    return dialect.recorded.as_sent(found)


def _describe(item: object, dialect: Dialect) -> Message | None:
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
