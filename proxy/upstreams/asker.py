"""Lookups of models' windows at upstreams: after responses, seldom, and one at a time for each upstream."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from proxy.callers.api_paths import is_deployment, resource_url, upstream_url
from proxy.config.settings import Upstream
from proxy.errors import ProxyError
from proxy.lru import remember
from proxy.models.windows import Windows
from proxy.server.headers import Headers, first
from proxy.upstreams.http import TruncatedError, UpstreamClient
from proxy.upstreams.models_list import Family, window_of_props, window_of_show, windows_of_list

_T = TypeVar("_T")

# Seconds between two requests for the same list.
INTERVAL = 3600.0
# Models that a server is asked for individually in that time. Their names come from clients.
_SINGLY = 20
_MAX_ANSWER = 8 * 1024 * 1024
_REMEMBERED = 1_000
_LIST = ("models",)
_HEADERS = [(b"accept", b"application/json"), (b"accept-encoding", b"identity"), (b"user-agent", b"concertina")]


@dataclass(slots=True)
class _UpstreamState:
    """The responses of an upstream. at: the time of the last request, in monotonic seconds."""

    at: float
    windows: dict[str, int]
    family: Family | None
    singly: set[str]


class WindowAsker:
    """Requests lists of models (`max_model_len`, `context_length` …), llama.cpp's `/props`, Ollama's `/api/show`."""

    def __init__(self, client: UpstreamClient, windows: Windows, clock: Callable[[], float]) -> None:
        """Create an asker. clock: returns monotonic seconds."""
        self._client = client
        self._windows = windows
        self._clock = clock
        self._states: OrderedDict[str, _UpstreamState] = OrderedDict()

    def is_due(self, upstream: Upstream, model: str) -> bool:
        """Return True if this upstream may know more about the model than the proxy does."""
        if upstream.provider != "openai" or is_deployment(upstream.base_url):
            return False
        state = self._states.get(upstream.base_url)
        if state is None or self._clock() - state.at >= INTERVAL:
            return True
        return state.family is not None and model not in state.singly and len(state.singly) < _SINGLY

    async def ask(self, upstream: Upstream, headers: Headers, model: str) -> None:
        """Request the windows. headers: those of a request that this upstream has just answered."""
        state = self._states.get(upstream.base_url)
        if state is None or self._clock() - state.at >= INTERVAL:
            state = _UpstreamState(self._clock(), {}, None, set())
            remember(self._states, upstream.base_url, state, _REMEMBERED)
            body = await self._get(upstream, "GET", resource_url(upstream.base_url, _LIST), headers, None)
            state.windows, state.family = _read(windows_of_list, body) or ({}, None)
        if state.family is not None and model not in state.windows and model not in state.singly:
            state.singly.add(model)
            window = await self._window_of_model(upstream, state.family, headers, model)
            if window is not None:
                state.windows[model] = window
        self._windows.learned_from_upstream(upstream.base_url, dict(state.windows))

    async def _window_of_model(self, upstream: Upstream, family: Family, own: Headers, model: str) -> int | None:
        if family == "llama.cpp":
            body = await self._get(upstream, "GET", upstream_url(upstream.base_url, "/props"), own, None)
            return _read(window_of_props, body)
        question = msgspec.json.encode({"model": model})
        body = await self._get(upstream, "POST", upstream_url(upstream.base_url, "/api/show"), own, question)
        return _read(window_of_show, body)

    async def _get(
        self, upstream: Upstream, method: str, url: str, own: Headers, question: bytes | None
    ) -> bytes | None:
        headers = [*own, *(header for header in _HEADERS if first(own, header[0]) is None)]
        if question is not None:
            headers.append((b"content-type", b"application/json"))
        try:
            response = await self._client.send(upstream, method, url, headers, question)
            try:
                return await response.read(_MAX_ANSWER) if response.status == 200 else None
            finally:
                response.close()
        except (ProxyError, TruncatedError):
            return None


def _read(reader: Callable[[bytes], _T], body: bytes | None) -> _T | None:
    try:
        return None if body is None else reader(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
