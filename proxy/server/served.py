"""The interface of an application for the server, besides ASGI."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from proxy.config.settings import Server
from proxy.server.error_shape import ErrorShape, JSONErrors
from proxy.server.headers import Headers

# ASGI's own types. Events and scopes are open dictionaries by specification.
Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

_DEFAULTS = Server()
_ERRORS = JSONErrors()


class Served:
    """Base class of an application with server settings and an orderly end. Other applications get defaults."""

    is_draining = False

    @property
    def server_settings(self) -> Server:
        """Return the server's settings."""
        return _DEFAULTS

    def error_shape(self, method: str, target: str, headers: Headers) -> ErrorShape:  # noqa: ARG002 - for overriding methods
        """Return the error format of the client of such a request."""
        return _ERRORS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI 3.0)."""
        raise NotImplementedError

    def drain(self) -> None:
        """Stop being ready, since the process is about to end."""
        raise NotImplementedError

    def break_off(self) -> None:
        """End every request in flight now, each with an error that its client can read."""
        raise NotImplementedError

    def report_end(self) -> None:
        """Report that no request is in flight any more."""
        raise NotImplementedError
