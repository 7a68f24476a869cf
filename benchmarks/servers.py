"""The processes that are measured: the tests' model server, the proxy, nginx where it is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# LiteLLM takes half a minute.
_START_SECONDS = 90.0
_SETTINGS = "models: [{match: '*', context_window: 8000000}]\n"
SQLITE = "sqlite:///{folder}/bench.db"


@dataclass(frozen=True)
class Server:
    """A running server; `pid` is the process whose CPU time and memory count, None for the upstream itself.
    headers: lines that its requests need beside others."""

    name: str
    port: int
    pid: int | None
    headers: str = ""

    def cpu_seconds(self) -> float:
        """User and system time so far (proc(5))."""
        if self.pid is None:
            return 0.0
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def cpu_nanoseconds(self) -> int:
        """The same of its threads, as fine as the scheduler counts."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(file.read_text().split()[0]) for file in threads)

    def peak_mb(self) -> float:
        """The most memory it has held so far."""
        return 0.0 if self.pid is None else self._status("VmHWM") / 1024

    def held_mb(self) -> float:
        return self._status("VmRSS") / 1024

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))


@contextmanager
def upstream(module: str = "benchmarks.upstream") -> Iterator[Server]:
    """The tests' model server, without counting, or another upstream."""
    port = free_port()
    with process([sys.executable, "-m", module, str(port)], port):
        yield Server("direct", port, None)


@contextmanager
def proxy(
    target: Server,
    settings: str = _SETTINGS,
    checkout: Path | None = None,
    *,
    store: str = SQLITE,
    workers: int = 1,
) -> Iterator[Server]:
    """The proxy as operators run it, on a window that nothing here fills unless other settings are given; of another
    checkout where one is named."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = _config(Path(folder), port, target, settings, store, workers)
        with process([sys.executable, "-m", "proxy", "serve", str(config)], port, checkout) as pid:
            yield Server(checkout.name if checkout else "concertina", port, pid)


@contextmanager
def asgi(target: Server) -> Iterator[Server]:
    """The proxy as an application of uvicorn."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = _config(Path(folder), port, target, _SETTINGS, SQLITE, 1)
        options = ["--port", str(port), "--ws", "none", "--no-access-log", "--log-level", "warning"]
        command = [sys.executable, "-m", "uvicorn", "proxy.asgi:app", *options]
        with process(command, port, environment={**os.environ, "CONCERTINA_CONFIG": str(config)}) as pid:
            yield Server("uvicorn", port, pid)


def _config(folder: Path, port: int, target: Server, settings: str, store: str, workers: int) -> Path:
    config = folder / "config.yaml"
    config.write_text(
        f"server: {{port: {port}{f', workers: {workers}' if workers > 1 else ''}}}\n"
        f"store: {{url: '{store.format(folder=folder)}'}}\n"
        f"upstreams: {{main: {{base_url: 'http://127.0.0.1:{target.port}/v1'}}}}\n" + settings
    )
    return config


@contextmanager
def nginx(target: Server) -> Iterator[Server | None]:
    """One nginx worker that proxies without buffering; None where nginx is not installed."""
    program = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if program is None:
        yield None
        return
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nginx.conf"
        config.write_text(_NGINX.format(folder=folder, port=port, upstream=target.port))
        command = [program, "-p", folder, "-e", f"{folder}/error.log", "-c", str(config)]
        with process(command, port) as pid:
            # With master_process off the one process is the worker.
            yield Server("nginx", port, pid)


_NGINX = """
worker_processes 1; daemon off; master_process off; pid {folder}/nginx.pid;
events {{ worker_connections 512; }}
http {{
  access_log off; client_max_body_size 100m; client_body_buffer_size 8m; keepalive_requests 100000000;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
  fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream model {{ server 127.0.0.1:{upstream}; keepalive 32; keepalive_requests 100000000; }}
  server {{ listen 127.0.0.1:{port}; location / {{
    proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
  }} }}
}}
"""


@contextmanager
def process(
    command: list[str], port: int, folder: Path | None = None, environment: dict[str, str] | None = None
) -> Iterator[int]:
    """Run a command until the block ends; ready when its port answers."""
    nothing = subprocess.DEVNULL
    started = subprocess.Popen(command, stdout=nothing, stderr=nothing, cwd=folder, env=environment)
    try:
        _wait_for(started, port)
        yield started.pid
    finally:
        started.terminate()
        started.wait(timeout=40)


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"{process.args!r} does not answer")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
