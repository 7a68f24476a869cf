"""The only module that uses litellm (and its httpx). It translates requests and responses, and opens no connections.

Importing it loads litellm, which takes seconds and 160 MB. Only `translator` imports it, after it has set the
environment.
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

# Bytes of an error's body that are kept.
_MAX_REPORT = 64 * 1024
_MAX_ERROR_TEXT = 2_000
# litellm itself times out after ten minutes. UpstreamClient applies the upstream's timeouts instead.
_NO_TIMEOUT = 10 * 86400.0
# Without a key litellm would take one from the environment. Headers with this placeholder are removed again.
_NO_KEY = "concertina-no-key"
_REPLACED_HEADERS = (b"host", b"content-length", b"transfer-encoding", b"connection", b"accept-encoding")
# Headers that describe the provider's body, which the client does not get.
_BODY_HEADERS = (b"content-type", b"content-length", b"content-encoding", b"etag", b"content-md5", b"digest")
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "litellm")


class Relay(Protocol):
    """Sends a request as `UpstreamClient` does, with its connections, timeouts and rules."""

    def __call__(
        self, upstream: Upstream, method: str, url: str, headers: Headers, body: bytes, /
    ) -> Awaitable[UpstreamResponse]:
        """Send a request. Raises ProxyError."""


class _StoppedError(Exception):
    """A request of litellm that is not sent. It is not an httpx error, since litellm retries some of those."""


@dataclass(slots=True)
class _ChatRequest:
    """One chat request for litellm: its only allowed host, and the response.

    answer:  the provider's response, when its header block has come. There is never a second one.
    report:  the beginning of its body, if it is an error.
    failure: the error that prevented a response, or truncated it.
    refused: another host that litellm tried to reach.
    """

    upstream: Upstream
    relay: Relay
    hop: bytes
    answer: UpstreamResponse | None = None
    report: bytearray = field(default_factory=bytearray)
    failure: ProxyError | TruncatedError | None = None
    refused: str | None = None

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send the single request of this call, to its only allowed server."""
        if _origin(request.url) != _origin(httpx.URL(self.upstream.base_url)):
            self.refused = request.url.host
        if self.refused or self.answer or self.failure:
            raise _StoppedError
        headers = [
            (name, value)
            for name, value in ((name.lower(), value) for name, value in request.headers.raw)
            if name not in _REPLACED_HEADERS and _NO_KEY.encode() not in value
        ]
        headers += [(b"accept-encoding", b"identity"), (HOP, self.hop)]
        body = await request.aread()
        try:
            self.answer = await self.relay(self.upstream, request.method, str(request.url), headers, body)
        except ProxyError as failure:
            self.failure = failure
            raise _StoppedError from None
        # Without a location no redirect can be followed.
        headers = [(name, value) for name, value in self.answer.headers if name.lower() != b"location"]
        return httpx.Response(self.answer.status, headers=headers, stream=_Stream(self, self.answer), request=request)

    def close(self) -> None:
        """Close the provider's response."""
        if self.answer is not None:
            self.answer.close()

    def answer_of_error(self, error: Exception) -> UpstreamResponse:
        """Return an error with the provider's status, headers and text. Raises ProxyError if there is no response."""
        if isinstance(self.failure, ProxyError):
            raise self.failure from None
        if self.failure is not None:
            raise UpstreamConnectionError("The upstream closed the connection in the middle of its response.") from None
        error = getattr(error, "original_exception", None) or error
        status = _status(error, self.answer)
        if self.answer is not None and 300 <= self.answer.status < 400:
            raise UntranslatableError(
                f"The upstream responded with a redirect ({self.answer.status}), which is not followed;"
                " is its base_url right?"
            ) from None
        if isinstance(error, litellm.ImageFetchError):
            raise InvalidRequestError(
                "This upstream's provider does not accept URLs of images; send them as data: URLs.", param="messages"
            ) from None
        if self.refused is not None:
            raise UntranslatableError(f"litellm tried to reach {self.refused}, but only base_url is allowed.") from None
        if self.answer is None and status >= 500:
            raise UntranslatableError(f"litellm cannot translate this request ({type(error).__name__}).") from None
        overflow = isinstance(error, litellm.ContextWindowExceededError) and status not in (401, 403, 429)
        body = error_body(bytes(self.report), _words_of_error(error), "context_length_exceeded" if overflow else None)
        return self.response(400 if overflow else status, b"application/json", body)

    def response(self, status: int, kind: bytes, body: bytes | _Events) -> UpstreamResponse:
        """Return the response for the client with the provider's headers (rate limits, request ids, Retry-After)."""
        provider_headers = to_client(self.answer.headers) if self.answer is not None else []
        headers = [(name, value) for name, value in provider_headers if name not in _BODY_HEADERS]
        headers.append((b"content-type", kind))
        if isinstance(body, _Events):
            return UpstreamResponse(status, headers, IteratedBody(body.chunks(), self.close))
        return UpstreamResponse(status, [*headers, (b"content-length", b"%d" % len(body))], whole_body(body))


