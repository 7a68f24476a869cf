"""One session: told in a sentence, drawn, and explained, from what this process saw and what the store keeps."""

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

# Of the usable window, that tools and instructions may take.
MOST_FIXED = 0.4
# A prompt of which so much less was in the provider's cache than of the one before had its prefix broken.
_CACHE_DROP = 0.3


class Mark(msgspec.Struct, frozen=True):
    """Something that happened at a request. place: of its point; number: of the request in its session."""

    place: int
    number: int
    at: float
    kind: Literal["checkpoint", "cooled", "overflow", "failed", "cache"]
    text: str


class CompactionDetails(msgspec.Struct, frozen=True):
    """A compaction, told in sentences. used_by: the number of the first request that was sent with its record."""

    event: CompactionEnded
    why: str
    used_by: int | None


class WindowPart(msgspec.Struct, frozen=True):
    """A part of a window, in tokens."""

    kind: str
    tokens: int


class Filling(msgspec.Struct, frozen=True):
    """What a session's window held when that was last told. soft, due: tokens from which on a summary is prepared, and
    a request compacted."""

    at: float
    parts: list[WindowPart]
    usable: int | None
    soft: int
    due: int


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """One session. savings, last: None if no request of it is known; last: its newest one. filling: of its window.

    media: of its newest request that was looked at.

    points: the newest. is_whole: whether requests of all replicas are in it, or of this one. labels: other sessions of
    the same conversation. requests: ids of the points, by their numbers. branches: of a session whose client
    went back and went on in another way, the first one included.
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
    """Return what is shown of a session. stored: the compactions that made its records, as the store has them."""
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
    """Return a session that this process has not seen, as the store has it."""
    told = "This replica has not served it since it started; what follows is what the store keeps."
    compactions = [_compaction_of(event, ()) for event in stored]
    return SessionView(row=row_of_stored(tenant, session), sentence=told, compactions=compactions)


def with_stored(seen: Iterable[CompactionEnded], stored: Sequence[CompactionEnded]) -> list[CompactionEnded]:
    """Return compactions that this process saw and those of stored records, the newest first. The stored ones hold."""
    known = {(event.tenant, event.digest) for event in stored}
    others = [event for event in seen if event.digest is None or (event.tenant, event.digest) not in known]
    return sorted((*stored, *others), key=lambda event: -event.at)


def filling(prompt: PromptComposed, calibration: float) -> Filling:
    """What the window holds, in the model's own tokens as far as that was learned."""
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
        taken = sum(part.tokens for part in parts)
        parts += [
            WindowPart("free", max(0, prompt.usable - taken)),
            WindowPart("reserved", prompt.window - prompt.usable),
        ]
    return Filling(prompt.at, parts, prompt.usable, round(calibration * prompt.soft), round(calibration * prompt.due))


def sentence(history: HistoryView) -> str:
    """Return the session in one sentence."""
    last, sums, tally = history.newest, history.sums, history.sums.tally
    span = words.span(max(1, round(last.at - history.began)))
    told = "Of its newest requests: " if history.is_cut else ""
    told += f"{span}, {words.plural(tally.requests, 'request')} to {last.model or 'a model that has not answered'}"
    if last.received is not None:
        of = f", the window being {words.exact(last.window)}" if last.window else ""
        told += f"; received grew to {words.exact(last.received)} tokens{of}"
    if not sums.records:
        return f"{told}; nothing had to be summarised."
    cost = words.exact(figures.summaries(tally)) + " tokens"
    cost += f", {words.usd(sums.usd)}" if sums.usd is not None else ""
    told += f"; {words.plural(sums.records, 'summary', 'summaries')} ({cost})"
    if tally.kept_alive:
        told += f" kept {words.plural(tally.kept_alive, 'request')} alive that would not have fitted"
    return f"{told}; {words.short(figures.net(tally))} tokens of prompts saved, of {words.short(tally.received)}."


def marks(points: Sequence[Point], compactions: Iterable[CompactionEnded]) -> list[Mark]:
    """Return what happened on the way; at most one thing a request, the gravest. compactions: those that are known."""
    causes = {event.checkpoint: why.compaction(event) for event in compactions if event.checkpoint}
    found = []
    for place, point in enumerate(points):
        before = points[place - 1] if place else None
        if (mark := _mark(point, before, causes)) is not None:
            found.append(Mark(place, point.number, point.at, *mark))
    return found


def _mark(
    point: Point, before: Point | None, causes: Mapping[str, str]
) -> tuple[Literal["checkpoint", "cooled", "overflow", "failed", "cache"], str] | None:
    if point.overflow == "passed_on":
        return "failed", "The upstream refused it as too long, and nothing helped: the client got the error."
    if not 200 <= point.status < 300:
        return "failed", f"It was answered {point.status}." if point.status else "It got no answer."
    if point.outcome == "failed-open":
        return "failed", why.reason(point.reason)
    if point.overflow == "solved":
        return "overflow", "The upstream refused it as too long; it was made smaller and sent again."
    if point.checkpoint and (before is None or point.checkpoint != before.checkpoint):
        cause = f" {causes[point.checkpoint]}" if point.checkpoint in causes else ""
        return "checkpoint", f"First sent with the record {point.checkpoint}.{cause}"
    if point.outcome == "cooled" and (before is None or before.outcome != "cooled"):
        return "cooled", "Large tool results that are some rounds old are sent shortened."
    if _broke_cache(point, before):
        return "cache", f"The provider had {words.share(point.cached)} of it in its cache, of the one before more."
    return None


def _broke_cache(point: Point, before: Point | None) -> bool:
    if before is None or point.cached is None or before.cached is None:
        return False
    return before.cached - point.cached > _CACHE_DROP


def _compaction_of(event: CompactionEnded, points: Sequence[Point]) -> CompactionDetails:
    used_by = next(
        (point.number for point in points if event.checkpoint and point.checkpoint == event.checkpoint), None
    )
    return CompactionDetails(event, why.compaction(event), used_by)


def advice(last: Newest, filled: Filling | None) -> Iterator[str]:
    """What an operator can do better, where a rule says so."""
    if filled is not None and filled.usable:
        fixed = sum(part.tokens for part in filled.parts if part.kind in ("head", "tools"))
        if fixed > MOST_FIXED * filled.usable:
            share = words.share(fixed / filled.usable)
            yield f"Tools and system prompt take {share} of the usable window: send fewer or shorter tool definitions."
    yield from (text for rule, text in _ADVICE if rule(last))
    if last.calibration is not None and last.calibration > 1.1:
        more = words.share(last.calibration - 1)
        yield f"The upstream counts {more} more tokens than our estimate; name its tokenizer under models[].encoding."


_ADVICE: tuple[tuple[Callable[[Newest], bool], str], ...] = (
    (
        lambda last: last.window is None and last.sent is not None,
        "The model's window is not known, so nothing is done before the upstream refuses: name it under"
        " models[].context_window.",
    ),
    (
        lambda last: last.reason == "irreducible",
        "Tools, system prompt and the newest messages fill the window alone: no summary helps. Send fewer tools.",
    ),
    (
        lambda last: last.reason == "ineffective",
        "The last summaries did not make room. What is large and new is not summarised: send less at once.",
    ),
    (
        lambda last: last.warning == "prompt_cut_off",
        "The upstream read less than half of a prompt, without an error: raise its window (num_ctx, --ctx-size).",
    ),
    (
        lambda last: last.warning == "unstable_history",
        "The client changes what it sent before, so that summaries are lost; the log names the message.",
    ),
)
