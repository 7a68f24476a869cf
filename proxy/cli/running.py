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
from proxy.cli.common import chosen, err, fail
from proxy.config.loading import Config, ConfigError, load
from proxy.config.settings import Server
from proxy.server.addresses import of_proxy, reachable
from proxy.sessions.stores import beside

_READY_SECONDS = 3.0
_PRIVATE, _PRIVATE_FOLDER = 0o600, 0o700
_DIGITS = 16
# Running proxies that are named to whoever has found none.
_MOST_NAMED = 5
_FOR_OTHERS = 0o022
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever HTTP_PROXY says


def configured_url(config: Path | None) -> str:
    """Where the proxy of a config is to be found."""
    found = of_proxy(as_running(config_of_running(config)))
    if found is None:
        fail("server.port is 0, so any port may be the proxy's; name its address: concertina healthcheck URL")
    return found


def config_of_running(path: Path | None, url: str | None = None) -> Config:
    """The config by which to find the proxy that runs, if no URL says where. The file may have changed or broken since
    the start of the proxy that read it, which is where it was then; or it wants variables that only its service has.
    """
    if url is not None:
        return _without_file()
    file = chosen(path)
    try:
        config = load(file, os.environ)
    except ConfigError as error:
        more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        err(f"{error.problems[0]}{more}; looking for a running proxy without it")
        config = _without_file()
    started = [running for running in _all_running() if file and running.config == str(file.resolve())]
    return _listening(config, started[0]) if len(started) == 1 else config


def without_answer(url: str, error: Exception) -> str:
    """What to say of an address at which no proxy answers."""
    return f"no proxy answers at {url}: {reason_of(error)}; {way_to_a_proxy()}"


def reason_of(error: Exception) -> str:
    """Return why a connection failed, without the number of the error."""
    reason = getattr(error, "reason", error)
    return getattr(reason, "strerror", None) or str(reason)


def way_to_a_proxy() -> str:
    """What to do if none answers."""
    others = [f"http://{reachable(running.host, running.port)}" for running in _all_running()]
    if len(others) == 1:
        return f"of yours, one runs at {others[0]}"
    if others:
        more = [f"and {len(others) - _MOST_NAMED} more"] if len(others) > _MOST_NAMED else []
        lines = (f"  {line}" for line in (*others[:_MOST_NAMED], *more))
        return "\n".join(["of yours, these run; name one with --url:", *lines])
    return "`concertina serve` starts one, and --url names one that is elsewhere"


class _Running(msgspec.Struct, frozen=True):
    """A proxy that runs: its process, where it listens, what else its command line has chosen, the token that it has
    made, or the file where that lies, and the file of its config."""

    pid: int
    host: str
    port: int
    workers: int
    token: str | None = None
    token_file: str | None = None
    config: str | None = None


@contextmanager
def announce(config: Config, server: Server, path: Path | None = None) -> Iterator[None]:
    """While it serves, say where, to this user's commands: the command line may have chosen another port than the
    config. In a file for its config, and in one for its process. `server`: as it serves. `path`: of the config."""
    read_from = str(path.resolve()) if path else None
    found = _Running(os.getpid(), server.host, server.port, server.workers, *_made_token(config), read_from)
    content = msgspec.json.encode(found)
    folder = _folder()
    files = [_file_of(config), folder / f"{os.getpid()}.running"]
    _sweep(folder)
    for file in files:
        with suppress(OSError):  # then the config's address is all that others know
            if file.parent == folder:
                folder.mkdir(_PRIVATE_FOLDER, exist_ok=True)
                if not _is_private(folder):
                    continue
            made = file.with_name(f"{file.name}.{os.getpid()}")
            made.touch(_PRIVATE)
            made.write_bytes(content)
            made.replace(file)
    try:
        yield
    finally:
        for file in files:
            with suppress(OSError):
                if file.read_bytes() == content:
                    file.unlink()


def _made_token(config: Config) -> tuple[str | None, str | None]:
    """The token and its file, one of them at most: which others may know where it was made."""
    if configured_token(config) is not None:
        return None, None
    file = admin_token.token_file(config)
    return (None, str(file.absolute())) if file else (admin_token.own_token(), None)


