"""The front ends that docs/front-ends.md shows, as they stand there, before two replicas."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.fronts import DOCUMENTED, PROGRAMS, before, documented, documented_block, program, running
from tests.support.servers import proxy, reserve_port
from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    JSON,
    OK_BODY,
    Call,
    Upstream,
    always,
    answer,
    chat,
    chunk,
    config_for,
    connected,
    delta,
    head,
    proxied,
    request,
    upstream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

FINE = always(answer(200, OK_BODY, JSON))


@dataclass
class Replicas:
    """Two proxies, each before an upstream of its own, and what is before them."""

    name: str
    address: str
    upstreams: list[Upstream]

    async def ask(self, *headers: tuple[bytes, bytes], body: bytes = chat("a"), tries: int = 1) -> int:
        """Which replica was asked. tries: of a client that sends a request again after a 502."""
        for behind in self.upstreams:
            behind.play(FINE)
        for _ in range(tries):
            async with connected(self.address) as client, asyncio.timeout(30):
                reply = await client.ask("POST", CHAT, [JSON, *headers], body)
            if reply.status != 502:
                break
        assert reply.body == OK_BODY
        (asked,) = [number for number, upstream in enumerate(self.upstreams) if upstream.calls]
        return asked


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=DOCUMENTED)
async def replicas(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Replicas]:
    program(request.param)
    directories = [tmp_path_factory.mktemp("replica") for _ in range(3)]
    async with proxied(directories[0], FINE) as first, proxied(directories[1], FINE) as second:
        port = reserve_port()
        config = documented(request.param, port, [first[0], second[0]])
        async with running(request.param, directories[2], config, port) as address:
            yield Replicas(request.param, address, [first[1], second[1]])


async def test_a_session_stays_at_its_replica_and_sessions_are_spread(replicas: Replicas) -> None:
    asked = {number: {await replicas.ask((b"X-Session-Id", b"%d" % number)) for _ in range(4)} for number in range(16)}
    assert all(len(places) == 1 for places in asked.values()), asked
    assert {place for places in asked.values() for place in places} == {0, 1}


async def test_requests_without_a_session_are_served(replicas: Replicas) -> None:
    asked = [await replicas.ask((b"Authorization", b"Bearer k")) for _ in range(6)]
    expected = {"nginx": {1}, "haproxy": {2}, "caddy": {1, 2}}  # by the key, in turn, by chance
    assert len(set(asked)) in expected[replicas.name], asked


async def test_a_large_body_passes(replicas: Replicas) -> None:
    await replicas.ask(body=chat("a b " * 500_000))


async def test_events_are_passed_on_as_they_come(replicas: Replicas) -> None:
    seen = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, CHUNKED), chunk(delta("first")))
        await seen.wait()
        await call.send(chunk(delta("second")), chunk(b"data: [DONE]\n\n"), chunk(b""))

    for behind in replicas.upstreams:
        behind.play(script)
    async with connected(replicas.address) as client, asyncio.timeout(30):
        client.method = "POST"
        await client.send(request("POST", CHAT, [(b"Host", b"proxy"), JSON], chat("a", stream=True)))
        assert await client.head() == 200
        received = b""
        async for part in client.chunks():
            received += part
            if b"first" in received:
                seen.set()
    assert received == delta("first") + delta("second") + b"data: [DONE]\n\n"


HIDDEN = (
    *("/admin", "/admin/", "/admin/api/models", "/admin/api/sessions", "/admin/?token=x", "/metrics", "/metrics/"),
    *("/ADMIN/api/models", "/Metrics", "//metrics", "//admin//api/models", "/%61dmin/api/models", "/%6Detrics"),
    *(
        "/metrics;a=b",
        "/admin;/api/models",
        "/./metrics",
        "/v1/../metrics",
        "/v1/%2e%2e/metrics",
        "/metrics%2f",
        "/%2fmetrics",
    ),
    *("/%256detrics", "/metrics%3fa", "/\\metrics", "/metrics%00", "/metrics%20", "http://127.0.0.1/metrics"),
)


async def test_the_pages_for_operators_are_shut_off_in_any_spelling(replicas: Replicas) -> None:
    for behind in replicas.upstreams:
        behind.play(FINE)
    for host in (b"127.0.0.1", replicas.address.removeprefix("http://").encode(), b"proxy.example"):
        for target in HIDDEN:
            async with connected(replicas.address) as client, asyncio.timeout(30):
                await client.send(request("GET", target, [(b"Host", host)]))
                reply = await client.reply()
            assert reply.status in (400, 404), target
            assert b"concertina_" not in reply.body, target
    assert not any(upstream.calls for upstream in replicas.upstreams)


@pytest.mark.parametrize("name", DOCUMENTED)
async def test_the_header_that_the_front_end_adds_is_enough_by_itself(name: str, tmp_path: Path) -> None:
    program(name)
    async with proxied(tmp_path, FINE) as (address, _):
        host = address.removeprefix("http://")
        config, shut_off = re.subn(
            r"^.*\(admin\|metrics\).*\n(\trespond .*\n)?",
            "",
            documented(name, port := reserve_port(), [address] * 2),
            flags=re.MULTILINE,
        )
        assert shut_off == 1
        async with running(name, tmp_path, config.replace("Host $host", "Host $http_host"), port) as front:
            for at, status in ((address, 200), (front, 403)):
                async with connected(at) as client, asyncio.timeout(30):
                    await client.send(request("GET", "/metrics", [(b"Host", host.encode())]))
                    assert (await client.reply()).status == status, at


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_front_end_that_hides_opens_figures_at_most(name: str, tmp_path: Path) -> None:
    async with proxied(tmp_path, FINE) as (address, behind), before(name, tmp_path, address) as front:
        host = (b"Host", address.removeprefix("http://").encode())

        async def status(method: str, target: str) -> int:
            async with connected(front.address) as client, asyncio.timeout(30):
                client.method = method
                await client.send(request(method, target, [host]))
                return (await client.reply()).status

        assert await status("GET", "/admin/api/sessions") == 403
        for target in ("/admin/sessions", "/admin/live", "/admin/explain"):
            assert await status("GET", target) == 403
        assert await status("DELETE", "/admin/api/sessions/x") == 403
        for figures in ("/metrics", "/admin/"):
            assert await status("GET", figures) in (200, 403)
        assert not behind.calls


async def test_nginx_asks_a_replica_that_is_back_at_once_if_the_other_has_gone(tmp_path: Path) -> None:
    """However lately it has refused, and though its first answer may take longer than the other one's restart."""
    program("nginx")
    ports = [reserve_port(), reserve_port()]
    (front := tmp_path / "front").mkdir()
    async with upstream(FINE) as behind, AsyncExitStack() as opened:
        config = documented("nginx", port := reserve_port(), [f"http://127.0.0.1:{each}" for each in ports])
        address = await opened.enter_async_context(running("nginx", front, config, port))
        labels = [[JSON, (b"X-Session-Id", b"%d" % number)] for number in range(12)]
        for each in (ports, ports[::-1]):
            async with proxy(config_for(tmp_path, behind.address), port=each[0]), connected(address) as client:
                for headers in labels:
                    assert (await client.ask("POST", CHAT, headers, chat("a"))).status == 200


