"""Load the config: read the file, resolve policies, check references and report all problems at once."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from proxy.config.document import Document, parse, read_config
from proxy.config.errors import ConfigError, Location, Problem, dotted_path, plain, suggest
from proxy.config.presets import EXTENDS, preset_names, resolve
from proxy.config.settings import DEFAULT, LOOPBACK, Config
from proxy.dialects.table import DIALECTS
from proxy.models.encodings import is_file, read_tokenizer
from proxy.runtime.container import buffered_that_fit, memory_limit
from proxy.runtime.descriptors import requests_that_fit

__all__ = ["Config", "ConfigError", "json_schema", "load", "load_text", "notes", "preset_names"]

# The values that apply without a file. A file's own keys override those of `server` and `store`.
EMBEDDED = """\
server: {admin_token: "${CONCERTINA_ADMIN_TOKEN:-}", drain_delay: "${CONCERTINA_DRAIN_DELAY:-0s}"}
store:
  url: "${CONCERTINA_STORE_URL:-sqlite:///var/concertina.db}"
  secret: "${CONCERTINA_SECRET:-}"
  encryption_key: "${CONCERTINA_ENCRYPTION_KEY:-}"
upstreams:
  main: {base_url: "${OPENAI_BASE_URL:-https://api.openai.com/v1}"}
  anthropic: {base_url: "https://api.anthropic.com/v1", auth: x-api-key}
"""

# Names are used in headers, metrics and logs. One that looks like an API key is a typing error.
_NAME = re.compile(r"(?!sk-)[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_NAME_RULE = "a name has 1 to 64 letters, digits, dots, dashes or underscores, and is not an API key"

Pattern = tuple[str | None, ...]
"""The locations of values of one kind in a file. None matches any name or position."""

# Values that must be the name of something else, by the kind of that thing.
_REFERENCES: Mapping[str, tuple[Pattern, ...]] = {
    "upstream": (
        ("models", None, "upstream"),
        ("policies", None, "summarizer", "upstream"),
        ("tenants", None, "upstream"),
    ),
    "policy": (("tenants", None, "policy"), ("tenants", None, "policies", None)),
}
_KEYS: tuple[Pattern, ...] = (("tenants", None, "keys", None), ("tenants", None, "viewer_keys", None))

# The minimum length of an admin token: a shorter one can be guessed, or occur in a request by chance.
_LEAST_CHARACTERS = 16
_MAKE_ONE = "make one of its own with `openssl rand -hex 32`"

_PROVIDER_IDLE = "has no effect without provider: litellm; add that, or remove this"

_NO_QUERY = "must not have a query with provider: litellm, which builds its own; remove it"


class _NativeApi(NamedTuple):
    """A server with an API of its own and one that the proxy speaks.

    spoken: the form of the address of the spoken API.
    """

    name: str
    host: re.Pattern[str]
    spoken: re.Pattern[str]
    instead: str


_NATIVE = (
    _NativeApi(
        "is Gemini's own API",
        re.compile(r"(?:^|\.)generativelanguage\.googleapis\.com$"),
        re.compile(r"/openai(?:/|$)"),
        "name https://generativelanguage.googleapis.com/v1beta/openai, or use provider: litellm",
    ),
    _NativeApi(
        "is Vertex AI's own API",
        re.compile(r"(?:^|[.-])aiplatform\.googleapis\.com$"),
        re.compile(r"/endpoints/"),
        "let it end in /endpoints/openapi, or use provider: litellm",
    ),
    _NativeApi(
        "is Bedrock's own API",
        re.compile(r"^bedrock-runtime[.-].*\.amazonaws\.com(?:\.cn)?$"),
        re.compile(r"/openai(?:/|$)"),
        "let it end in /openai/v1, or use provider: litellm",
    ),
    _NativeApi(
        "is Cohere's own API",
        re.compile(r"^api\.cohere\.(?:ai|com)$"),
        re.compile(r"/compatibility/"),
        "name https://api.cohere.ai/compatibility/v1, or use provider: litellm",
    ),
)

_SECTIONS = frozenset(Config.model_fields)

# Clients choose every path below it, and may use several APIs.
_AZURES = re.compile(r"\.(?:openai|services\.ai|cognitiveservices)\.azure\.(?:com|us|cn)$")
# Paths that clients and the proxy append to a base_url.
_PATHS = "|".join(re.escape("/".join(dialect.path)) for dialect in DIALECTS)
_EXTRA_SUFFIX = re.compile(rf"(?<=/v1)/v1$|/(?:{_PATHS}|completions|embeddings|models)$")
_REPLICA_SETTINGS = {"host", "port", "workers"}


def digest_of(config: Config) -> str:
    """Return a digest that replicas with the same config share.

    Secrets count only as set or unset. A replica's own settings, such as its port, do not count.
    """
    return hashlib.sha256(config.model_dump_json(exclude={"server": _REPLICA_SETTINGS}).encode()).hexdigest()[:16]


def load(path: Path | None, env: Mapping[str, str]) -> Config:
    """Load the config of a file, or the built-in defaults without a path. Raises ConfigError."""
    return load_text(*(("built-in defaults", EMBEDDED) if path is None else (str(path), read_config(path))), env)


def load_text(file: str, text: str, env: Mapping[str, str]) -> Config:
    """Load the config from the text of a file. `file` is its name in messages. Raises ConfigError."""
    embedded = parse(EMBEDDED, "built-in defaults", env)
    document = parse(text, file, env)
    return _Loading(document, env).config(_with_embedded(document.values, embedded.values))


def _with_embedded(given: Mapping[str, object], embedded: Mapping[str, object]) -> dict[str, object]:
    """Return the file's sections over the built-in defaults. An empty section counts as missing."""
    values = {name: section for name, section in given.items() if section not in (None, {}) or name not in _SECTIONS}
    for name in ("server", "store"):
        values[name] = _merge(embedded[name], values.get(name, {}))
    values.setdefault("upstreams", embedded["upstreams"])
    values.setdefault("policies", {})
    tenants = values.get("tenants", {})
    if isinstance(tenants, dict):
        values["tenants"] = {DEFAULT: {}} | {name: {} if entry is None else entry for name, entry in tenants.items()}
    return values


