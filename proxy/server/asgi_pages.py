"""Exchanges that an ASGI application answers: the proxy's own pages (ASGI 3.0, HTTP sub-specification)."""

import asyncio
import sys
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from proxy.errors import ClientGoneError
from proxy.runtime.stepping import in_task
from proxy.server.exchange import Exchange
from proxy.server.served import Event, Scope, Served


class ConnectionPages:
    """Of one connection. What is raised is the application's."""

    def __init__(self, app: Served, transport: asyncio.BaseTransport, state: dict[str, Any], root_path: str) -> None:
        self._app = app
        self._transport = transport
        self._state = state
        self._root_path = root_path

    async def answer(self, exchange: Exchange) -> None:
        await in_task()
        exchange.shows_id = False
        body = exchange.request.chunks(sys.maxsize)

        is_received = False

        async def receive() -> Event:
            nonlocal is_received
            if not is_received and not exchange.request.is_lost:
                with suppress(ClientGoneError):
                    chunk = await anext(body, b"")
                    is_received = not exchange.request.is_open
                    return {"type": "http.request", "body": chunk, "more_body": not is_received}
            await exchange.request.lost()
            return {"type": "http.disconnect"}

        async def send(event: Event) -> None:
            if event["type"] == "http.response.start":
                headers = [(name.lower(), value) for name, value in event.get("headers", ())]
                await exchange.start(event["status"], headers)
            elif not exchange.disconnected:
                await exchange.write(event.get("body", b""), more=event.get("more_body", False))

        await self._app(self._scope(exchange), receive, send)

    def _scope(self, exchange: Exchange) -> Scope:
        head, transport = exchange.head, self._transport
        path, _, query = head.target.partition("?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": exchange.version,
            "method": head.method,
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
            "path": self._root_path + unquote(path),
            "raw_path": (self._root_path + path).encode("latin-1"),
            "query_string": query.encode("latin-1"),
            "root_path": self._root_path,
            "headers": head.headers,
            "client": _address(transport, "peername"),
            "server": _address(transport, "sockname"),
            "state": self._state.copy(),
        }


def _address(transport: asyncio.BaseTransport, name: str) -> tuple[str, int] | None:
    """Host and port; None if the transport does not say."""
    info = transport.get_extra_info(name)
    return (str(info[0]), int(info[1])) if isinstance(info, tuple) and len(info) > 1 else None
