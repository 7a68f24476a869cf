"""`concertina tail`: the running proxy's requests as they end, one line each, in sentences."""

import json
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from proxy.admin.endpoints import find_endpoint
from proxy.cli.common import err, fail
from proxy.cli.parameters import AsJson, ConfigPath
from proxy.cli.running import config_of_running
from proxy.cli.watching.running_proxy import UnansweredError, Url, answer_lines, url_of
from proxy.cli.watching.sentences import request_sentences
from proxy.telemetry.events import RequestEnded

# The stream sends a keepalive every 15 seconds.
_QUIET_SECONDS = 60.0


class _Requests(msgspec.Struct):
    requests: list[RequestEnded]


def tail(
    session: str = "", *, request: str = "", url: Url = None, config: ConfigPath = None, as_json: AsJson = False
) -> None:
    """Print each request of the running proxy on a line as it ends: changes, reasons, tokens and price.

    It ends with the proxy, or with Ctrl-C.

    :param session: Print only the session with this label or beginning of its id.
    :param request: Print only the requests of all replicas with this beginning of their id, and end.
    :param as_json: Print all facts of each request, as JSON.
    """
    loaded = config_of_running(config, url)
    try:
        if request:
            query = {"id": request}
            response = b"".join(answer_lines(loaded, url, find_endpoint("requests"), query, _QUIET_SECONDS))
            _print_requests(response, request, as_json=as_json)
            return
        stream = answer_lines(loaded, url, find_endpoint("live"), {}, _QUIET_SECONDS)
        for line in lines(_announced(stream, url_of(loaded, url), session), session, as_json=as_json):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    except UnansweredError as error:
        fail(str(error))
    except KeyboardInterrupt:
        return
    err("the proxy has ended the stream")


def _print_requests(response: bytes, begin: str, *, as_json: bool) -> None:
    """Print the requests of a page, the oldest first."""
    requests = msgspec.json.decode(response, type=_Requests).requests
    if not requests:
        fail(f"no stored request has an id that begins with {begin}")
    for event in reversed(requests):
        sys.stdout.write(f"{msgspec.json.encode(event).decode() if as_json else line_of(event)}\n")


def _announced(stream: Iterable[bytes], url: str, session: str) -> Iterator[bytes]:
    """Yield the lines of a stream. On a terminal, print that it is open and what is awaited."""
    for number, line in enumerate(stream):
        if not number and sys.stderr.isatty():
            err(f"waiting for requests{f' of session {session}' if session else ''} at {url}; Ctrl-C ends this")
        yield line


def lines(stream: Iterable[bytes], session: str = "", *, as_json: bool) -> Iterator[str]:
    """Yield the lines to print of a stream of server-sent events: all requests, or one session's. Raises ValueError."""
    kind = ""
    for line in stream:
        field, _, value = line.decode().rstrip("\r\n").partition(": ")
        if not field:
            kind = ""
        elif field == "event":
            kind = value
        elif field == "data" and kind == "lost":
            err(f"{json.loads(value)['lost']} requests are missing here: they ended faster than this command prints")
        elif field == "data" and kind == "full":
            fail("too many pages and terminals watch this proxy; close one of them, and try again")
        elif field == "data" and not kind:
            request = msgspec.json.decode(value, type=RequestEnded)
            if session in ("", request.label) or (request.session or "").startswith(session):
                yield value if as_json else line_of(request)


def line_of(event: RequestEnded) -> str:
    """Return a request on a line, with the time of day."""
    return f"{datetime.fromtimestamp(event.at).astimezone():%H:%M:%S}  {request_sentences(event)}"
