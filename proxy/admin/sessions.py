"""The sessions: listed, and one by one, from what this process saw and what the store keeps."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from proxy.admin import why, words
from proxy.admin.trails import Key, Point, Trail
from proxy.observing import figures
from proxy.observing.events import CompactionEnded, PromptComposed, RequestEnded
from proxy.observing.tally import Tally
from proxy.records.index import Session

State = Literal["fits", "compacted", "near", "irreducible", "failing"]
STATES: tuple[State, ...] = ("fits", "compacted", "near", "irreducible", "failing")
_PAGE = 50
# Of a conversation's id, as headers and the log show it.
ID_DIGITS = 16
# Of the usable window, that tools and instructions may take.
MOST_FIXED = 0.4
# A prompt of which so much less was in the provider's cache than of the one before had its prefix broken.
_CACHE_DROP = 0.3


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a list. seen: Unix seconds. used: share of the usable window that its newest request took.

    requests, net, used: of this process; None where it saw none. stored: whether the store has something of it.
    """

    tenant: str
    id: str
    label: str
    model: str | None
    seen: float
    state: State
    requests: int | None = None
    used: float | None = None
    compactions: int | None = None
    net: int | None = None
    stored: bool = False

    @property
    def key(self) -> Key:
        return Key(self.tenant, self.id, self.label)


class Wishes(NamedTuple):
    """Which sessions are wanted: of a tenant, with `q` in label, id or model, of one state, behind the cursor of a
    listing; empty for all."""

    tenant: str = ""
    q: str = ""
    state: str = ""
    cursor: str = ""


class Listing(msgspec.Struct, frozen=True):
    """A page of sessions, the last used first. cursor: asks for the next page; None on the last one.

    store: whether the store could say which sessions it knows.
    """

    sessions: list[Row]
    cursor: str | None
    store: bool = True


class Mark(msgspec.Struct, frozen=True):
    """Something that happened at a request. place: of its point; number: of the request in its session."""

    place: int
    number: int
    at: float
    kind: Literal["checkpoint", "cooled", "overflow", "failed", "cache"]
    text: str


class Compaction(msgspec.Struct, frozen=True):
    """A compaction, told in sentences. used_by: the number of the first request that was sent with its record."""

    event: CompactionEnded
    why: str
    used_by: int | None


class Part(msgspec.Struct, frozen=True):
    """A part of a window, in tokens."""

    kind: str
    tokens: int


class Filling(msgspec.Struct, frozen=True):
    """What a session's window held when that was last told. soft, due: tokens from which on a summary is prepared, and
    a request compacted."""

    at: float
    parts: list[Part]
    usable: int | None
    soft: int
    due: int


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """One session. last: its newest request that this process saw, None without one. filling: of its window.

    labels: other sessions of the same conversation.
    """

    row: Row
    sentence: str
    tally: Tally = msgspec.field(default_factory=Tally)
    last: RequestEnded | None = None
    points: list[Point] = []
    marks: list[Mark] = []
    compactions: list[Compaction] = []
    filling: Filling | None = None
    advice: list[str] = []
    labels: list[str] = []


def listing(trails: Iterable[Trail], stored: Iterable[tuple[str, Session]], wishes: Wishes) -> Listing:
    """A page of these. stored: tenants and what the store has of them."""
    rows = {row.key: row for row in (row_of_stored(tenant, session) for tenant, session in stored)}
    for trail in trails:
        rows[trail.key] = row_of(trail, is_stored=trail.key in rows)
    wanted = [row for row in rows.values() if _fits(row, wishes.q.lower()) and wishes.state in ("", row.state)]
    ordered = sorted(wanted, key=cursor_of)
    behind = [row for row in ordered if cursor_of(row) > wishes.cursor]
    page = behind[:_PAGE]
    return Listing(page, cursor_of(page[-1]) if len(behind) > len(page) else None)


def cursor_of(row: Row) -> str:
    """A place in the list, newest first, that holds though others are used meanwhile."""
    return f"{10**10 - row.seen:015.3f}-{row.tenant}-{row.id}-{row.label}"


def _fits(row: Row, query: str) -> bool:
    return any(query in text.lower() for text in (row.label, row.id, row.model or ""))


def row_of_stored(tenant: str, session: Session) -> Row:
    return Row(
        tenant=tenant,
        id=session.id[:ID_DIGITS],
        label=session.label,
        model=session.model,
        seen=session.seen,
        state="compacted" if session.record else "fits",
        compactions=session.generation,
        stored=True,
    )


