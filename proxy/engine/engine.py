"""The parts that compact conversations, as one value."""

from dataclasses import dataclass

from msgspec.structs import replace

from proxy.callers.spending import Spending
from proxy.config.loading import Config
from proxy.dialects.reader import RequestReader
from proxy.engine.ahead import Ahead
from proxy.engine.case import RoutedRequest
from proxy.engine.client_compaction.clients import ClientCompactions
from proxy.engine.compactor import Compactor
from proxy.engine.drafter import Drafter
from proxy.engine.explaining.compositions import Compositions
from proxy.engine.explaining.explainer import Explainer
from proxy.memory import Memory
from proxy.models.tokenizer import Tokenizer
from proxy.models.windows import Windows
from proxy.observing.events import Hook
from proxy.observing.metrics import Metrics
from proxy.observing.tallies import Tallies
from proxy.records.sessions import Sessions
from proxy.runtime.background import Background
from proxy.runtime.workers import Workers
from proxy.upstream.routes import Router


@dataclass(frozen=True, slots=True)
class Engine:
    """What turns a request into what is sent for it, and what follows an answer. trials: makes records that nobody
    keeps."""

    tokenizer: Tokenizer
    windows: Windows
    tallies: Tallies
    metrics: Metrics
    observe: Hook
    reader: RequestReader
    clients: ClientCompactions
    drafter: Drafter
    ahead: Ahead
    compositions: Compositions
    explainer: Explainer
    trials: Compactor
    spending: Spending
    sessions: Sessions
    background: Background
    workers: Workers
    memory: Memory

    async def as_asked(self, named: RoutedRequest) -> RoutedRequest:
        """A request as it was asked for on its session's page: compacted."""
        chain, manual = named.chain, self.sessions.manual
        if named.mode == "on" and manual.may_be_due(chain) and await manual.take(chain.session):
            return replace(named, mode="force")
        return named

    def router(self, config: Config) -> Router:
        return Router(config, self.windows, self.tokenizer)
