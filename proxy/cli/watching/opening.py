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
    """Open the dashboard of the running proxy in the browser. A generated token signs in.

    :param show: Print the link instead.
    """
    loaded = config_of_running(config, url)
    try:
        readiness(url_of(loaded, url))
    except HTTPError:
        pass  # it is not ready, and its pages show why
    except (OSError, ValueError, HTTPException) as error:
        fail(without_answer(url_of(loaded, url), error))
    if show or not webbrowser.open(link_of(loaded, url, is_for_once=True)):
        sys.stdout.write(f"{link_of(loaded, url)}\n")


def link_of(config: Config, url: str | None, *, is_for_once: bool = False) -> str:
    """Return the link to the dashboard. It never contains a configured token, which belongs in the form.

    is_for_once: replace a generated token with a short-lived link for one sign-in. All users of the machine can see the
    arguments of a browser.
    """
    is_made = url is None and admin_token.configured_token(config) is None
    token = token_of(config) if is_made else None
    if token and is_for_once:
        token = sign_link(token, time.time())
    return f"{url_of(config, url)}{ADMIN}" + (f"?token={quote(token)}" if token else "")
