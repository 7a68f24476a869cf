"""The one module that knows litellm (and its httpx): it translates there and back, and sends nothing by itself.

Importing it loads litellm, which takes seconds and 160 MB; only `translator` does that, after it set the environment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
import litellm
from litellm._internal_context import is_internal_call
from litellm.litellm_core_utils import url_utils
from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler
from litellm.llms.openai_like.json_loader import JSONProviderRegistry

from proxy.config.settings import Upstream
from proxy.errors import InvalidRequestError, ProxyError, UpstreamConnectionError
from proxy.server.headers import HOP, Headers, first, to_client
from proxy.upstreams.litellm.translating import UntranslatableError, error_body, key_of
from proxy.upstreams.response import IteratedBody, TruncatedError, UpstreamResponse, whole_body

# An error longer than this says nothing more.
_MAX_REPORT = 64 * 1024
_MAX_SAID = 2_000
# litellm gives up on its own after ten minutes; how long is waited is the upstream's to say, see UpstreamClient.
_NO_TIMEOUT = 10 * 86400.0
# Without a key litellm would take one from the environment; what it makes of this one is taken out again.
_NO_KEY = "concertina-no-key"
_SET_ANEW = (b"host", b"content-length", b"transfer-encoding", b"connection", b"accept-encoding")
# They describe a body that is not the one the client gets.
_OF_THE_BODY = (b"content-type", b"content-length", b"content-encoding", b"etag", b"content-md5", b"digest")
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "litellm")


class Relay(Protocol):
    """Sends a request as `UpstreamClient` does, with its connections, timeouts and rules."""

    def __call__(
        self, upstream: Upstream, method: str, url: str, headers: Headers, body: bytes, /
    ) -> Awaitable[UpstreamResponse]: ...


class _StoppedError(Exception):
    """A request of litellm's that is not sent. It is none of httpx's errors, some of which litellm tries again."""


@dataclass(slots=True)
class _ChatRequest:
    """One chat request for litellm: the host that it may ask, and the response.

    answer:  the provider's response, when its header block is there. There is never a second one.
    report:  the beginning of its body, if it is an error.
    failure: the error that prevented a response, or cut it off.
    refused: the host that litellm wanted to ask beside the upstream.
    """

    upstream: Upstream
    relay: Relay
    hop: bytes
    answer: UpstreamResponse | None = None
    report: bytearray = field(default_factory=bytearray)
    failure: ProxyError | TruncatedError | None = None
    refused: str | None = None

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send the one request that this call is made of, to the one server it may go to."""
        if _origin(request.url) != _origin(httpx.URL(self.upstream.base_url)):
            self.refused = request.url.host
        if self.refused or self.answer or self.failure:
            raise _StoppedError
        headers = [
            (name, value)
            for name, value in ((name.lower(), value) for name, value in request.headers.raw)
            if name not in _SET_ANEW and _NO_KEY.encode() not in value
        ]
        headers += [(b"accept-encoding", b"identity"), (HOP, self.hop)]
        body = await request.aread()
        try:
            self.answer = await self.relay(self.upstream, request.method, str(request.url), headers, body)
        except ProxyError as failure:
            self.failure = failure
            raise _StoppedError from None
        # Without a location there is nothing that could be followed.
        headers = [(name, value) for name, value in self.answer.headers if name.lower() != b"location"]
        return httpx.Response(self.answer.status, headers=headers, stream=_Stream(self, self.answer), request=request)

    def close(self) -> None:
        if self.answer is not None:
            self.answer.close()

    def answer_of_error(self, error: Exception) -> UpstreamResponse:
        """Return an error with the provider's status, headers and words. Raises our own error without one."""
        if isinstance(self.failure, ProxyError):
            raise self.failure from None
        if self.failure is not None:
            raise UpstreamConnectionError("The upstream closed the connection in the middle of its answer.") from None
        error = getattr(error, "original_exception", None) or error
        status = _status(error, self.answer)
        if self.answer is not None and 300 <= self.answer.status < 400:
            raise UntranslatableError(
                f"The upstream answered {self.answer.status}, which is not followed; is its base_url right?"
            ) from None
        if isinstance(error, litellm.ImageFetchError):
            raise InvalidRequestError(
                "This upstream's provider takes no addresses of images; send them as data: URLs.", param="messages"
            ) from None
        if self.refused is not None:
            raise UntranslatableError(
                f"litellm wanted to ask {self.refused} too, and only base_url is asked."
            ) from None
        if self.answer is None and status >= 500:
            raise UntranslatableError(f"litellm cannot translate this request ({type(error).__name__}).") from None
        overflow = isinstance(error, litellm.ContextWindowExceededError) and status not in (401, 403, 429)
        body = error_body(bytes(self.report), _words_of_error(error), "context_length_exceeded" if overflow else None)
        return self.response(400 if overflow else status, b"application/json", body)

    def response(self, status: int, kind: bytes, body: bytes | _Events) -> UpstreamResponse:
        """Return the response to the client under the provider's headers (rate limits, request ids, Retry-After)."""
        told = to_client(self.answer.headers) if self.answer is not None else []
        headers = [(name, value) for name, value in told if name not in _OF_THE_BODY]
        headers.append((b"content-type", kind))
        if isinstance(body, _Events):
            return UpstreamResponse(status, headers, IteratedBody(body.chunks(), self.close))
        return UpstreamResponse(status, [*headers, (b"content-length", b"%d" % len(body))], whole_body(body))


