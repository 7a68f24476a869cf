"""Work that was started and has not ended: background processes, servers, sessions, subagents."""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from policies.conversation.transcript import Utterance
from policies.tool_calls.calls import Done
from policies.tool_calls.shell import UNKNOWN
from policies.tool_calls.wording import readable
from policies.vocabulary import arguments_of_sort, words_of_sort

_MOST = 20
_READ = 4_000
_FLAGS = (
    "run_in_background",
    "background",
    "is_background",
    "isBackground",
    "runInBackground",
    "async",
    "detach",
    "in_background",
)
_ID = re.compile(
    r"(?:\b(?:with id|session id|agent_?id|task_?id|shell_?id|job_?id|terminal id|process id"
    r"|background pids?|pid)\b[\"']?"
    r"\s?[:=#]?\s?[\"'(\[]?|^\[\d{1,3}\] )([\w-]{1,60})",
    re.IGNORECASE | re.MULTILINE,
)
_LONE_NUMBER = re.compile(r"^(\d{2,8})$", re.MULTILINE)
_STARTED = re.compile(
    r"\A[^\n]{0,60}\b(?:running|started|moved|launched|continues?) in (?:the )?background"
    r"|\bprocess running with session id\b|\basync agent launched"
    r"|\bstill running\b|后台(?:运行|启动)",
    re.IGNORECASE,
)
_STARTED_STEMS = ("background", "session id", "launched", "still running", "后台")
_ENDED = re.compile(
    r"\b(?:completed|failed|killed|exited|stopped|terminated|finished|cancell?ed|closed|errored|done|not found"
    r"|no such|no longer running)\b|exit[_ ]code"
    r"|已(?:结束|完成|停止|终止)",
    re.IGNORECASE,
)
_STOPPING, _ASKING, _PROCESSES = map(words_of_sort, ("stop", "process ask", "process"))
_AGENTS = words_of_sort("agent") | {"task"}
_ID_KEYS = arguments_of_sort("process id")
_NOTICE = re.compile(
    r"<(?:task|subagent)[-_]notification>([\s\S]{0,3000}?)</(?:task|subagent)[-_]notification>"
    r"|[Bb]ackground (?:[Bb]ash|[Cc]ommand|[Tt]ask)[^\n]{1,400}"
)
_DAEMONS: Mapping[str, frozenset[str]] = {
    "docker": frozenset({"-d", "--detach"}),
    "docker-compose": frozenset({"-d", "--detach"}),
    "podman": frozenset({"-d", "--detach"}),
    "tmux": frozenset({"-d"}),
    "screen": frozenset({"-dm", "-dmS"}),
    "pm2": frozenset({"start"}),
}
_STOPS: Mapping[str, frozenset[str]] = {
    "docker": frozenset({"stop", "kill", "down", "rm"}),
    "docker-compose": frozenset({"stop", "kill", "down"}),
    "podman": frozenset({"stop", "kill", "down", "rm"}),
    "tmux": frozenset({"kill-session", "kill-server"}),
    "screen": frozenset({"quit"}),
    "pm2": frozenset({"stop", "delete", "kill"}),
}
_KILLERS = frozenset({"kill", "pkill", "killall", "fuser", "taskkill", "stop-process"})


class StartedWork(msgspec.Struct, frozen=True):
    """Work that was started.

    ids: for stopping or querying it.
    is_agent: True for a subagent.
    """

    tool: str
    what: str
    position: int
    ids: tuple[str, ...] = ()
    is_agent: bool = False


def running_in(
    older: Sequence[StartedWork], done: Sequence[Done], utterances: Sequence[Utterance]
) -> list[StartedWork]:
    """Return the work that still runs after everything covered, as far as known, the newest last.

    Work that may have ended is left out.
    """
    running = [*older]
    notices = [
        (utterance.position, _notices(utterance))
        for utterance in utterances
        if utterance.role in ("user", "tool", "system") and utterance.text
    ]
    events: list[tuple[int, int, object]] = [(utterance.position, 0, utterance) for utterance in done]
    events += [(position, 1, texts) for position, texts in notices if texts]
    for _, _, event in sorted(events, key=lambda utterance: utterance[:2]):
        if isinstance(event, Done):
            running = [*_left_running(running, event), *_started_programs(event)]
        elif isinstance(event, list):
            running = [work for work in running if not any(_reports_end(text, work) for text in event)]
    return running[-_MOST:]


