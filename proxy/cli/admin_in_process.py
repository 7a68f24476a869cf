"""The admin application in this process, over the store, for commands without a running proxy."""

import asyncio
import io
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import replace
from urllib.parse import unquote

from proxy.admin.context import AdminContext
from proxy.admin.recent import Recent
from proxy.admin.site import AdminSite
from proxy.callers.admin_token import AdminToken
from proxy.callers.issued_keys import KeyRing
from proxy.callers.tenants import Caller, Tenants
from proxy.cli.stored import open_stored
from proxy.config.loading import Config
from proxy.config.reloading import Reloader
from proxy.server.served import Event, Scope
from proxy.sessions.kept_figures import KeptFigures
from proxy.sessions.kept_requests import KeptRequests, UnsavedRequests
from proxy.sessions.replicas import Replica, Replicas
from proxy.sessions.stored_histories import StoredHistories
from proxy.sessions.stores import CircuitBreaker
from proxy.telemetry.log import Log
from proxy.telemetry.session_history import SessionHistories
from proxy.upstreams.active import Active
from proxy.upstreams.http import UpstreamClient
from proxy.wiring import open_engine


@contextmanager
def open_in_process(config: Config, caller: Caller) -> Iterator[Callable[[str, str], tuple[int, bytes]]]:
    """Open the application over the store with all pages and contents. Raises StoreError.

    Return a function from method and target to status and body. A user with the store's secret may read everything.
    """
    tenants = {name: tenant.model_copy(update={"inspect": True}) for name, tenant in config.tenants.items()}
    server, token = config.server.model_copy(update={"admin": True}), AdminToken(secrets.token_urlsafe(32))
    config = config.model_copy(update={"tenants": tenants, "server": server})
    with asyncio.Runner() as runner, ThreadPoolExecutor(1) as workers:
        opened = AsyncExitStack()
        try:
            stored = runner.run(opened.enter_async_context(open_stored(config)))
            runner.run(stored.members(caller.index, 1))  # an unreachable store raises its reason here
            context = runner.run(_context(config, CircuitBreaker(stored, time.monotonic), workers, token))
            site = AdminSite(lambda: context, lambda: False, lambda _: nullcontext())
            yield lambda method, target: runner.run(_send(site, token, method, target))
        finally:
            runner.run(opened.aclose())


async def _context(
    config: Config, store: CircuitBreaker, workers: ThreadPoolExecutor, token: AdminToken
) -> AdminContext:
    """Build the parts that pages read. None of them is started, and nothing is written to the store."""
    log, started = Log("error", time.time, io.BytesIO()), time.time()
    engine = await open_engine(config, store, UpstreamClient(), workers, log, loads=False)
    sessions, histories, tenants = engine.sessions, SessionHistories(), Tenants(config)
    replica = Replica(name="", version="", started=started, digest="", in_flight=0, problems=0)
    active = Active(tenants, engine.router(config), config.server, 0, 0, token, None)
    return AdminContext(
        store=store, engine=engine, active=lambda: active, is_draining=lambda: False,
        reloader=Reloader(None, config, lambda _: None, engine.observe, log), in_flight={},
        exposition=engine.metrics.exposition, openmetrics=None, recent=Recent(), histories=histories,
        stored_histories=StoredHistories(histories, sessions, tenants.operator_of),
        figures=KeptFigures(engine.tallies.hours, sessions.sealed, "", time.time, sessions.is_up),
        requests=KeptRequests(
            UnsavedRequests(), engine.upstream_failures, replace(sessions.sealed, ttl=config.telemetry.figures), "",
            tenants.operator_of, time.time, sessions.is_up,
        ),
        replicas=Replicas(sessions.sealed, "", lambda: replica),
        keys=KeyRing(), name="", started=started,
    )  # fmt: skip


async def _send(site: AdminSite, token: AdminToken, method: str, target: str) -> tuple[int, bytes]:
    """Return status and body of the response to a request without a body."""
    path, _, query = target.partition("?")
    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": method,
        "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(b"authorization", f"Bearer {token.value}".encode())], "client": None, "server": None,
    }  # fmt: skip
    status, body = 0, bytearray()

    async def receive() -> Event:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: Event) -> None:
        nonlocal status
        status = event.get("status", status)
        body.extend(event.get("body", b""))

    await site(scope, receive, send)
    return status, bytes(body)
