"""`concertina tail`: the running proxy's requests as they end, a line each."""

import json
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from proxy.admin.endpoints import find_endpoint
from proxy.cli.common import err, fail
from proxy.cli.parameters import AsJson, ConfigPath
from proxy.cli.running import config_of_running
from proxy.cli.watching.running_proxy import UnansweredError, Url, answer_lines
from proxy.telemetry.events import RequestEnded
from proxy.telemetry.text_lines import request_line

# A sign of life comes every 15 seconds.
_QUIET_SECONDS = 60.0


def tail(session: str = "", *, url: Url = None, config: ConfigPath = None, as_json: AsJson = False) -> None:
    """Print the requests of the running proxy as they end, a line each, until it ends or is interrupted.

    :param session: How the id of the session begins that is wanted alone.
    :param as_json: Print all that is known of each, as JSON.
    """
    try:
        stream = answer_lines(
            config_of_running(config, url), url, find_endpoint("live"), {"session": session}, _QUIET_SECONDS
        )
        for line in lines(stream, as_json=as_json):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    except UnansweredError as error:
        fail(str(error))
    except KeyboardInterrupt:
        return
    err("the proxy has ended the stream")


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
            yield value if as_json else line_of(msgspec.json.decode(value, type=RequestEnded))


def line_of(event: RequestEnded) -> str:
    """A request on a line, with the time of day."""
    return f"{datetime.fromtimestamp(event.at).astimezone():%H:%M:%S} {request_line(event)}"