def _notices(utterance: Utterance) -> list[str]:
    """Return the notices of a harness about background work."""
    text = utterance.text
    if "ackground" not in text and "notification" not in text:
        return []
    return (
        [match[0] for match in _NOTICE.finditer(text[:200_000])]
        if utterance.role != "tool" or "reminder" in text
        else []
    )


def _reports_end(text: str, work: StartedWork) -> bool:
    return any(_contains_word(text, work_id) for work_id in work.ids) and _ENDED.search(text) is not None


def _contains_word(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None


def _started_programs(done: Done) -> Iterator[StartedWork]:
    if done.outcome.result == "failed":
        return
    result = (done.result or "")[:_READ]
    is_flagged = isinstance(done.arguments, dict) and any(done.arguments.get(flag) is True for flag in _FLAGS)
    is_agent = not _AGENTS.isdisjoint(done.words) and not done.commands and _is_start(done)
    low = result.lower()
    is_reported = (
        any(stem in low for stem in _STARTED_STEMS) and _STARTED.search(result) is not None and _is_start(done)
    )
    by_shell = _what_shell_starts(done)
    is_spawned = is_agent and "spawn" in done.words
    if not (is_flagged or is_reported or by_shell or is_spawned) or (
        is_flagged and not is_reported and _has_exit_code(result)
    ):
        return
    ids = [match[1] for match in _ID.finditer(result)]
    if by_shell:
        ids += _LONE_NUMBER.findall(result[:200])
    yield StartedWork(done.call.name, by_shell or _what(done), done.position, tuple(dict.fromkeys(ids))[:8], is_agent)


def _what(done: Done) -> str:
    """Return the command, else the arguments, in one line."""
    command = done.arguments.get("command", done.arguments.get("cmd")) if isinstance(done.arguments, dict) else None
    return readable(command if isinstance(command, str) else done.arguments)


def _has_exit_code(result: str) -> bool:
    return "exited with code" in result or "exit code" in result.lower()


def _is_start(done: Done) -> bool:
    """Return True if a call may start work: it neither queries nor stops any."""
    return bool(done.commands) or (_STOPPING.isdisjoint(done.words) and _ASKING.isdisjoint(done.words))


def _what_shell_starts(done: Done) -> str:
    """Return the command that a shell leaves running; empty if the same script waits for it or ends it."""
    started = ""
    for command in done.commands:
        is_daemon = command.program in _DAEMONS and not _DAEMONS[command.program].isdisjoint(command.words)
        if command.background or is_daemon:
            started = " ".join(word for word in command.words if UNKNOWN not in word)[:200]
        elif command.program in _KILLERS or command.program == "wait":
            started = ""
    return started


def _left_running(running: list[StartedWork], done: Done) -> list[StartedWork]:
    """Return the work that still runs after a call."""
    for command in done.commands:
        if command.program in _KILLERS:
            running = _left_after_kill(running, command.program, command.words[1:])
        elif command.program in _STOPS and not _STOPS[command.program].isdisjoint(command.words):
            running = [work for work in running if not work.what.startswith(command.program)]
    if done.commands or not running or not isinstance(done.arguments, dict):
        return running
    ids = {str(value) for key in _ID_KEYS for value in _list_of(done.arguments.get(key))}
    if not ids:
        return running
    result = done.result or ""
    stops = not _STOPPING.isdisjoint(done.words) and done.outcome.result != "failed"
    if stops or (_is_ended(result) and (not _ASKING.isdisjoint(done.words) or not _PROCESSES.isdisjoint(done.words))):
        return [work for work in running if ids.isdisjoint(work.ids)]
    return running


def _is_ended(result: str) -> bool:
    status = re.search(r"<status>(\w{1,20})</status>", result[:_READ])
    if status:
        return status[1] != "running"
    has_ended = _ENDED.search(result[:600]) is not None
    return has_ended and not _STARTED.search(result[:_READ])


def _list_of(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _left_after_kill(running: list[StartedWork], program: str, words: Sequence[str]) -> list[StartedWork]:
    operands = [word for word in words if not word.startswith("-") or program == "taskkill"]
    if program in ("pkill", "killall"):
        return [work for work in running if not any(word and word in work.what for word in operands)]
    if any(UNKNOWN in word or word.startswith("%") for word in operands) or program in ("fuser", "stop-process"):
        return [work for work in running if work.is_agent or work.tool.startswith("Task")]
    # A process with an unknown id may be the one that was killed.
    return [work for work in running if not set(operands) & set(work.ids) and (work.ids or work.is_agent)]
