"""Utterances of one voice each, and the turns of a conversation by who speaks."""

from policies.authorship.heard import Heard, heard_in
from policies.conversation.apart import split_voices
from policies.conversation.message import Call, Message
from policies.conversation.outline import Outline
from policies.conversation.transcript import Utterance

REMINDER = "<system-reminder>\nBe brief.\n</system-reminder>"
WHILE = "<system-reminder>\nThe user sent a new message while you were working:\nUse 9443.\n</system-reminder>"


def heard(*blocks: str) -> Message:
    found = heard_in(blocks)
    return Message(
        "user", 9, b"u", speech=found.speech, is_known=found.is_known, opens=found.opens, patterns=found.patterns
    )


CALLS = Message("assistant", 9, b"c", calls=(Call("c", "Bash"),))
RESULT = Message("tool", 9, b"r", results=("c",), joins=True)
SAYS = Message("assistant", 9, b"a")


def outline(*messages: Message) -> Outline:
    return Outline().longer(messages)


def test_a_turn_begins_where_a_person_speaks() -> None:
    found = outline(heard("Fix it."), CALLS, RESULT, SAYS, heard("<task-notification>\nx\n</task-notification>"), SAYS)
    assert (found.prompts, found.turns, found.tasks) == ([0, 4], [0], [0])


def test_a_bare_text_behind_a_result_is_a_persons_unless_it_stood_there_before() -> None:
    said = [heard("Fix it."), CALLS, RESULT, heard("3 steps left."), CALLS, RESULT, heard("2  steps left.")]
    said += [CALLS, RESULT, heard("2 steps left.", "Use tabs.")]
    found = outline(*said)
    assert (found.spoken, found.heard, found.openers, found.tasks) == ([0, 3, 9], [0, 3, 6, 9], [0], [0])
    known = outline(heard(REMINDER, "Fix it."), *said[1:])
    assert (known.spoken, known.openers, known.tasks) == ([0, 3, 6, 9], [0], [0])


def test_an_element_behind_a_result_is_no_persons_from_a_client_that_is_not_known() -> None:
    for element in (
        "<note>\nUse tabs.\n</note>",
        "<ci-note>\nUse tabs.\n</ci-note>",
        "<a-b>\nx\n</a-b>\n<c-d>\ny\n</c-d>",
    ):
        assert outline(heard("Fix it."), CALLS, RESULT, heard(element)).spoken == [0]


def test_what_is_made_of_an_element_that_was_there_is_no_persons() -> None:
    state = "<state>\n{}\n</state>"
    found = outline(heard("Fix it."), SAYS, heard(state.format(1)), SAYS, heard(state.format(2)))
    assert found.spoken == [0, 2]
    # Of an application that puts every message of its users into the same element all are theirs.
    assert outline(heard(state.format(1)), SAYS, heard(state.format(2))).spoken == [0, 2]


def test_an_unknown_element_is_the_task_only_where_nothing_else_can_be() -> None:
    wrapped = heard("<my-task>\nFix it.\n</my-task>")
    assert outline(wrapped, SAYS, wrapped).spoken == [0]
    assert outline(heard("Fix it."), SAYS, wrapped).spoken == [0]


def test_an_outline_goes_on_as_if_it_had_seen_all_at_once() -> None:
    said = [heard(REMINDER, "Fix it."), CALLS, RESULT, heard("Use tabs."), SAYS, heard("go on"), SAYS]
    for length in range(len(said)):
        assert Outline().longer(said[:length]).longer(said) == Outline().longer(said)


def test_each_utterance_has_one_voice_and_what_was_typed_stands_behind_its_result() -> None:
    said = [
        Utterance(0, "user", REMINDER),
        Utterance(0, "user", "Fix it."),
        Utterance(1, "assistant", "I look."),
        Utterance(2, "tool", f"ok\n\n{WHILE}", answers="c", tool="Bash"),
        Utterance(3, "user", "Always push."),
    ]
    found = split_voices(said, {0, 2})
    assert [(one.position, one.role, one.voice, one.text) for one in found] == [
        (0, "user", "harness", "Be brief."),
        (0, "user", "person", "Fix it."),
        (1, "assistant", "person", "I look."),
        (2, "tool", "person", f"ok\n\n{WHILE}"),
        (2, "user", "person", "Use 9443."),
        (3, "user", "report", "Always push."),
    ]


def test_a_question_that_failed_has_no_answer_of_a_person() -> None:
    result = Utterance(2, "tool", "Please wait.", answers="c", tool="AskUserQuestion")
    assert [one.text for one in split_voices([result], {2}) if one.role == "user"] == ["Please wait."]
    failed = Utterance(2, "tool", "Please wait.", answers="c", tool="AskUserQuestion", error=True)
    assert [one.text for one in split_voices([failed], {2}) if one.role == "user"] == []


def test_an_empty_message_is_a_word_to_go_on() -> None:
    assert heard_in(["", " "]) == Heard("brief")
