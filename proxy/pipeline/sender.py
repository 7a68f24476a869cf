"""Who sends a request, and where its conversations go: worked out once for requests with the same headers."""

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
# What is known of a window holds for hours and days.
_MEASURED_SECONDS = 1.0
# Headers that are new in each request of some clients. They say nothing about who sends it or where it goes.
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

    headers:        of the client's request from which the route's headers and the template were made.
    changes, until: for how long what is known of its window is up to date.
    """

    route: Route
    template: RequestTemplate | None
    experience: ModelProfile
    headers: Headers
    changes: int
    until: float


@dataclass(slots=True)
class Sender:
    """The sender of requests that have the same method, target and headers, but for those that are new in each.

    keys:       version of the issued keys by which the caller was found.
    is_allowed: whether the caller may ask for this path; False until that is checked.
    repeated:   what stood around the items of the last request.
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
        """Return the route of a request for a model. `now`: seconds that only go forward."""
        known, router = self.routes.get(model), self.active.router
        is_current = known is not None and known.changes == router.changes and now < known.until
        headers = [header for header in head.headers if header[0] != b"content-length"]
        if known is not None and is_current and known.headers == headers:
            return known
        if known is None:
            route = router.conversation(head, self.caller, model)
        else:
            route = known.route if is_current else router.measure(known.route)
        if known is None or known.headers != headers:
            route = route if known is None else router.with_headers(route, head, self.caller)
            template = client.template(route.upstream, conversation_url(route, head), route.headers)
        else:
            template = known.template
        if known is not None and is_current:
            found = replace(known, route=route, template=template, headers=headers)
        else:
            experience = router.experience(route.place)
            found = ModelRoute(route, template, experience, headers, router.changes, now + _MEASURED_SECONDS)
        if known is not None or len(self.routes) < _MOST_MODELS:
            self.routes[model] = found
        return found


class Senders:
    """Finds the sender of a request, and remembers those of the newest requests; one per process."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[object, ...], Sender] = OrderedDict()

    def find(self, head: ApiHead, active: Active) -> Sender:
        """Return the sender. Raises ProxyError if the request is refused."""
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
        """Forget all senders, as when a config is put in force."""
        self._known.clear()


@lru_cache(REMEMBERED)
def _is_new_in_each(name: bytes) -> bool:
    return name in _NEW_IN_EACH_REQUEST
