"""The config as values: every section's settings with type, default, bounds and one sentence, frozen once loaded."""

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
    """Where the proxy listens."""

    host: Words = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for every interface."""

    port: int = Field(default=8795, ge=0, le=65535)
    """Port to listen on; 0: any free one."""

    workers: int = Field(default=1, ge=1, le=256)
    """Processes that serve, at most one for each processor; more than one need a store that they share."""

    max_body_bytes: int = Field(default=128 * 1024 * 1024, ge=1024)
    """Bytes that a request body may have, as sent and after decompression."""

    max_buffered_bytes: int | None = Field(default=None, ge=1024)
    """Bytes that the bodies of all requests in flight may take together, unpacked; further ones get 503. Unset: 512 MB.
    Less if the container's memory holds less. One body of max_body_bytes always has room. Workers share it evenly."""

    admin_token: ApiKey = SecretStr("")
    """Token for /metrics and /admin, of 16 characters or more; empty: one is made at the first start, and this
    machine may read figures."""

    admin: bool = True
    """Whether there are pages and an API under /admin; /metrics stays."""

    max_requests: int | None = Field(default=None, ge=1, le=1_000_000)
    """Requests that may be under way at once, further ones get 503; unset: 1000, or what open files allow. Workers
    share it out evenly; a tenant's own limit holds in each of them."""

    header_timeout: Seconds = Field(default=10.0, gt=0, le=3600)
    """Time for the head of a request to come."""

    body_timeout: Seconds = Field(default=60.0, gt=0, le=3600)
    """Time without a byte of a request's body, or of an answer taken, after which it is given up."""

    idle_timeout: Seconds = Field(default=75.0, gt=0, le=3600)
    """Time that a client's connection is kept between requests; longer than a load balancer keeps its own to us, so
    that it never sends into one that we close."""

    request_deadline: Seconds = Field(default=3600.0, gt=0, le=604800)
    """Time for a request with its whole answer, after which it is ended."""

    drain_delay: Seconds = Field(default=0.0, ge=0, le=3600)
    """Time that connections are still accepted once the process is told to end, while /readyz says 503 already."""

    drain: Seconds = Field(default=30.0, ge=0, le=3600)
    """Time that open requests have to finish after that."""


