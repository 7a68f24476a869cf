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

    async def shorten(self, plan_input: PlanInput, record: Record | None) -> PromptView:
        """Return the conversation as it is sent after this record."""
        use = await self._thinking.use(plan_input, record)
        view = await self._thinking.remove(plan_input, record, await self._fit(plan_input, record, use), use)
        # Last, since quotations must not change the name of the front that thinking is bound to.
        return await self.resolve(plan_input, record, await self._recall.quote(plan_input, record, view))

    async def resolve(self, plan_input: PlanInput, record: Record | None, view: PromptView) -> PromptView:
        """Return the view after this record: with lines for results that repeat, and the texts of pointers."""
        full = view.without_references
        unchanged = replace(full, full=full)
        short = await self._lossless.shorten(plan_input, record, unchanged)
        resolved = await self._pointers.restore(plan_input, record, short)
        return full if resolved is unchanged else resolved

    async def shorten_small(self, plan_input: PlanInput) -> PromptView | None:
        """Return a small conversation without media that are left out, and without thinking that it has lost.

        None if it is sent unchanged.
        """
        view = await self._media.remove(plan_input, PromptView(plan_input.conversation), 0)
        if plan_input.binds_thinking and await self._thinking.is_removed(plan_input):
            view = await self._thinking.remove(plan_input, None, view, await self._thinking.use(plan_input, None))
        if plan_input.caller.policy.shorten.from_start:
            view = await self._lossless.shorten(plan_input, None, replace(view, full=view))
        return view if view.media or view.replaced else None

    async def cut(
        self, plan_input: PlanInput, record: Record | None, view: PromptView, limits: Mapping[MessageIndex, int]
    ) -> PromptView:
        """Return the conversation with contents cut to these tokens, by message index."""
        use = await self._thinking.use(plan_input, record)
        # The name of the cuts must not depend on removed thinking. A prompt that hardly fits gets no quotations.
        if use is not None or view.quotations:
            view = await self._fit(plan_input, record, use)
        return await self._thinking.remove(
            plan_input, record, await self.short_forms.cut(plan_input, view, limits), use
        )

    async def remove_thinking(self, plan_input: PlanInput, record: Record | None) -> PromptView:
        """Return the conversation after this record without any thinking, permanently."""
        length = len(plan_input.conversation.body)
        view = await self._fit(plan_input, record, Use(length, length))
        view = await self._recall.quote(plan_input, record, await self._thinking.remove_all(plan_input, record, view))
        return await self.resolve(plan_input, record, view)

    async def _fit(self, plan_input: PlanInput, record: Record | None, use: Use | None) -> PromptView:
        """Return the conversation with its thinking, in short forms, and cut if no window can hold it."""
        covered = record.covered if record else 0
        if plan_input.route.window is None:
            return await self._media.remove(plan_input, PromptView(plan_input.conversation), covered)
        window = plan_input.route.window.tokens
        view = await self.short_forms.use(plan_input, covered, use.first if use else None)
        view = await self._media.remove(plan_input, view, covered)
        # A turn without a legal cut must be sent completely. Only the provider knows the size of stored items.
        newest = max(plan_input.cuts, default=0)
        if newest == 0 and plan_input.has_stored_items:
            return view
        if not plan_input.cannot_take(least_tokens(view.conversation, newest)):
            return view
        harness = plan_input.request.harness_shares(kept_positions(view.conversation, newest))
        limits = oversized_messages(view.conversation, plan_input.steady_budget(window), newest, harness)
        return await self.short_forms.cut(plan_input, view, limits)
