"""Reload a changed config while requests are served: all of it at once, or nothing if there are problems."""

import asyncio
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from proxy.config.document import read_config
from proxy.config.errors import ConfigError, Problem
from proxy.config.loading import Config, load_text, notes
from proxy.config.settings import Server
from proxy.runtime.deadlines import within
from proxy.telemetry.events import Hook, note
from proxy.telemetry.log import Log

# How often the file is read, in seconds. Two consecutive reads must be equal: half a file may also be valid.
SECONDS = 1.0
# The maximum number of problems in one log line.
_MOST_PROBLEMS = 20
# Settings that are opened or bound only at the start.
_FIXED_SERVER = ("host", "port", "workers")


@dataclass(frozen=True, slots=True)
class Look:
    """The result of reading a file: its text, or the problems of reading it."""

    text: str | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """The file of a config, the variables to fill in, and its text at the start."""

    path: Path
    env: Mapping[str, str]
    first: Look

    def look(self) -> Look:
        """Read the file now. Symlinks are resolved each time, since Kubernetes swaps them."""
        return _look(self.path)


def source(path: Path | None, env: Mapping[str, str]) -> Source | None:
    """Return the source of a config; None if there is no file to read again.

    Create it before the config is read, so that no change is missed.
    """
    if path is None or not path.is_file():
        return None
    return Source(path, dict(env), _look(path))


def _look(path: Path) -> Look:
    try:
        mode = path.stat().st_mode if path.exists() else stat.S_IFREG
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # reading a pipe might never end
            return Look(None, (Problem(str(path), None, "", "is no regular file; name a regular file"),))
        return Look(read_config(path))
    except ConfigError as error:
        return Look(None, error.problems)


