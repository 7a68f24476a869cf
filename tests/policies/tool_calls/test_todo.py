"""Plans: merged as tools change them, whole and in order, gone once they are done and something else begins."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.tool_calls.calls import done_in
from policies.tool_calls.plan_forms import PlanItem
from policies.tool_calls.todo import Plan, update_plan_state
from tests.support.calls import said

A, B = {"content": "Port the parser", "status": "completed"}, {"content": "更新文档", "status": "in_progress"}


def plan(*steps: tuple[str, object, str] | str, older: Plan = Plan()) -> Plan:  # noqa: B008 - immutable
    span = said(*steps)
    return update_plan_state(older, done_in(span), span)


def listed(found: Plan) -> list[tuple[str, str]]:
    return [(item.text, item.status) for item in found.items]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("TodoWrite", {"todos": [A, B]}),
        ("todowrite", {"todos": [A, B]}),
        ("todo_write", {"todos": json.dumps([A, B])}),
        ("update_plan", {"plan": [{"step": each["content"], "status": each["status"]} for each in (A, B)]}),
        ("write_todos", {"todos": [{"description": each["content"], "status": each["status"]} for each in (A, B)]}),
        (
            "task_tracker",
            {
                "command": "plan",
                "task_list": [
                    {"title": A["content"], "status": "done"},
                    {"title": B["content"], "status": "in_progress"},
                ],
            },
        ),
        (
            "manage_todo_list",
            {
                "todoList": [
                    {"id": 1, "title": A["content"], "status": "completed"},
                    {"id": 2, "title": B["content"], "status": "in-progress"},
                ]
            },
        ),
        ("update_todo_list", {"todos": "[x] nothing\n- [x] Port the parser\n- [-] 更新文档"}),
        ("attempt", {"task_progress": "- [x] Port the parser\n- [-] 更新文档"}),
        ("todo__todo_write", {"content": "- [x] Port the parser\n- [-] 更新文档"}),
    ],
)
def test_every_agents_plan_is_read(tool: str, arguments: object) -> None:
    assert listed(plan((tool, arguments, "ok"))) == [("Port the parser", "done"), ("更新文档", "active")]


def test_items_that_are_made_one_by_one_are_merged_by_what_the_results_call_them() -> None:
    made = plan(
        ("TaskCreate", {"subject": "Port it", "description": "x"}, "Task #1 created successfully: Port it"),
        ("TaskCreate", {"subject": "Test it", "description": "x"}, "Task #2 created successfully: Test it"),
        ("TaskUpdate", {"taskId": "1", "status": "completed"}, "Updated task #1 status"),
        ("TaskUpdate", {"taskId": "2", "status": "in_progress"}, "Updated task #2 status"),
        ("TaskUpdate", {"taskId": "9", "status": "completed"}, "Task not found"),
    )
    assert listed(made) == [("Port it", "done"), ("Test it", "active")]
    later = plan(("TaskUpdate", {"taskId": "2", "status": "completed"}, "Updated task #2 status"), older=made)
    assert listed(later) == [("Port it", "done"), ("Test it", "done")]
    gone = plan(("TaskUpdate", {"taskId": "1", "status": "deleted"}, "Updated task #1"), older=made)
    assert listed(gone) == [("Test it", "active")]


def test_a_list_that_a_tool_shows_is_the_plan() -> None:
    shown = "#1 [completed] Port it\n#2 [pending] Test it [blocked by #1]"
    assert listed(plan(("TaskList", {}, shown))) == [("Port it", "done"), ("Test it", "open")]


def test_a_plan_call_that_failed_changes_nothing() -> None:
    before = plan(("TodoWrite", {"todos": [A, B]}, "Todos have been modified successfully"))
    assert plan(("TodoWrite", {"todos": [A]}, "Error: InputValidationError"), older=before) == before


def test_a_plan_that_is_done_is_gone_once_something_else_is_asked_for() -> None:
    done = ("TodoWrite", {"todos": [A]}, "ok")
    assert listed(plan(done)) == [("Port the parser", "done")]
    assert listed(plan(done, "go on")) == [("Port the parser", "done")]
    assert plan(done, "Now write the release notes, please.") == Plan()
    assert listed(plan(done, "Now write the release notes.", ("TodoWrite", {"todos": [B]}, "ok"))) == [
        ("更新文档", "active")
    ]
    assert listed(plan(("TodoWrite", {"todos": [A, B]}, "ok"), "Now write the notes, please.")) != []


def test_plans_in_words_are_kept_as_they_were_written_and_changed() -> None:
    written = plan(("Write", {"file_path": "docs/plan.md", "content": "# Plan\n- [ ] Port it"}, "ok"))
    assert (written.text, written.source) == ("# Plan\n- [ ] Port it", "docs/plan.md")
    edit = {"file_path": "docs/plan.md", "old_string": "- [ ] Port", "new_string": "- [x] Port"}
    assert plan(("Edit", edit, "has been updated"), older=written).text == "# Plan\n- [x] Port it"
    assert plan(("bash", {"command": "sed -i s/a/b/ docs/plan.md"}, "ok"), older=written).stale
    assert plan(("bash", {"command": "rm docs/plan.md"}, "ok"), older=written).text == ""
    fed = plan(("bash", {"command": "cat > TODO.md <<'E'\n- [ ] a\nE"}, ""))
    assert (fed.text, fed.source) == ("- [ ] a", "TODO.md")
    assert plan(("ExitPlanMode", {"plan": "1. Port it"}, "User has approved your plan.")).text == "1. Port it"
    assert plan(("ExitPlanMode", {"plan": "1. Port it"}, "The user doesn't want to proceed")).text == ""


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("Task", {"description": "Find it", "prompt": "Look for x"}),
        ("TaskOutput", {"task_id": "a1"}),
        ("create_task", {"title": "A ticket for a customer"}),
        ("run_task", {"command": "npm test"}),
        ("update_subscription_plan", {"plan": "pro"}),
        ("plan_trip", {"city": "Ulm"}),
    ],
)
def test_what_is_no_plan_makes_none(tool: str, arguments: object) -> None:
    assert plan((tool, arguments, "ok")) == Plan()


ITEMS = st.lists(
    st.tuples(st.text("abc 中", min_size=1).filter(str.strip), st.sampled_from(["pending", "in_progress"])),
    min_size=1,
    max_size=8,
)


@given(
    st.lists(st.tuples(st.sampled_from(["TodoWrite", "todo_write", "write_todos"]), ITEMS, st.booleans()), max_size=8)
)
def test_the_plan_is_whole_after_any_sequence_of_updates(steps: list[tuple[str, list[tuple[str, str]], bool]]) -> None:
    found, expected = Plan(), []
    for tool, items, fails in steps:
        todos = [{"content": text, "status": status} for text, status in items]
        found = plan((tool, {"todos": todos}, "Error: no" if fails else "ok"), older=found)
        if not fails:
            expected = [
                PlanItem(" ".join(text.split()), "open" if status == "pending" else "active") for text, status in items
            ]
    assert list(found.items) == expected
