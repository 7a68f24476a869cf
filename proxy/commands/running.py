"""Asking the proxy that runs with a config: whether it is ready, and to erase what it and its store hold."""

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from proxy.admin.endpoints import METRICS, READY, find_endpoint
from proxy.callers import admin_token
from proxy.commands.common import chosen, err, fail
from proxy.config.loading import Config, ConfigError, load
from proxy.server.addresses import of_proxy
from proxy.stores import beside

_DEFAULT_ADDRESS = "http://127.0.0.1:8795"
_READY_SECONDS = 3.0
_PRIVATE = 0o600
_FOR_OTHERS = 0o022
# A store may take its time for each session, and every replica has to learn of it.
_ERASE_SECONDS = 60.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever HTTP_PROXY says


def configured_url(config: Path | None) -> str:
    """Where the proxy of a config is to be found. A file that broke after the start says nothing of the running one."""
    try:
        found = of_proxy(as_running(load(chosen(config), os.environ)))
    except ConfigError as error:
        err(f"{error.problems[0]}; asking at the default address")
        return _DEFAULT_ADDRESS
    if found is None:
        fail("server.port is 0, so any port may be the proxy's; name its address: concertina healthcheck URL")
    return found


class _Address(msgspec.Struct, frozen=True):
    """Where the proxy of a store listens, what else its command line has chosen, and its process."""

    pid: int
    host: str
    port: int
    workers: int


@contextmanager
def announce(config: Config) -> Iterator[None]:
    """While it serves, say beside the store where: the command line may have chosen another port than the config."""
    file = _address_file(config)
    if file is None:
        yield
        return
    server = config.server
    content = msgspec.json.encode(_Address(os.getpid(), server.host, server.port, server.workers))
    with suppress(OSError):  # then the config's address is all that others know
        made = file.with_name(f"{file.name}.{os.getpid()}")
        made.touch(_PRIVATE)
        made.write_bytes(content)
        made.replace(file)
    try:
        yield
    finally:
        with suppress(OSError):
            if file.read_bytes() == content:
                file.unlink()


def as_running(config: Config) -> Config:
    """The config with the address and the workers of the proxy that serves its store, if one of this user's does."""
    file = _address_file(config)
    try:
        if file is None or (there := file.stat()).st_uid != os.getuid() or there.st_mode & _FOR_OTHERS:
            return config
        found = msgspec.json.decode(file.read_bytes(), type=_Address)
        os.kill(found.pid, 0)
    except (OSError, msgspec.DecodeError, OverflowError):
        return config
    chosen = {"host": found.host, "port": found.port, "workers": found.workers}
    return config.model_copy(update={"server": config.server.model_copy(update=chosen)})


def _address_file(config: Config) -> Path | None:
    return beside(config.store.url, "address")


class NotDoneError(Exception):
    """A proxy answered, and did not do it; the text says why."""


def readiness(url: str) -> str:
    """What a proxy says of itself; raises OSError, ValueError or HTTPException where it is not ready or none."""
    with DIRECT.open(f"{url.rstrip('/')}{READY}", timeout=_READY_SECONDS) as answer:
        text: str = answer.read().decode()
        return text


def version_and_digest(config: Config, url: str) -> tuple[str, str]:
    """Of the running proxy and of its config; raises as `readiness` does, and LookupError where it does not tell."""
    request = urllib.request.Request(f"{url}{METRICS}", headers=_authorization(config))  # noqa: S310 - is http
    with DIRECT.open(request, timeout=_READY_SECONDS) as answer:
        families = [*text_string_to_metric_families(answer.read().decode())]
    labels = {sample.name: sample.labels for family in families for sample in family.samples}
    return labels["concertina_build_info"]["version"], labels["concertina_config_digest_info"]["digest"]


def erase_sessions(config: Config, tenant: str, name: str | None) -> list[str] | None:
    """Ids of the sessions with this label or id (None: of all) that the running proxy has erased.

    None where no proxy answers at the config's address. Raises NotDoneError.
    """
    url = of_proxy(as_running(config))
    if url is None:
        return None
    query = {"tenant": tenant} | ({"all": "true"} if name is None else {})
    row = find_endpoint("erase_all" if name is None else "erase")
    address = f"{url}{row.path_for(name=name or '')}?{urlencode(query)}"
    request = urllib.request.Request(address, method=row.method, headers=_authorization(config))  # noqa: S310 - is http
    try:
        with DIRECT.open(request, timeout=_ERASE_SECONDS) as answer:
            ids: list[str] = json.load(answer)["erased"]
            return ids
    except HTTPError as error:
        return _refused(url, error)
    except TimeoutError:
        raise NotDoneError(
            f"the proxy at {url} did not answer in time; what is erased is not known, try again"
        ) from None
    except (OSError, ValueError, LookupError, TypeError, HTTPException):
        return None


def _refused(url: str, error: HTTPError) -> list[str] | None:
    """No ids where there is no such session, None for what is no proxy of ours."""
    with error:
        try:
            told = json.load(error)["error"]
            code, param, message = told["code"], told["param"], told["message"]
        except (OSError, ValueError, LookupError, TypeError, HTTPException):
            return None
    if code == "not_found" and param is None:
        return []
    if error.code in (401, 403):
        message = (
            "it has another admin token; run this with its config, as its user, or set server.admin_token for both"
        )
    raise NotDoneError(f"the proxy at {url} did not erase it: {message}")


def _authorization(config: Config) -> dict[str, str]:
    token = admin_token.known_token(config)
    return {"Authorization": f"Bearer {token}"} if token else {}
