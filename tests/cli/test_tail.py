"""`concertina tail` and `open`: what a stream is made of the running proxy's events, and who is told the token."""

from __future__ import annotations

import asyncio
import json
import os
import time
import webbrowser
from typing import TYPE_CHECKING

import msgspec
import pytest

from proxy.admin.access import is_link
from proxy.admin.why import REASONS
from proxy.callers import admin_token
from proxy.cli.main import app
from proxy.cli.watching.opening import link_of, open_dashboard
from proxy.cli.watching.sentences import CODES
from proxy.cli.watching.tail import line_of, lines, tail
from proxy.errors import ProxyError
from proxy.telemetry.events import RequestEnded
from tests.support.processes import COMMAND
from tests.support.servers import configured
from tests.support.upstreams import EVENTS, JSON, always, answer, upstream

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.config.loading import Config
    from tests.support.redis_servers import Certificates

pytestmark = pytest.mark.anyio

ENDED = RequestEnded(
    at=1.0, end="complete", method="POST", path="/v1/chat/completions", id="1", ms=1400.0, bytes=3, status=200,
    session="abcdef", label="billing\x1b[2J", model="gpt-4o", tokens_received=161_000, tokens_sent=44_000,
    window=128_000, compaction="reused", reason="below_threshold",
)  # fmt: skip
REQUEST = b"id: 1\ndata: " + msgspec.json.encode(ENDED) + b"\n\n"
STREAM = b": open\n\n" + REQUEST + b'id: 2\nevent: compaction\ndata: {"at": 1}\n\n:\n\n' + REQUEST


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CONCERTINA_ADMIN_TOKEN", "CONCERTINA_URL"):
        monkeypatch.delenv(name, raising=False)


def told(stream: bytes, *, as_json: bool = False) -> list[str]:
    return [*lines(stream.splitlines(keepends=True), as_json=as_json)]


def test_a_request_is_a_line_and_what_a_terminal_would_obey_is_not_printed() -> None:
    first, second = told(STREAM)
    assert first == second
    assert first.endswith(
        ":01  billing [2J  gpt-4o  161k tokens, 44.0k sent (window 128k)."
        " Older messages were replaced by the stored record. Answered in 1.4 s."
    )


TOLD = {
    "small": (
        {"compaction": "none", "reason": "below_floor", "tokens_received": 5, "tokens_sent": 5, "usd": 0.0001},
        "5 tokens (window 128k). It is small, so it was not changed. Answered in 1.4 s. $0.0001.",
    ),
    "compacted, and what that saved": (
        {"compaction": "applied", "reason": "proactive", "usd": 0.12, "usd_received": 0.45, "wait_ms": 2_500.0},
        "161k tokens, 44.0k sent (window 128k). Its window was nearly full, so it was sent with a new record. It"
        " waited 2.5 s for a summary. Answered in 1.4 s. $0.12, $0.33 saved.",
    ),
    "dearer than as it came": ({"usd": 0.45, "usd_received": 0.12}, "Answered in 1.4 s. $0.45."),
    "a reason of another version": ({"compaction": "none", "reason": "new_word"}, "Reason: new word. Answered"),
    "refused by the proxy": (
        {"end": "refused", "status": 400, "code": "invalid_json"},
        "The proxy refused it with 400: its body is not valid JSON.",
    ),
    "no upstream": (
        {"end": "refused", "status": 502, "code": "upstream_unreachable", "cause": "dns"},
        "502: the upstream could not be reached. Cause: the upstream's name was not found.",
    ),
    "refused by the upstream": ({"status": 429}, "The upstream refused it with 429 after 1.4 s."),
    "too long": ({"status": 400, "overflow": "passed_on"}, "no retry fitted: the client got the error."),
    "broken off": ({"end": "client_gone"}, "The client disconnected before the end. After 1.4 s."),
    "pins": ({"pins_left_out": 2}, "2 pinned texts did not fit."),
}


@pytest.mark.parametrize("which", TOLD)
def test_a_request_is_told_in_sentences_and_in_none_of_our_codes(which: str) -> None:
    changes, sentences = TOLD[which]
    line = line_of(msgspec.structs.replace(ENDED, **changes))
    assert sentences in line
    assert "_" not in line
    assert "\n" not in line


def test_every_error_and_every_reason_has_a_sentence() -> None:
    kinds, codes = [ProxyError], set()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        codes.add(kind.code)
    assert codes <= CODES.keys()
    for reason in REASONS:
        line = line_of(msgspec.structs.replace(ENDED, compaction="none", reason=reason))
        assert "Reason:" not in line


def test_one_session_is_found_by_its_label_or_by_how_its_id_begins() -> None:
    stream = STREAM.splitlines(keepends=True)
    assert [len([*lines(stream, session, as_json=False)]) for session in (ENDED.label or "", "abc", "abd")] == [2, 2, 0]


def test_all_that_is_known_of_a_request_is_json() -> None:
    assert [json.loads(line)["label"] for line in told(STREAM, as_json=True)] == [ENDED.label] * 2


def test_requests_that_were_lost_are_told_beside_those_that_were_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(told(b'event: lost\ndata: {"lost": 7}\n\n' + REQUEST)) == 1
    assert capsys.readouterr().err == "7 requests are missing here: they ended faster than this command prints\n"


