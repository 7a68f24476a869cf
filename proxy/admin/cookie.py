"""The cookie by which a browser stays signed in: who it is and until when, signed and never stored here."""

import hmac
import secrets
from dataclasses import dataclass
from typing import Literal

Role = Literal["nobody", "owner", "operator", "tenant"]
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


def sign(ticket: Ticket, token: str, now: float) -> str:
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
    return f"{told}.{_mark(token, told)}"


def read(value: str, token: str, now: float) -> Ticket | None:
    """What a cookie says that was signed with this token; None where it is forged, spoilt or too old."""
    told, _, mark = value.rpartition(".")
    if not hmac.compare_digest(mark.encode("utf-8", "replace"), _mark(token, told).encode()):
        return None
    role, tenant, key, expires, _nonce = told.split(".", _FIELDS - 1)
    return Ticket(_ROLES[role], bytes.fromhex(tenant).decode(), key) if int(expires) > now else None


def _mark(token: str, told: str) -> str:
    return hmac.digest(token.encode(), b"concertina admin cookie " + told.encode("utf-8", "replace"), "sha256").hex()
