"""Find the proxy that runs with a config: its address, its admin token, and if it is ready."""

import hashlib
import os
import stat
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from proxy.admin.endpoints import METRICS, READY
from proxy.callers import admin_token
from proxy.callers.admin_token import configured_token
from proxy.cli.common import err, fail, find_config
from proxy.config.loading import Config, ConfigError, load
from proxy.config.settings import Server
from proxy.server.addresses import of_proxy, reachable
from proxy.sessions.stores import beside

_READY_SECONDS = 3.0
_PRIVATE, _PRIVATE_FOLDER = 0o600, 0o700
_DIGITS = 16
# The maximum number of running proxies in an error text.
_MAX_NAMED = 5
_FOR_OTHERS = 0o022
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # ignores HTTP_PROXY


def configured_url(config: Path | None) -> str:
    """Return the address of a config's proxy. End the command if it is unknown."""
    url = of_proxy(as_running(config_of_running(config)))
    if url is None:
        fail("server.port is 0, so the proxy's port is unknown; name its address: concertina healthcheck URL")
    return url


def config_of_running(path: Path | None, url: str | None = None) -> Config:
    """Return the config by which to find the running proxy, if no URL names it.

    The file may have changed or broken since the proxy started, or need variables that only its service has. The proxy
    that read the file then determines the address.
    """
    if url is not None:
        return _without_file()
    file = find_config(path)
    try:
        config = load(file, os.environ)
    except ConfigError as error:
        more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        err(f"{error.problems[0]}{more}; looking for a running proxy without it")
        config = _without_file()
    started = [running for running in _all_running() if file and running.config == str(file.resolve())]
    return _listening(config, started[0]) if len(started) == 1 else config


def without_answer(url: str, error: Exception) -> str:
    """Return the text about an address at which no proxy answers."""
    return f"no proxy answers at {url}: {reason_of(error)}; {way_to_a_proxy()}"


def reason_of(error: Exception) -> str:
    """Return why a connection failed, without the number of the error."""
    reason = getattr(error, "reason", error)
    return getattr(reason, "strerror", None) or str(reason)


def way_to_a_proxy() -> str:
    """Return what to do if no proxy answers."""
    urls = [f"http://{reachable(running.host, running.port)}" for running in _all_running()]
    if len(urls) == 1:
        return f"another of your proxies runs at {urls[0]}"
    if urls:
        more = [f"and {len(urls) - _MAX_NAMED} more"] if len(urls) > _MAX_NAMED else []
        lines = (f"  {line}" for line in (*urls[:_MAX_NAMED], *more))
        return "\n".join(["these proxies of yours run; name one with --url:", *lines])
    return "`concertina serve` starts one, and --url names a remote one"


class _Running(msgspec.Struct, frozen=True):
    """A running proxy: its process, address, workers, config file, and its generated token or the token's file."""

    pid: int
    host: str
    port: int
    workers: int
    token: str | None = None
    token_file: str | None = None
    config: str | None = None


@contextmanager
def announce(config: Config, server: Server, path: Path | None = None) -> Iterator[None]:
    """Announce the serving proxy's address to this user's commands, while it serves.

    The command line may have chosen another port than the config. One file is for the config, and one for the process.
    `server`: the settings in force. `path`: of the config.
    """
    read_from = str(path.resolve()) if path else None
    running = _Running(os.getpid(), server.host, server.port, server.workers, *_made_token(config), read_from)
    content = msgspec.json.encode(running)
    folder = _folder()
    files = [_file_of(config), folder / f"{os.getpid()}.running"]
    _sweep(folder)
    for file in files:
        with suppress(OSError):  # then others know only the config's address
            if file.parent == folder:
                folder.mkdir(_PRIVATE_FOLDER, exist_ok=True)
                if not _is_private(folder):
                    continue
            temporary = file.with_name(f"{file.name}.{os.getpid()}")
            temporary.touch(_PRIVATE)
            temporary.write_bytes(content)
            temporary.replace(file)
    try:
        yield
    finally:
        for file in files:
            with suppress(OSError):
                if file.read_bytes() == content:
                    file.unlink()


def _made_token(config: Config) -> tuple[str | None, str | None]:
    """Return the generated token or its file, at most one of them. A file is preferred."""
    if configured_token(config) is not None:
        return None, None
    file = admin_token.token_file(config)
    return (None, str(file.absolute())) if file else (admin_token.own_token(), None)


