"""Parse the Redis URLs of `store.url`: servers, credentials and TLS. Nothing is opened."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

Kind = Literal["server", "sentinel", "cluster"]
Address = tuple[str, int]

CLIENT_NAME: Final = "concertina"
FORMS: Final = (
    "redis://HOST:PORT/DB, redis+sentinel://HOST:PORT,HOST:PORT/MASTER, redis+cluster://HOST:PORT,HOST:PORT"
    " or the same with rediss for TLS"
)
_SCHEMES: Final[Mapping[str, tuple[Kind, bool]]] = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
SCHEMES: Final = tuple(_SCHEMES)
_PORTS: Final[Mapping[Kind, int]] = {"server": 6379, "sentinel": 26379, "cluster": 6379}

_IDENTITY = frozenset({"db", "username", "password", "client_name"})
_SENTINEL = frozenset({"sentinel_username", "sentinel_password"})
_TLS = frozenset(
    {"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password"}
    | {"ssl_cert_reqs", "ssl_check_hostname"}
)
# Only `store.timeout` bounds time and connections. A URL that silently decided timeouts was BerriAI/litellm#35273.
_OVERRULED = frozenset(
    {"socket_timeout", "socket_connect_timeout", "retry_on_timeout", "max_connections", "timeout", "protocol"}
    | {"health_check_interval", "socket_keepalive", "decode_responses"}
)
_BOOLEANS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("true", "yes", "1", "on"), True),
    **dict.fromkeys(("false", "no", "0", "off"), False),
}


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A parsed URL. `addresses` are the server, the Sentinels, or some nodes of the cluster."""

    kind: Kind
    addresses: tuple[Address, ...]
    tls: Mapping[str, str | bool] | None
    """redis-py's options for TLS; None without it."""

    master: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    client_name: str | None = CLIENT_NAME
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)


_SPELLED = "in a user name or password write / as %2F, # as %23, ? as %3F, @ as %40, : as %3A"


def parse(url: str) -> RedisUrl:
    """Parse a URL. Raises ValueError, whose text contains neither passwords nor hosts."""
    scheme, _, remainder = url.partition("://")
    if scheme.lower() not in _SCHEMES:
        raise ValueError(f"must be {FORMS}")
    kind, tls = _SCHEMES[scheme.lower()]
    parts = _split(remainder)
    if parts.fragment or "#" in remainder:
        raise ValueError(f"must not have a fragment; {_SPELLED}")
    options = _options(parts.query, kind, tls=tls)
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    master, db = _path(parts.path, kind)
    return RedisUrl(
        kind,
        tuple(_address(host, _PORTS[kind]) for host in hosts.split(",")),
        _tls_options(options) if tls else None,
        master,
        _database(options.get("db", db), kind),
        options.get("username") or unquote(username) or None,
        options.get("password") or unquote(password) or None,
        options.get("client_name", CLIENT_NAME) or None,
        options.get("sentinel_username") or None,
        options.get("sentinel_password") or None,
    )


def _split(remainder: str) -> SplitResult:
    try:
        parts = urlsplit("//" + remainder)
    except ValueError:  # its text may quote the password
        raise ValueError(f"must be {FORMS}; {_SPELLED}") from None
    if "@" not in parts.netloc and "@" in parts.path + parts.query:
        raise ValueError(f"has an @ after the host; {_SPELLED}")
    return parts


def _address(text: str, default_port: int) -> Address:
    try:
        parts = urlsplit("//" + text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"must be {FORMS}") from None
    if not host or "@" in text:
        raise ValueError(f"must be {FORMS}")
    return unquote(host), default_port if port is None else port


def _path(path: str, kind: Kind) -> tuple[str, str]:
    """Return the name of the master, for Sentinel, and the database."""
    if kind != "sentinel":
        return "", path.strip("/")
    name, _, db = path.strip("/").partition("/")
    if not name:
        raise ValueError("redis+sentinel needs the master's name, redis+sentinel://HOST:PORT,HOST:PORT/MASTER")
    return unquote(name), db


def _database(text: str, kind: Kind) -> int:
    if text and not text.isdecimal():
        raise ValueError("the database must be a number")
    db = int(text or 0)
    if db and kind == "cluster":
        raise ValueError("a cluster has database 0 only")
    return db


def _options(query: str, kind: Kind, *, tls: bool) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options.keys() - _IDENTITY - _OVERRULED:
        if name in _TLS:
            if not tls:
                raise ValueError(f"{name} needs a rediss URL")
        elif name not in _SENTINEL or kind != "sentinel":
            raise ValueError(f"unknown option '{name}'; leave it out")
    return options


def _tls_options(options: Mapping[str, str]) -> Mapping[str, str | bool]:
    tls_options: dict[str, str | bool] = {name: value for name, value in options.items() if name in _TLS}
    if (checked := options.get("ssl_check_hostname")) is not None:
        if checked.lower() not in _BOOLEANS:
            raise ValueError("ssl_check_hostname must be true or false")
        tls_options["ssl_check_hostname"] = _BOOLEANS[checked.lower()]
    if options.get("ssl_cert_reqs", "required") not in ("required", "none"):
        raise ValueError("ssl_cert_reqs must be required or none")
    return MappingProxyType(tls_options)
