"""The kind of a tool by its name and arguments: whether it reads, runs commands or changes files, and which files."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from policies.authorship.arguments import UnreadError, path_of, paths_in, read
from policies.tool_calls.effects import Deed, Effect
from policies.tool_calls.patches import first_change, first_difference, patch_effects
from policies.tool_calls.scripts import script_effects
from policies.tool_calls.shell import Command, commands_of
from policies.tool_calls.shell_files import command_effects
from policies.vocabulary import arguments_of_sort, words_of_sort

Kind = Literal["read", "change", "shell", "plan", "agent", "other"]
"""`agent`: a call of another agent, whose result is its report."""
Object = Mapping[str, object]

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W_A-Za-z\d]+")
_TAG = re.compile(r"<(path|file_path|content|diff|command|code|args|regex|task_progress|todos)>")
_READING = words_of_sort("get")
# These tools read whatever they get. The others read only files: getting an order or a user may fail.
_LOOKING = words_of_sort("look")
_PATTERNS = frozenset(arguments_of_sort("pattern"))
# Words for tools that return the text of a file: a verb alone, or a verb with a word for the text.
_FILE_READING, _FETCHING, _TEXT_WORDS = map(words_of_sort, ("read", "fetch", "text"))
# Words that may follow the verb in the name of a tool that returns a text. Any other word is what it returns instead.
_OF_TEXTS = _TEXT_WORDS | words_of_sort("text too") | _FETCHING | _FILE_READING
# Words for tools that describe a file, search in it or change it.
_ABOUT_FILES = words_of_sort("about")
_SEARCHES = arguments_of_sort("search")
_ORDER: tuple[Deed, ...] = ("deleted", "renamed", "copied", "appended", "written", "modified")
_DEEDS = tuple((words_of_sort(deed), deed) for deed in _ORDER)
# Subcommands of editor tools.
_SUBCOMMANDS: Mapping[str, Deed | None] = {
    **dict.fromkeys(("view", "read", "open", "list"), None),
    **dict.fromkeys(("create", "write"), "written"),
    **dict.fromkeys(
        ("str_replace", "insert", "undo_edit", "edit", "edit_file", "replace", "undo", "patch"), "modified"
    ),
    **dict.fromkeys(("delete", "remove"), "deleted"),
    **dict.fromkeys(("rename", "move"), "renamed"),
    "append": "appended",
}
_PLANS = words_of_sort("plan")
_AGENTS = words_of_sort("agent")
# With one of these words, "agent" is an object that the tool manages, not what it calls.
_PLANNING = words_of_sort("agent kept")
_STOPPING = words_of_sort("stop")
# Arguments that name the deed of a tool with several deeds.
_DEED_KEYS = arguments_of_sort("deed")
_KILLERS = frozenset({"kill", "pkill", "killall", "taskkill", "stop-process"})
_COMMAND_KEYS = arguments_of_sort("command")
_SCRIPTERS, _WINDOWS = words_of_sort("script"), words_of_sort("windows")
_SHELL_NAMES = words_of_sort("shell") | _WINDOWS
_SOURCES, _TARGETS = arguments_of_sort("source"), arguments_of_sort("target")
_OLD, _NEW = arguments_of_sort("old"), arguments_of_sort("new")
_LISTS, _DIFFS = arguments_of_sort("edits"), arguments_of_sort("diff")
_MOST_PARTS = 50
_REPLACED = re.compile(r"^={5,9}\n([^\n]{0,300})", re.MULTILINE)

# Programs that only show something.
_SHOWING = frozenset(
    [
        *("cat", "head", "tail", "less", "more", "bat", "nl", "grep", "egrep", "fgrep", "rg", "ag"),
        *("ack", "zgrep", "ls", "ll", "dir", "tree", "find", "fd", "wc", "sort", "uniq", "cut", "tr"),
        *("awk", "gawk", "sed", "stat", "file", "du", "df", "which", "whereis", "type", "env"),
        *("printenv", "ps", "jq", "yq", "diff", "cmp", "comm", "column", "basename", "dirname"),
        *("realpath", "readlink", "md5sum", "sha256sum", "sha1sum", "xxd", "od", "strings"),
        *("hexdump", "man", "date", "uname", "whoami", "id", "hostname", "nproc", "free", "uptime"),
        *("lsof", "zcat", "get-content", "gc", "get-childitem", "gci", "select-string", "findstr"),
        *("tac", "ss", "netstat", "pgrep", "journalctl", "dmesg", "lnav"),
        *("git", "docker", "kubectl", "gh", "systemctl", "service", "tmux", "helm", "crontab", "pm2"),
        *("supervisorctl", "launchctl", "pip", "pip3", "brew", "apt"),
    ]
)
# Programs that show a text, in which any error message may occur. Their own messages begin with their names.
TEXT_PROGRAMS = frozenset(
    [
        *("cat", "head", "tail", "less", "more", "nl", "tac", "zcat", "grep", "egrep", "fgrep", "zgrep", "rg", "ag"),
        *("sed", "awk", "gawk", "sort", "uniq", "cut", "tr", "column", "strings", "xxd", "od", "hexdump", "jq"),
        *("get-content", "gc", "select-string", "findstr", "journalctl", "dmesg", "lnav", "wc", "bat"),
    ]
)
_TEXT_VERBS = {
    "docker": frozenset({"logs"}),
    "kubectl": frozenset({"logs"}),
    "git": frozenset({"show", "diff", "log", "grep", "cat-file", "blame"}),
    "tmux": frozenset({"capture-pane"}),
    "pm2": frozenset({"logs"}),
    "supervisorctl": frozenset({"tail"}),
}
_SILENT = frozenset(
    [
        *("cd", "pwd", "echo", "printf", "true", ":", "export", "set", "test", "[", "[[", "pushd"),
        *("popd", "source", ".", "read", "sleep", "exit"),
    ]
)
_SHOWING_VERBS = {
    "git": frozenset(
        [
            *("status", "log", "diff", "show", "branch", "blame", "ls-files", "grep", "rev-parse"),
            *("remote", "config", "describe", "reflog", "shortlog", "ls-tree", "cat-file"),
        ]
    ),
    "docker": frozenset({"ps", "logs", "images", "inspect", "top", "stats", "history", "port", "version", "info"}),
    "kubectl": frozenset({"get", "describe", "logs", "top", "events", "explain", "version"}),
    "gh": frozenset({"list", "view", "status", "checks", "diff", "search", "api"}),
    "systemctl": frozenset(
        [
            *("status", "show", "cat", "is-active", "is-enabled", "is-failed"),
            *("list-units", "list-unit-files", "list-timers", "list-dependencies"),
        ]
    ),
    "service": frozenset({"status", "--status-all"}),
    "tmux": frozenset({"capture-pane", "ls", "list-sessions", "list-windows", "list-panes"}),
    "helm": frozenset({"list", "ls", "status", "history", "get"}),
    "crontab": frozenset({"-l"}),
    "pm2": frozenset({"list", "ls", "status", "logs", "show"}),
    "supervisorctl": frozenset({"status", "tail"}),
    "launchctl": frozenset({"list", "print"}),
    "pip": frozenset({"list", "show", "freeze"}),
    "pip3": frozenset({"list", "show", "freeze"}),
    "brew": frozenset({"list", "info"}),
    "apt": frozenset({"list", "show", "search"}),
}


@lru_cache(512)
def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a tool's name in lower case, without the name of its server or group."""
    own_name = re.split(r"__|[.:/]", name)[-1]
    return tuple(word.lower() for word in _WORDS.findall(own_name))


