"""Access control of the proxy's own pages: roles, credentials and protection of browsers."""

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import ceil
from typing import Literal
from urllib.parse import urlsplit

from starlette.requests import Request

from proxy.admin.roles import Role
from proxy.callers.admin_token import AdminToken
from proxy.config.settings import Config
from proxy.errors import AuthenticationError, ContentHiddenError, NotAllowedError, ProxyError, TooManyFailuresError
from proxy.lru import remember
from proxy.server.headers import our_cookie

# Headers that curl, wget, Prometheus, browsers and HTTP libraries send by themselves. A front end that passes on a
# foreign request adds other headers, such as Forwarded, Via, X-Forwarded-For, X-Request-Id or CF-Ray.
_ORDINARY = frozenset(
    {
        *("host", "user-agent", "accept", "accept-encoding", "accept-language", "connection", "cache-control"),
        *("pragma", "cookie", "dnt", "if-modified-since", "if-none-match", "priority", "referer"),
        *("sec-ch-ua", "sec-ch-ua-mobile", "sec-ch-ua-platform"),
        *("sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "sec-fetch-user", "sec-gpc"),
        *("upgrade-insecure-requests", "x-prometheus-scrape-timeout-seconds"),
    }
)


def is_this_machine(request: Request) -> bool:
    """Return True if a program of this machine sent the request, and no front end passed it on.

    The Host must be a loopback name with the proxy's port: any other name may be resolved to this machine by a page in
    a browser.
    """
    scope = request.scope
    _, port = scope["server"]
    return (
        scope["http_version"] == "1.1"
        and _ORDINARY.issuperset(request.headers.keys())
        and request.client is not None
        and _is_loopback(request.client.host)
        and _is_own_host(request.headers.get("host", ""), port)
    )


def _is_own_host(host: str, port: int) -> bool:
    try:
        parts = urlsplit(f"//{host}")
        host_port = parts.port or 80
    except ValueError:
        return False
    name = parts.hostname or ""
    return host_port == port and (name == "localhost" or _is_loopback(name))


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


SignedIn = Literal["owner", "operator", "tenant"]

LIFETIME = 12 * 3600
_NONCE_BYTES = 8
# Digits of a viewer key's hash: enough to distinguish the keys of a tenant.
KEY_DIGITS = 16
_FIELDS = 5
_ROLES: dict[str, SignedIn] = {"owner": "owner", "operator": "operator", "tenant": "tenant"}


@dataclass(frozen=True, slots=True)
class Ticket:
    """The content of a cookie.

    tenant, key: of a viewer, its tenant and the first digits of its key's hash; otherwise empty.
    """

    role: SignedIn
    tenant: str = ""
    key: str = ""


def sign_cookie(ticket: Ticket, token: str, now: float) -> str:
    """Return the value of a cookie. It is valid for twelve hours from `now` (Unix seconds) with this admin token."""
    content = ".".join(
        (
            ticket.role,
            ticket.tenant.encode().hex(),
            ticket.key,
            f"{now + LIFETIME:.0f}",
            secrets.token_hex(_NONCE_BYTES),
        )
    )
    return f"{content}.{_mark(token, content, 'cookie')}"


def read_cookie(value: str, token: str, now: float) -> Ticket | None:
    """Return the content of a cookie signed with this token; None if it is forged, damaged or expired."""
    content, _, mark = value.rpartition(".")
    if not hmac.compare_digest(mark.encode("utf-8", "replace"), _mark(token, content, "cookie").encode()):
        return None
    role, tenant, key, expires, _nonce = content.split(".", _FIELDS - 1)
    return Ticket(_ROLES[role], bytes.fromhex(tenant).decode(), key) if int(expires) > now else None


LINK_SECONDS = 60


def sign_link(token: str, now: float) -> str:
    """Return the parameter that signs in by a link, once per process and within a minute of `now` (Unix seconds).

    It replaces the token, since every user of a machine can read the arguments of a browser.
    """
    content = f"{now + LINK_SECONDS:.0f}.{secrets.token_hex(_NONCE_BYTES)}"
    return f"{content}.{_mark(token, content, 'link')}"


def is_link(value: str, token: str, now: float) -> bool:
    """Return True if the value was signed with this token and has not expired."""
    content, _, mark = value.rpartition(".")
    if not hmac.compare_digest(mark.encode("utf-8", "replace"), _mark(token, content, "link").encode()):
        return False
    return int(content.partition(".")[0]) > now


def _mark(token: str, text: str, purpose: str) -> str:
    content = f"concertina admin {purpose} {text}".encode("utf-8", "replace")
    return hmac.digest(token.encode(), content, "sha256").hex()


_READING = ("GET", "HEAD")
_MOST_FAILURES = 5
_FAILURE_SECONDS = 60.0
_ADDRESSES = 1_000
# The delay in seconds for a credential from an address with as many failures, and the maximum of delayed requests.
_DELAY = 1.0
_MOST_DELAYED = 1_000
# An IPv6 network of this size belongs to one site.
_IPV6_PREFIX = 64
# The maximum number of used links to remember. A link is invalid after a minute anyway.
_LINKS = 10_000
_NEEDED = (
    "This needs the admin token: open the link that `concertina serve` prints on a terminal, send"
    " `Authorization: Bearer` with the token from the file that it names, or set server.admin_token."
)
_CONFIGURED = "This needs `Authorization: Bearer <server.admin_token>`."


@dataclass(frozen=True, slots=True)
class Visitor:
    """The sender of a request.

    tenant: the only tenant that a viewer may see; None for all.
    """

    role: Role
    tenant: str | None = None

    def sees(self, tenant: str | None) -> bool:
        """Return True if the visitor may see this tenant. Only visitors who see all tenants see None."""
        return self.tenant in (None, tenant)


class Access:
    """Identify visitors. There is one instance per process, since it counts failures."""

    def __init__(
        self,
        config: Callable[[], Config],
        token: Callable[[], AdminToken],
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Create the access control. `clock` returns Unix seconds."""
        self._config = config
        self._token = token
        self.clock = clock
        self._sleep = sleep
        self._delayed = 0
        self._failures = _Failures()
        self._used_links: OrderedDict[str, None] = OrderedDict()

    async def slow_down(self, request: Request) -> None:
        """Delay a request with a credential from an address that has sent too many wrong ones.

        A correct credential is delayed too: otherwise an attacker would not wait for the response to a wrong one. It is
        never refused. Cookies are not delayed, since they are signed.
        """
        if not has_credential(request) or self._delayed >= _MOST_DELAYED:
            return
        if self._failures.may_try(_address_of(request), self.clock()):
            return
        self._delayed += 1
        try:
            await self._sleep(_DELAY)
        finally:
            self._delayed -= 1

    def visitor(self, request: Request, roles: frozenset[Role]) -> Visitor:
        """Return the visitor if its role is allowed. Raises AuthenticationError, NotAllowedError, TooManyFailuresError.

        A cookie allows writes only if the browser confirms that the proxy's own page sent the request. Other sites, and
        other ports of the host, can make a browser send the cookie.
        """
        ticket = self._by_token(request)
        if ticket is None and (ticket := self._by_cookie(request)) is not None:
            check_origin(request)
        if ticket is None and not self._is_nobody(request):
            raise self._refusal(request)
        visitor = Visitor("nobody") if ticket is None else Visitor(ticket.role, ticket.tenant or None)
        if visitor.role not in roles:
            raise (self._refusal(request) if ticket is None else NotAllowedError("This needs the admin token."))
        return visitor

    def enter(self, request: Request, credential: str, *, by_link: bool = False) -> str:
        """Return the cookie's value for an admin token, a viewer's key or a link's value. Raises AuthenticationError.

        A configured token is never accepted from a link: addresses end up in histories and logs.
        """
        token = self._token()
        if by_link and token.is_configured:
            raise AuthenticationError("This link is invalid or has expired. " + _CONFIGURED)
        ticket = Ticket("owner") if by_link and self._takes_link(credential) else self._ticket_of(request, credential)
        if ticket is None:
            raise AuthenticationError(
                f"This token or key is invalid. {_CONFIGURED if token.is_configured else _NEEDED}"
            )
        return sign_cookie(ticket, token.value, self.clock())

    def _takes_link(self, value: str) -> bool:
        """Return True if the value signs in by a link. Each value does so once."""
        if value in self._used_links or not is_link(value, self._token().value, self.clock()):
            return False
        remember(self._used_links, value, None, _LINKS)
        return True

    def may_read(self, visitor: Visitor, tenant: str) -> bool:
        """Return True if the visitor may read the content of a tenant's sessions. It must be signed in."""
        return visitor.role != "nobody" and visitor.sees(tenant) and self._config().shows_content(tenant)

    def check_content(self, visitor: Visitor, tenant: str) -> None:
        """Check that the visitor may read a tenant's content. Raises ContentHiddenError."""
        if not self.may_read(visitor, tenant):
            raise ContentHiddenError(hidden(tenant))

    def _by_token(self, request: Request) -> Ticket | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return self._ticket_of(request, token.strip()) if scheme.lower() == "bearer" else None

    def _by_cookie(self, request: Request) -> Ticket | None:
        value = request.cookies.get(cookie_of(request), "")
        ticket = read_cookie(value, self._token().value, self.clock())
        return ticket if ticket is not None and self._is_current(ticket) else None

    def _is_nobody(self, request: Request) -> bool:
        """Return True if this machine sends a request that is allowed without a sign-in."""
        return request.method in _READING and not self._token().is_configured and is_this_machine(request)

    def _ticket_of(self, request: Request, credential: str) -> Ticket | None:
        """Return the ticket for a token or key; None if it is unknown. Raises TooManyFailuresError.

        A correct one is accepted after any failures: with a front end, all requests come from one address.
        """
        token = self._token()
        if token.value and _same(credential, token.value):
            return Ticket("operator" if token.is_configured else "owner")
        digest = hashlib.sha256(credential.encode()).hexdigest()
        for name, tenant in self._config().tenants.items():
            if any(_same(f"sha256:{digest}", key) for key in tenant.viewer_keys):
                return Ticket("tenant", name, digest[:KEY_DIGITS])
        address, now = _address_of(request), self.clock()
        self._failures.check(address, now)
        self._failures.add(address, digest, now)
        return None

    def _is_current(self, ticket: Ticket) -> bool:
        """Return True if a viewer's key is still in the config."""
        tenant = self._config().tenants.get(ticket.tenant)
        keys = tenant.viewer_keys if tenant else ()
        return ticket.role != "tenant" or any(key.startswith(f"sha256:{ticket.key}") for key in keys)

    def _refusal(self, request: Request) -> ProxyError:
        if self._token().is_configured:
            return AuthenticationError(_CONFIGURED)
        return AuthenticationError(_NEEDED) if "authorization" in request.headers else NotAllowedError(_NEEDED)


class _Failures:
    """Wrong credentials by address. The same wrong credential counts once."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, dict[str, float]] = OrderedDict()

    def may_try(self, address: str, now: float) -> bool:
        """Return True if the address has not failed too often within a minute."""
        return len(self._recent(address, now)) < _MOST_FAILURES

    def check(self, address: str, now: float) -> None:
        """Check the limit of an address. Raises TooManyFailuresError."""
        if not self.may_try(address, now):
            retry_after = ceil(min(self._recent(address, now)) + _FAILURE_SECONDS - now)
            raise TooManyFailuresError(retry_after=retry_after)

    def _recent(self, address: str, now: float) -> list[float]:
        return [at for at in self._seen.get(address, {}).values() if now - at < _FAILURE_SECONDS]

    def add(self, address: str, digest: str, now: float) -> None:
        """Add a failure. `digest` identifies the wrong credential."""
        recent = {key: at for key, at in self._seen.get(address, {}).items() if now - at < _FAILURE_SECONDS}
        remember(self._seen, address, recent | {digest: now}, _ADDRESSES)


def has_credential(request: Request) -> bool:
    """Return True if a request has a token or a key, or may have one in a form."""
    return (
        "authorization" in request.headers
        or "token" in request.query_params
        or (request.method == "POST" and request.url.path.endswith("/sign-in"))
    )


def _address_of(request: Request) -> str:
    """Return the address of a request's sender. For IPv6 it is the network."""
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))


def hidden(tenant: str) -> str:
    """Return the text that replaces hidden content."""
    return f"Hidden: tenant {tenant} does not allow its records to be read (tenants.{tenant}.inspect)."


def cookie_of(request: Request) -> str:
    """Return the cookie's name for this port: browsers have one jar for all ports of a host."""
    return our_cookie(request.scope["server"][1])


def check_origin(request: Request) -> None:
    """Check that one of the proxy's own pages sent a write, as far as browsers show it. Raises NotAllowedError."""
    if request.method not in _READING and not _is_from_own_page(request):
        raise NotAllowedError("No page of this proxy sent this; sign in there, or send the token as Bearer.")


def _is_from_own_page(request: Request) -> bool:
    """Return True if one of the proxy's own pages sent the request.

    No page can forge Sec-Fetch-Site. Browsers omit it over plain HTTP, and then the Origin decides.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "")
    if site is not None:
        return site == "same-origin"
    return urlsplit(origin).netloc == request.headers.get("host", "") != ""


def _same(actual: str, expected: str) -> bool:
    return hmac.compare_digest(actual.encode(), expected.encode())
