"""What was started and not ended: told only if nothing may have ended it."""

from __future__ import annotations

import json

import pytest

from policies.conversation.transcript import Utterance
from policies.tool_calls.calls import done_in
from policies.tool_calls.running import StartedWork, running_in
from tests.support.calls import said

CLAUDE = (
    "Bash",
    {"command": "npm run dev", "run_in_background": True},
    "Command running in background with ID: bash_1",
)
CODEX = (
    "exec_command",
    {"cmd": "npm run dev"},
    "Wall time: 10 seconds\nProcess running with session ID 4711\nOutput:\n",
)
AGENT = (
    "Agent",
    {"description": "Review", "prompt": "x", "run_in_background": True},
    "Async agent launched successfully.\nagentId: a1b2c3",
)
SHELL = ("bash", {"command": "nohup python -m http.server 8000 > s.log 2>&1 &\necho $!"}, "12345")
SPAWNED = ("spawn_agent", {"message": "review"}, '{"agent_id": "0199-aa", "nickname": "x"}')
DOCKER = ("bash", {"command": "docker compose up -d db"}, "Container db Started")


def running(*steps: tuple[str, object, str] | str, older: tuple[StartedWork, ...] = ()) -> list[StartedWork]:
    span = said(*steps)
    return running_in(older, done_in(span), span)


@pytest.mark.parametrize("start", [CLAUDE, CODEX, AGENT, SPAWNED, SHELL, DOCKER], ids=lambda start: str(start[0]))
def test_what_was_started_runs_on_into_later_records(start: tuple[str, object, str]) -> None:
    (one,) = running(start)
    assert running(("Read", {"file_path": "a"}, "x"), older=(one,)) == [one]
    assert one.is_agent == (start in (AGENT, SPAWNED))


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (CLAUDE, ("KillShell", {"shell_id": "bash_1"}, "Successfully killed shell: bash_1")),
        (CLAUDE, ("BashOutput", {"bash_id": "bash_1"}, "<status>completed</status>\n<exit_code>0</exit_code>")),
        (CLAUDE, "<task-notification>\n<task-id>bash_1</task-id>\n<status>failed</status>\n</task-notification>"),
        (CODEX, ("write_stdin", {"session_id": 4711, "chars": "\u0003"}, "Process exited with code 130")),
        (AGENT, ("TaskStop", {"task_id": "a1b2c3"}, "Stopped task a1b2c3")),
        (AGENT, "<task-notification><task-id>a1b2c3</task-id><status>completed</status></task-notification>"),
        (SPAWNED, ("wait_agent", {"ids": ["0199-aa"]}, '{"status": {"0199-aa": {"completed": "done"}}}')),
        (SHELL, ("bash", {"command": "kill 12345"}, "")),
        (SHELL, ("bash", {"command": "pkill -f http.server"}, "")),
        (SHELL, ("bash", {"command": "kill $(lsof -t -i:8000)"}, "")),
        (DOCKER, ("bash", {"command": "docker compose down"}, "")),
    ],
)
def test_what_was_ended_or_may_have_been_does_not_run(
    start: tuple[str, object, str], end: tuple[str, object, str] | str
) -> None:
    assert running(start, end) == []


@pytest.mark.parametrize(
    "after",
    [
        ("BashOutput", {"bash_id": "bash_1"}, "<status>running</status>\n<stdout>ready</stdout>"),
        ("KillShell", {"shell_id": "bash_2"}, "Successfully killed shell: bash_2"),
        "<task-notification><task-id>bash_2</task-id><status>completed</status></task-notification>",
        ("bash", {"command": "kill 999"}, ""),
    ],
)
def test_what_is_of_another_ends_nothing(after: tuple[str, object, str] | str) -> None:
    assert len(running(CLAUDE, after)) == 1


@pytest.mark.parametrize(
    "step",
    [
        ("Bash", {"command": "npm run dev", "run_in_background": True}, "bash: npm: command not found"),
        ("bash", {"command": "python a.py & wait"}, "done"),
        ("bash", {"command": "./s & P=$!; sleep 1; kill $P"}, "done"),
        ("bash", {"command": "make && echo 'a & b'"}, "done"),
        ("Task", {"description": "x", "prompt": "y"}, "Here is the report."),
        ("exec_command", {"cmd": "ls"}, "Process exited with code 0\nOutput:\na"),
    ],
    ids=json.dumps,
)
def test_what_ended_by_itself_was_not_left_running(step: tuple[str, object, str]) -> None:
    assert running(step) == []


def test_a_persons_word_of_the_background_ends_nothing() -> None:
    span = [*said(CLAUDE), Utterance(9, "user", "The background of bash_1 is done in blue.")]
    assert len(running_in((), done_in(span), span)) == 1
