"""The dialects that are spoken, found by the path of a request: whatever else names them asks here."""

from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from proxy.dialects.base import Dialect
from proxy.dialects.chat import answers, messages, questions, recorded, requests
from proxy.dialects.messages import answers as messages_answers
from proxy.dialects.messages import breakpoints
from proxy.dialects.messages import clearing as messages_clearing
from proxy.dialects.messages import compaction as messages_compaction
from proxy.dialects.messages import items as messages_items
from proxy.dialects.messages import questions as messages_questions
from proxy.dialects.messages import recorded as messages_recorded
from proxy.dialects.messages import requests as messages_requests
from proxy.dialects.paths import DialectPath
from proxy.dialects.responses import answers as responses_answers
from proxy.dialects.responses import compact_endpoint as responses_endpoint
from proxy.dialects.responses import compaction as responses_compaction
from proxy.dialects.responses import items as responses_items
from proxy.dialects.responses import questions as responses_questions
from proxy.dialects.responses import recorded as responses_recorded
from proxy.dialects.responses import requests as responses_requests

CHAT = Dialect(
    "chat",
    (DialectPath(("chat", "completions"), is_known=True),),
    requests.ARRAY,
    requests.settings,
    messages.ITEMS,
    answers,
    questions,
    recorded,
    provider="openai",
    home="api.openai.com",
    also_at=("api.anthropic.com",),
)
RESPONSES = Dialect(
    "responses",
    (
        DialectPath(("responses",)),
        DialectPath(("responses", "input_tokens"), "count"),
        DialectPath(("responses", "compact"), "compact"),
    ),
    responses_requests.ARRAY,
    responses_requests.settings,
    responses_items.ITEMS,
    responses_answers,
    responses_questions,
    responses_recorded,
    provider="openai",
    home="api.openai.com",
    text_kind="input_text",
    compacts_at=("api.openai.com", "chatgpt.com", ".openai.azure.com", ".services.ai.azure.com"),
    has_sockets=True,
    compacting=responses_compaction,
    compact_endpoint=responses_endpoint,
    without_sealed=responses_items.without_sealed,
)
MESSAGES = Dialect(
    "messages",
    (DialectPath(("messages",)), DialectPath(("messages", "count_tokens"), "count")),
    messages_requests.ARRAY,
    messages_requests.settings,
    messages_items.ITEMS,
    messages_answers,
    messages_questions,
    messages_recorded,
    provider="anthropic",
    home="api.anthropic.com",
    compacts_at=("api.anthropic.com",),
    header=b"anthropic-version",
    key_header=b"x-api-key",
    breakpoints=breakpoints,
    compacting=messages_compaction,
    clearing=messages_clearing,
    without_sealed=messages_items.ITEMS.without_thinking,
)
DIALECTS: tuple[Dialect, ...] = (CHAT, RESPONSES, MESSAGES)
# What is read and answered in where nothing tells.
DEFAULT_DIALECT = CHAT


@dataclass(frozen=True, slots=True)
class MatchedPath:
    """A path of a dialect. names: its segments, as they are sent. model: the one that it names; empty for none."""

    dialect: Dialect
    path: DialectPath
    names: tuple[str, ...]
    model: str


def found_at(names: Sequence[str]) -> MatchedPath | None:
    """By a path's segments without /v1 or any other mount; None where no dialect has it."""
    for dialect in DIALECTS:
        for path in dialect.paths:
            if (model := path.model_in(names)) is not None:
                return MatchedPath(dialect, path, path.naming(model), model)
    return None


def found_below(names: Sequence[str]) -> MatchedPath | None:
    """The same of a path, or of what stands below it."""
    ends = range(len(names), 0, -1)
    return next((found for end in ends if (found := found_at(names[:end])) is not None), None)


def introduced_by(header: Callable[[bytes], bytes | None]) -> Dialect | None:
    """That of a client that names its API in a header; None where it does not."""
    return next((each for each in DIALECTS if each.header is not None and header(each.header) is not None), None)


def written_in(body: bytes) -> Dialect | None:
    """That of a body by fields that no other dialect has; None where it could be of several."""
    try:
        keys = msgspec.json.decode(body.removeprefix(BOM_UTF8), type=dict[str, msgspec.Raw]).keys()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return next((dialect for dialect in DIALECTS if dialect.recorded.is_body(keys)), None)


def itemized_in(items: Sequence[object]) -> Dialect | None:
    """The same of items alone."""
    return next((dialect for dialect in DIALECTS if any(map(dialect.recorded.is_item, items))), None)


def dialect_named(name: str) -> Dialect:
    """By the name that configs know it by."""
    return next(dialect for dialect in DIALECTS if dialect.name == name)


def names() -> tuple[str, ...]:
    """As `dialect_named` knows them."""
    return tuple(dialect.name for dialect in DIALECTS)


def spoken_by(host: str) -> tuple[str, ...]:
    """What is known to be spoken at a host, its own first: all where nothing is known of it."""
    own = [dialect.name for dialect in DIALECTS if dialect.home == host]
    return (*own, *(dialect.name for dialect in DIALECTS if host in dialect.also_at)) or names()


def key_headers() -> tuple[bytes, ...]:
    """Where a key may stand: where clients of a dialect put it, and those of Azure, Google, and Azure's gateway."""
    own = (dialect.key_header for dialect in DIALECTS)
    return tuple(dict.fromkeys((*own, b"api-key", b"x-goog-api-key", b"ocp-apim-subscription-key")))


def key_settings() -> tuple[str, ...]:
    """How configs name the header of an upstream's key; `bearer` is Authorization."""
    own = (each.key_header.decode() for each in DIALECTS if each.key_header != b"authorization")
    return tuple(dict.fromkeys(("bearer", *own, "api-key")))


def telemetry_names() -> dict[str, dict[str, str | int | float | bool]]:
    """What traces call those who speak a dialect and what is asked in it, by its name."""
    return {
        each.name: {"gen_ai.operation.name": each.operation, "gen_ai.provider.name": each.provider} for each in DIALECTS
    }


def shown_paths() -> list[str]:
    """Of requests of conversations, as people are told them."""
    return [f"/v1/{path.pattern}" for each in DIALECTS for path in each.paths if path.does == "converse"]
