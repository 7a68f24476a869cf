"""Checkpoints of conversations, each made once for all requests that can use it."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace

from policies.decision.plan import AHEAD
from policies.record.record import Record
from proxy.compaction.checkpoints import Checkpoints
from proxy.compaction.job import Job
from proxy.compaction.record_builder import CompactionError, RecordBuilder
from proxy.compaction.stability import Stability
from proxy.runtime.background import Background
from proxy.sessions.locks import claim
from proxy.sessions.record_store import continues_undone, is_of, place_key
from proxy.sessions.sessions import Sessions

# Compactions in flight that one request joins, one after another, before it starts its own.
_MOST_JOINED = 3
# The claim of a conversation's next record names the message at this share of M after the parent's. All requests of the
# conversation compute the same message, however long it has grown.
_CLAIMED_AT = 0.25


@dataclass(slots=True, eq=False)
class _CompactionFlight:
    """One compaction in flight, and the number of requests that wait for it."""

    job: Job
    task: asyncio.Task[Record]
    waiting: int = 0


@dataclass(eq=False, repr=False)
class Compactor:
    """Makes the next checkpoints of conversations, one at a time for each span of a branch. One per process.

    A model's summary is paid for when it starts. If all waiting clients disconnect, it continues in the background if
    there is room. The next request uses it.
    """

    _checkpoints: Checkpoints
    _builder: RecordBuilder
    _stability: Stability
    _sessions: Sessions
    _background: Background
    _flights: dict[str, list[_CompactionFlight]] = field(default_factory=dict)
    """By the tag of the conversation."""
    _claims: set[str] = field(default_factory=set)
    """Keys that this process has claimed."""

    async def checkpoint(self, job: Job) -> Record:
        """Return the record with which the job's request continues: joined, found or made. Raises CompactionError."""
        is_firm = False
        for _ in range(_MOST_JOINED):
            if (flight := self._joinable(job, is_firm=is_firm)) is None:
                break
            try:
                if (record := await self._join_flight(job, flight, is_firm=is_firm)) is not None:
                    return record
            except TimeoutError:
                if not job.plan.must:
                    raise CompactionError("pending") from None
                job = replace(job, target=None)
                break
            except CompactionError as error:
                if _is_as_firm(flight.job, job) or not (job.plan.must or str(error) == "pending"):
                    raise
                # The first request here starts a compaction that gives up later. The others join it.
                is_firm = True
        return await self._wait_for_flight(self._begin(job))

    async def prefetch(self, job: Job) -> None:
        """Make a record before a request needs it, unless one is in flight."""
        if self._joinable(job) is None and not self._is_overtaken(job):
            with suppress(CompactionError):
                await self._wait_for_flight(self._begin(job))

    def _joinable(self, job: Job, *, is_firm: bool = False) -> _CompactionFlight | None:
        """Return a compaction in flight that covers more of the job's request than its parent; None without one.

        After an overflow the flight must have the job's cut and be for an overflow too, since nothing else is small
        enough. is_firm: it must not give up sooner than the job.
        """
        is_overflow = job.plan.trigger == "overflow_retry"
        for flight in self._flights.get(job.plan_input.chain.tag, ()):
            cut = job.plan_input.cut_at(flight.job.digest)
            if is_overflow and (flight.job.plan.trigger, cut) != (job.plan.trigger, job.plan.cut.position):
                continue
            if cut is not None and cut > job.covered and (not is_firm or _is_as_firm(flight.job, job)):
                return flight
        return None

    def _is_overtaken(self, job: Job) -> bool:
        """Return True if a record is in flight for a request that continues this one.

        This job's record would be unused.
        """
        digests = job.plan_input.chain.digests
        newest = len(digests) - 1
        flights = self._flights.get(job.plan_input.chain.tag, ())
        return any(flight.job.plan_input.chain.digests[newest : newest + 1] == digests[newest:] for flight in flights)

    def _begin(self, job: Job) -> _CompactionFlight:
        flight = _CompactionFlight(job, asyncio.create_task(self._claim_and_make(job)))
        self._flights.setdefault(job.plan_input.chain.tag, []).append(flight)
        flight.task.add_done_callback(lambda _: self._forget(flight))
        return flight

    def _forget(self, flight: _CompactionFlight) -> None:
        flights = self._flights.get(flight.job.plan_input.chain.tag, [])
        if flight in flights:
            flights.remove(flight)
        if not flights:
            self._flights.pop(flight.job.plan_input.chain.tag, None)

    async def _join_flight(self, job: Job, flight: _CompactionFlight, *, is_firm: bool) -> Record | None:
        """Return the record of another request's flight; None if it is of another branch or of an undone record.

        A firm flight is awaited like the job's own. Raises CompactionError, and TimeoutError if it takes longer than
        the job may wait.
        """
        record = await self._wait_for_flight(flight, None if is_firm else job.join_timeout)
        chain = job.plan_input.chain
        is_usable = is_of(record, chain.digests, record.covered) and not continues_undone(chain, record)
        if record.covered > job.covered and is_usable:
            return record
        self._forget(flight)
        return None

    async def _wait_for_flight(self, flight: _CompactionFlight, seconds: float | None = None) -> Record:
        """Return the record of a flight. Raises CompactionError, and TimeoutError after so many seconds."""
        flight.waiting += 1
        try:
            await asyncio.wait((flight.task,), timeout=seconds)
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                self._continue_in_background(flight)
        if not flight.task.done():
            raise TimeoutError
        if flight.task.cancelled():  # the process ends
            raise CompactionError("pending")
        return flight.task.result()

    def _continue_in_background(self, flight: _CompactionFlight) -> None:
        flight.waiting += 1
        if not self._background.start("summary", self._wait_and_list(flight)):
            self._forget(flight)
            flight.task.cancel()

    async def _wait_and_list(self, flight: _CompactionFlight) -> None:
        """Wait for a flight without a request, and list its session, since something is now stored for it.

        The flight's own plan input names the session: the requests that waited may belong to others.
        """
        with suppress(CompactionError):
            record = await flight.task
            plan_input = flight.job.plan_input
            await self._sessions.add(
                plan_input.caller, plan_input.chain, plan_input.label, plan_input.request.settings.model, record
            )

    async def _claim_and_make(self, job: Job) -> Record:
        """Return the next record of a conversation, made here or by another replica. Raises CompactionError.

        A job that cannot wait makes a record without the claim. So does an overflow, since no other record is small
        enough, and so does a fork of a conversation that this process has claimed.
        """
        if job.plan.trigger == "overflow_retry" or (key := _claim_key(job)) in self._claims:
            return await self._make(job)
        seconds = 0.0 if job.plan.trigger in AHEAD else job.JOIN_WAIT
        store = self._sessions.sealed.store
        self._claims.add(key)
        try:
            async with claim(
                store, key, lambda: self._checkpoints.newer(job.plan_input, job.covered), seconds
            ) as claimed:
                if isinstance(claimed, Record):
                    return claimed
                if claimed is None and not job.plan.must:
                    raise CompactionError("pending")
                return await self._make(job)
        finally:
            self._claims.discard(key)

    async def _make(self, job: Job) -> Record:
        """Make and publish a record, and note the result in the state of its lineage. Raises CompactionError."""
        tag, plan_input, lineages = job.plan_input.chain.tag, job.plan_input, self._sessions.lineages
        try:
            record = await self._build_once(await self._builder.fit(job))
        except CompactionError as error:
            if str(error) == "no_gain":
                await lineages.gained_nothing(tag, job.parent, plan_input.request.tokens)
            await lineages.note_failure(tag, job.parent)
            raise
        await lineages.note_compaction(tag, record, len(plan_input.conversation.messages))
        await self._stability.note(plan_input, job.parent, record)
        return record

    async def _build_once(self, job: Job) -> Record:
        """Return the published record of a cut. If a model writes it, only one replica does. Raises CompactionError."""
        if job.target is None:
            return await self._find_stored(job) or await self._publish(job)
        key = f"lock:{place_key(job.plan_input.chain, job.plan.cut.position)}"
        async with claim(self._sessions.sealed.store, key, lambda: self._find_stored(job), job.join_timeout) as claimed:
            if isinstance(claimed, Record):
                return claimed
            if claimed is None and not job.plan.must:
                raise CompactionError("pending")
            return await self._publish(job)

    async def _find_stored(self, job: Job) -> Record | None:
        record = await self._sessions.records.find(job.plan_input.chain, [job.plan.cut.position])
        return None if record is None else job.plan_input.allowed_record(record)

    async def _publish(self, job: Job) -> Record:
        record = await self._builder.build(job)
        return job.plan_input.allowed_record(await self._sessions.records.publish(job.plan_input.chain, record))


def _is_as_firm(other: Job, job: Job) -> bool:
    """Return True if the other job gives up no sooner. One in the background gives up if another has the claim."""
    return other.plan.must >= job.plan.must and other.plan.trigger not in AHEAD


def _claim_key(job: Job) -> str:
    plan_input, tokens_from = job.plan_input, job.plan_input.conversation.tokens_from
    covered, least = job.covered, _CLAIMED_AT * plan_input.limits.budget.movable
    newer = [cut for cut in plan_input.cuts if cut > covered]
    cut = next((cut for cut in newer if tokens_from[covered] - tokens_from[cut] >= least), (newer or [covered])[-1])
    return f"claim:{{{plan_input.chain.tag}}}:{plan_input.chain.digests[cut].hex()}"
