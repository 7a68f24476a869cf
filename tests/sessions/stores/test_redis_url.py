"""What store.url says of Redis, word by word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.sessions.stores.redis.url import SCHEMES, RedisUrl, parse

READ: dict[str, RedisUrl] = {
    "redis://h": RedisUrl("server", (("h", 6379),), None),
    "redis://h:7/2": RedisUrl("server", (("h", 7),), None, db=2),
    "redis://h/?db=3": RedisUrl("server", (("h", 6379),), None, db=3),
    "redis://u:p%40%2C%2F@h:7": RedisUrl("server", (("h", 7),), None, username="u", password="p@,/"),
    "redis://:p@h": RedisUrl("server", (("h", 6379),), None, password="p"),
    "redis://h?username=u&password=p": RedisUrl("server", (("h", 6379),), None, username="u", password="p"),
    "redis://[::1]:7/0": RedisUrl("server", (("::1", 7),), None),
    "redis://h?client_name=replica-1": RedisUrl("server", (("h", 6379),), None, client_name="replica-1"),
    "redis://h?client_name=": RedisUrl("server", (("h", 6379),), None, client_name=None),
    "redis://h?socket_timeout=30&protocol=3&max_connections=9": RedisUrl("server", (("h", 6379),), None),
    "REDISS://h": RedisUrl("server", (("h", 6379),), {}),
    "rediss://h?ssl_ca_certs=/a%20b.pem&ssl_check_hostname=False&ssl_cert_reqs=none": RedisUrl(
        "server", (("h", 6379),), {"ssl_ca_certs": "/a b.pem", "ssl_check_hostname": False, "ssl_cert_reqs": "none"}
    ),
    "redis+sentinel://u:p@a:1,b,[::1]:3/main/2?sentinel_username=s&sentinel_password=q": RedisUrl(
        "sentinel",
        (("a", 1), ("b", 26379), ("::1", 3)),
        None,
        master="main",
        db=2,
        username="u",
        password="p",
        sentinel_username="s",
        sentinel_password="q",
    ),
    "rediss+sentinel://a/my%2Fmaster": RedisUrl("sentinel", (("a", 26379),), {}, master="my/master"),
    "redis+cluster://a:1,b:2,c": RedisUrl("cluster", (("a", 1), ("b", 2), ("c", 6379)), None),
    "rediss+cluster://u:p@a:1,b:2/0": RedisUrl("cluster", (("a", 1), ("b", 2)), {}, username="u", password="p"),
}


@pytest.mark.parametrize("url", READ)
def test_a_url_is_read_as_it_is_meant(url: str) -> None:
    assert parse(url) == READ[url]


def test_a_url_read_shows_no_password() -> None:
    assert "hunter2" not in repr(parse("redis+sentinel://:hunter2@h/m?sentinel_password=hunter2"))


@given(scheme=st.sampled_from(SCHEMES), rest=st.text(st.characters(codec="utf-8"), max_size=30))
def test_any_url_is_read_or_refused_without_its_password(scheme: str, rest: str) -> None:
    refusal = ""
    try:
        assert all(host for host, _ in parse(f"{scheme}://u:hunter2@{rest}").addresses)
    except ValueError as refused:
        refusal = str(refused)
    assert "hunter2" not in refusal
