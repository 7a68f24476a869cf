"""Several processes that serve one address: begun, replaced where one dies, and ended together."""

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

# Seconds before a worker that died is replaced: the longer, the more often in a row it did not live that long.
_PAUSES = (0.0, 1.0, 5.0, 30.0)
_LIVED = 60.0
_HEARD = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}


@dataclass(slots=True)
class _Worker:
    """pid: 0 while it is not there. due: when it is to be begun. deaths: in a row, soon after its beginning."""

    pid: int = 0
    begins: int = 0
    begun: float = 0.0
    due: float = 0.0
    deaths: int = 0


class Supervisor:
    """Forks workers and does nothing else, so that nothing of it can fail; signals are passed on to all of them."""

    def __init__(self, number: int, work: Callable[[int, int], int], log: Log) -> None:
        """`work` is done in every worker, given its number from 0 on and how often that was begun; it returns the exit
        code."""
        self._work = work
        self._log = log
        self._workers = [_Worker() for _ in range(number)]
        self._is_ending = False
        self._code = 0
        self._alive, self._held = os.pipe()
        self._heard, self._rung = os.pipe()

    def run(self) -> int:
        """Until SIGTERM, SIGINT or the end of a worker that could not begin; returns the exit code."""
        os.set_blocking(self._rung, False)
        signal.set_wakeup_fd(self._rung, warn_on_full_buffer=False)
        for each in _HEARD:
            signal.signal(each, lambda *_: None)
        gc.freeze()  # so that looking for garbage copies no pages that the workers share
        while not self._is_ending or any(worker.pid for worker in self._workers):
            self._begin_due()
            rung, _, _ = select.select([self._heard], [], [], self._seconds())
            heard = {signal.Signals(number) for number in os.read(self._heard, 1024)} if rung else set()
            self._reap()
            for each in heard - {signal.SIGCHLD}:
                self._pass_on(each)
        return self._code

    def _begin_due(self) -> None:
        now = time.monotonic()
        for number, worker in enumerate(self._workers):
            if not (worker.pid or self._is_ending) and worker.due <= now:
                worker.begun, worker.begins = now, worker.begins + 1
                # What comes for a worker before it listens to signals waits until it does.
                signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
                worker.pid = os.fork() or self._become(number, worker.begins)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)

    def _become(self, number: int, begins: int) -> int:
        """Become the worker, in its process, which ends here."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for descriptor in (self._held, self._heard, self._rung):
                os.close(descriptor)
            threading.Thread(target=_end_with, args=(self._alive,), daemon=True).start()
            for each in _HEARD:
                signal.signal(each, signal.SIG_DFL if each != signal.SIGINT else signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
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
        """Until the next worker is due."""
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
        lived = time.monotonic() - worker.begun
        if worker.begins == 1 and code > 0 and lived < _LIVED:  # it has said why, and another one would fail likewise
            self._code = code
            self._pass_on(signal.SIGTERM)
            return
        worker.deaths = 0 if lived > _LIVED else worker.deaths + 1
        pause = _PAUSES[min(worker.deaths, len(_PAUSES) - 1)]
        worker.due = time.monotonic() + pause
        self._log.warning("worker_ended", pid=pid, code=code, lived_s=round(lived, 1), replaced_in_s=pause)

    def _pass_on(self, heard: signal.Signals) -> None:
        if heard != signal.SIGHUP:
            self._is_ending = True
            heard = signal.SIGTERM
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, heard)


def _end_with(alive: int) -> None:
    """Wait until the supervisor has ended, then drain this worker: no one is left to send it a signal."""
    os.read(alive, 1)
    os.kill(os.getpid(), signal.SIGTERM)
