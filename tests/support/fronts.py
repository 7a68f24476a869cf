"""nginx, haproxy and Caddy as real processes on loopback, a relay behind them that counts, and their logs."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from tests.support.servers import reserve_port
from tests.support.upstreams import ask

# Those that are tried with requests of every framing, and all that docs/front-ends.md shows and that can be run.
PROGRAMS = ("nginx", "haproxy")
DOCUMENTED = (*PROGRAMS, "caddy")
_DOCUMENT = Path(__file__).parents[2] / "docs/front-ends.md"
_FALSE = ("", "0", "false", "no", "off")
# Refused or given up by the front end while the client still sent: the proxy owes no answer.
_CLIENTS_FAULT = (400, 408, 413, 499)
_BEHIND_HEADS = re.compile(rb"(?<=\r\n\r\n)")

# As permissive as they get: what they let through is for the proxy to judge. `{log}` is a port that takes syslog.
NGINX = """
http {{
  log_format outcome '$upstream_status $status $request_uri';
  access_log syslog:server=127.0.0.1:{log},nohostname outcome;
  client_header_timeout 300ms; client_body_timeout 300ms; lingering_timeout 300ms;
  ignore_invalid_headers off; underscores_in_headers on; merge_slashes off;
  upstream proxy {{ server 127.0.0.1:{backend}; keepalive 4; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://proxy; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host;
      proxy_request_buffering off; proxy_buffering off; proxy_next_upstream off;
    }}
  }}
}}
"""
HAPROXY = """
global
  nbthread 1
  log 127.0.0.1:{log} format raw local0
defaults
  mode http
  log global
  log-format "%Tr %ST %HU %s"
  option accept-invalid-http-request
  http-reuse always
  retries 0
  timeout connect 5s
  timeout client 300ms
  timeout http-request 300ms
  timeout server 5s
frontend clients
  bind 127.0.0.1:{port}
  default_backend proxy
backend proxy
  server proxy 127.0.0.1:{backend}
"""


def program(name: str) -> str:
    """The path of a program; without it the test is skipped, and fails where CI has to run everything."""
    found = shutil.which(name) or shutil.which(f"/usr/sbin/{name}")
    if found:
        return found
    if os.environ.get("CI", "").lower() not in _FALSE:
        pytest.fail(f"{name} is not installed, and a build must not leave its tests out")
    pytest.skip(f"{name} is not installed: run `apt-get install {name}`")


def documented(name: str, port: int, replicas: list[str]) -> str:
    """The config that docs/front-ends.md shows, with our addresses instead of its own."""
    block = documented_block("caddyfile" if name == "caddy" else name)
    for number, replica in enumerate(replicas, 1):
        assert block.count(f"concertina-{number}:8795") == 1
        block = block.replace(f"concertina-{number}:8795", replica.removeprefix("http://"))
    block, listens = re.subn(
        r"(\blisten |\bbind :|^:)80\b",
        lambda found: f":{port}" if found[1] == ":" else f"{found[1].rstrip(' :')} 127.0.0.1:{port}",
        block,
    )
    assert listens == 1
    if name == "caddy":  # without its own port for settings
        return f"{{\n\tadmin off\n\tauto_https off\n\tdefault_bind 127.0.0.1\n}}\n{block}"
    return f"http {{\n{block}}}\n" if name == "nginx" else block


def documented_block(language: str) -> str:
    """Return the only block in this language that docs/front-ends.md has."""
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", _DOCUMENT.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return str(block)


@asynccontextmanager
async def running(name: str, directory: Path, config: str, port: int) -> AsyncIterator[str]:
    """The address of a front end with this config, without what nginx needs around it."""
    file = directory / f"{name}.conf"
    if name == "nginx":
        paths = " ".join(
            f"{kind}_temp_path {directory}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        config = f"daemon off; master_process off; pid {directory}/pid; events {{ worker_connections 512; }}\n" + (
            config.replace("http {", f"http {{ {paths}", 1)
        )
        command = [program(name), "-p", str(directory), "-e", f"{directory}/error.log", "-c", str(file)]
    elif name == "caddy":
        command = [program(name), "run", "--config", str(file), "--adapter", "caddyfile"]
    else:
        command = [program(name), "-db", "-f", str(file)]
    file.write_text(config, encoding="utf-8")
    env = {**os.environ, "HOME": str(directory), "XDG_DATA_HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}
    with (directory / "output").open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, env=env, stdout=output, stderr=output)
        try:
            await _answers(process, directory, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _answers(process: asyncio.subprocess.Process, directory: Path, port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            assert process.returncode is None, (directory / "output").read_text()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.01)
                continue
            writer.close()
            return


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request as the front end logged it: whether the proxy answered it, and what the client was told."""

    passed: bool
    answered: bool
    status: int
    target: str

    @classmethod
    def of_nginx(cls, line: str) -> Self:
        upstream, status, target = line.rpartition("nginx: ")[2].split(" ", 2)
        return cls(upstream != "-" or status in ("502", "504"), upstream.isdigit(), int(status), target)

    @classmethod
    def of_haproxy(cls, line: str) -> Self:
        waited, status, rest = line.split(" ", 2)
        target, _, server = rest.strip().rpartition(" ")
        return cls(server != "<NOSRV>", waited != "-1" and server != "<NOSRV>", int(status), target)

    @property
    def is_owed(self) -> bool:
        return self.answered or (self.passed and self.status not in _CLIENTS_FAULT)


