"""`concertina open`: the link to the running proxy's dashboard."""

import sys
import time
import webbrowser
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import quote

from proxy.admin.access import sign_link
from proxy.admin.endpoints import ADMIN
from proxy.callers import admin_token
from proxy.cli.common import fail
from proxy.cli.parameters import ConfigPath, Flag
from proxy.cli.running import config_of_running, readiness, token_of, without_answer
from proxy.cli.watching.running_proxy import Url, url_of
from proxy.config.loading import Config


def open_dashboard(*, url: Url = None, config: ConfigPath = None, show: Flag = False) -> None:
    """Open the dashboard of the running proxy in the browser, signed in where the token was made and not configured.

    :param show: Print the link instead.
    """
    known = config_of_running(config, url)
    try:
        readiness(url_of(known, url))
    except HTTPError:
        pass  # there is one that is not ready, and says on its pages why
    except (OSError, ValueError, HTTPException) as error:
        fail(without_answer(url_of(known, url), error))
    if show or not webbrowser.open(link_of(known, url, is_for_once=True)):
        sys.stdout.write(f"{link_of(known, url)}\n")


def link_of(config: Config, url: str | None, *, is_for_once: bool = False) -> str:
    """A configured token is for the form there, and never stands in a link. `is_for_once`: nor does one that was made,
    but what is good for one sign-in soon: what a browser is started with is seen by all users of the machine."""
    is_made = url is None and admin_token.configured_token(config) is None
    token = token_of(config) if is_made else None
    if token and is_for_once:
        token = sign_link(token, time.time())
    return f"{url_of(config, url)}{ADMIN}" + (f"?token={quote(token)}" if token else "")
