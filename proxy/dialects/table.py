"""The supported dialects, by the paths of their requests. Every other lookup of a dialect is here too."""

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
# For requests and errors of an unknown dialect.
DEFAULT_DIALECT = CHAT


@dataclass(frozen=True, slots=True)
class MatchedPath:
    """A path of a dialect.

    names: its segments, as sent.
    model: the model that it names; empty for none.
    """

    dialect: Dialect
    path: DialectPath
    names: tuple[str, ...]
    model: str


def match_path(names: Sequence[str]) -> MatchedPath | None:
    """Return the dialect's path with these segments, without /v1 or any other prefix; None if there is none."""
    for dialect in DIALECTS:
        for path in dialect.paths:
            if (model := path.model_in(names)) is not None:
                return MatchedPath(dialect, path, path.naming(model), model)
    return None


def match_prefix(names: Sequence[str]) -> MatchedPath | None:
    """Return the dialect's path that these segments begin with; None if there is none."""
    ends = range(len(names), 0, -1)
    return next((matched for end in ends if (matched := match_path(names[:end])) is not None), None)


def dialect_of_headers(header: Callable[[bytes], bytes | None]) -> Dialect | None:
    """Return the dialect of a client that names its API in a header; None if it does not."""
    return next((each for each in DIALECTS if each.header is not None and header(each.header) is not None), None)


def dialect_of_body(body: bytes) -> Dialect | None:
    """Return the dialect of a body by fields that are unique to it; None if several are possible."""
    try:
        keys = msgspec.json.decode(body.removeprefix(BOM_UTF8), type=dict[str, msgspec.Raw]).keys()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return next((dialect for dialect in DIALECTS if dialect.recorded.is_body(keys)), None)


def dialect_of_items(items: Sequence[object]) -> Dialect | None:
    """Return the dialect of a list of items; None if several are possible."""
    return next((dialect for dialect in DIALECTS if any(map(dialect.recorded.is_item, items))), None)


def dialect_named(name: str) -> Dialect:
    """Return the dialect with this name in configs."""
    return next(dialect for dialect in DIALECTS if dialect.name == name)


def names() -> tuple[str, ...]:
    """Return the names of all dialects."""
    return tuple(dialect.name for dialect in DIALECTS)


def dialects_of_host(host: str) -> tuple[str, ...]:
    """Return the dialects that a host supports, its own first; all if the host is unknown."""
    own = [dialect.name for dialect in DIALECTS if dialect.home == host]
    return (*own, *(dialect.name for dialect in DIALECTS if host in dialect.also_at)) or names()


def key_headers() -> tuple[bytes, ...]:
    """Return the headers that may hold a key: those of the dialects, of Azure and its gateway, and of Google."""
    own = (dialect.key_header for dialect in DIALECTS)
    return tuple(dict.fromkeys((*own, b"api-key", b"x-goog-api-key", b"ocp-apim-subscription-key")))


def key_settings() -> tuple[str, ...]:
    """Return the names in configs of the header for an upstream's key. `bearer` is Authorization."""
    own = (each.key_header.decode() for each in DIALECTS if each.key_header != b"authorization")
    return tuple(dict.fromkeys(("bearer", *own, "api-key")))


def telemetry_names() -> dict[str, dict[str, str | int | float | bool]]:
    """Return OpenTelemetry's names of provider and operation, by dialect."""
    return {
        each.name: {"gen_ai.operation.name": each.operation, "gen_ai.provider.name": each.provider} for each in DIALECTS
    }


def shown_paths() -> list[str]:
    """Return the paths of conversations, as shown to users."""
    return [f"/v1/{path.pattern}" for each in DIALECTS for path in each.paths if path.does == "converse"]
