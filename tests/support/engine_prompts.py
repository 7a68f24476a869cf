"""What engines would send for a session in the shape of one client, without a socket."""

from __future__ import annotations

import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from proxy.callers.api_head import ApiHead
from proxy.callers.tenants import Tenants
from proxy.compaction.plan_input import plan_input_of
from proxy.config.loading import load_text
from proxy.sessions.stores.memory import MemoryStore
from proxy.telemetry.log import Log
from proxy.upstreams.http import UpstreamClient
from proxy.wiring import open_engine
from tests.support.worlds import DEFECTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from proxy.compaction.engine import Engine
    from proxy.compaction.plan_input import Mode, PlanInput
    from proxy.compaction.prompt import Prompt
    from proxy.config.loading import Config
    from tests.support.shaped_sessions import Session


def config_of(window: int, **policy: object) -> Config:
    """Return a config without summarizer."""
    policies = {"default": {"summarizer": {"model": "none"}, **policy}}
    models = [{"match": "*", "context_window": window}]
    upstreams = {"main": {"base_url": "http://127.0.0.1:9/v1"}}
    return load_text("test", json.dumps({"upstreams": upstreams, "models": models, "policies": policies}), {})


@asynccontextmanager
async def engines(config: Config, number: int) -> AsyncIterator[list[Engine]]:
    """Open so many replicas over one store."""
    store = MemoryStore()
    with ThreadPoolExecutor(1) as workers:
        log = Log("warning", time.time, io.BytesIO())
        yield [await open_engine(config, store, UpstreamClient(), workers, log) for _ in range(number)]


async def prompt_of(engine: Engine, config: Config, session: Session, mode: Mode = "on") -> tuple[PlanInput, Prompt]:
    """Return the prompt of a session's next request, which no provider refuses."""
    router, caller = engine.router(config), Tenants(config).identify(None)
    request = await engine.reader.read(session.body(), caller.scope, router.encoding, session.dialect)
    assert request is not None
    head = ApiHead("POST", "/", []).asking(session.dialect)
    case = await engine.prompt_builder.place(plan_input_of(head, router, caller, mode, request))
    prompt = await engine.prompt_builder.first(case)
    assert DEFECTS[session.dialect.name](json.loads(prompt.body)) == []
    return case, prompt