def arguments_of(text: str) -> object:
    """Return the arguments of a call: the value of JSON, an object for tagged text, else the text."""
    try:
        value = read(text)
    except UnreadError:
        value = text
    if isinstance(value, str) and value.lstrip().startswith("<"):
        return _tagged_arguments(value[:40_000]) or value
    return value


def _tagged_arguments(text: str) -> dict[str, object]:
    """Return the text of each tag named like an argument; the first of each."""
    values: dict[str, object] = {}
    for tag in _TAG.finditer(text):
        if tag[1] not in values and (end := text.find(f"</{tag[1]}>", tag.end())) >= 0:
            values[tag[1]] = text[tag.end() : end].strip("\n")
    return values


@lru_cache(512)
def is_plan_tool(words: tuple[str, ...]) -> bool:
    """Return True if the name of a tool is typical of a plan tool. Some tools have no other sign."""
    has_plan_word = any(word in _PLANS or word.startswith("todo") for word in words)
    # "Task" alone calls a subagent.
    return has_plan_word and words != ("task",) and _SHELL_NAMES.isdisjoint(words)


@lru_cache(512)
def calls_agent(words: tuple[str, ...]) -> bool:
    """Return True if a tool of this name runs another agent, or returns the report of one."""
    if words == ("task",):
        return True
    return not _AGENTS.isdisjoint(words) and _PLANNING.isdisjoint(words)