class Reloader:
    """Watch one file and give its config to `swap`. If the file is broken, the old config stays in force.

    config: in force now. text: of its file; None without a file. taken_at: the time of the last reload, in Unix
    seconds.
    problems: their number at the last read; 0 if the file is in force. refusals: the problems, without values.
    needs_restart: settings of the file that need a restart to be in force.
    """

    def __init__(
        self,
        source: Source | None,
        config: Config,
        swap: Callable[[Config], None],
        observe: Hook,
        log: Log,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a reloader. `clock` returns Unix seconds."""
        self.config = config
        self.taken_at = clock()
        self.text = source.first.text if source else None
        self.problems = 0
        self.refusals: list[str] = []
        self.needs_restart: tuple[str, ...] = ()
        self._source = source
        self._at_start = config
        self._swap = swap
        self._observe = observe
        self._log = log
        self._clock = clock
        self._asked = asyncio.Event()
        self._turn = asyncio.Lock()
        self._tried = self._seen = source.first if source else None

    @property
    def file(self) -> Path | None:
        """Return the config's file; None for the built-in defaults and for a file that cannot be read again."""
        return self._source.path if self._source else None

    def ask(self) -> None:
        """Read the file again soon, even if it is unchanged (SIGHUP)."""
        self._asked.set()

    async def watch(self, seconds: float) -> None:
        """Poll the file while the process runs."""
        while True:
            try:
                async with within(seconds if self._source else None):
                    await self._asked.wait()
            except TimeoutError:
                await self.poll()
            else:
                self._asked.clear()
                await self.reload()

    async def poll(self) -> None:
        """Reload the file if it has changed and the last two reads are equal."""
        if self._source is None:
            return
        async with self._turn:
            reading = await asyncio.to_thread(self._source.look)
            is_settled, self._seen = reading == self._seen, reading
            if is_settled and reading != self._tried:
                await self._try(reading, "file")

    async def reload(self, trigger: Literal["signal", "page"] = "signal") -> None:
        """Reload the file now."""
        if self._source is None:
            self._log.info("reload_skipped", reason="no regular config file was named at the start")
            return
        async with self._turn:
            self._seen = await asyncio.to_thread(self._source.look)
            await self._try(self._seen, trigger)

    async def _try(self, reading: Look, trigger: str) -> None:
        self._tried = reading
        try:
            new, needs_restart = await asyncio.to_thread(self._load_checked, reading)
            self._swap(new)
        except ConfigError as error:
            self._log_refusal(error.problems, trigger)
        except Exception as error:  # noqa: BLE001 - the old config stays in force after any fault
            self._log.fault("reload_fault", error)
            self._log_refusal((), trigger)
        else:
            changed = new != self.config
            self.config, self.text, self.problems, self.taken_at = new, reading.text, 0, self._clock()
            self.refusals, self.needs_restart = [], needs_restart
            self._observe(note("config_reloaded"))
            self._log.info(
                "reload",
                trigger=trigger,
                changed=changed,
                needs_restart=list(needs_restart),
                notes=list(notes(self.config)),
            )

    def _load_checked(self, reading: Look) -> tuple[Config, tuple[str, ...]]:
        assert self._source is not None  # noqa: S101 - polls and reloads return without a source
        if reading.text is None:
            raise ConfigError(reading.problems)
        new = load_text(str(self._source.path), reading.text, self._source.env)
        problems = litellm_problems(self._at_start, new, str(self._source.path))
        if problems:
            raise ConfigError(problems)
        return keep_fixed_settings(self.config, self._as_chosen(new))

    def _as_chosen(self, new: Config) -> Config:
        """Return the config with the command line's values for settings that are unchanged in the file."""
        first, start, now = self._first, self._at_start.server, new.server
        if first is None:
            return new
        same = {name: getattr(start, name) for name in _FIXED_SERVER if getattr(now, name) == getattr(first, name)}
        return new.model_copy(update={"server": now.model_copy(update=same)})

    @cached_property
    def _first(self) -> Server | None:
        """Return the file's own settings at the start."""
        assert self._source is not None  # noqa: S101 - as above
        try:
            return load_text(str(self._source.path), self._source.first.text or "", self._source.env).server
        except ConfigError:
            return None

    def _log_refusal(self, problems: tuple[Problem, ...], trigger: str) -> None:
        self.problems = max(1, len(problems))
        self._observe(note("config_refused"))
        self.refusals = [str(problem) for problem in problems[:_MOST_PROBLEMS]]
        self._log.warning("reload_failed", trigger=trigger, count=self.problems, problems=self.refusals)


def keep_fixed_settings(old: Config, new: Config) -> tuple[Config, tuple[str, ...]]:
    """Return the new config with the old values of settings that need a restart, and their paths."""
    server = {name: getattr(old.server, name) for name in _FIXED_SERVER}
    paths = [f"server.{name}" for name, value in server.items() if getattr(new.server, name) != value]
    for section in ("store", "telemetry"):
        before, after = getattr(old, section), getattr(new, section)
        names = type(before).model_fields
        paths += [f"{section}.{name}" for name in names if getattr(after, name) != getattr(before, name)]
    paths += ["hooks"] if new.hooks != old.hooks else []
    fixed = {
        "server": new.server.model_copy(update=server),
        "store": old.store,
        "telemetry": old.telemetry,
        "hooks": old.hooks,
    }
    return new.model_copy(update=fixed), tuple(paths)


def litellm_problems(start: Config, new: Config, file: str) -> list[Problem]:
    """Return problems of upstreams that need what was not loaded at the start.

    To load litellm blocks the event loop for too long. Such upstreams are refused, not dropped: their requests would go
    to another upstream.
    """
    loaded = [upstream for upstream in start.upstreams.values() if upstream.provider == "litellm"]
    providers = {None, *(upstream.litellm_provider for upstream in loaded)}
    problems = []
    for name, upstream in new.upstreams.items():
        if upstream.provider != "litellm":
            continue
        if not loaded:
            problems.append(_needs_restart(file, f"upstreams.{name}.provider", "litellm is loaded at the start only"))
        elif upstream.litellm_provider not in providers:
            problems.append(
                _needs_restart(file, f"upstreams.{name}.litellm_provider", "a new one is checked at the start")
            )
    return problems


def _needs_restart(file: str, path: str, why: str) -> Problem:
    return Problem(file, None, path, f"{why}; restart the proxy")
