"""The table of our own endpoints: routes, the OpenAPI document, pages, navigation and the commands' calls are made from
it. It imports no framework and no handler: commands read it."""

import re
from dataclasses import dataclass
from urllib.parse import quote

from proxy.admin.roles import EVERYBODY, FIGURES, OPERATORS, SIGNED_IN, Role

READY, METRICS, OPENAPI = "/readyz", "/metrics", "/openapi.json"
ADMIN = "/admin/"
API = f"{ADMIN}api/"
PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What is answered at a path below /admin/api/. name: of the method that handles it. has_page: whether a page has
    the same name, path, method and roles, below /admin/."""

    name: str
    method: str
    path: str
    roles: frozenset[Role]
    summary: str
    query: tuple[str, ...] = ()
    status: int = 200
    media: str = "application/json"
    has_page: bool = False

    def path_for(self, **values: str) -> str:
        """The whole path with these values, encoded, for its parameters."""
        return API + PARAMETER.sub(lambda found: quote(values[found[1]], safe=""), self.path)


@dataclass(frozen=True, slots=True)
class AdminPage:
    """A page at a path below /admin/. name: of the method that handles it."""

    name: str
    path: str
    roles: frozenset[Role]
    methods: tuple[str, ...] = ("GET",)


_SPAN, _WHICH = ("range", "sort"), ("tenant", "label")
_FOUND = ("tenant", "session", "outcome", "status", "id", "min_seconds", "since", "until")
_SESSION = "sessions/{id}"

# Of two paths that fit the first holds.
ENDPOINTS = (
    Endpoint("overview", "GET", "overview", EVERYBODY, "Health and figures", ("tenant", "range")),
    Endpoint(
        "requests",
        "GET",
        "requests",
        SIGNED_IN,
        "Requests of all replicas, the newest first",
        (*_FOUND, "limit", "cursor"),
    ),
    Endpoint("request", "GET", "requests/{request}", SIGNED_IN, "One request, by its id", has_page=True),
    Endpoint(
        *("live", "GET", "live", SIGNED_IN, "Requests as they end, as server-sent events", _FOUND),
        media="text/event-stream",
        has_page=True,
    ),
    Endpoint("models", "GET", "models", FIGURES, "Windows, and what was used", _SPAN),
    Endpoint(
        *("forget_model", "DELETE", "models/learned", OPERATORS, "Forget what was learned of a model"),
        query=("tenant", "upstream", "model"),
        status=204,
    ),
    Endpoint("tenants", "GET", "tenants", EVERYBODY, "Tenants with their figures", _SPAN),
    Endpoint("tenant", "GET", "tenants/{name}", EVERYBODY, "A tenant, its policy", ("range",), has_page=True),
    Endpoint("policy", "GET", "policies/{name}", FIGURES, "Settings, and where they come from"),
    Endpoint(
        *("explain", "POST", "explain", SIGNED_IN),
        "What would be done with the request in `body`, under `policies`, for `tenant`",
    ),
    Endpoint("config", "GET", "config", FIGURES, "The config in force, without secrets"),
    Endpoint("reload_config", "POST", "config/reload", OPERATORS, "Read the config's file again", has_page=True),
    Endpoint("replicas", "GET", "replicas", FIGURES, "Processes that serve, this one first"),
    Endpoint("store", "GET", "store", FIGURES, "The store and its operations"),
    Endpoint("probe_store", "POST", "store/probe", OPERATORS, "Write, read and erase an entry", has_page=True),
    Endpoint("sessions", "GET", "sessions", SIGNED_IN, "Stored sessions", ("tenant", "name", "limit", "cursor")),
    Endpoint(
        *("search", "GET", "search", SIGNED_IN),
        "Sessions by label, id, request id, model or tenant, of all that there are",
        ("tenant", "q", "state", "cursor"),
    ),
    Endpoint("erase_all", "DELETE", "sessions", SIGNED_IN, "Erase all", ("tenant", "all")),
    Endpoint("session", "GET", _SESSION, SIGNED_IN, "A session", _WHICH, has_page=True),
    Endpoint("trail", "GET", f"{_SESSION}/trail", SIGNED_IN, "Its requests as points", _WHICH),
    Endpoint("fates", "GET", f"{_SESSION}/fates", SIGNED_IN, "What became of its messages", _WHICH),
    Endpoint("prompts", "GET", f"{_SESSION}/prompts", SIGNED_IN, "Its newest prompts as they were sent", _WHICH),
    Endpoint("retained", "GET", f"{_SESSION}/retained", SIGNED_IN, "Which statements and rules survived", _WHICH),
    Endpoint("records", "GET", f"{_SESSION}/records", SIGNED_IN, "Its records", _WHICH),
    Endpoint(
        *("record", "GET", f"{_SESSION}/records/{{digest}}", SIGNED_IN),
        "A record, and what it took over from another",
        (*_WHICH, "against"),
        has_page=True,
    ),
    Endpoint(
        *("compact", "POST", f"{_SESSION}/compact", OPERATORS, "Have it compacted with its next request", _WHICH),
        status=202,
        has_page=True,
    ),
    Endpoint(
        *("undo", "POST", f"{_SESSION}/undo", OPERATORS, "Undo its newest record; the one before is in use", _WHICH),
        has_page=True,
    ),
    Endpoint("export", "GET", f"{_SESSION}/export", SIGNED_IN, "All that is stored of it", _WHICH),
    Endpoint(
        *("erase", "DELETE", "sessions/{name:path}", SIGNED_IN, "Erase the sessions with this label or id"),
        query=("tenant",),
    ),
)

PAGES = (
    AdminPage("overview", "", EVERYBODY),
    AdminPage("sessions", "sessions", SIGNED_IN),
    AdminPage("erase", f"{_SESSION}/erase", SIGNED_IN, ("POST",)),
    AdminPage("status", "status", EVERYBODY),
    AdminPage("models_csv", "models.csv", FIGURES),
    AdminPage("forget_model", "models/forget", OPERATORS, ("POST",)),
    AdminPage("tenants_csv", "tenants.csv", EVERYBODY),
    AdminPage("explain", "explain", SIGNED_IN, ("GET", "POST")),
    *(AdminPage(each.name, each.path, each.roles, (each.method,)) for each in ENDPOINTS if each.has_page),
)


def find_endpoint(name: str) -> Endpoint:
    """The row of this name."""
    return next(each for each in ENDPOINTS if each.name == name)


def find_page(name: str) -> AdminPage:
    """The row of this name."""
    return next(each for each in PAGES if each.name == name)
