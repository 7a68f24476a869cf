"""The format of the proxy's errors for a client, which depends on the client's API."""

from typing import Protocol

import msgspec


class ErrorShape(Protocol):
    """The error format of an API. WAITING: bytes that may begin an event stream while there is no content."""

    WAITING: bytes

    def error_body(self, error: object, status: int, /) -> bytes:
        """Return the body of a response that reports an error."""

    def error_event(self, error: object, status: int, /, *, ends: bool) -> bytes:
        """Return an event that reports an error in a stream. ends: True if nothing follows it."""


class JSONErrors:
    """Errors for an application whose clients use no known API."""

    WAITING = b": waiting\n\n"

    def error_body(self, error: object, _status: int, /) -> bytes:
        """Return the error as JSON."""
        return msgspec.json.encode({"error": error})

    def error_event(self, error: object, status: int, /, *, ends: bool) -> bytes:  # noqa: ARG002 - required by the protocol
        """Return the error as an event."""
        return b"data: " + self.error_body(error, status) + b"\n\n"
