"""The config file: what is read from it, what holds where it says nothing, and that nothing leaks."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from policies.settings import DEFAULTS
from proxy.config.loading import Config, ConfigError, json_schema, load, load_text, notes
from proxy.sessions.stores.sealing import Sealer

ROOT = Path(__file__).parents[2]
HASH = "sha256:" + "0123456789abcdef" * 4
SECRET = "s3cr3t-that-must-not-show"


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(text: str | bytes, **env: str) -> Config:
    path = Path("config.yaml")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(path, env)


URL = "must be an http:// or https:// URL with a host"


def problems(text: str | bytes, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(text, **env)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.requirement("R3 3.1 partsToKeep")
def test_the_config_in_the_repository_is_the_built_in_one_written_out() -> None:
    assert load(ROOT / "config.yaml", {}) == load(None, {})


def test_the_config_in_the_repository_follows_the_environment_as_the_built_in_one_does() -> None:
    env = {"OPENAI_BASE_URL": "http://h/v1", "CONCERTINA_SECRET": "s", "CONCERTINA_ADMIN_TOKEN": "t" * 16}
    env |= {"CONCERTINA_DRAIN_DELAY": "5s", "CONCERTINA_STORE_URL": "redis://h:6379/0"}
    assert load(ROOT / "config.yaml", env) == load(None, env) != load(None, {})


def test_the_schema_in_the_repository_is_up_to_date_and_the_config_refers_to_it() -> None:
    assert json.loads((ROOT / "docs/config.schema.json").read_text("utf-8")) == json_schema()
    first = (ROOT / "config.yaml").read_text("utf-8").partition("\n")[0]
    assert first == "# yaml-language-server: $schema=./docs/config.schema.json"


def test_the_schema_knows_the_shape_of_a_file() -> None:
    schema = json.dumps(json_schema())
    assert '"extends"' in schema
    assert "required" not in json_schema()
    assert SECRET not in schema


def test_a_file_needs_to_say_only_what_it_changes() -> None:
    changed = loaded("server: {port: 9000}\nstore: {url: 'memory://'}", CONCERTINA_SECRET="from the environment")
    assert (changed.server.port, changed.server.host) == (9000, "127.0.0.1")
    assert changed.store.secret.get_secret_value() == "from the environment"
    assert changed.upstreams == load(None, {}).upstreams


def test_empty_sections_and_tenants_say_nothing() -> None:
    assert loaded("server:\nmodels:\npolicies: {}\ntenants:\n  default:\nupstreams:") == load(None, {})


def test_scalars_are_those_that_editors_see() -> None:
    config = loaded(
        "policies:\n  a: {mode: off, separator: no, summarizer: {model: 2026-01-01, prompt: '12'}}\nclosed: yes"
    )
    policy = config.policies["a"]
    assert (policy.mode, policy.separator) == ("off", "no")
    assert (policy.summarizer.model, policy.summarizer.prompt) == ("2026-01-01", "12")
    assert config.closed


def test_an_address_with_a_question_mark_needs_no_quotes_in_braces() -> None:
    upstream = loaded("upstreams: {main: {base_url: http://h/v1?api-version=1}}").upstreams["main"]
    assert upstream.base_url == "http://h/v1?api-version=1"


def test_anchors_save_typing() -> None:
    config = loaded("policies:\n  a: {summarizer: &s {model: small}}\n  b: {summarizer: *s}")
    assert config.policies["a"] == config.policies["b"]


def test_a_policy_is_a_preset_or_extends_one_or_another_policy() -> None:
    config = loaded(
        "policies:\n"
        "  default: {extends: default, message_limit: 60}\n"
        "  plain: cost\n"
        "  base: {extends: cost, summarizer: {model: small}}\n"
        "  top: {extends: base, summarizer: {timeout: 5s}}\n"
        "  bare: {}\n"
        "  blank:\n"
        "  after: default\n"
    ).policies
    assert config["default"].message_limit == config["after"].message_limit == 60
    assert config["plain"].token_limit == config["top"].token_limit == 62_500
    summarizer = config["top"].summarizer
    assert (summarizer.model, summarizer.timeout) == ("small", 5.0)
    assert config["bare"] == config["blank"] == DEFAULTS
    assert config["coding-agent"].compaction_threshold == 0.75, "presets are policies too"


def test_a_null_takes_an_inherited_setting_back() -> None:
    config = loaded("policies: {a: {summarizer: {model: m}}, b: {extends: a, summarizer: {model: null}}}")
    assert config.policies["b"].summarizer.model is None


def test_the_upstream_is_the_tenants_else_the_models_else_main_else_the_first() -> None:
    text = (
        "upstreams: {a: {base_url: http://a}, b: {base_url: http://b}, main: {base_url: http://m/}}\n"
        "models: [{match: 'gpt-4o*', context_window: 128000}, {match: 'gpt-*', upstream: b}]\n"
        "tenants: {acme: {upstream: a}}\n"
    )
    config = loaded(text)
    assert config.upstream_for("acme", "gpt-5")[0] == "a"
    assert config.upstream_for("default", "gpt-5")[0] == "b"
    assert config.upstream_for("default", "gpt-4o-mini")[0] == "main", "the first rule that matches holds"
    assert config.upstream_for("nobody", "GPT-5") == ("main", config.upstreams["main"])
    assert config.upstreams["main"].base_url == "http://m"
    assert loaded(text.replace("main", "other")).upstream_for("default", "x")[0] == "a"
    rule = config.rule_for("gpt-4o")
    assert rule is not None
    assert rule.context_window == 128_000
    assert config.rule_for("claude") is None


@pytest.mark.parametrize("key", ["00" * 32, "AB" * 32, "+/" * 21 + "8=", "-_" * 21 + "8", "A" * 43, "A" * 43 + "="])
def test_an_encryption_key_is_hex_or_base64_of_either_alphabet(key: str) -> None:
    store = loaded(f"store: {{encryption_key: '{key}'}}").store
    assert store.encryption_key_bytes is not None
    assert len(store.encryption_key_bytes) == 32
    assert load(None, {}).store.encryption_key_bytes is None


def test_retired_keys_are_read_and_empty_ones_are_none() -> None:
    current, last = "00" * 32, "11" * 32
    config = loaded(f"store: {{encryption_key: '{current}', retired_keys: ['{last}', '${{OLD:-}}']}}")
    before = Sealer(b"\x11" * 32).seal("a key", b"a value")
    assert config.store.sealer().open("a key", before) == b"a value"
    assert last not in repr(config)


@pytest.mark.requirement("R3 4.1 config")
def test_a_config_cannot_be_changed() -> None:
    config = load(None, {})
    with pytest.raises(ValidationError, match="frozen"):
        config.closed = True
    with pytest.raises(TypeError):
        config.policies["default"] = DEFAULTS  # type: ignore[index]


def test_variables_are_filled_into_text_and_take_the_type_of_the_setting() -> None:
    config = loaded(
        "server: {port: '${PORT}', host: '${A}.${B:-b}.$${C}', max_body_bytes: '${NONE:-2048}'}\n"
        "store: {secret: os.environ/KEY, ttl: '${EMPTY:-1h}'}\nclosed: '${CLOSED}'",
        PORT="1234", A="a", KEY="k", EMPTY="", CLOSED="true",
    )  # fmt: skip
    assert (config.server.port, config.server.host, config.server.max_body_bytes) == (1234, "a.b.${C}", 2048)
    assert (config.store.secret.get_secret_value(), config.store.ttl, config.closed) == ("k", 3600, True)


def test_a_file_stands_for_a_variable_that_is_unset_or_empty(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("of a file\n", "utf-8")
    text = "store: {secret: '${NAME:-default}'}\nserver: {host: os.environ/NAME}"
    for env, wanted in (
        ({"NAME_FILE": str(file)}, "of a file"),
        ({"NAME_FILE": str(file), "NAME": ""}, "of a file"),
        ({"NAME_FILE": str(file), "NAME": "of its own"}, "of its own"),
    ):
        config = loaded(text, **env)
        assert (config.store.secret.get_secret_value(), config.server.host) == (wanted, wanted)
    assert problems("store: {secret: '${NAME}'}", NAME_FILE=str(tmp_path / "gone")) == [
        "config.yaml:1: store.secret: the file that NAME_FILE names cannot be read: No such file or directory"
    ]


def test_a_set_but_empty_variable_without_default_is_empty_text() -> None:
    assert loaded("store: {secret: 'a${EMPTY}'}", EMPTY="").store.secret.get_secret_value() == "a"


def test_a_variable_adds_no_yaml_and_no_further_variables() -> None:
    value = "x}\nclosed: true\n#${OTHER} os.environ/OTHER"
    config = loaded("store: {secret: '${VALUE}'}\nclosed: false", VALUE=value, OTHER=SECRET)
    assert config.store.secret.get_secret_value() == value
    assert not config.closed


def test_variables_in_keys_and_comments_stay_as_they_are() -> None:
    sections = "closed, hooks, logging, models, policies, server, store, telemetry, tenants, upstreams"
    assert problems("# ${GONE}\n'${GONE}': 1") == [f"config.yaml:2: ${{GONE}}: unknown key; known keys: {sections}"]


def test_a_variable_of_the_wrong_type_is_named_by_its_path_and_not_shown() -> None:
    assert problems("server: {port: '${PORT}'}", PORT=SECRET) == ["config.yaml:1: server.port: must be a whole number"]


def test_a_bad_variable_of_the_built_in_config_is_named_too() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"OPENAI_BASE_URL": SECRET})
    assert str(caught.value) == f"built-in defaults:7: upstreams.main.base_url: {URL}"


def test_nothing_that_is_shown_holds_a_secret() -> None:
    config = loaded(
        f"server: {{admin_token: {SECRET}-too}}\nstore: {{secret: {SECRET}, url: 'redis://:{SECRET}@h:1/0'}}\n"
        f"upstreams: {{main: {{base_url: http://h, api_key: {SECRET}}}}}\ntenants: {{a: {{api_key: {SECRET}}}}}\n"
    )
    shown = [repr(config), str(config), *notes(config), repr(config.store), str(config.model_dump(exclude={"store"}))]
    assert SECRET not in "".join(shown)


@pytest.mark.parametrize(
    "keys",
    [
        "upstreams: {main: {base_url: http://h/v1, api_key: shared-by-several}}",
        "tenants: {a: {api_key: shared-by-several}}",
        f"tenants: {{a: {{keys: ['sha256:{hashlib.sha256(b'shared-by-several').hexdigest()}']}}}}",
    ],
)
def test_an_admin_token_that_is_an_api_key_too_is_refused(keys: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(f"server: {{admin_token: shared-by-several}}\n{keys}\n")
    assert "server.admin_token: is an API key too" in str(refused.value)


@pytest.mark.parametrize(("token", "is_refused"), [("a" * 15, True), ("a" * 16, False), ("", False)])
def test_an_admin_token_that_may_be_guessed_is_refused_unless_none_is_configured(token: str, is_refused: bool) -> None:
    text = f"server: {{admin_token: '{token}'}}\n"
    if not is_refused:
        assert loaded(text).server.admin_token.get_secret_value() == token
        return
    with pytest.raises(ConfigError) as refused:
        loaded(text)
    assert "server.admin_token: has fewer than 16 characters" in str(refused.value)
    assert token not in str(refused.value)


def test_the_built_in_config_needs_no_notes() -> None:
    assert notes(load(None, {})) == ()


def test_what_is_risky_is_noted() -> None:
    config = loaded(
        "server: {host: 0.0.0.0, admin_token: tttttttttttttttt}\n"
        "store: {url: 'redis://h'}\n"
        "upstreams: {main: {base_url: http://h/v1, api_key: k}}\n"
        f"tenants: {{default: {{api_key: k}}, acme: {{keys: ['{HASH}']}}}}\n"
    )
    assert notes(config) == (
        "store.secret: empty, so a client that can write to the store can guess the keys of sessions; set one",
        "closed: false, so clients without a known key are served as tenant 'default'",
        "tenants.default.api_key: every client that reaches the proxy can spend it; set closed: true",
        "upstreams.main.api_key: every client that reaches the proxy can spend it; set closed: true",
    )


def test_more_bytes_of_bodies_than_the_container_holds_are_noted_if_they_are_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.config.loading.memory_limit", lambda: 512 << 20)
    assert notes(load(None, {})) == ()
    assert notes(loaded("server: {max_buffered_bytes: 1024}")) == ()
    (note,) = notes(loaded("server: {max_buffered_bytes: 536870912}"))
    assert note.startswith(
        "server.max_buffered_bytes: 536870912, but the container's limit of 512 MB is enough for 107374182,"
    )


def test_a_closed_config_without_keys_is_noted() -> None:
    assert notes(loaded("closed: true")) == (
        "closed: no tenant has keys here, so only issued keys are accepted; `concertina keys add` issues them",
    )


def test_an_upstream_for_litellm_is_refused_with_the_way_out_if_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.config.settings.find_spec", lambda _: None)
    text = "upstreams: {main: {base_url: 'https://h.example/v1', provider: %s}}"
    with pytest.raises(
        ConfigError, match=r"upstreams\.main\.provider: the extra litellm is not installed; .*'\.\[litellm\]'"
    ):
        load_text("config.yaml", text % "litellm", {})
    assert load_text("config.yaml", text % "openai", {}).upstreams["main"].provider == "openai"


def test_traces_without_their_packages_are_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.config.settings.find_spec", lambda _: None)
    text = "telemetry: {traces: {endpoint: http://127.0.0.1:4318}}"
    with pytest.raises(
        ConfigError, match=r"telemetry\.traces\.endpoint: the extra otel is not installed; .*'\.\[otel\]'"
    ):
        load_text("config.yaml", text, {})
    assert load_text("config.yaml", "telemetry: {traces: {endpoint: ''}}", {}).telemetry.traces.endpoint == ""
