"""Which headers pass, in which direction."""

from __future__ import annotations

import pytest

from proxy.callers.api_headers import credential, for_questions, to_upstream
from proxy.server.headers import HOP, Headers, first, hops, is_control, to_client
from proxy.upstreams.wire.answer import AnswerReader

KEPT: Headers = [
    (b"content-type", b"application/json"),
    (b"authorization", b"Bearer client"),
    (b"x-session-id", b"s"),
    (b"openai-organization", b"o"),
    (b"x-stainless-retry-count", b"0"),
    (b"cookie", b"a=1"),
    (b"cookie", b"b=2"),
    (b"x-request-id", b"r"),
    (b"user-agent", b"OpenAI/Python 2"),
]


def passed(*headers: tuple[bytes, bytes], key: tuple[bytes, bytes] | None = None, readable: bool = False) -> Headers:
    return [h for h in to_upstream(headers, key=key, readable=readable) if h[0] != HOP]


def test_ordinary_headers_reach_the_upstream_in_order_and_as_often_as_they_came() -> None:
    assert passed(*KEPT) == KEPT


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (b"connection", "hop by hop (RFC 9110, section 7.6.1)"),
        (b"keep-alive", "hop by hop"),
        (b"proxy-authorization", "meant for the proxy before us"),
        (b"proxy-authenticate", "hop by hop"),
        (b"proxy-connection", "hop by hop"),
        (b"te", "hop by hop"),
        (b"trailer", "hop by hop"),
        (b"transfer-encoding", "hop by hop"),
        (b"upgrade", "hop by hop"),
        (b"host", "set anew"),
        (b"content-length", "set anew"),
        (b"expect", "answered by our server"),
        (b"forwarded", "says who the client is"),
        (b"x-forwarded-for", "says who the client is"),
        (b"x-forwarded-host", "may decide where a server thinks it is"),
        (b"x-forwarded-proto", "may decide where a server thinks it is"),
        (b"x-forwarded-port", "may decide where a server thinks it is"),
        (b"x-real-ip", "says who the client is"),
        (b"x-compaction", "meant for us"),
        (b"x-compaction-policy", "meant for us"),
        (b"x-compaction-pin", "meant for us"),
        (b"x-compaction-whatever", "ours"),
        (b"x_compaction", "would be ours behind a server that reads _ as -"),
        (b"x-compaction_policy", "would be ours behind a server that reads _ as -"),
        (b"x_compaction_policy", "would be ours behind a server that reads _ as -"),
        (b"transfer_encoding", "frames a body behind a server that reads _ as -"),
        (b"content_length", "frames a body behind a server that reads _ as -"),
        (b"proxy_authorization", "hop by hop behind a server that reads _ as -"),
        (b"x_forwarded-for", "says who the client is behind a server that reads _ as -"),
        (b"x_concertina_hop", "set anew behind a server that reads _ as -"),
    ],
)
def test_what_is_for_this_hop_or_for_us_does_not_reach_the_upstream(name: bytes, reason: str) -> None:
    assert passed((name, b"close"), *KEPT) == KEPT, reason


@pytest.mark.parametrize("name", [b"x_api_key", b"api_key", b"x-api_key"])
def test_a_configured_key_replaces_a_credential_whose_name_is_written_with_underscores(name: bytes) -> None:
    key = credential("ours", "bearer")
    assert passed((name, b"b"), key=key) == [key]
    assert passed((name, b"b")) == [(name, b"b")]


@pytest.mark.parametrize(
    ("listed", "name"), [(b"x_a", b"x-a"), (b"x-a", b"x_a"), (b"x_a", b"x_a"), (b"X_a_b", b"x-a-b")]
)
def test_headers_that_connection_names_are_dropped_however_their_hyphens_are_written(
    listed: bytes, name: bytes
) -> None:
    headers = [(b"connection", listed), (name, b"1"), (b"x_c", b"3")]
    assert passed(*headers) == to_client(headers) == [(b"x_c", b"3")]


@pytest.mark.parametrize("value", [b"x-a, x-b", b"X-A ,X-B,", b"close,x-a,\tx-b"])
def test_headers_that_connection_names_are_dropped_both_ways(value: bytes) -> None:
    headers = [(b"connection", value), (b"x-a", b"1"), (b"x-b", b"2"), (b"x-c", b"3")]
    assert passed(*headers) == [(b"x-c", b"3")]
    assert to_client(headers) == [(b"x-c", b"3")]


def test_a_configured_key_replaces_whatever_credential_the_client_sent() -> None:
    headers = [(b"authorization", b"Bearer a"), (b"x-api-key", b"b"), (b"api-key", b"c"), (b"x", b"y")]
    for key in (credential("ours", "bearer"), credential("ours", "x-api-key"), credential("ours", "api-key")):
        assert passed(*headers, key=key) == [(b"x", b"y"), key]
    assert passed(*headers) == headers


@pytest.mark.parametrize(
    ("offered", "forwarded"),
    [
        (b"gzip, deflate, br, zstd", b"gzip, deflate"),
        (b"br", b"identity"),
        (b"*", b"identity"),
        (b"", b"identity"),
        (b"GZIP;q=0.5, br;q=1", b"GZIP;q=0.5"),
        (b"identity", b"identity"),
    ],
)
def test_only_codings_are_offered_in_which_an_overflow_can_be_recognized(offered: bytes, forwarded: bytes) -> None:
    assert passed((b"accept-encoding", offered), readable=True) == [(b"accept-encoding", forwarded)]
    assert passed((b"accept-encoding", offered)) == [(b"accept-encoding", offered)]


