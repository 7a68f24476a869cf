"""Whole conversations, cut wherever they may be cut, before a judge that takes nothing for granted."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import zip_longest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from policies.conversation.conversation import Conversation
from policies.conversation.prefix_digests import prefix_digests
from policies.decision.assemble import SHAPES, Shape, assemble
from policies.decision.legal_cuts import legal_cuts
from proxy.dialects import json_array
from proxy.dialects.history import History
from proxy.dialects.reader import RequestReader
from proxy.dialects.table import MESSAGES
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.runtime.workers import Workers
from tests.support.conversations import Json, count
from tests.support.message_blocks import MARK, call, result, said, text, thought
from tests.support.strict_messages import blocks, defects, marks

REFERENCE = os.environ.get("CONCERTINA_REFERENCE")
user, model = partial(said, "user"), partial(said, "assistant")
REMINDER = "<system-reminder>be kind</system-reminder>"
RECORD = "What was said before."
ENABLED: Json = {"thinking": {"type": "enabled", "budget_tokens": 1_024}}


class Read:
    """A request's body as it is read, and as it goes upstream behind a record."""

    def __init__(self, messages: list[Json], **fields: object) -> None:
        self.body = json.dumps({"model": "m", "max_tokens": 9_999, "messages": messages, **fields}).encode()
        parsed = json_array.parse(self.body, MESSAGES.array)
        assert parsed is not None
        described = [MESSAGES.items.describe(message, count) for message in messages]
        (read,) = History().longer([message for message in described if message is not None], ())
        self.parsed, self.messages = structs.replace(parsed, spans=read.spans(parsed.spans)), read.messages
        self.conversation = Conversation(self.messages, order=MESSAGES.settings(parsed.envelope.fields).order)

    @property
    def cuts(self) -> list[int]:
        return legal_cuts(self.conversation)

    def sent(self, cut: int, shape: Shape = "separate") -> Json:
        items = assemble(self.conversation, cut, RECORD, shape)
        found: Json = json.loads(MESSAGES.rebuild(self.body, self.parsed, items, {}))
        return found


def messages_of(body: Json) -> list[Json]:
    messages = body["messages"]
    assert isinstance(messages, list)
    return messages


def told(body: Json) -> str:
    """Who says what, in short: texts, calls by their ids, results by theirs in brackets."""
    return " | ".join(f"{m['role'][0]}: {', '.join(map(_short, blocks(m)))}" for m in messages_of(body))  # type: ignore[index]


def _short(block: Json) -> str:
    match block["type"]:
        case "tool_result":
            return f"[{block['tool_use_id']}]"
        case "text":
            return "RECORD" if block["text"] == RECORD else str(block["text"])
        case kind:
            return str(block.get("id", kind))


def system(words: str, **fields: object) -> Json:
    return {"role": "system", "content": words, **fields}


def rounds(*names: str) -> list[Json]:
    return [message for name in names for message in (model(call(name)), user(result(name)))]


