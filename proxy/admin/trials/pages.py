"""The page for pasted requests. It needs a sign-in, since the content is the visitor's own."""

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from proxy.admin.access import Visitor
from proxy.admin.context import AdminContext
from proxy.admin.guard import form_of
from proxy.admin.rendering import PageFrame
from proxy.admin.roles import OPERATORS
from proxy.admin.trials.explaining import MOST_EXPLAINED, ExplainAnswer, Explaining, Question, example
from proxy.errors import ProxyError

_BLANK = {"body": "", "tenant": "", "session": "", "policy": "", "other": ""}


class TrialPages:
    """The view of trials with its template."""

    def __init__(self, context: Callable[[], AdminContext], explaining: Explaining) -> None:
        """Create the page over the running proxy."""
        self._find = context
        self._frame = PageFrame(context)
        self._explaining = explaining

    async def explain(self, request: Request, visitor: Visitor) -> Response:
        """Return the form, or the explanation of its request."""
        if request.method == "GET":
            query = {name: request.query_params.get(name, "") for name in ("session", "tenant")}
            body = example() if request.query_params.get("example") else ""
            return await self._explanation_page(request, visitor, {**query, "body": body})
        form = await form_of(request, MOST_EXPLAINED)
        try:
            answer = await self._explaining.answer(visitor, _question_of_form(form))
        except ProxyError as error:
            return await self._explanation_page(request, visitor, form, error=error)
        return await self._explanation_page(request, visitor, form, answer)

    async def _explanation_page(
        self,
        request: Request,
        visitor: Visitor,
        form: dict[str, str],
        answer: ExplainAnswer | None = None,
        *,
        error: ProxyError | None = None,
    ) -> Response:
        config = self._find().config
        values = {
            "form": {**_BLANK, **form},
            "tenants": [name for name in config.tenants if visitor.sees(name)],
            "policies": [*config.policies],
            "may_ask": visitor.role in OPERATORS,
            "answer": answer,
            "error": error,
        }
        return await self._frame.page("explain.html", request, visitor, values, error.status if error else 200)


def _question_of_form(form: dict[str, str]) -> Question:
    return Question(
        body=msgspec.Raw(form.get("body", "").encode()),
        policies=[name for name in (form.get("policy", ""), form.get("other", "")) if name],
        tenant=form.get("tenant", ""),
        session=form.get("session", "").strip(),
        ask="ask" in form,
    )
