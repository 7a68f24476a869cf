"""The table of the proxy's own endpoints.

Routes, the OpenAPI document, pages, navigation and the calls of commands are built from it. Commands read it, so it
imports no framework and no handler.
"""

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
    """An endpoint below /admin/api/.

    name: of the method that handles it. has_page: True if a page below /admin/ has the same name, path, method and
    roles.
    """

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
        """Return the complete path with these values, encoded, for its parameters."""
        return API + PARAMETER.sub(lambda match: quote(values[match[1]], safe=""), self.path)


@dataclass(frozen=True, slots=True)
class AdminPage:
    """A page below /admin/.

    name: of the method that handles it.
    """

    name: str
    path: str
    roles: frozenset[Role]
    methods: tuple[str, ...] = ("GET",)


_SPAN, _WHICH = ("range", "sort"), ("tenant", "label")
_FOUND = ("tenant", "session", "outcome", "status", "id", "min_seconds", "since", "until")
_SESSION = "sessions/{id}"

# The first matching path wins.
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
    Endpoint("models", "GET", "models", FIGURES, "Context windows and usage", _SPAN),
    Endpoint(
        *("forget_model", "DELETE", "models/learned", OPERATORS, "Forget what was learned of a model"),
        query=("tenant", "upstream", "model"),
        status=204,
    ),
    Endpoint("tenants", "GET", "tenants", EVERYBODY, "Tenants with their figures", _SPAN),
    Endpoint("tenant", "GET", "tenants/{name}", EVERYBODY, "A tenant and its policy", ("range",), has_page=True),
    Endpoint("policy", "GET", "policies/{name}", FIGURES, "The settings of a policy and their origins"),
    Endpoint(
        *("explain", "POST", "explain", SIGNED_IN),
        "The decisions for the request in `body`, under `policies`, for `tenant`",
    ),
    Endpoint("config", "GET", "config", FIGURES, "The config in force, without secrets"),
    Endpoint("reload_config", "POST", "config/reload", OPERATORS, "Read the config's file again", has_page=True),
    Endpoint("replicas", "GET", "replicas", FIGURES, "Serving processes, this one first"),
    Endpoint("store", "GET", "store", FIGURES, "The store and its operations"),
    Endpoint("probe_store", "POST", "store/probe", OPERATORS, "Write, read and erase an entry", has_page=True),
    Endpoint("sessions", "GET", "sessions", SIGNED_IN, "Stored sessions", ("tenant", "name", "limit", "cursor")),
    Endpoint(
        *("search", "GET", "search", SIGNED_IN),
        "Search all sessions by label, id, request id, model or tenant",
        ("tenant", "q", "state", "cursor"),
    ),
    Endpoint("erase_all", "DELETE", "sessions", SIGNED_IN, "Erase all sessions", ("tenant", "all")),
    Endpoint("session", "GET", _SESSION, SIGNED_IN, "A session", _WHICH, has_page=True),
    Endpoint("trail", "GET", f"{_SESSION}/trail", SIGNED_IN, "Its requests as points", _WHICH),
    Endpoint("fates", "GET", f"{_SESSION}/fates", SIGNED_IN, "The fate of each message", _WHICH),
    Endpoint("prompts", "GET", f"{_SESSION}/prompts", SIGNED_IN, "Its newest sent prompts", _WHICH),
    Endpoint("retained", "GET", f"{_SESSION}/retained", SIGNED_IN, "Its retained statements and rules", _WHICH),
    Endpoint("records", "GET", f"{_SESSION}/records", SIGNED_IN, "Its records", _WHICH),
    Endpoint(
        *("record", "GET", f"{_SESSION}/records/{{digest}}", SIGNED_IN),
        "A record, compared with another",
        (*_WHICH, "against"),
        has_page=True,
    ),
    Endpoint(
        *("compact", "POST", f"{_SESSION}/compact", OPERATORS, "Compact it with its next request", _WHICH),
        status=202,
        has_page=True,
    ),
    Endpoint(
        *("undo", "POST", f"{_SESSION}/undo", OPERATORS, "Undo its newest record, and use the previous one", _WHICH),
        has_page=True,
    ),
    Endpoint("export", "GET", f"{_SESSION}/export", SIGNED_IN, "Everything that is stored of it", _WHICH),
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
    """Return the endpoint with this name."""
    return next(each for each in ENDPOINTS if each.name == name)


def find_page(name: str) -> AdminPage:
    """Return the page with this name."""
    return next(each for each in PAGES if each.name == name)
