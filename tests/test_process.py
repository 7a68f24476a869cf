"""`concertina serve` as a process: SIGHUP takes the config, SIGTERM drains, a second one ends it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = Path(sys.executable).with_name("concertina")
BODY = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "a"}]}).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)


@contextmanager
def held_upstream() -> Iterator[tuple[str, socket.socket]]:
    """Its address and the socket that accepts: what comes is answered by the test, as far as it likes."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.settimeout(30)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", listener


@contextmanager
def served(file: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process and its port, once it listens."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CONCERTINA_", "OPENAI_"))}
    command = [COMMAND, "serve", str(file), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=file.parent
    ) as process:
        late = threading.Timer(60, process.kill)
        late.start()
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            yield process, int(first.partition(",")[0].rpartition(":")[2])
        finally:
            late.cancel()
            process.kill()


def event(process: subprocess.Popen[str], name: str) -> dict[str, object]:
    """The next line of the log about this."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("{") and (found := json.loads(line))["event"] == name:
            return dict(found)
    pytest.fail(f"it ended without a line about {name}")


def config(file: Path, address: str, **more: object) -> None:
    settings = {"store": {"url": "memory://"}, "upstreams": {"main": {"base_url": f"{address}/v1"}}, **more}
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")


def begun(
    port: int, listener: socket.socket
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse, socket.socket]:
    """A stream of which one event has come; the upstream's end of it is the last value."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    client.request("POST", "/v1/chat/completions", BODY, {"Content-Type": "application/json"})
    upstream, _ = listener.accept()
    upstream.settimeout(30)
    while BODY not in upstream.recv(65_536):
        pass
    upstream.sendall(HEAD + CHUNK)
    answer = client.getresponse()
    assert answer.readline() + answer.readline() == EVENT
    return client, answer, upstream


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
    except ConnectionError:
        return False
    return True


def test_the_life_of_a_process(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    with held_upstream() as (address, listener):
        config(file, address)
        with served(file) as (process, port):
            client, answer, upstream = begun(port, listener)
            with closing(client), closing(upstream):
                file.write_text("closed: maybe", encoding="utf-8")
                process.send_signal(signal.SIGHUP)
                assert event(process, "reload_failed")["problems"] == [f"{file}:1: closed: must be true or false"]
                config(file, address, closed=True, server={"port": 1})
                process.send_signal(signal.SIGHUP)
                assert event(process, "reload")["needs_restart"] == ["server.port"]
                with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as stranger:
                    stranger.request("POST", "/v1/chat/completions", BODY)
                    assert stranger.getresponse().status == 401
                process.send_signal(signal.SIGTERM)
                upstream.sendall(CHUNK + b"0\r\n\r\n")
                assert answer.read() == EVENT, "the stream that was open is finished"
            assert process.wait(30) == 0


def test_a_stream_past_the_deadline_is_told_and_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    with held_upstream() as (address, listener):
        config(file, address, server={"drain": 0})
        with served(file) as (process, port):
            client, answer, upstream = begun(port, listener)
            with closing(client), closing(upstream):
                process.send_signal(signal.SIGTERM)
                with pytest.raises(http.client.IncompleteRead) as cut:
                    answer.read()
                assert b'"code":"server_shutting_down"' in cut.value.partial
            assert event(process, "request")["end"] == "shut_down"
            assert process.wait(30) == 0


def test_a_second_signal_ends_a_process_that_drains(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    with held_upstream() as (address, listener):
        config(file, address, server={"drain": "1h"})
        with served(file) as (process, port):
            client, _, upstream = begun(port, listener)
            with closing(client), closing(upstream):
                process.send_signal(signal.SIGTERM)
                while accepts(port):
                    pass
                process.send_signal(signal.SIGTERM)
                process.wait(30)
