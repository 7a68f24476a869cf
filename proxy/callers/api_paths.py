"""What a request's path means, however it is spelled: whether it is ours, where it leads, and who may ask for it."""

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
# What a prefix that is no /v1 has to end with, before a path that does not tell by itself that it is a dialect's.
_API = re.compile(r"/(?:v\d\w*|openai)$", re.IGNORECASE)
# Azure's, where a model is deployed under a name; data of one's own had a path below that.
_DEPLOYMENTS, _BELOW = re.compile(r"/openai/deployments/", re.IGNORECASE), "/extensions"
_AZURES = re.compile(r"/openai(?=/|$)", re.IGNORECASE)
# Without this Azure answers nothing.
_VERSION = "api-version"
_SEPARATORS = re.compile(r"[/\\]+")
# Asking what may be asked, as browsers do, tells nothing.
_ALWAYS = ("OPTIONS",)
_IMPLIED = {"GET": ("HEAD", *_ALWAYS)}
# What a shared key may be used for: models, and nothing that somebody has stored under it.
_POSTS = (
    *(f"/v1/{path.pattern}" for dialect in DIALECTS for path in dialect.paths),
    # Others of OpenAI's, by whomever they are served
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
# What ends a name: parameters (RFC 3986, section 3.3), and a query or fragment that was encoded.
_NAME_ENDS = re.compile(r"[;?#]")
_UNSEEN = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a client has its API, other than at /v1.

    prefix:  what stands before the path of its dialect, as the client wrote it; empty for /v1 and for nothing.
    model:   that of the deployment which the prefix names; empty where it names none.
    version: the parameter by which it asks for a version of the API, as it wrote it; empty without one.
    """

    prefix: str = ""
    model: str = ""
    version: str = ""

    def prefix_for(self, model: str) -> str:
        """The prefix of another deployment, where that is what models are named by."""
        found = _DEPLOYMENTS.search(self.prefix)
        if found is None or model == self.model:
            return self.prefix
        return self.prefix[: found.end()] + quote(model)

    def for_query(self, query: str) -> "Mount":
        """The same of a request with this query."""
        found = (parameter for parameter in query.split("&") if _named_by(parameter) == _VERSION)
        return replace(self, version=next(found, ""))


NO_MOUNT = Mount()


@dataclass(frozen=True, slots=True)
class PathReading:
    """A path as the most lenient server reads it: decoded as often as it can be, \\ for /, empty segments left out.

    names:    its segments without parameters, dot segments among them.
    has_dots: whether there are any, or nobody can tell.
    asked:    what it asks for: its names in lower case, without /v1, which base_url may have left to the client too, or
              without the mount; of a dialect's path as the dialect writes it.
    route:    the same by a pattern of a fixed list; None for what is none of them.
    mount:    what stands before the path of a dialect.
    found:    the path of a dialect; None where it is none. below: the same, also where it is one below.
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
        """That which the path names, by itself or by a deployment; empty where it names none."""
        return (self.found.model if self.found else "") or self.mount.model

    @property
    def resolved_names(self) -> list[str]:
        """The names that are left where dot segments are followed."""
        left: list[str] = []
        for name in self.names:
            if name == "..":
                del left[-1:]
            elif name != ".":
                left.append(name)
        return left


@lru_cache(_REMEMBERED)
def reading(path: bytes) -> PathReading:
    """The path of a request's target, without its query, as it came."""
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
    asked = tuple(map(str.casefold, plain))
    whole, has_dots = "/" + "/".join(segments), ".." in names or "." in names
    below = match_prefix(plain)
    if below is not None:
        found = below if len(below.names) == len(plain) else None
        asked = found.names if found else asked
        return PathReading(whole, names, has_dots, asked, _route(whole, asked), found=found, below=below)
    route = _route(whole, asked)
    end, mount, found = ((), NO_MOUNT, None) if has_dots else _split_mount(raw, names, asked)
    if end:
        route = route or _route("/v1/" + "/".join(end), end)
        return PathReading(whole, names, has_dots, end, route, mount, found, found)
    return PathReading(whole, names, has_dots, asked, route)


def _split_mount(
    raw: str, names: tuple[str, ...], asked: tuple[str, ...]
) -> tuple[tuple[str, ...], Mount, MatchedPath | None]:
    """The end of a path that is ours or a dialect's, what stands before it, and the dialect's path; nothing for any
    other, and where a server might read the path otherwise than it is written."""
    if asked[: len(EXPLAIN)] == EXPLAIN or names != tuple(filter(None, unquote(raw).split("/"))):
        return (), NO_MOUNT, None
    written = [*filter(None, raw.split("/"))]
    for length in range(1, len(written)):
        end, prefix = written[-length:], "/" + "/".join(written[:-length])
        found = match_path([_with_model(name) for name in end])
        if tuple(map(str.lower, end)) == EXPLAIN:
            return EXPLAIN, _mount(prefix), None
        if found is not None and (found.path.is_known or _API.search(prefix)):
            return found.names, _mount(prefix), found
    return (), NO_MOUNT, None


def _with_model(segment: str) -> str:
    """A segment as it is matched: a name that is followed by a verb may be encoded, plain words may not."""
    return unquote(segment) if ":" in segment else segment


def _mount(prefix: str) -> Mount:
    at = _DEPLOYMENTS.search(prefix)
    return Mount(prefix, unquote(prefix[at.end() :].removesuffix(_BELOW)) if at else "")


def _route(path: str, asked: tuple[str, ...]) -> str | None:
    spelled = (f"/v1/{'/'.join(asked)}", path)
    return next((route for route in _ROUTES for each in spelled if fnmatchcase(each, route)), None)


@lru_cache(_REMEMBERED)
def is_ours(found: PathReading) -> bool:
    """Whether a path is answered here and never relayed: the root, and everything at or below a name of ours."""
    if not found.path:
        return False
    starts = {*found.names[:1], *found.resolved_names[:1]}
    if tuple(found.resolved_names) == _HELLO:
        return True
    return not found.resolved_names or any(name.casefold() in OURS for name in starts)


def resource(found: PathReading) -> tuple[str, ...]:
    """What a path asks for."""
    return found.asked


def resource_url(base_url: str, names: Iterable[str], target: str = "", prefix: str = "") -> str:
    """The upstream's address for a resource, however the client spelled it: what was counted goes nowhere else.

    target: the client's, of which the query is kept. prefix: of a mount.
    """
    base, _, always = base_url.partition("?")
    _, mark, query = target.partition("?")
    return _asking("/".join((_beside(base, prefix) if prefix else base, *names)) + mark + query, always)


def question_url(base_url: str, names: Iterable[str], mount: Mount, model: str) -> str:
    """The upstream's address for a question of ours to a model, at the mount of the client on whose behalf it is."""
    return resource_url(base_url, names, f"?{mount.version}" if mount.version else "", mount.prefix_for(model))


def upstream_url(base_url: str, target: str) -> str:
    """The upstream's address for a client's path: base_url stands for our /v1; other paths stand beside it.

    Raises InvalidRequestError for what is no path, such as the * of OPTIONS: it would change the address itself.
    """
    if not target.startswith("/"):
        raise InvalidRequestError("The request's target must be a path.")
    base, _, always = base_url.partition("?")
    path, mark, query = target.partition("?")
    at = base + path if _RESOURCES.match(path) else _beside(base, path)
    return _asking(at + mark + query, always)


def is_deployment(base_url: str) -> bool:
    """Whether an address is that of one model, and has no list of others."""
    return _DEPLOYMENTS.search(base_url.partition("?")[0]) is not None


def _beside(base: str, path: str) -> str:
    """A client's path at an upstream: what both name is named once."""
    within = urlsplit(base).path
    if within and f"{path}/".startswith(f"{within}/"):
        return base.removesuffix(within) + path
    if path == "/v1" or path.startswith("/v1/"):
        return base + path.removeprefix("/v1")
    own = _AZURES.search(base, len(base) - len(within)) if _AZURES.match(path) else None
    return (base[: own.start()] if own else base.removesuffix("/v1")) + path


def _asking(url: str, always: str) -> str:
    """The same with the parameters of base_url that the client has not sent."""
    if not always:
        return url
    query = url.partition("?")[2]
    sent = set(map(_named_by, query.split("&")))
    more = "&".join(parameter for parameter in always.split("&") if _named_by(parameter) not in sent)
    if not more:
        return url
    return url + ("&" if query else "" if url.endswith("?") else "?") + more


def _named_by(parameter: str) -> str:
    """The name of a parameter, for which Azure takes upper and lower case."""
    return unquote(parameter.partition("=")[0]).casefold()


def allows(rules: Iterable[str], method: str, found: PathReading) -> bool:
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
