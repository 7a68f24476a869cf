"""`concertina serve`: the proxy as a process, and its start messages."""

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

# On macOS, the path of a Unix socket has at most 104 bytes.
_LONGEST_FOLDER = 90
_SWITCH_SECONDS = 0.0005
# Objects per generation before a collection: far more than one request creates, so that no request waits for many
# collections in a row. Objects outside of cycles, nearly all here, are freed at once anyway.
_GARBAGE_THRESHOLDS = (20_000, 20, 20)


def run_workers(config: Config, name: str, listens: Listens, console: Console, source: Source | None = None) -> int:
    """Serve with the config's number of workers, each with its own listeners, and return the exit code.

    The other parameters are those of `run`.
    """
    number = config.server.workers
    if number == 1:
        return run(config, name, listens(), console, source)
    Tokenizer().warm(DEFAULT_ENCODING)  # before the fork, so that workers share its memory
    admin_token.keep_token(admin_token.token_file(config))  # created here, and the same in all workers

    with _shared_folder() as folder:

        def work(number_of_worker: int, starts: int) -> int:
            output_console = console if (number_of_worker, starts) == (0, 1) else Console(quiet=True)
            return run(config, name, listens(), output_console, source, Peers(number_of_worker, number, folder))

        return Supervisor(number, work, open_log(config.logging.level, time.time, form=config.logging.format)).run()


@contextmanager
def _shared_folder() -> Iterator[Path]:
    """Yield the folder of the workers' sockets. End the command if it cannot be created."""
    try:
        directory = TemporaryDirectory(prefix="concertina-")
    except OSError as error:
        fail(f"workers need a directory for temporary files: {error.strerror}; set TMPDIR to one")
    with directory as folder:
        if len(os.fsencode(folder)) > _LONGEST_FOLDER:
            fail(f"the path {folder} is too long for the workers' sockets; set TMPDIR to a shorter one")
        yield Path(folder)


def run(
    config: Config,
    name: str,
    listeners: list[socket.socket],
    console: Console,
    source: Source | None = None,
    peers: Peers | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM, and return the exit code.

    name: of the config. source: read again on SIGHUP and on a change. peers: the other workers.
    """
    descriptors.raise_limit()
    heap.share()  # before there are threads
    process = _Process(config, name, console, source, peers)

    def interrupt(*_: object) -> None:
        """Ignore later signals. uvicorn raises its signals again after the drain, and that is no failure."""
        if not process.should_exit:
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        process.run(sockets=listeners)
    except KeyboardInterrupt:
        return 0
    except SystemExit:  # raised by uvicorn if the app could not be opened, after the log has the reason
        return 1
    return 0


class _Process(OrderlyServer):
    """Print the address when it listens, and reload the config on SIGHUP."""

    def __init__(self, config: Config, name: str, console: Console, source: Source | None, peers: Peers | None) -> None:
        self._proxy = App(config, source=source, peers=peers)
        super().__init__(self._proxy)
        self._announced = config
        self._name = name
        self._console = console

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Before slow work: by default the signal ends the process.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._proxy.reload)
        await super().startup(sockets)
        # Loaded objects stay. Without freezing, each collection of them would block every request.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GARBAGE_THRESHOLDS)
        # Token counts in threads yield to the event loop sooner than after 5 ms.
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
    """Yield the first lines for the operator: the address, the lines to paste and the policy in force."""
    name, upstream = config.upstream_for(DEFAULT, "")
    policy_name = config.tenants[DEFAULT].policy
    policy = config.policies[policy_name]
    egress = upstream.egress(os.environ)
    by = f", through the proxy {egress.proxy.without_credentials} ({egress.source})" if egress.proxy else ""
    yield f"concertina listens on http://{address(host, port)}, upstream {name} ({upstream.base_url}){by}"
    yield f"  export OPENAI_BASE_URL=http://{reachable(host, port)}/v1"
    yield f"  export ANTHROPIC_BASE_URL=http://{reachable(host, port)}"
    yield (
        f"policy {policy_name}: mode {policy.mode}, compacts at {policy.compaction_threshold:.0%} of the usable window"
        f" down to {policy.target_ratio:.0%}, summarizer {policy.summarizer.model or 'the request’s own model'},"
        f" store {config.store.url.partition('://')[0]}"
    )


def admin_line(token: AdminToken, host: str, port: int, *, is_private: bool) -> str:
    """Return the line about opening /admin. A generated token is shown only on private output, such as a terminal."""
    pages = f"admin pages http://{reachable(host, port)}{ADMIN}"
    if token.is_configured:
        return f"{pages}, with server.admin_token"
    if is_private:
        return f"{pages}?token={token.value}"
    return f"{pages}, with the token in {token.file}" if token.file else f"{pages}, after server.admin_token is set"
