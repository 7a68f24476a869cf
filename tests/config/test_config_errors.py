"""What is wrong with a config file is said in one line a problem; no file, however broken, does anything else."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.config.document import MAX_BYTES
from proxy.config.loading import Config, ConfigError, load, load_text

HASH = "sha256:" + "0123456789abcdef" * 4
OTHER_HASH = "sha256:" + "f" * 64
SPELLED = "in a user name or password write / as %2F, # as %23, ? as %3F, @ as %40, : as %3A"
SECRET = "s3cr3t-that-must-not-show"


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(text: str | bytes) -> Config:
    path = Path("config.yaml")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(path, {})


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(text)
    return [str(problem) for problem in caught.value.problems]


NOT_A_HASH = (
    "must be the key's hash, sha256:<64 hex digits>, never the key itself;"
    " run `concertina keys new TENANT`, or hash your own key with `printf %s KEY | sha256sum`"
)
REDIS = (
    "redis://HOST:PORT/DB, redis+sentinel://HOST:PORT,HOST:PORT/MASTER, redis+cluster://HOST:PORT,HOST:PORT"
    " or the same with rediss for TLS"
)
STORES = f"must be sqlite:///PATH, memory://, {REDIS}"
URL = "must be an http:// or https:// URL with a host"
DURATION = "must be a duration such as 250ms, 10s, 2m, 1h or 7d, or a number of seconds"
NAME = "a name has 1 to 64 letters, digits, dots, dashes or underscores, and is not an API key"
EMPTY = "is empty; write at least one section, or name no file to use the built-in defaults"
WITH_MINE = "chat, coding-agent, cost, default, mine, observe"
POLICIES = "chat, coding-agent, cost, default, observe"

# A config, and each line that is printed about it.
BROKEN: dict[str, tuple[str | bytes, list[str]]] = {
    "misspelt section": ("tenant: {}\nclosed: false", ["config.yaml:1: tenant: unknown key; did you mean 'tenants'?"]),
    "a list of pins": (
        "policies:\n  default:\n    pins: ['tool:spec', 'spec']",
        ["config.yaml:3: policies.default.pins: entry 2 must be tool:NAME, or file:GLOB"],
    ),
    "a group of pins": (
        "policies:\n  default:\n    pins:\n      match: ['file:']\n      budget_ratio: 0.5",
        [
            "config.yaml:4: policies.default.pins.match[0]: must be tool:NAME, or file:GLOB",
            "config.yaml:5: policies.default.pins.budget_ratio: must be at most 0.3",
        ],
    ),
    "misspelt setting": (
        "policies:\n  coding:\n    extends: coding-agent\n    compaction_treshold: 0.7\n",
        ["config.yaml:4: policies.coding.compaction_treshold: unknown key; did you mean 'compaction_threshold'?"],
    ),
    "misspelt extends": (
        "policies:\n  a: {extend: chat}",
        ["config.yaml:2: policies.a.extend: unknown key; did you mean 'extends'?"],
    ),
    "unknown key of telemetry": (
        "telemetry:\n  endpoint: x",
        ["config.yaml:2: telemetry.endpoint: unknown key; known keys: figures, traces"],
    ),
    "unknown keys of named and listed things": (
        "upstreams:\n  base_url: {base_url: 'http://h', apikey: x}\nmodels:\n- match: a\n  contextwindow: 9\n",
        [
            "config.yaml:2: upstreams.base_url.apikey: unknown key; did you mean 'api_key'?",
            "config.yaml:5: models[0].contextwindow: unknown key; did you mean 'context_window'?",
        ],
    ),
    "not a whole number": ("server:\n  port: http", ["config.yaml:2: server.port: must be a whole number"]),
    "a boolean for a number": (
        "policies:\n  a: {message_limit: true}",
        ["config.yaml:2: policies.a.message_limit: must be a number, not true or false"],
    ),
    "too high": ("server:\n  port: 70000", ["config.yaml:2: server.port: must be at most 65535"]),
    "too low": ("policies: {a: {token_limit: 5}}", ["config.yaml:1: policies.a.token_limit: must be at least 1000"]),
    "infinite": (
        "policies: {a: {apply_floor: 1e999}}",
        ["config.yaml:1: policies.a.apply_floor: must be a finite number"],
    ),
    "not a boolean": ("closed: maybe", ["config.yaml:1: closed: must be true or false"]),
    "not text": (
        "policies: {a: {summarizer: {model: 4}}}",
        ["config.yaml:1: policies.a.summarizer.model: must be text; put it in quotes"],
    ),
    "empty text": ("server: {host: ''}", ["config.yaml:1: server.host: must not be empty"]),
    "not one of the choices": (
        "policies:\n  a:\n    mode: of",
        ["config.yaml:3: policies.a.mode: must be 'on', 'off' or 'shadow'"],
    ),
    "not a list": (
        "policies: {a: {parts_to_keep: text}}",
        ["config.yaml:1: policies.a.parts_to_keep: must be a list, such as [a, b]"],
    ),
    "not a duration": ("store:\n  ttl: a week", [f"config.yaml:2: store.ttl: {DURATION}"]),
    "too short a duration": ("store:\n  ttl: 1s", ["config.yaml:2: store.ttl: must be at least 60"]),
    "a scalar for a section": ("server: 8795", ["config.yaml:1: server: must be a mapping of keys to values"]),
    "a list for a section": ("tenants: [acme]", ["config.yaml:1: tenants: must be a mapping of names to settings"]),
    "a required key left out": (
        "upstreams:\n  main: {api_key: x}",
        ["config.yaml:2: upstreams.main.base_url: is required"],
    ),
    "thresholds that contradict each other": (
        "policies:\n  a:\n    target_ratio: 0.75",
        ["config.yaml:2: policies.a: target_ratio (0.75) must be 0.1 or more below compaction_threshold (0.8)"],
    ),
    "a base that does not exist": (
        "policies:\n  a: {extends: chatt}\n  b: caht\n  c: 'zzz'",
        [
            "config.yaml:2: policies.a.extends: no preset or policy has this name; did you mean 'chat'?",
            "config.yaml:3: policies.b.extends: no preset or policy has this name; did you mean 'chat'?",
            f"config.yaml:4: policies.c.extends: no preset or policy has this name; known names: a, b, {POLICIES}",
        ],
    ),
    "policies that extend each other": (
        "policies:\n  a: {extends: b}\n  b: {extends: c}\n  c: {extends: b, apply_floor: 0.9}",
        [
            "config.yaml:3: policies.b.extends: extends itself in a circle: b -> c -> b",
            "config.yaml:4: policies.c.extends: extends itself in a circle: c -> b -> c",
        ],
    ),
    "names with line breaks": (
        'policies:\n  "a\\nb": {extends: "a\\nc"}\n  "a\\nc": {extends: "a\\nb"}',
        [
            "config.yaml:2: policies.a�b.extends: extends itself in a circle: a�b -> a�c -> a�b",
            f"config.yaml:2: policies.a�b: {NAME}",
            "config.yaml:3: policies.a�c.extends: extends itself in a circle: a�c -> a�b -> a�c",
            f"config.yaml:3: policies.a�c: {NAME}",
        ],
    ),
    "a base that is not a name": (
        "policies: {a: {extends: [chat]}, b: 7}",
        [
            "config.yaml:1: policies.a.extends: must be the name of a preset or of another policy",
            "config.yaml:1: policies.b: must be the name of a preset or a mapping of settings",
        ],
    ),
    "an inherited error is reported where it was made": (
        "policies:\n  a: {mode: of}\n  b: {extends: a}",
        ["config.yaml:2: policies.a.mode: must be 'on', 'off' or 'shadow'"],
    ),
    "references to nothing": (
        (
            "upstreams: {main: {base_url: http://h}}\n"
            "models: [{match: a, upstream: mian}]\n"
            "policies: {mine: {summarizer: {upstream: x}}}\n"
            "tenants:\n  acme:\n    policy: mien\n    policies: [mine, zzz]\n    upstream: man\n"
        ),
        [
            "config.yaml:2: models[0].upstream: no upstream has this name; did you mean 'main'?",
            "config.yaml:3: policies.mine.summarizer.upstream: no upstream has this name; known names: main",
            "config.yaml:6: tenants.acme.policy: no policy has this name; did you mean 'mine'?",
            f"config.yaml:7: tenants.acme.policies[1]: no policy has this name; known names: {WITH_MINE}",
            "config.yaml:8: tenants.acme.upstream: no upstream has this name; did you mean 'main'?",
        ],
    ),
    "one key of two tenants": (
        f"tenants:\n  a: {{keys: ['{HASH}']}}\n  b: {{keys: ['{OTHER_HASH}', '{HASH.upper()}']}}",
        ["config.yaml:3: tenants.b.keys[1]: is the same key as tenants.a.keys[0] in line 2; remove one of them"],
    ),
    "keys of the tenant without keys": (
        f"tenants:\n  default:\n    keys: ['{HASH}']",
        ["config.yaml:3: tenants.default.keys: must be empty: this tenant serves clients without a known key"],
    ),
    "keys in plain": (
        f"tenants:\n  a:\n    keys:\n    - sk-{SECRET}\n    - {SECRET}\n    - sha256:{SECRET}\n    - 12",
        [
            *(f"config.yaml:{line}: tenants.a.keys[{line - 4}]: {NOT_A_HASH}" for line in (4, 5, 6)),
            "config.yaml:7: tenants.a.keys[3]: must be text; put it in quotes",
        ],
    ),
    "a key for a name": (f"tenants:\n  sk-{SECRET}: {{}}", [f"config.yaml:2: tenants.sk-…: {NAME}"]),
    "a key with a line break": (
        f'upstreams:\n  main:\n    base_url: http://h\n    api_key: "{SECRET}\\r\\nx: y"',
        ["config.yaml:4: upstreams.main.api_key: must be printable ASCII without spaces or line breaks"],
    ),
    "addresses of other kinds": (
        (
            "upstreams:\n  a: {base_url: ftp://h}\n  b: {base_url: h:80}\n  c: {base_url: 'http://'}\n"
            "  d: {base_url: 'http://h:x'}\n  e: {base_url: 'http://[h'}\n  f: {base_url: 'http://h/a b'}\n"
        ),
        [
            *(f"config.yaml:{line}: upstreams.{name}.base_url: {URL}" for line, name in enumerate("abcde", start=2)),
            f"config.yaml:7: upstreams.f.base_url: {URL}, without spaces or control characters",
        ],
    ),
    "an address with credentials": (
        f"upstreams:\n  a: {{base_url: 'https://u:{SECRET}@h/v1'}}\n  b: {{base_url: 'https://h/v1?key={SECRET}'}}",
        [
            "config.yaml:2: upstreams.a.base_url: must not contain credentials; put the key into api_key",
            "config.yaml:3: upstreams.b.base_url: must contain no credentials in its query; put the key into api_key",
        ],
    ),
    "a store of another kind": (f"store:\n  url: postgres://u:{SECRET}@h/d", [f"config.yaml:2: store.url: {STORES}"]),
    "a cluster without a host": (
        f"store:\n  url: redis+cluster://:{SECRET}@h1:1,,h2:2",
        [f"config.yaml:2: store.url: must be {REDIS}"],
    ),
    "a cluster with a database": (
        f"store:\n  url: redis+cluster://:{SECRET}@h1:1,h2:2/1",
        ["config.yaml:2: store.url: a cluster has database 0 only"],
    ),
    "Sentinels without a master": (
        f"store:\n  url: redis+sentinel://:{SECRET}@h1:1,h2:2",
        [
            (
                "config.yaml:2: store.url: redis+sentinel needs the master's name,"
                " redis+sentinel://HOST:PORT,HOST:PORT/MASTER"
            )
        ],
    ),
    "a password that is not escaped": (
        f"store:\n  url: 'redis://:{SECRET}#@h:1/0'",
        [f"config.yaml:2: store.url: must not have a fragment; {SPELLED}"],
    ),
    "a password with a slash": (
        f"store:\n  url: 'redis://:a/{SECRET}@h:1/0'",
        [f"config.yaml:2: store.url: has an @ after the host; {SPELLED}"],
    ),
    "a password with a question mark": (
        f"store:\n  url: 'redis+sentinel://me:a?{SECRET}@h:1/m'",
        [f"config.yaml:2: store.url: has an @ after the host; {SPELLED}"],
    ),
    "a merge key": (
        "policies:\n  a: &a {extends: default}\n  b:\n    <<: *a",
        [
            "config.yaml:4: policies.b.<<: merge keys are not read; a policy takes another's settings by"
            " `extends: NAME`; write anything else out"
        ],
    ),
    "a redis port in words": (f"store:\n  url: redis://:{SECRET}@h:x", [f"config.yaml:2: store.url: must be {REDIS}"]),
    "an option that nobody knows": (
        f"store:\n  url: redis://:{SECRET}@h:1/0?sockettimeout=3",
        ["config.yaml:2: store.url: unknown option 'sockettimeout'; leave it out"],
    ),
    "certificates without TLS": (
        f"store:\n  url: redis+cluster://:{SECRET}@h:1?ssl_ca_certs=/ca.pem",
        ["config.yaml:2: store.url: ssl_ca_certs needs a rediss URL"],
    ),
    "a relative store path after two slashes": (
        "store:\n  url: sqlite://var/concertina.db",
        ["config.yaml:2: store.url: sqlite needs a path after three slashes, sqlite:///var/concertina.db"],
    ),
    "a short encryption key": (
        f"store:\n  encryption_key: {SECRET}",
        [
            (
                "config.yaml:2: store.encryption_key: must be 32 bytes in base64 or hex;"
                " make one with `openssl rand -base64 32`"
            )
        ],
    ),
    "a variable that is not set": (
        "upstreams:\n  main:\n    base_url: ${BASE}\n    api_key: os.environ/KEY\n",
        [
            (
                "config.yaml:3: upstreams.main.base_url: the environment variable BASE is not set;"
                " set it, or give a default: ${BASE:-…}"
            ),
            (
                "config.yaml:4: upstreams.main.api_key: the environment variable KEY is not set;"
                " set it, or give a default: ${KEY:-…}"
            ),
        ],
    ),
    "a reference that is none": (
        "store:\n  secret: 'a${1b}'",
        ["config.yaml:2: store.secret: has a ${ that is not ${NAME} or ${NAME:-default}; write $${ for a literal one"],
    ),
    "a key given twice": (
        "closed: true\nserver: {port: 1}\nclosed: false",
        ["config.yaml:3: closed: is given twice, first in line 1; remove one"],
    ),
    "a key that is a list": (
        "? [a, b]\n: 1\n",
        ["config.yaml:1: a key must be plain text; put `${…}` values in quotes"],
    ),
    "an unquoted variable in braces": (
        "store: {secret: ${SECRET}}",
        ["config.yaml:1: is not valid YAML: expected ',' or '}', but got '{'"],
    ),
    "an unclosed bracket": (
        "server: {port: 1\nclosed: true\n",
        ["config.yaml:2: is not valid YAML: expected ',' or '}', but got ':'"],
    ),
    "a tab for indentation": (
        "server:\n\tport: 1\n",
        ["config.yaml:2: is not valid YAML: found character '\\t' that cannot start any token"],
    ),
    "a secret that YAML takes for an alias": (
        f"store:\n  secret: *{SECRET}",
        ["config.yaml:2: is not valid YAML: found undefined alias"],
    ),
    "a secret that YAML takes for an alias, with quotes": (
        f"store:\n  secret: *<it's\"{SECRET}",
        ["config.yaml:2: is not valid YAML: found undefined alias"],
    ),
    "a tag": (
        "store:\n  secret: !!python/object:os.system x",
        ["config.yaml:2: store.secret: has a YAML tag that is not understood; put text that starts with ! in quotes"],
    ),
    "a tag that its text does not fit": (
        f"store:\n  secret: !!int {SECRET}",
        ["config.yaml:2: store.secret: has a YAML tag that is not understood; put text that starts with ! in quotes"],
    ),
    "only comments": ("# nothing\n", [f"config.yaml: {EMPTY}"]),
    "a list": ("- a\n", ["config.yaml:1: must be a mapping of sections, such as `server:`"]),
    "Latin-1": ("# ok\n# é".encode("latin-1"), ["config.yaml:2: is not UTF-8; save it as UTF-8"]),
    "a control character": (
        b"a: \x00",
        ["config.yaml: contains a control character that YAML does not allow; remove it"],
    ),
    "too many bytes": (
        b"#" * (MAX_BYTES + 1),
        ["config.yaml: is larger than 1,000,000 bytes; this is not a config file"],
    ),
    "too deep": (
        "a: " + "[" * 5000,
        ["config.yaml:1: is not valid YAML: more than 10,000 values or 32 levels"],
    ),
    "too many values": (
        "a: [" + "x," * 20_000 + "]",
        ["config.yaml:1: is not valid YAML: more than 10,000 values or 32 levels"],
    ),
    "an alias bomb": (
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{n}: &{n} [{','.join([f'*{p}'] * 9)}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True)),
        ["config.yaml:1: aliases expand to more than 10,000 values or 32 levels"],
    ),
    "an alias of itself": (
        "a: &a [*a]",
        ["config.yaml:1: aliases expand to more than 10,000 values or 32 levels"],
    ),
    "everything at once": (
        "sever: {}\nserver: {port: x}\nmodels: [{upstream: y}]\ntenants: {a: {policy: z}}\nclosed: 7",
        [
            "config.yaml:1: sever: unknown key; did you mean 'server'?",
            "config.yaml:2: server.port: must be a whole number",
            "config.yaml:3: models[0].upstream: no upstream has this name; known names: anthropic, main",
            "config.yaml:3: models[0].match: is required",
            f"config.yaml:4: tenants.a.policy: no policy has this name; known names: {POLICIES}",
            "config.yaml:5: closed: must be true or false",
        ],
    ),
}


@pytest.mark.parametrize(("text", "expected"), BROKEN.values(), ids=BROKEN)
def test_a_broken_config_is_refused_with_one_line_a_problem(text: str | bytes, expected: list[str]) -> None:
    found = problems(text)
    assert found == expected
    assert SECRET not in "".join(found)
    assert not [line for line in found if "\n" in line]


@pytest.mark.parametrize(
    "value",
    [
        *("$KEY", "$openai_key", "{env:KEY}", "{file:~/.key}", "$(KEY)", "%KEY%", "{{ KEY }}", "env:KEY", "$env:KEY"),
        *("process.env.KEY", "os.environ['KEY']", "os.getenv('KEY')", "ENV[KEY]", "secrets.KEY"),
        *("<KEY>", "<your-key>", "Bearer {env:KEY}", "Bearer $(KEY)", "token=%KEY%", "Token <KEY>", "a-{env:KEY}-b"),
    ],
)
def test_a_variable_that_is_written_as_in_another_program_is_refused(value: str) -> None:
    text = f'upstreams: {{main: {{base_url: http://h/v1, api_key: "{value}"}}}}'
    path = "config.yaml:1: upstreams.main.api_key"
    assert problems(text) == [f"{path}: would be used literally; write a variable as ${{NAME}}"]
    assert problems("store: {url: 'redis://:$PASS@h:6379/0'}")[0].startswith("config.yaml:1: store.url: would be used")


@pytest.mark.parametrize("value", ["sk-abc", "a$KEYb", "pa$$word", "ab$", "secrets", "a.b", "%20", "x-{a}", "$${KEY}"])
def test_a_key_that_only_resembles_a_variable_is_one(value: str) -> None:
    loaded(f'upstreams: {{main: {{base_url: http://h/v1, api_key: "{value}"}}}}')


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ("{Host: h}", "'Host' cannot be set here; use another header name"),
        ('{"a b": c}', "'a b' cannot be set here; use another header name"),
        ('{x-a: "a\\nb"}', "'x-a' must be printable ASCII in one line"),
        ("[x-a]", "must be a mapping of header names to values"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(headers: str, problem: str) -> None:
    text = f"upstreams: {{main: {{base_url: http://h/v1, headers: {headers}}}}}"
    assert problems(text) == [f"config.yaml:1: upstreams.main.headers: {problem}"]


def test_a_file_that_is_missing_or_a_directory_or_unreadable_is_a_problem() -> None:
    Path("folder").mkdir()
    found = []
    for path in ("gone.yaml", "folder", "/proc/self/mem"):
        with pytest.raises(ConfigError) as caught:
            load(Path(path), {})
        found.append(str(caught.value))
    assert found == [
        "gone.yaml: not found; create it, or name no file to use the built-in defaults",
        "folder: is a directory; name the file inside it",
        "/proc/self/mem: cannot be read (Input/output error); check its permissions",
    ]


VALID: dict[str, object] = {
    "server": {"host": "h", "port": 1, "max_body_bytes": 2048, "admin_token": "t" * 16},
    "store": {
        "url": "redis://h:1/0",
        "ttl": "1h",
        "secret": "s",
        "encryption_key": "00" * 32,
        "retired_keys": ["11" * 32],
        "timeout": 1,
    },
    "upstreams": {"main": {"base_url": "http://h", "provider": "openai", "total_timeout": "1h"}},
    "models": [{"match": "gpt*", "upstream": "main", "context_window": 8192, "encoding": "o200k_base"}],
    "policies": {
        "base": {"extends": "cost", "summarizer": {"model": "m", "upstream": "main", "timeout": "5s"}},
        "top": {"extends": "base", "apply_floor": 0.3, "ledger": {"directives": ["always"]}, "mode": "off"},
        "short": "chat",
    },
    "tenants": {"default": {"policy": "top"}, "acme": {"keys": [HASH], "policy": "base", "policies": ["top", "short"]}},
    "closed": True,
    "logging": {"level": "debug"},
    "telemetry": {},
}


def loads_or_says_why_not(text: str) -> bool:
    """Whether the config loads, or is refused with one line a problem; anything else is raised."""
    try:
        loaded(text)
    except ConfigError as error:
        return bool(error.problems) and str(error).count("\n") == len(error.problems) - 1
    return True


Container = dict[str, object] | list[object]


def places(value: object) -> list[tuple[Container, str | int]]:
    """Every place in nested containers, as the container and the key or index in it."""
    if isinstance(value, dict):
        return [(value, key) for key in value] + [place for inner in value.values() for place in places(inner)]
    if isinstance(value, list):
        return [(value, index) for index in range(len(value))] + [place for inner in value for place in places(inner)]
    return []


MUTANTS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["main", "base", "top", "acme", "default", "", "${X}", "os.environ/X", "http://", "1h", "sk-x"]),
    st.just([]),
    st.just({}),
    st.lists(st.one_of(st.integers(), st.text(max_size=5)), max_size=2),
    st.dictionaries(
        st.sampled_from(["extends", "keys", "match", "model", "x", "a b"]), st.text(max_size=5), max_size=2
    ),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_config_with_one_value_changed_or_deleted_loads_or_is_refused_and_never_crashes(data: st.DataObject) -> None:
    config = copy.deepcopy(VALID)
    container, key = data.draw(st.sampled_from(places(config)))
    if data.draw(st.booleans()):
        del container[key]  # type: ignore[arg-type]
    else:
        container[key] = data.draw(MUTANTS)  # type: ignore[index]
    assert loads_or_says_why_not(yaml.safe_dump(config))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_with_characters_lost_or_added_loads_or_is_refused_and_never_crashes(data: st.DataObject) -> None:
    text = yaml.safe_dump(VALID)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    added = data.draw(st.text(alphabet="[]{}:,&*!|>'\"%@`#-? \n\tab0$\x00\ufeff\u2028", max_size=4))
    assert loads_or_says_why_not(text[:start] + added + text[end:])


def test_the_valid_config_of_these_tests_is_valid() -> None:
    assert loaded(yaml.safe_dump(VALID)).policies["top"].summarizer.model == "m"


@pytest.mark.parametrize(
    "text",
    [
        "upstreams: {a: {base_url: 'http://h/v1', api_keys: [x, y]}}",
        "models: [{match: 'gpt-*', fallbacks: [x]}]",
        "router_settings: {}",
    ],
)
def test_who_wants_a_router_is_told_where_to_put_one(text: str) -> None:
    with pytest.raises(ConfigError, match="put a router, such as LiteLLM's proxy, after Concertina"):
        load_text("c.yaml", text, {})
