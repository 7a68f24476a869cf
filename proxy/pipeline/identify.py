"""Who sends a request, under which policy, and what they want of us: read off its head alone."""

from dataclasses import replace

from policies.settings import MOST_MATCHES, check_pin_match
from proxy import errors
from proxy.callers.admin_token import carries
from proxy.callers.api_head import ApiHead
from proxy.callers.api_headers import KEY_HEADERS
from proxy.callers.tenants import Caller
from proxy.compaction.plan_input import Mode
from proxy.server.headers import MAX_HOPS, Headers, hops
from proxy.upstreams.active import Active

_OTHERS = tuple(name for name in KEY_HEADERS if name not in (b"authorization", b"x-api-key"))
_ASTRAY = (
    "An API key of this proxy, mistyped or where none belongs; send it whole as a Bearer token or in x-api-key alone."
)
_ONCE = (*KEY_HEADERS, b"x-compaction", b"x-compaction-policy")
_PIN = "x-compaction-pin"
_PIN_HEADER = _PIN.encode()
_MODES: dict[bytes, Mode] = {b"off": "off", b"on": "on", b"shadow": "shadow", b"force": "force"}


def identify(head: ApiHead, active: Active) -> tuple[Caller, Mode]:
    """Return the caller and the mode of a request. A control header may be sent once."""
    if hops(head.headers) >= MAX_HOPS:
        raise errors.LoopError(
            "This request passed the proxy several times: an upstream's base_url leads back to the proxy."
        )
    repeated = head.repeats(_ONCE)
    if repeated is not None:
        raise errors.InvalidRequestError(
            f"The header {repeated.decode()} may be sent once only.", param=repeated.decode()
        )
    if head.reading.has_dots:
        raise errors.AmbiguousPathError("The path holds dot segments (. or ..), encoded or not; send it without them.")
    _check_admin_token(head.headers, head.query, active)
    tenants = active.tenants
    others = [(name, key) for name in _OTHERS if (key := head.header(name))]
    caller = tenants.identify(head.header(b"authorization"), head.header(b"x-api-key"), others)
    if any(tenants.is_astray(value, caller) for value in (head.query, *(value for _, value in head.headers))):
        raise errors.AuthenticationError(_ASTRAY)
    policy = head.header(b"x-compaction-policy")
    if policy is not None:
        caller = tenants.with_policy(caller, policy.decode("latin-1"))
    if pins := _pins(head.headers):
        caller = replace(caller, pins=pins)
    return caller, _mode(head, caller)


def check_placement(headers: Headers, active: Active, caller: Caller) -> None:
    """Raise AuthenticationError if one of these headers holds an issued key that is not the caller's own, or the admin
    token."""
    _check_admin_token(headers, b"", active)
    if any(active.tenants.is_astray(value, caller) for _, value in headers):
        raise errors.AuthenticationError(_ASTRAY)


def _check_admin_token(headers: Headers, query: bytes, active: Active) -> None:
    if carries(active.admin_token.value.encode(), headers, query):
        raise errors.AuthenticationError(
            "This is the admin token, not an API key: it is for /admin and /metrics alone."
        )


def _pins(headers: Headers) -> tuple[str, ...]:
    """Return the matches of pins that the headers name, each once. Raises InvalidRequestError."""
    values = [value.decode("utf-8", "replace") for name, value in headers if name == _PIN_HEADER]
    matches = dict.fromkeys(match for value in values for match in value.split(",") if match.strip())
    if len(matches) > MOST_MATCHES:
        raise errors.InvalidRequestError(f"{_PIN} may name {MOST_MATCHES} matches at most.", param=_PIN)
    try:
        return tuple(map(check_pin_match, matches))
    except ValueError as error:
        raise errors.InvalidRequestError(f"A match in {_PIN} {error}.", param=_PIN) from None


def _mode(head: ApiHead, caller: Caller) -> Mode:
    """Return the mode that the header names, else the policy's."""
    asked = head.header(b"x-compaction")
    if asked is None:
        return caller.policy.mode
    mode = _MODES.get(asked.strip().lower())
    if mode is None:
        raise errors.InvalidRequestError("x-compaction must be one of off, on, shadow, force.", param="x-compaction")
    return mode
