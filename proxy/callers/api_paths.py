"""The meaning of a request's path in any spelling: its owner, its upstream address and its permission."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import dropwhile
from urllib.parse import quote, unquote, unquote_to_bytes, urlsplit

from proxy.dialects.table import DIALECTS, MatchedPath, match_path, match_prefix
from proxy.errors import InvalidRequestError

# Claude Code's check before its first request (code.claude.com, llm-gateway-protocol).
_HELLO = ("api", "hello")
OURS = frozenset({"admin", "metrics", "livez", "readyz", "openapi.json", "favicon.ico"})
# A path that is still encoded after so many decodings is an attack.
_MOST_DECODINGS = 5
# Clients repeat a handful of paths.
_REMEMBERED = 256
# A lenient decoder reads an overlong sequence of two to four bytes as one character (RFC 3629, section 10).
_OVERLONG = re.compile(rb"[\xc0\xc1][\x80-\xbf]|\xe0[\x80\x81][\x80-\xbf]|\xf0\x80[\x80\x81][\x80-\xbf]")
_MICROSOFTS = re.compile(rb"%u00(?=[0-9a-fA-F]{2})")
# Paths of OpenAI's SDKs with an address without /v1.
_RESOURCES = re.compile(
    r"/(?:assistants|audio|batches|chat|completions|containers|conversations|embeddings|evals|files|fine_tuning|images"
    r"|messages|models|moderations|organization|realtime|responses|threads|uploads|vector_stores|videos)(?:/|$)"
)
EXPLAIN = ("compaction", "explain")
# The end of a prefix other than /v1, before a path that is ambiguous without it.
_API = re.compile(r"/(?:v\d\w*|openai)$", re.IGNORECASE)
# Azure's, with a model deployed under a name. Requests with their own data had a path below it.
_DEPLOYMENTS, _BELOW = re.compile(r"/openai/deployments/", re.IGNORECASE), "/extensions"
_AZURES = re.compile(r"/openai(?=/|$)", re.IGNORECASE)
# Azure refuses requests without it.
_VERSION = "api-version"
_SEPARATORS = re.compile(r"[/\\]+")
# A question for allowed methods, as browsers send it, reveals nothing.
_ALWAYS = ("OPTIONS",)
_IMPLIED = {"GET": ("HEAD", *_ALWAYS)}
# Paths for a shared key: models, and nothing that anyone has stored under the key.
_POSTS = (
    *(f"/v1/{path.pattern}" for dialect in DIALECTS for path in dialect.paths),
    # Others of OpenAI's, from any server
    *("/v1/completions", "/v1/embeddings", "/v1/moderations"),
    *("/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations"),
    *("/v1/images/generations", "/v1/images/edits", "/v1/images/variations"),
    # Azure's and Google's
    *("/v1/engines/*/completions", "/openai/deployments/*/chat/completions"),
    *("/openai/deployments/*/completions", "/openai/deployments/*/embeddings"),
    *("/openai/v1/chat/completions", "/openai/v1/responses", "/openai/responses", "/openai/v1/embeddings"),
    *("/v1/models/chat/completions", "/anthropic/v1/messages", "/anthropic/v1/messages/count_tokens"),
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
# The ends of a name: parameters (RFC 3986, section 3.3), and an encoded query or fragment.
_NAME_ENDS = re.compile(r"[;?#]")
_UNSEEN = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True)
class Mount:
    """The mount of a client's API, other than at /v1.

    prefix:  the path before that of its dialect, as the client wrote it; empty for /v1 and for nothing.
    model:   of the deployment in the prefix; empty without one.
    version: the parameter with the API version, as the client wrote it; empty without one.
    """

    prefix: str = ""
    model: str = ""
    version: str = ""

    def prefix_for(self, model: str) -> str:
        """Return the prefix for another model, if the prefix names a deployment."""
        deployment = _DEPLOYMENTS.search(self.prefix)
        if deployment is None or model == self.model:
            return self.prefix
        return self.prefix[: deployment.end()] + quote(model)

    def for_query(self, query: str) -> "Mount":
        """Return the mount of a request with this query."""
        versions = (parameter for parameter in query.split("&") if _named_by(parameter) == _VERSION)
        return replace(self, version=next(versions, ""))


NO_MOUNT = Mount()


@dataclass(frozen=True, slots=True)
class PathReading:
    """A path as the most lenient server reads it: decoded repeatedly, with slashes for backslashes.

    names:    its segments without parameters and without empty ones, including dot segments.
    has_dots: True if there are dot segments, or if it is unknown.
    asked:    the requested resource: its names in lower case, without /v1, which base_url may have left to the client
    too, or without the mount. For a dialect's path, the dialect's spelling.
    route:    the resource by a pattern of a fixed list; None for any other.
    mount:    the mount before the path of a dialect.
    found:    the path of a dialect; None for any other. below: likewise, also for a path below one.
    """

    path: str
    names: tuple[str, ...]
    has_dots: bool
    asked: tuple[str, ...] = ()
    route: str | None = None
    mount: Mount = NO_MOUNT
    found: MatchedPath | None = None
    below: MatchedPath | None = None

    @property
    def model(self) -> str:
        """Return the model in the path, by itself or by a deployment; empty without one."""
        return (self.found.model if self.found else "") or self.mount.model

    @property
    def resolved_names(self) -> list[str]:
        """Return the names after resolving dot segments."""
        names: list[str] = []
        for name in self.names:
            if name == "..":
                del names[-1:]
            elif name != ".":
                names.append(name)
        return names


@lru_cache(_REMEMBERED)
def reading(path: bytes) -> PathReading:
    """Read the raw path of a request's target, without its query."""
    raw = path.decode("latin-1")
    for _ in range(_MOST_DECODINGS):
        decoded = _OVERLONG.sub(_letter, unquote_to_bytes(_MICROSOFTS.sub(b"%", path)))
        if decoded == path:
            break
        path = decoded
    else:
        return PathReading("", (), has_dots=True)
    segments = _SEPARATORS.split(unicodedata.normalize("NFKC", path.decode("utf-8", "replace")).strip("/\\"))
    names = tuple(filter(None, map(_name, segments)))
    plain = tuple(dropwhile(lambda name: name.casefold() == "v1", names))
    resource_names = tuple(map(str.casefold, plain))
    full_path, has_dots = "/" + "/".join(segments), ".." in names or "." in names
    below = match_prefix(plain)
    if below is not None:
        matched = below if len(below.names) == len(plain) else None
        resource_names = matched.names if matched else resource_names
        return PathReading(
            full_path, names, has_dots, resource_names, _route(full_path, resource_names), found=matched, below=below
        )
    route = _route(full_path, resource_names)
    end, mount, matched = ((), NO_MOUNT, None) if has_dots else _split_mount(raw, names, resource_names)
    if end:
        route = route or _route("/v1/" + "/".join(end), end)
        return PathReading(full_path, names, has_dots, end, route, mount, matched, matched)
    return PathReading(full_path, names, has_dots, resource_names, route)


