"""Reading a request: what is known of it before anything is decided, and where the work is done."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import permutations
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pytest

from policies.conversation.message import Message
from policies.record.actions import key_actions
from proxy.dialects import json_array
from proxy.dialects.reader import CountedRequest, RequestReader
from proxy.dialects.table import CHAT
from proxy.errors import InvalidJSONError
from proxy.memory import Memory
from proxy.models.tokenizer import DEFAULT_ENCODING, INLINE_BYTES, Tokenizer
from proxy.runtime import workers as threads
from tests.support.conversations import assistant, body_of, system, tool, user

if TYPE_CHECKING:
    from collections.abc import Callable

describe = CHAT.items.describe

_T = TypeVar("_T")
TOKENIZER = Tokenizer()
TOKENIZER.warm(DEFAULT_ENCODING)


class Workers(Executor):
    """Does its work at once and remembers how often it was asked."""

    def __init__(self) -> None:
        self.jobs = 0

    def submit(self, work: Callable[..., _T], /, *args: object, **kwargs: object) -> Future[_T]:
        self.jobs += 1
        done: Future[_T] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as executors do
            done.set_exception(error)
        return done


def read(body: bytes, by: RequestReader | None = None) -> CountedRequest | None:
    reader = by or RequestReader(TOKENIZER, threads.Workers(Workers()))
    return asyncio.run(reader.read(body, b"caller", lambda _: DEFAULT_ENCODING, CHAT))


def understood(body: bytes) -> CountedRequest:
    request = read(body)
    assert request is not None
    return request


SOME = [system(), user("Fix it.")]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("gpt-4o", False, None, "max_tokens", None)),
        ({"model": None}, ("", False, None, "max_tokens", None)),
        ({"model": ["gpt-4o"]}, ("", False, None, "max_tokens", None)),
        ({"stream": True}, ("gpt-4o", True, None, "max_tokens", None)),
        ({"stream": "true"}, ("gpt-4o", False, None, "max_tokens", None)),
        ({"max_tokens": 7}, ("gpt-4o", False, 7, "max_tokens", None)),
        ({"max_tokens": 0}, ("gpt-4o", False, None, "max_tokens", None)),
        ({"max_tokens": "7"}, ("gpt-4o", False, None, "max_tokens", None)),
        ({"max_tokens": 7, "max_completion_tokens": 9}, ("gpt-4o", False, 9, "max_completion_tokens", None)),
        ({"n": 1}, ("gpt-4o", False, None, "max_tokens", None)),
        ({"n": None}, ("gpt-4o", False, None, "max_tokens", None)),
        ({"n": 2}, ("gpt-4o", False, None, "max_tokens", "several_choices")),
        ({"n": "2"}, ("gpt-4o", False, None, "max_tokens", "several_choices")),
        ({"previous_response_id": "r"}, ("gpt-4o", False, None, "max_tokens", "previous_response_id")),
        ({"previous_response_id": None}, ("gpt-4o", False, None, "max_tokens", None)),
    ],
)
def test_fields_are_taken_as_they_are_and_wrong_types_as_absent(fields: dict[str, object], expected: object) -> None:
    said = understood(body_of(SOME, **fields)).settings
    found = (said.model, said.stream, said.max_output, said.output_key, said.passthrough)
    assert found == expected


@pytest.mark.parametrize(("n", "answers"), [(None, 1), (1, 1), (3, 3), ("3", 1), (0, 1), (-2, 1)])
def test_the_number_of_answers_is_known(n: object, answers: int) -> None:
    assert understood(body_of(SOME, n=n)).settings.answers == answers


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({"prompt_cache_key": "k"}, "k"),
        ({"metadata": {"user_id": "u"}}, "u"),
        ({"metadata": {"user_id": 7}}, ""),
        ({"metadata": "u"}, ""),
        ({"conversation": ""}, ""),
        ({"conversation": {"id": "c"}, "metadata": {"session_id": "s"}}, "s"),
        ({}, ""),
    ],
)
def test_labels_are_strings_or_nothing(fields: dict[str, object], label: str) -> None:
    assert understood(body_of(SOME, **fields)).settings.label == label


def test_a_label_that_cannot_be_read_is_none_and_no_error() -> None:
    deep = b'"metadata":' + b'{"user_id":' * 150 + b"1" + b"}" * 150
    assert understood(body_of(SOME)[:-1] + b"," + deep + b"}").settings.label == ""


FUNCTION = {"name": "bash", "description": "Run a command. " * 50, "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": FUNCTION}]},
        {"functions": [FUNCTION]},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": FUNCTION}}},
    ],
)
def test_definitions_count_as_their_json(fields: dict[str, object]) -> None:
    [definition] = fields.values()
    assert understood(body_of(SOME, **fields)).tools_tokens == TOKENIZER.count(json.dumps(definition), DEFAULT_ENCODING)


@pytest.mark.requirement("R3 4.1 tokens")
def test_the_whole_request_is_the_sum_of_its_parts() -> None:
    request = understood(body_of(SOME, tools=[FUNCTION]))
    assert request.tokens == request.tools_tokens + sum(message.tokens for message in request.messages)
    assert request.tokens == request.conversation.total_tokens


@pytest.mark.parametrize("messages", [[1, 2], ["hi"], [None], [[]], [user("x"), "y"], [{"role": []}]])
def test_lists_of_something_else_are_not_understood(messages: list[object]) -> None:
    assert read(body_of(messages)) is None


LONE = rb'{"model":"gpt-4o","messages":[{"role":"user","content":"cut \ud83d here"},{"role":"user","content":"b"}]}'


def test_lone_surrogates_are_understood_and_kept_byte_for_byte() -> None:
    request = understood(LONE)
    assert request.body is LONE
    start, end = request.parsed.spans[0]
    assert LONE[start:end] == rb'{"role":"user","content":"cut \ud83d here"}'
    assert request.utterances(0, 1)[0].text == "cut \ufffd here"


@pytest.mark.parametrize("place", [b'"user":"\\udc00",', b'"model":"\\udc00",', b'"tools":["\\udc00"],'])
def test_lone_surrogates_may_stand_anywhere(place: bytes) -> None:
    assert understood(LONE[:1] + place + LONE[1:]).messages


def test_making_surrogates_readable_is_work_for_a_thread() -> None:
    workers = Workers()
    read(LONE, RequestReader(TOKENIZER, threads.Workers(workers)))
    assert workers.jobs == 1
    read(body_of(SOME), RequestReader(TOKENIZER, threads.Workers(workers)))
    assert workers.jobs == 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":[{"role":"user","content":NaN}]}',
        b'{"messages":[{"role":"user","content":"a\\ud83d"}]',
        b'{"messages":[{"role":"user","content":' + b"[" * 101 + b"]" * 101 + b"}]}",
        b'{"tools":' + b"[" * 101 + b"]" * 101 + b',"messages":[{"role":"user","content":"a"}]}',
        b'{"model":' + b"[" * 101 + b"]" * 101 + b',"messages":[{"role":"user","content":"a"}]}',
    ],
)
def test_what_cannot_be_read_is_the_clients_mistake(body: bytes) -> None:
    with pytest.raises(InvalidJSONError):
        read(body)


@pytest.mark.requirement("R4 4 background")
def test_large_new_text_is_counted_in_a_thread_and_known_text_not_at_all() -> None:
    workers = Workers()
    reader = RequestReader(TOKENIZER, threads.Workers(workers))
    large = user("word " * (INLINE_BYTES // 5 + 1))
    read(body_of([large]), reader)
    assert workers.jobs == 1
    read(body_of([large, assistant("ok"), user("go on")]), reader)
    assert workers.jobs == 1


def test_large_definitions_are_counted_in_a_thread_once() -> None:
    workers = Workers()
    reader = RequestReader(TOKENIZER, threads.Workers(workers))
    for _ in range(3):
        read(body_of(SOME, tools=["word " * INLINE_BYTES]), reader)
    assert workers.jobs == 1


def test_an_encoding_that_is_not_loaded_is_loaded_in_a_thread() -> None:
    names: list[str] = []

    class Watched(Tokenizer):
        def count(self, text: str, encoding: str) -> int:
            names.append(threading.current_thread().name)
            return super().count(text, encoding)

    with ThreadPoolExecutor(1, thread_name_prefix="worker") as workers:
        read(body_of([user("hi")]), RequestReader(Watched(), threads.Workers(workers)))
    assert names
    assert all(name.startswith("worker") for name in names)


def test_one_text_under_two_encodings_is_counted_twice() -> None:
    reader = RequestReader(TOKENIZER, threads.Workers(Workers()))
    counted = {
        encoding: asyncio.run(reader.read(body_of([user("naïve 你好")]), b"c", lambda _, e=encoding: e, CHAT))
        for encoding in ("o200k_base", "cl100k_base")
    }
    assert {request.encoding for request in counted.values() if request} == {"o200k_base", "cl100k_base"}
    assert len({request.tokens for request in counted.values() if request}) == 2


def test_results_are_named_after_the_calls_they_answer() -> None:
    request = understood(body_of([*SOME, assistant(None, "c1", "c2"), tool("c2", "two"), tool("cx", "stray")]))
    named = [(said.role, said.tool) for said in request.utterances(1, 4)]
    assert named == [("assistant", None), ("tool", "bash"), ("tool", None)]


def test_memory_of_messages_is_bounded() -> None:
    memory = Memory(10_000)
    reader = RequestReader(TOKENIZER, threads.Workers(Workers()), memory)
    for number in range(100):
        read(body_of([user(f"{number}")], tools=[number]), reader)
        assert sum(memory.held_bytes.values()) <= 10_000
    assert min(memory.held_bytes["messages"], memory.held_bytes["definitions"]) > 0


def test_a_history_seen_under_one_encoding_is_counted_anew_under_another() -> None:
    history = [system(), *(user(f"Größe {i}: 你好 " * 40) for i in range(20))]

    def tokens(reader: RequestReader, model: str) -> int:
        # The model stands behind the messages, so both requests begin with the same bytes.
        body = msgspec.json.encode({"messages": history, "model": model})
        request = asyncio.run(reader.read(body, b"caller", TOKENIZER.encoding_for, CHAT))
        assert request is not None
        return request.tokens

    reader = RequestReader(TOKENIZER, threads.Workers(Workers()))
    assert (
        tokens(reader, "gpt-4o")
        < tokens(reader, "gpt-4")
        == tokens(RequestReader(TOKENIZER, threads.Workers(Workers())), "gpt-4")
    )


def test_messages_that_are_the_same_are_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[object] = []

    def counting(message: object, count: Callable[[str], int], family: str) -> Message | None:
        described.append(message)
        return describe(message, count, family)

    monkeypatch.setattr("proxy.dialects.chat.messages.ITEMS.describe", counting)
    request = understood(body_of([user("again")] * 500))
    assert (len(request.messages), len(described)) == (500, 1)


def test_many_small_messages_are_described_off_the_event_loop() -> None:
    for messages, jobs in (([user("hi")] * 2_000, 0), ([user(f"{i}") for i in range(2_000)], 1)):
        workers = Workers()
        assert read(body_of(messages), RequestReader(TOKENIZER, threads.Workers(workers))) is not None
        assert workers.jobs == jobs


def test_a_message_of_ten_thousand_values_is_not_understood_and_never_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    crowded = {"role": "user", "content": [{}] * 10_000}
    decoded = decoded_from_now(monkeypatch)
    assert read(body_of([user("a"), crowded])) is None
    assert max(map(len, decoded)) < 1_000


def test_tools_of_ten_thousand_values_are_counted_and_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": {}}} for i in range(4_000)]
    decoded = decoded_from_now(monkeypatch)
    assert understood(body_of([user("a")], tools=tools)).tools_tokens == TOKENIZER.count(
        json.dumps(tools), DEFAULT_ENCODING
    )
    assert max(map(len, decoded)) < 1_000


def decoded_from_now(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is decoded from now on."""
    decoded: list[bytes] = []
    decode = json_array.decode

    def noting(raw: bytes | memoryview) -> object:
        decoded.append(bytes(raw))
        return decode(raw)

    monkeypatch.setattr(json_array, "decode", noting)
    return decoded


