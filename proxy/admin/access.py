"""Who looks at our own pages, and what they may see and do: roles, credentials, and the defences of a browser."""

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

# What curl, wget, Prometheus, browsers and HTTP libraries send by themselves. A front end that passes on a stranger's
# request gives itself away by any header beside these, such as Forwarded, Via, X-Forwarded-For, X-Request-Id or CF-Ray.
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
    """Whether a request shows that a program of this machine sent it, and no front end passed it on.

    The Host must be a loopback name with our port: a page in a browser may resolve any other name to this machine.
    """
    scope = request.scope
    _, port = scope["server"]
    return (
        scope["http_version"] == "1.1"
        and _ORDINARY.issuperset(request.headers.keys())
        and request.client is not None
        and _is_loopback(request.client.host)
        and _is_ours(request.headers.get("host", ""), port)
    )


def _is_ours(host: str, port: int) -> bool:
    try:
        parts = urlsplit(f"//{host}")
        named = parts.port or 80
    except ValueError:
        return False
    name = parts.hostname or ""
    return named == port and (name == "localhost" or _is_loopback(name))


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


SignedIn = Literal["owner", "operator", "tenant"]

LIFETIME = 12 * 3600
_NONCE_BYTES = 8
# Digits of a viewer key's hash: enough to tell a tenant's keys apart.
KEY_DIGITS = 16
_FIELDS = 5
_ROLES: dict[str, SignedIn] = {"owner": "owner", "operator": "operator", "tenant": "tenant"}


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a cookie says. tenant, key: of a viewer, its tenant and the first digits of its key's hash; else empty."""

    role: SignedIn
    tenant: str = ""
    key: str = ""


def sign_cookie(ticket: Ticket, token: str, now: float) -> str:
    """A cookie's value that holds for twelve hours from `now` (Unix seconds), and as long as the admin token does."""
    told = ".".join(
        (
            ticket.role,
            ticket.tenant.encode().hex(),
            ticket.key,
            f"{now + LIFETIME:.0f}",
            secrets.token_hex(_NONCE_BYTES),
        )
    )
    return f"{told}.{_mark(token, told, 'cookie')}"


def read_cookie(value: str, token: str, now: float) -> Ticket | None:
    """What a cookie says that was signed with this token; None where it is forged, spoilt or too old."""
    told, _, mark = value.rpartition(".")
    if not hmac.compare_digest(mark.encode("utf-8", "replace"), _mark(token, told, "cookie").encode()):
        return None
    role, tenant, key, expires, _nonce = told.split(".", _FIELDS - 1)
    return Ticket(_ROLES[role], bytes.fromhex(tenant).decode(), key) if int(expires) > now else None


LINK_SECONDS = 60


def sign_link(token: str, now: float) -> str:
    """What a link signs in with in place of the token: once at a process, within a minute of `now` (Unix seconds).

    Every user of a machine can read what a browser is started with.
    """
    told = f"{now + LINK_SECONDS:.0f}.{secrets.token_hex(_NONCE_BYTES)}"
    return f"{told}.{_mark(token, told, 'link')}"


def is_link(value: str, token: str, now: float) -> bool:
    """Whether it was signed with this token, and is not too old."""
    told, _, mark = value.rpartition(".")
    if not hmac.compare_digest(mark.encode("utf-8", "replace"), _mark(token, told, "link").encode()):
        return False
    return int(told.partition(".")[0]) > now


def _mark(token: str, told: str, purpose: str) -> str:
    content = f"concertina admin {purpose} {told}".encode("utf-8", "replace")
    return hmac.digest(token.encode(), content, "sha256").hex()


