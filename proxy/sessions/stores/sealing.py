"""The format of stored values: versioned, compressed, bound to the key, and encrypted if there is a key.

version (1 byte) | flags (1 byte) | body
plain body:      checksum (16 bytes) | zlib
encrypted body:  key id (4 bytes) | nonce (12 bytes) | AES-256-GCM(zlib)
client's body:   MAC by the store's secret (16 bytes) | zlib

Clients store values too (compaction items). Anyone can compute a checksum, so without a key those have a MAC. Checksum
and GCM tag also cover the header and the store key. So a value that was damaged, truncated, swapped between keys, or
(when encrypted) written by anyone else is a miss. That is the second protection against a reply to the wrong caller, as
in ChatGPT's incident of 2023-03-20.
"""

from __future__ import annotations

import hmac
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

import msgspec

from proxy.sessions.stores.base import Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_T = TypeVar("_T")

VERSION = 1
ENCRYPTED = 1
AUTHENTICATED = 2
MAX_PLAIN_BYTES = 4_000_000
MIN_KEY_BYTES = 16

_PLAIN_HEADER = bytes((VERSION, 0))
_ENCRYPTED_HEADER = bytes((VERSION, ENCRYPTED))
_CLIENT_HEADER = bytes((VERSION, AUTHENTICATED))
_HEADER_BYTES = 2
_CHECKSUM_BYTES = 16
_KEY_ID_BYTES = 4
_NONCE_BYTES = 12  # 96 random bits: one key is good for 2^32 values (NIST SP 800-38D, 8.3)


class Sealer:
    """Seal with `encryption_key` (at least 16 bytes). Open with it and with the `retired` ones, for rotation.

    With a key, unencrypted values are misses: a writer to the store must not bypass encryption. secret: the store's,
    which authenticates clients' values without a key.
    """

    def __init__(self, encryption_key: bytes | None, retired: Sequence[bytes] = (), *, secret: bytes = b"") -> None:
        """Create a sealer. Raises ValueError for short keys."""
        keys = [encryption_key, *retired] if encryption_key else []
        if any(len(key) < MIN_KEY_BYTES for key in keys):
            raise ValueError(
                f"store.encryption_key: must have at least {MIN_KEY_BYTES} bytes; make one with `openssl rand -hex 32`"
            )
        self._ciphers = {_key_id(key): _cipher(key) for key in keys}
        self._current = next(iter(self._ciphers), None)
        self._client_key = blake2b(secret, digest_size=32, person=b"concertina-item").digest()
        self.unreadable = 0
        """The number of existing values that could not be used."""

    @property
    def key_ids(self) -> list[str]:
        """Return the ids of keys in hex, as in sealed values: the one in use, then the retired ones."""
        return [key_id.hex() for key_id in self._ciphers]

    def seal(self, key: str, plain: bytes) -> bytes:
        """Return the value to store under `key`. More than `MAX_PLAIN_BYTES` is sealed, but not opened again."""
        packed = zlib.compress(plain)
        if self._current is None:
            return _PLAIN_HEADER + _checksum(key, packed) + packed
        head = _ENCRYPTED_HEADER + self._current
        nonce = os.urandom(_NONCE_BYTES)
        return head + nonce + self._ciphers[self._current].encrypt(nonce, packed, head + _name(key))

    def open(self, key: str, sealed: bytes | None) -> bytes | None:
        """Return the content that was sealed under `key`; None for a miss or anything else."""
        if sealed is None:
            return None
        plain = self._open(key, sealed)
        self.unreadable += plain is None
        return plain

    def seal_for_client(self, key: str, plain: bytes) -> bytes:
        """Return a value for a client: encrypted with a key, otherwise authenticated by the secret."""
        if self._current is not None:
            return self.seal(key, plain)
        packed = zlib.compress(plain)
        return _CLIENT_HEADER + self._client_mac(key, packed) + packed

    def open_from_client(self, key: str, sealed: bytes, limit: int) -> bytes | None:
        """Return a client's value of at most `limit` bytes; None if `seal_for_client` did not seal it.

        It may be older than the key. Release 0.2.0 sealed with a checksum if it had no key. That opens only if there is
        still none.
        """
        header, body = sealed[:_HEADER_BYTES], sealed[_HEADER_BYTES:]
        packed = None
        if header == _CLIENT_HEADER:
            mac, packed = body[:_CHECKSUM_BYTES], body[_CHECKSUM_BYTES:]
            packed = packed if hmac.compare_digest(mac, self._client_mac(key, packed)) else None
        elif header == _ENCRYPTED_HEADER:
            packed = self._decrypt(key, body)
        elif header == _PLAIN_HEADER and not self._ciphers:
            packed = _verify(key, body)
        return None if packed is None else _decompress(packed, limit)

    def is_later(self, sealed: bytes) -> bool:
        """Return True if a later release has sealed the value. Its replicas can use it."""
        return sealed[:1] > bytes((VERSION,))

    def _open(self, key: str, sealed: bytes) -> bytes | None:
        header, body = sealed[:_HEADER_BYTES], sealed[_HEADER_BYTES:]
        if self._ciphers:
            packed = self._decrypt(key, body) if header == _ENCRYPTED_HEADER else None
        else:
            packed = _verify(key, body) if header == _PLAIN_HEADER else None
        return None if packed is None else _decompress(packed)

    def read(self, key: str, sealed: bytes | None, decode: Callable[[bytes], _T]) -> _T | None:
        """Return the value that was sealed under `key`; None for a miss, or if it cannot be trusted or decoded."""
        plain = self.open(key, sealed)
        try:
            return None if plain is None else decode(plain)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            self.unreadable += 1
            return None

    def _client_mac(self, key: str, packed: bytes) -> bytes:
        digest = blake2b(_CLIENT_HEADER, key=self._client_key, digest_size=_CHECKSUM_BYTES)
        digest.update(len(name := _name(key)).to_bytes(8, "big") + name)
        digest.update(packed)
        return digest.digest()

    def _decrypt(self, key: str, body: bytes) -> bytes | None:
        from cryptography.exceptions import InvalidTag

        key_id, nonce_and_text = body[:_KEY_ID_BYTES], body[_KEY_ID_BYTES:]
        cipher = self._ciphers.get(key_id)
        if cipher is None or len(nonce_and_text) < _NONCE_BYTES:
            return None
        try:
            return cipher.decrypt(
                nonce_and_text[:_NONCE_BYTES], nonce_and_text[_NONCE_BYTES:], _ENCRYPTED_HEADER + key_id + _name(key)
            )
        except InvalidTag:
            return None


