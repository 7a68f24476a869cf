"""What a stored value looks like: versioned, compressed, bound to its key, and encrypted when a key is set.

    version (1 byte) | flags (1 byte) | body
    plain body:      checksum (16 bytes) | zlib
    encrypted body:  key id (4 bytes) | nonce (12 bytes) | AES-256-GCM(zlib)
    client's body:   MAC by the store's secret (16 bytes) | zlib

Clients keep values too (compaction items). Anybody can compute a checksum, so without a key those have a MAC.

Checksum and GCM tag also cover the header and the store key. So a value that was damaged, cut, swapped between keys,
or (when encrypted) written by anyone else is a miss. That is the second line against a reply reaching the wrong
caller, as in ChatGPT's incident of 2023-03-20.
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
    """Seals with `encryption_key` (at least 16 bytes); opens with it and with the `retired` ones, for rotation.

    With a key, values that are not encrypted are misses: a writer to the store must not get round it by not using it.
    secret: the store's, which authenticates what clients keep if there is no key.
    """

    def __init__(self, encryption_key: bytes | None, retired: Sequence[bytes] = (), *, secret: bytes = b"") -> None:
        keys = [encryption_key, *retired] if encryption_key else []
        if any(len(key) < MIN_KEY_BYTES for key in keys):
            raise ValueError(
                f"store.encryption_key: at least {MIN_KEY_BYTES} bytes are needed; try openssl rand -hex 32"
            )
        self._ciphers = {_key_id(key): _cipher(key) for key in keys}
        self._current = next(iter(self._ciphers), None)
        self._client_key = blake2b(secret, digest_size=32, person=b"concertina-item").digest()
        self.unreadable = 0
        """Values that were there, and could not be used."""

    @property
    def key_ids(self) -> list[str]:
        """What values are marked with that a key has sealed, in hex: of the one in use, then of the retired ones."""
        return [key_id.hex() for key_id in self._ciphers]

    def seal(self, key: str, plain: bytes) -> bytes:
        """What to store under `key`. More than `MAX_PLAIN_BYTES` is sealed, but will not be opened."""
        packed = zlib.compress(plain)
        if self._current is None:
            return _PLAIN_HEADER + _checksum(key, packed) + packed
        head = _ENCRYPTED_HEADER + self._current
        nonce = os.urandom(_NONCE_BYTES)
        return head + nonce + self._ciphers[self._current].encrypt(nonce, packed, head + _name(key))

    def open(self, key: str, sealed: bytes | None) -> bytes | None:
        """What was sealed under `key`, or None for anything else: a miss too."""
        if sealed is None:
            return None
        plain = self._open(key, sealed)
        self.unreadable += plain is None
        return plain

    def seal_for_client(self, key: str, plain: bytes) -> bytes:
        """Return a value that a client keeps: encrypted if there is a key, else authenticated by the secret."""
        if self._current is not None:
            return self.seal(key, plain)
        packed = zlib.compress(plain)
        return _CLIENT_HEADER + self._client_mac(key, packed) + packed

    def open_from_client(self, key: str, sealed: bytes, most: int) -> bytes | None:
        """Return a value of at most `most` bytes that `seal_for_client` sealed, None for anything else.

        It may be older than the key. Release 0.2.0 sealed with a checksum if it had no key; that opens only if there
        still is none.
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
        return None if packed is None else _decompress(packed, most)

    def is_later(self, sealed: bytes) -> bool:
        """Whether a later release has sealed it, whose replicas can use it."""
        return sealed[:1] > bytes((VERSION,))

    def _open(self, key: str, sealed: bytes) -> bytes | None:
        header, body = sealed[:_HEADER_BYTES], sealed[_HEADER_BYTES:]
        if self._ciphers:
            packed = self._decrypt(key, body) if header == _ENCRYPTED_HEADER else None
        else:
            packed = _verify(key, body) if header == _PLAIN_HEADER else None
        return None if packed is None else _decompress(packed)

    def read(self, key: str, sealed: bytes | None, decode: Callable[[bytes], _T]) -> _T | None:
        """The JSON value that was sealed under `key`; None for a miss, and for what cannot be trusted or decoded."""
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

        key_id, rest = body[:_KEY_ID_BYTES], body[_KEY_ID_BYTES:]
        cipher = self._ciphers.get(key_id)
        if cipher is None or len(rest) < _NONCE_BYTES:
            return None
        try:
            return cipher.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], _ENCRYPTED_HEADER + key_id + _name(key))
        except InvalidTag:
            return None


@dataclass(frozen=True, slots=True)
class SealedStore:
    """A store whose values are sealed, each for its key, and live for `ttl` seconds. Tombstones, locks and the names in
    indexes are not sealed: `store` has them."""

    store: Store
    sealer: Sealer
    ttl: float

    async def open_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values in the order of the keys, None for a miss; one round trip."""
        values = await self.store.get_many(keys)
        return [self.sealer.open(key, value) for key, value in zip(keys, values, strict=True)]

    async def read_many(self, keys: Sequence[str], decode: Callable[[bytes], _T]) -> list[_T | None]:
        """The same, decoded."""
        values = await self.store.get_many(keys)
        return [self.sealer.read(key, value, decode) for key, value in zip(keys, values, strict=True)]

    async def put(self, key: str, plain: bytes, *, only_new: bool = False) -> bytes | None:
        """Store a value over whatever was there; what `Store.put` returns, sealed as it lies there."""
        return await self.store.put(key, self.sealer.seal(key, plain), self.ttl, only_new=only_new)


def _name(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 7 MB that only encryption needs

    # Operators' keys have any length and alphabet; AES-256 takes 32 bytes.
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


def _decompress(packed: bytes, most: int = MAX_PLAIN_BYTES) -> bytes | None:
    """Return the content of at most `most` bytes: what somebody else has written must not fill the memory."""
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(packed, most)
    except zlib.error:
        return None
    return plain if inflate.eof and not inflate.unused_data else None
