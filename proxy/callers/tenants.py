"""Identify callers: the tenant of a key, its policy, and the scope that separates its sessions from all others."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from policies.settings import PolicySettings
from proxy.callers import store_secret
from proxy.callers.issued_keys import IssuedKey, KeyRing, key_prefix
from proxy.config.settings import DEFAULT, Config, Tenant
from proxy.errors import AuthenticationError, KeysUnknownError, NotAllowedError
from proxy.server.headers import bearer_key

# Without a configured secret, sessions are still separate, but outsiders can compute their keys.

# Names instead of a key's digest, which has 32 bytes.
_INDEX = b"index"
_LABELS = b"labels"

_UNKNOWN = "the API key is unknown; ask the operator of this proxy for one and send it as a Bearer token"
_NO_TENANT = "the tenant of this API key is not in the config of this proxy; ask its operator"
_VIEWERS = "this key is for pages under /admin, and is no API key"
_NOT_ALLOWED = "x-compaction-policy does not name a policy that this key may use"


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller by its key: its permissions and the location of its sessions."""

    tenant: str
    policy_name: str
    policy: PolicySettings
    allowed_policies: frozenset[str]
    scope: bytes = field(repr=False)
    """32 bytes. Two keys never share them, so that neither can read, guess or influence the other's sessions."""
    upstream_key: str | None = field(repr=False)
    """The tenant's key for the upstream, instead of the caller's own Authorization."""
    summary_tokens_per_day: int | None
    index: str = ""
    """The store's index of the tenant's conversations."""
    labels: bytes = field(default=b"", repr=False)
    """The key of the tenant's label hashes. The store does not reveal labels."""
    max_requests: int | None = None
    key_header: bytes | None = None
    """The header whose key identified the caller; None for a caller without a known key."""
    issued: IssuedKey | None = None
    """The key, if a command issued it."""
    pins: tuple[str, ...] = ()
    """Matches of pins in the request, in addition to its policy's."""


class Tenants:
    """The callers of one config. A reload creates another instance."""

    def __init__(self, config: Config, issued: KeyRing | None = None) -> None:
        """Create the callers. `issued` are keys in addition to the config's."""
        self._issued = issued or KeyRing()
        self._policies = config.policies
        self._closed = config.closed
        self._secret = store_secret.secret_in_force(config.store)
        self._key_prefix = key_prefix(self._secret).encode()
        self._shared = {name for name, tenant in config.tenants.items() if tenant.sessions_of == "tenant"}
        self._epochs = {name: tenant.epoch for name, tenant in config.tenants.items()}
        self._callers = {name: _caller(name, tenant, config) for name, tenant in config.tenants.items()}
        self._by_digest = {
            digest: (digest, name) for name, tenant in config.tenants.items() for digest in map(_digest, tenant.keys)
        }
        self._viewers = {_digest(key) for tenant in config.tenants.values() for key in tenant.viewer_keys}

    @property
    def version(self) -> int:
        """Return a number that changes when a key may identify another caller than before."""
        return self._issued.version

    def identify(
        self,
        authorization: bytes | None,
        api_key_header: bytes | None = None,
        other_headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> Caller:
        """Return the caller of the first known key: in Authorization, in x-api-key, in other headers.

        other_headers: those that may contain a key, by name. Callers without a known key belong to tenant `default`, or
        are refused if the config is closed. Those with different keys are separate, by their first key. Raises
        AuthenticationError, KeysUnknownError.
        """
        sent = ((b"authorization", bearer_key(authorization or b"")), (b"x-api-key", api_key_header), *other_headers)
        digests = {header: hashlib.sha256(key).digest() for header, key in sent if key}
        if not self._viewers.isdisjoint(digests.values()):
            raise AuthenticationError(_VIEWERS)
        for header, digest in digests.items():
            if (name := self._owner(digest)) is not None:
                return replace(self._caller_with_scope(name, digest), key_header=header)
            if (issued := self._issued.find(digest)) is not None:
                if issued.tenant not in self._callers:
                    raise AuthenticationError(_NO_TENANT)
                return replace(self._caller_with_scope(issued.tenant, digest), key_header=header, issued=issued)
        is_ours = any(key and self._key_prefix in key for _, key in sent)
        if is_ours and not self._issued.is_loaded:
            raise KeysUnknownError
        if is_ours or self._closed:
            raise AuthenticationError(_UNKNOWN)
        return self._caller_with_scope(DEFAULT, next(iter(digests.values()), b""))

    def contains_foreign_key(self, value: bytes, caller: Caller) -> bool:
        """Return True if a header's value or a query contains another issued key of this store."""
        return self._key_prefix in value and (caller.issued is None or not caller.issued.is_in(value))

    def operator_of(self, tenant: str) -> Caller | None:
        """Return the operator as a caller of this tenant, without a key; None for an unknown tenant."""
        return self._caller_with_scope(tenant, b"") if tenant in self._callers else None

    def all_of(self, tenant: str) -> list[Caller]:
        """Return the operator, and a caller for every configured key of this tenant; empty for an unknown tenant."""
        if tenant not in self._callers:
            return []
        digests = [b"", *(digest for digest, name in self._by_digest.values() if name == tenant)]
        return [self._caller_with_scope(tenant, digest) for digest in digests]

    def with_policy(self, caller: Caller, name: str) -> Caller:
        """Return the caller under another allowed policy. Raises NotAllowedError for any other name."""
        if name not in caller.allowed_policies:
            raise NotAllowedError(_NOT_ALLOWED, param="x-compaction-policy")
        return replace(caller, policy_name=name, policy=self._policies[name])

    def _owner(self, digest: bytes) -> str | None:
        # The lookup is by the hash of the sent key, which no caller controls, so its time reveals nothing about a key.
        # The constant-time comparison also holds for another kind of lookup.
        known_digest, name = self._by_digest.get(digest, (b"", ""))
        return name if hmac.compare_digest(known_digest, digest) else None

    def _caller_with_scope(self, tenant: str, digest: bytes) -> Caller:
        return replace(
            self._callers[tenant],
            scope=self._keyed_digest(tenant, b"" if tenant in self._shared else digest),
            index=f"index:{self._keyed_digest(tenant, _INDEX).hex()}",
            labels=self._keyed_digest(tenant, _LABELS),
        )

    def _keyed_digest(self, tenant: str, name: bytes) -> bytes:
        # The length prefix keeps different pairs of tenant and name distinct.
        encoded = tenant.encode()
        message = len(encoded).to_bytes(4, "big") + encoded + len(name).to_bytes(4, "big") + name
        if epoch := self._epochs[tenant]:
            message += epoch.to_bytes(8, "big")
        return hmac.digest(self._secret, message, "sha256")


def _caller(name: str, tenant: Tenant, config: Config) -> Caller:
    return Caller(
        tenant=name,
        policy_name=tenant.policy,
        policy=config.policies[tenant.policy],
        allowed_policies=frozenset({tenant.policy, *tenant.policies}),
        scope=b"",
        upstream_key=tenant.api_key.get_secret_value() or None,
        summary_tokens_per_day=tenant.summary_tokens_per_day,
        max_requests=tenant.max_requests,
    )


def _digest(key_hash: str) -> bytes:
    return bytes.fromhex(key_hash.removeprefix("sha256:"))
