"""The label people know a session by; correctness never depends on it."""

from collections.abc import Callable

from proxy.dialects.reader import CountedRequest
from proxy.dialects.texts import printable

_HEADERS = (
    *(b"x-session-id", b"x-claude-code-session-id", b"session-id", b"session_id", b"thread-id"),
    *(b"x-session-affinity", b"x-affinity", b"x-opencode-session", b"x-litellm-session-id"),
    *(b"helicone-session-id", b"x-openwebui-chat-id"),
)
_LONGEST = 128


def label_of(header: Callable[[bytes], bytes | None]) -> str:
    """The first label in a request's head, cut and made printable; empty where it has none.

    header: the value of a header by its name in lower case.
    """
    for name in _HEADERS:
        if value := header(name):
            return printable(value.decode("latin-1"), _LONGEST)
    return ""


def label_given(request: CountedRequest) -> str:
    """The same of its body."""
    return printable(request.settings.label, _LONGEST)