GREP = result("a", [{"type": "tool_reference", "tool_name": "grep"}])
LOADING = [model(call("a")), user(GREP)]
CASES: list[tuple[str, list[Json], Json, list[int], str]] = [
    ("an anchor", [user("task"), *rounds("a", "b")], {}, [3], "u: RECORD | u: task | a: b | u: [b]"),
    ("turns", [user("t"), *rounds("a"), model("so"), user("then b"), *rounds("b")], {}, [3, 4],
     "u: RECORD | u: then b | a: b | u: [b]"),
    ("words beside results", [user("t"), model(call("a")), user(result("a"), REMINDER, "stop"), *rounds("b", "c")], {},
     [5], "u: RECORD | u: t | u: stop | a: c | u: [c]"),
    ("no cut behind words beside results",
     [user("t"), model(call("a")), user(result("a"), "stop"), *rounds("b")], {}, [], ""),
    ("a harness beside results", [user("t"), model(call("a")), user(result("a"), REMINDER), *rounds("b")], {}, [3],
     "u: RECORD | u: t | a: b | u: [b]"),
    ("several results", [user("t"), model(call("a"), call("b")), user(result("b"), result("a")), *rounds("c")], {},
     [3], "u: RECORD | u: t | a: c | u: [c]"),
    ("results in two messages", [user("t"), model(call("a"), call("b")), user(result("a")), user(result("b")),
     *rounds("c")], {}, [4], "u: RECORD | u: t | a: c | u: [c]"),
    ("an instruction behind each result", [user("t"), *rounds("a"), system("9 left"), *rounds("b"), system("8 left"),
     *rounds("c"), system("7 left")], {}, [4, 7],
     "u: RECORD | u: t | s: 8 left | a: c | u: [c] | s: 7 left"),
    ("an instruction behind the first user", [user("t"), system("rules"), *rounds("a", "b")], {}, [4],
     "u: RECORD | u: t | s: rules | a: b | u: [b]"),
    ("an instruction and a user's turn", [user("t"), system("rules"), *rounds("a"), model("so"), user("then b")], {},
     [4, 5], "u: RECORD | u: then b | s: rules"),
    ("one that has lapsed", [user("t"), system("rules", clear_at="next_user_message"), *rounds("a"), model("so"),
     user("then b"), *rounds("b", "c")], {}, [4, 5, 8], "u: RECORD | u: then b | a: c | u: [c]"),
    ("changes of tools", [user("t"), {"role": "system", "content": [{"type": "tool_removal", "tool": {"name": "x"}}]},
     *rounds("a"), {"role": "system", "content": [{"type": "tool_addition", "tool": {"name": "x"}}]}, *rounds("b")],
     {}, [5], "u: RECORD | u: t | s: tool_removal | s: tool_addition | a: b | u: [b]"),
    ("tools that were loaded", [user("t"), *LOADING, *rounds("b", "c")], {}, [3, 5],
     "u: RECORD | a: a | u: [a] | u: t | a: c | u: [c]"),
    ("tools and instructions", [user("t"), system("rules"), *LOADING, *rounds("b", "c")], {}, [4, 6],
     "u: RECORD | a: a | u: [a] | u: t | s: rules | a: c | u: [c]"),
    ("a paused answer", [user("t"), model({"type": "server_tool_use", "id": "s", "name": "x", "input": {}}),
     model({"type": "x_tool_result", "tool_use_id": "s", "content": []}, "so"), user("then b")], {}, [3],
     "u: RECORD | u: then b"),
    ("a loop that thinks", [user("t"), model(thought(), call("a")), user(result("a")), model(thought(), call("b")),
     user(result("b"))], ENABLED, [3], "u: RECORD | u: t | a: thinking, b | u: [b]"),
    ("a loop that thinks only at first", [user("t"), model(thought(), call("a")), user(result("a")), *rounds("b")],
     ENABLED, [], ""),
    ("the same where it need not", [user("t"), model(thought(), call("a")), user(result("a")), *rounds("b")], {}, [3],
     "u: RECORD | u: t | a: b | u: [b]"),
    ("a provider's compaction", [user("t"), *rounds("a"), model({"type": "compaction", "content": "x"}, call("b")),
     user(result("b")), *rounds("c", "d")], {}, [2], ""),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "fields", "cuts", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_goes_upstream_behind_a_record(messages: list[Json], fields: Json, cuts: list[int], expected: str) -> None:
    assert defects({"messages": messages, **fields}) == []
    read = Read(messages, **fields)
    assert read.cuts == cuts
    for cut in cuts:
        for shape in SHAPES:
            sent = read.sent(cut, shape)
            assert defects(sent) == [], told(sent)
    if expected:
        assert told(read.sent(cuts[-1])) == expected


def test_a_providers_compaction_and_its_round_stay_and_the_record_stands_behind_them() -> None:
    _, messages, _, cuts, _ = CASES[-1]
    read = Read(messages)
    assert told(read.sent(cuts[-1])).startswith("u: t | a: a | u: [a] | a: compaction, b | u: [b] | ")
    assert read.conversation.head_length == 5


def test_where_roles_take_turns_one_of_the_shapes_is_taken() -> None:
    read = Read([user("t"), *rounds("a", "b", "c"), model("so"), user("then b"), *rounds("d")])
    for cut in read.cuts:
        taken = [shape for shape in SHAPES if not defects(read.sent(cut, shape), alternating=True)]
        assert "merge" in taken
        assert "ack" in taken or read.conversation.body[cut].role != "user"


def test_digests_are_the_same_whether_a_client_keeps_messages_of_thinking_alone() -> None:
    kept = [user("t"), model(thought()), model(thought(), call("a")), user(result("a")), model("so")]
    dropped = [user("t"), model(call("a")), user(result("a")), model("so")]
    assert prefix_digests(b"s", Read(kept).messages) == prefix_digests(b"s", Read(dropped).messages)
    assert [m.signed for m in Read(kept).messages] == ["none", "bound", "none", "none"]


def test_digests_are_the_same_wherever_marks_stand() -> None:
    one = [user(text("t", **MARK)), model(call("a")), user(result("a"))]
    other = [{"role": "user", "content": "t"}, model(call("a") | MARK), user(result("a", **MARK))]
    assert prefix_digests(b"s", Read(one).messages) == prefix_digests(b"s", Read(other).messages)


_words = st.sampled_from(["Go on.", "x" * 90, "端口 8080", "Never touch a.py."])
_reminders = st.sampled_from([[], [], [REMINDER], ["and stop"], [REMINDER, "and stop"]])


@st.composite
def _round(draw: st.DrawFn, numbers: Iterator[int], *, thinks: bool) -> list[Json]:
    """A round as agents write it; some load tools, some use those of the provider."""
    names = [f"t{next(numbers)}" for _ in range(draw(st.integers(1, 3)))]
    made = [call(name, path=draw(_words)) for name in names]
    references = [{"type": "tool_reference", "tool_name": draw(st.sampled_from("xyz"))}]
    results = [result(name, draw(st.sampled_from(["ok", [text("ok")], references]))) for name in names]
    served = f"s{next(numbers)}"
    search = [
        {"type": "server_tool_use", "id": served, "name": "search", "input": {}},
        {"type": "search_tool_result", "tool_use_id": served, "content": []},
    ]
    begun = [thought()] if thinks else []
    answer = model(*begun, *draw(st.sampled_from([[], ["I look."], search])), *made)
    answered = draw(st.permutations(results))
    if draw(st.integers(0, 5)) == 0:
        return [answer, *map(user, answered)]
    return [answer, user(*answered, *draw(_reminders))]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Json], Json]:
    """A conversation that the provider takes, and what stands beside it."""
    numbers = iter(range(1_000))
    fields: Json = draw(st.sampled_from([{}, ENABLED]))
    messages: list[Json] = []
    for _ in range(draw(st.integers(1, 4))):
        messages += [user(draw(_words)) for _ in range(draw(st.integers(1, 2)))]
        turn: list[Json] = []
        for _ in range(draw(st.integers(0, 4))):
            begins = not turn or any(block["type"] != "tool_result" for block in blocks(turn[-1]))
            thinks = bool(fields) and (begins or draw(st.booleans()))
            turn += draw(_round(numbers, thinks=thinks))
        closed = draw(st.booleans())
        messages += [*_instructed(draw, turn), *([model("Done.")] if closed else [])]
        if turn and not closed:
            break
    messages = messages if messages[-1]["role"] != "assistant" else [*messages, user("Thanks.")]
    return messages, fields


