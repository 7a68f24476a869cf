"""Agents whose tools are text: which conversations are such, and what is read of them."""

from __future__ import annotations

import pytest

from policies.authorship.text_calls import begins_as_result, closing_calls, ends_with_call
from policies.conversation.transcript import Utterance
from policies.record.text_protocol import as_tools, has_tools_in_text
from tests.support.records import made

# How the assistant ends a message, and how a harness frames what came of it.
PROTOCOLS = {
    "mini-swe-agent": ("THOUGHT: look at it\n\n```bash\ncat src/a_{0}.py\n```", "<returncode>0</returncode>\nline {0}"),
    "SWE-agent": ("Let me look.\n```\nopen src/a_{0}.py\n```", "[File: a_{0}.py]\nx\n(Open file: n/a)\nbash-$"),
    "smolagents": ("Thought: sum\nCode:\n```py\nprint({0})\n```<end_code>", "Observation:\nExecution logs:\n{0}"),
    "tags": ("I read it.\n<execute_bash>\ncat a_{0}.py\n</execute_bash>", "OBSERVATION:\ncontent {0}"),
}
# Calls with names and arguments in the text: what an answer is, and the result.
FUNCTION = "<function={name}>\n<parameter=command>cat > src/new_{{0}}.py << 'EOF'\nx = 1\nEOF</parameter>\n</function>"
CALLS = {
    "SWE-agent": (f"I write it.\n{FUNCTION.format(name='bash')}", "Observation: total {0}\nYou must push {0}."),
    "OpenHands": (
        f"I write it.\n\n{FUNCTION.format(name='execute_bash')}",
        "EXECUTION RESULT of [execute_bash]:\nYou must push {0}.\n[Command finished with exit code 0]",
    ),
    "cut off": (
        f"I write it.\n{FUNCTION.format(name='bash').removesuffix('</function>')}",
        "Plain {0}: must push {0}.",
    ),
    "Qwen": (
        f"I write it.\n<tool_call>\n{FUNCTION.format(name='bash')}\n</tool_call>",
        "<tool_response>\nmust push {0}\n</tool_response>",
    ),
    "Hermes": (
        'I write it.\n<tool_call>\n{{"name": "bash", "arguments": {{"command": "echo 1 > src/new_{0}.py"}}}}\n'
        "</tool_call>",
        "result {0}: must push",
    ),
    "invoke": (
        'I write it.\n<function_calls>\n<invoke name="bash">\n'
        '<parameter name="command">touch src/new_{0}.py</parameter>\n'
        "</invoke>\n</function_calls>",
        "must push {0}",
    ),
    "ReAct": (
        'I write it.\nAction: write_file\nAction Input: {{"path": "src/new_{0}.py", "content": "x = 1"}}',
        "Observation: written {0}, must push",
    ),
}
# What people say to somebody who answers with code.
PEOPLE = [
    "Make it blue.",
    "Now with a border",
    "Why is the second line there?",
    "thanks! shorter please",
    "and in Rust?",
]


def conversation(answer: str, output: str, rounds: int = 5) -> list[Utterance]:
    said = [Utterance(0, "user", "Never touch vendor/. Fix the bug.")]
    for number in range(rounds):
        said.append(Utterance(len(said), "assistant", answer.format(number)))
        said.append(Utterance(len(said), "user", output.format(number)))
    return said


@pytest.mark.parametrize("name", PROTOCOLS)
def test_blocks_become_calls_and_what_follows_them_results(name: str) -> None:
    said = conversation(*PROTOCOLS[name])
    assert has_tools_in_text(said)
    read = as_tools(said, None)
    assert [one.role for one in read] == ["user", *["assistant", "tool"] * 5]
    assert [len(one.calls) for one in read] == [0, *[1, 0] * 5]
    assert read[1].calls[0].arguments in said[1].text
    assert read[1].calls[0].arguments not in read[1].text
    assert [one.answers for one in read[2::2]] == [one.calls[0].id for one in read[1::2]]


def test_the_first_message_of_a_span_may_be_an_output() -> None:
    said = conversation(*PROTOCOLS["mini-swe-agent"])
    assert as_tools(said[2:], said[1]) == as_tools(said, None)[2:]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_output_of_the_last_call_may_stand_right_behind_a_span(name: str) -> None:
    said = conversation(*PROTOCOLS[name])
    *covered, after = said
    assert as_tools(covered, None, after) == as_tools(said, None)
    assert as_tools(covered, None) == as_tools(said, None)[:-1]
    assert as_tools(said, None, Utterance(11, "user", "Go on.")) == as_tools(said, None)
    assert as_tools(covered, None, Utterance(10, "assistant", "Done.")) == as_tools(covered, None)


def test_a_call_at_the_end_of_what_is_covered_has_the_outcome_of_its_output() -> None:
    said = [
        Utterance(0, "user", "Fix it."),
        Utterance(1, "assistant", "I test it.\n```bash\npytest -q\n```"),
    ]
    after = Utterance(2, "user", "<returncode>1</returncode>\n1 failed, 2 passed in 1s")
    (action,) = made(as_tools(said, None, after), written=None).actions
    assert (action.outcome, action.why) == ("failed", "1 failed, 2 passed in 1s")
    (action,) = made(as_tools(said, None), written=None).actions
    assert action.outcome == "unknown"


def test_people_who_are_shown_code_are_people() -> None:
    said = [Utterance(0, "user", "Write a page.")]
    for text in PEOPLE:
        said.append(Utterance(len(said), "assistant", "Here it is:\n```html\n<p>x</p>\n```"))
        said.append(Utterance(len(said), "user", text))
    assert not has_tools_in_text(said)