@dataclass(frozen=True, slots=True)
class SealedStore:
    """A store with sealed values, each for its key, that live for `ttl` seconds.

    Tombstones, locks and the names in indexes are not sealed: use `store` for them.
    """

    store: Store
    sealer: Sealer
    ttl: float

    async def open_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values in the order of the keys, None for a miss. One round trip."""
        values = await self.store.get_many(keys)
        return [self.sealer.open(key, value) for key, value in zip(keys, values, strict=True)]

    async def read_many(self, keys: Sequence[str], decode: Callable[[bytes], _T]) -> list[_T | None]:
        """Return the decoded values in the order of the keys, None for a miss. One round trip."""
        values = await self.store.get_many(keys)
        return [self.sealer.read(key, value, decode) for key, value in zip(keys, values, strict=True)]

    async def put(self, key: str, plain: bytes, *, only_new: bool = False) -> bytes | None:
        """Store a value over an existing one. Return the sealed result of `Store.put`."""
        return await self.store.put(key, self.sealer.seal(key, plain), self.ttl, only_new=only_new)


def _name(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 7 MB that only encryption needs

    # Operators' keys have any length and alphabet. AES-256 takes 32 bytes.
    return AESGCM(blake2b(key, digest_size=32, person=b"concertina-seal").digest())


def _key_id(key: bytes) -> bytes:
    return blake2b(key, digest_size=_KEY_ID_BYTES, person=b"concertina-kid").digest()


def _checksum(key: str, packed: bytes) -> bytes:
    digest = blake2b(_PLAIN_HEADER, digest_size=_CHECKSUM_BYTES)
    name = _name(key)
    digest.update(len(name).to_bytes(8, "big") + name)
    digest.update(packed)
    return digest.digest()


def _verify(key: str, body: bytes) -> bytes | None:
    checksum, packed = body[:_CHECKSUM_BYTES], body[_CHECKSUM_BYTES:]
    return packed if hmac.compare_digest(checksum, _checksum(key, packed)) else None


def _decompress(packed: bytes, limit: int = MAX_PLAIN_BYTES) -> bytes | None:
    """Return the content of at most `limit` bytes: foreign values must not fill the memory."""
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(packed, limit)
    except zlib.error:
        return None
    return plain if inflate.eof and not inflate.unused_data else None
