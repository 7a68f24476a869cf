"""What a request's path means, however it is spelled: whether it is ours, where it leads, and who may ask for it."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import dropwhile
from urllib.parse import unquote_to_bytes

from proxy.errors import InvalidRequestError

# Whether anybody is there, as Claude Code asks before its first request (code.claude.com, llm-gateway-protocol).
_HELLO = ("api", "hello")
OURS = frozenset({"admin", "metrics", "livez", "readyz", "openapi.json", "favicon.ico"})
# A path that is still encoded after so many decodings was written to be misread.
_MOST_DECODINGS = 5
# Clients ask for a handful of paths again and again.
_REMEMBERED = 256
# The letter that a lenient decoder makes of two to four bytes where UTF-8 has one (RFC 3629, section 10).
_OVERLONG = re.compile(rb"[\xc0\xc1][\x80-\xbf]|\xe0[\x80\x81][\x80-\xbf]|\xf0\x80[\x80\x81][\x80-\xbf]")
_MICROSOFTS = re.compile(rb"%u00(?=[0-9a-fA-F]{2})")
# What OpenAI's SDKs ask for when they are given an address without /v1.
_RESOURCES = re.compile(
    r"/(?:assistants|audio|batches|chat|completions|containers|conversations|embeddings|evals|files|fine_tuning|images"
    r"|messages|models|moderations|organization|realtime|responses|threads|uploads|vector_stores|videos)(?:/|$)"
)
EXPLAIN = ("compaction", "explain")
RESPONSES = ("responses",)
_SEPARATORS = re.compile(r"[/\\]+")
# Asking what may be asked, as browsers do, tells nothing.
_ALWAYS = ("OPTIONS",)
_IMPLIED = {"GET": ("HEAD", *_ALWAYS)}
# What a shared key may be used for: models, and nothing that somebody has stored under it.
_POSTS = (
    # OpenAI's and Anthropic's, by whomever they are served
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/responses/input_tokens"),
    *("/v1/responses/compact", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings", "/v1/moderations"),
    *("/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations"),
    *("/v1/images/generations", "/v1/images/edits", "/v1/images/variations"),
    # Azure's and Google's
    *("/v1/engines/*/completions", "/openai/deployments/*/chat/completions"),
    *("/openai/deployments/*/completions", "/openai/deployments/*/embeddings"),
    *("/v1beta/models/*:generateContent", "/v1beta/models/*:streamGenerateContent"),
    *("/v1beta/models/*:countTokens", "/v1beta/models/*:embedContent"),
    # vLLM's, llama.cpp's and Ollama's own
    *("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/tokenize", "/detokenize", "/pooling"),
    *("/classify", "/completion", "/completions", "/infill", "/embedding", "/embeddings", "/apply-template"),
    *("/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show"),
)
_GETS = ("/api/tags", "/api/version", "/health", "/v1/health", "/version", "/props", "/v1/models", "/v1/models/*")
_ROUTES = (*_POSTS, *_GETS, "/v1/compaction/explain")
MODEL_PATHS = (*(f"POST {path}" for path in _POSTS), *(f"GET {path}" for path in _GETS))
# What ends a name: parameters (RFC 3986, section 3.3), and a query or fragment that was encoded.
_NAME_ENDS = re.compile(r"[;?#]")
_UNSEEN = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True)
class Reading:
    """A path as the most lenient server reads it: decoded as often as it can be, \\ for /, empty segments left out.

    names:    its segments without parameters, dot segments among them.
    has_dots: whether there are any, or nobody can tell.
    asked:    what it asks for: its names in lower case, without /v1, which base_url may have left to the client too.
    route:    the same by a pattern of a fixed list; None for what is none of them.
    """

    path: str
    names: tuple[str, ...]
    has_dots: bool
    asked: tuple[str, ...] = ()
    route: str | None = None

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
    asked = tuple(dropwhile("v1".__eq__, (name.casefold() for name in names)))
    whole = "/" + "/".join(segments)
    return Reading(whole, names, ".." in names or "." in names, asked, _route(whole, asked))


def _route(path: str, asked: tuple[str, ...]) -> str | None:
    spelled = (f"/v1/{'/'.join(asked)}", path)
    return next((route for route in _ROUTES for each in spelled if fnmatchcase(each, route)), None)


@lru_cache(_REMEMBERED)
def is_ours(found: Reading) -> bool:
    """Whether a path is answered here and never relayed: the root, and everything at or below a name of ours."""
    if not found.path:
        return False
    starts = {*found.names[:1], *found.resolved[:1]}
    if tuple(found.resolved) == _HELLO:
        return True
    return not found.resolved or any(name.casefold() in OURS for name in starts)


def resource(found: Reading) -> tuple[str, ...]:
    """What a path asks for."""
    return found.asked


def resource_url(base_url: str, names: Iterable[str], target: str = "") -> str:
    """The upstream's address for a resource, however the client spelled it: what was counted goes nowhere else."""
    _, mark, query = target.partition("?")
    return "/".join((base_url, *names)) + mark + query


def upstream_url(base_url: str, target: str) -> str:
    """The upstream's address for a client's path: base_url stands for our /v1; other paths stand beside it.

    Raises InvalidRequestError for what is no path, such as the * of OPTIONS: it would change the address itself.
    """
    if not target.startswith("/"):
        raise InvalidRequestError("The request's target must be a path.")
    path = target.partition("?")[0]
    if path == "/v1" or path.startswith("/v1/"):
        return base_url + target[len("/v1") :]
    if _RESOURCES.match(path):
        return base_url + target
    return base_url.removesuffix("/v1") + target


def allows(rules: Iterable[str], method: str, found: Reading) -> bool:
    """Whether one of these rules holds: paths with * and ? as in file names, some for one method only."""
    path = f"/v1{found.path}" if _RESOURCES.match(found.path) else found.path
    return any(_fits(rule, method, path) for rule in rules)


def _fits(rule: str, method: str, path: str) -> bool:
    wanted, _, pattern = rule.rpartition(" ")
    return fnmatchcase(path, pattern) and (not wanted or method in (wanted, *_IMPLIED.get(wanted, _ALWAYS)))


def _letter(overlong: re.Match[bytes]) -> bytes:
    *_, high, low = overlong[0]
    return bytes([(high & 1) << 6 | low & 0x3F])


def _name(segment: str) -> str:
    return _NAME_ENDS.split(_UNSEEN.sub("", segment), maxsplit=1)[0]