def test_no_coding_is_asked_for_where_the_client_asked_for_none() -> None:
    assert passed(readable=True) == []


@pytest.mark.parametrize(
    ("value", "count"),
    [(None, 0), (b"1", 1), (b"3", 3), (b"0", 0), (b"-1", 0), (b"x", 0), (b"", 0), (b"9" * 100, 9999), (b"\xb2", 0)],
)
def test_every_proxy_of_this_kind_adds_one_hop(value: bytes | None, count: int) -> None:
    headers = [] if value is None else [(HOP, value)]
    assert hops(headers) == count
    assert first(to_upstream(headers, key=None, readable=False), HOP) == str(count + 1).encode()


def test_a_hop_cannot_be_hidden_by_naming_it_in_connection() -> None:
    headers = [(b"connection", HOP), (HOP, b"3")]
    assert first(to_upstream(headers, key=None, readable=False), HOP) == b"4"


def test_an_upstreams_headers_keep_their_order_values_and_number() -> None:
    headers = [
        (b"X-Request-ID", b"req_1"),
        (b"Set-Cookie", b"a=1; Path=/"),
        (b"Set-Cookie", b"b=2"),
        (b"Retry-After", b"17"),
        (b"x-ratelimit-remaining-tokens", b"12 34"),
        (b"X-Latin", b"caf\xe9"),
        (b"x-empty", b""),
        (b"content-length", b"12"),
    ]
    reader = AnswerReader(has_no_body=False)
    reader.feed(b"HTTP/1.1 200 OK\r\n" + b"".join(b"%b: %b\r\n" % header for header in headers) + b"\r\n")
    expected = [(name.lower(), value) for name, value in headers]
    assert reader.headers == expected
    assert to_client(reader.headers) == expected


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (b"Connection", b"keep-alive", "hop by hop"),
        (b"Transfer-Encoding", b"chunked", "hop by hop"),
        (b"Keep-Alive", b"timeout=5", "hop by hop"),
        (b"Trailer", b"x", "hop by hop"),
        (b"Upgrade", b"h2c", "hop by hop"),
        (b"Transfer_Encoding", b"chunked", "hop by hop in front of a server that reads _ as -"),
        (b"X-Compaction", b"applied", "ours: a proxy behind us speaks of its own work"),
        (b"x-compaction-tokens-sent", b"7", "ours"),
        (b"x-broken", b"a\x01b", "no server would send it on"),
        (b"x-broken", b"a\x7fb", "no server would send it on"),
    ],
)
def test_what_is_no_header_for_the_client_is_dropped(name: bytes, value: bytes, reason: str) -> None:
    assert to_client([(name.lower(), value), (b"x", b"y\tz")]) == [(b"x", b"y\tz")], reason


@pytest.mark.parametrize(
    ("name", "ours"),
    [(b"x-compaction", True), (b"x_compaction-policy", True), (b"x-compactor", False), (b"x-session-id", False)],
)
def test_control_headers_are_known_by_their_beginning(name: bytes, ours: bool) -> None:
    assert is_control(name) is ours


NEEDED = b"oauth-2025-04-20,context-1m-2025-08-07"


@pytest.mark.parametrize(("is_aligned", "betas"), [(False, NEEDED), (True, b"effort-2025-11-24," + NEEDED)])
def test_a_question_of_ours_asks_for_the_features_that_its_prompt_needs(is_aligned: bool, betas: bytes) -> None:
    sent = [
        (b"x-api-key", b"k"),
        (b"anthropic-beta", b"mcp-client-2025-11-20, effort-2025-11-24, oauth-2025-04-20"),
        (b"anthropic-beta", b"code-execution-2025-08-25,unknown-2027-01-01,context-1m-2025-08-07"),
        (b"x-claude-code-session-id", b"s"),
    ]
    asked = for_questions(sent, [(b"anthropic-version", b"2023-06-01")], is_aligned=is_aligned)
    gateway = (b"x-claude-code-session-id", b"s")
    assert asked == [(b"x-api-key", b"k"), gateway, (b"anthropic-beta", betas), (b"anthropic-version", b"2023-06-01")]


WANTED_BY_GATEWAYS = [
    (b"authorization", b"Bearer k"),
    (b"x-portkey-api-key", b"p"),
    (b"x-portkey-config", b"pc-1"),
    (b"helicone-auth", b"Bearer h"),
    (b"cf-aig-authorization", b"Bearer c"),
    (b"copilot-integration-id", b"vscode-chat"),
    (b"editor-version", b"vscode/1.200"),
    (b"openai-organization", b"org"),
    (b"user-agent", b"agent/1"),
    (b"x-a-gateway-of-tomorrow", b"1"),
]
OF_ONE_REQUEST = [
    (b"content-type", b"application/json"),
    (b"content-encoding", b"gzip"),
    (b"content-length", b"9"),
    (b"accept", b"text/event-stream"),
    (b"accept-encoding", b"gzip"),
    (b"idempotency-key", b"i"),
    (b"if-match", b"e"),
    (b"range", b"bytes=0-1"),
    (b"traceparent", b"00-1-2-01"),
    (b"x-request-id", b"r"),
    (b"x-b3-traceid", b"t"),
]


def test_a_question_of_ours_has_what_a_gateway_before_the_model_may_need() -> None:
    assert for_questions([*WANTED_BY_GATEWAYS, *OF_ONE_REQUEST], []) == WANTED_BY_GATEWAYS
