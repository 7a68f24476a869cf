"""Thinking that is bound to the prompt it was made for, left out where that prompt is another now.

Newest Claude models refuse a block behind anything else than what stood before it (docs/dialects.md, "Bound thinking").
So everything before the last change of a prompt loses its thinking, for good, and what came later keeps it. Since when
a prompt is as it is lies in the store: every replica leaves out the same.
"""

import hashlib
from functools import partial

import msgspec

from policies.conversation.conversation import MessageIndex
from policies.record.record import Record
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.prompt_view import PromptView, Step
from proxy.compaction.short_forms import ShortForms
from proxy.memory import Cache, Memory
from proxy.sessions.shelf import Shelf
from proxy.sessions.stores.sealing import SealedStore


class Use(msgspec.Struct, frozen=True):
    """Since when a prompt stands as it does, in messages of the body.

    first: those there were when its record was first sent. since: when anything before them changed for the last time.
    front: names the contents that were cut then.
    """

    first: int = 0
    since: int = 0
    front: str = ""


class ThinkingRemover:
    """Removes bound thinking; one per store."""

    def __init__(self, sealed: SealedStore, short_forms: ShortForms, memory: Memory) -> None:
        self._uses = Shelf(sealed, Use, Cache(memory, "thinking"))
        self._forms = short_forms

    async def use(self, case: PlanInput, record: Record | None) -> Use | None:
        """Return the use of the prompt after this record, None if its thinking is not bound.

        It is stored before the prompt is sent for the first time.
        """
        if not case.binds_thinking:
            return None
        key = _key(case, record)
        known = await self._known_use(key)
        if known is not None or record is None:
            return known or Use()
        now = len(case.conversation.body)
        return self._uses.keep(key, await self._uses.put_new(key, Use(now, now)))

    async def remove(self, case: PlanInput, record: Record | None, view: PromptView, use: Use | None) -> PromptView:
        """Return the conversation without the thinking that was made after another prompt."""
        if use is None:
            return view
        front = _front(view)
        if front != use.front:
            # Short forms that were not sent before must not come with it: only what is cut tells of a change.
            use = Use(use.first, len(case.conversation.body), front)
            await self._uses.put(_key(case, record), use)
        return await self._without(case, record, view, use.since)

    async def remove_all(self, case: PlanInput, record: Record | None, view: PromptView) -> PromptView:
        """Return the conversation without any thinking, from now on: after a refusal."""
        now = len(case.conversation.body)
        await self._uses.put(_key(case, record), Use(now, now, _front(view)))
        return await self._without(case, record, view, now)

    async def is_removed(self, case: PlanInput) -> bool:
        """Return True if requests without a record have lost their thinking already."""
        return await self._known_use(_key(case, None)) is not None

    async def _known_use(self, key: str) -> Use | None:
        """What the store says, which another replica may have raised; what is remembered where it says nothing."""
        (found,) = await self._uses.look_up([key])
        return self._uses.recall(key) if found is None else self._uses.keep(key, found)

    async def _without(self, case: PlanInput, record: Record | None, view: PromptView, since: int) -> PromptView:
        covered = record.covered if record else 0
        conversation = view.conversation
        before = (*conversation.loading(covered), *conversation.repeated_messages(covered))
        sent = (*before, *range(covered, min(since, len(conversation.body))))
        bound = [conversation.index(i) for i in sent if conversation.body[i].signed == "bound"]
        if not bound:
            return view
        return await self._forms.rewritten(case, view, Step.THINKING, partial(_without_thinking, case, view, bound))


def _without_thinking(case: PlanInput, view: PromptView, bound: list[MessageIndex]) -> dict[MessageIndex, bytes]:
    dialect = case.request.dialect
    return {
        i: dialect.rewritten(view.replaced.get(i) or case.request.message_bytes(i), dialect.items.without_thinking)
        for i in bound
    }


def _front(view: PromptView) -> str:
    """Names the contents that were cut; empty without any. Short forms are frozen, and need no name."""
    if not view.is_cut:
        return ""
    content = b"".join(b"%d %d " % (index, len(raw)) + raw for index, raw in sorted(view.replaced.items()))
    return hashlib.sha256(content).hexdigest()[:32]


def _key(case: PlanInput, record: Record | None) -> str:
    return f"lineage:{{{case.chain.tag}}}:use:{record.digest if record else 'none'}"
