"""One session: a sentence, a chart and explanations, from this process and the store."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from proxy.admin import why, words
from proxy.admin.sessions.listing import SessionRow, row_of, row_of_stored
from proxy.admin.sessions.savings import Savings, savings_of
from proxy.sessions.index import Session
from proxy.telemetry import figures
from proxy.telemetry.branches import Branch
from proxy.telemetry.events import CompactionEnded, MediaFigures, PromptComposed
from proxy.telemetry.history_entries import Point
from proxy.telemetry.session_history import POINTS, HistoryView, Newest
from proxy.telemetry.tally import Tally

# The maximum share of the usable window for tools and instructions.
MOST_FIXED = 0.4
# The drop of the share in the provider's cache, from one prompt to the next, that means a broken prefix.
_CACHE_DROP = 0.3


class Mark(msgspec.Struct, frozen=True):
    """A mark at a request.

    place: the index of its point. number: of the request in its session.
    """

    place: int
    number: int
    at: float
    kind: Literal["checkpoint", "cooled", "overflow", "failed", "cache"]
    text: str


class CompactionDetails(msgspec.Struct, frozen=True):
    """A compaction in sentences.

    used_by: the number of the first request that was sent with its record.
    """

    event: CompactionEnded
    why: str
    used_by: int | None


class WindowPart(msgspec.Struct, frozen=True):
    """A part of a window, in tokens."""

    kind: str
    tokens: int


class Filling(msgspec.Struct, frozen=True):
    """The content of a session's window at the last event.

    soft: tokens from which a summary is prepared. due: tokens from which a request is compacted.
    """

    at: float
    parts: list[WindowPart]
    usable: int | None
    soft: int
    due: int


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """One session.

    savings: None if no request of it is known. last: its newest request; None likewise. filling: of its window. media:
    of its newest analyzed request.
    points: the newest. is_whole: True if requests of all replicas are in it, False if only of this one. labels: other
    sessions of the conversation. requests: ids of the points by their numbers. branches: including the first one, if
    the client went back and continued in another way.
    """

    row: SessionRow
    sentence: str
    tally: Tally = msgspec.field(default_factory=Tally)
    savings: Savings | None = None
    last: Newest | None = None
    is_whole: bool = False
    points: list[Point] = []
    marks: list[Mark] = []
    compactions: list[CompactionDetails] = []
    filling: Filling | None = None
    media: MediaFigures | None = None
    advice: list[str] = []
    labels: list[str] = []
    requests: dict[int, str] = {}
    branches: list[Branch] = []


def view(
    history: HistoryView,
    *,
    is_stored: bool,
    labels: Sequence[str],
    stored: Sequence[CompactionEnded] = (),
) -> SessionView:
    """Return the view of a session.

    stored: the compactions of its records in the store.
    """
    prompt, points = history.prompt, history.points[-POINTS:]
    compactions = with_stored(history.compactions, stored)
    filled = None if prompt is None else filling(prompt, history.newest.calibration or 1.0)
    return SessionView(
        row=row_of(history, is_stored=is_stored),
        sentence=sentence(history),
        tally=history.sums.tally,
        savings=savings_of(history.sums.tally),
        last=history.newest,
        is_whole=history.is_whole,
        points=points,
        marks=marks(points, compactions),
        compactions=[_compaction_of(event, points) for event in compactions],
        filling=filled,
        media=None if prompt is None else prompt.media,
        advice=[*advice(history.newest, filled)],
        labels=list(labels),
        requests={point.number: history.ids[point.number] for point in points if point.number in history.ids},
        branches=history.branches if len(history.branches) > 1 else [],
    )


def view_of_stored(tenant: str, session: Session, stored: Sequence[CompactionEnded]) -> SessionView:
    """Return the view of a session that this process has not seen."""
    text = "This replica has not served it since its start. The following is from the store."
    compactions = [_compaction_of(event, ()) for event in stored]
    return SessionView(row=row_of_stored(tenant, session), sentence=text, compactions=compactions)


def with_stored(in_memory: Iterable[CompactionEnded], stored: Sequence[CompactionEnded]) -> list[CompactionEnded]:
    """Merge the compactions of this process and of stored records, the newest first. The stored ones win."""
    stored_keys = {(event.tenant, event.digest) for event in stored}
    remaining = [
        event for event in in_memory if event.digest is None or (event.tenant, event.digest) not in stored_keys
    ]
    return sorted((*stored, *remaining), key=lambda event: -event.at)


def filling(prompt: PromptComposed, calibration: float) -> Filling:
    """Return the content of the window in the model's own tokens, as far as the calibration is known."""
    parts = [
        WindowPart(kind, round(calibration * tokens))
        for kind, tokens in (
            ("head", prompt.head),
            ("tools", prompt.tools),
            ("record", prompt.record),
            ("cooled", prompt.cooled),
            ("conversation", prompt.conversation),
            ("results", prompt.results),
        )
    ]
    if prompt.window is not None and prompt.usable is not None:
        used = sum(part.tokens for part in parts)
        parts += [
            WindowPart("free", max(0, prompt.usable - used)),
            WindowPart("reserved", prompt.window - prompt.usable),
        ]
    return Filling(prompt.at, parts, prompt.usable, round(calibration * prompt.soft), round(calibration * prompt.due))


