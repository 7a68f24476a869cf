"""What a request's path means, however it is spelled: which paths are ours, and which hold dot segments."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote_to_bytes

OURS = frozenset({"admin", "metrics", "livez", "readyz", "openapi.json", "favicon.ico"})
# A path that is still encoded after so many decodings was written to be misread.
_MOST_DECODINGS = 5
# Clients ask for a handful of paths again and again.
_REMEMBERED = 256
# The letter that a lenient decoder makes of two to four bytes where UTF-8 has one (RFC 3629, section 10).
_OVERLONG = re.compile(rb"[\xc0\xc1][\x80-\xbf]|\xe0[\x80\x81][\x80-\xbf]|\xf0\x80[\x80\x81][\x80-\xbf]")
_MICROSOFTS = re.compile(rb"%u00(?=[0-9a-fA-F]{2})")
_SEPARATORS = re.compile(r"[/\\]+")
# What ends a name: parameters (RFC 3986, section 3.3), and a query or fragment that was encoded.
_NAME_ENDS = re.compile(r"[;?#]")
_UNSEEN = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True)
class Reading:
    """A path as the most lenient server reads it: decoded as often as it can be, \\ for /, empty segments left out.

    names:    its segments without parameters, dot segments among them.
    has_dots: whether there are any, or nobody can tell.
    """

    path: str
    names: tuple[str, ...]
    has_dots: bool

    @property
    def resolved(self) -> list[str]:
        """The names that are left where dot segments are followed."""
        left: list[str] = []
        for name in self.names:
            if name == "..":
                del left[-1:]
            elif name != ".":
                left.append(name)
        return left


@lru_cache(_REMEMBERED)
def reading(path: bytes) -> Reading:
    """The path of a request's target, without its query, as it came."""
    for _ in range(_MOST_DECODINGS):
        decoded = _OVERLONG.sub(_letter, unquote_to_bytes(_MICROSOFTS.sub(b"%", path)))
        if decoded == path:
            break
        path = decoded
    else:
        return Reading("", (), has_dots=True)
    segments = _SEPARATORS.split(unicodedata.normalize("NFKC", path.decode("utf-8", "replace")).strip("/\\"))
    names = tuple(filter(None, map(_name, segments)))
    return Reading("/" + "/".join(segments), names, has_dots=".." in names or "." in names)


def is_ours(found: Reading) -> bool:
    """Whether a path is answered here and never relayed: the root, and everything at or below a name of ours."""
    if not found.path:
        return False
    starts = {*found.names[:1], *found.resolved[:1]}
    return not found.resolved or any(name.casefold() in OURS for name in starts)


def _letter(overlong: re.Match[bytes]) -> bytes:
    *_, high, low = overlong[0]
    return bytes([(high & 1) << 6 | low & 0x3F])


def _name(segment: str) -> str:
    return _NAME_ENDS.split(_UNSEEN.sub("", segment), maxsplit=1)[0]
