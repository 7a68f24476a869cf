"""Marks of ours behind head and record: where they stand, what takes none, and whose bytes the rest is."""

from __future__ import annotations

import json

import pytest

from policies.conversation.conversation import MessageIndex
from policies.decision.assemble import SHAPES, Injected, Item, MergedMessage, Shape
from proxy.dialects import json_array
from proxy.dialects.base import Dialect
from proxy.dialects.messages.breakpoints import mark_head
from proxy.dialects.table import CHAT, MESSAGES, RESPONSES
from tests.support.conversations import Json
from tests.support.message_blocks import MARK, text
from tests.support.strict_messages import blocks, marks

TOOL: Json = {"name": "ls", "input_schema": {"type": "object"}}
LATER: Json = {**TOOL, "name": "cp", "defer_loading": True}
FIX = '{"role" : "user","content":"Fix \\ud83d it."}'
DONE = '{"role":"assistant",  "content": [ {"type":"text","text":"ok"}]}'


def raw(**fields: object) -> bytes:
    """A request as some client writes it: spaces, and half an emoji as an escape."""
    before = "".join(f'"{key}" : {json.dumps(value)}, ' for key, value in fields.items())
    return f'{{ {before}"messages" : [{FIX} ,{DONE}], "max_tokens" : 9 }}'.encode()


@pytest.mark.parametrize(
    ("fields", "marked"),
    [
        ({"system": "Be brief."}, {"system": [text("Be brief.", **MARK)]}),
        ({"system": "Be \ud83d brief."}, {"system": [text("Be \ud83d brief.", **MARK)]}),
        ({"system": [text("a"), text("b")]}, {"system": [text("a"), text("b", **MARK)]}),
        ({"system": [text("a"), text(" \n")]}, {"system": [text("a", **MARK), text(" \n")]}),
        ({"system": [text("a", cache_control=None)]}, {"system": [text("a", **MARK)]}),
        ({"system": "Be brief.", "tools": [TOOL]}, {"system": [text("Be brief.", **MARK)], "tools": [TOOL]}),
        ({"tools": [TOOL, TOOL]}, {"tools": [TOOL, {**TOOL, **MARK}]}),
        ({"tools": [TOOL, LATER]}, {"tools": [{**TOOL, **MARK}, LATER]}),
        ({"system": "", "tools": [TOOL]}, {"tools": [{**TOOL, **MARK}]}),
        ({"system": None, "tools": [TOOL]}, {"tools": [{**TOOL, **MARK}]}),
        ({"system": [], "tools": []}, {}),
        ({"system": 5, "tools": [LATER, 7]}, {}),
        ({}, {}),
    ],
)
def test_the_head_is_marked_at_its_end(fields: Json, marked: Json) -> None:
    body = raw(**fields)
    found = mark_head(body)
    assert json.loads(found) == {**json.loads(body), **marked}
    assert f"[{FIX} ,{DONE}]".encode() in found
    assert (found == body) == (not marked)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_record_is_marked_in_every_shape_and_what_follows_keeps_its_bytes(shape: Shape) -> None:
    body = raw(system="Be brief.").replace(rb"\ud83d", rb"\u00e9")
    parsed = json_array.parse(body, MESSAGES.array)
    assert parsed is not None
    first, last = MessageIndex(0), MessageIndex(1)
    items: dict[Shape, list[Item]] = {
        "separate": [Injected("RECORD"), first, last],
        "ack": [Injected("RECORD"), Injected("OK.", "assistant"), first, last],
        "merge": [MergedMessage("RECORD", first), last],
    }
    plain = MESSAGES.rebuild(body, parsed, items[shape], {})
    found = MESSAGES.rebuild(body, parsed, items[shape], {}, is_marked=True)
    assert found == MESSAGES.rebuild(body, parsed, items[shape], {}, is_marked=True)
    sent = json.loads(found)
    assert (marks(json.loads(plain)), marks(sent)) == ([], ["5m", "5m"])
    assert blocks(sent["messages"][0])[0] == text("RECORD", **MARK)
    assert (rb'"Fix \u00e9 it."' in found, DONE.encode() in found) == (True, True)
    unmarked = [*blocks(sent["messages"][0])[1:], *sent["messages"][1:]]
    assert unmarked == [*blocks(json.loads(plain)["messages"][0])[1:], *json.loads(plain)["messages"][1:]]


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES])
def test_dialects_whose_providers_cache_by_themselves_have_none(dialect: Dialect) -> None:
    assert dialect.breakpoints is None
