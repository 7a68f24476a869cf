"""Compactions under way in this process: begun once, joined by all requests that can use the record, finished."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace

from policies.record.record import Record
from proxy.engine.compactor import CompactionError, Compactor
from proxy.engine.job import Job
from proxy.engine.stability import Stability
from proxy.engine.standing import StandingRecords
from proxy.records.checkpoints import is_of
from proxy.records.sessions import Sessions
from proxy.runtime.background import Background

# Flights that one request may wait for, one after the other, before it begins its own.
_MOST_JOINED = 3


@dataclass(slots=True, eq=False)
class _CompactionFlight:
    """One compaction under way, and how many wait for it."""

    job: Job
    task: asyncio.Task[Record]
    waiting: int = 0


@dataclass(eq=False, repr=False)
class Compactions:
    """Makes the next records of conversations, one at a time for each span of a branch; one per process.

    A model's summary is paid for once it was begun. Where everybody who waited for one has left, it goes on in the
    background, as far as there is room, so that the next request finds it.
    """

    _standing: StandingRecords
    _compactor: Compactor
    _stability: Stability
    _sessions: Sessions
    _background: Background
    _flights: dict[str, list[_CompactionFlight]] = field(default_factory=dict)
    """By the tag of their conversation."""

    async def next(self, job: Job) -> Record:
        """The record that this job's request goes on with: joined, found or made. Raises CompactionError."""
        firm = False
        for _ in range(_MOST_JOINED):
            if (flight := self._joinable(job, firm=firm)) is None:
                break
            try:
                if (record := await self._join_flight(job, flight, firm=firm)) is not None:
                    return record
            except TimeoutError:
                if not job.plan.must:
                    raise CompactionError("pending") from None
                job = replace(job, target=None)
                break
            except CompactionError as error:
                if _is_as_firm(flight.job, job) or not (job.plan.must or str(error) == "pending"):
                    raise
                # Whoever comes to this first begins one that gives up less soon; the others join it.
                firm = True
        return await self._wait_for_flight(self._begin(job))

    async def make_unpublished(self, job: Job) -> Record:
        """A record that covers nothing which any other request could begin with; raises CompactionError."""
        return await self._compactor.make(job)

    async def ahead(self, job: Job) -> None:
        """Make a record that nobody waits for yet, unless one is under way."""
        if self._joinable(job) is None and not self._is_overtaken(job):
            with suppress(CompactionError):
                await self._wait_for_flight(self._begin(job))

    def _joinable(self, job: Job, *, firm: bool = False) -> _CompactionFlight | None:
        """What is under way for a prefix of this very request, beyond the record that it has, wherever it is cut; where
        it has to be `firm`, only what gives up no sooner than the job would.

        An overflow wants no more than its own target, so it joins only those who overflowed likewise.
        """
        overflowed = job.plan.trigger == "overflow_retry"
        for flight in self._flights.get(job.case.chain.tag, ()):
            cut = job.case.cut_at(flight.job.digest)
            if overflowed and (flight.job.plan.trigger, cut) != (job.plan.trigger, job.plan.cut.position):
                continue
            if cut is not None and cut > job.covered and (not firm or _is_as_firm(flight.job, job)):
                return flight
        return None

    def _is_overtaken(self, job: Job) -> bool:
        """Whether a record is being made for a request that goes on from this one: nobody would use this one's."""
        digests = job.case.chain.digests
        last = len(digests) - 1
        flights = self._flights.get(job.case.chain.tag, ())
        return any(flight.job.case.chain.digests[last : last + 1] == digests[last:] for flight in flights)

    def _begin(self, job: Job) -> _CompactionFlight:
        flight = _CompactionFlight(job, asyncio.create_task(self._make_record(job)))
        self._flights.setdefault(job.case.chain.tag, []).append(flight)
        flight.task.add_done_callback(lambda _: self._forget(flight))
        return flight

    def _forget(self, flight: _CompactionFlight) -> None:
        flights = self._flights.get(flight.job.case.chain.tag, [])
        if flight in flights:
            flights.remove(flight)
        if not flights:
            self._flights.pop(flight.job.case.chain.tag, None)

    async def _join_flight(self, job: Job, flight: _CompactionFlight, *, firm: bool) -> Record | None:
        """The record of another request's flight; None where it found one of another branch. Raises CompactionError,
        and TimeoutError where it takes longer than the job may wait; a `firm` flight is waited for like one's own."""
        record = await self._wait_for_flight(flight, None if firm else job.join_timeout)
        if record.covered > job.covered and is_of(record, job.case.chain.digests, record.covered):
            return record
        self._forget(flight)
        return None

    async def _wait_for_flight(self, flight: _CompactionFlight, seconds: float | None = None) -> Record:
        """What comes of it. Raises CompactionError, and TimeoutError after so many seconds."""
        flight.waiting += 1
        try:
            await asyncio.wait((flight.task,), timeout=seconds)
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                self._finish_alone(flight)
        if not flight.task.done():
            raise TimeoutError
        if flight.task.cancelled():  # the process ends
            raise CompactionError("pending")
        return flight.task.result()

    def _finish_alone(self, flight: _CompactionFlight) -> None:
        flight.waiting += 1
        if not self._background.start("summary", self._finished_alone(flight)):
            self._forget(flight)
            flight.task.cancel()

    async def _finished_alone(self, flight: _CompactionFlight) -> None:
        """Wait in the place of those who left. Their session has to be listed, now that something is stored of it: by
        the case that the record was made or found for, since it may be none of theirs."""
        with suppress(CompactionError):
            record = await flight.task
            case = flight.job.case
            await self._sessions.add(case.caller, case.chain, case.label, case.request.settings.model, record)

    async def _make_record(self, job: Job) -> Record:
        if job.plan.trigger == "overflow_retry":  # nothing smaller will do, so it is nobody else's turn
            return await self._compact_and_note(job)
        wait = 0.0 if job.plan.trigger == "background" else job.JOIN_WAIT
        async with self._standing.turn(job.case, job.parent, wait) as turn:
            if isinstance(turn, Record):
                return turn
            if not (turn or job.plan.must):
                raise CompactionError("pending")
            return await self._compact_and_note(job)

    async def _compact_and_note(self, job: Job) -> Record:
        """The record of a job; what becomes of it is noted in the state of its lineage."""
        try:
            record = await self._compactor.compact(await self._compactor.fit(job))
        except CompactionError as error:
            if str(error) == "no_gain":
                await self._sessions.lineages.gained_nothing(job.case.chain.tag, job.parent, job.case.request.tokens)
            await self._sessions.lineages.note_failure(job.case.chain.tag, job.parent)
            raise
        await self._sessions.lineages.note_compaction(job.case.chain.tag, record, len(job.case.conversation.messages))
        await self._stability.note(job.case, job.parent, record)
        return record


def _is_as_firm(other: Job, job: Job) -> bool:
    """Whether the other one gives up no sooner: one in the background does as soon as it is not its turn."""
    return other.plan.must >= job.plan.must and other.plan.trigger != "background"
