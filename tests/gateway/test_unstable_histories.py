"""Clients that write their history anew with every request: times in it, or its newest part only."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from policies.budget import budget_of
from policies.outline import links_of
from policies.slide import follow_slides, slides_behind
from policies.stamps import is_harness, without_stamps, without_wrappers
from policies.trail import (
    Restarts,
    Resumed,
    Trail,
    began_anew,
    changed_at,
    find_resumption,
    is_unstable,
    joined_digests,
    newest_of,
    suffix_of,
    trail_of,
)
from proxy.dialects.chat.canonical import loose_digest, message_digest
from tests.support.conversations import assistant, described, rounds, tool
from tests.support.model_server import ModelServer
from tests.support.scenarios import (
    FIRST,
    RULES,
    Agent,
    Change,
    Message,
    Sent,
    in_first,
    one_user,
    session,
    sliding,
    sliding_behind_the_task,
    stage,
    stamped_first,
    stamped_results,
    user,
)
from tests.support.stages import body, outcome
from tests.support.stages import stage as logged_stage
from tests.support.timing import cpu_seconds
from tests.support.upstreams import ask

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from policies.message import Message as PolicyMessage
    from tests.support.scenarios import Stage
    from tests.support.stages import Stage as LoggedStage
    from tests.support.upstreams import Header

pytestmark = pytest.mark.anyio

ADMIN = (b"authorization", b"Bearer " + b"t-1" * 8)


def polled(messages: Sequence[Message], number: int) -> list[Message]:
    return [m | {"content": f"{number} polls ago\n{m['content']}"} if m["role"] == "tool" else m for m in messages]


async def played(play: Stage, requests: Sequence[Sequence[Message]], change: Change) -> None:
    for number, messages in enumerate(requests):
        sent = change(messages, number)
        reply = await play.post(sent)
        assert reply.status == 200, reply.body[:300]
        assert play.sent[-1].messages[-1] == sent[-1]
        await play.settled()
    assert play.model.defects == 0


def whole(kind: str, words: int) -> list[list[Message]]:
    """Every request of a session."""
    agent = Agent(words=words)
    requests = session(agent, requests=41) if kind == "turns" else one_user(agent, rounds=40)
    return [list(messages) for messages in requests]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["turns", "one task"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (stamped_first, 200),
        (stamped_results, 200),
        (sliding, 270),
        (sliding, 350),
        (sliding_behind_the_task, 270),
        (sliding_behind_the_task, 350),
    ],
)
async def test_a_history_that_changes_as_clients_change_it_costs_few_calls(
    tmp_path: Path, change: Change, words: int, kind: str
) -> None:
    async with stage(tmp_path, ModelServer(), store={"url": "memory://"}) as play:
        await played(play, whole(kind, words), change)
        assert play.calls <= (18 if words < 300 and change in (sliding, sliding_behind_the_task) else 9)
        if play.replies[-1].headers["x-compaction"] != "none":
            assert play.calls > 0
            assert all(rule in play.sent[-1].texts for rule in RULES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["turns", "one task"])
@pytest.mark.parametrize(
    "change",
    [
        lambda messages, number: in_first(f"This is request {number}.", messages),
        polled,
        lambda messages, number: in_first(f"This is request {number}.", polled(messages, number)),
    ],
)
async def test_where_nothing_can_be_found_models_are_left_alone_and_it_is_said(
    tmp_path: Path, change: Change, kind: str
) -> None:
    async with logged_stage(tmp_path) as play:
        warned = 0
        for number, messages in enumerate(whole(kind, 200)):
            reply = await play.send(body(change(messages, number)))
            assert reply.status == 200
            warned += reply.header(b"x-compaction-warning") == b"unstable_history"
            assert all(rule.encode() in play.sent[-1].body for rule in RULES)
        assert play.model.summary_calls <= 14
        assert warned >= 10
        (told,) = play.logged("unstable_history")
        assert {"tenant", "session", "message", "role"} <= told.keys()
        assert play.model.defects == 0


@pytest.mark.slow
@pytest.mark.parametrize("change", [sliding, sliding_behind_the_task])
async def test_models_are_left_alone_behind_a_sliding_window_too(tmp_path: Path, change: Change) -> None:
    async with logged_stage(tmp_path) as play:
        for number, messages in enumerate(whole("one task", 420)):
            reply = await play.send(body(polled(change(messages, number), number)))
            assert reply.status == 200
        assert play.model.summary_calls <= 9
        assert len(play.logged("unstable_history")) == 1


async def test_what_has_changed_is_sent_behind_every_later_record_too(tmp_path: Path) -> None:
    agent = dated_history()
    async with logged_stage(tmp_path) as play:
        await play.send(body(agent.messages))
        said = next(m for m in agent.messages if "2026-11-20" in str(m["content"]))
        said["content"] = "The release is on 2026-11-27 at noon."
        for _ in range(40):
            await play.send(body(agent.works()))
            assert user("The release is on 2026-11-27 at noon.") in Sent(play.sent[-1]).messages


async def test_a_trail_without_its_record_leads_nowhere(tmp_path: Path) -> None:
    agent = long_history()
    async with logged_stage(tmp_path, store={"url": f"sqlite:///{tmp_path}/store.db"}) as play:
        await play.send(body(stamped_first(agent.messages, 1)))
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute("DELETE FROM entries WHERE key LIKE 'cp:%'")
    async with logged_stage(tmp_path, play.model, store={"url": f"sqlite:///{tmp_path}/store.db"}) as again:
        calls = again.model.summary_calls
        assert outcome(await again.send(body(stamped_first(agent.messages, 2))))[0] == "applied"
        assert again.model.summary_calls > calls


def long_history(opening: str = FIRST, rounds: int = 30) -> Agent:
    """What has to be compacted."""
    agent = Agent(words=200)
    agent.says(opening)
    for _ in range(rounds):
        agent.works()
    return agent


def dated_history() -> Agent:
    """The same, with a date in words of the user that are covered."""
    agent = long_history(rounds=4)
    agent.says("The release is on 2026-11-20 at noon.")
    for _ in range(30):
        agent.works()
    agent.says("Go on, please.")
    return agent


async def test_a_changed_number_in_the_words_of_the_user_is_another_history(tmp_path: Path) -> None:
    agent = long_history()
    async with logged_stage(tmp_path) as play:
        await play.send(body(agent.messages))
        calls = play.model.summary_calls
        agent.messages[1] = user(FIRST.replace("0.25 percent", "0.75 percent"))
        await play.send(body(agent.works()))
        assert play.model.summary_calls > calls
        assert b"0.75 percent" in play.sent[-1].body
        assert b"0.25 percent" not in play.sent[-1].body


async def test_what_has_changed_is_sent_beside_the_record(tmp_path: Path) -> None:
    agent = dated_history()
    async with logged_stage(tmp_path) as play:
        await play.send(body(agent.messages))
        calls = play.model.summary_calls
        changed = [
            m | {"content": str(m["content"]).replace("2026-11-20", "2026-11-27")} if m["role"] == "user" else m
            for m in agent.messages
        ]
        reply = await play.send(body(changed))
        assert outcome(reply)[0] == "reused"
        assert play.model.summary_calls == calls
        sent = Sent(play.sent[-1]).messages
        assert user("The release is on 2026-11-27 at noon.") in sent
        assert await explained(play, changed) == "reused"


async def explained(play: LoggedStage, messages: Sequence[Message]) -> str:
    found = await play.send(body(messages), path="/v1/compaction/explain")
    return str(found.json()["outcome"])


@pytest.mark.parametrize("header", [(b"authorization", b"Bearer another"), (b"x-session-id", b"another")])
async def test_no_record_is_found_for_another_key_or_label(tmp_path: Path, header: Header) -> None:
    agent = long_history()
    async with logged_stage(tmp_path) as play:
        await play.send(body(stamped_first(agent.messages, 1)))
        calls = play.model.summary_calls
        await play.send(body(stamped_first(agent.messages, 2)))
        assert play.model.summary_calls == calls
        await play.send(body(stamped_first(agent.messages, 3)), header)
        assert play.model.summary_calls > calls


@pytest.mark.usefixtures("one_replica")
async def test_nothing_of_an_erased_conversation_is_found(tmp_path: Path) -> None:
    agent = long_history()
    async with logged_stage(tmp_path, server={"admin_token": "t-1" * 8}) as play:
        for number in range(2):
            await play.send(body(stamped_first(agent.messages, number)))
        calls = play.model.summary_calls
        done = await ask(play.address, "DELETE", "/admin/api/sessions?all=true", [ADMIN])
        assert done.status == 200
        await play.send(body(stamped_first(agent.messages, 3)))
        assert play.model.summary_calls > calls


async def test_conversations_that_end_alike_do_not_mix(tmp_path: Path) -> None:
    one, other = long_history(), long_history("Translate the handbook.", rounds=34)
    common = one.messages[-40:]
    async with logged_stage(tmp_path) as play:
        await play.send(body(one.messages))
        calls = play.model.summary_calls
        await play.send(body([*other.messages[:-40], *common]))
        assert play.model.summary_calls > calls
        assert b"Translate the handbook." in play.sent[-1].body
        assert b"ingest service" not in play.sent[-1].body


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-22",
        "2026-11-22T16:56:13Z",
        "2026/11/22 16:56:13,123 +0100",
        "2026-11-22 16:56",
        "Sun Nov 22 16:56:13 UTC 2026",
        "Nov 22 16:56",
        "Nov 22, 2026, 4:35:02 PM",
        "10/12/2025, 4:35:02 PM",
        "22 November 2026",
        "22.11.2026",
        "16:56:13",
        "16:56 UTC",
        "9:05 a.m.",
        "2026年11月22日",
        "10时5分",
    ],
)
def test_a_date_or_a_clock_time_is_a_stamp(text: str) -> None:
    assert without_stamps(f"at {text}. Go") in ("at \N{WATCH}. Go", "at \N{WATCH} Go")
    assert without_stamps(f"[{text}] INFO") == "[\N{WATCH}] INFO"


@pytest.mark.parametrize("text", ["[10:42] INFO", "Current time: 10:42"])
def test_a_time_without_seconds_is_one_where_logs_have_it(text: str) -> None:
    assert without_stamps(text) == text.replace("10:42", "\N{WATCH}")


@pytest.mark.parametrize(
    "text",
    [
        "src/a.py:12:30: error",
        "version 1.2.3",
        "/var/log/2026/11/22/a",
        "2024-13-45",
        "12:75",
        "ttl=12:30:99",
        "port 8080:80",
        "1763829373",
        "0.25 percent of 2026",
        "an ip 10.0.0.12:30",
        "scale 1:50",
        "ratio 16:10",
        "odds 3:10 now",
        "version 10.12.2020",
        *("Decision 12", "Market 15", "Mark 4", "Decimals 12", "Separator 5", "Junction 3", "12 Marbles", "Maybe 10"),
        "never exceed 75 Decibels",
        "May 10 items",
    ],
)
def test_anything_else_is_none(text: str) -> None:
    assert without_stamps(text) == text


def test_what_a_harness_wraps_is_left_out_up_to_its_end() -> None:
    text = "a<env>b</env>c<system-reminder>d</system-reminder><env>e"
    assert without_wrappers(text) == "ac<env>e"


AGENTS = "# AGENTS.md instructions for /src\n\n<INSTRUCTIONS>\nUse tabs.\n</INSTRUCTIONS>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<system-reminder>x</system-reminder>", True),
        ("\n <system-reminder>\nx\n</system-reminder>\n", True),
        ("<env>a</env>\n<total_tokens>9 left</total_tokens>", True),
        ("<environment_context><cwd>/src</cwd></environment_context>", True),
        ("<user_instructions>Use tabs.</user_instructions>", True),
        (AGENTS, True),
        (f"{AGENTS}\n<environment_context></environment_context>", True),
        ("", False),
        ("  ", False),
        ("Fix it.", False),
        ("<system-reminder>x", False),
        ("<system-reminder>x</system-reminder> Fix it.", False),
        ("Fix it. <system-reminder>x</system-reminder>", False),
        ("<system-reminder>x</system-reminder> Fix it. <env>y</env>", False),
        ("<system-reminder>a </system-reminder> b</system-reminder>", False),
        ("<div>x</div>", False),
        ("<INSTRUCTIONS>Use tabs.</INSTRUCTIONS>", False),
        ("# AGENTS.md instructions are missing", False),
    ],
)
def test_only_what_is_wrapped_as_a_whole_is_of_a_harness(text: str, expected: bool) -> None:
    assert is_harness(text) is expected


@pytest.mark.parametrize(
    "text", [" " * 500_000, "<env></env>" * 50_000, "<env>" * 100_000, f"# AGENTS.md instructions{' ' * 500_000}"]
)
def test_no_text_takes_long_to_be_judged(text: str) -> None:
    assert cpu_seconds(lambda: is_harness(text), enough=1) <= 1


def test_stamps_count_in_the_words_of_the_user_and_nowhere_in_results() -> None:
    early, late = "at 10:42:07 it was done", "at 10:43:11 it was done"
    assert message_digest(user(early)) != message_digest(user(late))
    assert message_digest(tool("c", early)) == message_digest(tool("c", late))
    assert loose_digest(user(early)) == loose_digest(user(late))
    assert loose_digest(user("7 of them")) != loose_digest(user("8 of them"))


def steps(number: int) -> list[Message]:
    """So many rounds, no two alike."""
    return [
        message
        for i in range(number)
        for message in (assistant(None, f"c{i}", arguments=f'{{"number": {i}}}'), tool(f"c{i}", f"result {i}"))
    ]


COVERED = [user("The task, at 10:42:00."), *steps(4), user("Go on."), *steps(6)[8:]]


def digests_of(body: Sequence[PolicyMessage]) -> bytes:
    return joined_digests(body, links_of(body))


def trail(body: Sequence[PolicyMessage], came: Resumed | None = None, anchor: int | None = None) -> Trail:
    """Of a record of the whole of it."""
    return trail_of(body, digests_of(body), len(body), came, anchor)


def goes_on(made: Trail, messages: Sequence[Message], *, behind: int = 1) -> Resumed | None:
    """How these messages, with so many more behind them, go on from what was covered."""
    body = described([*messages, *[user("What now?")] * behind])
    return find_resumption(made, body, digests_of(body), len(messages))


TRAIL = trail(described(COVERED))
AT_11 = user("The task, at 11:00:00.")


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        (COVERED, Resumed((), 0)),
        ([AT_11, *COVERED[1:]], Resumed((0,), 0)),
        ([user("Another task."), *COVERED[1:]], None),
        (COVERED[5:], Resumed((), 5, 5)),
        (COVERED[7:], Resumed((), 7, 7)),
        (COVERED[8:], None),  # less than half of it
        (COVERED[-3:], None),
        ([COVERED[0], *COVERED[3:]], None),  # in the middle
        ([*COVERED[:7], *COVERED[9:]], None),
        (COVERED[:-2], None),  # at the end
        ([AT_11, *COVERED[5:]], None),
        ([*COVERED[5:7], *COVERED[9:]], None),  # two runs
        ([user("Another task."), *COVERED[5:]], None),
        ([*COVERED[:3], *rounds(1, start=90), *COVERED[5:]], None),
        ([user("before"), *COVERED], None),
    ],
)
def test_a_request_goes_on_from_what_it_still_holds(messages: list[Message], found: Resumed | None) -> None:
    assert goes_on(TRAIL, messages) == found


def test_a_front_that_vanished_while_nothing_was_said_was_deleted() -> None:
    assert goes_on(TRAIL, COVERED[5:], behind=0) is None
    assert goes_on(TRAIL, COVERED, behind=0) == Resumed((), 0)


def test_what_repeats_itself_goes_on_from_nothing() -> None:
    again = [user("Check the status."), *rounds(1), assistant("Everything is up.")]
    made = trail(described([user("The admin password is …"), assistant("Noted."), *again * 4]))
    for times in range(1, 6):
        assert goes_on(made, again * times) is None


def test_what_is_said_again_and_again_between_other_things_hides_no_slide() -> None:
    said = [message for i in range(8) for message in (user("Go on."), assistant(f"Step {i} is done."))]
    made = trail(described(said))
    assert goes_on(made, said[4:]) == Resumed((), 4, 4)
    slides, window = slides_behind(described([*said, user("Go on.")])), [*said, user("Go on.")]
    for number in range(8, 11):
        window = [*window[2:], assistant(f"Step {number} is done."), user("Go on.")]
        slides = follow_slides(slides, described(window))
    assert slides[0].is_seen


def test_results_that_changed_places_are_another_history() -> None:
    calls = [assistant(None, "a", "b"), tool("a", "one"), tool("b", "two")]
    swapped = [calls[0], tool("b", "one"), tool("a", "two")]
    made = trail(described([user("The task."), *calls, *steps(2)]))
    assert goes_on(made, [user("The task."), *calls, *steps(2)]) is not None
    assert goes_on(made, [user("The task."), *swapped, *steps(2)]) is None


def test_a_suffix_of_messages_that_are_alike_names_nothing() -> None:
    assert suffix_of(described(COVERED), 4) is not None
    assert suffix_of(described(COVERED), 3) is None
    assert suffix_of(described([user("again")] * 6), 6) is None


@pytest.mark.parametrize(
    ("messages", "at"),
    [
        (COVERED, None),
        ([user("Another task."), *COVERED[1:]], 0),
        ([*COVERED[:2], tool("c0", "changed"), *COVERED[3:]], 2),
        ([*COVERED[:4], *rounds(8, start=50)], None),  # a fork
        ([user("Another task."), *rounds(8, start=50)], None),
    ],
)
def test_a_change_is_one_that_the_rest_outlives(messages: list[Message], at: int | None) -> None:
    assert changed_at(TRAIL, digests_of(described(messages))) == at


def test_models_are_left_alone_for_twice_as_long_each_time() -> None:
    budget, known = budget_of(8_192, 4_000), Restarts("r")
    for number, growth in enumerate((0, 0, 1_000, 2_000), start=1):
        body = described(steps(4 + number))
        grown = known.tokens + growth
        assert is_unstable(known, body, budget, tokens=grown - 1) == (growth > 0)
        assert not is_unstable(known, body, budget, tokens=grown)
        known = began_anew(known, "r", "d", body, tokens=grown, by_model=True)
    unasked = began_anew(known, "t", "e", described(steps(9)), tokens=9, by_model=False)
    assert (unasked.root, unasked.count, unasked.tokens, unasked.digest) == ("r", known.count, known.tokens, "e")


def test_a_history_that_goes_no_further_is_another_conversation() -> None:
    body = described(steps(6))
    known = Restarts("r", count=9, tokens=100, newest=newest_of(body), digest="d")
    assert not is_unstable(known, body, budget_of(8_192, 4_000), tokens=100)
    begun = began_anew(known, "t", "e", body, tokens=90, by_model=True)
    assert (begun.root, begun.count, begun.tokens) == ("t", 1, 90)
    alike = described([message for _ in range(9) for message in (assistant("done"), user("again"))])
    assert newest_of(alike) == ""


def test_what_has_changed_once_is_sent_from_then_on() -> None:
    messages = [AT_11, *COVERED[1:]]
    found = goes_on(TRAIL, messages)
    assert found is not None
    assert goes_on(trail(described(messages), found), messages) == found


def test_places_are_kept_through_every_record_behind_a_vanished_beginning() -> None:
    first = goes_on(TRAIL, COVERED[5:])
    assert first is not None
    again = goes_on(trail(described(COVERED[5:]), first), COVERED[5:])
    assert again is not None
    assert [again.absolute(i) for i in range(3)] == [first.absolute(i) for i in range(3)] == [5, 6, 7]
    assert [again.relative(i) for i in (4, 5, 6)] == [None, 0, 1]


def test_it_is_known_that_the_message_has_vanished_which_a_record_leaves_out() -> None:
    made = trail(described(COVERED), anchor=5)
    assert goes_on(made, COVERED[5:]) == Resumed((), 5, 5)
    assert goes_on(made, COVERED[7:]) == Resumed((), 7, 7, 5)


def test_a_trail_knows_its_length() -> None:
    assert (len(TRAIL), isinstance(TRAIL, Trail)) == (len(COVERED), True)
