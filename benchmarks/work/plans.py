"""Agents that work through a plan: what their plan tools are called with in each round, and what the plan then is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

STATUSES = ("pending", "in_progress", "completed")
_VERBS = ("Port", "Check", "Split", "Document", "Measure", "Rename", "Cover", "Review", "Remove", "Guard")
_THINGS = (
    "the parser",
    "src/auth/login.py",
    "配置加载模块",
    "the retry loop",
    "docs/api.md",
    "`make check`",
    "エラー処理",
    "the cache",
)


class Item(NamedTuple):
    text: str
    status: str


class Round(NamedTuple):
    """Calls, each with tool, arguments and result, and the plan behind them."""

    calls: list[tuple[str, str, str]]
    plan: list[Item]


Say = Callable[[list[Item], list[Item]], Iterator[tuple[str, object, str]]]


def _list_of(tool: str, key: str, text: str, result: str, **more: object) -> Say:
    """A tool that is given the whole plan each time."""

    def say(_: list[Item], plan: list[Item]) -> Iterator[tuple[str, object, str]]:
        items = [{text: item.text, "status": item.status, "id": str(at)} for at, item in enumerate(plan)]
        yield tool, {**more, key: items}, result

    return say


def _checks(tool: str, key: str, result: str) -> Say:
    marks = {"pending": " ", "in_progress": "-", "completed": "x"}

    def say(_: list[Item], plan: list[Item]) -> Iterator[tuple[str, object, str]]:
        yield tool, {"path": "a.py", key: "\n".join(f"- [{marks[i.status]}] {i.text}" for i in plan)}, result

    return say


def _one_by_one(before: list[Item], plan: list[Item]) -> Iterator[tuple[str, object, str]]:
    """Claude Code's tasks: made and changed one at a time."""
    for at, item in enumerate(plan):
        if at >= len(before):
            text = f"Task #{at + 1} created successfully: {item.text}"
            yield "TaskCreate", {"subject": item.text, "description": "More of it.", "activeForm": "Working"}, text
        if item.status != (before[at].status if at < len(before) else "pending"):
            yield "TaskUpdate", {"taskId": str(at + 1), "status": item.status}, f"Updated task #{at + 1} status"


def _file(_: list[Item], plan: list[Item]) -> Iterator[tuple[str, object, str]]:
    marks = {"pending": " ", "in_progress": " ", "completed": "x"}
    text = "# Plan\n" + "\n".join(f"- [{marks[i.status]}] {i.text}" for i in plan)
    yield "write_file", {"path": "docs/plan.md", "content": text}, "ok"


AGENTS: dict[str, Say] = {
    "Claude Code, TodoWrite": _list_of("TodoWrite", "todos", "content", "Todos have been modified successfully."),
    "Claude Code, tasks": _one_by_one,
    "codex": _list_of("update_plan", "plan", "step", "Plan updated", explanation="next"),
    "opencode": _list_of("todowrite", "todos", "content", "[]"),
    "qwen": _list_of("todo_write", "todos", "content", "Todos have been modified successfully."),
}
HELD_OUT: dict[str, Say] = {
    "gemini": _list_of("write_todos", "todos", "description", "Successfully updated the todo list."),
    "OpenHands": _list_of("task_tracker", "task_list", "title", "Task list updated", command="plan"),
    "Copilot": _list_of("manage_todo_list", "todoList", "title", "Successfully wrote todo list", operation="write"),
    "cline": _checks("replace_in_file", "task_progress", "The content was successfully saved to a.py."),
    "roo": _checks("update_todo_list", "todos", "Todo list updated successfully."),
    "goose": _checks("todo__todo_write", "content", "Updated (120 chars)"),
    "a plan file": _file,
}


def rounds(say: Say, count: int, seed: int = 1) -> Iterator[Round]:
    """A session in which a plan of 4 to 14 items is made, worked through and added to; it is never all done."""
    random_ = random.Random(seed)
    plan = [Item(f"{random_.choice(_VERBS)} {random_.choice(_THINGS)} ({at})", "pending") for at in range(4)]
    before: list[Item] = []
    for number in range(count):
        calls = [(tool, json.dumps(each, ensure_ascii=number % 2 == 0), text) for tool, each, text in say(before, plan)]
        yield Round(calls, [*plan])
        before = [*plan]
        at = random_.randrange(len(plan) - 1)
        plan[at] = plan[at]._replace(status=random_.choice(STATUSES))
        if number % 6 == 5 and len(plan) < 14:
            plan.append(Item(f"{random_.choice(_VERBS)} {random_.choice(_THINGS)} ({len(plan)})", "pending"))
