"""Where a request goes, under which headers, how much fits there, and who summarizes for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from policies.budget import Budget, usable_input
from proxy.config_models import Config, Upstream
from proxy.exchange import Exchange
from proxy.models import Window, Windows
from proxy.reader import ChatRequest
from proxy.tenants import Caller
from proxy.tokenizer import Tokenizer
from proxy.upstream.summarizer import SummaryTarget
from proxy.wire.headers import Headers, to_upstream

NO_MODEL = "none"


@dataclass(frozen=True, slots=True)
class Route:
    """An upstream for one request.

    window, budget: of the model, None while its window is unknown (then only an overflow leads to a compaction).
    exact:          counted with the model's own tokenizer.
    summary_target: None where the policy wants the deterministic record only.
    """

    name: str
    upstream: Upstream
    headers: Headers
    window: Window | None = None
    budget: Budget | None = None
    exact: bool = False
    summary_target: SummaryTarget | None = None


class Router:
    """Routes by config; one per config, so that a reload swaps it as a whole."""

    def __init__(self, config: Config, windows: Windows, tokenizer: Tokenizer, clock: Callable[[], float]) -> None:
        self._config = config
        self._windows = windows
        self._tokenizer = tokenizer
        self._clock = clock

    def plain(self, exchange: Exchange, caller: Caller) -> Route:
        """The route of a request that is relayed as it is."""
        name, upstream = self._config.upstream_for(caller.tenant, "")
        headers = to_upstream(exchange.headers, authorization=_authorization(caller, upstream), readable=False)
        return Route(name, upstream, headers)

    def chat(self, exchange: Exchange, caller: Caller, request: ChatRequest | None) -> Route:
        """The route of a chat request; `request` is None where its shape is not understood."""
        model = request.model if request else ""
        name, upstream = self._config.upstream_for(caller.tenant, model)
        headers = to_upstream(exchange.headers, authorization=_authorization(caller, upstream), readable=True)
        if request is None:
            return Route(name, upstream, headers)
        window = self.window(name, model)
        exact = self.is_exact(model)
        budget = None
        if window is not None:
            calibration = self._windows.calibration(name, model)
            budget = usable_input(window.tokens, request.max_output, exact=exact, calibration=calibration)
        target = self._summary_target(caller, request, name, headers)
        return Route(name, upstream, headers, window, budget, exact, target)

    def window(self, upstream: str, model: str) -> Window | None:
        rule = self._config.rule_for(model)
        return self._windows.resolve(upstream, model, rule.context_window if rule else None, self._clock())

    def encoding(self, model: str) -> str:
        rule = self._config.rule_for(model)
        return self._tokenizer.encoding_for(model, rule.encoding if rule else None)

    def is_exact(self, model: str) -> bool:
        """Whether the model is known to use the encoding that we count with."""
        rule = self._config.rule_for(model)
        stated = rule is not None and rule.encoding is not None
        return (stated or self._tokenizer.knows(model)) and self._tokenizer.is_exact(self.encoding(model))

    def _summary_target(
        self, caller: Caller, request: ChatRequest, name: str, headers: Headers
    ) -> SummaryTarget | None:
        """The policy's summarizer, or the request's own model under its own credential.

        A client's credential is never sent to another upstream than the one it was meant for.
        """
        settings = caller.policy.summarizer
        if settings.model == NO_MODEL:
            return None
        model = settings.model or request.model
        summary_name = settings.upstream or name
        summary_upstream = self._config.upstreams[summary_name]
        credentials = [(k, v) for k, v in headers if k in (b"authorization", b"x-api-key", b"api-key")]
        if summary_name != name:
            key = summary_upstream.api_key.get_secret_value()
            credentials = [(b"authorization", b"Bearer " + key.encode())] if key else []
        window = self.window(summary_name, model)
        calibration = self._windows.calibration(summary_name, model)
        return SummaryTarget(
            owner=caller.scope,
            upstream=summary_upstream,
            model=model,
            headers=credentials,
            encoding=self.encoding(model),
            window=int(window.tokens / calibration) if window else None,
            output_key=request.output_key if settings.model is None else "max_tokens",
            temperature=settings.temperature,
        )


def _authorization(caller: Caller, upstream: Upstream) -> bytes | None:
    """The key of the tenant, else of the upstream, as a header; None: the client's own credential passes."""
    key = caller.upstream_key or upstream.api_key.get_secret_value()
    return b"Bearer " + key.encode() if key else None
