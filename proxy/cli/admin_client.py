"""A client of the admin API: of the running proxy, or else of the application in this process over the store."""

import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from types import MappingProxyType
from typing import TypeVar
from urllib.error import HTTPError
from urllib.parse import urlencode

import msgspec

from proxy.admin.endpoints import Endpoint, find_endpoint
from proxy.callers.tenants import Caller
from proxy.cli.running import DIRECT, as_running, authorization
from proxy.config.loading import Config
from proxy.server.addresses import of_proxy

_T = TypeVar("_T")
_READ_SECONDS = 10.0
# To erase a session takes some milliseconds, and a tenant may have 100,000 sessions.
_ERASE_SECONDS = 600.0
_OTHER_TOKEN = "it has another admin token; run this with its config, as its user, or set server.admin_token for both"  # noqa: S105 - no token

Send = Callable[[str, str], tuple[int, bytes]]
"""Send a method and a target, and return status and body of the response."""


class AdminError(Exception):
    """The admin API refused a call, for the reason in the text.

    status: of its response; 0 if it was no response of the API.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        """Create an error with its text."""
        super().__init__(text)
        self.status = status


class _Error(msgspec.Struct):
    message: str
    code: str


class _Refusal(msgspec.Struct):
    error: _Error


class AdminClient:
    """A client of the admin API for one tenant.

    url: of the running proxy; None for the application in process.
    """

    def __init__(self, send: Send, tenant: str, url: str | None = None, verb: str = "show") -> None:
        """Create a client. `verb` names the command's action in errors."""
        self.tenant = tenant
        self.url = url
        self._send = send
        self._verb = verb

    def call(
        self, endpoint: Endpoint, kind: type[_T], query: Mapping[str, str] = MappingProxyType({}), **values: str
    ) -> _T:
        """Return the response of an endpoint, with these values in its path. Raises AdminError."""
        target = f"{endpoint.path_for(**values)}?{urlencode({'tenant': self.tenant, **query})}"
        try:
            status, body = self._send(endpoint.method, target)
            if status < 400:
                return msgspec.json.decode(body, type=kind)
            error = msgspec.json.decode(body, type=_Refusal).error
        except TimeoutError:
            raise AdminError(f"the proxy at {self.url} did not answer in time; try again") from None
        except (OSError, HTTPException, msgspec.DecodeError):
            raise AdminError(f"the proxy at {self.url} stopped, or has another version; try again") from None
        message = _OTHER_TOKEN if error.code in ("invalid_api_key", "not_allowed") else error.message
        prefix = f"the proxy at {self.url} did not {self._verb} it: " if self.url else ""
        raise AdminError(prefix + message, status)


class _List(msgspec.Struct):
    sessions: list[msgspec.Raw]


@contextmanager
def open_client(
    config: Config, caller: Caller, *, changes: str = "", reads_content: bool = False
) -> Iterator[AdminClient]:
    """Find the running proxy, or open the application in process. Raises AdminError and StoreError.

    The application is in process if no proxy answers or the proxy refuses. With `changes`, a verb, a refusal is an
    error. With `reads_content` it is also in process if the pages hide the tenant's content: with the store's secret it
    may be read.
    """
    running = as_running(config)
    url = of_proxy(running)
    if url and running.server.admin and (running.shows_content(caller.tenant) or not reads_content):
        send = _over_http(url, authorization(config))
        client = AdminClient(send, caller.tenant, url, changes or "show")
        try:
            client.call(find_endpoint("sessions"), _List, {"limit": "1"})
        except AdminError as error:
            if changes and error.status not in (0, 404):
                raise
        else:
            yield client
            return
    from proxy.cli.admin_in_process import open_in_process

    with open_in_process(config, caller) as send:
        yield AdminClient(send, caller.tenant)


def _over_http(url: str, headers: Mapping[str, str]) -> Send:
    def send(method: str, target: str) -> tuple[int, bytes]:
        request = urllib.request.Request(f"{url}{target}", method=method, headers={**headers})  # noqa: S310 - is http
        try:
            with DIRECT.open(request, timeout=_ERASE_SECONDS if method == "DELETE" else _READ_SECONDS) as response:
                return response.status, response.read()
        except HTTPError as error:
            with error:
                return error.code, error.read()

    return send
