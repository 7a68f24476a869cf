"""How clients are told of errors of ours: in the shape of the API that they speak, which HTTP does not know."""

from typing import Protocol

import msgspec


class ErrorShape(Protocol):
    """WAITING: what an event stream may begin with while there is nothing to say."""

    WAITING: bytes

    def error_body(self, error: object, status: int, /) -> bytes:
        """The body of an answer that reports an error."""

    def error_event(self, error: object, status: int, /, *, ends: bool) -> bytes:
        """An event that reports it in a stream; `ends`: nothing follows it."""


class JSONErrors:
    """For an application whose clients speak no API that is known."""

    WAITING = b": waiting\n\n"

    def error_body(self, error: object, _status: int, /) -> bytes:
        return msgspec.json.encode({"error": error})

    def error_event(self, error: object, status: int, /, *, ends: bool) -> bytes:  # noqa: ARG002 - as the protocol has it
        return b"data: " + self.error_body(error, status) + b"\n\n"
