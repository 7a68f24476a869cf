"""One request by the id in its response: what arrived, what was sent, why, and how it ended."""

from collections.abc import Iterator

import msgspec
from msgspec import structs

from proxy.admin import why, words
from proxy.admin.access import Visitor
from proxy.admin.context import AdminContext
from proxy.admin.remedies import Remedy, remedy_of
from proxy.admin.sessions.asking import stored_compactions
from proxy.errors import NotFoundError
from proxy.sessions.kept_requests import MOST_REQUESTS, KeptRequest
from proxy.telemetry import figures
from proxy.telemetry.events import CompactionEnded, RequestEnded
from proxy.telemetry.upstream_failures import UpstreamFailure

_STAGES = {"read": "read and counted", "store": "read from the store", "plan": "decided", "rebuild": "rebuilt"}
_ID_DIGITS = 16
_HEX = frozenset("0123456789abcdef")


class TimedStage(msgspec.Struct, frozen=True):
    """A stage of a request, and its duration."""

    name: str
    ms: float


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """A request and its context.

    outcome: sentences about its end. why: the reason for what was sent. used: the share of the room for a prompt.
    record: how its record was made, if the store or this process knows. replica: the serving process. failure: of the
    upstream. remedy: what to do about it; None if it was answered.
    """

    event: RequestEnded
    outcome: list[str]
    why: str | None
    stages: list[TimedStage]
    cache_share: float | None
    used: float | None
    record: str | None
    replica: str = ""
    failure: UpstreamFailure | None = None
    remedy: Remedy | None = None


async def request_view(context: AdminContext, visitor: Visitor, name: str) -> RequestView | None:
    """Return the request with this id; None if it is unknown, or hidden from the visitor."""
    event = next((each for each in context.recent.requests() if each.id == name), None)
    if event is not None:
        request = KeptRequest(event=event, replica=context.name, failure=context.engine.upstream_failures.of(name))
    elif not may_be_id(name) or (stored := await context.requests.find(name)) is None:
        return None
    else:
        request = stored
    event, failure = request.event, request.failure
    if not visitor.sees(event.tenant):
        return None
    if failure is not None and not context.config.shows_content(event.tenant or ""):
        failure = UpstreamFailure(failure.address)
    view = view_of(event, await _compaction_of(context, event))
    return structs.replace(view, replica=request.replica, failure=failure)


async def _compaction_of(context: AdminContext, event: RequestEnded) -> CompactionEnded | None:
    """Return the compaction that made the record of a request, from the store or this process."""
    caller = context.active().tenants.operator_of(event.tenant or "")
    if event.checkpoint is None or event.session is None or caller is None:
        return None
    stored = await stored_compactions(context, caller, event.session, event.label or "")
    in_memory = [entry.event for entry in context.recent.newest() if isinstance(entry.event, CompactionEnded)]
    return next((each for each in (*stored, *in_memory) if _is_record_of(each, event)), None)


def view_of(event: RequestEnded, compaction: CompactionEnded | None) -> RequestView:
    """Return the view of a request."""
    return RequestView(
        event=event,
        outcome=[*_outcome(event)],
        why=why.reason(event.reason) if event.reason else None,
        stages=[*_stages(event)],
        cache_share=event.cached / event.billed if event.cached is not None and event.billed else None,
        used=figures.fill(event),
        record=None if compaction is None else why.compaction(compaction),
        remedy=None if event.is_answered else remedy_of(event),
    )


def may_be_id(text: str) -> bool:
    """Return True if the text has the format of a request's id."""
    return len(text) == _ID_DIGITS and _HEX.issuperset(text)


async def unknown_request(context: AdminContext, name: str) -> NotFoundError:
    """Return the error for an unknown request, with where to look for it."""
    if not may_be_id(name):
        return NotFoundError("This is no request's id: those have 16 hex digits, as in x-concertina-request-id.")
    oldest = context.recent.oldest
    since = f" since {words.moment(oldest)}" if oldest is not None else ""
    other_replicas = len(await context.replicas.every()) - 1
    elsewhere = (
        f" {words.plural(other_replicas, 'other replica')} may have it for some seconds." if other_replicas > 0 else ""
    )
    return NotFoundError(
        f"No stored request has this id. The store keeps the newest"
        f" {words.plural(MOST_REQUESTS, 'request')} of all replicas for telemetry.figures, except of erased sessions"
        f" and of unknown clients. Replica {context.name} keeps its newest"
        f" {words.plural(context.recent.most, 'request')} and compactions{since}.{elsewhere} The log has"
        " a line for every request: search it for this id."
    )


def _is_record_of(compaction: CompactionEnded, event: RequestEnded) -> bool:
    return (
        compaction.tenant == event.tenant
        and compaction.checkpoint is not None
        and compaction.checkpoint == event.checkpoint
    )


def _outcome(event: RequestEnded) -> Iterator[str]:
    if event.status:
        yield f"The response had status {event.status}."
    yield why.ENDS[event.end]
    if event.overflow is not None:
        yield why.OVERFLOWS[event.overflow]
    yield from why.troubles(event)
    if event.warning == "pin_left_out":
        yield "A pinned text is not in the prompt: there was no room for it, or its record is older than the pin."


def _stages(event: RequestEnded) -> Iterator[TimedStage]:
    """Yield the stages of a request in their order, except unknown ones."""
    own, wait = event.own_ms or 0.0, event.wait_ms or 0.0
    durations = event.stages or {}
    yield from (TimedStage(text, durations[name]) for name, text in _STAGES.items() if name in durations)
    if event.own_ms is not None:
        yield TimedStage("other work of the proxy", max(0.0, round(own - sum(durations.values()), 2)))
    if event.wait_ms is not None:
        yield TimedStage("waited for a summary", event.wait_ms)
    if event.first_byte_ms is not None:
        yield TimedStage("until the upstream responded", max(0.0, round(event.first_byte_ms - own - wait, 1)))
        yield TimedStage("response relayed", max(0.0, round(event.ms - event.first_byte_ms, 1)))