_READING = ("GET", "HEAD")
_MOST_FAILURES = 5
_FAILURE_SECONDS = 60.0
_ADDRESSES = 1_000
# Seconds that a credential is looked at later from an address with as many failures; requests that wait so at once.
_DELAY = 1.0
_MOST_DELAYED = 1_000
# An IPv6 network of this size is one site's.
_IPV6_PREFIX = 64
# That were used, and must not be again within their minute.
_LINKS = 10_000
_NEEDED = (
    "This needs the admin token: open the link that `concertina serve` prints on a terminal, send"
    " `Authorization: Bearer` with the token from the file that it names, or set server.admin_token."
)
_CONFIGURED = "This needs `Authorization: Bearer <server.admin_token>`."


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks. tenant: the only one that is shown to a viewer; None for all of them."""

    role: Role
    tenant: str | None = None

    def sees(self, tenant: str | None) -> bool:
        """Of what no tenant is known, those who see all of them."""
        return self.tenant in (None, tenant)


class Access:
    """Tells who asks; one per process, since it counts failures."""

    def __init__(
        self,
        config: Callable[[], Config],
        token: Callable[[], AdminToken],
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`clock` tells Unix seconds."""
        self._config = config
        self._token = token
        self.clock = clock
        self._sleep = sleep
        self._delayed = 0
        self._failures = _Failures()
        self._used_links: OrderedDict[str, None] = OrderedDict()

    async def slow_down(self, request: Request) -> None:
        """Delay a request with a credential from an address that has sent too many wrong ones.

        The right one is delayed likewise: else whoever guesses need not wait for the answer to a wrong one. It is never
        refused. Cookies are not delayed: they are signed.
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
        """Who asks, if they may; raises what they are refused with.

        A cookie writes only where the browser says that our own page asked: other sites, and other ports of the same
        host, can make it send the cookie along.
        """
        ticket = self._by_token(request)
        if ticket is None and (ticket := self._by_cookie(request)) is not None:
            check_origin(request)
        if ticket is None and not self._is_nobody(request):
            raise self._refusal(request)
        visitor = Visitor("nobody") if ticket is None else Visitor(ticket.role, ticket.tenant or None)
        if visitor.role not in roles:
            raise (
                self._refusal(request) if ticket is None else NotAllowedError("This is for those with the admin token.")
            )
        return visitor

    def enter(self, request: Request, given: str, *, by_link: bool = False) -> str:
        """The cookie's value for who gives the admin token or a viewer's key, or what `sign_link` made; raises
        AuthenticationError.

        A configured token is never taken from a link: addresses end up in histories and logs.
        """
        token = self._token()
        if by_link and token.is_configured:
            raise AuthenticationError("This link is not, or no longer, valid. " + _CONFIGURED)
        ticket = Ticket("owner") if by_link and self._takes_link(given) else self._ticket_of(request, given)
        if ticket is None:
            raise AuthenticationError(
                f"This is not, or no longer, valid. {_CONFIGURED if token.is_configured else _NEEDED}"
            )
        return sign_cookie(ticket, token.value, self.clock())

    def _takes_link(self, given: str) -> bool:
        """Whether it signs in, which it does once."""
        if given in self._used_links or not is_link(given, self._token().value, self.clock()):
            return False
        remember(self._used_links, given, None, _LINKS)
        return True

    def may_read(self, visitor: Visitor, tenant: str) -> bool:
        """Whether the content of a tenant's sessions is shown: it is never to whoever is not signed in."""
        return visitor.role != "nobody" and visitor.sees(tenant) and self._config().shows_content(tenant)

    def check_content(self, visitor: Visitor, tenant: str) -> None:
        """Raises ContentHiddenError."""
        if not self.may_read(visitor, tenant):
            raise ContentHiddenError(hidden(tenant))

    def _by_token(self, request: Request) -> Ticket | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return self._ticket_of(request, given.strip()) if scheme.lower() == "bearer" else None

    def _by_cookie(self, request: Request) -> Ticket | None:
        value = request.cookies.get(cookie_of(request), "")
        ticket = read_cookie(value, self._token().value, self.clock())
        return ticket if ticket is not None and self._is_current(ticket) else None

    def _is_nobody(self, request: Request) -> bool:
        """Whether this machine asks for what it may read without any sign-in."""
        return request.method in _READING and not self._token().is_configured and is_this_machine(request)

    def _ticket_of(self, request: Request, given: str) -> Ticket | None:
        """Whose token or key this is; None for nobody's. Raises TooManyFailuresError.

        The right one is taken whatever came before it: behind a front end all come from one address.
        """
        token = self._token()
        if token.value and _same(given, token.value):
            return Ticket("operator" if token.is_configured else "owner")
        digest = hashlib.sha256(given.encode()).hexdigest()
        for name, tenant in self._config().tenants.items():
            if any(_same(f"sha256:{digest}", key) for key in tenant.viewer_keys):
                return Ticket("tenant", name, digest[:KEY_DIGITS])
        address, now = _address_of(request), self.clock()
        self._failures.check(address, now)
        self._failures.add(address, digest, now)
        return None

    def _is_current(self, ticket: Ticket) -> bool:
        """Whether a viewer's key is still one."""
        tenant = self._config().tenants.get(ticket.tenant)
        keys = tenant.viewer_keys if tenant else ()
        return ticket.role != "tenant" or any(key.startswith(f"sha256:{ticket.key}") for key in keys)

    def _refusal(self, request: Request) -> ProxyError:
        if self._token().is_configured:
            return AuthenticationError(_CONFIGURED)
        return AuthenticationError(_NEEDED) if "authorization" in request.headers else NotAllowedError(_NEEDED)