def _sweep(folder: Path) -> None:
    """Remove what processes left that were killed."""
    for file in folder.glob("*.running"):
        with suppress(OSError):
            if file.lstat().st_uid == os.getuid() and _read(file) is None:
                file.unlink()


def as_running(config: Config) -> Config:
    """The config with the address and the workers of the proxy that runs with it, if one of this user's does; without a
    config, of the only proxy of this user's."""
    found = _find_running(config)
    return config if found is None else _listening(config, found)


def _listening(config: Config, found: _Running) -> Config:
    """The config with what is known of the proxy that runs."""
    chosen = {"host": found.host, "port": found.port, "workers": found.workers}
    return config.model_copy(update={"server": config.server.model_copy(update=chosen)})


def token_of(config: Config) -> str | None:
    """The admin token of that proxy, as far as this user may know it."""
    found = _find_running(config)
    if found is None or configured_token(config) is not None:
        return admin_token.known_token(config)
    if found.token_file is not None:
        with suppress(admin_token.UnfitError, OSError):
            return admin_token.read_token(Path(found.token_file))
    return found.token or admin_token.known_token(config)


def _find_running(config: Config) -> _Running | None:
    if (found := _read(_file_of(config))) is not None:
        return found
    every = _all_running()
    there = [one for one in every if (one.host, one.port) == (config.server.host, config.server.port)]
    others = there or (every if config == _without_file() else [])
    return others[0] if len(others) == 1 else None


def _without_file() -> Config:
    try:
        return load(None, os.environ)
    except ConfigError:
        return load(None, {})


def _all_running() -> list[_Running]:
    return [running for file in sorted(_folder().glob("*.running")) if (running := _read(file)) is not None]


def _read(file: Path) -> _Running | None:
    """A proxy of this user's that is alive."""
    try:
        if (there := file.stat()).st_uid != os.getuid() or there.st_mode & _FOR_OTHERS:
            return None
        found = msgspec.json.decode(file.read_bytes(), type=_Running)
        os.kill(found.pid, 0)
    except (OSError, msgspec.DecodeError, OverflowError):
        return None
    return found


def _file_of(config: Config) -> Path:
    """Beside the store if that is a file, else in this user's folder; replicas of one store have ports of their own."""
    store, port = config.store, config.server.port
    told = [store.url, store.prefix, str(port), *(upstream.base_url for upstream in config.upstreams.values())]
    digest = hashlib.sha256("\n".join(told).encode()).hexdigest()
    return beside(store.url, f"{port}.address") or _folder() / f"{digest[:_DIGITS]}.address"


def _is_private(folder: Path) -> bool:
    """Whether nobody else can put files there for us to write to."""
    there = folder.lstat()
    return stat.S_ISDIR(there.st_mode) and there.st_uid == os.getuid() and not there.st_mode & _FOR_OTHERS


def _folder() -> Path:
    """Where a user's programs say that they run; nobody else may write there, or what lies there is not believed."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given and Path(given).is_dir():
        return Path(given) / "concertina"
    return Path(tempfile.gettempdir()) / f"concertina-{os.getuid()}"


def readiness(url: str) -> str:
    """What a proxy says of itself; raises OSError, ValueError or HTTPException where it is not ready or none."""
    with DIRECT.open(f"{url.rstrip('/')}{READY}", timeout=_READY_SECONDS) as answer:
        text: str = answer.read().decode()
        return text


def version_and_digest(config: Config, url: str) -> tuple[str, str]:
    """Of the running proxy and of its config; raises as `readiness` does, and LookupError where it does not tell."""
    request = urllib.request.Request(f"{url}{METRICS}", headers=authorization(config))  # noqa: S310 - is http
    with DIRECT.open(request, timeout=_READY_SECONDS) as answer:
        families = [*text_string_to_metric_families(answer.read().decode())]
    labels = {sample.name: sample.labels for family in families for sample in family.samples}
    return labels["concertina_build_info"]["version"], labels["concertina_config_digest_info"]["digest"]


def authorization(config: Config) -> dict[str, str]:
    """Return the header with the admin token of the running proxy, if this user may know it."""
    token = token_of(config)
    return {"Authorization": f"Bearer {token}"} if token else {}