def _merge(base: object, top: object) -> object:
    return base | top if isinstance(base, dict) and isinstance(top, dict) else top


@dataclass(slots=True)
class _Loading:
    """The checks that turn one file into a Config. Every check reports, and the end decides."""

    document: Document
    env: Mapping[str, str]
    problems: dict[str, Problem] = field(default_factory=dict)

    def config(self, values: dict[str, object]) -> Config:
        for problem in self.document.problems:
            self.problems.setdefault(problem.path, problem)
        entries = values["policies"]
        groundless: frozenset[str] = frozenset()
        if isinstance(entries, dict):
            values["policies"], groundless = resolve(entries, self.report)
        self.check_names(values)
        self.check_references("upstream", values["upstreams"])
        self.check_references("policy", _merge(entries, values["policies"]))
        self.check_keys()
        config = self.validate(values, groundless)
        if config is not None:
            self.check_admin_token(config)
            self.check_providers(config)
            self.check_proxies(config)
            self.check_encodings(config)
        if config is None or self.problems:
            raise ConfigError(self.problems.values())
        return config

    def report(self, location: Location, message: str) -> None:
        """Add a problem. Only the first problem of a value is kept."""
        lines = self.document.lines
        line = next((lines[location[:end]] for end in range(len(location), 0, -1) if location[:end] in lines), None)
        path = dotted_path(location)
        self.problems.setdefault(path, Problem(self.document.file, line, path, message))

    def validate(self, values: Mapping[str, object], groundless: frozenset[str]) -> Config | None:
        """Validate types, bounds and known keys, and return the config; None if there are problems."""
        try:
            return Config.model_validate(values)
        except ValidationError as invalid:
            for error in invalid.errors(include_url=False, include_input=False):
                location = error["loc"]
                if not self.follows(location, groundless):
                    self.report(location, plain(error, Config))
            return None

    def follows(self, location: Location, groundless: frozenset[str]) -> bool:
        """Return True if a policy's error repeats one that is reported for the policy that it extends."""
        if len(location) < 2 or location[0] != "policies":
            return False
        inherited = location not in self.document.lines
        return inherited or (len(location) == 2 and location[1] in groundless)

    def check_names(self, values: Mapping[str, object]) -> None:
        """Report names that are not fit for headers, metrics and logs."""
        for section in ("upstreams", "policies", "tenants"):
            for name in _names(values.get(section)):
                if not _NAME.fullmatch(name):
                    self.report((section, name), _NAME_RULE)

    def check_references(self, kind: str, section: object) -> None:
        """Report references to upstreams or policies that neither the file nor a preset defines."""
        if not isinstance(section, dict):
            return
        for location, name in (match for pattern in _REFERENCES[kind] for match in self.texts(pattern)):
            if name not in section:
                self.report(location, f"no {kind} has this name; {suggest(name, section, 'known names')}")

    def check_keys(self) -> None:
        """Report keys with two owners or purposes, and keys of `default`, which serves clients without one."""
        owners: dict[str, Location] = {}
        for location, key in (match for pattern in _KEYS for match in self.texts(pattern)):
            owner = owners.setdefault(key.lower(), location)
            if location[1:3] == (DEFAULT, "keys"):
                self.report(location[:3], "must be empty: this tenant serves clients without a known key")
            elif owner != location:
                line = self.document.lines[owner]
                self.report(location, f"is the same key as {dotted_path(owner)} in line {line}; remove one of them")

    def check_admin_token(self, config: Config) -> None:
        """Report an admin token that is too short or also an API key: the proxy never sends it upstream."""
        token = config.server.admin_token.get_secret_value()
        if 0 < len(token) < _LEAST_CHARACTERS:
            text = f"has fewer than {_LEAST_CHARACTERS} characters, so it may be guessed; {_MAKE_ONE}"
            self.report(("server", "admin_token"), text)
        digest = f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
        upstream_keys = {upstream.api_key.get_secret_value() for upstream in config.upstreams.values()}
        tenant_keys = {tenant.api_key.get_secret_value() for tenant in config.tenants.values()}
        if token and (
            token in upstream_keys | tenant_keys or any(digest in tenant.keys for tenant in config.tenants.values())
        ):
            self.report(("server", "admin_token"), f"is an API key too; {_MAKE_ONE}")

    def check_providers(self, config: Config) -> None:
        """Report settings that only fit, or do not fit, upstreams with provider: litellm."""
        for name, upstream in config.upstreams.items():
            if upstream.provider != "litellm" and upstream.litellm_provider is not None:
                self.report(("upstreams", name, "litellm_provider"), _PROVIDER_IDLE)
            if upstream.provider == "litellm" and "?" in upstream.base_url:
                self.report(("upstreams", name, "base_url"), _NO_QUERY)

    def check_proxies(self, config: Config) -> None:
        """Report a proxy of the environment that cannot be used. It must not be bypassed silently."""
        for name, upstream in config.upstreams.items():
            try:
                upstream.egress(self.env)
            except ValueError as error:
                self.report(("upstreams", name, "proxy"), str(error))

    def check_encodings(self, config: Config) -> None:
        """Report a tokenizer.json that cannot be used. It is loaded at the first request that needs it."""
        for index, rule in enumerate(config.models):
            if rule.encoding is None or not is_file(rule.encoding):
                continue
            try:
                read_tokenizer(path := Path(rule.encoding))
            except ValueError as fault:
                message = f"{fault}: {path.absolute()}; download the model's tokenizer.json, or remove this"
                self.report(("models", index, "encoding"), message)

    def texts(self, pattern: Pattern) -> Iterator[tuple[Location, str]]:
        """Yield every text in the file whose location matches."""
        for location, value in _leaves(self.document.values, ()):
            if isinstance(value, str) and _matches(location, pattern):
                yield location, value


