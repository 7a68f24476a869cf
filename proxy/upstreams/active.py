"""The part of a config that requests use."""

from dataclasses import dataclass

from proxy.callers.admin_token import AdminToken
from proxy.callers.tenants import Tenants
from proxy.config.settings import Server
from proxy.telemetry.trace import Tracing
from proxy.upstreams.routes import Router


@dataclass(frozen=True, slots=True)
class Active:
    """The config in force, as one immutable value. A reload replaces it as a whole.

    max_requests, max_buffered_bytes: the share of this process.
    tracing: None if requests are not traced.
    """

    tenants: Tenants
    router: Router
    server: Server
    max_requests: int
    max_buffered_bytes: int
    admin_token: AdminToken
    tracing: Tracing | None
