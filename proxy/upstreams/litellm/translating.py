"""Conversion of a client's chat request to arguments of litellm: only the fields of a chat completion."""

import re
from codecs import BOM_UTF8
from collections.abc import Mapping

import msgspec

from proxy.errors import InvalidJSONError, InvalidRequestError, ProxyError
from proxy.server import content_coding
from proxy.server.headers import Headers, first

# OpenAI's parameters (platform.openai.com/docs/api-reference/chat/create), and additions of other providers. Any other
# field could be an argument of litellm itself (api_base, mock_response, fallbacks, aws_* …), so it is rejected.
PASSED = frozenset(
    {
        *("messages", "stream", "stream_options", "n", "seed", "stop", "user", "response_format", "service_tier"),
        *("temperature", "top_p", "max_tokens", "max_completion_tokens", "presence_penalty", "frequency_penalty"),
        *("logit_bias", "logprobs", "top_logprobs", "modalities", "prediction", "audio", "verbosity"),
        *("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "web_search_options"),
        *("reasoning_effort", "thinking", "top_k"),
    }
)
# OpenAI's accounting fields. They change no response and mean nothing to other providers.
LEFT_OUT = frozenset({"metadata", "store", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"})
# A model's name becomes part of a URL, so it must not lead elsewhere on the same host.
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/+-]{0,255}", re.ASCII)
_MAX_BODY = 1024 * 1024 * 1024


class NoSuchPathError(InvalidRequestError):
    """Only chat completions can be translated, so no other path exists."""

    status = 404
    code = "unknown_url"


def parameters(headers: Headers, body: bytes) -> dict[str, object]:
    """Return the parameters of a request, `model` among them. Raises InvalidRequestError for an unknown parameter."""
    request = _decode_request(headers, body)
    known_fields = {name: value for name, value in request.items() if value is not None and name not in LEFT_OUT}
    model = known_fields.get("model")
    if not isinstance(model, str) or not _MODEL.fullmatch(model) or ".." in model:
        raise InvalidRequestError("The model's name is not one that this upstream can have.", param="model")
    if not isinstance(known_fields.get("messages"), list):
        raise InvalidRequestError("The messages must be a list.", param="messages")
    for name in known_fields.keys() - PASSED - {"model"}:
        raise InvalidRequestError(
            f"'{name[:64]}' is not a parameter that this upstream's provider accepts; leave it out.", param=name[:64]
        )
    return known_fields


def _decode_request(headers: Headers, body: bytes) -> Mapping[str, object]:
    coding = (first(headers, b"content-encoding") or b"identity").strip().lower()
    try:
        if coding in content_coding.READABLE:
            body = content_coding.decompress(body, coding, _MAX_BODY)
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
    """Return the key of the request: the tenant's, else the upstream's, else the client's."""
    scheme, _, key = (first(headers, b"authorization") or b"").strip().partition(b" ")
    if scheme.lower() != b"bearer":
        key = first(headers, b"x-api-key") or first(headers, b"api-key") or b""
    return key.strip().decode("latin-1") or None


def error_body(report: bytes, fallback: str, code: str | None) -> bytes:
    """Return a provider's error in OpenAI's shape, with its own text and type.

    fallback: the message if the report has no text.
    code:     the proxy's code, replacing the provider's.
    """
    error = _error_in(report)
    message = next(
        (text for name in ("message", "detail", "Message") if isinstance(text := error.get(name), str)), fallback
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
    """Return the error in a report.

    Known forms: `{"error": {…}}` (Anthropic, Google), `{"error": "…"}` (Ollama), `{"message": "…"}` (Bedrock), and
                 text.
    """
    try:
        decoded = msgspec.json.decode(report)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        text = report.decode("utf-8", "replace").strip()
        return {"message": text} if text else {}
    if isinstance(decoded, list) and decoded:  # Google's streams
        decoded = decoded[0]
    inner = decoded.get("error", decoded) if isinstance(decoded, dict) else decoded
    if isinstance(inner, str):
        return {"message": inner}
    return inner if isinstance(inner, dict) else {}


class UntranslatableError(ProxyError):
    """litellm cannot translate the request, or its response is malformed. Sending the request again would not help."""

    status = 502
    code = "upstream_error"
