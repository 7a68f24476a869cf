"""Other forms of a message: what changes in it, and whose bytes the rest is."""

from __future__ import annotations

import json
from functools import partial

import pytest
from hypothesis import given

from policies.conversation.conversation import MessageIndex
from policies.decision.assemble import MergedMessage, UserWords
from proxy.dialects import json_array
from proxy.dialects.table import MESSAGES
from tests.support.conversations import ANYTHING, Json, count
from tests.support.message_blocks import LONG_MARK, MARK, call, result, said, text, thought
from tests.support.strict_messages import blocks

describe = MESSAGES.items.describe
merge = MESSAGES.items.merge
shorten = MESSAGES.items.shorten
with_texts = MESSAGES.items.with_texts
without_thinking = MESSAGES.items.without_thinking
words = MESSAGES.items.words

user, model = partial(said, "user"), partial(said, "assistant")
LONG = "word " * 400
REMINDER = "<system-reminder>be kind</system-reminder>"
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://a/b"}}


def raw(message: object) -> bytes:
    """As some client writes it: spaces everywhere, and characters as escapes."""
    return json.dumps(message, indent=1).encode()


@pytest.mark.parametrize("content", ['"Fix \\ud83d it."', '[ {"type" : "text", "text":"Fix \\ud83d it." } ]'])
def test_a_record_is_a_block_before_the_clients_own_bytes(content: str) -> None:
    written = f'{{"role":"user", "content" : {content}, "x":1 }}'
    begun = merge("RECORD", written.encode()).decode()
    assert begun.startswith('{"role":"user","content":[{"type":"text","text":"RECORD"},{')
    assert '"Fix \\ud83d it."' in begun
    assert begun.endswith('}],"x":1}')


@pytest.mark.parametrize("content", ["", None, []])
def test_no_empty_block_stands_behind_a_record(content: object) -> None:
    assert blocks(json.loads(merge("RECORD", raw({"role": "user", "content": content})))) == [text("RECORD")]


def test_words_are_what_a_user_says_beside_results_in_its_own_bytes() -> None:
    message = user(result("a", "x"), REMINDER, text("Stop \ud83d.", **MARK), IMAGE, "", result("b"))
    found = words(raw(message))
    assert json.loads(found) == user(text("Stop \ud83d.", **MARK), IMAGE)
    assert json.dumps(text("Stop \ud83d.", **MARK), indent=1).replace("\n", "\n  ").encode() in found
    assert words(words(raw(message))) == words(raw(message))


def test_a_message_without_results_is_all_words() -> None:
    assert json.loads(words(raw(user("Stop.", IMAGE)))) == user("Stop.", IMAGE)
    assert json.loads(words(b'{"role":"user","content":"Stop."}')) == user("Stop.")


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ([thought(), "x", call("a")], ["x", call("a")]),
        ([{"type": "redacted_thinking", "data": "d"}, thought(), text("x", **MARK)], [text("x", **MARK)]),
        (["x", thought(), call("a")], ["x", call("a")]),
    ],
)
def test_thinking_leaves_and_the_rest_keeps_its_bytes(content: list[object], kept: list[object]) -> None:
    found = without_thinking(raw(model(*content)))
    assert found is not None
    assert json.loads(found) == model(*kept)
    for block in blocks(model(*kept)):
        assert json.dumps(block, indent=1).replace("\n", "\n  ").encode() in found


def test_a_message_without_thinking_is_the_same_and_one_of_it_alone_is_none() -> None:
    for message in (model("x"), user(result("a")), {"role": "assistant", "content": "x"}, {"role": "user"}):
        assert without_thinking(raw(message)) == raw(message)
    assert without_thinking(raw(model(thought(), thought()))) is None
    message = b",".join(map(raw, [model(thought()), model(thought(), "x")]))
    assert json.loads(MESSAGES.rewrite_items(message, without_thinking)) == model("x")


