"""What every dialect must do, by the same conversations written in each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import permutations

import pytest

from policies.conversation.prefix_digests import prefix_digests
from policies.decision.assemble import Injected, MergedMessage, assemble
from policies.decision.legal_cuts import legal_cuts
from policies.record.actions import key_actions
from policies.record.prompting import Prompt
from proxy.dialects import json_array
from proxy.dialects.base import Usage
from proxy.dialects.table import DIALECTS, match_path
from proxy.errors import UpstreamTimeoutError
from proxy.server.sse import data_of, split_events
from tests.support.conversations import count
from tests.support.dialects import (
    CUTS,
    HISTORY,
    PLAIN,
    UNITS,
    WRITERS,
    Called,
    Entry,
    Style,
    Writer,
    Written,
    model,
    renamed,
    results,
    user,
    written,
)
from tests.support.fourth_dialect.writer import GeminiWriter

SCOPE = b"scope"
RECORD = "What was said before."
USAGE = Usage(1_234, 56)
# The table's, and one that is in no table: what holds for it holds for whatever is added.
WRITTEN = (*WRITERS, GeminiWriter())
each = pytest.mark.parametrize("writer", WRITTEN, ids=lambda writer: "/".join(writer.dialect.path))


def links(found: Written) -> list[bytes]:
    """The digest of what stands before every entry, and of all."""
    digests = prefix_digests(SCOPE, found.messages)
    return [digests[start] for start in found.starts]


def item(found: Written, index: int) -> bytes:
    first, last = found.parsed.spans[index]
    return found.body[first:last]


def test_every_dialect_is_written_here_and_found_by_its_path() -> None:
    assert [writer.dialect for writer in WRITERS] == [*DIALECTS]
    found = [match_path(dialect.path) for dialect in DIALECTS]
    assert [(each.dialect, each.path.does) for each in found if each] == [(one, "converse") for one in DIALECTS]
    assert match_path(("embeddings",)) is None


@each
def test_units_and_cuts_are_those_of_the_conversation(writer: Writer) -> None:
    found = written(writer, HISTORY)
    assert found.conversation.units == [found.starts[entry] for entry in UNITS]
    assert legal_cuts(found.conversation) == [found.starts[entry] for entry in CUTS]


@pytest.mark.requirement("D 1")
@each
def test_no_cut_parts_a_call_from_a_result_that_comes_late(writer: Writer) -> None:
    late = [*HISTORY[:2], results(c1="def f(): ..."), model("Meanwhile.", Called("c9")), results(c9="ok")]
    found = written(writer, [*late, model("Waiting."), results(c2="Error: 3 failed"), *HISTORY[5:]])
    assert min(legal_cuts(found.conversation)) == found.starts[7]


@pytest.mark.requirement("D 3")
@each
@pytest.mark.parametrize(
    "style", [Style(marked=True), Style(parts=True), Style(thinking=True)], ids=["marks", "parts", "thinking"]
)
def test_digests_are_the_same_however_a_client_writes_it(writer: Writer, style: Style) -> None:
    assert links(written(writer, HISTORY, style)) == links(written(writer, HISTORY))


@each
def test_digests_are_the_same_whatever_calls_are_named(writer: Writer) -> None:
    assert links(written(writer, renamed(HISTORY))) == links(written(writer, HISTORY))


@each
@pytest.mark.parametrize("at", [0, 1, 2, 3, 4, 9])
def test_an_edit_changes_all_digests_behind_it_and_none_before(writer: Writer, at: int) -> None:
    before, after = links(written(writer, HISTORY)), links(written(writer, _edited(HISTORY, at)))
    assert before[: at + 1] == after[: at + 1]
    assert not set(before[at + 1 :]) & set(after[at + 1 :])


def _edited(history: Sequence[Entry], at: int) -> list[Entry]:
    entry = history[at]
    if entry.results:
        changed = results(**{call: f"{text}!" for call, text in entry.results})
    elif entry.calls:
        changed = model(entry.text, *(Called(call.id, call.tool, f"{call.path}!") for call in entry.calls))
    else:
        changed = Entry(entry.role, f"{entry.text}!")
    return [*history[:at], changed, *history[at + 1 :]]


def test_no_dialect_has_a_digest_of_another() -> None:
    found = [links(written(writer, HISTORY))[1:] for writer in WRITTEN]
    assert len({link for of_one in found for link in of_one}) == sum(map(len, found))


@each
@pytest.mark.parametrize("order", [*permutations(("c1", "c2", "c3"))], ids="-".join)
def test_results_are_those_of_the_calls_they_name_in_whatever_order_they_come(
    writer: Writer, order: tuple[str, ...]
) -> None:
    said = {"c1": "ok", "c2": "Error: no such file", "c3": "ok"}
    calls = model("", Called("c1", "one"), Called("c2", "two"), Called("c3", "three"))
    found = written(writer, [user("go"), calls, results(**{call: said[call] for call in order})])
    assert [(action.tool, action.ok) for action in key_actions(found.utterances)] == [
        ("one", True),
        ("two", False),
        ("three", True),
    ]
    tools = [said.tool for said in found.utterances if said.role == "tool"]
    assert tools == [{"c1": "one", "c2": "two", "c3": "three"}[call] for call in order]


@each
def test_what_is_said_is_read_with_its_role(writer: Writer) -> None:
    said = [
        (said.role, said.text) for said in written(writer, HISTORY[:4], Style(thinking=True)).utterances if said.text
    ]
    assert said == [
        ("user", "Fix the build."),
        ("assistant", "I look."),
        ("tool", "def f(): ..."),
        ("tool", "Error: 3 failed"),
    ]


@pytest.mark.requirement("D 5")
@each
@pytest.mark.parametrize("style", [PLAIN, Style(marked=True, thinking=True)], ids=["plain", "marked"])
def test_around_a_record_every_byte_is_the_clients(writer: Writer, style: Style) -> None:
    found = written(writer, HISTORY, style)
    for cut in legal_cuts(found.conversation):
        items = assemble(found.conversation, cut, RECORD)
        rebuilt = found.dialect.rebuild(found.body, found.parsed, items, {})
        ours = found.dialect.items.inject(Injected(RECORD))
        kept = [item(found, i) if isinstance(i, int) else ours for i in items]
        first, last = found.parsed.array
        assert rebuilt == found.body[:first] + b"[" + b",".join(kept) + b"]" + found.body[last:]


@each
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_an_item_of_ours_is_read_as_what_it_is(writer: Writer, role: str) -> None:
    items = writer.dialect.items
    raw = items.inject(Injected(RECORD, role))  # type: ignore[arg-type]
    (said,) = items.utterances(json.loads(raw), 0, ())
    assert (said.role, said.text) == (role, RECORD)
    assert items.describe(json.loads(raw), count) == written(writer, [Entry(role, RECORD)]).messages[0]


@each
@pytest.mark.parametrize("style", [PLAIN, Style(parts=True)], ids=["text", "parts"])
def test_a_record_is_merged_before_what_a_user_says(writer: Writer, style: Style) -> None:
    found = written(writer, HISTORY, style)
    rebuilt = found.dialect.rebuild(
        found.body, found.parsed, [MergedMessage(RECORD, 0), *range(1, len(found.messages))], {}
    )
    parsed = json_array.parse(rebuilt, found.dialect.array)
    assert parsed is not None
    first, *others = parsed.spans
    items = found.dialect.items
    merged = "\n".join(said.text for said in items.utterances(json.loads(rebuilt[slice(*first)]), 0, (None,)))
    rest = [said.text for span in others for said in items.utterances(json.loads(rebuilt[slice(*span)]), 0, (None,))]
    assert merged.startswith(RECORD)
    assert merged.endswith("Fix the build.")
    assert rest == [said.text for said in found.utterances][1:]


@each
def test_a_shorter_item_keeps_what_links_it(writer: Writer) -> None:
    long = "word " * 400
    found = written(writer, [user(long), model(long, Called("c1", path=long)), results(c1=long)])
    items = writer.dialect.items
    for index, before in enumerate(found.messages):
        after = items.describe(json.loads(items.shorten(item(found, index), 0.1)), count)
        assert after is not None
        assert after.tokens < before.tokens / 4
        assert (after.role, after.calls, after.results) == (before.role, before.calls, before.results)
    last = len(found.messages) - 1
    replaced = items.with_texts(item(found, last), ["short"])
    (said,) = items.utterances(json.loads(replaced), last, ("bash",))
    assert (said.text, said.answers, said.tool) == ("short", "c1", "bash")


@each
def test_halves_of_emoji_are_taken_where_a_message_changes_and_kept_where_it_does_not(writer: Writer) -> None:
    """JavaScript cuts texts inside of them, and strict readers refuse the rest."""
    said, result = r"Stop \ud83d.", r"half \udc4d of it, and very much more"
    history = [user("Stop HALF."), model("", Called("c1"), Called("c2")), results(c1="RESULT", c2="RESULT")]
    found = written(writer, history)
    first, *_, last = (item(found, index) for index in range(len(found.messages)))
    first, last = first.replace(b"Stop HALF.", said.encode()), last.replace(b"RESULT", result.encode())
    items = writer.dialect.items
    assert said.encode() in items.merge(RECORD, first)
    assert json.loads(items.shorten(first, 0.5))
    assert r"\udc4d" not in json.dumps(json.loads(items.shorten(last, 0.5)))
    forms: list[str | None] = ["short", None][: last.count(result.encode())]
    changed = items.with_texts(last, forms)
    assert b"short" in changed
    assert changed.count(result.encode()) == len(forms) - 1, "what no form is for keeps its bytes"


@each
def test_what_a_request_says_beside_its_items(writer: Writer) -> None:
    found = written(writer, HISTORY)
    settings = found.dialect.settings(found.parsed.envelope.fields)
    assert (settings.model, settings.stream, settings.max_output, settings.passthrough) == ("m", False, 99, None)
    assert any(settings.definitions)
    lowered = found.dialect.with_output(found.body, settings.output_key, 7)
    parsed = json_array.parse(lowered, found.dialect.array)
    assert parsed is not None
    assert found.dialect.settings(parsed.envelope.fields).max_output == 7


@each
def test_an_answer_is_read_whole_and_in_a_stream(writer: Writer) -> None:
    answers = writer.dialect.answers
    whole, events = writer.answer("Fine.", USAGE), writer.events("Fine.", USAGE)
    assert answers.ANSWER_KEY in whole
    for told in ([whole], [event for event in reversed(events) if answers.USAGE_KEY in event]):
        usage = answers.usage(told)
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (USAGE.prompt_tokens, USAGE.completion_tokens)
    ending = answers.ending(whole)
    assert ending is not None
    assert (ending.prompt_tokens, ending.completion_tokens, ending.is_empty) == (1_234, 56, False)
    said = [answers.has_content(event) for event in events]
    assert said.index(True) == next(i for i, event in enumerate(events) if b"Fine." in event) > 0
    assert not any(answers.is_usage_alone(event) for event in events[:-1])


@each
def test_an_answer_is_whole_with_its_last_event_and_with_none_before(writer: Writer) -> None:
    answers = writer.dialect.answers
    *others, last = [*writer.events("Fine.", USAGE), *([b"[DONE]"] if writer.dialect.name == "chat" else [])]
    assert answers.is_last(last)
    assert not any(map(answers.is_last, others))
    for odd in (b"", b"{", b"[]", b"null", b'{"choices": 7}', b'{"response": 1}', b"\xff"):
        assert not answers.is_last(odd)


@each
def test_an_error_says_the_same_as_a_body_and_in_a_stream(writer: Writer) -> None:
    answers, error = writer.dialect.answers, UpstreamTimeoutError("Too late.", "idle_timeout").fields()
    body = answers.error_body(error, 504)
    assert "Too late." in json.dumps(json.loads(body))
    for ends in (False, True) if answers.STREAM == "events" else ():  # nothing of ours stands in an array
        stream = answers.error_event(error, 504, ends=ends)
        first, *_, rest = split_events(stream)
        assert "Too late." in json.dumps(json.loads(data_of(first)))
        assert rest == b"", "the event is whole"
    assert not answers.has_content(data_of(answers.WAITING))


@each
def test_a_question_is_a_request_like_any_other(writer: Writer) -> None:
    dialect = writer.dialect
    body = dialect.questions.ask("m", Prompt("Be brief.", "Sum it up."), (dialect.questions.OUTPUT_KEY, 77), 0.5)
    parsed = json_array.parse(body, dialect.array)
    assert parsed is not None
    settings = dialect.settings(parsed.envelope.fields)
    assert (settings.model, settings.stream, settings.max_output) == ("m", False, 77)
    first, last = parsed.spans[-1]
    assert [said.text for said in dialect.items.utterances(json.loads(body[first:last]), 0, ())] == ["Sum it up."]
    assert b"Be brief." in body


@each
def test_a_question_at_the_end_of_a_conversation_keeps_its_prompt(writer: Writer) -> None:
    found = written(writer, HISTORY)
    dialect, fields = found.dialect, found.parsed.envelope.fields
    items = [*range(len(found.messages)), Injected("Sum it up.")]
    asked = dialect.rebuild(found.body, found.parsed, items, {})
    body = dialect.questions.continuation(asked, fields, (dialect.settings(fields).output_key, 77))
    assert body is not None
    parsed = json_array.parse(body, dialect.array)
    assert parsed is not None
    first, last = parsed.array
    assert body[first:last].startswith(b"[" + b",".join(item(found, i) for i in range(len(found.messages))))
    assert dialect.settings(parsed.envelope.fields).definitions == dialect.settings(fields).definitions
    assert dialect.settings(parsed.envelope.fields).max_output == 77


@each
def test_the_answer_to_a_question_is_its_text_and_what_it_cost(writer: Writer) -> None:
    answer = writer.dialect.questions.read(writer.answer("Fine.", USAGE))
    assert answer is not None
    assert answer.usage is not None
    assert (answer.text, answer.tool_calls) == ("Fine.", False)
    assert (answer.usage.prompt, answer.usage.output) == (USAGE.prompt_tokens, USAGE.completion_tokens)
    assert writer.dialect.questions.read(writer.dialect.answers.error_body({"message": "no"}, 400)) is None
    assert writer.dialect.questions.read(b"<html>") is None


RULES_AND_WORDS = "<system-reminder>\n# claudeMd\nContents of /r/CLAUDE.md:\n\n- Never push.\n</system-reminder>"
WHILE = "<system-reminder>\nThe user sent a new message while you were working:\nUse 9443.\n</system-reminder>"


@each
@pytest.mark.parametrize("style", [PLAIN, Style(parts=True)], ids=["text", "parts"])
def test_files_of_rules_and_a_persons_words_can_be_sent_apart(writer: Writer, style: Style) -> None:
    history = [user(f"{RULES_AND_WORDS}\nFix the build."), model("I look.", Called("c1")), results(c1=f"ok\n\n{WHILE}")]
    found = written(writer, [*history, model("Done."), user("Now the docs.")], style)
    items = found.dialect.items
    first, result = found.messages[0], found.messages[found.starts[2]]
    assert (first.rules, first.said, first.is_known) == (("/r/CLAUDE.md",), "full", True)
    assert (result.words > 0, result.said) == (True, "full")
    assert found.conversation.rules(found.starts[4]) == [0]

    def said(raw: bytes) -> list[tuple[str, str]]:
        return [(one.role, one.text) for one in items.utterances(json.loads(raw), 0, (None,))]

    assert said(items.rules(item(found, 0))) == [("user", RULES_AND_WORDS)]
    assert said(items.words(item(found, found.starts[2]))) == [("user", "Use 9443.")]
    sent = assemble(found.conversation, found.starts[3], RECORD)
    rebuilt = found.dialect.rebuild(found.body, found.parsed, sent, {})
    parsed = json_array.parse(rebuilt, found.dialect.array)
    assert parsed is not None
    texts = [text for span in parsed.spans for _, text in said(rebuilt[slice(*span)])]
    assert texts[-4:] == [f"{RULES_AND_WORDS}\nFix the build.", "Use 9443.", "Done.", "Now the docs."]


@each
def test_of_results_alone_no_message_is_left_of_a_persons_words_or_rules(writer: Writer) -> None:
    found = written(writer, [user("Fix it."), model("I look.", Called("c1")), results(c1="ok"), user("Go on.")])
    items, result = found.dialect.items, item(found, found.starts[2])
    assert (items.words(result), items.rules(result)) == (b"", b"")
