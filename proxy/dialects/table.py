"""The dialects that are spoken, found by the path of a request."""

from codecs import BOM_UTF8
from collections.abc import Callable

import msgspec

from proxy.dialects.base import Dialect
from proxy.dialects.chat import answers, messages, questions, requests
from proxy.dialects.messages import answers as messages_answers
from proxy.dialects.messages import breakpoints
from proxy.dialects.messages import items as messages_items
from proxy.dialects.messages import questions as messages_questions
from proxy.dialects.messages import requests as messages_requests
from proxy.dialects.responses import answers as responses_answers
from proxy.dialects.responses import items as responses_items
from proxy.dialects.responses import questions as responses_questions
from proxy.dialects.responses import requests as responses_requests

CHAT = Dialect(
    "chat",
    ("chat", "completions"),
    None,
    requests.ARRAY,
    requests.settings,
    messages,
    answers,
    questions,
)
RESPONSES = Dialect(
    "responses",
    ("responses",),
    ("responses", "input_tokens"),
    responses_requests.ARRAY,
    responses_requests.settings,
    responses_items,
    responses_answers,
    responses_questions,
)
MESSAGES = Dialect(
    "messages",
    ("messages",),
    ("messages", "count_tokens"),
    messages_requests.ARRAY,
    messages_requests.settings,
    messages_items,
    messages_answers,
    messages_questions,
    b"anthropic-version",
    breakpoints,
)
DIALECTS = (CHAT, RESPONSES, MESSAGES)
_BY_PATH = {dialect.path: dialect for dialect in DIALECTS}
_BY_NAME = {dialect.name: dialect for dialect in DIALECTS}


def dialect_of(path: tuple[str, ...]) -> Dialect | None:
    """Of requests to this path, as of `paths.resource`; None where no conversations go."""
    return _BY_PATH.get(path)


def is_counted_at(path: tuple[str, ...]) -> bool:
    """Whether requests to this path ask for the tokens of a conversation."""
    return any(dialect.count_path == path for dialect in DIALECTS)


def spoken_at(path: tuple[str, ...], header: Callable[[bytes], bytes | None]) -> Dialect | None:
    """That of a path or of one below it, else of a client that names its API; None where nothing tells."""
    found = (dialect for dialect in DIALECTS if path[: len(dialect.path)] == dialect.path)
    named_by = (dialect for dialect in DIALECTS if dialect.header is not None and header(dialect.header) is not None)
    return next(found, None) or next(named_by, None)


def written_in(body: bytes) -> Dialect | None:
    """That of a body by fields that no other dialect has; None where it could be of several."""
    try:
        fields = msgspec.json.decode(body.removeprefix(BOM_UTF8), type=_Fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if fields.messages:
        return MESSAGES if fields.system else None
    return RESPONSES if fields.input else None


class _Fields(msgspec.Struct):
    """What tells dialects apart."""

    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()


def named(name: str) -> Dialect:
    """By the name that configs know it by."""
    return _BY_NAME[name]