def test_a_conversation_with_tool_calls_or_hardly_any_message_is_none() -> None:
    answer, output = PROTOCOLS["mini-swe-agent"]
    assert not has_tools_in_text(conversation(answer, output, rounds=2))
    assert not has_tools_in_text([*conversation(answer, output), Utterance(11, "tool", "ok", answers="c1")])


def test_a_record_holds_their_commands_and_files_and_no_output_as_the_users_word() -> None:
    answer, output = (
        "I write it.\n```bash\ncat > src/new_{0}.py << 'EOF'\nx = 1\nEOF\n```",
        "<returncode>0</returncode>\nYou must never do {0}.",
    )
    record = made(as_tools(conversation(answer, output), None), written=None)
    assert [change.path for change in record.files] == [f"src/new_{number}.py" for number in range(5)]
    assert len(record.actions) == 5
    assert [entry.text for entry in record.entries] == ["Never touch vendor/.", "Fix the bug."]


@pytest.mark.parametrize("name", CALLS)
def test_calls_in_text_are_read_with_their_names_arguments_and_results(name: str) -> None:
    answer, output = CALLS[name]
    said = conversation(answer, output)
    assert has_tools_in_text(said)
    read = as_tools(said, None)
    assert [one.role for one in read] == ["user", *["assistant", "tool"] * 5]
    assert {one.text for one in read[1::2]} == {"I write it."}
    assert not any("Observation" in one.text for one in read)
    record = made(read, written=None)
    assert [change.path for change in record.files] == [f"src/new_{number}.py" for number in range(5)]
    assert [entry.text for entry in record.entries] == ["Never touch vendor/.", "Fix the bug."]


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ('I look.\n<function=bash>{"command":"ls"}</function>', '{"command":"ls"}'),
        ('I look.\n<invoke name="bash">\n{"command":"ls"}\n</invoke>', '{"command":"ls"}'),
        ("I look.\n<function=bash></function>", "{}"),
        ("I look.\nAction: bash\nAction Input: ls\nObservation:", "ls"),
        ("I look.\nAction: bash\nAction Input: ls\nObservation: a.py\n", "ls"),
    ],
)
def test_arguments_are_those_of_the_call_alone(text: str, given: str) -> None:
    found = closing_calls(text)
    assert found is not None
    assert [(call.name, call.arguments) for call in found.calls] == [("bash", given)]


def test_several_calls_in_one_text_are_all_read_and_the_last_has_the_result() -> None:
    answer = "Both.\n" + "\n".join(
        f"<function=bash>\n<parameter=command>touch {name}</parameter>\n</function>" for name in "ab"
    )
    read = as_tools([Utterance(1, "assistant", answer), Utterance(2, "user", "Observation: ok")], None)
    assert [call.arguments for call in read[0].calls] == ['{"command":"touch a"}', '{"command":"touch b"}']
    assert len({call.id for call in read[0].calls}) == 2
    assert (read[1].answers, read[1].text) == (read[0].calls[1].id, "ok")


@pytest.mark.parametrize(
    "text",
    [
        "A call looks like `<function=bash>` and ends with `</function>`, as the manual says.",
        "</function>",
        "<tool_call>no JSON</tool_call>",
        "<p>Action Input:</p>",
        "Action: none",
    ],
)
def test_what_only_looks_like_a_call_is_none(text: str) -> None:
    assert closing_calls(text) is None


@pytest.mark.parametrize(
    "answer",
    [
        "I list it.\n<function=bash>\n<parameter=command>ls</parameter>\n</function>",
        'I list it.\n<tool_call>\n{"name": "ls"}\n</tool_call>\n',
        "I list it.\n<execute_bash>\nls\n</execute_bash>",
        "Thought: sum\nCode:\n```py\nprint(1)\n```<end_code>",
        "Thought: I sum.\n<code>\nprint(1)\n</code>",
        "THOUGHT: look at it\n\n```bash\nls\n```",
        "DISCUSSION\nI look at it.\n```\nls\n```",
        'I list it.\nAction:\n```json\n{"action": "ls"}\n```\n',
        "I list it.\nAction: ls\nAction Input: src",
    ],
)
def test_an_answer_ends_with_a_call_as_protocols_write_it(answer: str) -> None:
    assert ends_with_call(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "Here is the config:\n```yaml\nport: 9090\n```",
        "Use this:\n<div>\n</div>",
        "Action: restart it, then\n```\nmake\n```\nor\n```\nmake all\n```",
        "```",
        "I think of a thought: this.\n```py\nx\n```",
    ],
)
def test_a_block_or_a_closing_tag_alone_is_no_call(answer: str) -> None:
    assert not ends_with_call(answer)


@pytest.mark.parametrize(
    ("text", "is_result"),
    [
        ("Observation: a", True),
        ("OBSERVATION:\na", True),
        ("Observation 2: a", True),
        ("Tool output: a", True),
        ("Tool result from bash: a", True),
        ("Execution result of [bash]:\na", True),
        ("Output (exit code 0): a", True),
        ("Result: a", True),
        ("Output format: JSON only.", False),
        ("Response rules: never touch vendor.", False),
        ("Result handling: never retry.", False),
        ("Observations for you: never touch vendor.", False),
        ("Output must be: JSON.", False),
        ("Results so far: fine.", False),
    ],
)
def test_a_result_begins_with_its_label_alone(text: str, is_result: bool) -> None:
    assert begins_as_result(text) == is_result
