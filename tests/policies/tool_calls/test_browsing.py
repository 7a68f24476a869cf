"""What the record keeps of an agent in a browser."""

from __future__ import annotations

import json

import pytest

from policies.conversation.transcript import ToolCall, Utterance
from policies.record.actions import Work
from policies.record.blocks import state_blocks
from policies.record.texts import texts_for
from policies.tool_calls.browsing import BrowserStep, update_steps
from tests.support.conversations import count
from tests.support.records import made, shown_lines

URL = "https://shop.example/cart"
STATES = {
    "tab list": f"Current url: {URL}\nAvailable tabs:\n[TabInfo(page_id=0, url='{URL}', title='Your cart')]",
    "tabs by line": f"Tab 4f2a: {URL} - Your cart\nTab 77aa: https://other.example - Other\nCurrent URL: {URL}",
    "page snapshot": f"- Page URL: {URL}\n- Page Title: Your cart\n- Page Snapshot:",
}
NOTES = {"evaluation_previous_goal": "Success", "memory": "2 of 3 items are in the cart", "next_goal": "Enter the code"}
ACTIONS = [{"input_text": {"index": 7, "text": "SPRING-24"}}, {"click_element": {"index": 3}}]
ANSWERS = {
    "nested": {"current_state": NOTES, "action": ACTIONS},
    "flat": NOTES | {"action": ACTIONS},
}
STEP = BrowserStep(1, "Your cart", URL, ("SPRING-24",), NOTES["memory"], NOTES["next_goal"])


@pytest.mark.parametrize("as_call", [True, False])
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_step_has_its_page_what_was_typed_and_what_the_agent_noted(
    state: str, answer: dict[str, object], *, as_call: bool
) -> None:
    text = json.dumps(answer)
    calls = (ToolCall("AgentOutput", text, "a"),) if as_call else ()

    assert update_steps(
        (), [Utterance(0, "user", state), Utterance(1, "assistant", "" if as_call else text, calls)]
    ) == (STEP,)


@pytest.mark.parametrize("text", ["Done.", '{"action": "run"}', '{"action": []}', '{"memory": "x"}', '{"action": ['])
def test_what_is_no_step_is_none(text: str) -> None:
    assert not update_steps((), [Utterance(0, "assistant", text)])


def test_the_newest_steps_are_told_first_and_within_their_share() -> None:
    steps = [BrowserStep(at, f"Page {at}", URL, (f"value-{at}",), f"memory {at}", f"goal {at}") for at in range(60)]

    lines = shown_lines(state_blocks(Work(steps=tuple(steps)), texts_for("en"), 300, count), 300)

    assert lines[2] == f'- [59] Page 59 <{URL}>; typed: "value-59"; memory 59; next: goal 59'
    assert sum(count(line) for line in lines) <= 300
    assert len(lines) > 8


def test_steps_go_from_record_to_record_and_an_older_page_holds_until_another_is_seen() -> None:
    later = [Utterance(2, "assistant", json.dumps(NOTES | {"action": []}))]

    assert update_steps((STEP,), later) == (
        STEP,
        BrowserStep(2, "Your cart", URL, (), NOTES["memory"], NOTES["next_goal"]),
    )


def test_a_record_tells_the_steps_of_all_its_generations() -> None:
    task = Utterance(0, "user", "Buy three lamps in the shop.")
    first = made(
        [task, Utterance(1, "user", STATES["tab list"]), Utterance(2, "assistant", json.dumps(ANSWERS["flat"]))]
    )
    paid = {"memory": "The order is 77123", "next_goal": "Tell the user", "action": [{"done": {"text": "Done"}}]}
    second = made([Utterance(3, "assistant", json.dumps(paid))], first)

    assert [line for line in second.text.splitlines() if "; next: " in line] == [
        f"- [3] Your cart <{URL}>; The order is 77123; next: Tell the user",
        f'- [2] Your cart <{URL}>; typed: "SPRING-24"; 2 of 3 items are in the cart; next: Enter the code',
    ]
