"""The invariants of docs/design.md, section 12, that concern one decision, over any history hypothesis thinks of."""

from __future__ import annotations

import json

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies.assembly import assemble
from policies.budget import budget_of
from policies.cuts import legal_cuts
from policies.fingerprint import prefix_digests
from policies.half_window import choose_cut
from policies.plan import Compact, decide, limits_of
from policies.settings import PolicySettings
from proxy.wire import chat
from tests.conversations import Json, body_of, conversation, histories, pairing_defects, parsed, rounds, user

POLICY = PolicySettings(keep_recent_messages=0)
RECORD = "the record"


def sent(messages: list[Json], covered: int) -> list[Json]:
    """What goes upstream, decoded, once body[:covered] is replaced by a record."""
    body = body_of(messages)
    items = assemble(conversation(messages), covered, RECORD)
    found: list[Json] = json.loads(chat.rebuild(body, parsed(body), items, {}))["messages"]
    return found


@st.composite
def cut_histories(draw: st.DrawFn) -> tuple[list[Json], int]:
    """A history and one of its legal cuts."""
    messages = draw(histories(min_units=2))
    cuts = legal_cuts(conversation(messages))
    assume(cuts)
    return messages, draw(st.sampled_from(cuts))


@given(cut_histories())
def test_2_shape_and_3_verbatim(case: tuple[list[Json], int]) -> None:
    messages, cut = case
    view = conversation(messages)
    head, body = messages[: view.head_length], messages[view.head_length :]
    instructions = [body[i] for i in view.covered_instructions(cut)]
    anchor = view.anchor(cut)
    expected = [
        *head,
        *instructions,
        {"role": "user", "content": RECORD},
        *([] if anchor is None else [body[anchor]]),
        *body[cut:],
    ]
    assert sent(messages, cut) == expected


@given(cut_histories())
def test_4_the_last_message_and_the_last_user_message_are_sent_verbatim(case: tuple[list[Json], int]) -> None:
    messages, cut = case
    result = sent(messages, cut)
    assert result[-1] == messages[-1]
    users = [message for message in messages if message["role"] == "user"]
    if users:
        assert users[-1] in result


@given(cut_histories())
def test_5_pairing_is_never_made_worse(case: tuple[list[Json], int]) -> None:
    messages, cut = case
    assert pairing_defects(sent(messages, cut)) <= pairing_defects(messages)


@given(cut_histories())
def test_6_no_cut_splits_a_round_or_parts_user_messages(case: tuple[list[Json], int]) -> None:
    messages, cut = case
    view = conversation(messages)
    assert view.body[cut].role != "tool"
    assert view.body[cut - 1].role != "user"


@given(cut_histories())
def test_7_authority_stays_where_it_was(case: tuple[list[Json], int]) -> None:
    messages, cut = case
    instructions = ("system", "developer")
    before = [m for m in messages if m["role"] in instructions]
    assert [m for m in sent(messages, cut) if m["role"] in instructions] == before


@given(
    cut_histories(),
    st.sampled_from(['{"messages":', '{ "model" : "m", "messages" : ', '{"a":"\\"messages\\":[","messages":']),
)
def test_everything_around_the_messages_keeps_its_bytes(case: tuple[list[Json], int], opening: str) -> None:
    messages, cut = case
    array = json.dumps(messages, indent=1, ensure_ascii=False)
    body = f'{opening}{array},"stream":false ,"temperature": 0.10}}'.encode("utf-8", "surrogatepass")
    found = parsed(body)
    rebuilt = chat.rebuild(body, found, assemble(conversation(messages), cut, RECORD), {})
    assert rebuilt.startswith(opening.encode())
    assert rebuilt.endswith(b',"stream":false ,"temperature": 0.10}')
    for first, last in found.spans[-1:]:
        assert body[first:last] in rebuilt


@given(histories(min_units=2), st.integers(50, 4_000), st.booleans())
@settings(max_examples=200)
def test_8_a_planned_compaction_makes_the_request_smaller(messages: list[Json], usable: int, force: bool) -> None:
    view = conversation(messages)
    plan = decide(view, limits_of(budget_of(usable, usable), POLICY), POLICY, None, force=force)
    if isinstance(plan, Compact) and not force:
        after = view.tools_tokens + view.head_tokens + budget_of(usable, usable).record + plan.cut.kept
        assert after <= 0.9 * view.total_tokens


@given(histories(min_units=2), st.integers(50, 4_000))
def test_9_the_same_request_is_always_decided_the_same(messages: list[Json], usable: int) -> None:
    budget = limits_of(budget_of(usable, usable), POLICY)
    assert decide(conversation(messages), budget, POLICY, None) == decide(conversation(messages), budget, POLICY, None)


@given(cut_histories(), histories())
def test_10_with_the_same_checkpoint_a_longer_history_only_appends(
    case: tuple[list[Json], int], more: list[Json]
) -> None:
    messages, cut = case
    view = conversation(messages)
    longer = [*messages, *more[conversation(more).head_length :]]
    assume(view.body)

    def bytes_sent(history: list[Json]) -> bytes:
        body = body_of(history)
        rebuilt = chat.rebuild(body, parsed(body), assemble(conversation(history), cut, RECORD), {})
        start, end = parsed(rebuilt).array
        return rebuilt[start : end - 1]

    assert bytes_sent(longer).startswith(bytes_sent(messages))


@given(cut_histories(), st.data())
def test_11_an_edit_of_the_covered_part_makes_its_checkpoint_unusable(
    case: tuple[list[Json], int], data: st.DataObject
) -> None:
    messages, cut = case
    view = conversation(messages)
    index = view.head_length + data.draw(st.integers(0, cut - 1))
    edited = [*messages]
    edited[index] = {**edited[index], "content": f"{edited[index].get('content')} edited"}
    assert conversation(edited).head_length == view.head_length
    before, after = (prefix_digests(b"s", conversation(m).body) for m in (messages, edited))
    assert before[cut] != after[cut]


@given(histories(min_units=2), st.integers(10, 5_000), st.integers(0, 30))
def test_a_chosen_cut_is_always_legal_and_beyond_the_standing_checkpoint(
    messages: list[Json], target: int, covered: int
) -> None:
    view = conversation(messages)
    cut = choose_cut(view, budget_of(5_000, 5_000), POLICY, covered=covered, target=target)
    if cut is not None:
        assert cut.position in legal_cuts(view)
        assert cut.position > covered


def test_a_tail_that_ends_with_a_large_result_is_sent_whole() -> None:
    messages = [user("task"), *rounds(60), *rounds(1, size=2_000, start=60)]
    plan = decide(conversation(messages), limits_of(budget_of(8_192, 7_000), POLICY), POLICY, None)
    assert isinstance(plan, Compact)
    assert sent(messages, plan.cut.position)[-1] == messages[-1]
