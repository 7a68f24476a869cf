"""The client, the policy and the mode of a request, from its header block alone."""

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

_OTHER_KEY_HEADERS = tuple(name for name in KEY_HEADERS if name not in (b"authorization", b"x-api-key"))
_MISPLACED_KEY = (
    "An API key of this proxy is mistyped or in the wrong place;"
    " send the whole key as a Bearer token or in x-api-key only."
)
_ONCE = (*KEY_HEADERS, b"x-compaction", b"x-compaction-policy")
_PIN = "x-compaction-pin"
_PIN_HEADER = _PIN.encode()
_MODES: dict[bytes, Mode] = {b"off": "off", b"on": "on", b"shadow": "shadow", b"force": "force"}


def identify(head: ApiHead, active: Active) -> tuple[Caller, Mode]:
    """Return the caller and the mode of a request. A control header may be sent only once. Raises ProxyError."""
    if hops(head.headers) >= MAX_HOPS:
        raise errors.LoopError(
            "This request passed the proxy several times: an upstream's base_url leads back to the proxy."
        )
    repeated = head.repeats(_ONCE)
    if repeated is not None:
        raise errors.InvalidRequestError(
            f"The header {repeated.decode()} may be sent only once.", param=repeated.decode()
        )
    if head.reading.has_dots:
        raise errors.AmbiguousPathError("The path has dot segments (. or ..), encoded or not; send it without them.")
    _check_admin_token(head.headers, head.query, active)
    tenants = active.tenants
    other_keys = [(name, key) for name in _OTHER_KEY_HEADERS if (key := head.header(name))]
    caller = tenants.identify(head.header(b"authorization"), head.header(b"x-api-key"), other_keys)
    if any(
        tenants.contains_foreign_key(value, caller) for value in (head.query, *(value for _, value in head.headers))
    ):
        raise errors.AuthenticationError(_MISPLACED_KEY)
    policy = head.header(b"x-compaction-policy")
    if policy is not None:
        caller = tenants.with_policy(caller, policy.decode("latin-1"))
    if pins := _pins(head.headers):
        caller = replace(caller, pins=pins)
    return caller, _mode(head, caller)


def check_placement(headers: Headers, active: Active, caller: Caller) -> None:
    """Raise AuthenticationError if a header holds the admin token, or an issued key other than the caller's own."""
    _check_admin_token(headers, b"", active)
    if any(active.tenants.contains_foreign_key(value, caller) for _, value in headers):
        raise errors.AuthenticationError(_MISPLACED_KEY)


def _check_admin_token(headers: Headers, query: bytes, active: Active) -> None:
    if carries(active.admin_token.value.encode(), headers, query):
        raise errors.AuthenticationError(
            "This is the admin token, not an API key: use it only for /admin and /metrics."
        )


def _pins(headers: Headers) -> tuple[str, ...]:
    """Return the matches of pins that the headers name, each once. Raises InvalidRequestError."""
    values = [value.decode("utf-8", "replace") for name, value in headers if name == _PIN_HEADER]
    matches = dict.fromkeys(match for value in values for match in value.split(",") if match.strip())
    if len(matches) > MOST_MATCHES:
        raise errors.InvalidRequestError(f"{_PIN} may name at most {MOST_MATCHES} matches.", param=_PIN)
    try:
        return tuple(map(check_pin_match, matches))
    except ValueError as error:
        raise errors.InvalidRequestError(f"A match in {_PIN} {error}.", param=_PIN) from None


def _mode(head: ApiHead, caller: Caller) -> Mode:
    """Return the mode that the header names; else the policy's."""
    requested = head.header(b"x-compaction")
    if requested is None:
        return caller.policy.mode
    mode = _MODES.get(requested.strip().lower())
    if mode is None:
        raise errors.InvalidRequestError("x-compaction must be one of off, on, shadow, force.", param="x-compaction")
    return mode