def test_a_proxy_that_takes_no_more_viewers_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        told(b"event: full\ndata: {}\n\n")
    assert ended.value.code == 1
    assert "close one of them" in capsys.readouterr().err


def kept(directory: Path, port: int, **server: object) -> tuple[Config, str]:
    """A config of a proxy that has made a token, and the token."""
    store = {"url": f"sqlite:///{directory}/s.db"}
    config = configured(directory, {"server": {"port": port, **server}, "store": store})
    return config, admin_token.keep_token(admin_token.token_file(config)).value


async def test_the_stream_is_asked_for_with_the_token_of_the_configs_proxy_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with upstream(always(answer(200, STREAM, EVENTS))) as server:
        _, token = kept(tmp_path, int(server.address.rpartition(":")[2]))
        file = tmp_path / "config.yaml"
        await asyncio.to_thread(tail, "abc", config=file)
        await asyncio.to_thread(tail, url=server.address, config=file)
        monkeypatch.setenv("CONCERTINA_ADMIN_TOKEN", "theirs")
        await asyncio.to_thread(tail, url=server.address, config=file)
    assert server.calls[0].target == "/admin/api/live?"
    sent = [call.header(b"authorization") for call in server.calls]
    assert sent == [f"Bearer {token}".encode(), None, b"Bearer theirs"]
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (6, "the proxy has ended the stream\n" * 3)


async def test_a_request_is_printed_by_its_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = json.dumps({"requests": [msgspec.to_builtins(ENDED)], "cursor": None}).encode()
    async with upstream(always(answer(200, page, JSON))) as server:
        kept(tmp_path, int(server.address.rpartition(":")[2]))
        for as_json in (False, True):
            await asyncio.to_thread(tail, request=ENDED.id, config=tmp_path / "config.yaml", as_json=as_json)
    assert server.calls[0].target == f"/admin/api/requests?id={ENDED.id}"
    line, event = capsys.readouterr().out.splitlines()
    assert line == line_of(ENDED)
    assert json.loads(event)["id"] == ENDED.id
    async with upstream(always(answer(200, b'{"requests":[]}', JSON))) as server:
        with pytest.raises(SystemExit):
            await asyncio.to_thread(tail, request="f00", url=server.address)
    assert "begins with f00" in capsys.readouterr().err


@pytest.mark.parametrize(("status", "said"), [(401, "set CONCERTINA_ADMIN_TOKEN"), (404, "check that it is")])
async def test_a_refusal_is_told_with_the_way_out(capsys: pytest.CaptureFixture[str], status: int, said: str) -> None:
    async with upstream(always(answer(status, b""))) as server:
        with pytest.raises(SystemExit):
            await asyncio.to_thread(tail, url=server.address)
    assert f"answers {status}: {said}" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["foo", "localhost", "127.0.0.1:8795", "file:///etc"])
@pytest.mark.parametrize("command", ["tail", "open", "healthcheck"])
def test_what_is_no_address_is_told_in_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, given: str
) -> None:
    monkeypatch.setenv("CONCERTINA_URL", given)
    with pytest.raises(SystemExit) as ended:
        app([command, "--url", given])
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (1, "", 1)
    assert f"'{given}' is not an address; write it with http:// or https://" in err


async def test_a_proxy_behind_tls_is_found_by_the_address_that_its_clients_have(certificates: Certificates) -> None:
    async with upstream(always(answer(200, STREAM, EVENTS)), certificates.context(clients=False)) as server:
        env = {**os.environ, "SSL_CERT_FILE": str(certificates.authority), "CONCERTINA_URL": f"{server.address}/v1/"}
        process = await asyncio.create_subprocess_exec(COMMAND, "tail", env=env, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
    assert (server.address[:6], out.count(b"\n")) == ("https:", 2)
    assert server.calls[0].target == "/admin/api/live?"


async def test_a_browser_is_not_started_with_the_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    async with upstream(always(answer(200, b"{}"))) as server:
        port = int(server.address.rpartition(":")[2])
        _, token = kept(tmp_path, port)
        for works in (True, False):
            monkeypatch.setattr(webbrowser, "open", lambda link, works=works: opened.append(link) or works)
            await asyncio.to_thread(open_dashboard, config=tmp_path / "config.yaml")
    address = f"http://127.0.0.1:{port}/admin/?token="
    for link in opened:
        assert is_link(link.removeprefix(address), token, time.time())
    assert (len(set(opened)), token in "".join(opened)) == (2, False)
    assert capsys.readouterr().out == f"{address}{token}\n", "printed if there is no browser"


def test_the_link_signs_in_with_a_token_that_was_made_at_that_proxy_alone(tmp_path: Path) -> None:
    config, token = kept(tmp_path, 1234)
    assert link_of(config, None) == f"http://127.0.0.1:1234/admin/?token={token}"
    assert link_of(config, "http://elsewhere:1/") == "http://elsewhere:1/admin/"
    config, _ = kept(tmp_path, 1234, admin_token="a-configured-one")
    assert link_of(config, None) == "http://127.0.0.1:1234/admin/"