def sentence(history: HistoryView) -> str:
    """Return the session in one sentence."""
    newest, sums, tally = history.newest, history.sums, history.sums.tally
    span = words.span(max(1, round(newest.at - history.began)))
    text = "Newest requests: " if history.is_cut else ""
    text += f"{span}, {words.plural(tally.requests, 'request')} to {newest.model or 'a model without a response'}"
    if newest.received is not None:
        window_text = f" of a window of {words.exact(newest.window)}" if newest.window else ""
        text += f"; received grew to {words.exact(newest.received)} tokens{window_text}"
    if not sums.records:
        return f"{text}; no summary was needed."
    cost = words.exact(figures.summaries(tally)) + " tokens"
    cost += f", {words.usd(sums.usd)}" if sums.usd is not None else ""
    text += f"; {words.plural(sums.records, 'summary', 'summaries')} ({cost})"
    if tally.kept_alive:
        text += f" kept {words.plural(tally.kept_alive, 'request')} from an overflow"
    return f"{text}; {words.short(figures.net(tally))} of {words.short(tally.received)} prompt tokens saved."


def marks(points: Sequence[Point], compactions: Iterable[CompactionEnded]) -> list[Mark]:
    """Return the marks of points, at most one per request: the most severe.

    compactions: the known ones.
    """
    causes = {event.checkpoint: why.compaction(event) for event in compactions if event.checkpoint}
    result = []
    for place, point in enumerate(points):
        previous = points[place - 1] if place else None
        if (mark := _mark(point, previous, causes)) is not None:
            result.append(Mark(place, point.number, point.at, *mark))
    return result


def _mark(
    point: Point, previous: Point | None, causes: Mapping[str, str]
) -> tuple[Literal["checkpoint", "cooled", "overflow", "failed", "cache"], str] | None:
    if point.overflow == "passed_on":
        return "failed", "The upstream refused it as too long, and no retry fitted: the client got the error."
    if not 200 <= point.status < 300:
        return "failed", f"The response was {point.status}." if point.status else "There was no response."
    if point.outcome == "failed-open":
        return "failed", why.reason(point.reason)
    if point.overflow == "solved":
        return "overflow", "The upstream refused it as too long; it was shortened and sent again."
    if point.checkpoint and (previous is None or point.checkpoint != previous.checkpoint):
        cause = f" {causes[point.checkpoint]}" if point.checkpoint in causes else ""
        return "checkpoint", f"First sent with the record {point.checkpoint}.{cause}"
    if point.outcome == "cooled" and (previous is None or previous.outcome != "cooled"):
        return "cooled", "Large tool results that are some rounds old were shortened."
    if _broke_cache(point, previous):
        return (
            "cache",
            f"The provider had {words.share(point.cached)} of it cached, less than before.",
        )
    return None


def _broke_cache(point: Point, previous: Point | None) -> bool:
    if previous is None or point.cached is None or previous.cached is None:
        return False
    return previous.cached - point.cached > _CACHE_DROP


def _compaction_of(event: CompactionEnded, points: Sequence[Point]) -> CompactionDetails:
    used_by = next(
        (point.number for point in points if event.checkpoint and point.checkpoint == event.checkpoint), None
    )
    return CompactionDetails(event, why.compaction(event), used_by)


def advice(newest: Newest, filled: Filling | None) -> Iterator[str]:
    """Yield what an operator can improve."""
    if filled is not None and filled.usable:
        fixed = sum(part.tokens for part in filled.parts if part.kind in ("head", "tools"))
        if fixed > MOST_FIXED * filled.usable:
            share = words.share(fixed / filled.usable)
            yield f"Tools and system prompt take {share} of the usable window: send fewer or shorter tool definitions."
    yield from (text for rule, text in _ADVICE if rule(newest))
    if newest.calibration is not None and newest.calibration > 1.1:
        more = words.share(newest.calibration - 1)
        yield f"The upstream counts {more} more tokens than estimated; set its tokenizer in models[].encoding."


_ADVICE: tuple[tuple[Callable[[Newest], bool], str], ...] = (
    (
        lambda last: last.window is None and last.sent is not None,
        "The model's window is unknown, so a compaction follows only a refusal: set it in models[].context_window.",
    ),
    (
        lambda last: last.reason == "irreducible",
        "Tools, system prompt and the newest messages fill the window, so no summary helps: send fewer tools.",
    ),
    (
        lambda last: last.reason == "ineffective",
        "The last summaries freed too little. New large messages are not summarised: send less at once.",
    ),
    (
        lambda last: last.warning == "prompt_cut_off",
        "The upstream read less than half of a prompt, without an error: raise its window (num_ctx, --ctx-size).",
    ),
    (
        lambda last: last.warning == "unstable_history",
        "The client changes earlier messages, so records cannot be reused; the log names the message.",
    ),
)
