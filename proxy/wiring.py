"""The parts that compact conversations, put together: for the server, and for the commands that only look."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor
from dataclasses import dataclass
from importlib import resources

from policies.record.prompting import Prompts
from proxy.callers.spending import Spending
from proxy.config.loading import Config
from proxy.dialects.reader import RequestReader
from proxy.engine.ahead import Ahead
from proxy.engine.compactions import Compactions
from proxy.engine.compactor import Compactor
from proxy.engine.cooler import Cooler
from proxy.engine.decider import Decider
from proxy.engine.drafter import Drafter
from proxy.engine.excerpts import Excerpts
from proxy.engine.explainer import Explainer
from proxy.engine.standing import StandingRecords
from proxy.engine.summarizer import Summarizer
from proxy.engine.trails import Trails
from proxy.gateway.report import CompactionLog
from proxy.models.table import ModelTable
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.models.windows import Windows
from proxy.observing.log import Log
from proxy.observing.metrics import Metrics
from proxy.records.checkpoints import Checkpoints
from proxy.records.erasures import Erasures
from proxy.records.index import SessionIndex
from proxy.records.lineages import Lineages
from proxy.records.siblings import Siblings
from proxy.runtime.background import Background
from proxy.stores import GuardedStore, Sealer
from proxy.stores.base import Store
from proxy.upstream.http import UpstreamClient
from proxy.upstream.routes import Router


@dataclass(frozen=True, slots=True)
class Engine:
    """What turns a chat request into what is sent for it, and what follows an answer."""

    tokenizer: Tokenizer
    windows: Windows
    metrics: Metrics
    reader: RequestReader
    drafter: Drafter
    ahead: Ahead
    explainer: Explainer
    erasures: Erasures
    sessions: SessionIndex
    background: Background

    def router(self, config: Config) -> Router:
        return Router(config, self.windows, self.tokenizer)


async def open_engine(
    config: Config,
    store: Store,
    client: UpstreamClient,
    workers: Executor,
    log: Log,
    summarizer: Summarizer | None = None,
) -> Engine:
    """Load the tokenizer and the model table, and wire the parts; `summarizer` in place of one that asks upstreams."""
    tokenizer, table, metrics = Tokenizer(), ModelTable(), Metrics()
    await asyncio.to_thread(tokenizer.warm, DEFAULT_ENCODING)
    await asyncio.to_thread(table.load)
    sealer, ttl = Sealer(config.store.encryption_key_bytes, config.store.retired_key_bytes), config.store.ttl

    def is_answered() -> bool:
        return not isinstance(store, GuardedStore) or store.available

    if isinstance(store, GuardedStore):
        metrics.watch_store(lambda: store.available, store.errors, lambda: sealer.unreadable)
    windows = Windows(table, store, sealer, time.time)
    checkpoints = Checkpoints(store, sealer, ttl)
    summarizer = summarizer or Summarizer(client, time.monotonic)
    spending, prompts = Spending(time.time), read_prompts()
    told = CompactionLog(log, time.monotonic)
    compactor = Compactor(
        checkpoints,
        summarizer,
        tokenizer,
        prompts,
        windows,
        spending,
        workers,
        told,
        time.time,
        time.monotonic,
    )
    cooler = Cooler(store, sealer, ttl, tokenizer, workers)
    erasures = Erasures(store, ttl, time.monotonic)
    siblings = Siblings(checkpoints, erasures, sealer, ttl)
    standing = StandingRecords(checkpoints, siblings, is_answered)
    lineages = Lineages(store, sealer, ttl, time.time)
    trails = Trails(checkpoints, standing, erasures, sealer, ttl)
    excerpts = Excerpts(cooler, summarizer, tokenizer, prompts, spending, workers)
    sessions = SessionIndex(store, sealer, ttl, erasures, siblings, time.time)
    background = Background(log)
    compactions = Compactions(standing, compactor, lineages, trails, sessions, background)
    return Engine(
        tokenizer,
        windows,
        metrics,
        RequestReader(tokenizer, workers),
        Drafter(
            Decider(standing, cooler, lineages),
            standing,
            compactions,
            lineages,
            erasures,
            trails,
            tokenizer,
            told,
        ),
        Ahead(standing, compactions, excerpts, summarizer, lineages, trails, windows, metrics, log),
        Explainer(checkpoints, erasures, lineages, sealer, ttl, tokenizer, workers, is_answered),
        erasures,
        sessions,
        background,
    )


def read_prompts() -> Prompts:
    """The summarizer's prompts, as shipped."""
    folder = resources.files("policies") / "prompts"
    names = ("summarize", "merge", "reminder", "excerpt", "aligned")
    return Prompts(**{name: (folder / f"{name}.md").read_text("utf-8") for name in names})
