"""Types of single settings: addresses, keys and names, with their validation and error texts."""

import base64
import re
from collections.abc import Mapping
from typing import Annotated, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, SecretStr, StringConstraints, WithJsonSchema

from proxy.config import proxies
from proxy.models import encodings
from proxy.sessions.stores.redis import url as redis_url

_HASHED = re.compile(r"sha256:[0-9a-f]{64}")
_NOT_HASHED = (
    "must be the key's hash, sha256:<64 hex digits>, never the key itself;"
    " run `concertina keys new TENANT`, or hash your own key with `printf %s KEY | sha256sum`"
)
_PATH_RULE = re.compile(r"\A(?:[A-Z]+ )?/[!-~]*")
_NO_PATH_RULE = (
    "must be a path, with * and ? as in file names, and optionally a method before it:"
    " /v1/models, /v1/audio/*, POST /v1/embeddings"
)
# A base_url is shown in logs and on pages, so it must contain no key.
_KEY_PARAMETERS = frozenset({"key", "apikey", "token", "secret", "password", "sig", "signature", "code"})
# RFC 9110, section 5.1. Headers of the connection, or with a setting of their own.
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_NO_STATIC_HEADER = frozenset(
    {
        *("connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive", "te"),
        *("proxy-authorization", "proxy-connection", "trailer", "transfer-encoding", "upgrade"),
    }
)
_URL_SAFE = str.maketrans("-_", "+/")
_BASE_URL = "must be an http:// or https:// URL with a host"
_STORE_URL = f"must be sqlite:///PATH, memory://, {redis_url.FORMS}"


def _check_printable(url: str, message: str) -> None:
    if not url.isprintable() or " " in url:
        raise ValueError(f"{message}, without spaces or control characters")


def _split(url: str, message: str) -> SplitResult:
    """Return the parts of a URL, all validated. Errors do not show the URL, since it may contain a password."""
    _check_printable(url, message)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError(message) from None
    return parts


def _base_url(url: str) -> str:
    parts = _split(url, _BASE_URL)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(_BASE_URL)
    if "@" in parts.netloc:
        raise ValueError("must not contain credentials; put the key into api_key")
    if parts.fragment:
        raise ValueError("must not have a fragment")
    names = [name.lower().replace("_", "-") for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if not _KEY_PARAMETERS.isdisjoint(name.rpartition("-")[2] for name in names):
        raise ValueError("must contain no credentials in its query; put the key into api_key")
    address, _, query = url.partition("?")
    return address.rstrip("/") + (f"?{query}" if query else "")


def _without_query(url: str) -> str:
    if "?" in url:
        raise ValueError("must not have a query")
    return url


def _store_url(url: str) -> str:
    if url.partition("://")[0].lower() in redis_url.SCHEMES:
        _check_printable(url, _STORE_URL)
        redis_url.parse(url)
        return url
    parts = _split(url, _STORE_URL)
    if parts.scheme not in ("sqlite", "memory"):
        raise ValueError(_STORE_URL)
    if parts.scheme == "sqlite" and (parts.netloc or not parts.path.strip("/")):
        raise ValueError("sqlite needs a path after three slashes, sqlite:///var/concertina.db")
    return url


def _header_pairs(value: object) -> object:
    """Return the headers of a mapping as pairs with lower-case names. Upstreams must be hashable."""
    if not isinstance(value, Mapping):  # pydantic accepts only a ValueError
        raise ValueError("must be a mapping of header names to values")  # noqa: TRY004
    for name, text in value.items():
        if not _HEADER_NAME.fullmatch(str(name)) or str(name).lower() in _NO_STATIC_HEADER:
            raise ValueError(f"{name!r} cannot be set here; use another header name")
        if not (isinstance(text, str) and text.isascii() and text.isprintable() and text == text.strip()):
            raise ValueError(f"{name!r} must be printable ASCII in one line")
    return tuple((str(name).lower(), text) for name, text in value.items())


def _visible(secret: SecretStr) -> SecretStr:
    """Validate a key for a header, in which a line break would start another header."""
    text = secret.get_secret_value()
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise ValueError("must be printable ASCII without spaces or line breaks")
    return secret


def _proxy(setting: SecretStr) -> SecretStr:
    """Validate a proxy's URL. Errors do not show it, since it may contain a password."""
    url = setting.get_secret_value()
    if not url or url.lower() in proxies.NONE:
        return setting
    try:
        proxies.parse(url, proxies.SETTING, has_scheme=True)
    except ValueError as error:
        raise ValueError(f"{error}; or none, to use no proxy") from None
    return setting


def _encoding(name: str) -> str:
    if name in encodings.NAMES or encodings.is_file(name):
        return name
    names = ", ".join(encodings.NAMES)
    raise ValueError(f"must be {names} or the path of a tokenizer.json; for other models download theirs")


def _key_hash(key: str) -> str:
    if not _HASHED.fullmatch(key.lower()):
        raise ValueError(_NOT_HASHED)
    return key.lower()


def _path_rule(rule: str) -> str:
    if not _PATH_RULE.fullmatch(rule):
        raise ValueError(_NO_PATH_RULE)
    return rule


def decode_key(text: str) -> bytes | None:
    """Return the 32 bytes of a text in hex or base64 (either alphabet, padded or not); None if it is neither."""
    try:
        if len(text) == 64:
            return bytes.fromhex(text)
        padded = text.rstrip("=").translate(_URL_SAFE) + "=" * (-len(text.rstrip("=")) % 4)
        key = base64.b64decode(padded, validate=True)
    except ValueError:
        return None
    return key if len(key) == 32 else None


BaseUrl = Annotated[str, AfterValidator(_base_url)]
AnyBaseUrl = Annotated[str, AfterValidator(lambda url: _without_query(_base_url(url)) if url else url)]
StoreUrl = Annotated[str, AfterValidator(_store_url)]
ApiKey = Annotated[SecretStr, AfterValidator(_visible)]
StaticHeaders = Annotated[
    tuple[tuple[str, SecretStr], ...],
    BeforeValidator(_header_pairs),
    PlainSerializer(dict),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
]
ProxyUrl = Annotated[SecretStr, AfterValidator(_proxy)]
KeyHash = Annotated[str, AfterValidator(_key_hash)]
_ENCODING_SCHEMA: Final = {"anyOf": [{"enum": list(encodings.NAMES)}, {"type": "string", "pattern": r"\.json$"}]}
EncodingName = Annotated[str, AfterValidator(_encoding), WithJsonSchema(_ENCODING_SCHEMA)]
PathRule = Annotated[str, AfterValidator(_path_rule)]
Glob = Annotated[str, StringConstraints(min_length=1, max_length=200)]
