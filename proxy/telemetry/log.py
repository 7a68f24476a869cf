"""The log: one line per event on standard error, as JSON or for people, without content and keys."""

import logging
import re
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

import msgspec

from proxy.telemetry.line_writer import LineWriter
from proxy.telemetry.text_lines import text_of

_SERVER = "uvicorn.error"
Form = Literal["json", "text"]
Fields = msgspec.Struct | dict[str, object]


class Stream(Protocol):
    """A stream for lines. `write` raises OSError or ValueError for a lost line."""

    def write(self, line: bytes, /) -> object:
        """Write a line."""

    def flush(self) -> object:
        """Flush the stream."""

    def isatty(self) -> bool:
        """Return True if the stream is a terminal."""


_encode = msgspec.json.Encoder().encode
_DELETE = 0x7F
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


# Characters that JSON does not escape and a terminal interprets: C1 controls, and marks that reverse the following
# text.
_escape_controls = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]").sub


class Log:
    """Write events with a name and fields: numbers, names and codes of the proxy, never users' content.

    It writes lines itself: the standard library's logging costs as much as a fifth of a relayed request. lost: the
    number of lines that could not be written.
    """

    def __init__(self, level: str, clock: Callable[[], float], stream: Stream, form: Form | None = None) -> None:
        """Create a log. `clock` returns Unix seconds."""
        self._clock = clock
        self._stream = stream
        self.lost = 0
        self.configure(level, form)

    def configure(self, level: str, form: Form | None) -> None:
        """Set the minimum level and the form. Without a form, a terminal gets text."""
        self._least = _LEVELS[level]
        self._line = _text if (form or ("text" if self._stream.isatty() else "json")) == "text" else _json

    def info(self, event: str, **fields: object) -> None:
        """Write an event at level info."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Write an event at level warning."""
        self._write("warning", event, fields)

    def struct(self, level: str, event: str, value: Fields) -> None:
        """Write an event. A struct's fields are written faster than a dict's."""
        if _LEVELS[level] >= self._least:
            self._append(level, event, value)

    def fault(self, event: str, error: BaseException) -> None:
        """Write a fault of the proxy: its type and location, without its message, which may quote a user."""
        self._write("error", event, {"error": type(error).__name__, "at": _places(error)})

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        if _LEVELS[level] >= self._least:
            self._append(level, event, fields)

    def _append(self, level: str, event: str, fields: Fields) -> None:
        line = self._line(self._clock(), level, event, fields)
        try:
            self._stream.write(line + b"\n")
            self._stream.flush()
        except (OSError, ValueError):  # a full disk, a closed pipe or a closed file loses lines, never requests
            self.lost += 1


def _json(at: float, level: str, event: str, fields: Fields) -> bytes:
    """Return a line as JSON. `level` and `event` are fixed names."""
    body, second = _encode(fields), int(at)
    if not body.isascii() or _DELETE in body:
        body = _escape_controls(lambda match: f"\\u{ord(match[0]):04x}", body.decode()).encode()
    begin, names = _head(second, level, event)
    return begin + b"%06d" % (1_000_000 * (at - second)) + names + (b"," if len(body) > len(b"{}") else b"") + body[1:]


@lru_cache(32)
def _head(second: int, level: str, event: str) -> tuple[bytes, bytes]:
    """Return a line's beginning before the microseconds, and after them."""
    begin = f'{{"ts":"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.'
    return begin.encode(), f'Z","level":"{level}","event":"{event}"'.encode()


def _text(at: float, level: str, event: str, fields: Fields) -> bytes:
    severe = "" if level == "info" else f"{level}: "
    return f"{datetime.fromtimestamp(at, UTC).astimezone():%H:%M:%S} {severe}{text_of(event, fields)}".encode()


def _places(error: BaseException) -> list[str]:
    """Return the innermost locations of a traceback as file:line."""
    return [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[-6:]]


class _LibraryMessages(logging.Handler):
    """Write libraries' messages from warnings on as log lines, without parts that may quote a user."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._log.fault("library_error", error)
        elif record.name != _SERVER:
            self._log.warning("library", logger=record.name)
        elif "without completing response" not in record.msg:  # a truncated response that is relayed
            self._log.warning("server", message=record.msg)


def _standard_error() -> Stream:
    try:
        return LineWriter(sys.stderr.buffer)
    except (OSError, ValueError):  # not a file of the system
        return sys.stderr.buffer


def open_log(level: str, clock: Callable[[], float], stream: BinaryIO | None = None, form: Form | None = None) -> Log:
    """Open the process's log, by default on standard error. Libraries log there too."""
    log = Log(level, clock, stream or _standard_error(), form)
    root = logging.getLogger()
    root.handlers = [*(h for h in root.handlers if not isinstance(h, _LibraryMessages)), _LibraryMessages(log)]
    return log
