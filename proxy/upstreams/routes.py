"""The route of a request: its upstream, headers, limits, and summarizer."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from policies.conversation.prefix_digests import Chain
from policies.decision.media import MANY, NO_MEDIA_LIMITS, MediaLimits
from policies.model_profile import ModelProfile
from policies.price import Price, price_in_seconds
from proxy.callers.api_head import ApiHead
from proxy.callers.api_headers import KEY_HEADERS, credential, for_questions, is_login, to_upstream, window_beta
from proxy.callers.api_paths import MODEL_PATHS, NO_MOUNT, Mount, allows, reading, resource, resource_url
from proxy.callers.tenants import Caller
from proxy.config.settings import Config, Upstream
from proxy.dialects import json_array
from proxy.dialects.base import Dialect
from proxy.dialects.reader import CountedRequest
from proxy.dialects.table import dialect_named
from proxy.errors import InvalidJSONError, NotAllowedError, NotFoundError
from proxy.models.table import MAX_NAME, Window
from proxy.models.tokenizer import Tokenizer
from proxy.models.windows import ModelKey, Windows, place_of, session_key
from proxy.server.headers import Headers, first, without
from proxy.telemetry.trace import Trace

NO_MODEL = "none"
# Anthropic's limits of a request (platform.claude.com, "Vision", "PDF support"), with more images and pages for larger
# windows. They apply at its own host, and to its models anywhere if nothing else is known.
_ANTHROPIC, _CLAUDE = "api.anthropic.com", "claude-"
_ANTHROPIC_BYTES, _ANTHROPIC_SIDE, _LARGE = 32 * 1024 * 1024, 2_000, 200_000
_ANTHROPIC_NUMBER, _ANTHROPIC_LARGE = 100, 600
_REMEMBERED_MODELS = 1_000


MediaSource = Literal["config", "provider"]


class Route(msgspec.Struct, frozen=True):
    """An upstream for one request.

    place:  the key of the lessons about the model there.
    window: that of the model; None if unknown. Then only an overflow leads to a compaction.
    exact:  True if tokens are counted with the model's own tokenizer.
    trace:  that of the request; None if it is not traced.
    mount:  the path prefix that its client uses for the API.
    media:  the limits for media, by the config or as its maker states them (`media_source`).
    price:  that of the model's tokens in dollars, or in seconds if the config says so; None if unknown.
    """

    name: str
    upstream: Upstream
    headers: Headers
    place: ModelKey
    window: Window | None = None
    exact: bool = False
    trace: Trace | None = None
    mount: Mount = NO_MOUNT
    media: MediaLimits = NO_MEDIA_LIMITS
    media_source: MediaSource = "provider"
    price: Price | None = None

    @property
    def is_login(self) -> bool:
        """Return True if it uses a login that is valid only for requests of its own client."""
        return is_login(self.headers)


@dataclass(frozen=True, slots=True)
class SummaryTarget:
    """A model that summarizes, with its upstream and credential.

    place:       the key of the model at its upstream for one caller. One caller's failures do not pause another's
                 summarizer.
    name:        that of the upstream.
    window:      its context window in its own tokens; None if unknown.
    calibration: its own tokens per estimated token, >= 1.
    output_key:  the field that limits a response, as the model's clients name it.
    trace:       that of the request that it summarizes for; None if it is not traced.
    mount:       the path prefix of its requests.
    key:         the id of the issued key whose conversation it summarizes.
    """

    dialect: Dialect
    place: ModelKey
    name: str
    upstream: Upstream
    headers: Headers
    encoding: str
    window: int | None
    calibration: float
    output_key: str
    temperature: float | None
    trace: Trace | None = None
    mount: Mount = NO_MOUNT
    key: str | None = None

    @property
    def model(self) -> str:
        """Return the name of the model."""
        return self.place.model


@dataclass(frozen=True, slots=True)
class _RoutedModel:
    """The settings of a model in the config. is_named: True if a rule has exactly this name."""

    configured_window: int | None
    encoding: str
    exact: bool
    is_named: bool


class Router:
    """Routes requests by config. One per config, so that a reload replaces it as a whole."""

    def __init__(self, config: Config, windows: Windows, tokenizer: Tokenizer) -> None:
        """Create a router for this config."""
        self._config = config
        self._windows = windows
        self._tokenizer = tokenizer
        self._models: dict[str, _RoutedModel] = {}
        self._chosen: dict[tuple[str, str, str | None], tuple[str, Upstream]] = {}

    def check_path(self, head: ApiHead, caller: Caller) -> None:
        """Raise NotAllowedError for a path that the caller may not use.

        A key that clients share would otherwise open what they have stored.
        """
        paths = self._config.tenants[caller.tenant].paths
        if paths is None:
            _, upstream = self._upstream(head, caller, "")
            if _key(caller, upstream) is None:
                return
            paths = MODEL_PATHS
        if not (allows(paths, head.method, head.reading) or self._allows_at_base(paths, head, caller)):
            raise NotAllowedError(
                f"{head.method} {head.path[:200]} is not allowed for this key (tenants.{caller.tenant}.paths)."
            )

    def _allows_at_base(self, paths: Iterable[str], head: ApiHead, caller: Caller) -> bool:
        """Return True if a path leads to the same URL as an allowed path under /v1."""
        names, prefix = resource(head.reading), head.reading.mount.prefix
        if not prefix:
            return False
        base = self._upstream(head, caller, "")[1].base_url
        is_same = resource_url(base, names, prefix=prefix) == resource_url(base, names)
        return is_same and allows(paths, head.method, reading(("/v1/" + "/".join(names)).encode()))

    @property
    def depends_on_models(self) -> bool:
        """Return True if the model of a request may decide its upstream."""
        return any(rule.upstream for rule in self._config.models)

    @cached_property
    def _has_aliases(self) -> bool:
        return any(rule.serve_as for rule in self._config.models)

    def with_served_model(self, body: bytes, dialect: Dialect) -> bytes:
        """Return the body with the model of its alias (`models[].serve_as`); the same body without an alias."""
        if not self._has_aliases or dialect.model_key is None:
            return body
        rule = self._config.rule_for(json_array.model_of(body, dialect.model_key))
        if rule is None or rule.serve_as is None:
            return body
        with suppress(InvalidJSONError):
            return json_array.with_field(body, dialect.model_key, rule.serve_as)
        return body

    def plain(self, head: ApiHead, caller: Caller, model: str = "") -> Route:
        """Return the route of a request that is relayed unchanged. model: if it is known."""
        name, upstream, place = self._destination(head, caller, model)
        return Route(name, upstream, _headers(head, caller, upstream, readable=False), place)

    def conversation(self, head: ApiHead, caller: Caller, model: str) -> Route:
        """Return the route of a request that is counted, and whose response is read."""
        name, upstream, place = self._destination(head, caller, model)
        route = Route(name, upstream, [], place, mount=head.mount)
        return self.measure(self.with_headers(route, head, caller))

    def with_headers(self, route: Route, head: ApiHead, caller: Caller) -> Route:
        """Return the route with the headers and the trace of a request."""
        headers = _headers(head, caller, route.upstream, readable=True)
        return msgspec.structs.replace(route, headers=headers, trace=head.trace)

    def measure(self, route: Route) -> Route:
        """Return the route with the newest window of its model, and its price."""
        window, model = self._window(route.place), route.place.model
        is_exact = window is not None and self._model(model).exact
        rule, media = self._config.rule_for(model), self._media(route, window)
        source: MediaSource = "provider"
        if rule is not None and (rule.max_pictures or rule.max_request_bytes):
            source = "config"
        seconds = rule.seconds_per_million if rule is not None else None
        price = price_in_seconds(**dict(seconds)) if seconds is not None else self._windows.price(model)
        return msgspec.structs.replace(
            route, window=window, exact=is_exact, media=media, media_source=source, price=price
        )

    def _media(self, route: Route, window: Window | None) -> MediaLimits:
        """Return the media limits by the model's rule, else as Anthropic states them for its models."""
        rule = self._config.rule_for(route.place.model)
        limits = NO_MEDIA_LIMITS
        is_claude = _CLAUDE in route.place.model.lower()
        if is_claude or urlsplit(route.upstream.base_url).hostname == _ANTHROPIC:
            most = _ANTHROPIC_LARGE if window is not None and window.tokens > _LARGE else _ANTHROPIC_NUMBER
            limits = MediaLimits(_ANTHROPIC_BYTES, most, most, MANY, _ANTHROPIC_SIDE)
        if rule is None:
            return limits
        return limits._replace(
            bytes=rule.max_request_bytes or limits.bytes, pictures=rule.max_pictures or limits.pictures
        )

    def media_limits(self, place: ModelKey) -> MediaLimits:
        """Return the learned media limits of a model there."""
        return self._windows.media_limits(place)

    @property
    def changes(self) -> int:
        """Return a counter that increases with each lesson about models' windows."""
        return self._windows.changes

    def _destination(self, head: ApiHead, caller: Caller, model: str) -> tuple[str, Upstream, ModelKey]:
        name, upstream = self._upstream(head, caller, model)
        return (
            name,
            upstream,
            place_of(caller.tenant, caller.scope, upstream.base_url, model, window_beta(head.headers)),
        )

    def _upstream(self, head: ApiHead, caller: Caller, model: str) -> tuple[str, Upstream]:
        """Return name and settings of the upstream for this request. Raises NotFoundError if there is none."""
        spoken = head.spoken.name if head.spoken else None
        key = caller.tenant, model, spoken
        choice = self._chosen.get(key) or self._choice(*key)
        if choice is None:
            raise NotFoundError(
                f"No upstream here speaks {spoken}; configure one that does (upstreams.*.speaks), or use another API."
            )
        if len(self._chosen) < _REMEMBERED_MODELS and len(model) <= MAX_NAME:
            self._chosen[key] = choice
        return choice

    def _choice(self, tenant: str, model: str, spoken: str | None) -> tuple[str, Upstream] | None:
        if spoken is None:
            return self._config.upstream_for(tenant, model)
        return self._config.speaker_for(tenant, model, spoken)

    def experience(self, place: ModelKey) -> ModelProfile:
        """Return the profile of a model there."""
        return self._windows.experience(place)

    def takes_copies(self, place: ModelKey) -> bool:
        """Return True if rewritten requests are accepted there."""
        return self._windows.takes_copies(place)

    def longest_answer(self, place: ModelKey, session: bytes) -> int | None:
        """Return the longest of the latest responses there in tokens; None if there were too few."""
        return self._windows.longest_answer(place, session)

    def has_overflowed(self, place: ModelKey, chain: Chain) -> bool:
        """Return True if a conversation has overflowed there and may continue from the resulting record."""
        return self._windows.has_overflowed(place, lambda: chain.session)

    def is_cold(self, place: ModelKey, session: bytes) -> bool:
        """Return True if the provider's cache has dropped a session's prompt, as far as this process knows."""
        return self._windows.is_cold(place, session)

    def may_try_larger(self, place: ModelKey) -> bool:
        """Return True if a prompt that was too long was rejected there long enough ago."""
        return self._windows.may_try_larger(place)

    def configured_window(self, model: str) -> int | None:
        """Return the window that the config sets for a model; None if it sets none."""
        return self._model(model).configured_window

    def is_exact(self, model: str) -> bool:
        """Return True if a model's tokens are counted with its own tokenizer."""
        return self._model(model).exact

    def names(self, model: str) -> bool:
        """Return True if the config has a rule for exactly this model."""
        return self._model(model).is_named

    def encoding(self, model: str) -> str:
        """Return the encoding of a model."""
        return self._model(model).encoding

    def summary_target(
        self, caller: Caller, request: CountedRequest, route: Route, session: bytes
    ) -> SummaryTarget | None:
        """Return the policy's summarizer, or the request's own model under its own credential; None for no model.

        A client's credential is only sent to the upstream that it is for. A login is never used for the proxy's own
        requests.
        """
        settings = caller.policy.summarizer
        name = settings.upstream or route.name
        if settings.model == NO_MODEL or (name == route.name and route.is_login):
            return None
        model = settings.model or request.settings.model
        is_same = name == route.name and model == route.place.model
        upstream = self._config.upstreams[name]
        dialect = request.dialect if request.dialect.name in upstream.spoken else dialect_named(upstream.spoken[0])
        own = route.headers
        if name != route.name:
            key = upstream.api_key.get_secret_value()
            own = with_static([credential(key, upstream.auth)] if key else [], upstream)
        variant = route.place.variant if name == route.name else ""
        place = route.place if is_same else place_of(caller.tenant, caller.scope, upstream.base_url, model, variant)
        window = route.window if is_same else self._window(place)
        is_own = settings.model is None and dialect is request.dialect
        return SummaryTarget(
            dialect=dialect,
            place=place,
            name=name,
            upstream=upstream,
            headers=for_questions(own, dialect.questions.HEADERS),
            encoding=self.encoding(model),
            window=window.tokens if window else None,
            calibration=self._windows.experience(place).calibration_for(session_key(session)),
            output_key=request.settings.output_key if is_own else dialect.questions.OUTPUT_KEY,
            temperature=settings.temperature,
            trace=route.trace,
            mount=route.mount if name == route.name and dialect is request.dialect else NO_MOUNT,
            key=caller.issued.id if caller.issued else None,
        )

    def _window(self, place: ModelKey) -> Window | None:
        return self._windows.resolve(place, self.configured_window(place.model))

    def _model(self, name: str) -> _RoutedModel:
        routed_model = self._models.get(name)
        if routed_model is None:
            rule = self._config.rule_for(name)
            override = rule.encoding if rule else None
            encoding = self._tokenizer.encoding_for(name, override)
            exact = self._tokenizer.knows(name, override)
            is_named = rule is not None and rule.match == name
            routed_model = _RoutedModel(rule.context_window if rule else None, encoding, exact, is_named)
            if len(self._models) < _REMEMBERED_MODELS and len(name) <= MAX_NAME:
                self._models[name] = routed_model
        return routed_model


