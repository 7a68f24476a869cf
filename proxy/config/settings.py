"""The settings of every section with type, default, bounds and description. They are frozen after loading."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    SecretStr,
    field_validator,
    model_validator,
)

from policies.settings import PolicySettings, Seconds, Settings, TokenCount, Words
from proxy.config.extras import missing_extra
from proxy.config.imports import import_function
from proxy.config.proxies import Egress, egress_to
from proxy.config.values import (
    AnyBaseUrl,
    ApiKey,
    BaseUrl,
    EncodingName,
    Glob,
    KeyHash,
    PathRule,
    ProxyUrl,
    StaticHeaders,
    StoreUrl,
    decode_key,
)
from proxy.dialects import table
from proxy.sessions.stores.base import Store
from proxy.sessions.stores.sealing import SealedStore, Sealer

DEFAULT: Final = "default"
MAIN: Final = "main"
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")

_frozen = AfterValidator(MappingProxyType)
_plain = PlainSerializer(dict)


class Server(Settings):
    """The listening socket, its limits and timeouts."""

    host: Words = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for every interface."""

    port: int = Field(default=8795, ge=0, le=65535)
    """Port to listen on; 0: any free port."""

    workers: int = Field(default=1, ge=1, le=256)
    """Number of serving processes, at most one per processor. More than one need a store that they share."""

    max_body_bytes: int = Field(default=128 * 1024 * 1024, ge=1024)
    """Maximum size of a request body in bytes, as sent and after decompression."""

    max_buffered_bytes: int | None = Field(default=None, ge=1024)
    """Maximum bytes of the bodies of all requests in flight, decompressed; further requests get 503. Unset: 512 MB, or
    less if the container has less memory. One body of max_body_bytes always fits. Workers share it evenly."""

    admin_token: ApiKey = SecretStr("")
    """Token for /metrics and /admin, of 16 characters or more. Empty: a token is generated at the first start, and this
    machine may read figures without it."""

    admin: bool = True
    """Serve the pages and the API under /admin. /metrics is always served."""

    max_requests: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum requests in flight; further requests get 503. Unset: 1000, or what the open file limit allows. Workers
    share it evenly. A tenant's own limit applies in each worker."""

    header_timeout: Seconds = Field(default=10.0, gt=0, le=3600)
    """Timeout for the header block of a request."""

    body_timeout: Seconds = Field(default=60.0, gt=0, le=3600)
    """Timeout without a byte of a request body received, or of a response sent."""

    idle_timeout: Seconds = Field(default=75.0, gt=0, le=3600)
    """Time that an idle client connection stays open. Set it longer than the load balancer's own timeout, so that the
    load balancer never sends into a closed connection."""

    request_deadline: Seconds = Field(default=3600.0, gt=0, le=604800)
    """Deadline for a request and its whole response."""

    drain_delay: Seconds = Field(default=0.0, ge=0, le=3600)
    """Time to accept connections after the signal to stop. /readyz returns 503 during it."""

    drain: Seconds = Field(default=30.0, ge=0, le=3600)
    """Time for open requests to finish after drain_delay."""


