"""The admin token: configured, or generated at the first start and stored next to the store."""

import base64
import errno
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import unquote_to_bytes

from proxy.config.settings import Config
from proxy.sessions.stores import beside

_SHAPE = re.compile(r"[A-Za-z0-9_-]{43}")
_MOST_BYTES = 100


@dataclass(frozen=True, slots=True)
class AdminToken:
    """The token in force.

    file: of a generated token; None if it is configured, or known only to this process. trouble: a problem with the
    file, for the operator.
    """

    value: str = field(repr=False)
    is_configured: bool = False
    file: Path | None = None
    trouble: str | None = None


class UnfitError(Exception):
    """A file that must not be trusted for the token, for the reason in the text."""


def configured_token(config: Config) -> AdminToken | None:
    """Return the configured token; None if the setting is empty."""
    value = config.server.admin_token.get_secret_value()
    return AdminToken(value, is_configured=True) if value else None


def token_file(config: Config) -> Path | None:
    """Return the file of a generated token; None if the store is no file."""
    return beside(config.store.url, "admin-token")


def known_token(config: Config) -> str | None:
    """Return the token of a proxy with this config; None if this process cannot know it."""
    if (token := configured_token(config)) is not None:
        return token.value
    file = token_file(config)
    try:
        return read_token(file) if file else None
    except (UnfitError, OSError):
        return None


def keep_token(file: Path | None) -> AdminToken:
    """Return the token of this file. A missing token, or one that others could read, is generated."""
    if file is None:
        return AdminToken(own_token())
    try:
        return _read_or_make(file)
    except (UnfitError, OSError) as error:
        why = str(error) if isinstance(error, UnfitError) else error.strerror
        trouble = f"{file} cannot be used ({why}), so the admin token is only in this process"
        return AdminToken(own_token(), trouble=trouble)


def read_token(file: Path) -> str:
    """Return the token in this file. Raises UnfitError, and OSError if it cannot be read."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnfitError("is a link") from None
        raise
    with os.fdopen(descriptor, "rb") as opened:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise UnfitError("is no regular file")
        if about.st_uid != os.geteuid():
            raise UnfitError("belongs to another user")
        if about.st_mode & 0o077:
            raise UnfitError("can be read or written by other users")
        token = opened.read(_MOST_BYTES).decode("latin-1").strip()
    if not _SHAPE.fullmatch(token):
        raise UnfitError("contains no token")
    return token


def _read_or_make(file: Path) -> AdminToken:
    trouble = None
    try:
        return AdminToken(read_token(file), file=file)
    except FileNotFoundError:
        pass
    except UnfitError as error:
        trouble = f"{file} {error}: it was replaced, and the admin token is new"
        file.unlink()
    return AdminToken(_write(file), file=file, trouble=trouble)


def _write(file: Path) -> str:
    """Generate a token and its file at once with its content. If another process was faster, return its token."""
    token, temporary = _new(), file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as opened:
            opened.write(token + "\n")
        file.hardlink_to(temporary)
    except FileExistsError:
        return read_token(file)
    finally:
        temporary.unlink()
    return token


@cache
def own_token() -> str:
    """Return the token without a file. Workers share it if it is generated before the fork."""
    return _new()


def _new() -> str:
    return secrets.token_urlsafe(32)


def carries(token: bytes, headers: Sequence[tuple[bytes, bytes]], query: bytes) -> bool:
    """Return True if the token is in a credential's place: in a header, a cookie or the query of a request."""
    candidates = (key for key in _candidates(headers, query, len(token)) if hmac.compare_digest(key, token))
    return bool(token) and any(candidates)


def _candidates(headers: Sequence[tuple[bytes, bytes]], query: bytes, least: int) -> Iterator[bytes]:
    """Yield possible keys with at least this length, encoded or not."""
    for name, value in headers:
        if len(value) < least:
            continue
        scheme, *credentials = value.split(None, 1) or [b""]
        yield value
        yield from (key.strip() for key in credentials)
        if scheme.lower() == b"basic":
            yield from _basic(b"".join(credentials))
        if name == b"cookie":
            yield from (unquote_to_bytes(cookie.partition(b"=")[2].strip(b' "')) for cookie in value.split(b";"))
    for parameter in query.split(b"&"):
        yield from map(unquote_to_bytes, (parameter, parameter.partition(b"=")[2]))


def _basic(credentials: bytes) -> Iterator[bytes]:
    """Yield user and password (RFC 7617). Each may be a key."""
    try:
        decoded = base64.b64decode(credentials.rstrip(b"= ") + b"==")
    except ValueError:
        return
    user, _, password = decoded.partition(b":")
    yield from (decoded, user, password)