def conversation_url(route: Route, head: ApiHead) -> str:
    """Return the URL of a request of a conversation, however its client spells the path. litellm has its own paths."""
    prefix = head.reading.mount.prefix if route.upstream.provider == "openai" else ""
    return resource_url(route.upstream.base_url, resource(head.reading), head.target, prefix)


def _headers(head: ApiHead, caller: Caller, upstream: Upstream, *, readable: bool) -> Headers:
    headers = to_upstream(head.headers, key=_key(caller, upstream), readable=readable)
    if caller.issued is not None:
        # Upstreams do not know it. A value that only looks like one may be a key of another Concertina upstream.
        headers = [(name, value) for name, value in headers if not caller.issued.is_in(value)]
    own = caller.key_header
    if own is not None and any(first(headers, name) is not None for name in KEY_HEADERS if name != own):
        # One key was for the proxy, the other is for the upstream.
        headers = without(headers, own)
    return with_static(headers, upstream)


def with_static(headers: Headers, upstream: Upstream) -> Headers:
    """Return the headers with those that the config sets for an upstream."""
    if not upstream.headers:
        return headers
    names = {name.encode() for name, _ in upstream.headers}
    return [*(header for header in headers if header[0] not in names), *upstream.static_headers]


def _key(caller: Caller, upstream: Upstream) -> tuple[bytes, bytes] | None:
    """Return the key of the tenant, else of the upstream, as a header.

    None lets the client's own credential through.
    """
    key = caller.upstream_key or upstream.api_key.get_secret_value()
    return credential(key, upstream.auth) if key else None