class AccessLog(asyncio.DatagramProtocol):
    """What a front end sends by syslog, line by line."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[str] = asyncio.Queue()

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.lines.put_nowait(data.decode("latin-1").strip())


class Relay:
    """Passes bytes on to the proxy, each head by itself, and counts the final answers that come back."""

    _ANSWER = re.compile(rb"HTTP/1\.1 [2-5]\d\d [A-Za-z -]+\r\n")

    def __init__(self, address: str) -> None:
        self._host, port = address.removeprefix("http://").split(":")
        self._port = int(port)
        self._back: list[bytearray] = []

    def answers(self) -> int:
        """How many there were since this was asked last."""
        found = [list(self._ANSWER.finditer(back)) for back in self._back]
        for back, matches in zip(self._back, found, strict=True):
            if matches:
                del back[: matches[-1].end()]
        return sum(map(len, found))

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection(self._host, self._port)
        back = bytearray()
        self._back.append(back)
        await asyncio.gather(_pump(reader, back_writer), _pump(back_reader, writer, back))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, copy: bytearray | None = None) -> None:
    with suppress(ConnectionError):
        while read := await reader.read(65_536):
            if copy is not None:
                copy += read
            for part in _BEHIND_HEADS.split(read):
                writer.write(part)
                await writer.drain()
                for _ in range(4):  # the proxy runs in this loop, and reads each part by itself
                    await asyncio.sleep(0)
    writer.close()


@dataclass(slots=True)
class Front:
    """A front end before a proxy, and what both counted."""

    address: str
    log: AccessLog
    relay: Relay
    outcome_of: Callable[[str], Outcome]
    fences: int = 0

    async def outcomes(self) -> list[Outcome]:
        """What was logged since this was asked last; a request of our own shows that nothing is missing."""
        self.fences += 1
        target = f"/v1/fence-{self.fences}"
        await ask(self.address, "GET", target, [(b"Connection", b"close")])
        found: list[Outcome] = []
        async with asyncio.timeout(30):
            while not found or found[-1].target != target:
                found.append(self.outcome_of(await self.log.lines.get()))
        return found


@asynccontextmanager
async def before(name: str, directory: Path, address: str) -> AsyncIterator[Front]:
    """nginx or haproxy before the proxy at this address, with a relay between them."""
    program(name)
    async with AsyncExitStack() as opened:
        relay = Relay(address)
        server = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
        opened.callback(server.close)
        loop = asyncio.get_running_loop()
        transport, log = await loop.create_datagram_endpoint(AccessLog, local_addr=("127.0.0.1", 0))
        opened.callback(transport.close)
        port = reserve_port()
        config, outcome_of = (NGINX, Outcome.of_nginx) if name == "nginx" else (HAPROXY, Outcome.of_haproxy)
        ports = {
            "port": port,
            "backend": server.sockets[0].getsockname()[1],
            "log": transport.get_extra_info("sockname")[1],
        }
        at = await opened.enter_async_context(running(name, directory, config.format(**ports), port))
        yield Front(at, log, relay, outcome_of)
