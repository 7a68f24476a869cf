"""Which large messages are replaced by short forms, when, and that what was replaced once stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from policies.conversation.conversation import Conversation
from policies.conversation.message import Call, Message
from policies.decision.budget import usable_input
from policies.decision.large_results import is_short_enough, short_form, threshold_tokens, zone_of
from policies.settings import DEFAULTS, PolicySettings
from tests.support.conversations import assistant, conversation, count, rounds, user
from tests.support.cool_zone import LARGE, WINDOW, loop, policy, replaced, result


@pytest.mark.requirement("R4 4 threshold")
@pytest.mark.parametrize(("window", "large"), [(8_192, 2_000), (40_000, 2_000), (128_000, 5_120), (1_000_000, 20_000)])
def test_large_is_four_percent_of_the_window_within_bounds(window: int, large: int) -> None:
    assert threshold_tokens(usable_input(window, None, exact=True), DEFAULTS) == large
    assert threshold_tokens(usable_input(window, None, exact=True), policy(threshold=77)) == 77


@pytest.mark.requirement("R4 3.2 cool")
def test_nothing_is_replaced_before_the_live_large_results_fill_the_valve() -> None:
    few = conversation(loop(*[LARGE] * 3, *[100] * 200))
    assert few.total_tokens > 0.6 * WINDOW
    assert zone_of(few, WINDOW, DEFAULTS).batches == ()


@pytest.mark.parametrize(("rounds", "taken"), [(0, 0), (5, 3), (20, 4)])
def test_a_batch_waits_until_it_saves_more_than_the_cache_that_it_breaks(rounds: int, taken: int) -> None:
    """Six large results behind 4,000 tokens of small ones: the more rounds there were, the longer it may go on."""
    small = [4_000 // rounds] * rounds if rounds else []
    view = conversation(loop(*small, *[LARGE] * 6, *[100] * 9))
    assert len(replaced(zone_of(view, WINDOW, policy()))) == taken


def test_what_a_record_has_taken_the_place_of_is_in_no_batch() -> None:
    view = conversation(loop(*[LARGE] * 2, *[200] * 200, *[LARGE] * 8, *[100] * 9))
    (first, *_) = replaced(zone_of(view, WINDOW, DEFAULTS))
    assert first > result(1)


def test_the_oldest_that_have_cooled_go_together_until_the_valve_is_relieved() -> None:
    zone = zone_of(conversation(loop(*[LARGE] * 10, *[100] * 9)), WINDOW, policy())
    assert replaced(zone) == [result(i) for i in range(len(replaced(zone)))]
    assert zone.batches[0].seen > zone.batches[0].members[-1]
    assert len(zone.batches[0].members) >= 2


def test_a_batch_tells_what_it_takes_out_and_what_it_breaks() -> None:
    view = conversation(loop(*[LARGE] * 10, *[100] * 9))
    for batch in zone_of(view, WINDOW, DEFAULTS).batches:
        removed = sum(view.body[member].tokens for member in batch.members)
        most = int(DEFAULTS.compaction_threshold * usable_input(WINDOW, None, exact=True).movable)
        sent = min(sum(message.tokens for message in view.body[: batch.seen]), most)
        assert (batch.payoff.removed, batch.payoff.rewritten) == (removed, sent - removed)


@pytest.mark.requirement("R4 3.2 hot")
def test_the_newest_rounds_stay_whole_whatever_they_weigh() -> None:
    view = conversation(loop(*[LARGE] * 8, 9_000, 9_000, 9_000, 9_000, 9_000, 50))
    hot = set(view.units[-6:])
    members = replaced(zone_of(view, WINDOW, policy()))
    assert members
    assert all(member < min(hot) for member in members)
    assert len(replaced(zone_of(view, WINDOW, policy(hot_rounds=1)))) > len(members)


@pytest.mark.requirement("R4 3.2 hot")
def test_the_newest_tool_tokens_stay_whole_whatever_their_age() -> None:
    talk = [message for i in range(30) for message in (user(f"question {i}"), assistant("answer " * 60))]
    zone = zone_of(conversation([*loop(*[LARGE] * 6), *talk]), WINDOW, DEFAULTS)
    assert replaced(zone) == [result(0), result(1), result(2), result(3)]


@pytest.mark.requirement("R4 3.2 which")
@pytest.mark.parametrize(
    "case",
    [
        policy(exclude_tools=["bash"]),
        policy(threshold=LARGE + 1),
        policy(valve=1.0),
        policy(roles=["assistant"]),
    ],
)
def test_a_policy_may_spare_them(case: PolicySettings) -> None:
    view = conversation(loop(*[LARGE] * 10, *[50] * 5))
    assert replaced(zone_of(view, WINDOW, DEFAULTS))
    assert zone_of(view, WINDOW, case).batches == ()


@pytest.mark.requirement("R4 3.2 which")
def test_other_roles_by_policy_but_never_the_newest_user_message() -> None:
    large = "x" * 4 * LARGE
    view = conversation([m for _ in range(8) for m in (user(large), assistant("ok"))] + rounds(20, size=40))
    members = replaced(zone_of(view, WINDOW, policy(roles=["user"])))
    assert members
    assert max(i for i, m in enumerate(view.body) if m.role == "user") not in members
    assert zone_of(view, WINDOW, DEFAULTS).batches == ()


def test_media_and_signed_messages_are_never_replaced() -> None:
    image = {"role": "tool", "content": [{"type": "text", "text": "x" * 4 * LARGE}, {"type": "file"}]}
    messages = [user("task")]
    for i in range(10):
        messages += [assistant(None, f"c{i}"), {**image, "tool_call_id": f"c{i}"}]
    assert zone_of(conversation([*messages, *rounds(8)]), WINDOW, DEFAULTS).batches == ()


def test_what_the_next_batch_would_take_is_foreseen_oldest_first() -> None:
    view = conversation(loop(*[LARGE] * 3, *[50] * 2))
    zone = zone_of(view, WINDOW, DEFAULTS)
    assert (zone.batches, [coming.position for coming in zone.next]) == ((), [result(0), result(1)])
    assert all(coming.wait > 0 for coming in zone.next)


SIZES = st.lists(st.sampled_from([20, 300, 2_100, 6_000]), min_size=1, max_size=60)


@pytest.mark.requirement("R4 3.2 cool")
@given(SIZES, SIZES, st.integers(1, 6))
@settings(max_examples=200)
def test_18_a_longer_history_only_adds_batches(sizes: list[int], more: list[int], hot_rounds: int) -> None:
    case = policy(hot_rounds=hot_rounds)
    shorter = conversation(loop(*sizes))
    longer = conversation(loop(*sizes, *more))
    before, after = zone_of(shorter, WINDOW, case).batches, zone_of(longer, WINDOW, case).batches
    assert after[: len(before)] == before
    members = [member for batch in after for member in batch.members]
    assert sorted(set(members)) == sorted(members)
    for batch in after:
        prefix = Conversation(longer.messages[: longer.head_length + batch.seen])
        assert batch.members[-1] < prefix.units[-hot_rounds]


@pytest.mark.requirement("R4 3.2 cool")
@pytest.mark.parametrize(
    ("text", "tool_name", "summary", "expected"),
    [
        (
            "a" * 500 + "b" * 500,
            "bash",
            None,
            ["output of bash, 1,000 characters", "a" * 400, "b" * 400, "200 characters"],
        ),
        ("short", None, None, ["[message, 5 characters", "short"]),
        ("a" * 5_000, "grep", "3 matches in app.py", ["output of grep", "to a summary]\n3 matches in app.py"]),
    ],
)
def test_a_short_form_says_what_it_stands_for(
    text: str, tool_name: str | None, summary: str | None, expected: list[str]
) -> None:
    form = short_form(text, tool_name, summary, 250)
    assert all(part in form for part in expected)


def test_a_short_form_is_used_only_where_it_is_shorter() -> None:
    assert is_short_enough("four", 2, count)
    assert not is_short_enough("four", 1, count)
    assert not is_short_enough("  ", 100, count)


@pytest.mark.parametrize(("number", "is_replaced"), [(1, True), (2, True), (3, False)])
def test_a_message_of_several_results_is_as_large_as_they_are(number: int, is_replaced: bool) -> None:
    """Each of them would be a message of its own in another dialect."""
    ids = tuple(f"c{i}" for i in range(number))
    call = Message("assistant", 10, b"call", calls=tuple(Call(name, "bash") for name in ids), continues=True)
    held = Message("tool", 2 * 4_000 + 500, b"held", results=ids, joins=True)
    body = [Message("user", 10, b"go"), *[message for _ in range(30) for message in (call, held)]]
    assert bool(zone_of(Conversation(body), 100_000, policy()).batches) == is_replaced


def shots(*tokens: int, name: str = "screenshot") -> Conversation:
    """A tool loop whose results hold a picture of so many tokens, or none, and 200 tokens of text."""
    view = conversation(loop(*[200] * len(tokens), name=name))
    pictures = iter(tokens)
    messages = [
        structs.replace(one, media=True, tokens=one.tokens + shown, media_tokens=shown)
        if one.role == "tool" and (shown := next(pictures)) else one
        for one in view.messages
    ]  # fmt: skip
    return Conversation(messages)


def test_pictures_of_tools_cool_with_the_large_results() -> None:
    """Whatever each weighs: the text beside them stays."""
    zone = zone_of(shots(*[700] * 45), WINDOW, DEFAULTS)
    assert zone.batches
    assert replaced(zone) == []
    media = [position for batch in zone.batches for position in batch.media]
    assert media == [result(number) for number in range(len(media))]
    room = usable_input(WINDOW, None, exact=True).movable
    first = zone.batches[0]
    live = [at for at in map(result, range(45)) if at < first.seen and at not in first.media]
    assert 700 * len(live) <= 0.15 * room < 700 * (len(live) + len(first.media))
    assert first.payoff.removed == 700 * len(first.media)


@pytest.mark.parametrize(
    "settings_of",
    [
        {"media": {"mode": "off"}},
        {"large_messages": {"exclude_tools": ["screenshot"]}},
        {"media": {"keep_rounds": 40}},
        {"large_messages": {"valve": 1.0}},
    ],
)
def test_pictures_stay_by_the_settings(settings_of: dict[str, object]) -> None:
    zone = zone_of(shots(*[1_500] * 24), WINDOW, PolicySettings.model_validate(settings_of))
    assert zone.batches == ()


@given(st.lists(st.sampled_from([0, 300, 1_500, 4_000]), min_size=1, max_size=60), st.data())
def test_a_longer_loop_only_adds_pictures(tokens: list[int], data: st.DataObject) -> None:
    view = shots(*tokens)
    rounds_kept = data.draw(st.integers(1, len(tokens)))
    shorter = Conversation(view.messages[: result(rounds_kept - 1) + 1])
    batches = zone_of(view, WINDOW, DEFAULTS).batches
    assert batches[: len(found := zone_of(shorter, WINDOW, DEFAULTS).batches)] == found
    hot = {*map(result, range(len(tokens) - 5, len(tokens)))}
    assert not hot & {position for batch in batches for position in batch.media}
