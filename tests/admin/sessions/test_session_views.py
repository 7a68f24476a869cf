"""Sessions as they are listed and told, from what was seen of them."""

from __future__ import annotations

import math

import pytest

from proxy.admin.sessions import details, listing
from proxy.admin.sessions.listing import Wishes
from proxy.errors import InvalidRequestError
from proxy.sessions.index import Session, SessionsPage
from proxy.sessions.stores.base import Member
from proxy.telemetry.events import PromptComposed
from proxy.telemetry.message_fates import pack
from proxy.telemetry.session_history import SessionHistories, SessionHistory
from tests.support.session_events import AT, compacted, requested

FIRST, SECOND = "a" * 16, "b" * 16
STORED = Session(id="f" * 64, label="old", model="m2", seen=AT - 500, covered=4, generation=2, record=("tag", "d"))


def page_of(*sessions: Session, is_last: bool = True) -> SessionsPage:
    """As the store tells of a tenant's sessions."""
    return SessionsPage([(Member(each.seen, each.id), each) for each in sessions], is_last)


def history_of(*events: object) -> SessionHistory:
    histories = SessionHistories()
    for event in events:
        histories(event)  # type: ignore[arg-type]
    return next(histories.newest())


def told(*events: object) -> details.SessionView:
    return details.view(history_of(*events).view(None), is_stored=False, labels=[])


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "fits"),
        ({"checkpoint": FIRST}, "compacted"),
        ({"tokens_sent": 6_300}, "near"),
        ({"tokens_sent": 6_300, "usable": None, "window": None}, "fits"),
        ({"reason": "irreducible", "tokens_sent": 7_500}, "irreducible"),
        ({"status": 502}, "failing"),
        ({"compaction": "failed-open"}, "failing"),
    ],
)
def test_a_sessions_state_is_that_of_its_newest_request(changes: dict[str, object], state: str) -> None:
    assert listing.state_of(history_of(requested(), requested(**changes)).newest) == state


def test_a_session_in_one_sentence() -> None:
    events = [
        requested(),
        compacted(),
        requested(at=AT + 4_320, tokens_received=12_000, tokens_sent=3_000, checkpoint="d" * 16),
    ]
    assert told(*events).sentence == (
        "1 h 12 min, 2 requests to m; received grew to 12,000 tokens of a window of 8,000; 1 summary (4,300 tokens,"
        " $0.02) kept 1 request from an overflow; 4,700 of 13.0 k prompt tokens saved."
    )
    assert told(requested()).sentence == (
        "1 s, 1 request to m; received grew to 1,000 tokens of a window of 8,000; no summary was needed."
    )


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"checkpoint": FIRST, "compaction": "applied", "reason": "proactive"}, "checkpoint"),
        ({"compaction": "cooled"}, "cooled"),
        ({"overflow": "solved"}, "overflow"),
        ({"overflow": "passed_on", "status": 400}, "failed"),
        ({"status": 0}, "failed"),
        ({"compaction": "failed-open", "reason": "summarizer_timeout"}, "failed"),
        ({"billed": 1_000, "cached": 100}, "cache"),
        ({"billed": 1_000, "cached": 800}, None),
        ({}, None),
    ],
)
def test_what_happened_at_a_request_is_marked(changes: dict[str, object], kind: str | None) -> None:
    found = told(requested(billed=1_000, cached=900), requested(**changes)).marks
    assert [mark.kind for mark in found] == ([] if kind is None else [kind])
    assert [mark.number for mark in found] == ([] if kind is None else [2])


def test_a_compaction_is_told_with_the_request_that_used_it_first() -> None:
    view = told(requested(), compacted(), requested(), requested(checkpoint="d" * 16), requested(checkpoint="d" * 16))
    assert [each.used_by for each in view.compactions] == [3]
    assert told(requested(), compacted()).compactions[0].used_by is None


