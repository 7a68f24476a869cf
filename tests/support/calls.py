"""Spans of calls with their results, as an agent makes them one by one."""

from __future__ import annotations

import json

from policies.conversation.transcript import ToolCall, Utterance


def said(*steps: tuple[str, object, str] | str) -> list[Utterance]:
    """Calls with their results, and what the user says between."""
    found: list[Utterance] = []
    for number, step in enumerate(steps):
        if isinstance(step, str):
            found.append(Utterance(2 * number, "user", step))
            continue
        tool, arguments, result = step
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        found.append(Utterance(2 * number, "assistant", "", (ToolCall(tool, text, f"c{number}"),)))
        found.append(Utterance(2 * number + 1, "tool", result, answers=f"c{number}"))
    return found
