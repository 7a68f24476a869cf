"""Chat completions for upstreams with another API than OpenAI's. litellm is loaded only for them."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from proxy.config.errors import ConfigError, Problem, suggest
from proxy.config.settings import Upstream
from proxy.server.headers import Headers
from proxy.upstreams.litellm.translating import NoSuchPathError, parameters

if TYPE_CHECKING:
    from proxy.upstreams.litellm.client import LitellmClient, Relay
    from proxy.upstreams.response import UpstreamResponse

# Decoding a larger body would block the event loop for milliseconds.
_LARGE = 256 * 1024
# litellm reads these when it is imported. Without them it fetches tables from the network, downloads images that a
# request names, and loads a `.env` of the working directory into the environment. It also ends a stream whose model
# repeats a text a hundred times, such as the dashes of a table.
_SILENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_RUST": "False",
    "MAX_IMAGE_URL_DOWNLOAD_SIZE_MB": "0",
    "REPEATED_STREAMING_CHUNK_LIMIT": str(10**12),
}


class Translator:
    """Sends chat requests through litellm, over the connections of the upstream client only."""

    def __init__(self, relay: Relay) -> None:
        """Create a translator. relay: sends litellm's requests."""
        self._relay = relay
        self._client: LitellmClient | None = None
        self._loading = asyncio.Lock()

    async def load(self, upstreams: Mapping[str, Upstream]) -> None:
        """Load litellm if one of these upstreams needs it. Raises ConfigError for an unknown provider.

        Loading takes 4 s in a worker thread, and blocks the event loop four times for 0.1 to 0.2 s (measured). So it is
        done before requests are served.
        """
        if all(upstream.provider != "litellm" for upstream in upstreams.values()):
            return
        configured = {
            name: upstream.litellm_provider for name, upstream in upstreams.items() if upstream.litellm_provider
        }
        providers = (await self._load_client()).providers
        problems = []
        for name, provider in configured.items():
            if provider not in providers:
                why = f"litellm has no such provider; {suggest(provider, providers, 'known ones')}"
                problems.append(Problem("config", None, f"upstreams.{name}.litellm_provider", why))
        if problems:
            raise ConfigError(problems)

    async def send(
        self, upstream: Upstream, method: str, url: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None
    ) -> UpstreamResponse:
        """Translate a chat request and its response. Raises ProxyError."""
        path = url.removeprefix(upstream.base_url).partition("?")[0]
        if method != "POST" or path != "/chat/completions" or not isinstance(body, bytes):
            raise NoSuchPathError(
                "This upstream is reached through litellm, which serves only POST /v1/chat/completions."
            )
        client = await self._load_client()
        is_large = len(body) > _LARGE
        arguments = await asyncio.to_thread(parameters, headers, body) if is_large else parameters(headers, body)
        return await client.complete(upstream, arguments, headers)

    async def _load_client(self) -> LitellmClient:
        if self._client is None:
            async with self._loading:
                if self._client is None:
                    self._client = await asyncio.to_thread(_load, self._relay)
        return self._client


def _load(relay: Relay) -> LitellmClient:
    os.environ.update(_SILENT)
    from proxy.upstreams.litellm.client import LitellmClient

    client = LitellmClient(relay)
    # litellm's objects stay in memory. Otherwise every full collection would scan them and block the event loop for 0.2
    # s.
    gc.collect()
    gc.freeze()
    return client
