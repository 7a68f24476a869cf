"""The page that explains a request."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from proxy.admin.access import SIGNED_IN, Visitor
from proxy.admin.entrance import form_of
from proxy.admin.explaining import MOST_EXPLAINED, Explained, example, explain
from proxy.admin.frame import Frame
from proxy.admin.guard import ADMIN, Guard
from proxy.admin.looking import named_tenant
from proxy.admin.opened import Opened
from proxy.errors import ProxyError


class ExplainPages:
    """Explains what is pasted, for those who are signed in: it is their own content."""

    def __init__(self, opened: Callable[[], Opened], guard: Guard) -> None:
        self._find = opened
        self._guard = guard
        self._frame = Frame(opened)

    def routes(self) -> list[Path]:
        return [Path(f"{ADMIN}explain", self._guard.only(self._page, SIGNED_IN), methods=["GET", "POST"])]

    async def _page(self, request: Request, visitor: Visitor) -> Response:
        if request.method == "GET":
            body = example() if request.query_params.get("example") else ""
            return await self._shown(request, visitor, {"body": body})
        form = await form_of(request, MOST_EXPLAINED)
        chosen = [form.get(name, "") for name in ("policy", "other")]
        try:
            caller = named_tenant(form.get("tenant", ""), visitor, self._find())
            wanted = [name for name in chosen if name]
            explained = await explain(self._find(), caller, form.get("body", "").encode(), wanted)
        except ProxyError as error:
            return await self._shown(request, visitor, form, chosen, problem=error.message, status=error.status)
        return await self._shown(request, visitor, form, chosen, explained)

    async def _shown(
        self,
        request: Request,
        visitor: Visitor,
        form: dict[str, str],
        chosen: list[str] | None = None,
        explained: list[Explained] | None = None,
        *,
        problem: str = "",
        status: int = 200,
    ) -> Response:
        config = self._find().config
        values = {
            "body": form.get("body", ""),
            "tenant": form.get("tenant", ""),
            "tenants": [name for name in config.tenants if visitor.sees(name)],
            "policies": [*config.policies],
            "chosen": chosen or ["", ""],
            "explained": explained,
            "problem": problem,
        }
        return await self._frame.page("explain.html", request, visitor, values, status)
