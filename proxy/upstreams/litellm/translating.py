"""A client's chat request as arguments of litellm's call: what a chat completion has, and nothing that steers it."""

import re
from codecs import BOM_UTF8
from collections.abc import Mapping

import msgspec

from proxy.errors import InvalidJSONError, InvalidRequestError, ProxyError
from proxy.server import content_coding
from proxy.server.headers import Headers, first

# OpenAI's parameters (platform.openai.com/docs/api-reference/chat/create), and what other providers add to them.
# Anything else could be an argument of litellm's own (api_base, mock_response, fallbacks, aws_* …), so it is refused.
PASSED = frozenset(
    {
        *("messages", "stream", "stream_options", "n", "seed", "stop", "user", "response_format", "service_tier"),
        *("temperature", "top_p", "max_tokens", "max_completion_tokens", "presence_penalty", "frequency_penalty"),
        *("logit_bias", "logprobs", "top_logprobs", "modalities", "prediction", "audio", "verbosity"),
        *("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "web_search_options"),
        *("reasoning_effort", "thinking", "top_k"),
    }
)
# What OpenAI keeps its own books with; it changes no answer and means nothing to other providers.
LEFT_OUT = frozenset({"metadata", "store", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"})
# A model's name becomes part of an address: it must not lead elsewhere on the same host.
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/+-]{0,255}", re.ASCII)
_MAX_BODY = 1024 * 1024 * 1024


class NoSuchPathError(InvalidRequestError):
    """Only chat completions can be translated, so nothing else is there."""

    status = 404
    code = "unknown_url"


def parameters(headers: Headers, body: bytes) -> dict[str, object]:
    """Return the parameters of a request, `model` among them. Raises InvalidRequestError if one cannot be passed."""
    request = _decode_request(headers, body)
    given = {name: value for name, value in request.items() if value is not None and name not in LEFT_OUT}
    model = given.get("model")
    if not isinstance(model, str) or not _MODEL.fullmatch(model) or ".." in model:
        raise InvalidRequestError("The model's name is not one that this upstream can have.", param="model")
    if not isinstance(given.get("messages"), list):
        raise InvalidRequestError("The messages must be a list.", param="messages")
    for name in given.keys() - PASSED - {"model"}:
        raise InvalidRequestError(
            f"'{name[:64]}' is no parameter that this upstream's provider is sent; leave it out.", param=name[:64]
        )
    return given


def _decode_request(headers: Headers, body: bytes) -> Mapping[str, object]:
    used = (first(headers, b"content-encoding") or b"identity").strip().lower()
    try:
        if used in content_coding.READABLE:
            body = content_coding.decompress(body, used, _MAX_BODY)
        return msgspec.json.decode(body.removeprefix(BOM_UTF8), type=dict[str, object])
    except (
        msgspec.MsgspecError,
        content_coding.UndecodableError,
        content_coding.TooLargeError,
        RecursionError,
        UnicodeDecodeError,
    ):
        raise InvalidJSONError("The body is not a chat request in JSON.") from None


def key_of(headers: Headers) -> str | None:
    """Return the key that the request carries: the tenant's, else the upstream's, else the client's."""
    scheme, _, key = (first(headers, b"authorization") or b"").strip().partition(b" ")
    if scheme.lower() != b"bearer":
        key = first(headers, b"x-api-key") or first(headers, b"api-key") or b""
    return key.strip().decode("latin-1") or None


def error_body(report: bytes, said: str, code: str | None) -> bytes:
    """Return a provider's error in OpenAI's shape, with its own words and type.

    said: the message if the report holds no words. code: ours, in place of the provider's.
    """
    error = _error_in(report)
    message = next(
        (text for name in ("message", "detail", "Message") if isinstance(text := error.get(name), str)), said
    )
    kind, its_code = error.get("type"), error.get("code")
    status = error.get("status")
    fields = {
        "message": message,
        "type": kind if isinstance(kind, str) else status if isinstance(status, str) else "upstream_error",
        "param": None,
        "code": code or (its_code if isinstance(its_code, str) else None),
    }
    return msgspec.json.encode({"error": fields})


def _error_in(report: bytes) -> Mapping[str, object]:
    """`{"error": {…}}` (Anthropic, Google), `{"error": "…"}` (Ollama), `{"message": "…"}` (Bedrock), or text."""
    try:
        told = msgspec.json.decode(report)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        text = report.decode("utf-8", "replace").strip()
        return {"message": text} if text else {}
    if isinstance(told, list) and told:  # Google's streams
        told = told[0]
    inner = told.get("error", told) if isinstance(told, dict) else told
    if isinstance(inner, str):
        return {"message": inner}
    return inner if isinstance(inner, dict) else {}


class UntranslatableError(ProxyError):
    """litellm, or the provider's answer, is not what it should be; sending the same again would not help."""

    status = 502
    code = "upstream_error"
