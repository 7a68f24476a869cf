"""Headers of a client for the upstream, with its own request or with one of the proxy, and its login."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from proxy.dialects import table
from proxy.server.content_coding import INFLATED
from proxy.server.headers import (
    HOP,
    NOT_UPSTREAM,
    REMEMBERED,
    Headers,
    first,
    hops,
    hyphenated,
    is_control,
    named_by_connection,
)

# The cookie of the operators' pages. Browsers have one jar for all ports of a host.
_OUR_COOKIE = re.compile(rb"concertina-\d+")
KEY_HEADERS = table.key_headers()
# A key, and its account: they belong together.
_CREDENTIALS = frozenset(
    {
        *KEY_HEADERS,
        *(b"openai-organization", b"openai-project", b"chatgpt-account-id", b"x-goog-user-project"),
    }
)
# Codings of responses that the proxy can read if the response is an overflow.
_OFFERED = INFLATED | {b"identity"}

_NEEDED_BETAS = (b"oauth-", b"context-1m-")
# Betas that only affect how a prompt is read, thought about and cached: a provider does nothing by them.
_PROMPT_BETAS = (
    *(b"interleaved-thinking-", b"prompt-caching-", b"extended-cache-ttl-", b"effort-", b"output-128k-"),
    *(b"token-efficient-tools-", b"computer-use-"),
)
# Headers that describe one request, its body, its path or its response, and do not apply to the proxy's own requests.
_OF_ONE_REQUEST = frozenset(
    {
        *(HOP, b"accept", b"accept-encoding", b"anthropic-beta", b"b3", b"baggage", b"cookie", b"digest", b"expect"),
        *(b"forwarded", b"helicone-request-id", b"idempotency-key", b"origin", b"range", b"referer", b"request-id"),
        *(b"sentry-trace", b"signature", b"signature-input", b"traceparent", b"tracestate", b"via"),
        *(b"x-amzn-trace-id", b"x-client-request-id", b"x-cloud-trace-context", b"x-correlation-id"),
        *(b"x-datadog-parent-id", b"x-datadog-trace-id", b"x-idempotency-key", b"x-litellm-call-id"),
        *(b"x-portkey-span-id", b"x-portkey-trace-id", b"x-request-id", b"x-stainless-helper-method"),
        *(b"x-stainless-retry-count", b"x-stainless-timeout"),
    }
)
_OF_ONE_REQUEST_BY_BEGINNING = (b"content-", b"if-", b"sec-", b"x-forwarded-", b"x-b3-", b"access-control-")


def is_login(headers: Headers) -> bool:
    """Return True if a request uses a login to a product, which is only for that product's own requests.

    These are Claude Code's tokens and beta, and ChatGPT's account (code.claude.com, llm-gateway-protocol; codex).
    """
    value = (first(headers, b"authorization") or b"").lower()
    betas = first(headers, b"anthropic-beta") or b""
    return b"sk-ant-oat" in value or b"oauth-" in betas or first(headers, b"chatgpt-account-id") is not None


def for_questions(headers: Headers, needed: Iterable[tuple[bytes, bytes]], *, is_aligned: bool = False) -> Headers:
    """Return the headers of a proxy's own request: the client's, without those that describe its request.

    A gateway before the model may need any of them. Of the betas only those of login and window are kept and, if the
    client's own prompt is sent, those that affect how it is read. `needed` are added if the client has not sent them.
    """
    own = [header for header in headers if not _is_of_one_request(header[0])]
    kept_betas = _NEEDED_BETAS + _PROMPT_BETAS if is_aligned else _NEEDED_BETAS
    if betas := b",".join(beta for beta in betas_of(headers) if beta.startswith(kept_betas)):
        own.append((b"anthropic-beta", betas))
    return [*own, *(header for header in needed if first(own, header[0]) is None)]


@lru_cache(REMEMBERED)
def _is_of_one_request(name: bytes) -> bool:
    name = hyphenated(name)
    return name in _OF_ONE_REQUEST or name.startswith(_OF_ONE_REQUEST_BY_BEGINNING)


def betas_of(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return the requested beta features of Anthropic's API."""
    values = [value for name, value in headers if name == b"anthropic-beta"]
    return [beta.strip() for value in values for beta in value.split(b",")] if values else []


def window_beta(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the beta for a wider window; empty without one."""
    return next((beta.decode("latin-1") for beta in betas_of(headers) if beta.startswith(b"context-1m-")), "")


def credential(key: str, auth: str) -> tuple[bytes, bytes]:
    """Return the header of a configured key, by the upstream's `auth` (RFC 6750, section 2.1, for bearer)."""
    return (b"authorization", b"Bearer " + key.encode()) if auth == "bearer" else (auth.encode(), key.encode())


def to_upstream(headers: Iterable[tuple[bytes, bytes]], *, key: tuple[bytes, bytes] | None, readable: bool) -> Headers:
    """Return the client's headers for the upstream.

    key:           replaces the client's own credentials, including cookies; None keeps them.
    readable:      offer only content codings that the proxy can decode (the response may be an overflow).
    """
    headers = list(headers)
    named_headers = named_by_connection(headers)
    passed: Headers = []
    for name, value in headers:
        kind = _kind(name)
        if kind == "dropped" or (named_headers and hyphenated(name) in named_headers):
            continue
        if kind == "plain":
            passed.append((name, value))
        elif kind == "coding":
            passed.append((name, _readable(value) if readable else value))
        elif key is None:
            passed += _without_our_cookie(name, value)
    if key is not None:
        passed.append(key)
    passed.append((HOP, b"%d" % (hops(headers) + 1)))
    return passed


@lru_cache(REMEMBERED)
def _kind(name: bytes) -> Literal["plain", "dropped", "coding", "credential"]:
    """Classify a header by its treatment in a request to an upstream."""
    name = hyphenated(name)
    if name in NOT_UPSTREAM or is_control(name):
        return "dropped"
    if name in _CREDENTIALS or name == b"cookie":
        return "credential"
    return "coding" if name == b"accept-encoding" else "plain"


def _without_our_cookie(name: bytes, value: bytes) -> Headers:
    if name != b"cookie" or b"concertina-" not in value:
        return [(name, value)]
    remaining = b";".join(
        c for c in value.split(b";") if not _OUR_COOKIE.fullmatch(c.partition(b"=")[0].strip())
    ).strip()
    return [(name, remaining)] if remaining else []


def _readable(accept: bytes) -> bytes:
    codings = [c.strip() for c in accept.split(b",") if c.split(b";")[0].strip().lower() in _OFFERED]
    return b", ".join(codings) or b"identity"
