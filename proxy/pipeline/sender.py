"""The client of a request and the routes of its conversations, cached for requests with the same headers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from functools import lru_cache

from policies.model_profile import ModelProfile
from proxy.callers.api_head import ApiHead
from proxy.callers.session_label import label_of
from proxy.callers.tenants import Caller
from proxy.compaction.plan_input import Mode
from proxy.dialects.frames import Repeated
from proxy.lru import remember
from proxy.pipeline.identify import check_placement, identify
from proxy.server.headers import REMEMBERED, Headers
from proxy.upstreams.active import Active
from proxy.upstreams.http import RequestTemplate, UpstreamClient
from proxy.upstreams.routes import Route, conversation_url

_MOST_SENDERS = 500
_MOST_MODELS = 8
# Facts about a window are valid for hours and days.
_MEASURED_SECONDS = 1.0
# Headers that differ in each request of some clients. They identify neither a client nor a route.
_NEW_IN_EACH_REQUEST = frozenset(
    {
        *(b"baggage", b"b3", b"content-length", b"date", b"helicone-request-id", b"idempotency-key", b"request-id"),
        *(b"sentry-trace", b"traceparent", b"tracestate", b"x-amzn-trace-id", b"x-client-request-id"),
        *(b"x-cloud-trace-context", b"x-correlation-id", b"x-datadog-parent-id", b"x-datadog-trace-id"),
        *(b"x-idempotency-key", b"x-litellm-call-id", b"x-portkey-span-id", b"x-portkey-trace-id", b"x-request-id"),
        *(b"x-stainless-retry-count", b"x-stainless-timeout"),
    }
)


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """The route of requests for a model.

    headers:        the client's headers from which the route's headers and the template were made.
    changes, until: the version of the router and the time until which the window is up to date.
    """

    route: Route
    template: RequestTemplate | None
    experience: ModelProfile
    headers: Headers
    changes: int
    until: float


@dataclass(slots=True)
class Sender:
    """The sender of requests with the same method, target and headers, except those that differ in each request.

    keys:       the version of the issued keys by which the caller was found.
    is_allowed: True if the caller may use this path; False until that is checked.
    repeated:   the frame of the last request.
    routes:     by model.
    """

    active: Active
    caller: Caller
    mode: Mode
    keys: int
    is_allowed: bool = False
    repeated: Repeated | None = None
    routes: dict[str, ModelRoute] = field(default_factory=dict)
    _label: str | None = None

    def label(self, head: ApiHead) -> str:
        """Return the name of the session in the headers; empty if there is none."""
        if self._label is None:
            self._label = label_of(head.header)
        return self._label

    def route(self, head: ApiHead, model: str, client: UpstreamClient, now: float) -> ModelRoute:
        """Return the route of a request for a model. now: monotonic seconds."""
        cached, router = self.routes.get(model), self.active.router
        is_current = cached is not None and cached.changes == router.changes and now < cached.until
        headers = [header for header in head.headers if header[0] != b"content-length"]
        if cached is not None and is_current and cached.headers == headers:
            return cached
        if cached is None:
            route = router.conversation(head, self.caller, model)
        else:
            route = cached.route if is_current else router.measure(cached.route)
        if cached is None or cached.headers != headers:
            route = route if cached is None else router.with_headers(route, head, self.caller)
            template = client.template(route.upstream, conversation_url(route, head), route.headers)
        else:
            template = cached.template
        if cached is not None and is_current:
            model_route = replace(cached, route=route, template=template, headers=headers)
        else:
            experience = router.experience(route.place)
            model_route = ModelRoute(route, template, experience, headers, router.changes, now + _MEASURED_SECONDS)
        if cached is not None or len(self.routes) < _MOST_MODELS:
            self.routes[model] = model_route
        return model_route


class Senders:
    """Finds the sender of a request. One per process. It caches the newest senders."""

    def __init__(self) -> None:
        """Create an empty cache."""
        self._known: OrderedDict[tuple[object, ...], Sender] = OrderedDict()

    def find(self, head: ApiHead, active: Active) -> Sender:
        """Return the sender. Raises ProxyError if the request is rejected."""
        of_sender = [header for header in head.headers if not _is_new_in_each(header[0])]
        key = head.method, head.target, *of_sender
        sender = self._known.get(key)
        if sender is None or sender.active is not active or sender.keys != active.tenants.version:
            sender = Sender(active, *identify(head, active), active.tenants.version)
            return remember(self._known, key, sender, _MOST_SENDERS)
        self._known.move_to_end(key)
        if len(of_sender) + 1 < len(head.headers):
            check_placement([header for header in head.headers if _is_new_in_each(header[0])], active, sender.caller)
        return sender

    def forget(self) -> None:
        """Forget all senders, because a new config applies."""
        self._known.clear()


@lru_cache(REMEMBERED)
def _is_new_in_each(name: bytes) -> bool:
    return name in _NEW_IN_EACH_REQUEST
