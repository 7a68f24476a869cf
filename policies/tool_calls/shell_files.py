"""Effects of shell commands on files: redirections, and a table of programs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from posixpath import basename, join

from policies.tool_calls.effects import Deed, Effect
from policies.tool_calls.patches import patch_effects
from policies.tool_calls.scripts import script_effects
from policies.tool_calls.shell import UNKNOWN, Command

_Deeds = Callable[[Command], Iterator[Effect]]

_REDIRECTIONS: Mapping[str, Deed] = {
    **dict.fromkeys((">", ">|", "&>", ">&", "2>", "<>"), "written"),
    **dict.fromkeys((">>", "&>>"), "appended"),
}


def command_effects(commands: Sequence[Command]) -> list[Effect]:
    """Return the effects of commands on files if they succeed. Commands that may not have run are left out."""
    return [effect for command in commands if not command.is_conditional for effect in _effects(command)]


def _effects(command: Command) -> Iterator[Effect]:
    deeds = _PROGRAMS.get(command.program.lower().removesuffix(".exe")) if command.words else None
    if deeds is not None:
        yield from deeds(command)
    line = _first_line(command) if command.redirects else ""
    for operator, target in command.redirects:
        if (deed := _REDIRECTIONS.get(operator)) and (path := command.path(target)):
            yield Effect(deed, path, line="" if operator == "2>" else line)


def _first_line(command: Command) -> str:
    """Return the first written line, if the command itself contains it."""
    if command.fed:
        return next((line.strip() for line in command.fed.splitlines() if line.strip()), "")
    if command.program in ("echo", "printf") and len(command.words) > 1 and UNKNOWN not in command.words[-1]:
        return command.words[-1].split("\n")[0].strip()
    return ""


def _operands(command: Command, with_value: str = "", start: int = 1) -> list[str]:
    """Return the words that are neither options nor their values."""
    operands: list[str] = []
    words = iter(command.words[start:])
    for word in words:
        if word == "--":
            operands += words
        elif word.startswith("-") and len(word) > 1:
            if word in with_value.split():
                next(words, None)
        else:
            operands.append(word)
    return operands


def _each(deed: Deed, with_value: str = "") -> _Deeds:
    def effects(command: Command) -> Iterator[Effect]:
        for word in _operands(command, with_value):
            if path := command.path(word):
                yield Effect(deed, path)

    return effects


def _moving_deeds(deed: Deed, *, start: int = 1) -> _Deeds:
    """Return the effects of programs that move or copy files. The last operand, or `-t`, is the target."""

    def effects(command: Command) -> Iterator[Effect]:
        operands = _operands(command, "-t --target-directory -m -o -g -S", start)
        target_folder = next(
            (after for word, after in zip(command.words, command.words[1:], strict=False) if word == "-t"), None
        )
        *sources, target = operands if target_folder is None else [*operands, f"{target_folder}/"]
        is_folder = target.endswith("/") or target in (".", "..") or len(sources) > 1
        for source in sources:
            source_path = command.path(source)
            target_path = command.path(join(target, basename(source.rstrip("/"))) if is_folder else target)
            if source_path and target_path:
                yield (
                    Effect(deed, target_path, source_path)
                    if deed == "copied"
                    else Effect(deed, source_path, target_path)
                )

    def guarded(command: Command) -> Iterator[Effect]:
        if len(_operands(command, start=start)) > 1 or "-t" in command.words:
            yield from effects(command)

    return guarded


def _sed_effects(command: Command) -> Iterator[Effect]:
    options = [word for word in command.words[1:] if word.startswith("-")]
    if not any(
        word.startswith(("-i", "--in-place")) or (not word.startswith("--") and "i" in word[1:4]) for word in options
    ):
        return
    operands = [word for word in _operands(command, "-e -f --expression --file") if word]
    has_script = any(word in ("-e", "-f") or word.startswith(("--expression", "--file")) for word in options)
    script = "" if has_script or not operands else operands[0]
    for word in operands if has_script else operands[1:]:
        if path := command.path(word):
            yield Effect("modified", path, line=script)


def _perl(command: Command) -> Iterator[Effect]:
    options = [word for word in command.words[1:] if word.startswith("-") and not word.startswith("--")]
    if any("i" in word[1:5] for word in options):
        operands = _operands(command, "-e -pe -ne -pie -i.bak")
        inline = any(word.endswith("e") for word in options)
        for word in operands if inline else operands[1:]:
            if path := command.path(word):
                yield Effect("modified", path)


def _tee(command: Command) -> Iterator[Effect]:
    deed: Deed = "appended" if {"-a", "--append"} & set(command.words) else "written"
    yield from _each(deed)(command)


def _dd(command: Command) -> Iterator[Effect]:
    for word in command.words[1:]:
        if word.startswith("of=") and (path := command.path(word[3:])):
            yield Effect("written", path)


def _link_effects(command: Command) -> Iterator[Effect]:
    if len(operands := _operands(command, "-t")) > 1 and (path := command.path(operands[-1])):
        yield Effect("created", path)


def _output(*options: str) -> _Deeds:
    """Return the effects of programs that take the written file from an option."""

    def effects(command: Command) -> Iterator[Effect]:
        for at, word in enumerate(command.words):
            value = next((word[len(o) + 1 :] for o in options if word.startswith(f"{o}=")), None)
            if word in options and at + 1 < len(command.words):
                value = command.words[at + 1]
            if value and (path := command.path(value)):
                yield Effect("written", path)

    return effects


def _patch_effects(command: Command) -> Iterator[Effect]:
    text = command.fed or next((word for word in command.words[1:] if "\n" in word), "")
    yield from _within(command, patch_effects(text))


def _within(command: Command, effects: Sequence[Effect]) -> Iterator[Effect]:
    for effect in effects:
        path, other = command.path(effect.path), effect.other and command.path(effect.other)
        if path and other is not None:
            yield effect._replace(path=path, other=other)


def _script_effects(command: Command) -> Iterator[Effect]:
    """Yield the effects of an interpreter with its script in the command itself."""
    inline = next(
        (after for word, after in zip(command.words, command.words[1:], strict=False) if word in ("-c", "-e")), None
    )
    if code := inline or command.fed:
        yield from _within(command, script_effects(code))


def _git(command: Command) -> Iterator[Effect]:
    words = command.words
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in ("-C", "-c") else 1
    verb = words[at] if at < len(words) else ""
    operands = _operands(command, "-s --source -m", at + 1)
    if verb == "mv":
        yield from _moving_deeds("renamed", start=at + 1)(command)
    elif verb == "rm" and "--cached" not in words:
        yield from _deeds(command, "deleted", operands)
    elif verb == "restore" and ("--staged" not in words or "--worktree" in words):
        yield from _deeds(command, "modified", operands)
    elif verb == "checkout" and "--" in words:
        yield from _deeds(command, "modified", words[words.index("--") + 1 :])
    elif verb in ("apply", "am"):
        yield from _patch_effects(command)
    elif verb == "init" or verb == "clone":
        yield from _deeds(command, "touched", operands[1:2] if verb == "clone" else operands[:1])


def _deeds(command: Command, deed: Deed, words: Sequence[str]) -> Iterator[Effect]:
    for word in words:
        if path := command.path(word):
            yield Effect(deed, path)


def _editor_effects(command: Command) -> Iterator[Effect]:
    """Yield the effects of SWE-agent's editor as a command: `str_replace_editor create PATH …`."""
    if len(command.words) > 2 and (path := command.path(command.words[2])):
        verb = command.words[1]
        if verb == "create":
            yield Effect("created", path)
        elif verb in ("str_replace", "insert", "undo_edit"):
            yield Effect("modified", path)