_CALL: ContextVar[_ChatRequest | None] = ContextVar("litellm_call", default=None)


class _Transport(httpx.AsyncBaseTransport):
    """Replaces litellm's own transport: each request it makes is the one of the call at hand, or none."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call = _CALL.get()
        if call is None:
            raise _StoppedError
        return await call.send(request)


class _Stream(httpx.AsyncByteStream):
    """The bytes of a provider's answer, for litellm to read."""

    def __init__(self, call: _ChatRequest, answer: UpstreamResponse) -> None:
        self._call = call
        self._answer = answer
        self._reported = answer.status >= 300 and answer.header(b"content-encoding") in (None, b"identity")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._answer.chunks():
                if self._reported and len(self._call.report) < _MAX_REPORT:
                    self._call.report += chunk
                yield chunk
        except TruncatedError as error:
            self._call.failure = error
            raise httpx.ReadError("cut off") from None

    async def aclose(self) -> None:
        self._answer.close()


class _Events:
    """The chunks of a translated stream as events; none is asked for before the one before it was taken."""

    def __init__(self, call: _ChatRequest, first_chunk: Any, rest: Any) -> None:
        self._call = call
        self._first = first_chunk
        self._rest = rest

    async def chunks(self) -> AsyncIterator[bytes]:
        chunk = self._first
        while chunk is not None:
            yield b"data: " + _json(_as_openai(chunk)) + b"\n\n"
            # litellm takes 0.5 ms a chunk; of many that came at once, each gives way to whatever else is waiting.
            await asyncio.sleep(0)
            try:
                chunk = await anext(self._rest, None)
            except Exception:  # noqa: BLE001 - whatever litellm raises in a stream, its end is missing
                raise TruncatedError("reset") from None
        if self._call.failure is not None:
            raise TruncatedError("closed")
        yield b"data: [DONE]\n\n"


