"""One request, found by the id that its answer had: what came, what was sent, why, and how it ended."""

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

_STAGES = {"read": "read and counted", "store": "looked up in the store", "plan": "decided", "rebuild": "rebuilt"}
_ID_DIGITS = 16
_HEX = frozenset("0123456789abcdef")


class TimedStage(msgspec.Struct, frozen=True):
    """What a part of the time went by with."""

    name: str
    ms: float


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and what is known around it.

    outcome: in sentences, how it ended; why: why it was sent as it was. used: the share of what a prompt may take.
    record: how the record that it was sent with was made, where this process made it lately.
    replica: the process that served it. failure: where it failed. remedy: what to do about it; None if it was answered.
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
    """Return the request with this id; None if none is known that the visitor may see."""
    event = next((each for each in context.recent.requests() if each.id == name), None)
    if event is not None:
        request = KeptRequest(event=event, replica=context.name, failure=context.engine.upstream_failures.of(name))
    elif not may_be_id(name) or (kept := await context.requests.find(name)) is None:
        return None
    else:
        request = kept
    event, failure = request.event, request.failure
    if not visitor.sees(event.tenant):
        return None
    if failure is not None and not context.config.shows_content(event.tenant or ""):
        failure = UpstreamFailure(failure.address)
    view = view_of(event, await _compaction_of(context, event))
    return structs.replace(view, replica=request.replica, failure=failure)


async def _compaction_of(context: AdminContext, event: RequestEnded) -> CompactionEnded | None:
    """Return the compaction that made the record of a request, from the store, else as this process saw it."""
    caller = context.active().tenants.operator_of(event.tenant or "")
    if event.checkpoint is None or event.session is None or caller is None:
        return None
    stored = await stored_compactions(context, caller, event.session, event.label or "")
    seen = [entry.event for entry in context.recent.newest() if isinstance(entry.event, CompactionEnded)]
    return next((each for each in (*stored, *seen) if _is_record_of(each, event)), None)


def view_of(event: RequestEnded, made: CompactionEnded | None) -> RequestView:
    return RequestView(
        event=event,
        outcome=[*_outcome(event)],
        why=why.reason(event.reason) if event.reason else None,
        stages=[*_stages(event)],
        cache_share=event.cached / event.billed if event.cached is not None and event.billed else None,
        used=figures.fill(event),
        record=None if made is None else why.compaction(made),
        remedy=None if event.is_answered else remedy_of(event),
    )


def may_be_id(text: str) -> bool:
    """Whether a request of ours may have this id."""
    return len(text) == _ID_DIGITS and _HEX.issuperset(text)


async def unknown_request(context: AdminContext, name: str) -> NotFoundError:
    """Why there is no such request here, and who may still know of it."""
    if not may_be_id(name):
        return NotFoundError("This is no request's id: those have 16 hex digits, as x-concertina-request-id has them.")
    oldest = context.recent.oldest
    since = f", which go back to {words.moment(oldest)}" if oldest is not None else ""
    others = len(await context.replicas.every()) - 1
    elsewhere = f" {words.plural(others, 'other replica')} may know it for some seconds." if others > 0 else ""
    return NotFoundError(
        f"No request of this id is known, or no more. The store keeps the newest"
        f" {words.plural(MOST_REQUESTS, 'request')} of all replicas for telemetry.figures, none of a session that was"
        f" erased and none of an unknown client. Replica {context.name} keeps its newest"
        f" {words.plural(context.recent.most, 'request')} and compactions{since}.{elsewhere} The log has a line of"
        " every request: look there for this id."
    )


def _is_record_of(made: CompactionEnded, event: RequestEnded) -> bool:
    return made.tenant == event.tenant and made.checkpoint is not None and made.checkpoint == event.checkpoint


def _outcome(event: RequestEnded) -> Iterator[str]:
    if event.status:
        yield f"It was answered {event.status}." if event.status >= 400 else f"It was answered with {event.status}."
    yield why.ENDS[event.end]
    if event.overflow is not None:
        yield why.OVERFLOWS[event.overflow]
    yield from why.troubles(event)
    if event.warning == "pin_left_out":
        yield "A pinned text is not in the prompt: there was no room, or its record is older than the pin."


def _stages(event: RequestEnded) -> Iterator[TimedStage]:
    """Where its time went, in the order in which it did; what is not known is left out."""
    own, wait = event.own_ms or 0.0, event.wait_ms or 0.0
    known = event.stages or {}
    yield from (TimedStage(text, known[name]) for name, text in _STAGES.items() if name in known)
    if event.own_ms is not None:
        yield TimedStage("other work of ours", max(0.0, round(own - sum(known.values()), 2)))
    if event.wait_ms is not None:
        yield TimedStage("waited for a summary", event.wait_ms)
    if event.first_byte_ms is not None:
        yield TimedStage("until the upstream answered", max(0.0, round(event.first_byte_ms - own - wait, 1)))
        yield TimedStage("the answer passed", max(0.0, round(event.ms - event.first_byte_ms, 1)))
