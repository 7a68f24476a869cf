"""Build the engine of a config, for the server and for commands."""

import asyncio
import io
import time
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib import resources

from policies.record.prompting import Prompts
from proxy.callers.spending import Spending
from proxy.callers.store_secret import secret_in_force
from proxy.compaction.checkpoints import Checkpoints
from proxy.compaction.compactor import Compactor
from proxy.compaction.engine import Engine
from proxy.compaction.excerpt_writer import ExcerptWriter
from proxy.compaction.lossless import LosslessShortener
from proxy.compaction.pins import PinFinder
from proxy.compaction.planner import Planner
from proxy.compaction.pointers import PointerResolver
from proxy.compaction.prefetch import Prefetch
from proxy.compaction.prompt_builder import PromptBuilder
from proxy.compaction.provider.clients import ClientCompactions
from proxy.compaction.provider.expansion import Expander
from proxy.compaction.provider.making import ItemMaker
from proxy.compaction.provider.sealed_items import ItemSealer
from proxy.compaction.recall import Recall
from proxy.compaction.record_builder import RecordBuilder
from proxy.compaction.sent_prompts import SentPrompts
from proxy.compaction.shortener import Shortener
from proxy.compaction.stability import Stability
from proxy.compaction.summary_writer import SummaryWriter
from proxy.config.loading import Config
from proxy.dialects.reader import RequestReader
from proxy.memory import Cache, Memory
from proxy.models.table import ModelTable
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.models.windows import Windows
from proxy.runtime.background import Background
from proxy.runtime.fail_open import FailOpen
from proxy.runtime.workers import Workers
from proxy.sessions.sessions import Sessions
from proxy.sessions.stores import CircuitBreaker
from proxy.sessions.stores.base import Store
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.sealing import Sealer
from proxy.telemetry.events import Hook, note
from proxy.telemetry.hooks import Hooks
from proxy.telemetry.log import Log
from proxy.telemetry.log_lines import LogLines
from proxy.telemetry.metrics import Metrics, by_name
from proxy.telemetry.pricing import Pricing
from proxy.telemetry.tallies import Tallies
from proxy.telemetry.upstream_failures import UpstreamFailures
from proxy.upstreams.http import UpstreamClient
from proxy.upstreams.summarizer import Summarizer

_WORKERS = 2
# The memory of the read-only engine. It does not compete with that of requests.
_READ_ONLY_BYTES = 8 * 1024 * 1024


async def open_engine(
    config: Config,
    store: Store,
    client: UpstreamClient,
    executor: Executor,
    log: Log,
    *hooks: Hook,
    summarizer: Summarizer | None = None,
    loads: bool = True,
) -> Engine:
    """Load the tokenizer and the model table, and build the engine.

    hooks: called with every event, like the log. summarizer: replaces the one that calls upstreams. loads: False leaves
    tokenizer and table to their first use.
    """
    tokenizer, table, tallies = Tokenizer(), ModelTable(), Tallies(time.time)
    metrics = Metrics(tallies)
    if loads:
        await asyncio.to_thread(tokenizer.warm, DEFAULT_ENCODING)
        await asyncio.to_thread(table.load)
    hooks_with_log = Hooks(LogLines(log), tallies, *hooks, fault=log.fault)
    observe = Pricing(table.price, hooks_with_log)
    memory = Memory()
    workers, background = Workers(executor), Background(log.fault)
    sealed = config.store.seal(store)
    sessions = Sessions(sealed, memory)
    windows = Windows(table, sealed, time.time)
    summarizer = summarizer or Summarizer(client, time.monotonic, observe)
    spending, prompts = Spending(time.time), read_prompts()

    reader = RequestReader(tokenizer, workers, memory)
    items = ItemSealer(config.store.sealer(secret_in_force(config.store)), Cache(memory, "items"))

    def build(
        sessions: Sessions, memory: Memory, stored: Memory, observe: Hook, read_only: Engine | None = None
    ) -> Engine:
        """Return an engine over these sessions.

        stored: caches values of the store. read_only: the read-only engine, None to build that one.
        """
        checkpoints, stability, sealed = Checkpoints(sessions), Stability(sessions), sessions.sealed
        records, lineages = sessions.records, sessions.lineages
        writer = SummaryWriter(records, summarizer, tokenizer, prompts, windows, spending, workers, time.monotonic)
        builder = RecordBuilder(summarizer, writer, spending, tokenizer, workers, observe, time.time)
        compactor = Compactor(checkpoints, builder, stability, sessions, background)
        recall = Recall(
            tokenizer, workers, observe, Cache(memory, "quotations"), Cache(memory, "indexes"), Cache(memory, "sent")
        )
        lossless = LosslessShortener(
            tokenizer, workers, Cache(memory, "lossless"), FailOpen(log.fault, "lossless_failed")
        )
        pointers = PointerResolver(
            tokenizer, workers, Cache(memory, "pointers"), FailOpen(log.fault, "dereference_failed")
        )
        pins = PinFinder(tokenizer, workers, Cache(memory, "pins"), FailOpen(log.fault, "pins_failed"))
        shortener = Shortener(sealed, tokenizer, workers, recall, lossless, pointers, stored, memory)
        excerpts = ExcerptWriter(shortener.short_forms, summarizer, tokenizer, prompts, spending, workers)
        planner = Planner(checkpoints, shortener, stability, lineages)
        looking = None if read_only is None else read_only.prompt_builder
        prompt_builder = PromptBuilder(
            planner, shortener, looking, checkpoints, compactor, sessions, tokenizer, workers, observe, pins
        )
        prefetch = Prefetch(checkpoints, compactor, excerpts, summarizer, sessions, stability, windows, observe)
        maker = ItemMaker(checkpoints, compactor, builder, shortener.short_forms, lineages, items, time.time)
        return Engine(
            tokenizer, windows, tallies, metrics, observe, reader, ClientCompactions(Expander(items), maker),
            planner, prompt_builder, prefetch, builder, checkpoints, summarizer, spending, sessions,
            background, workers, memory, SentPrompts(), UpstreamFailures(), read_only,
        )  # fmt: skip

    # It caches nothing of the store: values that it would store may differ from later ones.
    read_only = build(sessions.read_only(), Memory(_READ_ONLY_BYTES), Memory(0), lambda _: None)
    engine = build(sessions, memory, memory, observe, read_only)
    _watch_memory(metrics, memory, engine.sent_prompts)
    _watch_store(metrics, store, sealed.sealer, observe)
    _watch_work(metrics, background, engine.checkpoints, summarizer, spending)
    _watch_sinks(metrics, log, hooks_with_log)
    return engine


