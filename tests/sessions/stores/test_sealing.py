"""Whatever lies in the store, only what was sealed under this key, by us, is opened."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.sessions.stores.sealing import MAX_PLAIN_BYTES, Sealer

KEY = "cp:{00ff}:0123"
PLAIN = Sealer(None)
SECRET = Sealer(b"an operator's key")
SEALERS = pytest.mark.parametrize("sealer", [PLAIN, SECRET], ids=["plain", "encrypted"])


@SEALERS
@given(value=st.binary(max_size=2000), key=st.text(max_size=80))
def test_what_was_sealed_is_opened(sealer: Sealer, value: bytes, key: str) -> None:
    assert sealer.open(key, sealer.seal(key, value)) == value


@SEALERS
@given(value=st.binary(max_size=300))
def test_any_bytes_are_a_miss_and_no_error(sealer: Sealer, value: bytes) -> None:
    for head in (b"", b"\x01\x00", b"\x01\x01"):
        assert sealer.open(KEY, head + value) is None


@SEALERS
def test_any_changed_bit_and_any_cut_is_a_miss(sealer: Sealer) -> None:
    sealed = sealer.seal(KEY, b"a summary of what was said, said, said")
    for position in range(len(sealed) * 8):
        damaged = bytearray(sealed)
        damaged[position // 8] ^= 1 << position % 8
        assert sealer.open(KEY, bytes(damaged)) is None, position
    assert all(sealer.open(KEY, sealed[:length]) is None for length in range(len(sealed)))
    assert sealer.open(KEY, sealed + b"\0") is None


@SEALERS
def test_a_value_moved_to_another_key_is_a_miss(sealer: Sealer) -> None:
    assert sealer.open(KEY + "4", sealer.seal(KEY, b"v")) is None


def test_with_a_key_nothing_unencrypted_is_opened_and_without_nothing_encrypted() -> None:
    assert SECRET.open(KEY, PLAIN.seal(KEY, b"v")) is None
    assert PLAIN.open(KEY, SECRET.seal(KEY, b"v")) is None


def test_another_key_does_not_open() -> None:
    assert Sealer(b"another operator's").open(KEY, SECRET.seal(KEY, b"v")) is None


def test_a_retired_key_still_opens_while_the_new_one_seals() -> None:
    rotated = Sealer(b"the key of this year", retired=[b"an operator's key"])
    assert rotated.open(KEY, SECRET.seal(KEY, b"v")) == b"v"
    assert SECRET.open(KEY, rotated.seal(KEY, b"v")) is None


def test_encrypting_hides_the_text_and_never_repeats() -> None:
    assert b"secret" not in SECRET.seal(KEY, b"secret")
    assert SECRET.seal(KEY, b"secret") != SECRET.seal(KEY, b"secret")


def test_text_is_stored_compressed() -> None:
    assert len(SECRET.seal(KEY, b"the same words " * 1000)) < 500


@SEALERS
def test_a_bomb_is_a_miss_and_the_largest_record_is_not(sealer: Sealer) -> None:
    assert sealer.open(KEY, sealer.seal(KEY, bytes(MAX_PLAIN_BYTES))) == bytes(MAX_PLAIN_BYTES)
    assert sealer.open(KEY, sealer.seal(KEY, bytes(MAX_PLAIN_BYTES + 1))) is None
    assert len(zlib.compress(bytes(MAX_PLAIN_BYTES))) < 10_000


def test_what_is_there_and_of_no_use_is_counted() -> None:
    sealer = Sealer(b"k" * 32)
    sealer.open(KEY, None)
    sealer.read(KEY, sealer.seal(KEY, b"{}"), msgspec.json.decode)
    assert sealer.unreadable == 0
    sealer.open(KEY, b"garbage")
    sealer.open("another key", sealer.seal(KEY, b"v"))
    sealer.read(KEY, sealer.seal(KEY, b"no JSON"), msgspec.json.decode)
    assert sealer.unreadable == 3


def test_a_short_encryption_key_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match=r"store\.encryption_key.*16 bytes"):
        Sealer(b"password")