def _matches(location: Location, pattern: Pattern) -> bool:
    return len(location) == len(pattern) and all(map(_matches_part, pattern, location))


def _matches_part(wanted: str | None, part: str | int) -> bool:
    return wanted in (None, part)


def _names(section: object) -> set[str]:
    return set(section) if isinstance(section, dict) else set()


def _leaves(value: object, at: Location) -> Iterator[tuple[Location, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*at, index))
    else:
        yield at, value


def notes(config: Config) -> tuple[str, ...]:
    """Return hints for the operator about a valid config."""
    return (*_limit_notes(config), *_path_notes(config), *_exposure_notes(config))


def unshared_problem(config: Config) -> str | None:
    """Return the problem if workers could not share their records; None if they can."""
    if config.server.workers == 1 or not config.store.url.startswith("memory:"):
        return None
    return (
        f"server.workers: {config.server.workers}, but store.url is memory://, which processes do not share;"
        " use sqlite:///PATH or redis://, or one worker"
    )


def _limit_notes(config: Config) -> Iterator[str]:
    wanted, fit = config.server.max_requests, requests_that_fit()
    if wanted is not None and fit is not None and wanted > fit:
        yield (
            f"server.max_requests: {wanted}, but the open file limit of this process allows {fit};"
            " raise the hard limit (ulimit -Hn, systemd's LimitNOFILE), or leave this unset"
        )
    wanted_bytes, limit = config.server.max_buffered_bytes, memory_limit()
    fit_bytes = buffered_that_fit(limit, config.server.workers)
    if wanted_bytes is not None and limit is not None and fit_bytes is not None and fit_bytes < wanted_bytes:
        yield (
            f"server.max_buffered_bytes: {wanted_bytes}, but the container's limit of {limit >> 20} MB is"
            f" enough for {fit_bytes}, which is used; raise the limit, set less, or leave this unset"
        )


