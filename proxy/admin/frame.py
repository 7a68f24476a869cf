"""The frame around every view: where one can go on to, and what the view is of."""

import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from proxy.admin import rendering
from proxy.admin.access import EVERYBODY, FIGURES, SIGNED_IN, Visitor
from proxy.admin.cookie import Role
from proxy.admin.opened import Opened


class Link(NamedTuple):
    """A view in the navigation. path: below /admin/. key: goes there, after g."""

    path: str
    text: str
    key: str
    roles: frozenset[Role]


class About(NamedTuple):
    """What is at the foot of every page. started: Unix seconds."""

    version: str
    replica: str
    started: float


_NAVIGATION = (
    (
        Link("", "Overview", "o", EVERYBODY),
        Link("live", "Live", "l", SIGNED_IN),
        Link("sessions", "Sessions", "s", SIGNED_IN),
    ),
    (Link("explain", "Explain", "e", SIGNED_IN),),
    (
        Link("models", "Models", "m", FIGURES),
        Link("tenants", "Tenants", "t", EVERYBODY),
        Link("store", "Store", "r", FIGURES),
        Link("replicas", "Replicas", "p", FIGURES),
        Link("config", "Config", "c", FIGURES),
    ),
)


def navigation(visitor: Visitor) -> list[list[Link]]:
    """The views that this visitor may see, in groups."""
    groups = ([link for link in group if visitor.role in link.roles] for group in _NAVIGATION)
    return [group for group in groups if group]


class Frame:
    """Renders views in their frame."""

    def __init__(self, opened: Callable[[], Opened]) -> None:
        self._find = opened

    async def page(
        self, template: str, request: Request, visitor: Visitor, values: Mapping[str, object], status: int = 200
    ) -> Response:
        opened = self._find()
        about = About(version("concertina"), opened.name, opened.started)
        frame = {"visitor": visitor, "navigation": navigation(visitor), "about": about, "now": time.time()}
        return await rendering.page(template, request, {**frame, **values}, status)