_CALL: ContextVar[_ChatRequest | None] = ContextVar("litellm_call", default=None)


class _Transport(httpx.AsyncBaseTransport):
    """Replaces litellm's own transport. It sends only the request of the current call."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call = _CALL.get()
        if call is None:
            raise _StoppedError
        return await call.send(request)


class _Stream(httpx.AsyncByteStream):
    """The bytes of a provider's response, for litellm to read."""

    def __init__(self, call: _ChatRequest, answer: UpstreamResponse) -> None:
        self._call = call
        self._answer = answer
        self._is_report = answer.status >= 300 and answer.header(b"content-encoding") in (None, b"identity")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._answer.chunks():
                if self._is_report and len(self._call.report) < _MAX_REPORT:
                    self._call.report += chunk
                yield chunk
        except TruncatedError as error:
            self._call.failure = error
            raise httpx.ReadError("cut off") from None

    async def aclose(self) -> None:
        self._answer.close()


class _Events:
    """The chunks of a translated stream as events. Each is requested after the previous one was taken."""

    def __init__(self, call: _ChatRequest, first_chunk: Any, later_chunks: Any) -> None:
        self._call = call
        self._first = first_chunk
        self._later_chunks = later_chunks

    async def chunks(self) -> AsyncIterator[bytes]:
        chunk = self._first
        while chunk is not None:
            yield b"data: " + _json(_as_openai(chunk)) + b"\n\n"
            # litellm takes 0.5 ms a chunk, so other tasks run between chunks that came together.
            await asyncio.sleep(0)
            try:
                chunk = await anext(self._later_chunks, None)
            except Exception:  # noqa: BLE001 - any error in a stream truncates it
                raise TruncatedError("reset") from None
        if self._call.failure is not None:
            raise TruncatedError("closed")
        yield b"data: [DONE]\n\n"


class LitellmClient:
    """litellm without its own connections, retries, redirects, callbacks or log lines."""

    def __init__(self, relay: Relay) -> None:
        """Confine litellm to this relay."""
        self._relay = relay
        _confine()

    @property
    def providers(self) -> frozenset[str]:
        """Return the names that `litellm_provider` may have."""
        listed = (getattr(name, "value", name) for name in litellm.provider_list)
        return frozenset(map(str, listed)) | frozenset(JSONProviderRegistry.list_providers())

    async def complete(self, upstream: Upstream, arguments: Mapping[str, object], headers: Headers) -> UpstreamResponse:
        """Return the response to a chat request when its first chunk is there. Raises ProxyError."""
        call = _ChatRequest(upstream, self._relay, first(headers, HOP) or b"1")
        call_token, internal_token = _CALL.set(call), is_internal_call.set(True)
        try:
            completion = await litellm.acompletion(**_arguments(upstream, arguments, key_of(headers)))
            if isinstance(completion, litellm.ModelResponse):
                return call.response(200, b"application/json", _json(completion))
            chunk = await anext(completion, None)
            return call.response(200, b"text/event-stream; charset=utf-8", _Events(call, chunk, completion))
        except Exception as error:  # noqa: BLE001 - litellm raises anything; all errors become responses
            call.close()
            return call.answer_of_error(error)
        except BaseException:
            call.close()
            raise
        finally:
            is_internal_call.reset(internal_token)
            _CALL.reset(call_token)