class LitellmClient:
    """litellm, confined: no connections of its own, no retries, redirects, callbacks or log lines."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        _confine()

    @property
    def providers(self) -> frozenset[str]:
        """Names that `litellm_provider` may have."""
        listed = (getattr(name, "value", name) for name in litellm.provider_list)
        return frozenset(map(str, listed)) | frozenset(JSONProviderRegistry.list_providers())

    async def complete(self, upstream: Upstream, asked: Mapping[str, object], headers: Headers) -> UpstreamResponse:
        """Return the response to a chat request when its first chunk is there. Raises ProxyError."""
        call = _ChatRequest(upstream, self._relay, first(headers, HOP) or b"1")
        ours, quiet = _CALL.set(call), is_internal_call.set(True)
        try:
            given = await litellm.acompletion(**_arguments(upstream, asked, key_of(headers)))
            if isinstance(given, litellm.ModelResponse):
                return call.response(200, b"application/json", _json(given))
            chunk = await anext(given, None)
            return call.response(200, b"text/event-stream; charset=utf-8", _Events(call, chunk, given))
        except Exception as error:  # noqa: BLE001 - litellm raises anything; all of it is told as an answer
            call.close()
            return call.answer_of_error(error)
        except BaseException:
            call.close()
            raise
        finally:
            is_internal_call.reset(quiet)
            _CALL.reset(ours)


def _arguments(upstream: Upstream, asked: Mapping[str, object], key: str | None) -> dict[str, object]:
    """Return the arguments of the call. The upstream's settings come last, so that nothing overrides them."""
    return {
        **asked,
        "model": _litellm_name(upstream.litellm_provider, str(asked["model"])),
        "api_base": upstream.base_url,
        "api_key": key or _NO_KEY,
        "timeout": _NO_TIMEOUT,
        "num_retries": 0,
        "max_retries": 0,
        "drop_params": False,
        # Else tools load litellm's own MCP gateway, whose packages are not there, and might be run by it.
        "_skip_mcp_handler": True,
    }


def _litellm_name(provider: str | None, model: str) -> str:
    """Return the model as litellm names it, `provider/model`. Without a configured provider the client names it so."""
    return model if provider is None or model.startswith(f"{provider}/") else f"{provider}/{model}"


def _confine() -> None:
    transport = _Transport()
    # Both names, since litellm's own callers changed from one to the other within the versions we take.
    for name in ("create_async_transport", "_create_async_transport"):
        setattr(AsyncHTTPHandler, name, staticmethod(lambda *_, **__: transport))
    # What the OpenAI SDK inside litellm uses.
    litellm.aclient_session = httpx.AsyncClient(transport=transport, follow_redirects=False, trust_env=False)
    if AsyncHTTPHandler().client._transport is not transport:  # noqa: SLF001 - nothing else tells
        raise RuntimeError("this version of litellm opens connections in a way that is not known here; use 1.106")
    # Whatever else would open one, such as for a list of models. Nobody but litellm uses httpx in this process.
    for kind, name, refusal in (
        (httpx.HTTPTransport, "handle_request", _refuse),
        (httpx.AsyncHTTPTransport, "handle_async_request", _refuse_async),
    ):
        setattr(kind, name, refusal)
    # It looks up the host of an image's address, before the transport would refuse to go there.
    url_utils.validate_url = _no_fetching
    litellm.suppress_debug_info = True
    litellm.set_verbose = False
    litellm.drop_params = False
    litellm.modify_params = False
    for callbacks in ("callbacks", "input_callback", "success_callback", "failure_callback", "service_callback"):
        setattr(litellm, callbacks, [])
    # It logs contents where something fails.
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [logging.NullHandler()]
        logger.propagate = False


def _refuse(*_: object) -> None:
    raise _StoppedError


async def _refuse_async(*_: object) -> None:
    raise _StoppedError


def _no_fetching(*_: object) -> None:
    raise litellm.ImageFetchError("addresses in requests are not fetched")


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _status(error: Exception, answer: UpstreamResponse | None) -> int:
    """Return the provider's status, or that of an error within a response or of litellm's own."""
    if answer is not None and answer.status >= 300:
        return answer.status
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) and 400 <= status < 600 else 502


def _words_of_error(error: Exception) -> str:
    """Return litellm's message of an error, without its traceback and its advice."""
    said = str(getattr(error, "message", error))
    return said.partition("\nTraceback")[0].partition(" To drop these, set")[0].strip()[:_MAX_SAID]


def _as_openai(chunk: Any) -> Any:
    """Return a chunk as OpenAI writes it: the one with the usage has no choices."""
    if getattr(chunk, "usage", None) is not None and not any(choice.finish_reason for choice in chunk.choices):
        chunk.choices = []
    return chunk


def _json(answer: Any) -> bytes:
    # What is odd in an answer is not to be warned of: the warning would show it.
    content: str = answer.model_dump_json(exclude_none=True, warnings=False)
    return content.encode()