def test_each_result_gets_its_own_text_and_nothing_else_changes() -> None:
    message = user(
        result("a", LONG, is_error=True, **MARK), result("b", [text(LONG), text("x", **MARK)]), result("c", LONG), "Go."
    )
    found = json.loads(with_texts(raw(message), ["short", "brief", None]))
    assert found == user(
        result("a", [text("short")], is_error=True, **MARK),
        result("b", [text("brief", **MARK)]),
        result("c", LONG),
        "Go.",
    )


def test_a_short_form_takes_the_marks_of_the_request_it_goes_with() -> None:
    forms = [json.loads(with_texts(raw(user(result("a", LONG, **mark))), ["short"])) for mark in ({}, MARK, LONG_MARK)]
    assert [blocks(form)[0].get("cache_control") for form in forms] == [
        None,
        {"type": "ephemeral"},
        {"type": "ephemeral", "ttl": "1h"},
    ]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": LONG}, user("short")),
        (user(LONG, text("x", **MARK)), user(text("short", **MARK))),
        (model(call("a"), LONG, call("b"), "y"), model(call("a"), "short", call("b"))),
        (user(IMAGE), user("short", IMAGE)),
    ],
)
def test_without_results_calls_and_media_stay(message: Json, expected: Json) -> None:
    assert json.loads(with_texts(raw(message), ["short"])) == expected
    assert with_texts(raw(message), [None]) == raw(message)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": LONG},
        user(text(LONG, **MARK)),
        user(result("a", LONG), result("b", [text(LONG)])),
        model(LONG, call("a", text=LONG, line=3, deep={"x": [1]})),
    ],
)
def test_a_shortened_message_is_a_tenth_and_keeps_all_that_links_it(message: Json) -> None:
    before, short = describe(message, count), json.loads(shorten(raw(message), 0.1))
    after = describe(short, count)
    assert before
    assert after
    assert after.tokens < before.tokens / 4
    assert (after.role, after.calls, after.results) == (before.role, before.calls, before.results)
    assert [block.get("cache_control") for block in blocks(short)] == [
        block.get("cache_control") for block in blocks(message)
    ]


def test_an_answer_with_thinking_stays_as_it_came_however_long_it_is() -> None:
    message = raw(model(thought(LONG), LONG, call("a", text=LONG)))
    assert shorten(message, 0.1) == message


def test_media_become_a_note_and_keep_their_mark() -> None:
    document = {"type": "document", "source": {"type": "base64", "data": "x" * 999}}
    short = json.loads(shorten(raw(user(result("a", [IMAGE, {"type": "tool_reference"}]), document | MARK)), 0.1))
    assert short == user(
        result("a", [text("[image left out]"), {"type": "tool_reference"}]), text("[document left out]", **MARK)
    )


@given(ANYTHING)
def test_no_value_breaks_another_form_of_a_message(value: object) -> None:
    for content in (value, [value], [result("c", value)], [{"type": "text", "text": value}]):
        message = json.dumps({"role": "user", "content": content}).encode()
        results = blocks({"content": content}) == [result("c", value)]
        for found in (merge("R", message), words(message) or b"{}", shorten(message, 0.1), with_texts(message, ["s"])):
            assert isinstance(json.loads(found), dict), results
        assert without_thinking(message) is None or json.loads(without_thinking(message) or b"")


def test_what_is_silent_is_no_part_of_a_users_words() -> None:
    items = [model(thought()), user(result("a"), "Stop.")]
    body = json.dumps({"messages": [user("x"), *items]}).encode()
    parsed = json_array.parse(body, MESSAGES.array)
    assert parsed is not None
    (first, _), (_, last) = parsed.spans[1:]
    parsed.spans[1:] = [(first, last)]
    for item in (UserWords(MessageIndex(1)), MergedMessage("RECORD", UserWords(MessageIndex(1)))):
        (sent,) = json.loads(MESSAGES.rebuild(body, parsed, [item], {}))["messages"]
        assert blocks(sent)[-1] == text("Stop.")
        assert sent["role"] == "user"
