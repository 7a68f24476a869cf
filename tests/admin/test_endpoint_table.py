"""One table of endpoints: every row is handled, described and served, and commands call nothing beside it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from starlette.routing import Route

import proxy
from proxy.admin.api import GeneralEndpoints
from proxy.admin.endpoints import ADMIN, API, ENDPOINTS, METRICS, PAGES, PARAMETER, READY, find_endpoint
from proxy.admin.openapi import document
from proxy.admin.pages import HtmlPages, StatusPages
from proxy.admin.routing import handlers_of
from proxy.admin.sessions.endpoints import SessionEndpoints
from proxy.admin.sessions.listing import Wishes
from proxy.admin.sessions.pages import SessionPages
from proxy.admin.site import AdminSite
from proxy.admin.trials.endpoints import TrialEndpoints
from proxy.admin.trials.pages import TrialPages
from proxy.callers.api_paths import OURS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROXY = Path(proxy.__file__).parent
CALLERS = [*(PROXY / "commands").rglob("*.py"), *(PROXY / "demo").rglob("*.py")]


@pytest.fixture
def pages() -> AdminSite:
    return AdminSite(lambda: None, lambda: False, lambda _: nullcontext())


def methods_of(owners: Sequence[type]) -> list[str]:
    return sorted(name for owner in owners for name in vars(owner) if not name.startswith("_"))


def test_every_row_has_one_handler_and_every_handler_a_row() -> None:
    endpoints = methods_of([GeneralEndpoints, SessionEndpoints, TrialEndpoints])
    assert endpoints == sorted(row.name for row in ENDPOINTS)
    assert methods_of([HtmlPages, StatusPages, SessionPages, TrialPages]) == sorted(row.name for row in PAGES)


@pytest.mark.parametrize("owners", [[], [TrialEndpoints, TrialEndpoints]])
def test_a_row_without_a_handler_or_with_two_stops_the_start(owners: list[type]) -> None:
    with pytest.raises(LookupError, match="explain has"):
        handlers_of([find_endpoint("explain")], owners)


def test_every_row_is_served_and_described(pages: AdminSite) -> None:
    rows = {(row.method, API + row.path) for row in ENDPOINTS}
    routes = [route for route in pages._app.routes if isinstance(route, Route)]
    served = {(method, route.path) for route in routes for method in route.methods or () if route.path.startswith(API)}
    assert {(method, path) for method, path in served if method != "HEAD"} == rows
    paths = document(pages.handlers)["paths"]
    assert isinstance(paths, dict)
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert described == {(method, PARAMETER.sub(r"{\1}", path)) for method, path in rows}
    assert {(ADMIN + row.path).rstrip("/") for row in PAGES} <= {route.path for route in routes}


def test_a_search_takes_what_may_be_wished_for() -> None:
    assert find_endpoint("search").query == Wishes._fields


def test_commands_and_the_demo_call_what_is_in_the_table_alone() -> None:
    for file in CALLERS:
        for path in written_paths(ast.parse(file.read_text())):
            pytest.fail(f"{file.name} writes {path}, which is for the table to say")
        for name in found_endpoints(ast.parse(file.read_text())):
            assert name in {row.name for row in ENDPOINTS}, file.name


def test_a_path_that_is_written_out_is_seen() -> None:
    written = ast.parse("""f"{url}/metrics", "/admin/api/none?a=b", "ask /metrics", "/v1/chat" """)
    assert {*written_paths(written)} == {METRICS, "/admin/api/none?a=b"}


def test_the_table_and_the_commands_that_call_need_no_framework() -> None:
    code = "import sys, proxy.cli.running, proxy.cli.watching.tail; sys.exit('starlette' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert READY.strip("/") in OURS


def written_paths(tree: ast.Module) -> Iterator[str]:
    """Paths of ours that stand in the code."""
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if text.startswith("/") and re.split("[/?]", text)[1] in OURS:
            yield text


def found_endpoints(tree: ast.Module) -> Iterator[object]:
    """Names by which rows are looked up."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "find_endpoint":
            constants = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            yield from filter(None, constants)