_VALUED = ("-path", "-filepath", "-literalpath", "-name")


def _powershell(deed: Deed) -> _Deeds:
    def effects(command: Command) -> Iterator[Effect]:
        words = command.words
        path_option = next((words[at + 1] for at, word in enumerate(words[:-1]) if word.lower() in _VALUED), None)
        target = next(
            (words[at + 1] for at, word in enumerate(words[:-1]) if word.lower() in ("-destination", "-newname")), None
        )
        operands = _operands(
            command, "-Value -Encoding -ItemType -InputObject -Path -FilePath -LiteralPath -Destination -NewName"
        )
        word = path_option or (operands.pop(0) if operands else "")
        path = command.path(word)
        if deed in ("renamed", "copied"):
            other = command.path(target or (operands[0] if operands else ""))
            if path and other:
                yield Effect(deed, other, path) if deed == "copied" else Effect(deed, path, other)
        elif path:
            yield Effect(deed, path)

    return effects


_PROGRAMS: Mapping[str, _Deeds] = {
    **dict.fromkeys(("rm", "unlink", "rmdir", "shred", "del", "erase", "trash"), _each("deleted")),
    **dict.fromkeys(("mv", "move", "ren"), _moving_deeds("renamed")),
    **dict.fromkeys(("cp", "install", "copy", "rsync", "scp"), _moving_deeds("copied")),
    **dict.fromkeys(("sed", "gsed"), _sed_effects),
    **dict.fromkeys(("python", "python3", "node", "ruby", "bun", "deno", "ipython", "py", "uv"), _script_effects),
    **dict.fromkeys(("gcc", "g++", "clang", "cc", "c++", "clang++", "rustc", "sort", "pandoc", "go"), _output("-o")),
    **dict.fromkeys(("apply_patch", "applypatch", "patch"), _patch_effects),
    **dict.fromkeys(("set-content", "out-file", "sc"), _powershell("written")),
    **dict.fromkeys(("remove-item", "ri"), _powershell("deleted")),
    **dict.fromkeys(("move-item", "rename-item", "mi", "rni"), _powershell("renamed")),
    **dict.fromkeys(("copy-item", "ci"), _powershell("copied")),
    **dict.fromkeys(("str_replace_editor", "str_replace_based_edit_tool", "edit_anthropic"), _editor_effects),
    "new-item": _powershell("created"),
    "add-content": _powershell("appended"),
    "perl": _perl,
    "touch": _each("touched", "-d -t -r"),
    "create": _each("created"),
    "mkdir": _each("touched", "-m"),
    "truncate": _each("written", "-s --size"),
    "tee": _tee,
    "ln": _link_effects,
    "dd": _dd,
    "git": _git,
    "curl": _output("-o", "--output"),
    "wget": _output("-O", "--output-document"),
}
