"""`concertina serve` as a process: SIGHUP takes the config, SIGTERM drains, a second one ends it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import urllib.request
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from proxy.callers.admin_token import keep_token
from proxy.cli.common import fail
from proxy.cli.running import announce, as_running, config_of_running, token_of, without_answer
from proxy.cli.watching.running_proxy import url_of
from proxy.config.loading import digest_of, load_text
from tests.support.processes import COMMAND, config, event, served

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

BODY = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "a"}]}).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
# An upstream that refuses connections: `doctor` asks it, and would wait for one that is silent.
NOWHERE = "http://127.0.0.1:1"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)


@contextmanager
def held_upstream() -> Iterator[tuple[str, socket.socket]]:
    """Its address and the socket that accepts: what comes is answered by the test, as far as it likes."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.settimeout(30)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", listener


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


@contextmanager
def replacement(file: Path, listener: socket.socket) -> Iterator[subprocess.Popen[str]]:
    """Another process on a socket that the test keeps, once it accepts."""
    command = ["sh", "-c", 'export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@" 3<&0 </dev/null', "sh", COMMAND, "serve", file]
    with subprocess.Popen(command, stdin=listener, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as one:
        late = threading.Timer(120, one.kill)
        late.start()
        try:
            assert one.stdout is not None
            assert f":{listener.getsockname()[1]}," in one.stdout.readline()
            yield one
        finally:
            late.cancel()
            one.kill()


def asks(port: int, ended: threading.Event, outcomes: list[object]) -> None:
    """New connections, one after the other, and what became of each."""
    while not ended.is_set():
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as client:
                client.request("POST", "/v1/chat/completions", BODY, {"Content-Type": "application/json"})
                answer = client.getresponse()
                outcomes.append((answer.status, answer.read()))
        except OSError as error:
            outcomes.append(error)


def answers(listener: socket.socket) -> None:
    """An upstream that answers every request with one event."""

    def answer(connection: socket.socket) -> None:
        with closing(connection):
            while BODY not in connection.recv(65_536):
                pass
            connection.sendall(HEAD[:-2] + b"Connection: close\r\n\r\n" + CHUNK + b"0\r\n\r\n")

    with suppress(OSError):  # closed at the end of the test
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


def test_one_process_takes_over_from_another_and_no_request_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    ended, outcomes = threading.Event(), list[object]()
    with held_upstream() as (address, behind), closing(socket.create_server(("127.0.0.1", 0), backlog=256)) as listener:
        config(file, address)
        behind.settimeout(None)
        port = listener.getsockname()[1]
        threading.Thread(target=answers, args=(behind,), daemon=True).start()
        clients = [threading.Thread(target=asks, args=(port, ended, outcomes)) for _ in range(4)]
        with ExitStack() as opened:
            serving = opened.enter_context(replacement(file, listener))
            for client in clients:
                client.start()
            for _ in range(3):
                successor = opened.enter_context(replacement(file, listener))
                serving.send_signal(signal.SIGTERM)
                assert serving.wait(30) == 0
                serving = successor
            ended.set()
            for client in clients:
                client.join()
    assert len(outcomes) > 100
    assert {str(outcome) for outcome in outcomes} == {str((200, EVENT))}


def test_a_socket_that_does_not_listen_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    config(file, NOWHERE)
    shell = 'export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@" 3<&0 </dev/null'
    with closing(socket.socket()) as deaf:
        ended = subprocess.run(
            ["sh", "-c", shell, "sh", COMMAND, "serve", file], stdin=deaf, capture_output=True, text=True, check=False
        )
    assert (ended.returncode, "LISTEN_FDS" in ended.stderr) == (1, True)


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
                assert process.wait(30) == 0
                assert process.stderr is not None
                assert "Traceback" not in process.stderr.read()


def test_where_it_serves_is_known_to_the_other_commands(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    config(file, NOWHERE, store={"url": "sqlite:///kept.db"})
    with served(file) as (process, port):
        assert '"ready"' in said(file, "healthcheck")
        assert f"runs at http://127.0.0.1:{port} with this config" in said(file, "doctor")
        process.send_signal(signal.SIGHUP)
        assert event(process, "reload")["needs_restart"] == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert not (tmp_path / "kept.db.0.address").exists()
    assert "server.port" in said(file, "doctor")


def test_a_proxy_without_a_file_for_its_store_is_found_with_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without its config, as long as it is the only one."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    file, elsewhere = tmp_path / "config.yaml", tmp_path / "elsewhere"
    elsewhere.mkdir()
    config(file, NOWHERE, store={"url": "memory://"})
    with served(file) as (process, port):
        for words in (["open", "--show", "--config", file], ["open", "--show"]):
            told = subprocess.run(
                [COMMAND, *words], capture_output=True, text=True, timeout=60, check=True, cwd=elsewhere
            ).stdout
            assert told.startswith(f"http://127.0.0.1:{port}/admin/?token=")
        with urllib.request.urlopen(told.strip().replace("/admin/?", "/admin/api/overview?")) as answer:
            assert answer.status == 200
        assert {file.stat().st_mode & 0o777 for file in (tmp_path / "concertina").iterdir()} == {0o600}
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert not [*(tmp_path / "concertina").iterdir()]


def test_nothing_is_written_where_others_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    loaded = load_text("config.yaml", "store: {url: 'memory://'}", {})
    server = loaded.server.model_copy(update={"port": 9})
    (tmp_path / "concertina").mkdir()
    (tmp_path / "concertina").chmod(0o777)
    beside = load_text("config.yaml", f"store: {{url: 'sqlite:///{tmp_path}/kept.db'}}", {})
    for each in (loaded, beside):  # the one has a token to be kept secret, and a file may be a link of theirs
        with announce(each, server):
            assert not [*(tmp_path / "concertina").iterdir()]
    (tmp_path / "concertina").chmod(0o700)
    with announce(loaded, server):
        assert as_running(loaded).server.port == 9


@pytest.mark.parametrize("url", ["sqlite:///{folder}/kept.db", "memory://"])
def test_replicas_of_one_store_are_told_apart_and_what_a_killed_one_left_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    one, two, three = (
        load_text("config.yaml", f"store: {{url: '{url.format(folder=tmp_path)}'}}\nserver: {{port: {port}}}", {})
        for port in (9, 10, 11)
    )
    (folder := tmp_path / "concertina").mkdir(0o700)
    ended = subprocess.Popen(["true"])
    ended.wait()
    (folder / "1.running").write_bytes(b'{"pid":%d,"host":"127.0.0.1","port":1,"workers":1}' % ended.pid)
    with announce(one, one.server), announce(two, two.server.model_copy(update={"port": 12})):
        assert [as_running(each).server.port for each in (one, two, three)] == [9, 12, 11]
        assert not (folder / "1.running").exists()
    assert digest_of(one) == digest_of(two)


@pytest.mark.parametrize(("number", "lines"), [(1, 1), (2, 3), (9, 7)])
def test_proxies_that_run_elsewhere_are_named_a_line_each_and_few_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, lines: int
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (folder := tmp_path / "concertina").mkdir(0o700)
    for port in range(1, number + 1):
        content = b'{"pid":%d,"host":"127.0.0.1","port":%d,"workers":1}' % (os.getpid(), port)
        (folder / f"{port}.running").write_bytes(content)
    with pytest.raises(SystemExit):
        fail(without_answer("http://127.0.0.1:9", OSError("refused")))
    told = capsys.readouterr().err.splitlines()
    assert len(told) == lines
    assert all(line.count("http://") <= 1 for line in told[1:])
    assert ("and 4 more" in told[-1]) == (number == 9)


def test_the_proxy_that_a_file_was_read_by_is_found_whatever_became_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "var").mkdir()
    keep_token(tmp_path / "var" / "concertina.db.admin-token")  # of a proxy with the built-in store
    files = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    with ExitStack() as running:
        ports = []
        for file in files:
            config(file, NOWHERE)
            ports.append(running.enter_context(served(file))[1])
        for now in ("", "server: {port: 99}", "store: {url: 'memory://'}", "broken: [", None):
            for file, port in zip(files, ports, strict=True):
                if now is None:
                    file.unlink()
                elif now:
                    file.write_text(now)
                known = config_of_running(file)
                assert url_of(known, None) == f"http://127.0.0.1:{port}"
                asking = urllib.request.Request(f"http://127.0.0.1:{port}/admin/api/requests")
                asking.add_header("Authorization", f"Bearer {token_of(known)}")
                with urllib.request.urlopen(asking) as answer:
                    assert answer.status == 200


@pytest.mark.parametrize("content", [b"{}", b"\xff", b'{"pid":1e9,"host":"a","port":1,"workers":1}', b'{"pid":-1}'])
def test_what_is_no_address_of_a_proxy_is_not_asked(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kept.db.8795.address").write_bytes(content)
    loaded = load_text("config.yaml", f"store: {{url: 'sqlite:///{tmp_path}/kept.db'}}", {})
    assert as_running(loaded) == loaded


def test_an_address_that_others_may_write_is_not_asked(tmp_path: Path) -> None:
    loaded = load_text("config.yaml", f"store: {{url: 'sqlite:///{tmp_path}/kept.db'}}", {})
    with announce(loaded, loaded.server.model_copy(update={"host": "127.0.0.9", "port": 9})):
        assert (as_running(loaded).server.host, as_running(loaded).server.port) == ("127.0.0.9", 9)
        (tmp_path / "kept.db.8795.address").chmod(0o666)
        assert as_running(loaded) == loaded


@pytest.mark.parametrize("path", ["/proc/nowhere/kept.db", "/dev/null/kept.db", "{folder}", "{folder}/other.txt"])
def test_a_store_that_cannot_be_one_is_told_in_a_line(tmp_path: Path, path: str) -> None:
    (tmp_path / "other.txt").write_text("no database " * 100)
    file = tmp_path / "config.yaml"
    file.write_text(f"store: {{url: 'sqlite:///{path.format(folder=tmp_path)}'}}")
    words = [COMMAND, "serve", file, "--port", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "cannot be used as the store" in done.stderr
    assert "Errno" not in done.stderr
    assert ("is a directory); choose a file in it" in done.stderr) == (path == "{folder}")


def said(file: Path, command: str) -> str:
    words = [COMMAND, command, "--config", file]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd=file.parent)
    return done.stdout + done.stderr
