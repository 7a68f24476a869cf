"""Lookup of the checkpoint that a request continues from."""

from collections import Counter
from collections.abc import Collection

from policies.decision.plan import decide_economy, is_crowded, tokens_with
from policies.price import is_gone
from policies.record.record import Record
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.prompt import active_checkpoint
from proxy.sessions.sessions import Sessions

# Share of M of the request for which a record was made ahead. Below it the session has a larger window by now.
_SAME_WINDOW = 0.5


class Checkpoints:
    """Looks up the checkpoint in use; one per process. `lookups` counts results: `memory`, `store`, `miss`."""

    def __init__(self, sessions: Sessions) -> None:
        """Create a lookup over the stored records."""
        self._records = sessions.records
        self._lineages = sessions.lineages
        self.lookups: Counter[str] = Counter()

    async def find_active(self, plan_input: PlanInput) -> Record | None:
        """Return the checkpoint to send: the newest, unless the prompt before it fits.

        A summary made ahead of need thus breaks no prompt cache before it must. A session that continues with a larger
        window gets back the messages that the smaller window had no room for.
        """
        record = await self.newest(plan_input)
        while record is not None and (share := self._revert_threshold(plan_input, record)) is not None:
            parent = await self._parent(plan_input, record)
            if (parent is None and record.parent is not None) or not self._is_stable(plan_input, parent, share):
                break
            if await self._is_used_early(plan_input, record):
                break
            record = parent
        return record

    def _revert_threshold(self, plan_input: PlanInput, record: Record) -> float | None:
        """Return the share of M below which the prompt before a record is sent instead; None if it never is.

        The share is well below the threshold, since a learned reserve must not make a session alternate. A forced
        record stays, as does one made for economy or in a session with bound thinking. A record after a refusal stays
        until a prompt as large may be tried again.
        """
        policy = plan_input.caller.policy
        if record.making.trigger == "economy":
            return None
        if record.making.trigger == "background":
            return policy.compaction_threshold
        share = (min(policy.soft_threshold, policy.compaction_threshold) + policy.compaction_threshold) / 2
        if record.making.trigger == "manual" or plan_input.mode == "force" or plan_input.binds_thinking:
            return None
        if record.making.trigger == "overflow_retry" and not plan_input.may_try_larger:
            return None
        if record.making.tokens.before >= plan_input.limits.budget.at(share):
            return None
        return share

    async def _is_used_early(self, plan_input: PlanInput, record: Record) -> bool:
        """Return True if a record made ahead is used before it is needed.

        It is used from the first request that finds the provider's cache cold. That request pays for its whole prompt,
        so the smaller one is cheaper. The record then stays in use, since the cache holds it.
        """
        if record.making.trigger != "background" or record.making.tokens.before < plan_input.limits.budget.at(
            _SAME_WINDOW
        ):
            return False
        if plan_input.is_cold and is_gone(self._lineages.now() - record.compacted):
            return True
        lineage = await self._lineages.look_up(plan_input.chain.tag, record)
        return lineage is not None and lineage.judged == record.digest

    async def newest(self, plan_input: PlanInput) -> Record | None:
        """Return the longest checkpoint of this prefix, from memory if it fits, else from the store."""
        record = await self._newest(plan_input)
        return None if record is None else plan_input.allowed_record(record)

    async def _newest(self, plan_input: PlanInput) -> Record | None:
        remembered = self._records.recall(plan_input.chain, plan_input.cuts)
        if remembered is not None and self._serves(plan_input, remembered):
            self.lookups["memory"] += 1
            return remembered
        newer = [cut for cut in plan_input.cuts if remembered is None or cut > remembered.covered]
        stored = await self._records.find(plan_input.chain, newer)
        self.lookups["store" if stored else "memory" if remembered else "miss"] += 1
        return stored or remembered

    async def newer(self, plan_input: PlanInput, covered: int) -> Record | None:
        """Return a checkpoint that covers more than `covered` messages, made by any replica."""
        return await self._known_record(plan_input, [cut for cut in plan_input.cuts if cut > covered])

    async def _parent(self, plan_input: PlanInput, record: Record) -> Record | None:
        if record.parent is None:
            return None
        digest = bytes.fromhex(record.parent)
        cuts = [cut for cut in plan_input.cuts if cut < record.covered and plan_input.chain.digests[cut] == digest]
        return await self._known_record(plan_input, cuts)

    async def _known_record(self, plan_input: PlanInput, cuts: Collection[int]) -> Record | None:
        record = await self._records.find_newest(plan_input.chain, cuts)
        return None if record is None else plan_input.allowed_record(record)

    def _serves(self, plan_input: PlanInput, known: Record) -> bool:
        """Return True if no record newer than a known one can be due, so the store need not be read.

        Another replica may already have made a compaction that pays off by now.
        """
        if not self._fits(plan_input, known, plan_input.caller.policy.compaction_threshold):
            return False
        due = decide_economy(
            plan_input.conversation,
            plan_input.limits,
            plan_input.caller.policy,
            active_checkpoint(known),
            plan_input.route.price,
        )
        return due is None

    def _fits(self, plan_input: PlanInput, record: Record | None, share: float) -> bool:
        return tokens_with(plan_input.conversation, active_checkpoint(record)) < plan_input.limits.budget.at(share)

    def _is_stable(self, plan_input: PlanInput, record: Record | None, share: float) -> bool:
        """Return True if no newer record is due for tokens or messages.

        Otherwise one would be made again immediately.
        """
        standing = active_checkpoint(record)
        covered, tokens = standing.covered if standing else 0, tokens_with(plan_input.conversation, standing)
        is_too_long = is_crowded(plan_input.conversation, covered, tokens, plan_input.limits, plan_input.caller.policy)
        return self._fits(plan_input, record, share) and not is_too_long