LABELS = [b"label-%d" % number for number in range(12)]


@pytest.mark.parametrize("name", DOCUMENTED)
async def test_a_replica_that_is_dead_is_asked_no_more_and_one_that_is_back_is(name: str, tmp_path: Path) -> None:
    program(name)
    tries = 2 if name == "caddy" else 1  # it sends no request to another replica
    directories = [tmp_path / "first", tmp_path / "second", tmp_path / "front"]
    for directory in directories:
        directory.mkdir()
    ports = [reserve_port(), reserve_port()]
    async with upstream(FINE) as first, upstream(FINE) as second, AsyncExitStack() as opened:
        other = config_for(directories[1], second.address)
        alive = await opened.enter_async_context(proxy(config_for(directories[0], first.address), port=ports[0]))
        config = documented(name, port := reserve_port(), [alive, f"http://127.0.0.1:{ports[1]}"])
        async with proxy(other, port=ports[1]):  # before the front end, which asks at its start who is there
            address = await opened.enter_async_context(running(name, directories[2], config, port))
            replicas = Replicas(name, address, [first, second])
            before_it = [await replicas.ask((b"X-Session-Id", label)) for label in LABELS]
            assert set(before_it) == {0, 1}
        bodies = [chat("a"), chat("a b " * 200_000)]
        for _ in range(3):
            asked = [
                await replicas.ask((b"X-Session-Id", label), body=bodies[number % 2], tries=tries)
                for number, label in enumerate(LABELS)
            ]
            assert set(asked) == {0}
        async with proxy(other, port=ports[1]), asyncio.timeout(30):
            while [await replicas.ask((b"X-Session-Id", label), tries=tries) for label in LABELS] != before_it:
                pass


async def test_the_file_for_traefik_names_what_it_has_and_hides_the_pages_for_operators() -> None:
    """Traefik is in no package of Debian: its file is read, and its rule is tried on paths."""
    http = yaml.safe_load(documented_block("yaml"))["http"]
    router = http["routers"]["concertina"]
    balancer = http["services"][router["service"]]["loadBalancer"]
    assert [each["url"] for each in balancer["servers"]] == [f"http://concertina-{each}:8795" for each in (1, 2)]
    assert balancer["serversTransport"] in http["serversTransports"]
    (hidden,) = re.findall(r"!PathRegexp\(`(.*)`\)", router["rule"])
    for path in ("/admin", "/admin/api/models", "/metrics", "/Metrics", "//metrics", "/metrics;a=b"):
        assert re.search(hidden, path)
    assert not any(re.search(hidden, path) for path in (CHAT, "/readyz", "/v1/admin", "/administration"))
