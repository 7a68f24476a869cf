"""The log: one line an event, on standard error, as JSON or for people; never content, never keys."""

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
    """A stream for lines. `write` raises OSError or ValueError for a line that is lost."""

    def write(self, line: bytes, /) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...


_encode = msgspec.json.Encoder().encode
_DELETE = 0x7F
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


# What JSON leaves as it is and a terminal obeys: C1 controls, and marks that turn the text behind them around.
_obeyed = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]").sub


class Log:
    """Writes events with a name and fields: numbers, names and codes that we chose, never what users sent.

    It writes lines itself: the standard library's logging costs as much as a fifth of a relayed request. `lost` counts
    those that could not be written.
    """

    def __init__(self, level: str, clock: Callable[[], float], stream: Stream, form: Form | None = None) -> None:
        """`clock` tells Unix seconds."""
        self._clock = clock
        self._stream = stream
        self.lost = 0
        self.configure(level, form)

    def configure(self, level: str, form: Form | None) -> None:
        """Write nothing less severe than this from now on; without a form for people where a terminal shows it."""
        self._least = _LEVELS[level]
        self._line = _text if (form or ("text" if self._stream.isatty() else "json")) == "text" else _json

    def info(self, event: str, **fields: object) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write("warning", event, fields)

    def struct(self, level: str, event: str, value: Fields) -> None:
        """Write an event. A struct's fields are written faster than a dict's."""
        if _LEVELS[level] >= self._least:
            self._append(level, event, value)

    def fault(self, event: str, error: BaseException) -> None:
        """A fault of ours: its type and where it happened, without its message, which may quote a user."""
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
    """Return a line as JSON. `level` and `event` are names of ours."""
    body, second = _encode(fields), int(at)
    if not body.isascii() or _DELETE in body:
        body = _obeyed(lambda found: f"\\u{ord(found[0]):04x}", body.decode()).encode()
    begin, names = _head(second, level, event)
    return begin + b"%06d" % (1_000_000 * (at - second)) + names + (b"," if len(body) > len(b"{}") else b"") + body[1:]


@lru_cache(32)
def _head(second: int, level: str, event: str) -> tuple[bytes, bytes]:
    """Return a line's beginning in front of the microseconds, and after them."""
    begin = f'{{"ts":"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.'
    return begin.encode(), f'Z","level":"{level}","event":"{event}"'.encode()


def _text(at: float, level: str, event: str, fields: Fields) -> bytes:
    severe = "" if level == "info" else f"{level}: "
    return f"{datetime.fromtimestamp(at, UTC).astimezone():%H:%M:%S} {severe}{text_of(event, fields)}".encode()


def _places(error: BaseException) -> list[str]:
    """The innermost places of a traceback, as file:line."""
    return [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[-6:]]


class _LibraryMessages(logging.Handler):
    """Messages of libraries as log lines of ours, from warnings on; whatever may quote a user is left out."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._log.fault("library_error", error)
        elif record.name != _SERVER:
            self._log.warning("library", logger=record.name)
        elif "without completing response" not in record.msg:  # how a truncated answer is passed on
            self._log.warning("server", message=record.msg)


def _standard_error() -> Stream:
    try:
        return LineWriter(sys.stderr.buffer)
    except (OSError, ValueError):  # no file of the system
        return sys.stderr.buffer


def open_log(level: str, clock: Callable[[], float], stream: BinaryIO | None = None, form: Form | None = None) -> Log:
    """The process's log, on standard error unless told otherwise; what libraries log goes there too."""
    log = Log(level, clock, stream or _standard_error(), form)
    root = logging.getLogger()
    root.handlers = [*(h for h in root.handlers if not isinstance(h, _LibraryMessages)), _LibraryMessages(log)]
    return log
