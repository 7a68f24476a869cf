"""Remembering what was read before changes nothing but the time it takes."""

from __future__ import annotations

import asyncio
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from policies.conversation.message import Message
from policies.conversation.prefix_digests import Chain
from proxy.dialects.history import History
from proxy.dialects.json_array import MAX_ITEMS
from proxy.dialects.prefixes import PrefixCache, ReadBody, worth_remembering
from proxy.dialects.reader import CountedRequest, RequestReader
from proxy.dialects.table import CHAT, MESSAGES, RESPONSES
from proxy.errors import InvalidJSONError
from proxy.memory import Memory
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.runtime import workers as threads
from tests.support.conversations import Json, assistant, body_of, described, parsed, rounds, system, tool, user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.dialects.base import Dialect

SCOPE = b"caller"
TOKENIZER = Tokenizer()
WORKERS = ThreadPoolExecutor(1)
OPENING = [system("You are a coding agent. " + "Be careful. " * 400), user("Fix it.")]


def reader() -> RequestReader:
    return RequestReader(TOKENIZER, threads.Workers(WORKERS))


def read(by: RequestReader, body: bytes, scope: bytes = SCOPE, dialect: Dialect = CHAT) -> CountedRequest | None:
    return asyncio.run(
        by.read(body, scope, lambda model: "cl100k_base" if model == "gpt-4" else DEFAULT_ENCODING, dialect)
    )


def facts(request: CountedRequest | None) -> object:
    """All that a request says, down to the bytes of every message."""
    if request is None:
        return None
    return (
        request.body,
        [bytes(request.message_bytes(i)) for i in range(len(request.messages))],
        [astuple(message) for message in request.messages],
        ([*request.parsed.spans], request.parsed.array),
        (request.settings, request.encoding, request.tools_tokens, request.tokens),
        (request.history.outline, request.history.bypass, digests(request)),
    )


def digests(request: CountedRequest) -> list[bytes]:
    """As they are named with the help of what was remembered."""
    links, seen = request.history.outline.links, request.history.digests
    return Chain(b"scope", request.conversation.body, links=links, seen=seen).digests


def remember(
    cache: PrefixCache, body: bytes, messages: list[Message], scope: bytes = SCOPE, dialect: Dialect = CHAT
) -> None:
    """Have a body remembered that nothing was known of."""
    whole = parsed(body)
    *histories, _ = History().longer(messages, worth_remembering(body, whole))
    cache.remember(scope, body, ReadBody(dialect.array, whole, "e", messages), histories, None)


TEXTS = st.sampled_from(["a", "b", "yes", '\\ " \n', "你好", "😀", "x" * 300, "messages", '"messages":['])
TURNS = (
    st.builds(user, TEXTS) | st.builds(assistant, TEXTS) | st.just(assistant(None, "c1")) | st.just(tool("c1", "ok"))
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["gpt-4o", "gpt-4", {"a": 1}]),
        "stream": st.booleans(),
        "max_tokens": st.integers(-1, 99),
        "max_completion_tokens": st.integers(1, 99),
        "n": st.integers(1, 2),
        "tools": st.just([{"type": "function", "function": {"name": "bash"}}]),
        "metadata": st.fixed_dictionaries({"user_id": TEXTS}),
        "conversation": TEXTS,
        "messages": st.just([user("twice")]),
    },
)


@st.composite
def edited(draw: st.DrawFn, history: Sequence[Json]) -> list[Json]:
    """The history as it may come back: longer, cut, or changed somewhere."""
    changed = list(history)
    match draw(st.sampled_from(["append", "append", "append", "rewind", "edit", "drop", "fork", "same"])):
        case "append":
            changed += draw(st.lists(TURNS, min_size=1, max_size=3))
        case "rewind":
            del changed[draw(st.integers(1, len(changed))) :]
        case "edit":
            changed[draw(st.integers(0, len(changed) - 1))] = draw(TURNS)
        case "drop":
            del changed[draw(st.integers(0, len(changed) - 1))]
        case "fork":
            changed[draw(st.integers(1, len(changed))) :] = draw(st.lists(TURNS, min_size=1, max_size=3))
        case _:
            pass
    return changed