def _encryption_key(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if text and decode_key(text) is None:
        raise ValueError("must be 32 bytes in base64 or hex; make one with `openssl rand -base64 32`")
    return value


class StoreConfig(Settings):
    """Where checkpoints are kept, for how long and how they are protected."""

    url: StoreUrl = Field(default="sqlite:///var/concertina.db", repr=False)
    """sqlite:///PATH, memory://, redis://HOST:PORT/DB, or Sentinels or a cluster; see docs/redis.md."""

    ttl: Seconds = Field(default=7 * 86400.0, ge=60, le=366 * 86400.0)
    """How long a session is kept after its last use."""

    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{0,64}$")] = ""
    """What every key in Redis begins with, where others keep theirs there too. Once changed, all sessions are new."""

    secret: SecretStr = SecretStr("")
    """Secret that keeps sessions of different callers apart; replicas that share a store must share it."""

    encryption_key: Annotated[SecretStr, AfterValidator(_encryption_key)] = SecretStr("")
    """32 bytes in base64 or hex that encrypt what is stored; empty: not encrypted."""

    retired_keys: tuple[SecretStr, ...] = ()
    """Encryption keys that are read and not written with: the last one, and the next one before it is used."""

    timeout: Seconds = Field(default=0.25, gt=0, le=30)
    """Time that one store operation may take before the request goes on without it."""

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
        """The 32 bytes of `encryption_key`, or None when nothing is encrypted."""
        return decode_key(self.encryption_key.get_secret_value())

    def sealer(self, secret: bytes = b"") -> Sealer:
        """Return what seals and opens stored values, and those of clients under the secret in force."""
        retired = [key for text in self.retired_keys if (key := decode_key(text.get_secret_value())) is not None]
        return Sealer(self.encryption_key_bytes, retired, secret=secret)

    def seal(self, store: Store) -> SealedStore:
        """This store as records are kept in it."""
        return SealedStore(store, self.sealer(), self.ttl)


if TYPE_CHECKING:
    Dialect = str
    KeyHeader = str
else:  # what there is to choose from is the table's to say
    Dialect = Literal[table.names()]
    KeyHeader = Literal[table.key_settings()]


@lru_cache(1024)
def _spoken_at(base_url: str) -> tuple[Dialect, ...]:
    """What is known of an address."""
    return table.dialects_of_host(urlsplit(base_url).hostname or "")


class Upstream(Settings):
    """A server that answers requests."""

    base_url: BaseUrl
    """Its address up to and including /v1, or a deployment; a query is added to every request. With provider: litellm
    what litellm calls api_base."""

    api_key: ApiKey = SecretStr("")
    """Key sent to it; empty: the client's own."""

    auth: KeyHeader = "bearer"
    """The header of a configured key: `bearer` is Authorization, Anthropic takes x-api-key and Azure api-key."""

    headers: StaticHeaders = ()
    """Headers that every request to it has, ours included; they take the place of a client's."""

    proxy: ProxyUrl = SecretStr("")
    """HTTP proxy that it is reached by, http://USER:PASSWORD@HOST:PORT, or none; empty: what HTTPS_PROXY, HTTP_PROXY
    and NO_PROXY say."""

    speaks: tuple[Dialect, ...] | None = None
    """What it answers: chat, responses, messages; unset: by its address what OpenAI and Anthropic do, else all."""

    provider: Literal["openai", "litellm"] = "openai"
    """`openai` relays bytes as they are, `litellm` translates for other providers; it needs the extra `litellm`."""

    litellm_provider: Words | None = None
    """litellm's name of the provider, such as anthropic or gemini; unset: the model's name begins with it."""

    native_compaction: Literal["auto", "yes", "no"] = "auto"
    """Whether it answers the compaction protocols of OpenAI and Anthropic itself; `auto`: if its host is theirs. A
    gateway to them that passes the protocols on needs `yes`."""

    connect_timeout: Seconds = Field(default=10.0, gt=0, le=300)
    """Time to connect, TLS included."""

    idle_timeout: Seconds = Field(default=300.0, gt=0, le=86400)
    """Time without a single byte after which it counts as gone."""

    total_timeout: Seconds | None = Field(default=None, gt=0)
    """Time for a whole answer; unset: no limit."""

    max_connections: int = Field(default=1000, ge=1, le=100_000)
    """Connections open to it at once."""

    @field_validator("provider")
    @classmethod
    def _needs_package(cls, provider: str) -> str:
        if provider == "litellm" and find_spec("litellm") is None:
            raise ValueError(missing_extra("litellm"))
        return provider

    def egress(self, env: Mapping[str, str]) -> Egress:
        """How it is reached in this environment; raises ValueError for a proxy that is none."""
        return egress_to(self.base_url, self.proxy.get_secret_value(), env)

    @property
    def static_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the configured headers as they are sent."""
        return [(name.encode(), value.get_secret_value().encode()) for name, value in self.headers]

    @property
    def spoken(self) -> tuple[Dialect, ...]:
        """The dialects that it answers in."""
        if self.speaks is not None:
            return self.speaks
        return ("chat",) if self.provider == "litellm" else _spoken_at(self.base_url)


class SecondsPerMillion(Settings):
    """How long a server of one's own takes, in seconds for a million tokens."""

    prefill: float = Field(gt=0)
    """For a prompt that its cache does not hold."""

    decode: float = Field(gt=0)
    """For an answer."""

    cached: float = Field(default=0.0, ge=0)
    """For a prompt that its cache holds; 0: nothing, and no compaction pays by being early."""


class ModelRule(Settings):
    """What is known about the models whose name matches."""

    match: Glob
    """Model name, with * and ? as in file names; the first rule that matches holds."""

    serve_as: Words | None = None
    """Another model that these names stand for: conversations go out with its name, and its rule holds."""

    upstream: Words | None = None
    """Upstream that serves these models; unset: the default one."""

    context_window: TokenCount | None = Field(default=None, ge=256, le=100_000_000)
    """Tokens of their context window; unset: learned, asked for or looked up."""

    max_request_bytes: int | None = Field(default=None, ge=100_000)
    """Bytes of a request that their server takes; unset: as learned, and as Anthropic says of its own."""

    max_pictures: int | None = Field(default=None, ge=1)
    """Pictures and papers of a request that they take; unset: as above."""

    seconds_per_million: SecondsPerMillion | None = None
    """What their tokens take, in place of a price where a compaction has to pay; unset: the table's price."""

    encoding: EncodingName | None = None
    """Tokenizer that counts: o200k_base, cl100k_base, claude (2), or a tokenizer.json's path; unset: by their name."""

    @model_validator(mode="after")
    def _is_an_alias_and_nothing_else(self) -> Self:
        if self.serve_as is not None and self.model_fields_set - {"match", "serve_as"}:
            raise ValueError("a rule with serve_as has no other settings; they belong to the rule of that model")
        return self


class Tenant(Settings):
    """A customer or team: its keys, its policies and its upstream."""

    keys: tuple[KeyHash, ...] = Field(default=(), repr=False)
    """SHA-256 hashes of the keys its callers send; `concertina keys new TENANT` makes one."""

    policy: Words = DEFAULT
    """Policy that holds for its requests."""

    policies: tuple[Words, ...] = ()
    """Further policies its callers may choose by the header x-compaction-policy."""

    upstream: Words | None = None
    """Upstream of all its requests; unset: by the model rules."""

    api_key: ApiKey = SecretStr("")
    """Key sent upstream instead of the caller's; empty: the upstream's key, or the caller's own."""

    paths: tuple[PathRule, ...] | None = None
    """Paths its callers may ask for; unset: the models' with a configured key, every path with the caller's own."""

    max_requests: int | None = Field(default=None, ge=1)
    """Requests of its callers that may be under way at once, further ones get 429; unset: no limit of its own."""

    sessions_of: Literal["key", "tenant"] = "key"
    """Whose sessions are found again: those of the same key, or, for one user whose login changes, all the tenant's."""

    summary_tokens_per_day: TokenCount | None = Field(default=None, ge=0)
    """Tokens its summaries may cost a day, after which only the deterministic record is used; unset: no limit."""

    inspect: bool | None = None
    """Whether records and what else its conversations say may be read under /admin; unset: of `default` alone, while
    the proxy listens on loopback alone."""

    viewer_keys: tuple[KeyHash, ...] = Field(default=(), repr=False)
    """SHA-256 hashes of keys that open this tenant's pages and no others; `concertina keys new TENANT --viewer`."""

    epoch: int = Field(default=0, ge=0, lt=2**63)
    """Raise it to erase the tenant: nothing that was stored before is found again, on any replica; never lower it."""


class Logging(Settings):
    """What is logged, one line a request."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""

    format: Literal["json", "text"] | None = None
    """JSON for programs, text for people; null: text where standard error is a terminal."""


class Traces(Settings):
    """Spans of requests and compactions, for OpenTelemetry; they need the extra `otel`."""

    endpoint: AnyBaseUrl = ""
    """Collector that takes OTLP over HTTP, to whose address /v1/traces is added; empty: nothing is traced."""

    headers: Annotated[Mapping[str, ApiKey], _frozen, _plain] = Field(default={}, validate_default=True)
    """Headers that it is sent, as for a key."""

    sample: float = Field(default=1.0, ge=0, le=1)
    """Share of the requests that are traced, of those whose caller's traceparent has not decided."""

    @field_validator("endpoint")
    @classmethod
    def _needs_packages(cls, endpoint: str) -> str:
        if endpoint and find_spec("opentelemetry") is None:
            raise ValueError(missing_extra("otel"))
        return endpoint


class Telemetry(Settings):
    """What is told of requests and outlives the process."""

    figures: Seconds = Field(default=35 * 86400.0, ge=86400, le=366 * 86400.0)
    """How long the sums of an hour, and requests, are kept in the store."""

    traces: Traces = Field(default_factory=Traces)
    """Which requests spans are made of, and where those go."""


def _importable(name: str) -> str:
    import_function(name)
    return name


class Config(Settings):
    """A whole config: checked, complete and immutable, so that a reload can swap it at once."""

    server: Server = Server()
    """Where the proxy listens."""

    store: StoreConfig = StoreConfig()
    """Where checkpoints are kept, for how long and how they are protected."""

    upstreams: Annotated[Mapping[str, Upstream], Field(min_length=1), _frozen, _plain]
    """Servers that answer requests, by name; `main`, else the first, is the default."""

    models: tuple[ModelRule, ...] = ()
    """What is known about models; the first rule that matches a model holds."""

    policies: Annotated[Mapping[str, PolicySettings], _frozen, _plain]
    """What is done to a conversation, by name; each preset is a policy too, unless its name is used here."""

    tenants: Annotated[Mapping[str, Tenant], _frozen, _plain]
    """Who calls, by name; `default` stands for callers without a known key."""

    closed: bool = False
    """Whether callers without a known key are refused."""

    logging: Logging = Logging()
    """What is logged."""

    telemetry: Telemetry = Field(default_factory=Telemetry)
    """What is told of requests and outlives the process."""

    hooks: tuple[Annotated[str, AfterValidator(_importable)], ...] = ()
    """Functions that are given every event, each as `module:function` (docs/observability.md, "Hooks")."""

    def shows_content(self, tenant: str) -> bool:
        """Whether what the conversations of a tenant say may be read under /admin."""
        owner = self.tenants.get(tenant)
        if owner is None or owner.inspect is not None:
            return owner is not None and bool(owner.inspect)
        return tenant == DEFAULT and self.server.host in LOOPBACK

    def rule_for(self, model: str) -> ModelRule | None:
        """The first model rule that matches."""
        return next((rule for rule in self.models if fnmatchcase(model, rule.match)), None)

    def upstream_for(self, tenant: str, model: str) -> tuple[str, Upstream]:
        """Name and settings of the upstream: the tenant's, else the model rule's, else `main`, else the first."""
        owner = self.tenants.get(tenant)
        rule = self.rule_for(model)
        default = MAIN if MAIN in self.upstreams else next(iter(self.upstreams))
        name = (owner and owner.upstream) or (rule and rule.upstream) or default
        return name, self.upstreams[name]

    def speaker_for(self, tenant: str, model: str, dialect: str) -> tuple[str, Upstream] | None:
        """The same for a dialect: where that one does not speak it, the default one, else the first that does."""
        default = MAIN if MAIN in self.upstreams else next(iter(self.upstreams))
        names = (self.upstream_for(tenant, model)[0], default, *self.upstreams)
        found = ((name, self.upstreams[name]) for name in names)
        return next(((name, upstream) for name, upstream in found if dialect in upstream.spoken), None)
