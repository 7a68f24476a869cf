"""Recorded conversations, in the forms people have them, as the requests that their clients sent."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from proxy.dialects.json_array import model_of, with_fields

DEFAULT_MODEL = "gpt-4o"

_FORMS = "a chat request body, a list of messages, JSON lines of either, or a trajectory with messages"
# What of a request goes with its messages: the rest has no tokens.
_FIELDS = ("tools", "functions", "response_format", "max_tokens", "max_completion_tokens")
_MESSAGE = (
    *("role", "content", "name", "tool_calls", "tool_call_id", "refusal"),
    *("reasoning_content", "reasoning", "reasoning_details"),
)
_ROLES = ("system", "developer", "user", "assistant", "tool")
_CHAT = "/chat/completions"
# Parts of content that only Anthropic's messages have.
_ANTHROPIC = ("tool_use", "tool_result")

Message = dict[str, object]


class RecordingError(Exception):
    """A file that cannot be replayed: why, and the way out."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One session: `bodies` gives the `requests` that its client sent, oldest first."""

    name: str
    requests: int
    bodies: Callable[[], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One JSON value of a file, and its bytes."""

    value: object
    raw: bytes

    @property
    def messages(self) -> list[object] | None:
        """The conversation it holds; None where it holds none."""
        found = self.value.get("messages") if isinstance(self.value, dict) else None
        return found if isinstance(found, list) and found else None

    @property
    def is_request(self) -> bool:
        """Whether it is what a client sent, and no conversation that has ended: that ends with an answer."""
        last = (self.messages or [None])[-1]
        return isinstance(last, dict) and last.get("role") != "assistant"


def read(path: Path, model: str | None) -> list[Recording]:
    """The sessions of a file, for `model` where one is named; raises RecordingError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"{error.strerror}; name a file or a directory that can be read") from None
    entries = [_unwrapped(entry) for entry in _entries(data)]
    if len(entries) == 1 and entries[0].messages is not None:
        return [_history(path.name, entries[0].value, entries[0].messages, model)]
    if all(entry.is_request for entry in entries):
        return [Recording(path.name, len(entries), partial(_as_they_are, [entry.raw for entry in entries], model))]
    if all(isinstance(entry.value, dict) and "role" in entry.value for entry in entries):
        return [_history(path.name, {}, [entry.value for entry in entries], model)]
    if all(entry.messages is not None for entry in entries):
        return [
            _history(f"{path.name}#{number}", entry.value, entry.messages or [], model)
            for number, entry in enumerate(entries, 1)
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
    """The body of a captured HTTP request, else the entry itself; raises RecordingError for other wire formats."""
    value = entry.value
    if isinstance(value, dict) and isinstance(value.get("body"), dict) and entry.messages is None:
        path = str(value.get("path", _CHAT))
        value = value["body"]
        entry = _Entry(value, msgspec.json.encode(value))
    elif isinstance(value, dict) and "input" in value and entry.messages is None:
        path = "/v1/responses"
    elif any(_is_anthropic(message) for message in entry.messages or ()):
        path = "/v1/messages"
    else:
        return entry
    if not path.partition("?")[0].endswith(_CHAT):
        raise RecordingError(f"is a request to {path}, which is relayed as it is; record {_CHAT}")
    return entry


def _is_anthropic(message: object) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(isinstance(p, dict) and p.get("type") in _ANTHROPIC for p in content)


def _as_they_are(raws: Sequence[bytes], model: str | None) -> Iterator[bytes]:
    """Requests as they were sent, but for the model where another one is wanted or none is named."""
    for raw in raws:
        named = model_of(raw)
        wanted = model or named or DEFAULT_MODEL
        yield raw if wanted == named else with_fields(raw, {"model": wanted}, without=())


def _history(name: str, holder: object, messages: Sequence[object], model: str | None) -> Recording:
    """A conversation as the requests that led to it: one before every answer, and one for what is not answered yet."""
    kept = [message for found in messages if (message := _message(found)) is not None]
    ends = list(_ends(kept))
    if not ends:
        raise RecordingError(f"holds no message of a user that a request could have been made for; give {_FORMS}")
    fields: Mapping[str, object] = holder if isinstance(holder, dict) else {}
    named = fields.get("model")
    request: Message = {"model": model or (named if isinstance(named, str) and named else DEFAULT_MODEL)}
    request |= {key: fields[key] for key in _FIELDS if fields.get(key) is not None}
    opening = msgspec.json.encode(request)[:-1] + b',"messages":['
    raws = [msgspec.json.encode(message) for message in kept]
    return Recording(name, len(ends), lambda: (opening + b",".join(raws[:end]) + b"]}" for end in ends))


def _message(found: object) -> Message | None:
    """A message as clients send it, without what tools noted beside it; None for what is no message."""
    if not isinstance(found, dict) or found.get("role") not in _ROLES:
        return None
    return {key: found[key] for key in _MESSAGE if key in found}


def _ends(messages: Sequence[Message]) -> Iterator[int]:
    """How many messages each request had: it ends with a user message, or with the last result of the calls made."""
    unanswered: set[str] = set()
    asked = False
    for position, message in enumerate(messages):
        match message["role"]:
            case "assistant":
                if asked and not unanswered:
                    yield position
                asked = False
                unanswered = set(_calls(message))
            case "tool":
                asked = True
                unanswered.discard(str(message.get("tool_call_id")))
            case "user":
                asked = True
                unanswered = set()
            case _:  # instructions ask for nothing
                pass
    if asked and not unanswered:
        yield len(messages)


def _calls(message: Message) -> Iterator[str]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            yield str(call.get("id"))
