"""Which proxy stands before an upstream, by config and environment."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.loading import ConfigError, load_text
from proxy.config.proxies import egress_to, is_excepted, parse, variables
from proxy.config.settings import Upstream

if TYPE_CHECKING:
    from collections.abc import Mapping

SECRET = "p4ssw0rd"
PROXY = f"http://user:{SECRET}@proxy.corp:3128"


@pytest.mark.parametrize(
    ("exceptions", "host", "port", "excepted"),
    [
        ("", "api.corp.com", 443, False),
        ("*", "api.corp.com", 443, True),
        ("api.corp.com", "api.corp.com", 443, True),
        ("API.Corp.com", "api.CORP.com", 443, True),
        ("corp.com", "api.corp.com", 443, True),
        (".corp.com", "api.corp.com", 443, True),
        (".corp.com", "corp.com", 443, True),
        ("*.corp.com", "api.corp.com", 443, True),
        ("corp.com.", "api.corp.com", 443, True),
        ("corp.com", "notcorp.com", 443, False),
        ("api.corp.com", "corp.com", 443, False),
        ("corp.com:443", "api.corp.com", 443, True),
        ("corp.com:8443", "api.corp.com", 443, False),
        ("a.com, corp.com", "api.corp.com", 443, True),
        ("a.com corp.com", "api.corp.com", 443, True),
        (",, ,", "api.corp.com", 443, False),
        (".", "api.corp.com", 443, False),
        ("10.0.0.1", "10.0.0.1", 80, True),
        ("10.0.0.1:80", "10.0.0.1", 80, True),
        ("10.0.0.1:81", "10.0.0.1", 80, False),
        ("10.0.0.0/8", "10.1.2.3", 80, True),
        ("10.0.0.5/8", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "11.1.2.3", 80, False),
        ("10.0.0.0/8", "::ffff:10.1.2.3", 80, True),
        ("10.0.0.0/8", "ten.corp.com", 80, False),
        ("0.0.0.1", "10.0.0.1", 80, False),
        ("fd00::/8", "fd12::1", 80, True),
        ("fd00::/8", "fe80::1", 80, False),
        ("fd12::1", "fd12:0::1", 80, True),
        ("[fd12::1]", "fd12::1", 80, True),
        ("[fd12::1]:443", "fd12::1", 443, True),
        ("[fd12::1]:443", "fd12::1", 80, False),
        ("10.0.0.0/99", "10.0.0.1", 80, False),
        ("10.0.0.0/8", "fd12::1", 80, False),
    ],
)
def test_no_proxy_excepts_names_addresses_networks_and_ports(
    exceptions: str, host: str, port: int, excepted: bool
) -> None:
    assert is_excepted(host, port, exceptions) == excepted


@given(st.text(max_size=60), st.text(max_size=20))
def test_no_list_of_exceptions_is_an_error(exceptions: str, host: str) -> None:
    assert isinstance(is_excepted(host, 443, exceptions), bool)


@pytest.mark.parametrize(
    ("base_url", "setting", "env", "expected"),
    [
        ("https://api.x.com/v1", "", {}, (None, "")),
        ("https://api.x.com/v1", "", {"HTTPS_PROXY": "p:1"}, ("http://p:1", "HTTPS_PROXY")),
        ("https://api.x.com/v1", "", {"https_proxy": "http://q", "HTTPS_PROXY": "p:1"}, ("http://q:80", "https_proxy")),
        ("https://api.x.com/v1", "", {"https_proxy": "", "HTTPS_PROXY": "p:1"}, (None, "")),
        ("https://api.x.com/v1", "", {"HTTP_PROXY": "p:1"}, (None, "")),
        ("http://api.x.com/v1", "", {"HTTP_PROXY": "p:1", "HTTPS_PROXY": "q:1"}, ("http://p:1", "HTTP_PROXY")),
        ("http://api.x.com/v1", "", {"ALL_PROXY": "p:1"}, ("http://p:1", "ALL_PROXY")),
        ("https://api.x.com/v1", "", {"HTTPS_PROXY": "p:1", "NO_PROXY": "x.com"}, (None, "NO_PROXY")),
        (
            "https://api.x.com/v1",
            "",
            {"HTTPS_PROXY": "p:1", "no_proxy": "", "NO_PROXY": "*"},
            ("http://p:1", "HTTPS_PROXY"),
        ),
        ("https://api.x.com:9/v1", "", {"HTTPS_PROXY": "p:1", "NO_PROXY": "x.com:443"}, ("http://p:1", "HTTPS_PROXY")),
        ("https://api.x.com./v1", "", {"HTTPS_PROXY": "p:1", "NO_PROXY": "x.com"}, (None, "NO_PROXY")),
        ("http://localhost:1/v1", "", {"HTTP_PROXY": "p:1"}, (None, "loopback")),
        ("http://a.localhost:1/v1", "", {"HTTP_PROXY": "p:1"}, (None, "loopback")),
        ("http://127.8.9.1/v1", "", {"HTTP_PROXY": "p:1"}, (None, "loopback")),
        ("http://[::1]:1/v1", "", {"HTTP_PROXY": "p:1"}, (None, "loopback")),
        ("http://[::ffff:127.0.0.1]/v1", "", {"HTTP_PROXY": "p:1"}, (None, "loopback")),
        ("https://api.x.com/v1", "none", {"HTTPS_PROXY": "p:1"}, (None, "upstreams.*.proxy")),
        ("https://api.x.com/v1", "off", {"HTTPS_PROXY": "p:1"}, (None, "upstreams.*.proxy")),
        (
            "https://api.x.com/v1",
            "http://c:2",
            {"HTTPS_PROXY": "p:1", "NO_PROXY": "*"},
            ("http://c:2", "upstreams.*.proxy"),
        ),
        ("http://127.0.0.1/v1", "http://c:2", {}, ("http://c:2", "upstreams.*.proxy")),
        ("https://api.x.com/v1", "http://[fd12::1]:2", {}, ("http://[fd12::1]:2", "upstreams.*.proxy")),
        ("https://api.x.com/v1", PROXY, {}, ("http://***@proxy.corp:3128", "upstreams.*.proxy")),
    ],
)
def test_the_config_wins_over_the_environment_and_this_machine_needs_none(
    base_url: str, setting: str, env: Mapping[str, str], expected: tuple[str | None, str]
) -> None:
    found = egress_to(base_url, setting, env)
    assert (found.proxy and found.proxy.without_credentials, found.source) == expected


def test_credentials_are_decoded_and_shown_nowhere() -> None:
    found = parse("http://us%40er:p%3Ass%C3%A9@p:1", "x")
    assert found.authorization == b"Basic " + base64.b64encode("us@er:p:ssé".encode())
    upstream = Upstream(base_url="https://x/v1", proxy=PROXY)  # type: ignore[arg-type]
    for shown in (
        repr(found),
        found.without_credentials,
        repr(upstream),
        upstream.model_dump_json(),
        repr(upstream.egress({})),
    ):
        assert SECRET not in shown
        assert "Basic" not in shown


@pytest.mark.parametrize(
    "url",
    [
        *(f"https://u:{SECRET}@p:1", f"socks5://u:{SECRET}@p:1", f"http://u:{SECRET}@", f"http://u:{SECRET}@p:x"),
        *(f"http://u:{SECRET}@p:1/path", f"http://u:{SECRET}@p:1?a", f"http://u:{SECRET}@p 1", f"http://{SECRET}\n@p"),
    ],
)
def test_what_is_no_proxy_is_refused_with_a_way_out_and_without_its_password(url: str) -> None:
    text = f"upstreams:\n  main: {{base_url: 'https://api.x.com/v1', proxy: {url!r}}}"
    if "\n" not in url:
        with pytest.raises(ConfigError) as refused:
            load_text("c.yaml", text, {})
        (problem,) = refused.value.problems
        assert str(problem).startswith("c.yaml:2: upstreams.main.proxy: must be http://HOST:PORT")
        assert SECRET not in str(problem)
    direct = "upstreams:\n  main: {base_url: 'https://api.x.com/v1'}"
    with pytest.raises(ConfigError) as refused:
        load_text("c.yaml", direct, {"HTTPS_PROXY": url})
    (problem,) = refused.value.problems
    assert "upstreams.main.proxy: HTTPS_PROXY of the environment must be" in str(problem)
    assert "none" in str(problem)
    assert SECRET not in str(problem)
    assert load_text("c.yaml", direct.replace("v1'", "v1', proxy: off"), {"HTTPS_PROXY": url})
    assert load_text("c.yaml", direct, {"HTTPS_PROXY": url, "NO_PROXY": "x.com"})


@pytest.mark.parametrize(
    ("setting", "taken"),
    [("none", True), ("None", True), ("OFF", True), ("''", True), ("direct", False), ("p:1", False)],
)
def test_a_word_in_the_config_is_no_proxys_name(setting: str, taken: bool) -> None:
    text = f"upstreams:\n  main: {{base_url: 'https://api.x.com/v1', proxy: {setting}}}"
    if taken:
        assert load_text("c.yaml", text, {}).upstreams["main"].egress({}).proxy is None
        return
    with pytest.raises(ConfigError, match=r"must be http://HOST:PORT .*; or none, to use no proxy"):
        load_text("c.yaml", text, {})


def test_of_the_environment_only_what_concerns_proxies_is_kept() -> None:
    kept = {"HTTPS_PROXY": "a", "no_proxy": "b", "All_Proxy": "c"}
    assert variables({**kept, "OPENAI_API_KEY": "k"}) == kept