def row_of(trail: Trail, *, is_stored: bool = False) -> Row:
    last = trail.last
    return Row(
        tenant=trail.key.tenant,
        id=trail.key.id,
        label=trail.key.label,
        model=last.model,
        seen=last.at,
        state=state_of(trail),
        requests=trail.requests.requests,
        used=figures.fill(trail.last),
        compactions=trail.summaries.number,
        net=figures.net(trail.tally),
        stored=is_stored,
    )


def state_of(trail: Trail) -> State:
    last = trail.last
    if last.status >= 400 or last.compaction == "failed-open":
        return "failing"
    if last.reason == "irreducible":
        return "irreducible"
    if figures.is_near(last):
        return "near"
    return "compacted" if last.checkpoint else "fits"


def view(trail: Trail, prompt: PromptComposed | None, *, is_stored: bool, labels: Sequence[str]) -> SessionView:
    points = trail.points
    filled = None if prompt is None else filling(prompt, trail.last.calibration or 1.0)
    return SessionView(
        row=row_of(trail, is_stored=is_stored),
        sentence=sentence(trail),
        tally=trail.tally,
        last=trail.last,
        points=points,
        marks=marks(points),
        compactions=[_told(event, points) for event in reversed(trail.summaries.newest)],
        filling=filled,
        advice=[*advice(trail.last, filled)],
        labels=list(labels),
    )


def view_of_stored(tenant: str, session: Session) -> SessionView:
    """A session that this process has not seen, as the store has it."""
    told = "This replica has not served it since it started; what follows is what the store keeps."
    return SessionView(row=row_of_stored(tenant, session), sentence=told)


def filling(prompt: PromptComposed, calibration: float) -> Filling:
    """What the window holds, in the model's own tokens as far as that was learned."""
    parts = [
        Part(kind, round(calibration * tokens))
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
        parts += [Part("free", max(0, prompt.usable - taken)), Part("reserved", prompt.window - prompt.usable)]
    return Filling(prompt.at, parts, prompt.usable, round(calibration * prompt.soft), round(calibration * prompt.due))


def sentence(trail: Trail) -> str:
    """The session in one sentence."""
    last, tally = trail.last, trail.tally
    span = words.span(max(1, round(last.at - trail.began)))
    told = f"{span}, {words.plural(tally.requests, 'request')} to {last.model or 'a model that has not answered'}"
    if last.received is not None:
        of = f", the window being {words.exact(last.window)}" if last.window else ""
        told += f"; received grew to {words.exact(last.received)} tokens{of}"
    made = trail.summaries
    if not made.number:
        return f"{told}; nothing had to be summarised."
    cost = words.exact(figures.summaries(tally)) + " tokens"
    cost += f", {words.usd(made.usd)}" if made.usd is not None else ""
    told += f"; {words.plural(made.number, 'summary', 'summaries')} ({cost})"
    if tally.kept_alive:
        told += f" kept {words.plural(tally.kept_alive, 'request')} alive that would not have fitted"
    return f"{told}; net {words.short(figures.net(tally))} tokens not sent, of {words.short(tally.received)}."


def marks(points: Sequence[Point]) -> list[Mark]:
    """What happened on the way; at most one thing a request, the gravest."""
    found = []
    for place, point in enumerate(points):
        before = points[place - 1] if place else None
        if (mark := _mark(point, before)) is not None:
            found.append(Mark(place, point.number, point.at, *mark))
    return found


def _mark(
    point: Point, before: Point | None
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
        cause = why.reason(point.reason) if point.outcome == "applied" else "It had been made before."
        return "checkpoint", f"First sent with the record {point.checkpoint}. {cause}"
    if point.outcome == "cooled" and (before is None or before.outcome != "cooled"):
        return "cooled", "Large tool results that are some rounds old are sent shortened."
    if _broke_cache(point, before):
        return "cache", f"The provider had {words.share(point.cached)} of it in its cache, of the one before more."
    return None


def _broke_cache(point: Point, before: Point | None) -> bool:
    if before is None or point.cached is None or before.cached is None:
        return False
    return before.cached - point.cached > _CACHE_DROP


def _told(event: CompactionEnded, points: Sequence[Point]) -> Compaction:
    used_by = next(
        (point.number for point in points if event.checkpoint and point.checkpoint == event.checkpoint), None
    )
    return Compaction(event, why.compaction(event), used_by)


def advice(last: RequestEnded, filled: Filling | None) -> Iterator[str]:
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


_ADVICE: tuple[tuple[Callable[[RequestEnded], bool], str], ...] = (
    (
        lambda last: last.window is None and last.tokens_sent is not None,
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
