"""The client's label of a session, for people. Correctness never depends on it."""

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
    """Return the first label in a request's headers, shortened and printable; empty without one.

    header: returns the value of a header by its lower-case name.
    """
    for name in _HEADERS:
        if value := header(name):
            return printable(value.decode("latin-1"), _LONGEST)
    return ""


def label_given(request: CountedRequest) -> str:
    """Return the label in a request's body, shortened and printable; empty without one."""
    return printable(request.settings.label, _LONGEST)
