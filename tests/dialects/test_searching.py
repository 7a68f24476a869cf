"""The search tool in each dialect: what a stream shows, which turn searches, and what is taken out of one."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from proxy.demo.answers import Usage
from proxy.demo.apis import APIS
from proxy.demo.prompt import Call, Function
from proxy.demo.replies import Reply
from proxy.dialects.searching import NAME, Search, add_spent, offered_in, spent_in, withdrawn
from proxy.dialects.table import DIALECTS
from proxy.server.sse import data_of

if TYPE_CHECKING:
    from proxy.dialects.base import Dialect
    from tests.support.conversations import Json

in_each = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
OURS = Reply(call=Call("call_s", Function(NAME, '{"query": "boathouse key"}')))
THEIRS = Reply(call=Call("call_b", Function("bash", '{"path": "a.py"}')))


def events(dialect: Dialect, *replies: Reply) -> list[Json]:
    """Of one stream that says all of these, one behind the other."""
    api = next(api for api in APIS if api.path.strip("/") == "/".join(dialect.path))
    streams = []
    for number, reply in enumerate(replies):
        chunks = api.stream(reply, "m", 1, Usage(5, 2)).chunks
        read = [json.loads(data) for chunk in chunks if (data := data_of(chunk)).startswith(b"{")]
        streams.append([_moved(event, number) for event in read])
    first, *others = streams
    inner = [event for stream in streams for event in stream if _is_inner(event)]
    begin = [event for event in first if not _is_inner(event)][: _BEGIN[dialect.name]]
    last = (others or [first])[-1]
    end = [event for event in last if not _is_inner(event)][_BEGIN[dialect.name] :]
    if dialect.name == "responses":
        items = [event["item"] for event in inner if event["type"] == "response.output_item.done"]
        end = [{**event, "response": {**event["response"], "output": items}} for event in end]
    return deepcopy([*begin, *inner, *end])


_BEGIN = {"chat": 1, "responses": 2, "messages": 1}


def _moved(event: Json, number: int) -> Json:
    for key in ("index", "output_index"):
        if key in event:
            event[key] = number
    for choice in event.get("choices", []):
        for call in choice["delta"].get("tool_calls", []):
            call["index"] = number
    return event


def _is_inner(event: Json) -> bool:
    if "choices" in event:
        delta = event["choices"][0]["delta"] if event["choices"] else {}
        return bool(delta.get("tool_calls") or delta.get("content"))
    return "index" in event or "output_index" in event


@in_each
def test_a_turn_that_searches_is_sent_back_with_what_was_found(dialect: Dialect) -> None:
    turn = dialect.searches.turn(events(dialect, Reply("Let me look. "), OURS, THEIRS))
    assert turn is not None
    assert turn.searches == (Search("call_s", "boathouse key"),)
    sent = json.dumps(dialect.searches.results(turn, ["Behind the third oar."]))
    assert all(text in sent for text in ("Let me look.", NAME, "boathouse key", "call_s", "Behind the third oar."))
    assert "bash" not in sent


@in_each
def test_a_turn_that_does_not_search_is_the_clients(dialect: Dialect) -> None:
    assert dialect.searches.turn(events(dialect, Reply("Fine."), THEIRS)) is None
    assert dialect.searches.whole({}) is None


@in_each
def test_what_a_stream_shows(dialect: Dialect) -> None:
    said = [dialect.searches.said(event) for event in events(dialect, Reply("Let me look. "), OURS, THEIRS)]
    assert sum(one.characters for one in said) == len("Let me look. ")
    assert [name for one in said for name in one.calls] == [NAME, "bash"]
    assert not any(one.other for one in said)


@in_each
def test_a_search_beside_a_clients_calls_is_taken_out(dialect: Dialect) -> None:
    hider = dialect.searches.hider()
    shown = [hider.shown(event) for event in events(dialect, THEIRS, OURS, THEIRS)]
    kept = [event for event in shown if event is not None]
    plain = events(dialect, THEIRS, THEIRS)
    drop = {"sequence_number"}
    assert [_without(event, drop) for event in kept] == [_without(event, drop) for event in plain]


@in_each
def test_an_answer_that_is_nothing_but_a_search_ends_as_one_without(dialect: Dialect) -> None:
    hider = dialect.searches.hider()
    kept = json.dumps([event for each in events(dialect, Reply("So."), OURS) if (event := hider.shown(each))])
    assert NAME not in kept
    assert not any(f'"{reason}"' in kept for reason in ("tool_calls", "tool_use"))


def _without(event: Json, keys: set[str]) -> Json:
    return {key: value for key, value in event.items() if key not in keys}


@in_each
def test_tokens_are_added_where_they_are_told(dialect: Dialect) -> None:
    told = events(dialect, Reply("So."))
    spent = spent_in(events(dialect, OURS))
    if dialect.name == "chat":  # a usage of its own, behind all choices
        assert spent["total_tokens"] == 7
    for event in told:
        add_spent(event, spent)
    used = dialect.answers.usage(
        [json.dumps(event).encode() for event in reversed(told) if "usage" in json.dumps(event)]
    )
    assert used is not None
    assert (used.prompt_tokens, used.completion_tokens) == (10, 4)


@in_each
@pytest.mark.parametrize("tools", ['[{"name": "bash", "function": {"name": "bash"}} ]', '[{"name":"a"},{"name":"b"}]'])
def test_the_tool_stands_behind_the_clients_and_can_be_withdrawn(dialect: Dialect, tools: str) -> None:
    body = f'{{"store": false, "tools": {tools}, "x": [1, 2]}}'.encode()
    found = offered_in(body, dialect.searches)
    assert found is not None
    read = json.loads(found)
    assert read["tools"] == [*json.loads(tools), json.loads(json.dumps(dialect.searches.TOOL))]
    assert json.loads(withdrawn(found)) == json.loads(body)
    assert offered_in(found, dialect.searches) is None
    assert offered_in(b"no json", dialect.searches) is None
