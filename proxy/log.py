"""The log: one JSON line an event, on standard error; never content, never keys."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import msgspec

_LOGGER = "concertina"


class Log:
    """Writes events with a name and fields: numbers, names and codes that we chose, never what users sent."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float]) -> None:
        self._logger = logger
        self._clock = clock

    def info(self, event: str, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def fault(self, event: str, error: BaseException) -> None:
        """A fault of ours: its type and where it happened, without its message, which may quote a user."""
        self._write(logging.ERROR, event, {"error": type(error).__name__, "at": _places(error)})

    def _write(self, level: int, event: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            moment = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
            line = {"ts": moment, "level": logging.getLevelName(level).lower(), "event": event, **fields}
            self._logger.log(level, msgspec.json.encode(line).decode())


def _places(error: BaseException) -> list[str]:
    """The innermost places of a traceback, as file:line."""
    return [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[-6:]]


class _ServerMessages(logging.Handler):
    """Messages of the server library as log lines of ours; exceptions lose their text."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._log.fault("server_error", error)
        elif "without completing response" not in record.msg:  # how a truncated answer is passed on
            self._log.warning("server", message=record.msg)


def open_log(level: str, clock: Callable[[], float], stream: TextIO | None = None) -> Log:
    """The process's log at this level, on standard error unless told otherwise."""
    logger = logging.getLogger(_LOGGER)
    logger.handlers = [logging.StreamHandler(stream or sys.stderr)]
    logger.setLevel(level.upper())
    logger.propagate = False
    log = Log(logger, clock)
    server = logging.getLogger("uvicorn.error")
    server.handlers = [_ServerMessages(log)]
    server.propagate = False
    return log
