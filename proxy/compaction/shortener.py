"""The conversation as it is sent after a record: all changes to messages, in the order of `Step`."""

from collections.abc import Mapping
from dataclasses import replace

from policies.conversation.conversation import MessageIndex
from policies.decision.oversize import kept_positions, least_tokens, oversized_messages
from policies.record.record import Record
from proxy.compaction.lossless import LosslessShortener
from proxy.compaction.media import MediaRemover
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.pointers import PointerResolver
from proxy.compaction.prompt_view import PromptView
from proxy.compaction.recall import Recall
from proxy.compaction.short_forms import ShortForms
from proxy.compaction.thinking import ThinkingRemover, Use
from proxy.memory import Memory
from proxy.models.tokenizer import Tokenizer
from proxy.runtime.workers import Workers
from proxy.sessions.stores.sealing import SealedStore


class Shortener:
    """Shortens conversations for sending. One per engine."""

    def __init__(
        self,
        sealed: SealedStore,
        tokenizer: Tokenizer,
        workers: Workers,
        recall: Recall,
        lossless: LosslessShortener,
        pointers: PointerResolver,
        stored: Memory,
        memory: Memory,
    ) -> None:
        """Create a shortener. stored: caches values of the store. memory: caches computed values."""
        self.short_forms = ShortForms(sealed, tokenizer, workers, stored, memory)
        self._media = MediaRemover(self.short_forms, workers, memory)
        self._thinking = ThinkingRemover(sealed, self.short_forms, memory)
        self._recall = recall
        self._lossless = lossless
        self._pointers = pointers

    async def shorten(self, case: PlanInput, record: Record | None) -> PromptView:
        """Return the conversation as it is sent after this record."""
        use = await self._thinking.use(case, record)
        view = await self._thinking.remove(case, record, await self._fit(case, record, use), use)
        # Last, since quotations must not change the name of the front that thinking is bound to.
        return await self.resolve(case, record, await self._recall.quote(case, record, view))

    async def resolve(self, case: PlanInput, record: Record | None, view: PromptView) -> PromptView:
        """Return the view after this record: with lines for results that repeat, and the texts of pointers."""
        full = view.without_references
        unchanged = replace(full, full=full)
        short = await self._lossless.shorten(case, record, unchanged)
        resolved = await self._pointers.restore(case, record, short)
        return full if resolved is unchanged else resolved

    async def shorten_small(self, case: PlanInput) -> PromptView | None:
        """Return a small conversation without media that are left out, and without thinking that it has lost.

        None if it is sent unchanged.
        """
        view = await self._media.remove(case, PromptView(case.conversation), 0)
        if case.binds_thinking and await self._thinking.is_removed(case):
            view = await self._thinking.remove(case, None, view, await self._thinking.use(case, None))
        if case.caller.policy.shorten.from_start:
            view = await self._lossless.shorten(case, None, replace(view, full=view))
        return view if view.media or view.replaced else None

    async def cut(
        self, case: PlanInput, record: Record | None, view: PromptView, limits: Mapping[MessageIndex, int]
    ) -> PromptView:
        """Return the conversation with contents cut to these tokens, by message index."""
        use = await self._thinking.use(case, record)
        # The name of the cuts must not depend on removed thinking. A prompt that hardly fits gets no quotations.
        if use is not None or view.quotations:
            view = await self._fit(case, record, use)
        return await self._thinking.remove(case, record, await self.short_forms.cut(case, view, limits), use)

    async def remove_thinking(self, case: PlanInput, record: Record | None) -> PromptView:
        """Return the conversation after this record without any thinking, permanently."""
        length = len(case.conversation.body)
        view = await self._fit(case, record, Use(length, length))
        view = await self._recall.quote(case, record, await self._thinking.remove_all(case, record, view))
        return await self.resolve(case, record, view)

    async def _fit(self, case: PlanInput, record: Record | None, use: Use | None) -> PromptView:
        """Return the conversation with its thinking, in short forms, and cut if no window can hold it."""
        covered = record.covered if record else 0
        if case.route.window is None:
            return await self._media.remove(case, PromptView(case.conversation), covered)
        window = case.route.window.tokens
        view = await self.short_forms.use(case, covered, use.first if use else None)
        view = await self._media.remove(case, view, covered)
        # A turn without a legal cut must be sent completely. Only the provider knows the size of stored items.
        newest = max(case.cuts, default=0)
        if newest == 0 and case.has_stored_items:
            return view
        if not case.cannot_take(least_tokens(view.conversation, newest)):
            return view
        harness = case.request.harness_shares(kept_positions(view.conversation, newest))
        limits = oversized_messages(view.conversation, case.steady_budget(window), newest, harness)
        return await self.short_forms.cut(case, view, limits)
