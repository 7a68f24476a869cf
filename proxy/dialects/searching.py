"""The tool by which a model searches its own conversation: offered beside the client's, its calls taken out of answers.

What all dialects do alike; how calls and results look in each: their modules `searching`, as `Searches` says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from proxy.dialects.json_array import Array, members_of, parse
from proxy.errors import InvalidJSONError

Json = dict[str, object]

NAME = "conversation_search"
QUERY = "query"
DESCRIPTION = (
    "Search everything that was said earlier in this conversation, including what is no longer shown. Returns passages"
    " word for word. Use it before saying that something was not mentioned."
)
PARAMETERS: Json = {
    "type": "object",
    "properties": {QUERY: {"type": "string", "description": "Words that stand in what is looked for."}},
    "required": [QUERY],
    "additionalProperties": False,
}
# A client with more tools may be at its provider's limit.
_MOST_TOOLS = 100
_USAGES = ((), ("response",), ("message",))


class Search(NamedTuple):
    """A call of the tool: its id, and what is looked for."""

    id: str
    query: str


class Said(NamedTuple):
    """What one event of an answer shows: characters of text, the names of calls that begin in it, and whether there is
    anything else that a client must see at once."""

    characters: int = 0
    calls: tuple[str, ...] = ()
    other: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer that searches: what of it goes back to the model, and its searches."""

    items: tuple[Json, ...]
    searches: tuple[Search, ...]


class Asked(msgspec.Struct):
    """What a request says of tools, in any dialect."""

    tools: list[Json] | None = None
    tool_choice: object = None
    functions: object = None
    store: object = None
    background: object = None
    max_tool_calls: object = None
    thinking: object = None


class Hider(Protocol):
    """Takes calls of the tool out of a stream whose beginning the client has."""

    is_hiding: bool

    def shown(self, event: Json, /) -> Json | None:
        """The event without them; None where nothing is left."""


class Searches(Protocol):
    """How one dialect writes the tool, its calls and their results."""

    TOOL: Json

    def allows(self, asked: Asked, /) -> bool:
        """Whether the tool may stand beside the client's own."""

    def said(self, event: Json, /) -> Said:
        """What an event of a stream shows."""

    def turn(self, events: Sequence[Json], /) -> Turn | None:
        """A stream's answer that searches; None where it does not."""

    def whole(self, answer: Json, /) -> Turn | None:
        """The same of an answer in one piece."""

    def results(self, turn: Turn, texts: Sequence[str], /) -> list[Json]:
        """The items of a turn and the results of its searches."""

    def hider(self) -> Hider:
        """For one stream."""


def offered_in(body: bytes, searches: Searches) -> bytes | None:
    """The body with the tool behind the client's own; None where it must not be offered."""
    asked = _asked(body)
    if asked is None or not asked.tools or len(asked.tools) > _MOST_TOOLS or not searches.allows(asked):
        return None
    if NAME in map(_name_of, asked.tools):
        return None
    members = members_of(body)
    members["tools"] = members["tools"].rstrip()[:-1] + b"," + msgspec.json.encode(searches.TOOL) + b"]"
    return b"{" + b",".join(members.values()) + b"}"


def withdrawn(body: bytes) -> bytes:
    """A body without the tool."""
    asked = _asked(body)
    members = members_of(body)
    tools = [tool for tool in (asked.tools or [] if asked else []) if _name_of(tool) != NAME]
    members["tools"] = b'"tools":' + msgspec.json.encode(tools)
    return b"{" + b",".join(members.values()) + b"}"


def continued(body: bytes, array: Array, items: Sequence[Json]) -> bytes:
    """The body with these items behind its own."""
    parsed = parse(body, array)
    if parsed is None:
        raise InvalidJSONError("A request of ours cannot be read.")
    end = parsed.array[1] - 1
    return b"".join((body[:end], *(b"," + msgspec.json.encode(item) for item in items), body[end:]))


def query_of(arguments: object) -> str:
    """What a call looks for; empty where that cannot be read."""
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return ""
    query = arguments.get(QUERY) if isinstance(arguments, dict) else None
    return query if isinstance(query, str) else ""


def usages_in(event: Json) -> list[Json]:
    """Where an event, or a whole answer, says what was used."""
    found = []
    for path in _USAGES:
        place: object = event
        for key in path:
            place = place.get(key) if isinstance(place, dict) else None
        usage = place.get("usage") if isinstance(place, dict) else None
        if isinstance(usage, dict):
            found.append(usage)
    return found


def spent_in(events: Sequence[Json]) -> dict[str, int]:
    """The tokens of one answer by their names, each as it was told last."""
    spent: dict[str, int] = {}
    for usage in (usage for event in events for usage in usages_in(event)):
        spent |= {key: value for key, value in usage.items() if type(value) is int and value}
    return spent


def add_spent(event: Json, spent: Mapping[str, int]) -> None:
    """Add the tokens of answers that the client does not see to what this one tells."""
    for usage in usages_in(event):
        for key, value in usage.items():
            if type(value) is int and key in spent:
                usage[key] = value + spent[key]


def _asked(body: bytes) -> Asked | None:
    try:
        return msgspec.json.decode(body, type=Asked)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _name_of(tool: Json) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")


def as_json(value: object) -> Json:
    """An object, or an empty one in the place of anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Json]:
    """The objects of a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