def _arguments(upstream: Upstream, arguments: Mapping[str, object], key: str | None) -> dict[str, object]:
    """Return the arguments of the call. The upstream's settings come last, so that nothing overrides them."""
    return {
        **arguments,
        "model": _litellm_name(upstream.litellm_provider, str(arguments["model"])),
        "api_base": upstream.base_url,
        "api_key": key or _NO_KEY,
        "timeout": _NO_TIMEOUT,
        "num_retries": 0,
        "max_retries": 0,
        "drop_params": False,
        # Otherwise tools load litellm's own MCP gateway, whose packages are absent, and which might run them.
        "_skip_mcp_handler": True,
    }


def _litellm_name(provider: str | None, model: str) -> str:
    """Return the model as litellm names it, `provider/model`. Without a configured provider the client sends that."""
    return model if provider is None or model.startswith(f"{provider}/") else f"{provider}/{model}"


def _confine() -> None:
    transport = _Transport()
    # Both names, since litellm's own callers changed from one to the other within the supported versions.
    for name in ("create_async_transport", "_create_async_transport"):
        setattr(AsyncHTTPHandler, name, staticmethod(lambda *_, **__: transport))
    # The OpenAI SDK inside litellm uses this client.
    litellm.aclient_session = httpx.AsyncClient(transport=transport, follow_redirects=False, trust_env=False)
    if AsyncHTTPHandler().client._transport is not transport:  # noqa: SLF001 - there is no public check
        raise RuntimeError("this version of litellm opens connections in a way that is not known here; use 1.106")
    # All other connections, such as those for a list of models. Only litellm uses httpx in this process.
    for kind, name, refusal in (
        (httpx.HTTPTransport, "handle_request", _refuse),
        (httpx.AsyncHTTPTransport, "handle_async_request", _refuse_async),
    ):
        setattr(kind, name, refusal)
    # It looks up the host of an image's URL before the transport could refuse it.
    url_utils.validate_url = _no_fetching
    litellm.suppress_debug_info = True
    litellm.set_verbose = False
    litellm.drop_params = False
    litellm.modify_params = False
    for callbacks in ("callbacks", "input_callback", "success_callback", "failure_callback", "service_callback"):
        setattr(litellm, callbacks, [])
    # It logs contents of failed requests.
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [logging.NullHandler()]
        logger.propagate = False


def _refuse(*_: object) -> None:
    raise _StoppedError


async def _refuse_async(*_: object) -> None:
    raise _StoppedError


def _no_fetching(*_: object) -> None:
    raise litellm.ImageFetchError("URLs in requests are not fetched")


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _status(error: Exception, answer: UpstreamResponse | None) -> int:
    """Return the provider's status, or that of an error within a response or of litellm itself."""
    if answer is not None and answer.status >= 300:
        return answer.status
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) and 400 <= status < 600 else 502


def _words_of_error(error: Exception) -> str:
    """Return litellm's message of an error, without its traceback and its advice."""
    text = str(getattr(error, "message", error))
    return text.partition("\nTraceback")[0].partition(" To drop these, set")[0].strip()[:_MAX_ERROR_TEXT]


def _as_openai(chunk: Any) -> Any:
    """Return a chunk as OpenAI writes it: the chunk with the usage has no choices."""
    if getattr(chunk, "usage", None) is not None and not any(choice.finish_reason for choice in chunk.choices):
        chunk.choices = []
    return chunk


def _json(answer: Any) -> bytes:
    # A warning about an unusual response would show its content.
    content: str = answer.model_dump_json(exclude_none=True, warnings=False)
    return content.encode()
