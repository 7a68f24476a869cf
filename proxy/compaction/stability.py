"""Notes in the store about summaries that were lost because a history changed. They are best effort."""

import hashlib
from itertools import islice, takewhile

from policies.conversation.prefix_digests import NAME_DIGITS
from policies.decision.stability import Place, SummaryNote, after_record, is_unstable, places_in
from policies.record.record import VERSION, Record
from proxy.compaction.plan_input import PlanInput
from proxy.sessions.sessions import Sessions
from proxy.sessions.shelf import Shelf

# The most places of a history to look up in one round trip, the newest first.
_LOOKED_UP = 512


class Stability:
    """Notes where models summarized histories. One per process.

    The key of a note has the caller and a digest, and no content. Sessions and labels are not part of it, because they
    may change with each request.
    """

    def __init__(self, sessions: Sessions) -> None:
        """Create notes in the store of these sessions."""
        self._notes = Shelf(sessions.sealed, SummaryNote)

    async def lost_since(self, plan_input: PlanInput, standing: Record | None) -> str | None:
        """Return the name of the first lost summary if another one after this record would be lost too; else None."""
        notes_by_place = await self._notes_after(plan_input, standing)
        notes = [*notes_by_place.values()]
        if not is_unstable(notes, plan_input.limits.budget, plan_input.request.tokens):
            return None
        if (
            max(notes_by_place).position < len(plan_input.conversation.body) // 2
        ):  # the client's window may move past it
            await self._put(
                plan_input,
                len(plan_input.conversation.body),
                after_record(notes, plan_input.request.tokens, by_model=False),
            )
        return min(notes_by_place).name.hex()[:NAME_DIGITS]

    async def note(self, plan_input: PlanInput, parent: Record | None, record: Record) -> None:
        """Note that a record was made for a history, after its parent."""
        notes_by_place, by_model = await self._notes_after(plan_input, parent), record.making.model is not None
        note = after_record([*notes_by_place.values()], plan_input.request.tokens, by_model=by_model)
        await self._put(plan_input, record.covered, note)

    async def _put(self, plan_input: PlanInput, cut: int, note: SummaryNote | None) -> None:
        """Store a note under the last place before a cut."""
        place = next(places_in(plan_input.conversation.body[:cut]), None)
        if note is not None and place is not None:
            await self._notes.put(_key(plan_input, place.name), note)

    async def _notes_after(self, plan_input: PlanInput, standing: Record | None) -> dict[Place, SummaryNote]:
        """Return the notes after the messages that a record covers, without those of undone records."""
        covered = max(standing.covered if standing else 0, *plan_input.chain.barred, 0)
        newer = takewhile(lambda place: place.position >= covered, places_in(plan_input.conversation.body))
        places = [*islice(newer, _LOOKED_UP)]
        notes = await self._notes.look_up([_key(plan_input, place.name) for place in places])
        return {place: note for place, note in zip(places, notes, strict=True) if note is not None}


def _key(plan_input: PlanInput, name: bytes) -> str:
    """Return the key of a place's note. Each version of records has its own notes, since others do not find them."""
    return f"index:spoken:{VERSION}:{hashlib.sha256(plan_input.caller.scope + name).hexdigest()}"
