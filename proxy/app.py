"""The composition root: it opens all parts in order, closes them in reverse, and routes paths."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from threading import Thread

from proxy.admin.context import AdminContext
from proxy.admin.health import health_samples
from proxy.admin.recent import Recent
from proxy.admin.site import AdminSite
from proxy.callers import admin_token, store_secret
from proxy.callers.admin_token import AdminToken
from proxy.callers.api_head import ApiHead
from proxy.callers.issued_keys import LOOK_EVERY as LOOK_FOR_KEYS_EVERY
from proxy.callers.issued_keys import KeyRing, KeyShelf
from proxy.callers.key_usage import COUNT_EVERY, KeyUsage
from proxy.callers.tenants import Caller, Tenants
from proxy.compaction.engine import Engine
from proxy.config.imports import import_function
from proxy.config.loading import Config, digest_of
from proxy.config.reloading import SECONDS, Reloader, Source
from proxy.config.settings import Server, Traces
from proxy.dialects.table import telemetry_names
from proxy.errors import ShuttingDownError
from proxy.memory import DEFAULT_BYTES
from proxy.pipeline.pipeline import Pipeline
from proxy.runtime.container import most_buffered
from proxy.runtime.deadlines import repeat_every
from proxy.runtime.descriptors import most_requests
from proxy.runtime.fail_open import FailOpen
from proxy.runtime.lag import monitor_loop_lag
from proxy.server.error_shape import ErrorShape
from proxy.server.exchange import Exchange
from proxy.server.head import has_body, target_of
from proxy.server.headers import Headers
from proxy.server.peers import Exposition, Peers
from proxy.server.served import Receive, Scope, Send, Served
from proxy.sessions.epochs import LOOK_EVERY
from proxy.sessions.kept_figures import WRITE_EVERY, KeptFigures
from proxy.sessions.kept_requests import REQUESTS_EVERY, KeptRequests, UnsavedRequests
from proxy.sessions.replicas import BEAT_EVERY, Replica, Replicas
from proxy.sessions.stored_histories import HISTORIES_EVERY, StoredHistories
from proxy.sessions.stores import CircuitBreaker, open_store
from proxy.telemetry.events import Hook, Started
from proxy.telemetry.log import Log, open_log
from proxy.telemetry.metrics import Metrics, by_name
from proxy.telemetry.session_history import SessionHistories
from proxy.telemetry.trace import Tracing
from proxy.upstreams.active import Active
from proxy.upstreams.asker import WindowAsker
from proxy.upstreams.http import UpstreamClient
from proxy.wiring import open_engine

_WORKERS = 2
# Timeout for background work after the last request has ended, in seconds.
_DRAIN_SECONDS = 10.0
# Timeout for unsent spans, in seconds.
_EXPORT_SECONDS = 2.0


class App(Served):
    """The proxy as an ASGI application: its own pages, or an exchange for the pipeline."""

    def __init__(
        self,
        config: Config,
        log: Log | None = None,
        source: Source | None = None,
        look_every: float = SECONDS,
        peers: Peers | None = None,
    ) -> None:
        """Create the application.

        source: polled every `look_every` seconds, and loaded if it has changed. peers: the other workers.
        """
        self._config = config
        self._source = source
        self._look_every = look_every
        self._peers = peers
        self._log = log or open_log(config.logging.level, time.time, form=config.logging.format)
        self._opened: AdminContext | None = None
        self._pipeline: Pipeline
        self._keys: KeyRing
        self._made_token: AdminToken | None = None
        self._ending_since = 0.0
        self._broken_off = 0
        self._pages = AdminSite(lambda: self._opened, lambda: self.is_draining, lifespan=lambda _: self._lifespan())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] == "http" and self._opened is not None:
            head = ApiHead(scope["method"], target_of(scope), scope["headers"])
            if not head.is_ours:
                errors = head.dialect.answers
                exchange = Exchange(head, receive, send, errors, has_body=has_body(scope, head))
                await self._pipeline.handle(exchange)
                await exchange.finish()
                return
        await self._pages(scope, receive, send)

    def error_shape(self, method: str, target: str, headers: Headers) -> ErrorShape:
        """Return the format of errors for a request."""
        return ApiHead(method, target, headers).dialect.answers

    @property
    def server_settings(self) -> Server:
        """Return the server section of the config in force."""
        return self._config.server

    def drain(self) -> None:
        """Stop accepting requests."""
        self.is_draining = True
        self._ending_since = time.monotonic()
        server = self._config.server
        self._log.info("stopping", requests=self._in_flight, drain_delay_s=server.drain_delay, drain_s=server.drain)

    def break_off(self) -> None:
        """End the open requests."""
        self._broken_off = self._in_flight
        if self._opened is not None:
            self._pipeline.open_requests.end(ShuttingDownError())

    def report_end(self) -> None:
        """Log the end of the process."""
        seconds = round(time.monotonic() - self._ending_since, 3)
        self._log.info("stopped", broken_off=self._broken_off, seconds=seconds)

    @property
    def _in_flight(self) -> int:
        return len(self._pipeline.open_requests) if self._opened is not None else 0

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        """Open the app until the server stops. A second signal cancels that, which is no fault."""
        async with self.open():
            with suppress(asyncio.CancelledError):
                yield

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open all parts that answer requests. The server's lifespan does this."""
        config = self._config
        async with AsyncExitStack() as opened:
            workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="concertina")
            opened.callback(workers.shutdown, wait=False, cancel_futures=True)
            if (problem := store_secret.make(config)) is not None:
                self._log.warning("store_secret", problem=problem)
            opened_store = open_store(config.store.url, config.store.timeout, config.store.prefix)
            store = CircuitBreaker(opened_store, time.monotonic)
            opened.push_async_callback(store.close)
            client = await opened.enter_async_context(UpstreamClient(config.upstreams, os.environ))
            started, name = time.time(), f"{socket.gethostname()}:{config.server.port}"
            recent, histories, unsaved = Recent(), SessionHistories(), UnsavedRequests()
            key_usage = KeyUsage(store, time.time, lambda model: engine.windows.price(model))  # noqa: PLW0108 - created below
            spans = await opened.enter_async_context(_spans(config.telemetry.traces, name))
            hooks: list[Hook] = [key_usage, *spans, *(import_function(name) for name in config.hooks)]
            engine = await open_engine(config, store, client, workers, self._log, recent, histories, unsaved, *hooks)
            engine.memory.most = DEFAULT_BYTES // self._processes
            opened.push_async_callback(engine.background.drain, _DRAIN_SECONDS)
            asker, fail_open = WindowAsker(client, engine.windows, time.monotonic), FailOpen(self._log.fault)
            shelf = KeyShelf(engine.sessions.sealed)
            keys = self._keys = KeyRing(shelf, engine.sessions.is_up, self._report_unreadable_keys)
            looking = fail_open.for_event("keys_failed")
            await looking.run(keys.look(), None)
            pipeline = Pipeline(self._activate(config, engine), engine, asker, client, fail_open, key_usage)
            reloader = Reloader(self._source, config, self._swap, engine.observe, self._log)
            self._watch(engine.metrics, pipeline, reloader)
            opened.enter_context(monitor_loop_lag(engine.tallies.note_lag))
            exposition: Exposition = engine.metrics.exposition
            if self._peers is not None:
                exposition = await opened.enter_async_context(self._peers.sharing(exposition))
            self._pipeline = pipeline
            openmetrics = engine.metrics.openmetrics if self._peers is None else None
            run = f"{name}:{secrets.token_hex(8)}"
            for content_memory in (engine.sent_prompts, engine.upstream_failures):
                content_memory.shows_content = partial(_shows_content, reloader)
            figures = self._figures(engine, run)
            requests = self._kept_requests(unsaved, engine, name)
            replicas = Replicas(engine.sessions.sealed, run, lambda: self._replica(name, started, reloader))
            stored = self._stored_histories(histories, engine)
            self._opened = AdminContext(
                store=store, engine=engine, active=lambda: pipeline.active, is_draining=lambda: self.is_draining,
                reloader=reloader, in_flight=pipeline.admission.in_flight, exposition=exposition,
                openmetrics=openmetrics, recent=recent, histories=histories, stored_histories=stored, figures=figures,
                requests=requests, replicas=replicas, keys=keys, name=name, started=started,
            )  # fmt: skip
            watching = asyncio.create_task(reloader.watch(self._look_every))
            opened.callback(watching.cancel)
            look_after = repeat_every(lambda: fail_open.run(_look_after(engine, stored, recent), None), LOOK_EVERY)
            await opened.enter_async_context(look_after)
            await opened.enter_async_context(repeat_every(lambda: looking.run(keys.look(), None), LOOK_FOR_KEYS_EVERY))
            counting = key_usage.count, COUNT_EVERY, key_usage.count, fail_open.for_event("key_usage_failed")
            await opened.enter_async_context(_repeat_until_end(*counting))
            await opened.enter_async_context(_write_figures(figures, replicas, fail_open.for_event("figures_failed")))
            writing = stored.write, HISTORIES_EVERY, stored.write, fail_open.for_event("histories_failed")
            await opened.enter_async_context(_repeat_until_end(*writing))
            storing = requests.write, REQUESTS_EVERY, requests.write, fail_open.for_event("requests_failed")
            await opened.enter_async_context(_repeat_until_end(*storing))
            engine.observe(self._start_event())
            yield
            self._opened = None

    def _figures(self, engine: Engine, run: str) -> KeptFigures:
        """Return the stored figures of this run of the process."""
        sealed = replace(engine.sessions.sealed, ttl=self._config.telemetry.figures)
        return KeptFigures(engine.tallies.hours, sealed, run, time.time, engine.sessions.is_up)

    def _kept_requests(self, unsaved: UnsavedRequests, engine: Engine, name: str) -> KeptRequests:
        """Return the requests of all processes. name: of this replica."""
        sealed = replace(engine.sessions.sealed, ttl=self._config.telemetry.figures)
        is_up = engine.sessions.is_up
        return KeptRequests(unsaved, engine.upstream_failures, sealed, name, self._owner_of, time.time, is_up)

    def _stored_histories(self, histories: SessionHistories, engine: Engine) -> StoredHistories:
        """Return the histories of all processes."""
        return StoredHistories(histories, engine.sessions, self._owner_of)

    def _owner_of(self, tenant: str) -> Caller | None:
        """Return the owner of a tenant's sessions."""
        return self._pipeline.active.tenants.operator_of(tenant)

    def _watch(self, metrics: Metrics, pipeline: Pipeline, reloader: Reloader) -> None:
        """Add the metrics that only the app knows."""
        reload_text, digest = (
            "1 if the last reload of the config's file was successful",
            "Digest of the config in force",
        )
        metrics.gauge(
            "requests_in_flight", "Requests in flight", ("tenant",), lambda: by_name(pipeline.admission.in_flight)
        )
        metrics.gauge("config_reload_successful", reload_text, (), lambda: [((), not reloader.problems)])
        metrics.gauge(
            "health", "Health of a kind of part: 0 good, 1 warning, 2 bad", ("part",),
            lambda: health_samples(self._opened),
        )  # fmt: skip
        metrics.gauge("config_digest_info", digest, ("digest",), lambda: [((digest_of(self._config),), 1)])

    def _report_unreadable_keys(self, number: int) -> None:
        self._log.warning("keys_unreadable", number=number)

    def _replica(self, name: str, started: float, reloader: Reloader) -> Replica:
        return Replica(
            name=name,
            version=version("concertina"),
            started=started,
            digest=digest_of(self._config),
            in_flight=sum(self._pipeline.admission.in_flight.values()),
            problems=reloader.problems,
            told=time.time(),
            secret=store_secret.mark_of(self._config.store),
        )

    def _start_event(self) -> Started:
        config = self._config
        return Started(
            version=version("concertina"),
            config=str(self._source.path) if self._source else "built-in defaults",
            digest=digest_of(config),
            upstreams=tuple(config.upstreams),
            store=config.store.url.partition("://")[0],
            admin="configured" if self._pipeline.active.admin_token.is_configured else "made",
        )

    @property
    def reloader(self) -> Reloader | None:
        """Return the reloader; None before the app is open."""
        return self._opened.reloader if self._opened else None

    def reload(self) -> None:
        """Reload the config. Before the app is open there is nothing newer to read."""
        if self.reloader is not None:
            self.reloader.ask()

    def _swap(self, config: Config) -> None:
        """Put a config in force for new requests. Those in flight keep theirs."""
        assert self._opened is not None  # noqa: S101 - opened before anything is swapped
        self._pipeline.activate(self._activate(config, self._opened.engine), config.upstreams.values())
        self._config = config
        self._log.configure(config.logging.level, config.logging.format)

    @property
    def admin_token(self) -> AdminToken | None:
        """Return the token in force; None before the app is open."""
        return self._pipeline.active.admin_token if self._opened else None

    def _activate(self, config: Config, engine: Engine) -> Active:
        token = admin_token.configured_token(config) or self._own_admin_token()
        server, traces, processes = config.server, config.telemetry.traces, self._processes
        tracing = Tracing(traces.sample) if traces.endpoint else None
        most = most_requests(server.max_requests and -(-server.max_requests // processes))
        buffered = most_buffered(server.max_buffered_bytes, processes) // processes
        # At least one body, and its decompressed content.
        buffered = max(buffered, 2 * server.max_body_bytes)
        return Active(Tenants(config, self._keys), engine.router(config), server, most, buffered, token, tracing)

    @property
    def _processes(self) -> int:
        """Return the number of processes that share the limits of the config."""
        return 1 if self._peers is None else self._peers.count

    def _own_admin_token(self) -> AdminToken:
        """Return the generated token, used if none is configured. The store's file next to it never changes."""
        if self._made_token is None:
            self._made_token = admin_token.keep_token(admin_token.token_file(self._config))
            if self._made_token.trouble:
                self._log.warning("admin_token", problem=self._made_token.trouble)
        return self._made_token


@asynccontextmanager
async def _spans(traces: Traces, name: str) -> AsyncIterator[tuple[Hook, ...]]:
    """Yield the hook that creates and exports spans, if there is a collector."""
    if not traces.endpoint:
        yield ()
        return
    from proxy.telemetry.spans import open_spans

    of_process = {"service.name": "concertina", "service.version": version("concertina"), "service.instance.id": name}
    headers = {name: value.get_secret_value() for name, value in traces.headers.items()}
    spans = open_spans(traces.endpoint, headers, of_process, telemetry_names())
    try:
        yield (spans,)
    finally:
        closing = Thread(target=spans.close, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, _EXPORT_SECONDS)
        spans.give_up()


@asynccontextmanager
async def _write_figures(figures: KeptFigures, replicas: Replicas, fail_open: FailOpen) -> AsyncIterator[None]:
    """Write figures and heartbeats to the store at intervals, and once more at the end."""
    await fail_open.run(replicas.beat(), None)
    writing = repeat_every(lambda: fail_open.run(figures.write(), None), WRITE_EVERY)
    async with writing, repeat_every(lambda: fail_open.run(replicas.beat(), None), BEAT_EVERY):
        yield
    await fail_open.run(figures.write(), None)
    await fail_open.run(replicas.leave(), None)


@asynccontextmanager
async def _repeat_until_end(
    work: Callable[[], Awaitable[None]], seconds: float, final_work: Callable[[], Awaitable[None]], fail_open: FailOpen
) -> AsyncIterator[None]:
    """Repeat work while the block lasts, and do the last work after it."""
    async with repeat_every(lambda: fail_open.run(work(), None), seconds):
        yield
    await fail_open.run(final_work(), None)


def _shows_content(reloader: Reloader, tenant: str) -> bool:
    """Return True if the config in force allows reading the content of a tenant."""
    return reloader.config.shows_content(tenant)


async def _look_after(engine: Engine, histories: StoredHistories, recent: Recent) -> None:
    """Learn requested compactions and erasures, and forget erased sessions in this process."""
    engine.sent_prompts.forget_hidden()
    if await engine.sessions.look_after():
        for key in await histories.forget_erased():
            for memory in (recent, engine.sent_prompts, engine.upstream_failures):
                memory.forget(key.tenant, key.id, key.label.__eq__)
