"""The running proxy for commands that watch it: its address, token and responses."""

import os
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Annotated
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode

from cyclopts import Parameter

from proxy.admin.endpoints import Endpoint
from proxy.cli.common import fail
from proxy.cli.running import DIRECT, as_running, reason_of, token_of, without_answer
from proxy.config.loading import Config
from proxy.server.addresses import named_url, of_proxy

_TOKEN = "CONCERTINA_ADMIN_TOKEN"  # noqa: S105 - the name of a variable
_REFUSED = {
    401: f"set {_TOKEN} to its admin token, or run this with its config, as its user",
    403: f"this token may not read requests; set {_TOKEN} to the admin token, or to a viewer key of the tenant",
}

Url = Annotated[
    str | None, Parameter(help="Address of the proxy, instead of that of the config.", env_var="CONCERTINA_URL")
]


class UnansweredError(Exception):
    """The proxy did not answer, or refused. The text has the reason and the remedy."""


def answer_lines(
    config: Config, url: str | None, endpoint: Endpoint, query: Mapping[str, str], seconds: float
) -> Iterator[bytes]:
    """Yield the lines of an endpoint's response. Raises UnansweredError.

    seconds: timeout of each line.
    """
    address, token = f"{url_of(config, url)}{endpoint.path_for()}", _token(config, url)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{address}?{urlencode(query)}", headers=headers)  # noqa: S310 - is http
    try:
        with DIRECT.open(request, timeout=seconds) as response:
            yield from response
    except HTTPError as error:
        with error:
            way_out = _REFUSED.get(error.code, "check that it is a Concertina of this version")
            raise UnansweredError(f"{address} answers {error.code}: {way_out}") from None
    except URLError as error:
        raise UnansweredError(without_answer(url_of(config, url), error)) from None
    except (OSError, ValueError, HTTPException) as error:
        raise UnansweredError(f"{address}: {reason_of(error)}; check that the proxy runs at this address") from None


def url_of(config: Config, url: str | None) -> str:
    """Return the proxy's address. End the command if it is unknown or invalid."""
    if url:
        try:
            return named_url(url)
        except ValueError as error:
            fail(str(error))
    address = of_proxy(as_running(config))
    if address is None:
        fail("server.port is 0, so the proxy's port is unknown; name its address with --url")
    return address


def _token(config: Config, url: str | None) -> str | None:
    """Return the token for the config's proxy. Another address gets only the token of the variable."""
    return os.environ.get(_TOKEN) or (token_of(config) if url is None else None)
