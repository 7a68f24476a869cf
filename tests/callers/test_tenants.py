"""Callers: whose key it is, what they may use, and that no two keys share a scope."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.callers.tenants import Tenants
from proxy.config.loading import Config, load
from proxy.errors import AuthenticationError, NotAllowedError

if TYPE_CHECKING:
    from pathlib import Path


def hashed(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


FILE = f"""
store: {{secret: pepper}}
policies: {{coding: coding-agent, thrifty: cost}}
tenants:
  acme:
    keys: ["{hashed("acme-1")}", "{hashed("acme-2").upper().replace("SHA", "sha")}"]
    policy: coding
    policies: [thrifty]
    api_key: upstream-key
    summary_tokens_per_day: 7
  beta: {{keys: ["{hashed("beta-1")}"]}}
closed: %s
"""
ONE, TWO = ([(b"api-key", key)] for key in (b"one", b"two"))


def config(folder: Path, closed: str = "false", text: str = FILE) -> Config:
    path = folder / "config.yaml"
    path.write_text(text % closed)
    return load(path, {})


@pytest.fixture
def tenants(tmp_path: Path) -> Tenants:
    return Tenants(config(tmp_path))


@pytest.fixture
def closed(tmp_path: Path) -> Tenants:
    return Tenants(config(tmp_path, "true"))


@pytest.mark.parametrize(
    "authorization",
    [b"Bearer acme-1", b"bearer acme-1", b"BEARER   acme-1", b"  Bearer acme-1  ", b"Bearer\tacme-1", b"acme-1"],
)
def test_a_key_is_known_however_the_header_is_written(tenants: Tenants, authorization: bytes) -> None:
    assert tenants.identify(authorization).tenant == "acme"


def test_a_caller_carries_all_that_its_tenant_may(tenants: Tenants) -> None:
    caller = tenants.identify(b"Bearer acme-2")
    assert (caller.tenant, caller.policy_name, caller.policy.compaction_threshold) == ("acme", "coding", 0.75)
    assert caller.allowed_policies == {"coding", "thrifty"}
    assert caller.upstream_key == "upstream-key"
    assert caller.summary_tokens_per_day == 7
    assert len(caller.scope) == 32


def test_the_api_key_header_counts_where_authorization_holds_no_known_key(tenants: Tenants) -> None:
    assert tenants.identify(None, b"beta-1").tenant == "beta"
    assert tenants.identify(b"Bearer for-the-upstream", b"beta-1").tenant == "beta"
    assert tenants.identify(b"Bearer acme-1", b"beta-1").tenant == "acme"


@pytest.mark.parametrize("authorization", [None, b"", b"Bearer", b"Bearer ", b"Bearer stranger", b"Basic YTpi"])
def test_strangers_are_served_as_default_while_open_and_refused_when_closed(
    tenants: Tenants, closed: Tenants, authorization: bytes | None
) -> None:
    caller = tenants.identify(authorization)
    assert (caller.tenant, caller.upstream_key) == ("default", None)
    with pytest.raises(AuthenticationError) as caught:
        closed.identify(authorization)
    assert "stranger" not in caught.value.message


@pytest.mark.parametrize("key", [b"acme-", b"acme-11", b"ACME-1", b"acme-1\0", b"\xff\xfe", "é".encode(), b"x" * 10**6])
def test_what_only_resembles_a_key_is_none(closed: Tenants, key: bytes) -> None:
    with pytest.raises(AuthenticationError):
        closed.identify(b"Bearer " + key)


def test_a_hash_from_the_config_is_no_key(closed: Tenants) -> None:
    with pytest.raises(AuthenticationError):
        closed.identify(f"Bearer {hashed('acme-1')}".encode())


def test_known_keys_are_served_when_closed(closed: Tenants) -> None:
    assert closed.identify(b"Bearer acme-1").tenant == "acme"


@given(first=st.binary(max_size=40), second=st.binary(max_size=40))
def test_two_keys_never_share_a_scope_and_one_key_always_has_the_same(first: bytes, second: bytes) -> None:
    tenants = Tenants(load(None, {}))
    scopes = [tenants.identify(None, key).scope for key in (first, second, first)]
    assert scopes[0] == scopes[2]
    assert (scopes[0] == scopes[1]) == (first == second)


def test_two_keys_of_one_tenant_do_not_share_a_scope(tenants: Tenants) -> None:
    assert tenants.identify(b"Bearer acme-1").scope != tenants.identify(b"Bearer acme-2").scope


def test_the_same_key_under_another_tenant_or_secret_has_another_scope(tmp_path: Path) -> None:
    def scope(text: str) -> bytes:
        return Tenants(config(tmp_path, text=text)).identify(b"Bearer acme-1").scope

    scopes = [FILE, FILE.replace("acme:", "other:"), FILE.replace("pepper", "salt"), FILE.replace("pepper", '""')]
    assert len({scope(text) for text in scopes}) == 4
    assert scope(FILE) == scope(FILE)


def test_scopes_do_not_depend_on_how_often_the_config_was_loaded_so_replicas_share_them(tmp_path: Path) -> None:
    first, second = (Tenants(config(tmp_path)).identify(b"Bearer beta-1").scope for _ in range(2))
    assert first == second


def test_an_allowed_policy_replaces_the_callers_own(tenants: Tenants) -> None:
    caller = tenants.identify(b"Bearer acme-1")
    changed = tenants.with_policy(caller, "thrifty")
    assert (changed.policy_name, changed.policy.token_limit) == ("thrifty", 62_500)
    assert changed.scope == caller.scope
    assert tenants.with_policy(caller, "coding") == caller


def test_a_policy_that_is_not_allowed_is_refused_in_the_same_words_whether_it_exists_or_not(tenants: Tenants) -> None:
    caller = tenants.identify(b"Bearer beta-1")
    messages = []
    for name in ("coding", "nonsense"):
        with pytest.raises(NotAllowedError) as caught:
            tenants.with_policy(caller, name)
        messages.append((caught.value.message, caught.value.status, caught.value.param))
    assert messages[0] == messages[1]


def test_a_caller_shows_neither_its_scope_nor_its_key(tenants: Tenants) -> None:
    caller = tenants.identify(b"Bearer acme-1")
    shown = repr(caller)
    assert "upstream-key" not in shown
    assert "scope" not in shown


def test_callers_are_kept_apart_by_a_key_that_only_providers_look_for() -> None:
    tenants = Tenants(load(None, {}))
    scopes = {tenants.identify(None, None, sent).scope for sent in ((), ONE, TWO)}
    assert len(scopes) == 3
    assert tenants.identify(b"Bearer k", None, ONE).scope == tenants.identify(b"Bearer k", None, TWO).scope
