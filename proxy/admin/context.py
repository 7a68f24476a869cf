"""The parts of the running proxy that pages read, and the tenants of visitors."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from starlette.requests import Request

from proxy.admin.access import Visitor
from proxy.admin.recent import Recent
from proxy.callers.issued_keys import KeyRing
from proxy.callers.tenants import Caller
from proxy.compaction.engine import Engine
from proxy.config.reloading import Reloader
from proxy.config.settings import DEFAULT, Config
from proxy.errors import InvalidRequestError, NotAllowedError, NotFoundError
from proxy.sessions.kept_figures import KeptFigures
from proxy.sessions.kept_requests import KeptRequests
from proxy.sessions.replicas import Replicas
from proxy.sessions.stored_histories import StoredHistories
from proxy.sessions.stores import CircuitBreaker
from proxy.telemetry.session_history import SessionHistories
from proxy.upstreams.active import Active


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminContext:
    """The parts of the running proxy.

    openmetrics: None if several workers answer as one. in_flight: requests in flight by tenant. keys: issued keys.
    name: of this replica. started: in Unix seconds.
    """

    store: CircuitBreaker
    engine: Engine
    active: Callable[[], Active]
    is_draining: Callable[[], bool]
    reloader: Reloader
    in_flight: Mapping[str, int]
    exposition: Callable[[], Awaitable[bytes]]
    openmetrics: Callable[[], Awaitable[bytes]] | None
    recent: Recent
    histories: SessionHistories
    stored_histories: StoredHistories
    figures: KeptFigures
    requests: KeptRequests
    replicas: Replicas
    keys: KeyRing
    name: str
    started: float

    @property
    def config(self) -> Config:
        """Return the config in force."""
        return self.reloader.config


def tenant_of(request: Request, visitor: Visitor, context: AdminContext) -> Caller:
    """Return the tenant of `?tenant=`, or else a viewer's own, or the default one. Raises as `named_tenant` does."""
    return named_tenant(request.query_params.get("tenant", ""), visitor, context)


def named_tenant(name: str, visitor: Visitor, context: AdminContext) -> Caller:
    """Return the tenant with this name, or else a viewer's own, or the default one.

    Raises NotAllowedError, NotFoundError.
    """
    name = name or visitor.tenant or DEFAULT
    caller = context.active().tenants.operator_of(name)
    if not visitor.sees(name):
        raise NotAllowedError("Your key is for the pages of another tenant.", param="tenant")
    if caller is None:
        raise NotFoundError("No tenant has this name; choose one with ?tenant=NAME.", param="tenant")
    return caller


def under(policy: str, caller: Caller, context: AdminContext) -> Caller:
    """Return the caller under the policy with this name. Raises InvalidRequestError."""
    policies = context.config.policies
    if policy not in policies:
        raise InvalidRequestError(f"No policy is called {policy}.", param="policies")
    return replace(caller, policy_name=policy, policy=policies[policy])


def viewed_tenant(request: Request, visitor: Visitor, context: AdminContext) -> str | None:
    """Return the tenant of `?tenant=`, or else a viewer's own; None for all."""
    if visitor.tenant is None and not request.query_params.get("tenant"):
        return None
    return tenant_of(request, visitor, context).tenant
