"""Takes a changed config while requests are served: all of it at once, or none of it where anything is wrong."""

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

# How often the file is looked at. Twice in a row it must be the same: half a file may be valid, too.
SECONDS = 1.0
# More problems than this nobody reads in one log line.
_MOST_TOLD = 20
# What is opened or bound once, at the start.
_FIXED_SERVER = ("host", "port", "workers")


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at a file found: its text, or why there is none."""

    text: str | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """The file that a config is read from, the variables that are filled in, and what it said at the start."""

    path: Path
    env: Mapping[str, str]
    first: Look

    def look(self) -> Look:
        """What the file says now. Symlinks are followed anew each time: Kubernetes swaps them."""
        return _look(self.path)


def source(path: Path | None, env: Mapping[str, str]) -> Source | None:
    """To be made before the config is read, so that no change is missed; None where there is no file to read again."""
    if path is None or not path.is_file():
        return None
    return Source(path, dict(env), _look(path))


def _look(path: Path) -> Look:
    try:
        mode = path.stat().st_mode if path.exists() else stat.S_IFREG
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # reading a pipe might never end
            return Look(None, (Problem(str(path), None, "", "is no regular file; a config is read from one"),))
        return Look(read_config(path))
    except ConfigError as error:
        return Look(None, error.problems)


class Reloader:
    """Watches one file and hands what it says to `swap`; where it is broken, what was in force stays.

    config:   in force now. text: of the file that says so; None without one. taken_at: since when, in Unix seconds.
    problems: how many the file had at the last look; 0 where it is in force. refusals: what they are, without values.
    needs_restart: settings of the file that are not in force before.
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
        """`clock` tells Unix seconds."""
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
        """Where the config is read from; None for the built-in defaults, and for what cannot be read again."""
        return self._source.path if self._source else None

    def ask(self) -> None:
        """Read the file again soon, changed or not (SIGHUP)."""
        self._asked.set()

    async def watch(self, seconds: float) -> None:
        """Look at the file for as long as the process lives."""
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
        """Take the file where it has changed, and was the same at the last two looks."""
        if self._source is None:
            return
        async with self._turn:
            seen = await asyncio.to_thread(self._source.look)
            settled, self._seen = seen == self._seen, seen
            if settled and seen != self._tried:
                await self._try(seen, "file")

    async def reload(self, trigger: Literal["signal", "page"] = "signal") -> None:
        """Take the file as it is now."""
        if self._source is None:
            self._log.info("reload_skipped", reason="no config file was named at the start, or it is no regular file")
            return
        async with self._turn:
            self._seen = await asyncio.to_thread(self._source.look)
            await self._try(self._seen, trigger)

    async def _try(self, seen: Look, trigger: str) -> None:
        self._tried = seen
        try:
            new, kept = await asyncio.to_thread(self._load_checked, seen)
            self._swap(new)
        except ConfigError as error:
            self._log_refusal(error.problems, trigger)
        except Exception as error:  # noqa: BLE001 - whatever a file can provoke, the old config stays in force
            self._log.fault("reload_fault", error)
            self._log_refusal((), trigger)
        else:
            changed = new != self.config
            self.config, self.text, self.problems, self.taken_at = new, seen.text, 0, self._clock()
            self.refusals, self.needs_restart = [], kept
            self._observe(note("config_reloaded"))
            self._log.info(
                "reload", trigger=trigger, changed=changed, needs_restart=list(kept), notes=list(notes(self.config))
            )

    def _load_checked(self, seen: Look) -> tuple[Config, tuple[str, ...]]:
        assert self._source is not None  # noqa: S101 - else there was nothing to look at
        if seen.text is None:
            raise ConfigError(seen.problems)
        given = load_text(str(self._source.path), seen.text, self._source.env)
        problems = litellm_problems(self._at_start, given, str(self._source.path))
        if problems:
            raise ConfigError(problems)
        return laid_over(self.config, self._as_chosen(given))

    def _as_chosen(self, given: Config) -> Config:
        """With what the command line has chosen in the place of settings that have not changed in the file since."""
        first, start, now = self._first, self._at_start.server, given.server
        if first is None:
            return given
        same = {name: getattr(start, name) for name in _FIXED_SERVER if getattr(now, name) == getattr(first, name)}
        return given.model_copy(update={"server": now.model_copy(update=same)})

    @cached_property
    def _first(self) -> Server | None:
        """The file's own settings at the start."""
        assert self._source is not None  # noqa: S101 - as above
        try:
            return load_text(str(self._source.path), self._source.first.text or "", self._source.env).server
        except ConfigError:
            return None

    def _log_refusal(self, problems: tuple[Problem, ...], trigger: str) -> None:
        self.problems = max(1, len(problems))
        self._observe(note("config_refused"))
        self.refusals = [str(problem) for problem in problems[:_MOST_TOLD]]
        self._log.warning("reload_failed", trigger=trigger, count=self.problems, problems=self.refusals)


def laid_over(old: Config, new: Config) -> tuple[Config, tuple[str, ...]]:
    """The new config with what only a restart can change as it was, and the paths of those settings."""
    server = {name: getattr(old.server, name) for name in _FIXED_SERVER}
    kept = [f"server.{name}" for name, value in server.items() if getattr(new.server, name) != value]
    for section in ("store", "telemetry"):
        before, after = getattr(old, section), getattr(new, section)
        names = type(before).model_fields
        kept += [f"{section}.{name}" for name in names if getattr(after, name) != getattr(before, name)]
    kept += ["hooks"] if new.hooks != old.hooks else []
    fixed = {
        "server": new.server.model_copy(update=server),
        "store": old.store,
        "telemetry": old.telemetry,
        "hooks": old.hooks,
    }
    return new.model_copy(update=fixed), tuple(kept)


def litellm_problems(start: Config, new: Config, file: str) -> list[Problem]:
    """Upstreams that need what was not loaded at the start: loading litellm holds up the event loop for too long.

    They are refused, not left out: their requests would go elsewhere.
    """
    loaded = [upstream for upstream in start.upstreams.values() if upstream.provider == "litellm"]
    known = {None, *(upstream.litellm_provider for upstream in loaded)}
    found = []
    for name, upstream in new.upstreams.items():
        if upstream.provider != "litellm":
            continue
        if not loaded:
            found.append(_needs_restart(file, f"upstreams.{name}.provider", "litellm is loaded at the start only"))
        elif upstream.litellm_provider not in known:
            found.append(
                _needs_restart(file, f"upstreams.{name}.litellm_provider", "a new one is checked at the start")
            )
    return found


def _needs_restart(file: str, path: str, why: str) -> Problem:
    return Problem(file, None, path, f"{why}; restart the proxy")
