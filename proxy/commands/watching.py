"""`concertina tail` and `concertina open`: the running proxy's requests as they end, and the link to its dashboard."""

import json
import os
import sys
import urllib.request
import webbrowser
from collections.abc import Iterable, Iterator
from datetime import datetime
from http.client import HTTPException
from typing import Annotated
from urllib.error import HTTPError
from urllib.parse import quote, urlencode

import msgspec
from cyclopts import Parameter

from proxy.callers import admin_token
from proxy.commands.common import err, fail, loaded, plain
from proxy.commands.parameters import AsJson, ConfigPath, Flag
from proxy.commands.running import DIRECT
from proxy.config.loading import Config
from proxy.observing.events import RequestEnded
from proxy.observing.text_lines import request_line
from proxy.server.addresses import of_proxy

_TOKEN = "CONCERTINA_ADMIN_TOKEN"  # noqa: S105 - the name of a variable
# A sign of life comes every 15 seconds.
_QUIET_SECONDS = 60.0
_REFUSED = {
    401: f"set {_TOKEN} to its admin token, or run this with its config, as its user",
    403: "this token may not see requests",
}

Url = Annotated[
    str | None, Parameter(help="Address of the proxy, instead of that of the config.", env_var="CONCERTINA_URL")
]


def tail(session: str = "", *, url: Url = None, config: ConfigPath = None, as_json: AsJson = False) -> None:
    """Print the requests of the running proxy as they end, a line each, until it ends or is interrupted.

    :param session: How the id of the session begins that is wanted alone.
    :param as_json: Print all that is known of each, as JSON.
    """
    try:
        for line in lines(_events(loaded(config), url, session), as_json=as_json):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    except KeyboardInterrupt:
        return
    err("the proxy has ended the stream")


def _events(config: Config, url: str | None, session: str) -> Iterator[bytes]:
    """Lines of the proxy's live stream; ends the command where it cannot be read."""
    address, token = f"{_url(config, url)}/admin/api/live", _token(config, url)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    query = urlencode({"session": session})
    request = urllib.request.Request(f"{address}?{query}", headers=headers)  # noqa: S310 - is http
    try:
        with DIRECT.open(request, timeout=_QUIET_SECONDS) as answer:
            yield from answer
    except HTTPError as error:
        with error:
            fail(f"{address} answers {error.code}: {_REFUSED.get(error.code, 'is that a Concertina of this version?')}")
    except (OSError, ValueError, HTTPException) as error:
        fail(f"{address}: {error}")


def lines(stream: Iterable[bytes], *, as_json: bool) -> Iterator[str]:
    """What is printed of a stream of server-sent events: requests, and how many were lost. Raises ValueError."""
    kind = ""
    for line in stream:
        field, _, value = line.decode().rstrip("\r\n").partition(": ")
        if not field:
            kind = ""
        elif field == "event":
            kind = value
        elif field == "data" and kind == "lost":
            err(f"{json.loads(value)['lost']} requests were too many to be told in time")
        elif field == "data" and kind == "full":
            fail("so many watch this proxy that it takes no more; close another")
        elif field == "data" and not kind:
            yield value if as_json else _told(msgspec.json.decode(value, type=RequestEnded))


def _told(event: RequestEnded) -> str:
    return f"{datetime.fromtimestamp(event.at).astimezone():%H:%M:%S} {plain(request_line(event))}"


def opened(*, url: Url = None, config: ConfigPath = None, show: Flag = False) -> None:
    """Open the dashboard of the running proxy in the browser, signed in where the token was made and not configured.

    :param show: Print the link instead.
    """
    link = link_of(loaded(config), url)
    if show or not webbrowser.open(link):
        sys.stdout.write(f"{link}\n")


def link_of(config: Config, url: str | None) -> str:
    """A configured token is for the form there, and never stands in a link."""
    is_made = url is None and admin_token.configured(config) is None
    token = admin_token.known(config) if is_made else None
    return f"{_url(config, url)}/admin/" + (f"?token={quote(token)}" if token else "")


def _url(config: Config, url: str | None) -> str:
    found = url or of_proxy(config)
    if found is None:
        fail("server.port is 0, so any port may be the proxy's; name its address with --url")
    return found.rstrip("/")


def _token(config: Config, url: str | None) -> str | None:
    """The token of the config's proxy; what is at another address may be anybody's, and gets one that was named."""
    return os.environ.get(_TOKEN) or (admin_token.known(config) if url is None else None)
