"""Write lines to a stream that may block, such as an unread pipe, without blocking the caller."""

import atexit
import os
import select
from collections import deque
from threading import Lock, Thread
from typing import BinaryIO

# A ready pipe accepts so many bytes at once (pipe(7), PIPE_BUF).
_AT_ONCE = 4_096
# The maximum number of lines that wait for the stream. Further ones are lost.
MOST_WAITING = 10_000
# The seconds that a stopping process waits for them.
_AT_EXIT = 1.0


class LineWriter:
    """Write at once if the stream accepts the line, otherwise in a thread that ends with the last line."""

    def __init__(self, stream: BinaryIO) -> None:
        """Create a writer for this stream."""
        self._stream = stream
        self._file = stream.fileno()
        self._ready = select.poll()
        self._ready.register(self._file, select.POLLOUT)
        self._lock = Lock()
        self._waiting: deque[bytes] = deque()
        self._thread: Thread | None = None

    def isatty(self) -> bool:
        """Return True if the stream is a terminal."""
        return self._stream.isatty()

    def write(self, line: bytes) -> None:
        """Write a line in order. Raises OSError if it is lost: the stream is gone, or too many lines wait."""
        with self._lock:
            # After a fork, a thread of the parent is not alive in the child.
            is_free = self._thread is None or not self._thread.is_alive()
            if is_free and len(line) <= _AT_ONCE and self._ready.poll(0):
                os.write(self._file, line)
                return
            if len(self._waiting) >= MOST_WAITING:
                raise BlockingIOError("too many lines wait for the stream")
            self._waiting.append(line)
            if is_free:
                self._thread = Thread(target=self._write_waiting, name="log", daemon=True)
                atexit.register(self._thread.join, _AT_EXIT)
                self._thread.start()

    def flush(self) -> None:
        """Do nothing: only the waiting lines are buffered, and their thread writes them."""

    def _write_waiting(self) -> None:
        try:
            while True:
                with self._lock:
                    if not self._waiting:
                        self._thread = None
                        return
                    lines = b"".join(self._waiting)
                    self._waiting.clear()
                while lines:
                    lines = lines[os.write(self._file, lines) :]
        except OSError:  # the stream is gone, which the next line notices
            with self._lock:
                self._waiting.clear()
                self._thread = None
