"""Requests of all replicas, from the store and from this process's memory."""

import math
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

import msgspec
from starlette.requests import Request

from proxy.admin.access import Visitor
from proxy.admin.context import AdminContext
from proxy.errors import InvalidRequestError
from proxy.sessions.kept_requests import Place, RequestRow
from proxy.telemetry.events import RequestEnded

PAGE = 100
FILTERS = ("tenant", "session", "outcome", "status", "id", "min_seconds", "since", "until")
"""The query parameters of a filter."""
_MOST_CURSOR = 100

Searched = RequestEnded | RequestRow


class Filter(NamedTuple):
    """A filter of requests. Empty fields match everything.

    status: a number, or a class such as 5xx. session, id: the beginning of the id. min_seconds: the minimum duration.
    since, until: of the end, in Unix seconds.
    """

    tenant: str = ""
    outcome: str = ""
    status: str = ""
    session: str = ""
    id: str = ""
    min_seconds: float = 0.0
    since: float = -math.inf
    until: float = math.inf

    def holds(self, event: Searched) -> bool:
        """Return True if a request matches."""
        return (
            event.id.startswith(self.id)
            and (not self.status or self._has_status(event.status))
            and event.ms >= 1_000 * self.min_seconds
            and self.tenant in ("", event.tenant)
            and self.outcome in ("", event.compaction)
            and (event.session or "").startswith(self.session)
            and self.since <= event.at <= self.until
        )

    def _has_status(self, status: int) -> bool:
        wanted = self.status
        return str(status) == wanted or (wanted[1:] == "xx" and str(status // 100) == wanted[:1])


class RequestsPage(msgspec.Struct, frozen=True):
    """Requests, the newest first.

    cursor: for the next page of older ones; None if there are none. is_whole: False if the store does not respond, so
    that only this replica's are in it.
    """

    requests: list[RequestEnded]
    cursor: str | None
    is_whole: bool = True


def read_filter(request: Request, visitor: Visitor) -> tuple[Filter, Place | None]:
    """Return the filter and cursor of a query. A viewer gets its own tenant's requests. Raises InvalidRequestError."""
    parameters = {name: request.query_params.get(name, "").strip() for name in FILTERS}
    wanted = Filter(
        tenant=visitor.tenant or parameters["tenant"],
        outcome=parameters["outcome"],
        status=parameters["status"],
        session=parameters["session"],
        id=parameters["id"].lower(),
        min_seconds=_seconds_of(parameters["min_seconds"]),
        since=_moment_of(parameters["since"], "since", -math.inf),
        until=_moment_of(parameters["until"], "until", math.inf),
    )
    return wanted, _place_of(request.query_params.get("cursor", ""))


async def list_requests(
    context: AdminContext, wanted: Filter, before: Place | None = None, limit: int = PAGE
) -> RequestsPage:
    """Return the newest requests that match the filter, of those before a place."""
    stored = await context.requests.search(
        wanted.holds, limit=limit, before=before, since=wanted.since, until=wanted.until
    )
    seen = (event for event in context.recent.requests() if wanted.holds(event) and _is_before(event, before))
    events = {event.id: event for event in (*(each.event for each in stored.requests), *islice(seen, limit + 1))}
    events_by_age = sorted(events.values(), key=lambda event: (event.at, event.id), reverse=True)
    shown, has_more = events_by_age[:limit], len(events_by_age) > limit or not stored.is_last
    return RequestsPage(shown, _cursor_of(shown[-1]) if shown and has_more else None, stored.is_whole)


def _is_before(event: RequestEnded, place: Place | None) -> bool:
    return place is None or (event.at, event.id) < place


def _cursor_of(event: RequestEnded) -> str:
    return f"{event.at!r}-{event.id}"


def _place_of(cursor: str) -> Place | None:
    """Return the place of a cursor; None for no cursor. Raises InvalidRequestError."""
    if not cursor:
        return None
    at, _, name = cursor[:_MOST_CURSOR].partition("-")
    if not name or (seconds := _number_of(at)) is None:
        raise InvalidRequestError("cursor must be the value from the previous page.", param="cursor")
    return Place(seconds, name)


def _seconds_of(text: str) -> float:
    seconds = _number_of(text) if text else 0.0
    if seconds is None or seconds < 0:
        raise InvalidRequestError("min_seconds must be a number of seconds.", param="min_seconds")
    return seconds


def _moment_of(text: str, name: str, otherwise: float) -> float:
    if not text:
        return otherwise
    if (seconds := _number_of(text)) is not None:
        return seconds
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        text = f"{name} must be a time such as 2026-01-31T18:00, in UTC, or in Unix seconds."
        raise InvalidRequestError(text, param=name) from None


def _number_of(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