@asynccontextmanager
async def open_apart(config: Config, summarizer: Summarizer, hook: Hook) -> AsyncIterator[Engine]:
    """Open an engine over an empty store for a replay. It logs nothing and uses only this summarizer."""
    with ThreadPoolExecutor(_WORKERS) as workers:
        log = Log("error", time.time, io.BytesIO())
        yield await open_engine(config, MemoryStore(), UpstreamClient(), workers, log, hook, summarizer=summarizer)


def _watch_memory(metrics: Metrics, memory: Memory, sent_prompts: SentPrompts) -> None:
    help_text, bound = "Approximate bytes of caches", "Maximum bytes of all caches except sent_prompts"
    metrics.gauge(
        "memory_bytes", help_text, ("cache",), lambda: by_name({**memory.held_bytes, **sent_prompts.held_bytes})
    )
    metrics.gauge("memory_limit_bytes", bound, (), lambda: [((), memory.most)])


def _watch_store(metrics: Metrics, store: Store, sealer: Sealer, observe: Hook) -> None:
    if not isinstance(store, CircuitBreaker):
        return
    store.on_change = lambda is_up, reason: observe(note("store_up" if is_up else "store_down", reason=reason))
    is_up, errors = "1 if the store works", "Failed operations of the store"
    useless = "Values in the store that were damaged, or sealed for another key or with an unknown encryption key"
    metrics.gauge("store_up", is_up, (), lambda: [((), store.available)])
    metrics.counter("store_errors", errors, ("operation",), lambda: by_name(store.errors))
    metrics.counter("store_unreadable", useless, (), lambda: [((), sealer.unreadable)])
    metrics.histogram(
        "store_operation_duration_seconds", "Duration of operations of the store", ("operation",), store.seconds
    )


def _watch_work(
    metrics: Metrics, background: Background, checkpoints: Checkpoints, summarizer: Summarizer, spending: Spending
) -> None:
    skipped, lookups = "Background work that was skipped at the limit of running work", "Lookups of a checkpoint"
    paused, used = "Summarizers that are paused after a failure", "Share of summary_tokens_per_day used today"
    metrics.counter("background_skipped", skipped, ("name",), lambda: by_name(background.skipped))
    metrics.counter("checkpoint_lookups", lookups, ("result",), lambda: by_name(checkpoints.lookups))
    resting = summarizer.cooling_down
    metrics.gauge("summarizer_cooling_down", paused, ("upstream", "model"), lambda: [(who, 1) for who in resting()])
    metrics.gauge("summary_budget_used_ratio", used, ("tenant",), lambda: by_name(spending.used_shares()))


def _watch_sinks(metrics: Metrics, log: Log, observe: Hooks) -> None:
    dropped = "Events that a hook did not accept"
    metrics.counter("log_lines_lost", "Log lines that could not be written", (), lambda: [((), log.lost)])
    metrics.counter("events_dropped", dropped, ("sink",), lambda: by_name(observe.dropped))


def read_prompts() -> Prompts:
    """Return the prompts of the summarizer, as shipped."""
    folder = resources.files("policies") / "prompts"
    names = ("summarize", "merge", "reminder", "excerpt", "aligned")
    return Prompts(**{name: (folder / f"{name}.md").read_text("utf-8") for name in names})
