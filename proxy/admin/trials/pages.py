"""What people paste to see what would be done with it: for those who are signed in, since it is their own content."""

import asyncio
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from proxy.admin.access import OPERATORS, SIGNED_IN, Visitor
from proxy.admin.guard import ADMIN, Guard, body_of, form_of
from proxy.admin.opened import Opened
from proxy.admin.rendering import Frame
from proxy.admin.trials.explaining import MOST_EXPLAINED, Answer, Explaining, Question, example
from proxy.admin.trials.replaying import LEAST_WINDOW, MOST_REPLAYED, Outcome, Replaying, Wanted
from proxy.admin.trials.uploads import Upload, read
from proxy.config.loading import preset_names
from proxy.engine.replay.figures import LEGEND, Replayed, Session
from proxy.errors import InvalidRequestError, ProxyError

_BLANK = {"body": "", "tenant": "", "session": "", "policy": "", "other": ""}


class TrialPages:
    """The views of what is tried, each with its template."""

    def __init__(
        self, opened: Callable[[], Opened], guard: Guard, explaining: Explaining, replaying: Replaying
    ) -> None:
        self._find = opened
        self._guard = guard
        self._frame = Frame(opened)
        self._explaining = explaining
        self._replaying = replaying

    def routes(self) -> list[Path]:
        only, methods = self._guard.only, ["GET", "POST"]
        return [
            Path(f"{ADMIN}explain", only(self._explain, SIGNED_IN), methods=methods),
            Path(f"{ADMIN}replay", only(self._replay, OPERATORS), methods=methods),
        ]

    async def _explain(self, request: Request, visitor: Visitor) -> Response:
        if request.method == "GET":
            asked = {name: request.query_params.get(name, "") for name in ("session", "tenant")}
            body = example() if request.query_params.get("example") else ""
            return await self._explained(request, visitor, {**asked, "body": body})
        form = await form_of(request, MOST_EXPLAINED)
        try:
            answer = await self._explaining.answer(visitor, _asked(form))
        except ProxyError as error:
            return await self._explained(request, visitor, form, error=error)
        return await self._explained(request, visitor, form, answer)

    async def _explained(
        self,
        request: Request,
        visitor: Visitor,
        form: dict[str, str],
        answer: Answer | None = None,
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

    async def _replay(self, request: Request, visitor: Visitor) -> Response:
        if request.method == "GET":
            return await self._replayed(request, visitor, Upload({"policy": [*preset_names()]}, []))
        upload = Upload({}, [])
        try:
            body = await body_of(request, MOST_REPLAYED)
            upload = await asyncio.to_thread(read, request.headers.get("content-type", ""), body)
            outcome = await self._replaying.play(visitor, _wanted(upload))
        except ProxyError as error:
            return await self._replayed(request, visitor, upload, error=error)
        return await self._replayed(request, visitor, upload, outcome)

    async def _replayed(
        self,
        request: Request,
        visitor: Visitor,
        upload: Upload,
        outcome: Outcome | None = None,
        *,
        error: ProxyError | None = None,
    ) -> Response:
        values = {
            "form": {name: upload.value(name) for name in ("model", "window")},
            "policies": [*self._find().config.policies],
            "chosen": upload.fields.get("policy", ()),
            "most": MOST_REPLAYED,
            "least": LEAST_WINDOW,
            "legend": LEGEND,
            "outcome": outcome,
            "sessions": _sessions(outcome.replayed) if outcome else (),
            "error": error,
        }
        return await self._frame.page("replay.html", request, visitor, values, error.status if error else 200)


def _sessions(replayed: Replayed) -> list[Session]:
    """All of them together first."""
    return [*([replayed.total] if replayed.total else []), *replayed.sessions]


def _wanted(upload: Upload) -> Wanted:
    """Raises InvalidRequestError."""
    window = upload.value("window")
    if window and not (window.isascii() and window.isdigit() and int(window) >= LEAST_WINDOW):
        raise InvalidRequestError(f"A window is a number of tokens, {LEAST_WINDOW} at least.", param="window")
    files = {name: content.decode("utf-8", "replace") for name, content in upload.files}
    if upload.value("example"):
        files = {"example.json": example()}
    return Wanted(
        files, upload.fields.get("policy", []), upload.value("model") or None, int(window) if window else None
    )


def _asked(form: dict[str, str]) -> Question:
    return Question(
        body=msgspec.Raw(form.get("body", "").encode()),
        policies=[name for name in (form.get("policy", ""), form.get("other", "")) if name],
        tenant=form.get("tenant", ""),
        session=form.get("session", "").strip(),
        ask="ask" in form,
    )
