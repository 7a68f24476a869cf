"""Parse recorded conversations in several formats into the requests that their clients sent."""

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
    """A file that cannot be replayed, with the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One session. `bodies` returns the `requests` of its client, oldest first."""

    name: str
    dialect: Dialect
    requests: int
    bodies: Callable[[], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class _RecordedValue:
    """A JSON value of a file, its bytes, and its dialect."""

    value: object
    raw: bytes
    dialect: Dialect = DEFAULT_DIALECT

    @property
    def messages(self) -> list[object] | None:
        """Return the conversation in it; None if it has none."""
        items = self.value.get(self.dialect.array.name) if isinstance(self.value, dict) else None
        return items if isinstance(items, list) and items else None

    @property
    def is_request(self) -> bool:
        """Return True if it is a client's request and not a finished conversation, which ends with a response."""
        newest = (self.messages or [None])[-1]
        message = _describe(newest, self.dialect)
        return message is not None and message.role != "assistant"


def read_recordings(path: Path, model: str | None) -> list[Recording]:
    """Return the sessions of a file, for `model` if one is named. Raises RecordingError."""
    try:
        return read_from(path.name, path.read_bytes(), model)
    except OSError as error:
        raise RecordingError(f"{error.strerror}; name a file or a directory that can be read") from None


def read_from(name: str, data: bytes, model: str | None) -> list[Recording]:
    """Return the sessions in the content of a file. Raises RecordingError."""
    entries = [_unwrap(entry) for entry in _entries(readable(data))]
    if len(entries) == 1 and entries[0].messages is not None:
        return [_history(name, entries[0], entries[0].messages, model)]
    first_entry = entries[0]
    if all(entry.is_request and entry.dialect is first_entry.dialect for entry in entries):
        dialect = _dialect_of_path(first_entry.dialect, model)
        bodies = partial(_with_model, [entry.raw for entry in entries], dialect, model)
        return [Recording(name, dialect, len(entries), bodies)]
    if all(isinstance(entry.value, dict) and "role" in entry.value for entry in entries):
        messages = [entry.value for entry in entries]
        return [_history(name, _RecordedValue({}, b"", dialect_of_items(messages) or DEFAULT_DIALECT), messages, model)]
    if all(entry.messages is not None for entry in entries):
        return [
            _history(f"{name}#{number}", entry, entry.messages or [], model) for number, entry in enumerate(entries, 1)
        ]
    raise RecordingError(f"contains no conversation; give {_FORMS}")


def _entries(data: bytes) -> list[_RecordedValue]:
    """Return the values in a file: the elements of its JSON list, its one JSON value, or one value per line."""
    if not data.strip():
        raise RecordingError(f"is empty; give {_FORMS}")
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _lines(data, str(error))
    if isinstance(value, list) and value:
        return [_RecordedValue(element, msgspec.json.encode(element)) for element in value]
    return [_RecordedValue(value, data)]


def _lines(data: bytes, document_error: str) -> list[_RecordedValue]:
    """Parse one JSON value per line. `document_error` is the error of parsing the file as one value."""
    entries: list[_RecordedValue] = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entries.append(_RecordedValue(msgspec.json.decode(line), line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not entries:
                raise RecordingError(f"is neither JSON nor JSON lines ({document_error}); give {_FORMS}") from None
            raise RecordingError(f"line {number} is not JSON ({error}); correct or remove it") from None
    return entries


def _unwrap(entry: _RecordedValue) -> _RecordedValue:
    """Return the body of a captured HTTP request, or else the entry itself, with its dialect. Raises RecordingError."""
    value = entry.value
    if not isinstance(value, dict):
        return entry
    if not isinstance(value.get("body"), dict) or entry.messages is not None:
        return replace(entry, dialect=_dialect_of(entry))
    body, path = value["body"], value.get("path")
    body_entry = _RecordedValue(body, msgspec.json.encode(body))
    if path is None:
        return _unwrap(body_entry)
    route = reading(str(path).partition("?")[0].encode())
    if route.found is None or route.found.path.does != "converse":
        paths = ", ".join(path.removeprefix("/v1") for path in shown_paths())
        raise RecordingError(f"is a request to {path}, which is relayed unchanged; record one of {paths}")
    dialect = route.found.dialect
    if route.model and dialect.model_key:
        body = body | {dialect.model_key: route.model}
        body_entry = _RecordedValue(body, msgspec.json.encode(body))
    return replace(body_entry, dialect=dialect if dialect.model_key else dialect.with_path(route.model))


def _dialect_of(entry: _RecordedValue) -> Dialect:
    """Return the dialect of an entry by its fields, or else by its items."""
    return dialect_of_body(entry.raw) or dialect_of_items(entry.messages or ()) or DEFAULT_DIALECT


def _dialect_of_path(dialect: Dialect, model: str | None) -> Dialect:
    """Return the dialect of requests for a model if their path names the model."""
    return dialect if dialect.model_key else dialect.with_path(model or dialect.model or DEFAULT_MODEL)


def _with_model(raws: Sequence[bytes], dialect: Dialect, model: str | None) -> Iterator[bytes]:
    """Yield the requests unchanged, except for the model if another one is named or the request has none."""
    for raw in raws:
        recorded = dialect.model_of(raw)
        wanted = model or recorded or DEFAULT_MODEL
        yield raw if wanted == recorded or not dialect.model_key else with_field(raw, dialect.model_key, wanted)


def _history(name: str, holder: _RecordedValue, items: Sequence[object], model: str | None) -> Recording:
    """Return a conversation as a recording: one request before every response, and one for unanswered messages."""
    dialect = _dialect_of_path(holder.dialect, model)
    sent_items = [item for recorded in items if (item := _item(recorded, dialect)) is not None]
    ends = list(_ends([message for item in sent_items if (message := _describe(item, dialect)) is not None]))
    if not ends:
        raise RecordingError(f"contains no user message to build a request for; give {_FORMS}")
    fields: Mapping[str, object] = holder.value if isinstance(holder.value, dict) else {}
    request = {key: fields[key] for key in dialect.recorded.FIELDS if fields.get(key) is not None}
    if dialect.model_key:
        recorded_model = fields.get(dialect.model_key)
        default_model = recorded_model if isinstance(recorded_model, str) and recorded_model else DEFAULT_MODEL
        request = {dialect.model_key: model or default_model, **request}
    opening = b"".join(member + b"," for member in members_of(msgspec.json.encode(request)).values())
    opening = b"{" + opening + dialect.array.key + b":["
    raws = [msgspec.json.encode(item) for item in sent_items]
    return Recording(name, dialect, len(ends), lambda: (opening + b",".join(raws[:end]) + b"]}" for end in ends))


def _item(item: object, dialect: Dialect) -> Item | None:
    """Return an item in the form that clients send; None if it is no item."""
    if not isinstance(item, dict) or _describe(item, dialect) is None:
        return None
    return dialect.recorded.as_sent(item)


def _describe(item: object, dialect: Dialect) -> Message | None:
    """Return the message of an item, without its tokens."""
    return dialect.items.describe(item, lambda _: 0)


def _ends(messages: Sequence[Message]) -> Iterator[int]:
    """Yield the number of messages in each request. It ends with a user message, or with the last tool result."""
    unanswered: set[str] = set()
    is_open = False
    for position, message in enumerate(messages):
        if message.role == "assistant":
            if is_open and not unanswered:
                yield position
            is_open = False
            unanswered.update(call.id for call in message.calls)
        elif message.results:
            is_open = True
            unanswered.difference_update(message.results)
        elif message.role == "user":
            is_open = True
            unanswered = set()
    if is_open and not unanswered:
        yield len(messages)