@st.composite
def sessions(draw: st.DrawFn) -> list[bytes]:
    """Bodies of one session in one style of writing; fields before the messages and behind them may change."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]))
    ascii_only = draw(st.booleans())
    before, history = draw(FIELDS), list(OPENING)
    bodies = []
    for _ in range(draw(st.integers(2, 6))):
        history = draw(edited(history)) or list(OPENING)
        if draw(st.integers(0, 5)) == 0:
            before = draw(FIELDS)
        parts = [before, {"messages": history}, draw(FIELDS)]
        written = [json.dumps(part, separators=separators, ensure_ascii=ascii_only)[1:-1] for part in parts if part]
        bodies.append(("{" + ",".join(written) + "}").encode())
    return bodies


@settings(max_examples=150, deadline=None)
@given(sessions())
def test_a_warm_reader_reads_what_a_cold_one_reads(bodies: list[bytes]) -> None:
    warm = reader()
    for body in bodies:
        assert facts(read(warm, body)) == facts(read(reader(), body))


@settings(max_examples=100, deadline=None)
@given(sessions(), st.data())
def test_it_does_not_matter_of_which_requests_somebody_asks_for_more_than_the_count(
    bodies: list[bytes], data: st.DataObject
) -> None:
    """What most requests need not be known for is worked out when it is asked for."""
    warm = reader()
    for body in bodies:
        request = read(warm, body)
        if data.draw(st.booleans()):
            assert facts(request) == facts(read(reader(), body))


# What a provider's own compaction is in a dialect; what stands before it is not in the body.
BARRIERS = {
    RESPONSES: {"type": "compaction", "encrypted_content": "sealed"},
    MESSAGES: assistant([{"type": "compaction", "content": "All so far."}]),
}


@pytest.mark.parametrize("dialect", BARRIERS, ids=lambda dialect: dialect.name)
@settings(max_examples=60, deadline=None)
@given(turns=st.lists(st.lists(st.sampled_from("abcB"), min_size=1, max_size=6), min_size=2, max_size=5))
@example(turns=[["a", "b", "a", "c", "a"], ["B", "a", "c", "a", "b", "a"]])
def test_behind_a_providers_compaction_nothing_is_named_as_before(dialect: Dialect, turns: list[list[str]]) -> None:
    """What stands behind may begin as the whole did, and is another conversation's middle."""
    warm, history = reader(), [user("x" * 6_000)]
    speaking = {"a": user("Go on."), "b": assistant("Done."), "c": assistant("Not yet."), "B": BARRIERS[dialect]}
    for turn in turns:
        history += [speaking[letter] for letter in turn]
        body = json.dumps({"model": "gpt-4o", dialect.array.name: history}).encode()
        assert facts(read(warm, body, dialect=dialect)) == facts(read(reader(), body, dialect=dialect))


def test_an_outline_goes_on_from_the_last_one_that_was_asked_for() -> None:
    by, drawn = reader(), list[int]()
    for number, body in enumerate(growing(8)):
        request = read(by, body)
        assert request is not None
        if number in (3, 6):
            begun = request.history.remembered and request.history.remembered.known_outline
            drawn.append(begun.length if begun else 0)
            assert request.history.outline.length == len(request.messages) - 1
    assert drawn == [0, 6]


def growing(rounds: int) -> list[bytes]:
    """Bodies of an agent's session, each with two messages more than the one before."""
    history = list(OPENING)
    bodies = []
    for number in range(rounds):
        bodies.append(body_of(history, stream=True))
        history += [assistant(None, f"c{number}"), tool(f"c{number}", f"result {number} " * 20)]
    return bodies


