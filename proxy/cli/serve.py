"""`concertina serve`: the proxy as a process, and what is printed at the start."""

import asyncio
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from proxy.admin.endpoints import ADMIN
from proxy.app import App
from proxy.callers import admin_token
from proxy.callers.admin_token import AdminToken
from proxy.cli.common import fail
from proxy.config.loading import Config
from proxy.config.reloading import Source
from proxy.config.settings import DEFAULT
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.runtime import descriptors, heap
from proxy.server.addresses import address, reachable
from proxy.server.peers import Peers
from proxy.server.process import Listens, OrderlyServer
from proxy.server.workers import Supervisor
from proxy.telemetry.log import open_log

# The path of a Unix socket has 104 bytes at most, on macOS.
_LONGEST_FOLDER = 90
_SWITCH_SECONDS = 0.0005
# Objects in each generation before it is looked through: far more than one request makes, so that none waits for many
# collections in a row. What is in no cycle, nearly everything here, is freed at once anyway.
_GARBAGE_THRESHOLDS = (20_000, 20, 20)


def run_workers(config: Config, name: str, listens: Listens, console: Console, source: Source | None = None) -> int:
    """Serve with as many workers as the config says, each with listeners of its own; returns the exit code. The rest is
    as for `run`."""
    number = config.server.workers
    if number == 1:
        return run(config, name, listens(), console, source)
    Tokenizer().warm(DEFAULT_ENCODING)  # before they are forked, so that they share its memory
    admin_token.keep_token(admin_token.token_file(config))  # made here, and the same in all

    with _shared_folder() as folder:

        def work(which: int, begins: int) -> int:
            said = console if (which, begins) == (0, 1) else Console(quiet=True)
            return run(config, name, listens(), said, source, Peers(which, number, folder))

        return Supervisor(number, work, open_log(config.logging.level, time.time, form=config.logging.format)).run()


@contextmanager
def _shared_folder() -> Iterator[Path]:
    """Where workers have their sockets; ends the command where there can be none."""
    try:
        made = TemporaryDirectory(prefix="concertina-")
    except OSError as error:
        fail(f"workers need a directory for temporary files: {error.strerror}; name one in TMPDIR")
    with made as folder:
        if len(os.fsencode(folder)) > _LONGEST_FOLDER:
            fail(f"workers have sockets, for which the path {folder} is too long; name a shorter directory in TMPDIR")
        yield Path(folder)


def run(
    config: Config,
    name: str,
    listeners: list[socket.socket],
    console: Console,
    source: Source | None = None,
    peers: Peers | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code.

    `name` is what the config is called, `source` what SIGHUP and a change of it read again, and `peers` those that
    serve beside this process.
    """
    descriptors.raise_limit()
    heap.share()  # before there are threads
    process = _Process(config, name, console, source, peers)

    def interrupt(*_: object) -> None:
        """uvicorn raises the signals it was ended by once more after the drain, when more may come: no failure then."""
        if not process.should_exit:
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        process.run(sockets=listeners)
    except KeyboardInterrupt:
        return 0
    except SystemExit:  # raised by uvicorn where the app could not be opened, after the log said so
        return 1
    return 0


class _Process(OrderlyServer):
    """Says where it listens as soon as it does, and has the config read again by SIGHUP."""

    def __init__(self, config: Config, name: str, console: Console, source: Source | None, peers: Peers | None) -> None:
        self._proxy = App(config, source=source, peers=peers)
        super().__init__(self._proxy)
        self._announced = config
        self._name = name
        self._console = console

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Before anything takes its time: the default is to end the process.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._proxy.reload)
        await super().startup(sockets)
        # What was loaded stays, and need not be looked through for garbage again: that holds up every request.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GARBAGE_THRESHOLDS)
        # The workers' counting gives way to the event loop sooner than after 5 ms.
        sys.setswitchinterval(_SWITCH_SECONDS)
        for listener in sockets or ():
            host, port, *_ = listener.getsockname()
            for line in announcement(self._announced, host, port):
                self._console.print(line, soft_wrap=True)
            if self._proxy.admin_token is not None:
                is_private = self._console.file.isatty()
                self._console.print(
                    admin_line(self._proxy.admin_token, host, port, is_private=is_private), soft_wrap=True
                )
        self._console.print(f"config {self._name}", soft_wrap=True)


def announcement(config: Config, host: str, port: int) -> Iterator[str]:
    """What an operator wants to know first: the address, the line to paste and the policy in force."""
    name, upstream = config.upstream_for(DEFAULT, "")
    policy_name = config.tenants[DEFAULT].policy
    policy = config.policies[policy_name]
    egress = upstream.egress(os.environ)
    by = f", by the proxy {egress.proxy.without_credentials} ({egress.source})" if egress.proxy else ""
    yield f"concertina listens on http://{address(host, port)}, upstream {name} ({upstream.base_url}){by}"
    yield f"  export OPENAI_BASE_URL=http://{reachable(host, port)}/v1"
    yield f"  export ANTHROPIC_BASE_URL=http://{reachable(host, port)}"
    yield (
        f"policy {policy_name}: mode {policy.mode}, compacts at {policy.compaction_threshold:.0%} of the usable window"
        f" down to {policy.target_ratio:.0%}, summarizer {policy.summarizer.model or 'the request’s own model'},"
        f" store {config.store.url.partition('://')[0]}"
    )


def admin_line(token: AdminToken, host: str, port: int, *, is_private: bool) -> str:
    """How an operator opens /admin; a token that was made is shown where the output is private, as on a terminal."""
    pages = f"admin pages http://{reachable(host, port)}{ADMIN}"
    if token.is_configured:
        return f"{pages}, with server.admin_token"
    if is_private:
        return f"{pages}?token={token.value}"
    return f"{pages}, with the token in {token.file}" if token.file else f"{pages}, once server.admin_token is set"