def _sweep(folder: Path) -> None:
    """Remove the files of killed processes."""
    for file in folder.glob("*.running"):
        with suppress(OSError):
            if file.lstat().st_uid == os.getuid() and _read(file) is None:
                file.unlink()


def as_running(config: Config) -> Config:
    """Return the config with address and workers of the user's running proxy, if one has this config.

    Without a config file, it is the only running proxy of the user.
    """
    running = _find_running(config)
    return config if running is None else _listening(config, running)


def _listening(config: Config, running: _Running) -> Config:
    """Return the config with the address and workers of a running proxy."""
    chosen = {"host": running.host, "port": running.port, "workers": running.workers}
    return config.model_copy(update={"server": config.server.model_copy(update=chosen)})


def token_of(config: Config) -> str | None:
    """Return the admin token of that proxy, if this user may know it."""
    running = _find_running(config)
    if running is None or configured_token(config) is not None:
        return admin_token.known_token(config)
    if running.token_file is not None:
        with suppress(admin_token.UnfitError, OSError):
            return admin_token.read_token(Path(running.token_file))
    return running.token or admin_token.known_token(config)


def _find_running(config: Config) -> _Running | None:
    if (announced := _read(_file_of(config))) is not None:
        return announced
    all_running = _all_running()
    matches = [
        running for running in all_running if (running.host, running.port) == (config.server.host, config.server.port)
    ]
    candidates = matches or (all_running if config == _without_file() else [])
    return candidates[0] if len(candidates) == 1 else None


def _without_file() -> Config:
    try:
        return load(None, os.environ)
    except ConfigError:
        return load(None, {})


def _all_running() -> list[_Running]:
    return [running for file in sorted(_folder().glob("*.running")) if (running := _read(file)) is not None]


def _read(file: Path) -> _Running | None:
    """Return the running proxy of a file, if it belongs to this user and is alive."""
    try:
        if (status := file.stat()).st_uid != os.getuid() or status.st_mode & _FOR_OTHERS:
            return None
        running = msgspec.json.decode(file.read_bytes(), type=_Running)
        os.kill(running.pid, 0)
    except (OSError, msgspec.DecodeError, OverflowError):
        return None
    return running


def _file_of(config: Config) -> Path:
    """Return the file that announces a config's proxy.

    It is next to a store that is a file, or else in this user's folder. Replicas of one store have their own ports.
    """
    store, port = config.store, config.server.port
    parts = [store.url, store.prefix, str(port), *(upstream.base_url for upstream in config.upstreams.values())]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return beside(store.url, f"{port}.address") or _folder() / f"{digest[:_DIGITS]}.address"


def _is_private(folder: Path) -> bool:
    """Return True if only this user can write to a folder."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & _FOR_OTHERS


def _folder() -> Path:
    """Return the folder for files of running proxies. Files that others can write there are ignored."""
    runtime_folder = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime_folder and Path(runtime_folder).is_dir():
        return Path(runtime_folder) / "concertina"
    return Path(tempfile.gettempdir()) / f"concertina-{os.getuid()}"


def readiness(url: str, query: str = "") -> str:
    """Return the readiness of a proxy. Raises OSError, ValueError or HTTPException if it is not ready or no proxy."""
    with DIRECT.open(f"{url.rstrip('/')}{READY}{query}", timeout=_READY_SECONDS) as response:
        text: str = response.read().decode()
        return text


def version_and_digest(config: Config, url: str) -> tuple[str, str]:
    """Return the version of the running proxy and the digest of its config.

    Raises as `readiness` does, and LookupError if the metrics lack them.
    """
    request = urllib.request.Request(f"{url}{METRICS}", headers=authorization(config))  # noqa: S310 - is http
    with DIRECT.open(request, timeout=_READY_SECONDS) as response:
        families = [*text_string_to_metric_families(response.read().decode())]
    labels = {sample.name: sample.labels for family in families for sample in family.samples}
    return labels["concertina_build_info"]["version"], labels["concertina_config_digest_info"]["digest"]


def authorization(config: Config) -> dict[str, str]:
    """Return the header with the admin token of the running proxy, if this user may know it."""
    token = token_of(config)
    return {"Authorization": f"Bearer {token}"} if token else {}