def _split_mount(
    raw: str, names: tuple[str, ...], resource_names: tuple[str, ...]
) -> tuple[tuple[str, ...], Mount, MatchedPath | None]:
    """Return the end of a path that is the proxy's or a dialect's, its mount, and the dialect's path.

    All are empty for any other path, and if a server might read the path differently.
    """
    if resource_names[: len(EXPLAIN)] == EXPLAIN or names != tuple(filter(None, unquote(raw).split("/"))):
        return (), NO_MOUNT, None
    written = [*filter(None, raw.split("/"))]
    for length in range(1, len(written)):
        end, prefix = written[-length:], "/" + "/".join(written[:-length])
        matched = match_path([_with_model(name) for name in end])
        if tuple(map(str.lower, end)) == EXPLAIN:
            return EXPLAIN, _mount(prefix), None
        if matched is not None and (matched.path.is_known or _API.search(prefix)):
            return matched.names, _mount(prefix), matched
    return (), NO_MOUNT, None


def _with_model(segment: str) -> str:
    """Return a segment for matching: a name followed by a verb may be encoded, plain words may not."""
    return unquote(segment) if ":" in segment else segment


def _mount(prefix: str) -> Mount:
    at = _DEPLOYMENTS.search(prefix)
    return Mount(prefix, unquote(prefix[at.end() :].removesuffix(_BELOW)) if at else "")