def _instructed(draw: st.DrawFn, turn: list[Json]) -> list[Json]:
    """With instructions where they may stand."""
    found: list[Json] = []
    for message, behind in zip_longest(turn, turn[1:]):
        found.append(message)
        if message["role"] == "user" and behind is not None and behind["role"] == "assistant" and draw(st.booleans()):
            change = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "x"}}
            left = f"{draw(st.integers(0, 99))} left"
            found.append(draw(st.sampled_from([system(left), system("x", clear_at="next_user_message"),
                                               said("system", change)])))  # fmt: skip
    return found


@given(histories())
def test_no_legal_cut_harms_a_conversation(case: tuple[list[Json], Json]) -> None:
    messages, fields = case
    assert defects({"messages": messages, **fields}) == []
    read = Read(messages, **fields)
    for cut in read.cuts:
        for shape in SHAPES:
            sent = read.sent(cut, shape)
            assert defects(sent) == [], told(sent)
            last = [message for message in messages_of(sent) if message["role"] != "system"][-1]
            assert blocks(last)[-1] == blocks(messages[-1])[-1]


def captures() -> Iterator[tuple[str, Json]]:
    folder = Path(REFERENCE or ".") / "captures"
    for file in sorted(folder.glob("*/*_v1_messages.json")) if REFERENCE else ():
        yield f"{file.parent.name}/{file.name}", json.loads(file.read_text())["body"]


@pytest.mark.skipif(REFERENCE is None, reason="the reference data is not there: set CONCERTINA_REFERENCE to its folder")
@pytest.mark.parametrize(("name", "body"), list(captures()))
def test_a_real_conversation_is_cut_without_harm_wherever_it_may_be_cut(name: str, body: Json) -> None:
    fields = {key: value for key, value in body.items() if key not in ("messages", "model", "max_tokens")}
    read = Read(messages_of(body), **fields)
    known = {defect.partition(": ")[2] for defect in defects(body)}
    assert len(read.messages) == len(messages_of(body)), name
    for cut in read.cuts:
        sent = read.sent(cut)
        assert {defect.partition(": ")[2] for defect in defects(sent)} <= known, told(sent)
        assert messages_of(sent)[-1] == messages_of(body)[-1]
        assert len(marks(sent)) <= len(marks(body))


@pytest.mark.anyio
async def test_behind_a_separator_instructions_from_before_it_stand_where_they_may() -> None:
    rule: Json = {"role": "system", "content": "Never push."}
    gone: Json = {"role": "system", "content": "For now.", "clear_at": "next_user_message"}
    history = [user("go"), rule, gone, model("done"), user("/new"), user("and now"), model("ok"), user("more")]
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": history}).encode()
    with ThreadPoolExecutor(1) as pool:
        reader = RequestReader(Tokenizer(), Workers(pool))
        request = await reader.read(body, b"scope", lambda _: DEFAULT_ENCODING, MESSAGES)
    assert request is not None
    kept: Json = json.loads(request.after_separator("/new").body)
    assert messages_of(kept) == [*history[4:6], rule, *history[6:]]
    assert defects(kept) == []