class Counting(Tokenizer):
    """Counts what it is asked to count."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def count(self, text: str, encoding: str) -> int:
        self.asked += len(text)
        return super().count(text, encoding)


@pytest.mark.requirement("R0 10.1 once", "R3 8.3 counting")
def test_a_growing_history_is_counted_once() -> None:
    counting = Counting()
    by = RequestReader(counting, threads.Workers(WORKERS))
    bodies = growing(10)
    for body in bodies:
        read(by, body)
    assert counting.asked < 1.1 * len(bodies[-1])


@pytest.mark.parametrize("place", ["before", "behind"])
def test_an_agents_next_request_is_found_by_its_prefix(place: str) -> None:
    cache = PrefixCache(Memory())
    model, more = ('"model":"m",', "") if place == "before" else ("", ',"model":"m"')
    bodies = [b.replace(b'"model": "gpt-4o", ', model.encode())[:-1] + more.encode() + b"}" for b in growing(4)]
    for earlier, later in itertools.pairwise(bodies):
        whole = parsed(earlier)
        remember(cache, earlier, described(json.loads(earlier)["messages"]))
        found = cache.find(SCOPE, later, CHAT.array)
        assert found is not None
        prefix, seen = found
        assert len(prefix.items) == len(whole.spans) - 1
        assert ([*seen.spans], seen.array) == (parsed(later).spans, parsed(later).array)
        assert bytes(seen.envelope.fields["model"]) == b'"m"'


def test_what_one_caller_sent_is_never_found_by_another() -> None:
    cache = PrefixCache(Memory())
    earlier, later = growing(2)
    remember(cache, earlier, described(json.loads(earlier)["messages"]), b"one")
    assert cache.find(b"two", later, CHAT.array) is None
    assert cache.find(b"one", later, CHAT.array) is not None


def test_what_was_read_in_one_dialect_is_read_anew_in_another() -> None:
    """Both have their items under one name, and look for other fields beside them."""
    earlier, later = (body.replace(b"{", b'{"system":"Be brief.",', 1) for body in growing(2))
    by = reader()
    for dialect in (CHAT, MESSAGES, CHAT):
        cold = read(reader(), later, dialect=dialect)
        read(by, earlier, dialect=dialect)
        assert cold is not None
        assert facts(read(by, later, dialect=dialect)) == facts(cold)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda body: body.replace(b"coding agent", b"daring agent"), "an early message was edited"),
        (lambda body: body.replace(b'"gpt-4o"', b'"gpt-4x"'), "the model stands before the messages and is another"),
        (lambda body: body.replace(b'": [', b'":  ['), "other whitespace"),
        (lambda body: body[: len(body) // 2], "cut off"),
        (lambda body: body[:-1] + b',"messages":[]}', "another list behind"),
        (lambda body: body[: body.rindex(b', {"role": "user"')] + b'],"messages":[]}', "another list right behind"),
        (lambda body: body[: body.rindex(b', {"role": "user"')] + b'],"messages":null}', "none, said behind"),
        (lambda body: body[:-1], "no end"),
        (lambda body: body[: body.rindex(b"}]")] + b"}" + b",{}" * MAX_ITEMS + b"]}", "more than any conversation"),
        (lambda body: body.replace(b"}], ", b"} ], ")[:-1] + b"x}", "no JSON behind"),
    ],
)
def test_anything_else_is_read_as_a_whole(change: object, reason: str) -> None:
    cache = PrefixCache(Memory())
    earlier, later = growing(2)
    remember(cache, earlier, described(json.loads(earlier)["messages"]))
    assert callable(change)
    assert cache.find(SCOPE, change(later), CHAT.array) is None, reason


@pytest.mark.parametrize("end", [b"}, ]}", b"},]}", b"},\n]  }", b'}, {"role": "user", "content": "b"}, ]}'])
def test_a_comma_behind_the_last_item_is_refused_whatever_was_sent_before(end: bytes) -> None:
    by = reader()
    history = [user("x " * 3_000), user("a"), user("b")]
    read(by, body_of(history))
    with pytest.raises(InvalidJSONError):
        read(by, body_of(history[:2]).removesuffix(b"}]}") + end)


def test_text_that_is_no_utf_8_is_refused_whatever_was_sent_before() -> None:
    by = reader()
    body = json.dumps({"model": "m", "input": [user("x " * 3_000), user("a"), user("b")]}).encode()
    read(by, body, dialect=RESPONSES)
    with pytest.raises(InvalidJSONError):
        read(by, body.removesuffix(b"}") + b', "input": "\xff"}', dialect=RESPONSES)


def test_short_bodies_are_not_worth_remembering() -> None:
    cache = PrefixCache(Memory())
    body = body_of([user("a"), user("b")])
    remember(cache, body, described(json.loads(body)["messages"]))
    assert cache.find(SCOPE, body, CHAT.array) is None


@pytest.mark.requirement("R0 10.1 memory")
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(2, 30), st.integers(0, 40)), min_size=1, max_size=40))
def test_no_more_is_held_than_the_bound_allows(sent: list[tuple[int, int, int]]) -> None:
    bound = 40_000
    memory = Memory(bound)
    cache = PrefixCache(memory, per_opening=3)
    for session, length, tools in sent:
        messages = [user(f"{session} " + "x" * 200), *[user("y" * 200)] * length]
        body = json.dumps({"tools": ["t" * 1_000] * tools, "messages": messages}).encode()
        remember(cache, body, described(messages))
        assert memory.held_bytes["prefixes"] <= bound
        found = cache.find(SCOPE, body, CHAT.array)
        assert found is None or found[0].size >= len(bytes(found[0].envelope.fields["tools"]))


def test_the_session_that_was_used_longest_ago_goes_first() -> None:
    memory = Memory()
    cache = PrefixCache(memory)
    histories = [[user(f"{name} " * 1_000), *[user("y")] * 12] for name in ("one", "two", "three")]

    def is_known(number: int) -> bool:
        return cache.find(SCOPE, body_of([*histories[number], user("z")]), CHAT.array) is not None

    for number, messages in enumerate(histories):
        body = body_of(messages)
        remember(cache, body, described(messages))
        memory.most = min(memory.most, 2 * memory.held_bytes["prefixes"] + 1_000)  # two of these
        assert is_known(number)
        assert is_known(0)
    assert not is_known(1)


@pytest.mark.requirement("R0 10.1 once")
def test_messages_are_shared_and_not_described_again() -> None:
    by = reader()
    first, second = (read(by, body) for body in growing(2))
    assert first
    assert second
    known: Sequence[Message] = first.messages[:-1]
    assert all(one is two for one, two in zip(known, second.messages, strict=False))


@pytest.mark.parametrize("marked", [0, 1, 2, 3])
def test_marks_that_move_on_cost_no_prefix(marked: int) -> None:
    """opencode marks its last two messages, and so what ends with either never comes again."""
    history = [*OPENING, *rounds(6)]
    prefixes = PrefixCache(Memory())
    first, second = with_marks(history[:-2], marked), with_marks(history, marked)
    messages = described(json.loads(first)["messages"])
    remember(prefixes, first, messages)
    found = prefixes.find(SCOPE, second, CHAT.array)
    assert found is not None
    assert len(found[0].items) == len(history) - 2 - max(1, marked)


def with_marks(history: Sequence[Json], marked: int) -> bytes:
    mark = {"cache_control": {"type": "ephemeral"}}
    new = len(history) - marked
    return body_of([message if i < new else message | mark for i, message in enumerate(history)])
