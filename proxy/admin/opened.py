"""What our own pages look at, while the app is open."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from proxy.admin.recent import Recent
from proxy.admin.trails import Trails
from proxy.config.reloading import Reloader
from proxy.config.settings import Config
from proxy.engine.engine import Engine
from proxy.stores import CircuitBreaker
from proxy.upstream.active import Active


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The parts of the running proxy. openmetrics: None where several workers answer as one. in_flight: requests
    under way by tenant. name: this replica's. started: Unix seconds."""

    store: CircuitBreaker
    engine: Engine
    active: Callable[[], Active]
    is_draining: Callable[[], bool]
    reloader: Reloader
    in_flight: Mapping[str, int]
    exposition: Callable[[], Awaitable[bytes]]
    openmetrics: Callable[[], Awaitable[bytes]] | None
    recent: Recent
    trails: Trails
    name: str
    started: float

    @property
    def config(self) -> Config:
        """In force now."""
        return self.reloader.config
