"""Choose the HTTP proxy of an upstream: from its config, or else from the environment at the start."""

import base64
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

SETTING: Final = "upstreams.*.proxy"
NONE: Final = frozenset({"none", "off"})
_NO_PROXY = "no_proxy"
# For schemes without a variable of their own.
_ALL = "all_proxy"
_VARIABLES = frozenset({"http_proxy", "https_proxy", _ALL, _NO_PROXY})
DEFAULT_PORTS = {"http": 80, "https": 443}
_SEPARATORS = re.compile(r"[\s,]+")
_FORM = "must be http://HOST:PORT or http://USER:PASSWORD@HOST:PORT"
_TLS_TO_PROXY = f"{_FORM}; TLS to the proxy itself is not supported, use its port for plain HTTP"
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy.

    authorization: the value of its header, empty without credentials. source: the setting or variable that names it.
    """

    host: str
    port: int
    authorization: bytes = field(repr=False)
    source: str

    @property
    def without_credentials(self) -> str:
        """Return the proxy's address without its credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{'***@' if self.authorization else ''}{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Egress:
    """The route to an upstream: through a proxy, or direct.

    source: the setting or variable that decided; empty if none did.
    """

    proxy: Proxy | None
    source: str = ""


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the environment that concern proxies."""
    return {name: value for name, value in env.items() if name.lower() in _VARIABLES}


def parse(text: str, source: str, *, has_scheme: bool = False) -> Proxy:
    """Parse a proxy's URL. http:// is optional unless `has_scheme`.

    Raises ValueError. Its text does not contain the URL.
    """
    if has_scheme and "://" not in text:
        raise ValueError(_FORM)
    if not text.isprintable() or " " in text:
        raise ValueError(f"{_FORM}, without spaces or control characters")
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port or DEFAULT_PORTS["http"]
    except ValueError:
        raise ValueError(_FORM) from None
    if parts.scheme == "https":
        raise ValueError(_TLS_TO_PROXY)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(_FORM)
    authorization = b""
    if parts.username is not None:
        credentials = unquote_to_bytes(parts.username) + b":" + unquote_to_bytes(parts.password or "")
        authorization = b"Basic " + base64.b64encode(credentials)
    return Proxy(parts.hostname, port, authorization, source)


def egress_to(base_url: str, setting: str, env: Mapping[str, str]) -> Egress:
    """Return the route to an upstream.

    setting: of its config, a URL or one of `NONE`, which wins; empty for the environment. A loopback host is reached
    directly unless the config names a proxy. Raises ValueError for an invalid proxy in the environment.
    """
    if setting:
        return Egress(None if setting.lower() in NONE else parse(setting, SETTING), SETTING)
    parts = urlsplit(base_url)
    host, port = (parts.hostname or "").rstrip("."), parts.port or DEFAULT_PORTS[parts.scheme]
    name, url = _variable(env, f"{parts.scheme}_proxy")
    if not name:
        name, url = _variable(env, _ALL)
    if not url:
        return Egress(None)
    if _is_loopback(host):
        return Egress(None, "loopback")
    variable, exceptions = _variable(env, _NO_PROXY)
    if is_excepted(host, port, exceptions):
        return Egress(None, variable)
    try:
        return Egress(parse(url, name), name)
    except ValueError as error:
        raise ValueError(f"{name} of the environment {error}; or set this to none, to use no proxy") from None


def is_excepted(host: str, port: int, exceptions: str) -> bool:
    """Return True if NO_PROXY matches a host.

    An entry is a name, which includes all names below it, an address or a network, with or without a port. `*` is every
    host.
    """
    address = _address(host)
    entries = filter(None, _SEPARATORS.split(exceptions.lower()))
    return any(entry == "*" or _names(entry, host.lower(), port, address) for entry in entries)


def _names(entry: str, host: str, port: int, address: _Address | None) -> bool:
    network = _network(entry)
    name, colon, stated = entry.rpartition(":")
    if network is None and colon and stated.isdecimal():
        if int(stated) != port:
            return False
        entry, network = name, _network(name)
    if network is not None:
        return address is not None and address in network
    suffix = entry.lstrip("*.").rstrip(".")
    return address is None and bool(suffix) and (host == suffix or host.endswith(f".{suffix}"))


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return None


def _address(host: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_loopback(host: str) -> bool:
    address = _address(host)
    if address is not None:
        return address.is_loopback or address.is_unspecified
    return host.lower() == "localhost" or host.lower().endswith(".localhost")


def _variable(env: Mapping[str, str], name: str) -> tuple[str, str]:
    """Return a variable's name as spelled in `env` and its value, in lower case first; both empty if unset."""
    for spelled in (name, name.upper()):
        if spelled in env:
            return spelled, env[spelled].strip()
    return "", ""
