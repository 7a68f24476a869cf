"""What the log says, to programs and to people."""

from __future__ import annotations

import io
import json
import re
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from proxy.telemetry.events import Event, Note, PromptBilled, note
from proxy.telemetry.log import Form, Log
from proxy.telemetry.log_lines import LogLines
from tests.support.clock import Clock
from tests.support.events import answered, compacted


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def written(*told: Event, form: Form | None = "json", stream: io.BytesIO | None = None) -> list[str]:
    stream = stream or io.BytesIO()
    lines = LogLines(Log("info", Clock(1_795_426_797.25), stream, form))
    for event in told:
        lines(event)
    return stream.getvalue().decode().splitlines()


def named(*told: Event) -> list[str]:
    """Level and name of each line."""
    return [f"{line['level']} {line['event']}" for line in map(json.loads, written(*told))]


# ESC, OSC, BEL, NUL, new lines of all kinds, C1, and what turns a text around.
HOSTILE = "a\x1b[2Jb\x1b]0;t\x07c\x00d\ne\rf\x85g\u2028h\x9b31mi\u202ej\u2066k\x7f"


def filled(kind: type, hostile: str) -> Any:
    """A value of a type in which every text is this one."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is str:
        return hostile
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or is_dataclass(kind)):
        return kind(**{name: filled(each, hostile) for name, each in get_type_hints(kind).items()})
    if origin in (Union, UnionType):
        return filled(arguments[0], hostile)
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        return (filled(arguments[0], hostile),)
    if origin is not None:  # a list or a mapping
        return {hostile: filled(arguments[1], hostile)} if len(arguments) == 2 else [filled(arguments[0], hostile)]
    return kind(1)


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_no_field_of_an_event_reaches_a_terminal_as_a_command(kind: type, form: Form) -> None:
    harmless, hostile = io.BytesIO(), io.BytesIO()
    for stream, text in ((harmless, "x"), (hostile, HOSTILE)):
        LogLines(Log("debug", Clock(1_795_426_797.25), stream, form))(filled(kind, text))
    lines = hostile.getvalue().decode().split("\n")
    assert len(lines) == harmless.getvalue().count(b"\n") + 1
    assert all(map(str.isprintable, lines))


_SENT = {"upstream": "main", "model": "m"}


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        (note("admin", None, who="owner", what="config_reloaded"),
         '"who":"owner","what":"config_reloaded","tenant":null,"session":null'),
        (note("admin", "acme", "s", who="owner", what="record_read"),
         '"who":"owner","what":"record_read","tenant":"acme","session":"s"'),
        (note("compaction_item", "acme", **_SENT, what="made"),
         '"tenant":"acme","upstream":"main","model":"m","what":"made"'),
        (note("copy_refused", "acme", **_SENT, status=400, words="no"),
         '"tenant":"acme","upstream":"main","model":"m","status":400,"words":"no"'),
        (note("irreducible", "acme", "s"), '"session":"s","tenant":"acme"'),
        (note("max_iterations", "acme", "s", retries=3), '"tenant":"acme","session":"s","retries":3'),
        (note("media_refused", "acme", **_SENT, what="one"),
         '"tenant":"acme","upstream":"main","model":"m","what":"one"'),
        (note("media_refused", "acme", **_SENT, what="bytes", limit=9),
         '"tenant":"acme","upstream":"main","model":"m","what":"bytes","limit":9'),
        (note("shape", "acme", upstream="main", shape="user"), '"upstream":"main","tenant":"acme","shape":"user"'),
        (note("summarizer_paused", "acme", **_SENT, kind="timeout", seconds=30.0),
         '"tenant":"acme","upstream":"main","model":"m","kind":"timeout","seconds":30.0'),
        (note("thinking_removed", "acme", **_SENT), '"tenant":"acme","upstream":"main","model":"m"'),
        (note("unstable_history", "acme", "s", root="r"),
         '"root":"r","session":"s","tenant":"acme"'),
    ],
)  # fmt: skip
def test_a_notes_fields_are_written_in_their_order(event: Note, fields: str) -> None:
    (line,) = written(event)
    assert line.endswith(f'"event":"{event.name}",{fields}}}')


def test_a_line_begins_with_when_how_severe_and_what() -> None:
    (line,) = written(note("store_down", reason="it is full"))
    assert line == ('{"ts":"2026-11-23T09:39:57.250000Z","level":"warning","event":"store_down","reason":"it is full"}')


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (answered(), "info request"),
        (answered(end="truncated"), "warning request"),
        (compacted(), "info compaction"),
        (PromptBilled("acme", "main", "m", "s", 2_000, 900, cut_off=True), "warning cut_off"),
        (note("irreducible", "acme", "s"), "warning irreducible"),
        (note("unstable_history", "acme", "s", root="r"), "warning unstable_history"),
        (note("store_up", reason="it answers"), "info store_up"),
    ],
)
def test_what_is_told_of(event: Event, name: str) -> None:
    assert named(event) == [name]


def test_what_only_figures_want_is_no_line() -> None:
    assert written(note("config_reloaded"), PromptBilled("acme", "main", "m", "s", 900, 900, cut_off=False)) == []


def test_of_an_upstream_that_fails_the_first_and_the_last_is_told() -> None:
    fails = answered(cause="dns", code="upstream_unreachable", status=502, end="refused")
    elsewhere = answered(upstream="other", first_byte_ms=9.0)
    refused = answered(code="server_overloaded", status=503, end="refused")
    answers = answered(first_byte_ms=9.0)
    found = named(answers, fails, fails, elsewhere, refused, fails, answers, answers, fails)
    told = [line for line in found if "request" not in line]
    assert told == ["warning upstream_down", "info upstream_up", "warning upstream_down"]
    lines = map(json.loads, written(fails, fails, answers))
    told = [line for line in lines if line["event"].startswith("upstream")]
    assert [(line.get("cause"), line.get("failures")) for line in told] == [("dns", None), (None, 2)]


def test_a_conversation_near_its_window_is_told_of_once() -> None:
    near, far = answered(tokens_sent=6_300), answered(tokens_sent=6_299)
    other = answered(tokens_sent=6_300, session="07e407e407e407e4")
    assert named(far, near, near, far, near, other).count("warning near_window") == 2
    (line,) = (line for line in map(json.loads, written(near)) if line["event"] == "near_window")
    assert (line["session"], line["tokens_sent"], line["usable"]) == ("5e55105e55105e55", 6_300, 7_000)


def test_what_could_not_be_written_is_counted_and_raises_nothing() -> None:
    stream = io.BytesIO()
    log = Log("info", Clock(), stream)
    stream.close()
    log.info("a")
    log.warning("b", reason="c")
    assert log.lost == 2


def test_an_event_without_fields_is_a_line_too() -> None:
    stream = io.BytesIO()
    Log("info", Clock(), stream).info("alone")
    assert json.loads(stream.getvalue())["event"] == "alone"


@pytest.mark.parametrize(
    ("form", "stream", "is_json"),
    [
        (None, io.BytesIO(), True),
        (None, Terminal(), False),
        ("json", Terminal(), True),
        ("text", io.BytesIO(), False),
    ],
)
def test_a_terminal_shows_text_unless_the_config_says_otherwise(
    form: Form | None, stream: io.BytesIO, is_json: bool
) -> None:
    (line,) = written(compacted(), form=form, stream=stream)
    assert line.startswith("{") is is_json


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            answered(label="billing-work", tokens_received=161_300, tokens_sent=44_210, window=128_000,
                     compaction="reused", reason="below_threshold", ms=1_420.0),
            "billing-work gpt-4o 161k → 44.2k of 128k reused (below_threshold) 200 1.4 s",
        ),
        (answered(), "5e55105e55105e55 gpt-4o 900 → 400 of 8.2k none (below_floor) 200 100 ms"),
        (
            answered(session=None, label=None, model=None, tokens_sent=None, tokens_received=None, compaction=None,
                     status=502, end="refused", code="upstream_unreachable", cause="dns"),
            "POST /v1/chat/completions 502 100 ms refused upstream_unreachable cause=dns",
        ),
        (note("store_down", reason="it is full"), 'warning: store_down reason="it is full"'),
        (note("irreducible", "acme", "s"), "warning: irreducible session=s tenant=acme"),
    ],
)  # fmt: skip
def test_lines_for_people(event: Event, text: str) -> None:
    line, *_ = written(event, form="text")
    assert re.fullmatch(r"\d\d:\d\d:\d\d", line[:8])
    assert line[9:] == text


def test_nothing_in_a_line_for_people_moves_a_terminal() -> None:
    (line,) = written(note("store_down", reason="a\x1b[2Jb\nc"), form="text")
    assert line.isprintable()