def _encryption_key(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if text and decode_key(text) is None:
        raise ValueError("must be 32 bytes in base64 or hex; make one with `openssl rand -base64 32`")
    return value


class StoreConfig(Settings):
    """The store of checkpoints: address, lifetime and encryption."""

    url: StoreUrl = Field(default="sqlite:///var/concertina.db", repr=False)
    """sqlite:///PATH, memory://, redis://HOST:PORT/DB, Sentinels or a cluster; see docs/redis.md."""

    ttl: Seconds = Field(default=7 * 86400.0, ge=60, le=366 * 86400.0)
    """Time that a session is kept after its last use."""

    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{0,64}$")] = ""
    """Prefix of every key in Redis, for a server that others use too. After a change, all sessions are new."""

    secret: SecretStr = SecretStr("")
    """Secret that separates the sessions of different clients. Replicas with one store must have the same secret."""

    encryption_key: Annotated[SecretStr, AfterValidator(_encryption_key)] = SecretStr("")
    """32 bytes in base64 or hex that encrypt stored values; empty: not encrypted."""

    retired_keys: tuple[SecretStr, ...] = ()
    """Encryption keys for reading only: the previous one, or the next one before it is used."""

    timeout: Seconds = Field(default=0.25, gt=0, le=30)
    """Timeout of one store operation. After it, the request continues without the store."""

    @field_validator("retired_keys")
    @classmethod
    def _are_keys(cls, value: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        return tuple(_encryption_key(key) for key in value if key.get_secret_value())

    @model_validator(mode="after")
    def _retires_something(self) -> Self:
        if self.retired_keys and not self.encryption_key.get_secret_value():
            raise ValueError("retired_keys need an encryption_key to write with; set it, or leave both out")
        return self

    @property
    def encryption_key_bytes(self) -> bytes | None:
        """Return the 32 bytes of `encryption_key`; None without encryption."""
        return decode_key(self.encryption_key.get_secret_value())

    def sealer(self, secret: bytes = b"") -> Sealer:
        """Return the sealer of stored values. With `secret` it seals clients' values under the secret in force."""
        retired = [key for text in self.retired_keys if (key := decode_key(text.get_secret_value())) is not None]
        return Sealer(self.encryption_key_bytes, retired, secret=secret)

    def seal(self, store: Store) -> SealedStore:
        """Return this store with sealed records."""
        return SealedStore(store, self.sealer(), self.ttl)


if TYPE_CHECKING:
    Dialect = str
    KeyHeader = str
else:  # the table of dialects defines the choices
    Dialect = Literal[table.names()]
    KeyHeader = Literal[table.key_settings()]


@lru_cache(1024)
def _spoken_at(base_url: str) -> tuple[Dialect, ...]:
    """Return the dialects that are known for an address. Cached, since each request needs it."""
    return table.dialects_of_host(urlsplit(base_url).hostname or "")


class Upstream(Settings):
    """A server that answers requests."""

    base_url: BaseUrl
    """Its address up to and including /v1, or a deployment. A query is added to every request. With provider: litellm,
    litellm's api_base."""

    api_key: ApiKey = SecretStr("")
    """Key for the upstream; empty: the client's own key is sent."""

    auth: KeyHeader = "bearer"
    """The header of a configured key: `bearer` is Authorization. Anthropic uses x-api-key, and Azure api-key."""

    headers: StaticHeaders = ()
    """Headers of every request to the upstream, including the proxy's own. They replace a client's headers."""

    proxy: ProxyUrl = SecretStr("")
    """HTTP proxy to the upstream, http://USER:PASSWORD@HOST:PORT, or none. Empty: by HTTPS_PROXY, HTTP_PROXY and
    NO_PROXY."""

    speaks: tuple[Dialect, ...] | None = None
    """APIs that it serves: chat, responses, messages. Unset: by the address for OpenAI and Anthropic, else all."""

    provider: Literal["openai", "litellm"] = "openai"
    """`openai` relays bytes unchanged. `litellm` translates for other providers and needs the extra `litellm`."""

    litellm_provider: Words | None = None
    """litellm's name of the provider, such as anthropic or gemini; unset: the first part of the model's name."""

    native_compaction: Literal["auto", "yes", "no"] = "auto"
    """Support for the compaction protocols of OpenAI and Anthropic. `auto`: yes if the host is theirs. A gateway to
    them that passes the protocols on needs `yes`."""

    connect_timeout: Seconds = Field(default=10.0, gt=0, le=300)
    """Timeout to connect, including TLS."""

    idle_timeout: Seconds = Field(default=300.0, gt=0, le=86400)
    """Timeout without a byte from the upstream."""

    total_timeout: Seconds | None = Field(default=None, gt=0)
    """Timeout for a whole response; unset: none."""

    max_connections: int = Field(default=1000, ge=1, le=100_000)
    """Maximum open connections to it."""

    @field_validator("provider")
    @classmethod
    def _needs_package(cls, provider: str) -> str:
        if provider == "litellm" and find_spec("litellm") is None:
            raise ValueError(missing_extra("litellm"))
        return provider

    def egress(self, env: Mapping[str, str]) -> Egress:
        """Return the route to the upstream in this environment. Raises ValueError for an invalid proxy."""
        return egress_to(self.base_url, self.proxy.get_secret_value(), env)

    @property
    def static_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the configured headers as they are sent."""
        return [(name.encode(), value.get_secret_value().encode()) for name, value in self.headers]

    @property
    def spoken(self) -> tuple[Dialect, ...]:
        """Return the dialects that the upstream serves."""
        if self.speaks is not None:
            return self.speaks
        return ("chat",) if self.provider == "litellm" else _spoken_at(self.base_url)


class SecondsPerMillion(Settings):
    """Speed of a self-hosted server, in seconds per million tokens."""

    prefill: float = Field(gt=0)
    """For a prompt that its cache does not contain."""

    decode: float = Field(gt=0)
    """For a response."""

    cached: float = Field(default=0.0, ge=0)
    """For a prompt that its cache contains; 0: no cost, and no early compaction pays."""


class ModelRule(Settings):
    """Facts about the models whose name matches."""

    match: Glob
    """Model name, with * and ? as in file names. The first rule that matches applies."""

    serve_as: Words | None = None
    """Another model that these names stand for. Requests are sent with its name, and its rule applies."""

    upstream: Words | None = None
    """Upstream of these models; unset: the default one."""

    context_window: TokenCount | None = Field(default=None, ge=256, le=100_000_000)
    """Context window in tokens; unset: learned, requested from the upstream, or from the table."""

    max_request_bytes: int | None = Field(default=None, ge=100_000)
    """Maximum bytes of a request to their server; unset: learned, or Anthropic's documented limit."""

    max_pictures: int | None = Field(default=None, ge=1)
    """Maximum pictures and documents of a request; unset: as for max_request_bytes."""

    seconds_per_million: SecondsPerMillion | None = None
    """Time per token, used instead of a price to decide if a compaction pays; unset: the table's price."""

    encoding: EncodingName | None = None
    """Tokenizer for counts: o200k_base, cl100k_base, claude (2), or the path of a tokenizer.json; unset: by the model's
    name."""

    @model_validator(mode="after")
    def _is_an_alias_and_nothing_else(self) -> Self:
        if self.serve_as is not None and self.model_fields_set - {"match", "serve_as"}:
            raise ValueError("a rule with serve_as has no other settings; they belong to the rule of that model")
        return self


class Tenant(Settings):
    """A customer or team: its keys, policies and upstream."""

    keys: tuple[KeyHash, ...] = Field(default=(), repr=False)
    """SHA-256 hashes of its clients' keys; `concertina keys new TENANT` makes one."""

    policy: Words = DEFAULT
    """Policy of its requests."""

    policies: tuple[Words, ...] = ()
    """Further policies that its clients may choose with the header x-compaction-policy."""

    upstream: Words | None = None
    """Upstream of all its requests; unset: by the model rules."""

    api_key: ApiKey = SecretStr("")
    """Key for the upstream instead of the client's; empty: the upstream's key, or else the client's own."""

    paths: tuple[PathRule, ...] | None = None
    """Paths that its clients may request. Unset: the models' paths with a configured key, every path with the client's
    own."""

    max_requests: int | None = Field(default=None, ge=1)
    """Maximum requests in flight of its clients; further requests get 429. Unset: no limit of its own."""

    sessions_of: Literal["key", "tenant"] = "key"
    """Owner of sessions: the client's key, or all the tenant's keys, for one user whose login changes."""

    summary_tokens_per_day: TokenCount | None = Field(default=None, ge=0)
    """Tokens per day for its summaries. After that only the deterministic record is used. Unset: no limit."""

    inspect: bool | None = None
    """Allow reading of records and conversations under /admin. Unset: only for `default`, while the proxy listens on
    loopback only."""

    viewer_keys: tuple[KeyHash, ...] = Field(default=(), repr=False)
    """SHA-256 hashes of keys that open only this tenant's pages; `concertina keys new TENANT --viewer`."""

    epoch: int = Field(default=0, ge=0, lt=2**63)
    """Raise it to erase the tenant: values stored before are not found again on any replica. Never lower it."""


class Logging(Settings):
    """The log, one line per request."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level in the log."""

    format: Literal["json", "text"] | None = None
    """JSON for programs, text for people; null: text if standard error is a terminal."""


class Traces(Settings):
    """OpenTelemetry spans of requests and compactions; they need the extra `otel`."""

    endpoint: AnyBaseUrl = ""
    """Collector for OTLP over HTTP. /v1/traces is added to the address. Empty: no traces."""

    headers: Annotated[Mapping[str, ApiKey], _frozen, _plain] = Field(default={}, validate_default=True)
    """Headers for the collector, such as a key."""

    sample: float = Field(default=1.0, ge=0, le=1)
    """Share of the requests to trace, if the client's traceparent does not decide."""

    @field_validator("endpoint")
    @classmethod
    def _needs_packages(cls, endpoint: str) -> str:
        if endpoint and find_spec("opentelemetry") is None:
            raise ValueError(missing_extra("otel"))
        return endpoint


class Telemetry(Settings):
    """Figures, requests and traces that outlive the process."""

    figures: Seconds = Field(default=35 * 86400.0, ge=86400, le=366 * 86400.0)
    """Time that hourly figures and requests are kept in the store."""

    traces: Traces = Field(default_factory=Traces)
    """Sampling and collector of spans."""


def _importable(name: str) -> str:
    import_function(name)
    return name


class Config(Settings):
    """A complete, validated and immutable config. A reload swaps it at once."""

    server: Server = Server()
    """The listening socket, its limits and timeouts."""

    store: StoreConfig = StoreConfig()
    """The store of checkpoints: address, lifetime and encryption."""

    upstreams: Annotated[Mapping[str, Upstream], Field(min_length=1), _frozen, _plain]
    """Servers that answer requests, by name. The default is `main`, or else the first."""

    models: tuple[ModelRule, ...] = ()
    """Facts about models. The first rule that matches a model applies."""

    policies: Annotated[Mapping[str, PolicySettings], _frozen, _plain]
    """Compaction settings by name. Each preset is a policy too, unless its name is used here."""

    tenants: Annotated[Mapping[str, Tenant], _frozen, _plain]
    """Groups of clients, by name. `default` serves clients without a known key."""

    closed: bool = False
    """Refuse clients without a known key."""

    logging: Logging = Logging()
    """The log."""

    telemetry: Telemetry = Field(default_factory=Telemetry)
    """Figures, requests and traces that outlive the process."""

    hooks: tuple[Annotated[str, AfterValidator(_importable)], ...] = ()
    """Functions that receive every event, each as `module:function` (docs/observability.md, "Hooks")."""

    def shows_content(self, tenant: str) -> bool:
        """Return True if the content of a tenant's conversations may be read under /admin."""
        settings = self.tenants.get(tenant)
        if settings is None or settings.inspect is not None:
            return settings is not None and bool(settings.inspect)
        return tenant == DEFAULT and self.server.host in LOOPBACK

    def rule_for(self, model: str) -> ModelRule | None:
        """Return the first model rule that matches."""
        return next((rule for rule in self.models if fnmatchcase(model, rule.match)), None)

    def upstream_for(self, tenant: str, model: str) -> tuple[str, Upstream]:
        """Return the upstream's name and settings: the tenant's, else the rule's, else `main`, else the first."""
        settings = self.tenants.get(tenant)
        rule = self.rule_for(model)
        default = MAIN if MAIN in self.upstreams else next(iter(self.upstreams))
        name = (settings and settings.upstream) or (rule and rule.upstream) or default
        return name, self.upstreams[name]

    def speaker_for(self, tenant: str, model: str, dialect: str) -> tuple[str, Upstream] | None:
        """Return name and settings of the upstream for a dialect.

        If the model's upstream does not speak it, use the default one, or else the first that does.
        """
        default = MAIN if MAIN in self.upstreams else next(iter(self.upstreams))
        names = (self.upstream_for(tenant, model)[0], default, *self.upstreams)
        upstreams = ((name, self.upstreams[name]) for name in names)
        return next(((name, upstream) for name, upstream in upstreams if dialect in upstream.spoken), None)
