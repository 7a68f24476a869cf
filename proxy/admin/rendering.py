"""Render pages: templates and assets, loaded at the first page, and the frame of every view."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from proxy.admin import words

if TYPE_CHECKING:
    from jinja2 import Environment
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import NamedTuple

from proxy.admin import why
from proxy.admin.access import Visitor
from proxy.admin.context import AdminContext
from proxy.admin.endpoints import ADMIN, AdminPage, find_page
from proxy.admin.health import newest_health

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
_HASH_DIGITS = 12
_KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FOREVER = {"cache-control": "public, max-age=31536000, immutable"}


@dataclass(frozen=True, slots=True)
class Asset:
    """An asset of the pages. Its name contains a hash of its content, so that it never changes."""

    name: str
    kind: str
    content: bytes


@cache
def assets() -> dict[str, Asset]:
    """Return the assets by the name of their file."""
    assets_by_file = {}
    for file in (resources.files("proxy.admin") / "assets").iterdir():
        stem, _, kind = file.name.rpartition(".")
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]
        assets_by_file[file.name] = Asset(f"{stem}.{digest}.{kind}", kind, content)
    return assets_by_file


async def asset(request: Request) -> Response | None:
    """Return the requested asset by its name with the hash; None for another name."""
    assets_by_name = {each.name: each for each in (await asyncio.to_thread(assets)).values()}
    match = assets_by_name.get(request.path_params["name"])
    return None if match is None else Response(match.content, media_type=_KINDS[match.kind], headers=_FOREVER)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # 6 MB that only pages need

    environment = Environment(
        loader=PackageLoader("proxy.admin"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(words.FILTERS)
    environment.filters["reason"] = why.reason
    environment.globals["asset"] = lambda name: assets()[name].name
    return environment


async def page(template: str, request: Request, values: Mapping[str, object], status: int = 200) -> Response:
    """Render a template in a thread. `root` is a relative path to /admin/ that works under any prefix."""
    root = root_of(request)
    content = await asyncio.to_thread(lambda: _environment().get_template(template).render(values, root=root))
    return HTMLResponse(content, status)


def root_of(request: Request) -> str:
    """Return a relative path to /admin/."""
    path: str = request.scope["raw_path"].decode("latin-1")
    return "../" * path.partition(ADMIN)[2].count("/") or "./"


def wants_html(request: Request) -> bool:
    """Return True if the client is a browser."""
    return "text/html" in request.headers.get("accept", "")


class Link(NamedTuple):
    """A page in the navigation.

    key: opens it, after g.
    """

    page: AdminPage
    text: str
    key: str


class About(NamedTuple):
    """The footer of every page.

    started: in Unix seconds.
    """

    version: str
    replica: str
    started: float


_NAVIGATION = (
    (
        Link(find_page("overview"), "Overview", "o"),
        Link(find_page("live"), "Live", "l"),
        Link(find_page("sessions"), "Sessions", "s"),
    ),
    (Link(find_page("explain"), "Explain", "e"),),
    (Link(find_page("status"), "Status", "t"),),
)


def navigation(visitor: Visitor) -> list[list[Link]]:
    """Return the groups of views that this visitor may see."""
    groups = ([link for link in group if visitor.role in link.page.roles] for group in _NAVIGATION)
    return [group for group in groups if group]


class PageFrame:
    """Render views in their frame."""

    def __init__(self, context: Callable[[], AdminContext]) -> None:
        """Create a frame over the running proxy."""
        self._find = context

    async def page(
        self, template: str, request: Request, visitor: Visitor, values: Mapping[str, object], status: int = 200
    ) -> Response:
        """Render a template with health, navigation and footer."""
        context, now = self._find(), time.time()
        about = About(version("concertina"), context.name, context.started)
        frame = {"visitor": visitor, "navigation": navigation(visitor), "about": about, "now": now}
        if "health" not in values:
            frame["health"] = await newest_health(context, visitor, now)
        return await page(template, request, {**frame, **values}, status)