def _path_notes(config: Config) -> Iterator[str]:
    for name, upstream in config.upstreams.items():
        url, mark, query = upstream.base_url.partition("?")
        if upstream.provider != "openai":
            continue
        host = urlsplit(url).hostname or ""
        native = next((row for row in _NATIVE if row.host.search(host) and not row.spoken.search(url)), None)
        if native is not None:
            problem = f"{native.name}, whose requests are relayed and never compacted"
            yield f"upstreams.{name}.base_url: {problem}; {native.instead}"
            continue
        if not urlsplit(url).path and not _AZURES.search(urlsplit(url).hostname or ""):
            yield f"upstreams.{name}.base_url: has no path; most servers need /v1: {url}/v1"
        elif suffix := _EXTRA_SUFFIX.search(url):
            shortened = url[: suffix.start()] + mark + query
            yield f"upstreams.{name}.base_url: paths are appended to it; remove {suffix[0]}: {shortened}"
        elif "/openai/deployments/" in url and "api-version=" not in query:
            yield f"upstreams.{name}.base_url: Azure needs a version with a deployment: {url}?api-version=..."


def _exposure_notes(config: Config) -> Iterator[str]:
    keyed = any(tenant.keys for tenant in config.tenants.values())
    if config.store.url.startswith("redis") and not config.store.secret.get_secret_value():
        yield "store.secret: empty, so a client that can write to the store can guess the keys of sessions; set one"
    if config.closed and not keyed:
        yield "closed: no tenant has keys here, so only issued keys are accepted; `concertina keys add` issues them"
    if config.closed:
        return
    if keyed:
        yield "closed: false, so clients without a known key are served as tenant 'default'"
    if config.server.host in LOOPBACK:
        return
    if config.tenants[DEFAULT].api_key.get_secret_value():
        yield "tenants.default.api_key: every client that reaches the proxy can spend it; set closed: true"
    for name, upstream in config.upstreams.items():
        if upstream.api_key.get_secret_value():
            yield f"upstreams.{name}.api_key: every client that reaches the proxy can spend it; set closed: true"


class _FileSchema(GenerateJsonSchema):
    """A schema in which every number and boolean may also be a variable, `"${NAME}"`."""

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return _or_variable(super().int_schema(schema))

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return _or_variable(super().float_schema(schema))

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        return _or_variable(super().bool_schema(schema))


def _or_variable(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {"anyOf": [schema, {"type": "string", "pattern": r"^(\$\{|os\.environ/)"}]}


def json_schema() -> dict[str, object]:
    """Return the JSON Schema of a config file, for editors.

    Nothing is required, and policies may extend one another.
    """
    schema = Config.model_json_schema(schema_generator=_FileSchema)
    name = {"type": "string", "description": f"A preset ({', '.join(preset_names())}) or another policy of the file."}
    schema["$defs"]["PolicySettings"]["properties"][EXTENDS] = name
    schema["properties"]["policies"]["additionalProperties"] = {"anyOf": [name, {"$ref": "#/$defs/PolicySettings"}]}
    del schema["required"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema | {"title": "Concertina config"}