class _Failures:
    """Wrong credentials by the address they came from. One that is sent again is no further guess."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, dict[str, float]] = OrderedDict()

    def may_try(self, address: str, now: float) -> bool:
        """Return True if the address has not failed too often lately."""
        return len(self._recent(address, now)) < _MOST_FAILURES

    def check(self, address: str, now: float) -> None:
        """Raises TooManyFailuresError."""
        if not self.may_try(address, now):
            retry_after = ceil(min(self._recent(address, now)) + _FAILURE_SECONDS - now)
            raise TooManyFailuresError(retry_after=retry_after)

    def _recent(self, address: str, now: float) -> list[float]:
        return [at for at in self._seen.get(address, {}).values() if now - at < _FAILURE_SECONDS]

    def add(self, address: str, digest: str, now: float) -> None:
        """`digest` stands for what was given."""
        recent = {key: at for key, at in self._seen.get(address, {}).items() if now - at < _FAILURE_SECONDS}
        remember(self._seen, address, recent | {digest: now}, _ADDRESSES)


def has_credential(request: Request) -> bool:
    """Return True if a request carries a token or a key, or may do so in a form."""
    return (
        "authorization" in request.headers
        or "token" in request.query_params
        or (request.method == "POST" and request.url.path.endswith("/sign-in"))
    )


def _address_of(request: Request) -> str:
    """Return the address that a request came from; of an IPv6 address its network."""
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))


def hidden(tenant: str) -> str:
    """What is said in place of content."""
    return f"Hidden: tenant {tenant} does not allow its records to be read (tenants.{tenant}.inspect)."


def cookie_of(request: Request) -> str:
    """The name of our cookie here: browsers keep one jar for all ports of a host."""
    return our_cookie(request.scope["server"][1])


def check_origin(request: Request) -> None:
    """Raises NotAllowedError for a write that no page of ours has sent, as far as its browser tells."""
    if request.method not in _READING and not _is_from_our_page(request):
        raise NotAllowedError("This was not sent by a page of ours; sign in there, or send the token as Bearer.")


def _is_from_our_page(request: Request) -> bool:
    """By Sec-Fetch-Site, which no page can forge; browsers leave it out over plain HTTP, where the Origin tells."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "")
    if site is not None:
        return site == "same-origin"
    return urlsplit(origin).netloc == request.headers.get("host", "") != ""


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())
