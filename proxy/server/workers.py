"""Several processes that serve one address: started, replaced if one dies, and ended together."""

import gc
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from proxy.telemetry.log import Log

# Seconds before a dead worker is replaced, by the number of short lives in a row. A life up to the second is short.
_PAUSES = (0.0, 1.0, 5.0, 30.0)
_SHORT_LIFE_S = 60.0
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}


@dataclass(slots=True)
class _Worker:
    """The state of a worker.

    pid:    0 while it is not running.
    begins: how often it was started. begun: the time of the last start.
    due:    the time when it is to be started.
    deaths: those in a row soon after a start.
    """

    pid: int = 0
    begins: int = 0
    started: float = 0.0
    due: float = 0.0
    deaths: int = 0


class Supervisor:
    """Forks workers and does nothing else, so that it cannot fail. Signals are forwarded to all workers."""

    def __init__(self, number: int, work: Callable[[int, int], int], log: Log) -> None:
        """Create a supervisor of `number` workers.

        work: runs in every worker, with its number from 0 and its number of starts. Returns the exit code.
        """
        self._work = work
        self._log = log
        self._workers = [_Worker() for _ in range(number)]
        self._is_ending = False
        self._code = 0
        self._alive, self._alive_writer = os.pipe()
        self._signal_reader, self._signal_writer = os.pipe()

    def run(self) -> int:
        """Run until SIGTERM, SIGINT or the end of a worker that could not start. Returns the exit code."""
        os.set_blocking(self._signal_writer, False)
        signal.set_wakeup_fd(self._signal_writer, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        gc.freeze()  # so that garbage collection copies no pages that the workers share
        while not self._is_ending or any(worker.pid for worker in self._workers):
            self._begin_due()
            readable, _, _ = select.select([self._signal_reader], [], [], self._seconds())
            signals = {signal.Signals(number) for number in os.read(self._signal_reader, 1024)} if readable else set()
            self._reap()
            for number in signals - {signal.SIGCHLD}:
                self._forward(number)
        return self._code

    def _begin_due(self) -> None:
        now = time.monotonic()
        for number, worker in enumerate(self._workers):
            if not (worker.pid or self._is_ending) and worker.due <= now:
                worker.started, worker.begins = now, worker.begins + 1
                # Signals for a worker are kept until it handles them.
                signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
                worker.pid = os.fork() or self._become(number, worker.begins)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _become(self, number: int, begins: int) -> int:
        """Run the worker in its own process, which ends here."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for descriptor in (self._alive_writer, self._signal_reader, self._signal_writer):
                os.close(descriptor)
            threading.Thread(target=_end_with, args=(self._alive,), daemon=True).start()
            for signal_number in _SIGNALS:
                signal.signal(
                    signal_number, signal.SIG_DFL if signal_number != signal.SIGINT else signal.default_int_handler
                )
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            code = self._work(number, begins)
        except KeyboardInterrupt:
            code = 0
        except BaseException as error:  # noqa: BLE001 - the last frame of a process
            self._log.fault("worker_failed", error)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _seconds(self) -> float:
        """Return the seconds until the next worker is due."""
        due = [worker.due for worker in self._workers if not worker.pid]
        return max(0.0, min(due) - time.monotonic()) if due and not self._is_ending else 3600.0

    def _reap(self) -> None:
        for worker in self._workers:
            pid, status = os.waitpid(worker.pid, os.WNOHANG) if worker.pid else (0, 0)
            if pid:
                worker.pid = 0
                self._note_end(worker, pid, os.waitstatus_to_exitcode(status))

    def _note_end(self, worker: _Worker, pid: int, code: int) -> None:
        if self._is_ending:
            return
        lived = time.monotonic() - worker.started
        if worker.begins == 1 and code > 0 and lived < _SHORT_LIFE_S:  # another one would fail too
            self._code = code
            self._forward(signal.SIGTERM)
            return
        worker.deaths = 0 if lived > _SHORT_LIFE_S else worker.deaths + 1
        pause = _PAUSES[min(worker.deaths, len(_PAUSES) - 1)]
        worker.due = time.monotonic() + pause
        self._log.warning("worker_ended", pid=pid, code=code, lived_s=round(lived, 1), replaced_in_s=pause)

    def _forward(self, signal_number: signal.Signals) -> None:
        if signal_number != signal.SIGHUP:
            self._is_ending = True
            signal_number = signal.SIGTERM
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, signal_number)


def _end_with(alive: int) -> None:
    """Wait until the supervisor has ended, then drain this worker, since no signal will come."""
    os.read(alive, 1)
    os.kill(os.getpid(), signal.SIGTERM)