def commands_in(words: tuple[str, ...], arguments: object) -> tuple[Command, ...]:
    """Return the shell commands that a call runs; empty if the tool is no shell."""
    command = arguments
    if is_plan_tool(words):
        return ()
    if isinstance(arguments, dict):
        if _is_editor(arguments) or not _SCRIPTERS.isdisjoint(words):
            return ()
        key = next((key for key in _COMMAND_KEYS if key in arguments), None)
        if key is None or (key == "input" and _SHELL_NAMES.isdisjoint(words)):
            return ()
        command = arguments[key]
        if isinstance(command, dict):  # Responses: an action with its command
            command = command.get("command") or command.get("commands")
    elif not isinstance(command, list) and (_SHELL_NAMES.isdisjoint(words) or not _SCRIPTERS.isdisjoint(words)):
        return ()
    escapes = _WINDOWS.isdisjoint(words)
    if isinstance(command, list):
        parts = [part for part in command if isinstance(part, str)]
        if parts and (" " not in parts[0].strip() and len(parts) > 1):  # an argument vector
            return _commands_of_vector(parts, escapes=escapes)
        command = "\n".join(parts)
    return tuple(commands_of(command, escapes=escapes)) if isinstance(command, str) and command else ()


def _commands_of_vector(parts: Sequence[str], *, escapes: bool) -> tuple[Command, ...]:
    script = next((following for word, following in pairwise(parts) if word in ("-c", "-lc", "-Command", "/c")), None)
    return tuple(commands_of(script, escapes=escapes)) if script is not None else (Command(tuple(parts)),)


def kind_of(words: tuple[str, ...], arguments: object, commands: Sequence[Command]) -> Kind:
    """Return the kind of a call."""
    if commands:
        return "read" if _only_shows(commands) else "shell"
    if calls_agent(words):
        return "agent"
    if is_plan_tool(words) and not path_of(arguments):
        return "plan"
    if isinstance(arguments, dict) and (verb := _is_editor(arguments)):
        return "change" if _SUBCOMMANDS[verb] else "read"
    if deed_of(words):
        return "change"
    if not _LOOKING.isdisjoint(words):
        return "read"
    if _READING.isdisjoint(words) or not isinstance(arguments, dict):
        return "other"
    return "read" if path_of(arguments) or not _PATTERNS.isdisjoint(arguments) else "other"


def reads_file(words: Sequence[str], arguments: object) -> bool:
    """Return True if a tool returns the text of the file that its arguments name."""
    if not isinstance(arguments, dict) or any(arguments.get(key) for key in _SEARCHES):
        return False
    if verb := _is_editor(arguments):
        return _SUBCOMMANDS[verb] is None and verb != "list"
    if not _ABOUT_FILES.isdisjoint(words) or any(not verbs.isdisjoint(words) for verbs, _ in _DEEDS):
        return False
    verb_at = next((at for at, word in enumerate(words) if word in _FILE_READING | _FETCHING), 0)
    if not _OF_TEXTS.issuperset(words[verb_at + 1 :]):
        return False
    return not _FILE_READING.isdisjoint(words) or not (_FETCHING.isdisjoint(words) or _TEXT_WORDS.isdisjoint(words))


def _is_editor(arguments: Object) -> str | None:
    verb = arguments.get("command")
    return verb if isinstance(verb, str) and verb in _SUBCOMMANDS and path_of(arguments) else None


def deed_of(words: Sequence[str]) -> Deed | None:
    """Return the deed that a tool's name states; None if there is none.

    A name with a word for reading must also have one for replacing.
    """
    if not words:
        return None
    deed_named = next((deed for verbs, deed in _DEEDS if not verbs.isdisjoint(words)), None)
    has_reading_word = not _READING.isdisjoint(words)
    return deed_named if not has_reading_word or {"replace", "update", "insert"} & set(words) else None


def _only_shows(commands: Sequence[Command]) -> bool:
    shows = False
    for command in commands:
        if any(operator not in ("<", "2>") and command.path(target) for operator, target in command.redirects):
            return False
        program = command.program
        if program in _SILENT or not program:
            continue
        if program not in _SHOWING or _has_changing_option(command):
            return False
        shows = True
    return shows


def ends_by_showing(commands: Sequence[Command]) -> bool:
    """Return True if the last command only shows something and is not fed by a command that does more."""
    shown = [command for command in commands if command.program and command.program not in _SILENT]
    is_fed = len(commands) > 1 and commands[-2].piped and not _only_shows(commands[-2:])
    return bool(shown) and not is_fed and _only_shows(shown[-1:])


