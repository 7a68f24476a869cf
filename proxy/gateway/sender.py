"""Who sends the requests of a connection, and where to: worked out once for as long as their heads say the same."""

from dataclasses import dataclass, field

from policies.experience import ModelProfile
from proxy.api.head import ApiHead
from proxy.callers.session_label import label_of
from proxy.callers.tenants import Caller
from proxy.dialects.frames import Repeated
from proxy.engine.case import Mode
from proxy.gateway.identify import identify
from proxy.server.headers import Headers
from proxy.upstream.active import Active
from proxy.upstream.http import RequestTemplate, UpstreamClient
from proxy.upstream.routes import Route, conversation_url

_MOST_MODELS = 8
# What is known of a window holds for hours and days.
_MEASURED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """Where requests for a model go. changes, until: for how long what is known of its window is up to date."""

    route: Route
    template: RequestTemplate | None
    experience: ModelProfile
    changes: int
    until: float


@dataclass(slots=True)
class Sender:
    """headers: without the length of the body, and ways by model. keys: the version of the keys that it was found by.
    is_allowed: whether its path was found to be among those that the caller may ask for.
    repeated: what stood around the items of its last request.
    """

    active: Active
    origin: object
    target: str
    headers: Headers
    caller: Caller
    mode: Mode
    keys: int
    is_allowed: bool = False
    repeated: Repeated | None = None
    ways: dict[str, ModelRoute] = field(default_factory=dict)
    _label: str | None = None

    def is_up_to_date(self, active: Active) -> bool:
        """Whether the same head has the same sender now."""
        return self.active is active and self.keys == active.tenants.version

    def label(self, head: ApiHead) -> str:
        """What the head calls the session; empty if it has no name for it."""
        if self._label is None:
            self._label = label_of(head.header)
        return self._label

    def way(self, head: ApiHead, model: str, client: UpstreamClient, now: float) -> ModelRoute:
        """Where its requests for a model go, with what is known of its window; `now` in seconds that go forward."""
        known, router = self.ways.get(model), self.active.router
        if known is not None and known.changes == router.changes and now < known.until:
            return known
        if known is None:
            route = router.conversation(head, self.caller, model)
            template = client.template(route.upstream, conversation_url(route, head), route.headers)
        else:
            route, template = router.measure(known.route), known.template
        way = ModelRoute(route, template, router.experience(route.place), router.changes, now + _MEASURED_SECONDS)
        if known is not None or len(self.ways) < _MOST_MODELS:
            self.ways[model] = way
        return way


def sender_of(head: ApiHead, active: Active, before: object) -> Sender:
    """Who sends this request; `before`: who sent the last one of its connection. Raises what it is refused with."""
    known = before if isinstance(before, Sender) and before.is_up_to_date(active) else None
    if known is not None and known.origin is head.origin:
        return known
    headers = [header for header in head.headers if header[0] != b"content-length"]
    if known is not None and (known.target, known.headers) == (head.target, headers):
        return known
    caller, mode = identify(head, active)
    return Sender(active, head.origin, head.target, headers, caller, mode, active.tenants.version)
