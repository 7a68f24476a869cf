"""The services that compact conversations, as one value."""

from dataclasses import dataclass

from msgspec.structs import replace

from proxy.callers.spending import Spending
from proxy.callers.tenants import Caller
from proxy.compaction.checkpoints import Checkpoints
from proxy.compaction.plan_input import RoutedRequest
from proxy.compaction.planner import Planner
from proxy.compaction.prefetch import Prefetch
from proxy.compaction.prompt_builder import PromptBuilder
from proxy.compaction.provider.clients import ClientCompactions
from proxy.compaction.record_builder import RecordBuilder
from proxy.compaction.sent_prompts import SentPrompts
from proxy.config.loading import Config
from proxy.dialects.base import Dialect
from proxy.dialects.compaction import CompactionRequestError
from proxy.dialects.reader import CountedRequest, RequestReader
from proxy.memory import Memory
from proxy.models.tokenizer import Tokenizer
from proxy.models.windows import Windows
from proxy.runtime.background import Background
from proxy.runtime.workers import Workers
from proxy.sessions.sessions import Sessions
from proxy.telemetry.events import Hook
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.tallies import Tallies
from proxy.telemetry.upstream_failures import UpstreamFailures
from proxy.upstreams.routes import Router
from proxy.upstreams.summarizer import Summarizer


@dataclass(frozen=True, slots=True)
class Engine:
    """The services that build prompts from requests, over one store."""

    tokenizer: Tokenizer
    windows: Windows
    tallies: Tallies
    metrics: Metrics
    observe: Hook
    reader: RequestReader
    clients: ClientCompactions
    planner: Planner
    prompt_builder: PromptBuilder
    prefetch: Prefetch
    builder: RecordBuilder
    checkpoints: Checkpoints
    summarizer: Summarizer
    spending: Spending
    sessions: Sessions
    background: Background
    workers: Workers
    memory: Memory
    sent_prompts: SentPrompts
    upstream_failures: UpstreamFailures
    _read_only: "Engine | None"

    def read_only(self) -> "Engine":
        """Return the same engine over a read-only store, with silent listeners.

        It decides as this one does. It builds a record only if its builder is called, and stores none.
        """
        return self._read_only or self

    async def apply_manual_compaction(self, routed: RoutedRequest) -> RoutedRequest:
        """Return the request with mode `force` if its session's page asked for a compaction, else unchanged."""
        chain, manual = routed.chain, self.sessions.manual
        if routed.mode == "on" and manual.may_be_due(chain) and await manual.take(chain.session):
            return replace(routed, mode="force")
        return routed

    async def read(self, body: bytes, caller: Caller, router: Router, dialect: Dialect) -> CountedRequest | None:
        """Read a request to explain or replay, with its alias resolved and its compaction items expanded.

        Items that cannot be opened stay sealed. Raises the errors of `RequestReader.read`.
        """
        body = router.with_served_model(body, dialect)
        request = await self.reader.read(body, caller.scope, router.encoding, dialect)
        if request is None or not request.compacts:
            return request
        try:
            settled = await self.workers.run(lambda: self.clients.expander.settle(request, caller.tenant, is_ours=True))
        except CompactionRequestError:
            return request
        read = await self.reader.read(settled.body, caller.scope, router.encoding, dialect)
        return request if read is None else settled.carried_in(read)

    def router(self, config: Config) -> Router:
        """Return a router for this config."""
        return Router(config, self.windows, self.tokenizer)
