"""What the server asks of an application."""

from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

from proxy.config.settings import Server
from proxy.server.error_shape import ErrorShape, JSONErrors
from proxy.server.exchange import Exchange
from proxy.server.head import RequestHead
from proxy.server.headers import Headers

# ASGI's own types: events and scopes are open dictionaries by specification.
Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_DEFAULTS = Server()
_ERRORS = JSONErrors()


class Served:
    """Base of an application with a config, and an end in order. By itself it serves another application, whose clients
    may take as long as usual."""

    is_draining = False

    def __init__(self, pages: Application) -> None:
        """`pages`: answers by ASGI what does not come as an exchange."""
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._pages(scope, receive, send)

    def head(self, method: str, target: str, headers: Headers) -> RequestHead:
        """What such a head says, as `answers` and the exchange get it."""
        return RequestHead(method, target, headers)

    def error_shape(self, head: RequestHead) -> ErrorShape:  # noqa: ARG002 - of a request that is another's
        """How its client is told of errors."""
        return _ERRORS

    def answers(self, head: RequestHead) -> bool:  # noqa: ARG002 - of a request that is another's
        """Whether such a request comes as an exchange, by `answer`; all others come by ASGI."""
        return False

    def answer(self, exchange: Exchange) -> Coroutine[object, None, None]:
        raise NotImplementedError

    def drain(self) -> None:
        """Be no longer ready, since the process is about to end."""
        raise NotImplementedError

    def report_end(self) -> None:
        """All that was under way has ended."""
        raise NotImplementedError

    def break_off(self) -> None:
        """End every open request now, each with an error its client can read."""
        raise NotImplementedError

    @property
    def server_settings(self) -> Server:
        return _DEFAULTS