LATE = [
    [system(), user("a"), assistant(None, "c1", "c2"), tool("c1")],
    [user("/new"), tool("c2"), assistant(None, "c1"), tool("c1"), tool("stray"), user("b")],
]


def test_results_of_calls_from_before_a_separator_go_with_them() -> None:
    before, behind = LATE
    kept = understood(body_of([*before, *behind])).after_separator("/new")
    assert json.loads(kept.body)["messages"] == [before[0], behind[0], *behind[2:]]


@pytest.mark.parametrize("order", [*permutations("abc")], ids="".join)
def test_a_failure_is_told_of_the_call_that_failed_in_whatever_order_results_arrive(order: tuple[str, ...]) -> None:
    calls = [{"id": call, "type": "function", "function": {"name": call, "arguments": "{}"}} for call in "abc"]
    said = {"a": "ok", "b": "Error: no such file", "c": "ok"}
    messages = [user("go"), assistant() | {"tool_calls": calls}, *(tool(call, said[call]) for call in order)]
    actions = key_actions(understood(body_of(messages)).utterances(0, 5))
    assert [(action.tool, action.ok) for action in actions] == [("a", True), ("b", False), ("c", True)]


def test_without_late_results_all_behind_a_separator_is_sent() -> None:
    before, behind = LATE
    kept = understood(body_of([*before, tool("c2"), behind[0], *behind[2:]])).after_separator("/new")
    assert json.loads(kept.body)["messages"] == [before[0], behind[0], *behind[2:]]
