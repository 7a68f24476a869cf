"""What was started and not ended: processes in the background, servers, sessions, agents of one's own."""

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
    """What was started. ids: by which it may be ended or asked for; is_agent: an agent of the agent's own."""

    tool: str
    what: str
    position: int
    ids: tuple[str, ...] = ()
    is_agent: bool = False


def running_in(older: Sequence[StartedWork], done: Sequence[Done], said: Sequence[Utterance]) -> list[StartedWork]:
    """What runs as far as is known behind everything covered, the newest last; what may have been ended is left out."""
    running = [*older]
    notices = [
        (each.position, _notices(each)) for each in said if each.role in ("user", "tool", "system") and each.text
    ]
    events: list[tuple[int, int, object]] = [(each.position, 0, each) for each in done]
    events += [(position, 1, texts) for position, texts in notices if texts]
    for _, _, event in sorted(events, key=lambda each: each[:2]):
        if isinstance(event, Done):
            running = [*_left_running(running, event), *_started_programs(event)]
        elif isinstance(event, list):
            running = [one for one in running if not any(_tells_end(text, one) for text in event)]
    return running[-_MOST:]


def _notices(utterance: Utterance) -> list[str]:
    """What a harness says of things in the background."""
    text = utterance.text
    if "ackground" not in text and "notification" not in text:
        return []
    return (
        [match[0] for match in _NOTICE.finditer(text[:200_000])]
        if utterance.role != "tool" or "reminder" in text
        else []
    )


def _tells_end(text: str, one: StartedWork) -> bool:
    return any(_holds(text, each) for each in one.ids) and _ENDED.search(text) is not None


def _holds(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None


def _started_programs(done: Done) -> Iterator[StartedWork]:
    if done.outcome.result == "failed":
        return
    result = (done.result or "")[:_READ]
    is_flagged = isinstance(done.arguments, dict) and any(done.arguments.get(flag) is True for flag in _FLAGS)
    is_agent = not _AGENTS.isdisjoint(done.words) and not done.commands and _is_start(done)
    low = result.lower()
    says_so = any(stem in low for stem in _STARTED_STEMS) and _STARTED.search(result) is not None and _is_start(done)
    by_shell = _what_shell_starts(done)
    is_spawned = is_agent and "spawn" in done.words
    if not (is_flagged or says_so or by_shell or is_spawned) or (is_flagged and not says_so and _says_exit(result)):
        return
    ids = [match[1] for match in _ID.finditer(result)]
    if by_shell:
        ids += _LONE_NUMBER.findall(result[:200])
    yield StartedWork(done.call.name, by_shell or _what(done), done.position, tuple(dict.fromkeys(ids))[:8], is_agent)


def _what(done: Done) -> str:
    """The command, else the arguments, in one line."""
    told = done.arguments.get("command", done.arguments.get("cmd")) if isinstance(done.arguments, dict) else None
    return readable(told if isinstance(told, str) else done.arguments)


def _says_exit(result: str) -> bool:
    return "exited with code" in result or "exit code" in result.lower()


def _is_start(done: Done) -> bool:
    """A call that asks for something or ends it starts nothing."""
    return bool(done.commands) or (_STOPPING.isdisjoint(done.words) and _ASKING.isdisjoint(done.words))


def _what_shell_starts(done: Done) -> str:
    """The command that is left running by the shell; none if the same text waits for it or ends it."""
    found = ""
    for command in done.commands:
        is_daemon = command.program in _DAEMONS and not _DAEMONS[command.program].isdisjoint(command.words)
        if command.background or is_daemon:
            found = " ".join(word for word in command.words if UNKNOWN not in word)[:200]
        elif command.program in _KILLERS or command.program == "wait":
            found = ""
    return found


def _left_running(running: list[StartedWork], done: Done) -> list[StartedWork]:
    """What a call leaves running."""
    for command in done.commands:
        if command.program in _KILLERS:
            running = _behind_kill(running, command.program, command.words[1:])
        elif command.program in _STOPS and not _STOPS[command.program].isdisjoint(command.words):
            running = [one for one in running if not one.what.startswith(command.program)]
    if done.commands or not running or not isinstance(done.arguments, dict):
        return running
    named = {str(value) for key in _ID_KEYS for value in _list_of(done.arguments.get(key))}
    if not named:
        return running
    result = done.result or ""
    stops = not _STOPPING.isdisjoint(done.words) and done.outcome.result != "failed"
    if stops or (_says_end(result) and (not _ASKING.isdisjoint(done.words) or not _PROCESSES.isdisjoint(done.words))):
        return [one for one in running if named.isdisjoint(one.ids)]
    return running


def _says_end(result: str) -> bool:
    told = re.search(r"<status>(\w{1,20})</status>", result[:_READ])
    if told:
        return told[1] != "running"
    ended = _ENDED.search(result[:600]) is not None
    return ended and not _STARTED.search(result[:_READ])


def _list_of(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _behind_kill(running: list[StartedWork], program: str, words: Sequence[str]) -> list[StartedWork]:
    operands = [word for word in words if not word.startswith("-") or program == "taskkill"]
    if program in ("pkill", "killall"):
        return [one for one in running if not any(word and word in one.what for word in operands)]
    if any(UNKNOWN in word or word.startswith("%") for word in operands) or program in ("fuser", "stop-process"):
        return [one for one in running if one.is_agent or one.tool.startswith("Task")]
    # Whose number is not known may have been the one.
    return [one for one in running if not set(operands) & set(one.ids) and (one.ids or one.is_agent)]
