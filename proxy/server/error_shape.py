"""How clients are told of errors of ours: in the shape of the API that they speak, which HTTP does not know."""

from typing import Protocol

import msgspec


class ErrorShape(Protocol):
    """WAITING: what an event stream may begin with while there is nothing to say."""

    WAITING: bytes

    def error_body(self, error: object, status: int, /) -> bytes:
        """Return the body of a response that reports an error."""

    def error_event(self, error: object, status: int, /, *, ends: bool) -> bytes:
        """Return an event that reports an error in a stream. ends: nothing follows it."""


class JSONErrors:
    """Errors for an application whose clients use no known API."""

    WAITING = b": waiting\n\n"

    def error_body(self, error: object, _status: int, /) -> bytes:
        return msgspec.json.encode({"error": error})

    def error_event(self, error: object, status: int, /, *, ends: bool) -> bytes:  # noqa: ARG002 - as the protocol has it
        return b"data: " + self.error_body(error, status) + b"\n\n"