def _route(path: str, resource_names: tuple[str, ...]) -> str | None:
    spelled = (f"/v1/{'/'.join(resource_names)}", path)
    return next((route for route in _ROUTES for each in spelled if fnmatchcase(each, route)), None)


@lru_cache(_REMEMBERED)
def is_ours(path_reading: PathReading) -> bool:
    """Return True if the proxy answers a path and never relays it: the root, and its own names with all below."""
    if not path_reading.path:
        return False
    starts = {*path_reading.names[:1], *path_reading.resolved_names[:1]}
    if tuple(path_reading.resolved_names) == _HELLO:
        return True
    return not path_reading.resolved_names or any(name.casefold() in OURS for name in starts)


def resource(path_reading: PathReading) -> tuple[str, ...]:
    """Return the requested resource of a path."""
    return path_reading.asked


def resource_url(base_url: str, names: Iterable[str], target: str = "", prefix: str = "") -> str:
    """Return the upstream's address for a resource in any spelling of the client.

    A counted request must not reach another resource. target: the client's, whose query is kept. prefix: of a mount.
    """
    base, _, always = base_url.partition("?")
    _, mark, query = target.partition("?")
    return _asking("/".join((_beside(base, prefix) if prefix else base, *names)) + mark + query, always)


def question_url(base_url: str, names: Iterable[str], mount: Mount, model: str) -> str:
    """Return the upstream's address for a proxy's own request to a model, at the mount of its client."""
    return resource_url(base_url, names, f"?{mount.version}" if mount.version else "", mount.prefix_for(model))


def upstream_url(base_url: str, target: str) -> str:
    """Return the upstream's address for a client's path. base_url replaces /v1, and other paths are next to it.

    Raises InvalidRequestError for a target without a path, such as the * of OPTIONS: it would change the address
    itself.
    """
    if not target.startswith("/"):
        raise InvalidRequestError("The request's target must be a path.")
    base, _, always = base_url.partition("?")
    path, mark, query = target.partition("?")
    address = base + path if _RESOURCES.match(path) else _beside(base, path)
    return _asking(address + mark + query, always)


def is_deployment(base_url: str) -> bool:
    """Return True if an address is that of one model, and has no list of others."""
    return _DEPLOYMENTS.search(base_url.partition("?")[0]) is not None


def _beside(base: str, path: str) -> str:
    """Return a client's path at an upstream. A part that both contain occurs once."""
    base_path = urlsplit(base).path
    if base_path and f"{path}/".startswith(f"{base_path}/"):
        return base.removesuffix(base_path) + path
    if path == "/v1" or path.startswith("/v1/"):
        return base + path.removeprefix("/v1")
    own = _AZURES.search(base, len(base) - len(base_path)) if _AZURES.match(path) else None
    return (base[: own.start()] if own else base.removesuffix("/v1")) + path


def _asking(url: str, always: str) -> str:
    """Add the parameters of base_url that the client has not sent."""
    if not always:
        return url
    query = url.partition("?")[2]
    sent = set(map(_named_by, query.split("&")))
    more = "&".join(parameter for parameter in always.split("&") if _named_by(parameter) not in sent)
    if not more:
        return url
    return url + ("&" if query else "" if url.endswith("?") else "?") + more


def _named_by(parameter: str) -> str:
    """Return the name of a parameter. Azure ignores its case."""
    return unquote(parameter.partition("=")[0]).casefold()


def allows(rules: Iterable[str], method: str, path_reading: PathReading) -> bool:
    """Return True if a rule matches: paths with * and ? as in file names, some for one method only."""
    path = f"/v1{path_reading.path}" if _RESOURCES.match(path_reading.path) else path_reading.path
    return any(_fits(rule, method, path) for rule in rules)


def _fits(rule: str, method: str, path: str) -> bool:
    wanted, _, pattern = rule.rpartition(" ")
    return fnmatchcase(path, pattern) and (not wanted or method in (wanted, *_IMPLIED.get(wanted, _ALWAYS)))


def _letter(overlong: re.Match[bytes]) -> bytes:
    *_, high, low = overlong[0]
    return bytes([(high & 1) << 6 | low & 0x3F])


def _name(segment: str) -> str:
    return _NAME_ENDS.split(_UNSEEN.sub("", segment), maxsplit=1)[0]
