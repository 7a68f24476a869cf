"""Halves of emoji, and faults of ours on the way to the upstream: the request goes on, with the client's bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import json_array, surrogates
from proxy.dialects.table import CHAT
from proxy.errors import InvalidJSONError
from proxy.pipeline import answers, attempts
from tests.support.model_server import Fault, ModelServer
from tests.support.model_server.answers import error
from tests.support.scenarios import usable
from tests.support.stages import MODEL, WINDOW, Stage, history, ours, stage

pytestmark = pytest.mark.anyio

HALF = '"half \\ud83d of an emoji"'
QUIET = {"default": {"summarizer": {"model": "none"}, "soft_threshold": 1}}
JSON_VALUES = st.recursive(
    st.one_of(
        st.none(), st.integers(), st.text(st.characters(categories=("Cs", "L", "Cc", "Mn", "So"))), st.just(HALF)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=4)),
    max_leaves=8,
)


def request(share: float, **more: object) -> bytes:
    """A stream without a question for its usage, with half an emoji in what is kept."""
    messages = [*history(share), {"role": "user", "content": "now \ud83d?"}]
    return json.dumps({"model": MODEL, "messages": messages, "stream": True, **more}).encode()


@pytest.mark.parametrize("fields", [{}, {"user": "\udc4d"}, {"metadata": {"\ud83d": "\ud83d"}}, {"tools": [], "n": 1}])
async def test_half_an_emoji_is_no_reason_to_fail_for_a_compacted_stream(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    async with stage(tmp_path, policies=QUIET) as play:
        for _ in range(2):
            reply = await play.send(request(1.2, **fields))
            assert reply.status == 200
            assert ours(reply)[""] in ("applied", "reused")
            sent = play.sent[-1].body
            assert json.loads(sent)["stream_options"] == {"include_usage": True}
            assert b'"now \\ud83d?"' in sent, "kept messages are the client's bytes"
            assert {key: json.loads(sent)[key] for key in fields} == fields
        assert not play.logged("failed_open")


async def test_half_an_emoji_stays_in_a_pinned_text(tmp_path: Path) -> None:
    messages = [*history(1.2), {"role": "assistant", "content": "Done."}]
    messages[:0] = [{"role": "user", "content": "<pin>Keep \ud83d this rule of the house.</pin>"}, messages[-1]]
    body = json.dumps({"model": MODEL, "messages": messages}).encode()
    async with stage(tmp_path, policies=QUIET) as play:
        for _ in range(2):
            reply = await play.send(body)
            assert (reply.status, ours(reply)["pins"]) == (200, "1/1")
            assert ours(reply)[""] in ("applied", "reused")
        assert not play.logged("failed_open")


async def test_half_an_emoji_is_no_reason_to_fail_where_a_record_is_merged(tmp_path: Path) -> None:
    def strict(_: int, body: bytes) -> Fault | None:
        roles = [message["role"] for message in json.loads(body)["messages"]]
        if any(roles[i] == roles[i + 1] == "user" for i in range(len(roles) - 1)) or b'"OK."' in body:
            return Fault(answer=error(400, "Conversation roles must alternate user/assistant/...", kind="x"))
        return None

    messages = history(1.2)
    for message in messages:
        if message["role"] == "user":
            message["content"] = f"{message['content']} \ud83d"
    body = json.dumps({"model": MODEL, "messages": messages}).encode()
    async with stage(tmp_path, ModelServer(window=WINDOW, script=strict), policies=QUIET) as play:
        reply = await play.send(body)
        assert (reply.status, ours(reply)[""]) == (200, "applied")
        assert b'\\ud83d"' in play.sent[-1].body
        assert not play.logged("failed_open")


async def test_half_an_emoji_is_no_reason_to_fail_where_the_output_is_lowered(tmp_path: Path) -> None:
    async with stage(tmp_path, policies=QUIET) as play:
        reply = await play.send(request(0.4, max_tokens=usable(WINDOW)))
        assert reply.status == 200
        assert not play.logged("failed_open")


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "asking for the usage": lambda patch: patch.setattr(attempts.Attempts, "_asking", broken),
    "its fields": lambda patch: patch.setattr(json_array, "with_fields", broken),
    "looking at the answer": lambda patch: patch.setattr(attempts, "inspect_response", broken),
    "what a stream says": lambda patch: patch.setattr(CHAT.answers, "has_content", broken),
    "its first event": lambda patch: patch.setattr(answers, "_may_report", broken),
    "whether it is refused": lambda patch: patch.setattr(answers.UpstreamAnswer, "is_refusal", property(broken)),
    "shortening headers": lambda patch: patch.setattr(attempts, "without", broken),
}


def broken(*_: object, **__: object) -> object:
    raise KeyError("a fault of ours")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_fault_of_ours_between_request_and_answer_breaks_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    async with stage(tmp_path, ModelServer(window=None), policies=QUIET) as play:
        fault(monkeypatch)
        reply = await play.send(request(1.2))
        assert (reply.status, reply.complete) == (200, True)
        assert b"[DONE]" in reply.body
        assert play.logged("failed_open")
        assert told(play, reply) or play.sent[-1].body == request(1.2)


def told(play: Stage, reply: object) -> bool:
    """Whether the compacted copy was sent after all."""
    return play.sent[-1].body != request(1.2) and ours(reply)[""] == "applied"  # type: ignore[arg-type]


@given(
    st.dictionaries(st.text(st.characters(categories=("Cs", "L", "P")), max_size=4), JSON_VALUES, max_size=5),
    st.booleans(),
)
def test_setting_a_field_leaves_all_others_their_bytes(members: dict[str, object], spaced: bool) -> None:
    separators = (" , ", " : ") if spaced else (",", ":")
    body = json.dumps(members, separators=separators).encode()
    if len({surrogates.readable(json.dumps(key).encode()) for key in members}) < len(members):
        return  # two keys that strict readers cannot tell apart
    changed = json_array.with_fields(body, {"new": [1]}, without=("gone",))
    expected = {key: value for key, value in members.items() if key != "gone"} | {"new": [1]}
    assert json.loads(changed) == expected
    for key, value in expected.items():
        assert json.dumps(value, separators=separators).encode() in changed or key == "new"


def test_of_a_key_that_comes_twice_beside_a_lone_surrogate_the_last_value_is_kept() -> None:
    assert json_array.with_fields(b'{"a":"\\ud83d","a":1}', {"b": 2}, without=()) == b'{"a":1,"b":2}'


@pytest.mark.parametrize("body", [b"[]", b"7", b'{"\\ud83d":1,"\\ud83e":1}', b'{"a":"\\ud83d"', b"", b'{"a":1}x'])
def test_what_is_no_object_of_distinct_keys_takes_no_fields(body: bytes) -> None:
    with pytest.raises(InvalidJSONError):
        json_array.with_fields(body, {"a": 1}, without=())


@pytest.mark.parametrize(
    ("message", "content"),
    [
        (b'{"role":"user","content":"a \\ud83d"}', b'"RECORD\\n\\na \\ud83d"'),
        (b'{"role":"user" , "content" : "\\u0061"}', b'"RECORD\\n\\n\\u0061"'),
        (
            b'{"content":[{"type":"text","text":"\\ud83d"}]}',
            b'[{"type":"text","text":"RECORD"},{"type":"text","text":"\\ud83d"}]',
        ),
        (b'{"content":[ ]}', b'[{"type":"text","text":"RECORD"}]'),
        (b'{"content":null}', b'"RECORD"'),
        (b'{"name":"\\ud83d"}', b'"RECORD"'),
    ],
)
def test_a_record_is_put_before_what_a_message_says_byte_for_byte(message: bytes, content: bytes) -> None:
    merged = CHAT.items.merge("RECORD", message)
    assert content in merged
    assert {**json.loads(message), "content": 0} == {**json.loads(merged), "content": 0}
