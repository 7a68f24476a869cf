"""Who is calling: the tenant behind a key, its policy, and the scope that keeps its sessions apart from all others."""

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

# Without a configured secret, sessions are still kept apart; only their addresses can be computed by outsiders.

# In place of a key's digest, which has 32 bytes.
_INDEX = b"index"
_LABELS = b"labels"

_UNKNOWN = "the API key is not known here; ask the operator of this proxy for one and send it as a Bearer token"
_NO_TENANT = "the tenant of this API key is not in the config of this proxy any more; ask its operator"
_VIEWERS = "this key opens pages under /admin, and is no API key"
_NOT_ALLOWED = "x-compaction-policy does not name a policy that this key may use"


@dataclass(frozen=True, slots=True)
class Caller:
    """One caller, as far as its key tells: what may be done for it and where its sessions lie."""

    tenant: str
    policy_name: str
    policy: PolicySettings
    allowed_policies: frozenset[str]
    scope: bytes = field(repr=False)
    """32 bytes; two keys never share them, so that what one stored the other cannot read, guess or influence."""
    upstream_key: str | None = field(repr=False)
    """The tenant's key for the upstream, in place of the caller's own Authorization."""
    summary_tokens_per_day: int | None
    index: str = ""
    """Where the store lists the tenant's conversations."""
    labels: bytes = field(default=b"", repr=False)
    """By which the tenant's labels are hashed: what lies in the store tells none of them."""
    max_requests: int | None = None
    key_header: bytes | None = None
    """The header whose key made the caller known here; None for a caller without a known key."""
    issued: IssuedKey | None = None
    """The key, if a command has issued it."""
    pins: tuple[str, ...] = ()
    """Matches of pins that its request names, beside those of its policy."""


class Tenants:
    """The callers that one config knows; a reload makes a new one."""

    def __init__(self, config: Config, issued: KeyRing | None = None) -> None:
        """`issued`: keys beside those of the config."""
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
        """Another one whenever a key may stand for somebody else than before."""
        return self._issued.version

    def identify(
        self,
        authorization: bytes | None,
        api_key_header: bytes | None = None,
        others: Sequence[tuple[bytes, bytes]] = (),
    ) -> Caller:
        """The caller behind the first known key: in the Authorization header, in x-api-key, in other headers.

        others: those that may hold a key, by name. Callers without a known key belong to tenant `default`, or are
        refused when the config is closed; those with different keys are kept apart, by the first one that they have
        sent.
        """
        sent = ((b"authorization", bearer_key(authorization or b"")), (b"x-api-key", api_key_header), *others)
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

    def is_astray(self, value: bytes, caller: Caller) -> bool:
        """Whether a header's value or a query holds an issued key of this store that is not the caller's own."""
        return self._key_prefix in value and (caller.issued is None or not caller.issued.is_in(value))

    def operator_of(self, tenant: str) -> Caller | None:
        """A caller of this tenant as the operator stands for it, without a key; None where there is no such tenant."""
        return self._caller_with_scope(tenant, b"") if tenant in self._callers else None

    def all_of(self, tenant: str) -> list[Caller]:
        """The operator, and a caller for every key that the config knows of this tenant; empty for an unknown name."""
        if tenant not in self._callers:
            return []
        digests = [b"", *(digest for digest, name in self._by_digest.values() if name == tenant)]
        return [self._caller_with_scope(tenant, digest) for digest in digests]

    def with_policy(self, caller: Caller, name: str) -> Caller:
        """The caller under another policy it may use; the refusal does not tell whether the name exists."""
        if name not in caller.allowed_policies:
            raise NotAllowedError(_NOT_ALLOWED, param="x-compaction-policy")
        return replace(caller, policy_name=name, policy=self._policies[name])

    def _owner(self, digest: bytes) -> str | None:
        # The lookup goes by the hash of what was sent, whose bytes no caller can steer, so its time tells nothing
        # about a key; the comparison in constant time holds also if keys are looked up otherwise one day.
        known, name = self._by_digest.get(digest, (b"", ""))
        return name if hmac.compare_digest(known, digest) else None

    def _caller_with_scope(self, tenant: str, digest: bytes) -> Caller:
        return replace(
            self._callers[tenant],
            scope=self._keyed_digest(tenant, b"" if tenant in self._shared else digest),
            index=f"index:{self._keyed_digest(tenant, _INDEX).hex()}",
            labels=self._keyed_digest(tenant, _LABELS),
        )

    def _keyed_digest(self, tenant: str, name: bytes) -> bytes:
        # The length in front keeps a tenant id and a name from being read as another pair.
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
