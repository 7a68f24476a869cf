"""The secret of a store: the configured one, else one that is made beside the store's file."""

from __future__ import annotations

from pathlib import Path

from proxy.callers import store_secret
from proxy.callers.tenants import Tenants
from proxy.config.loading import load
from proxy.config.settings import Config


def config_in(directory: Path, store: str) -> Config:
    file = directory / "config.yaml"
    file.write_text(f"upstreams: {{main: {{base_url: 'http://127.0.0.1:1/v1'}}}}\nstore: {store}\n", encoding="utf-8")
    return load(file, {})


def test_an_empty_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    config = config_in(tmp_path, f"{{url: 'sqlite:///{tmp_path / 'store.db'}'}}")
    guessable = Tenants(config).operator_of("default")
    assert store_secret.make(config) is None
    made = store_secret.secret_in_force(config.store)
    file = store_secret.secret_file(config.store)
    assert file is not None
    assert (file.stat().st_mode & 0o777, len(made)) == (0o600, 43)
    assert store_secret.make(config) is None
    assert store_secret.secret_in_force(config.store) == made
    caller = Tenants(config).operator_of("default")
    assert caller is not None
    assert guessable is not None
    assert caller.scope != guessable.scope


def test_a_store_that_is_there_keeps_its_sessions(tmp_path: Path) -> None:
    config = config_in(tmp_path, f"{{url: 'sqlite:///{tmp_path / 'store.db'}'}}")
    before = Tenants(config).operator_of("default")
    (tmp_path / "store.db").write_bytes(b"of an earlier version")
    assert "set store.secret" in (store_secret.make(config) or "")
    after = Tenants(config).operator_of("default")
    assert before is not None
    assert after is not None
    assert (after.scope, store_secret.secret_file(config.store).exists()) == (before.scope, False)  # type: ignore[union-attr]


def test_a_secret_is_made_in_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    config = config_in(tmp_path, f"{{url: 'sqlite:///{tmp_path / 'var' / 'store.db'}'}}")
    assert store_secret.make(config) is None
    assert len(store_secret.secret_in_force(config.store)) == 43


def test_a_configured_secret_has_no_file(tmp_path: Path) -> None:
    config = config_in(tmp_path, f"{{url: 'sqlite:///{tmp_path / 'store.db'}', secret: given}}")
    assert (store_secret.make(config), store_secret.secret_in_force(config.store)) == (None, b"given")
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


def test_a_file_that_others_may_read_is_made_anew_and_said(tmp_path: Path) -> None:
    config = config_in(tmp_path, f"{{url: 'sqlite:///{tmp_path / 'store.db'}'}}")
    store_secret.make(config)
    before, file = store_secret.secret_in_force(config.store), store_secret.secret_file(config.store)
    assert file is not None
    file.chmod(0o644)
    assert "sessions start anew" in (store_secret.make(config) or "")
    assert store_secret.secret_in_force(config.store) != before


def test_where_no_file_can_be_made_the_proxy_starts_all_the_same(tmp_path: Path) -> None:
    config = config_in(tmp_path, "{url: 'sqlite:////proc/missing/store.db'}")
    assert "cannot be used" in (store_secret.make(config) or "")
    assert Tenants(config).operator_of("default") is not None