def main_commands(commands: Sequence[Command]) -> list[Command]:
    """Return the commands whose own result matters. Leave out those that only print or read a pipe."""
    return [
        command
        for at, command in enumerate(commands)
        if command.program and command.program not in _SILENT and not (at and commands[at - 1].piped)
    ]


def looks_up(words: Sequence[str]) -> bool:
    """Return True if a tool's name has a word for reading, such as "get" or "fetch"."""
    return not _READING.isdisjoint(words)


def shows_text(commands: Sequence[Command]) -> bool:
    """Return True if commands that only show something show a text, such as a file or a log."""
    shown = [command for command in commands if command.program and command.program not in _SILENT]
    return any(
        command.program in TEXT_PROGRAMS or not _TEXT_VERBS.get(command.program, frozenset()).isdisjoint(command.words)
        for command in shown
    )


def ends_something(words: Sequence[str], arguments: object, commands: Sequence[Command]) -> bool:
    """Return True if a call ends a process, a task or an agent, by its name or its arguments."""
    if commands:
        return any(command.program.lower() in _KILLERS for command in commands)
    if not _STOPPING.isdisjoint(words):
        return True
    fields = arguments if isinstance(arguments, dict) else {}
    return any(
        isinstance(verb := fields.get(key), str) and not _STOPPING.isdisjoint(words_of(verb)) for key in _DEED_KEYS
    )


def _has_changing_option(command: Command) -> bool:
    program, words = command.program, command.words
    if (verbs := _SHOWING_VERBS.get(program)) is not None:
        return not any(word in verbs for word in words[1:4])
    if program == "find":
        return bool({"-delete", "-exec", "-execdir", "-ok"} & set(words))
    return program in ("sed", "awk", "gawk") and any(word.startswith(("-i", "--in-place")) for word in words[1:])


def effects_of(words: Sequence[str], arguments: object, commands: Sequence[Command]) -> list[Effect]:
    """Return the effects of a call on files if it succeeds."""
    if commands:
        return command_effects(commands)
    if isinstance(arguments, str):
        return script_effects(arguments) if not _SCRIPTERS.isdisjoint(words) else patch_effects(arguments)
    if not isinstance(arguments, dict):
        return []
    if not _SCRIPTERS.isdisjoint(words) and isinstance(code := arguments.get("code", arguments.get("input")), str):
        return script_effects(code)
    verb = _is_editor(arguments)
    deed = _SUBCOMMANDS[verb] if verb else deed_of(words)
    return [*_effects(words, arguments, deed, verb)] if deed else []


def _effects(words: Sequence[str], arguments: Object, deed: Deed, verb: str | None) -> Iterator[Effect]:
    patch = next((text for key in _DIFFS if isinstance(text := arguments.get(key), str)), "")
    if patched := patch_effects(patch):
        yield from patched
        return
    if deed in ("renamed", "copied"):
        source, target = _first(arguments, _SOURCES), _first(arguments, _TARGETS)
        if source and target:
            yield Effect(deed, target, source) if deed == "copied" else Effect(deed, source, target)
        return
    if arguments.get("type") in ("create_file", "update_file", "delete_file"):  # Responses: an operation of apply_patch
        deeds: Mapping[object, Deed] = {"create_file": "written", "delete_file": "deleted"}
        deed = deeds.get(arguments["type"], "modified")
    elif deed == "written" and {"directory", "folder", "dir"} & set(words):
        deed = "touched"
    elif deed == "written" and verb is None and "update" in words and "create" not in words:
        deed = "modified"
    line = _line(arguments)
    for path in paths_in(arguments):
        yield Effect(deed, path, line=line)


def _first(arguments: Object, keys: Sequence[str]) -> str | None:
    return next((value for key in keys if isinstance(value := arguments.get(key), str) and value), None)


def _line(arguments: Object) -> str:
    """Return the first line that an edit changes or writes."""
    for part in _parts(arguments):
        old, new = _first(part, _OLD) or "", _first(part, _NEW)
        if new is not None and (line := first_difference(old[:20_000], new[:20_000])):
            return line
        for key in _DIFFS:
            if isinstance(diff := part.get(key), str):
                replaced = _REPLACED.search(diff[:20_000])
                return replaced[1].strip() if replaced else first_change(diff)
    return ""


def _parts(arguments: Object) -> Iterator[Object]:
    yield arguments
    for key in _LISTS:
        parts = arguments.get(key)
        for part in (parts if isinstance(parts, list) else [parts])[:_MOST_PARTS]:
            if isinstance(part, dict):
                yield part
