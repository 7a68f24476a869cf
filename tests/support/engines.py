"""Replicas without sockets: what each of them would send for a session."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from hypothesis import HealthCheck, Phase, settings

from proxy.callers.api_head import ApiHead
from proxy.callers.tenants import Tenants
from proxy.compaction.plan_input import plan_input_of
from proxy.config.loading import load_text
from proxy.sessions.stores.memory import MemoryStore
from proxy.telemetry.log import Log
from proxy.upstreams.http import UpstreamClient
from proxy.wiring import open_engine
from tests.support.dialects import key_of

if TYPE_CHECKING:
    import io
    from collections.abc import AsyncIterator

    from proxy.compaction.engine import Engine
    from proxy.compaction.plan_input import Mode, PlanInput
    from proxy.compaction.prompt import Prompt
    from proxy.config.settings import Config
    from proxy.dialects.base import Dialect
    from tests.support.shaped_sessions import Session

WINDOW = 16_000
# How many generated sessions are played, for tests that may be slow. A session is too large to be shrunk.
SESSIONS = settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


def config_of(window: int = WINDOW, **policy: object) -> Config:
    """A model with a window of so many tokens, and no summarizer."""
    policies = {"default": {"summarizer": {"model": "none"}, **policy}}
    models = [{"match": "*", "context_window": window}]
    upstreams = {"main": {"base_url": "http://127.0.0.1:9/v1"}}
    return load_text("test", json.dumps({"upstreams": upstreams, "models": models, "policies": policies}), {})


class Asking(Protocol):
    """What is asked for in one dialect, such as a session of a client."""

    dialect: Dialect

    def body(self) -> bytes:
        """Return the body of its next request."""


class Process:
    """One replica, which is asked what it would send."""

    def __init__(self, engine: Engine, config: Config) -> None:
        self.engine, self._config = engine, config

    async def case(self, session: Asking, *pins: str, mode: Mode = "on") -> PlanInput:
        """The plan input of a session's next request. pins: those that its header names."""
        engine = self.engine
        router, head = engine.router(self._config), ApiHead("POST", "/", [])
        caller = replace(Tenants(self._config).identify(None), pins=pins)
        request = await engine.reader.read(session.body(), caller.scope, router.encoding, session.dialect)
        assert request is not None
        case = plan_input_of(head.asking(session.dialect), router, caller, mode, request)
        return await engine.prompt_builder.place(case)

    async def prompt(self, session: Asking, *pins: str, mode: Mode = "on") -> Prompt:
        return await self.engine.prompt_builder.build_first(await self.case(session, *pins, mode=mode))


@asynccontextmanager
async def processes(config: Config, faults: io.BytesIO, count: int = 2) -> AsyncIterator[list[Process]]:
    """So many replicas with one store."""
    store = MemoryStore()
    with ThreadPoolExecutor(1) as workers:
        log = Log("warning", time.time, faults)
        engines = [await open_engine(config, store, UpstreamClient(), workers, log) for _ in range(count)]
        yield [Process(engine, config) for engine in engines]


def items_of(session: Session, body: bytes) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(body)[key_of(session.dialect)]
    return items