def test_what_fills_the_window_is_in_the_models_tokens_and_ends_with_what_is_free() -> None:
    prompt = PromptComposed(
        at=AT, tenant="default", session=FIRST, label="", tools=3_000, head=100, record=200, cooled=10, results=300,
        conversation=400, window=8_000, usable=7_000, soft=4_000, due=5_000, messages=pack([]),
    )  # fmt: skip
    view = details.view(history_of(requested(calibration=1.5)).view(prompt), is_stored=True, labels=["x"])
    assert view.filling is not None
    parts = {part.kind: part.tokens for part in view.filling.parts}
    assert parts == {
        "head": 150, "tools": 4_500, "record": 300, "cooled": 15, "conversation": 600, "results": 450,
        "free": 985, "reserved": 1_000,
    }  # fmt: skip
    assert (view.filling.soft, view.filling.due) == (6_000, 7_500)
    assert view.advice[0].startswith("Tools and system prompt take 66 % of the usable window")
    assert view.advice[1].startswith("The upstream counts 50 % more tokens than estimated")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"window": None, "usable": None}, "window is unknown"),
        ({"reason": "irreducible"}, "no summary helps"),
        ({"reason": "ineffective"}, "freed too little"),
        ({"warning": "prompt_cut_off"}, "num_ctx"),
        ({"warning": "unstable_history"}, "records cannot be reused"),
    ],
)
def test_advice_is_given_where_a_rule_says_so(changes: dict[str, object], words: str) -> None:
    (advice,) = told(requested(**changes)).advice
    assert words in advice


def test_sessions_of_memory_and_store_are_one_list_the_last_used_first() -> None:
    both = history_of(requested(session="f" * 16, label="old", at=AT + 5))
    other = history_of(requested(session=FIRST, label="new", at=AT + 9))
    found = listing.listing([both, other], [("default", page_of(STORED)), ("acme", page_of(STORED))], Wishes())
    assert [(row.tenant, row.label, row.stored) for row in found.sessions] == [
        ("default", "new", False),
        ("default", "old", True),
        ("acme", "old", True),
    ]
    assert found.cursor is None


@pytest.mark.parametrize(
    ("wishes", "labels"),
    [
        (Wishes(q="NE"), ["new"]),
        (Wishes(q=FIRST[:9]), ["new"]),
        (Wishes(q="f" * 64), ["old"]),
        (Wishes(q="f" * 15 + "0"), []),
        (Wishes(q="DEFAULT"), ["new", "old"]),
        (Wishes(q="m2"), ["old"]),
        (Wishes(state="compacted"), ["old"]),
        (Wishes(q="nothing"), []),
    ],
)
def test_a_list_is_narrowed_by_label_id_model_and_state(wishes: Wishes, labels: list[str]) -> None:
    found = listing.listing([history_of(requested(session=FIRST, label="new"))], [("default", page_of(STORED))], wishes)
    assert [row.label for row in found.sessions] == labels


def test_pages_of_a_list_hold_every_session_once() -> None:
    histories = [history_of(requested(session=f"{number:016x}", at=AT - number)) for number in range(120)]
    known = {
        tenant: [
            Session(id=f"{number:016x}" + "0" * 48, label="", model="m", seen=AT - number - 0.5)
            for number in range(start, 300, 3)
        ]
        for tenant, start in (("default", 0), ("acme", 1))
    }

    def stored(cursor: str) -> list[tuple[str, SessionsPage]]:
        pages = []
        for tenant, sessions in known.items():
            before = listing.cursor_of(cursor).members.get(tenant, Member(AT + 1, ""))
            behind = [each for each in sessions if (each.seen, each.id) < before]
            pages.append((tenant, page_of(*behind[:50], is_last=len(behind) <= 50)))
        return pages

    seen: list[tuple[float, str, str]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = listing.listing(histories, stored(cursor), Wishes(cursor=cursor))
        assert len(page.sessions) <= 50
        seen += [(-row.seen, row.tenant, row.id) for row in page.sessions]
        cursor = page.cursor
    assert seen == sorted(seen)
    # Those that were seen here are listed once, as they were seen.
    assert len(seen) == len(set(seen)) == 120 + 200 - 40


def test_a_page_says_how_many_sessions_were_looked_at_until_there() -> None:
    histories = [history_of(requested(session=f"{number:016x}", at=AT - number)) for number in range(60)]
    first = listing.listing(histories, [], Wishes())
    assert (len(first.sessions), first.looked) == (50, 50)
    second = listing.listing(histories, [], Wishes(q="nothing", cursor=first.cursor or ""))
    assert (second.sessions, second.looked, second.cursor) == ([], 60, None)


def test_what_the_store_has_lost_of_a_session_ends_no_list() -> None:
    lost = SessionsPage([(Member(float(number), ""), None) for number in range(50)], is_last=False)
    page = listing.listing([], [("default", lost)], Wishes())
    assert (page.sessions, listing.cursor_of(page.cursor or "").members) == ([], {"default": Member(49.0, "")})


@pytest.mark.parametrize("text", ["x", "!", "AAAA", listing.Cursor(members={"default": Member(math.nan, "")}).text])
def test_what_no_page_has_told_is_no_cursor(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="cursor"):
        listing.cursor_of(text)
