"""What the server needs of an application besides ASGI."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from proxy.config.settings import Server
from proxy.server.error_shape import ErrorShape, JSONErrors
from proxy.server.headers import Headers

# ASGI's own types: events and scopes are open dictionaries by specification.
Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

_DEFAULTS = Server()
_ERRORS = JSONErrors()


class Served:
    """Base of an application with settings of the server and an orderly end. Any other one is served with defaults."""

    is_draining = False

    @property
    def server_settings(self) -> Server:
        return _DEFAULTS

    def error_shape(self, method: str, target: str, headers: Headers) -> ErrorShape:  # noqa: ARG002 - by any request
        """Return how the client of such a request reads errors."""
        return _ERRORS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI 3.0)."""
        raise NotImplementedError

    def drain(self) -> None:
        """Stop being ready: the process is about to end."""
        raise NotImplementedError

    def break_off(self) -> None:
        """End every request in flight now, each with an error that its client can read."""
        raise NotImplementedError

    def report_end(self) -> None:
        """Report that no request is in flight any more."""
        raise NotImplementedError
