"""Removal of thinking that is bound to the prompt it was made for, if that prompt has changed.

The newest Claude models reject a thinking block after any other prompt (docs/dialects.md, "Bound thinking"). Everything
before the last change of a prompt therefore loses its thinking permanently, and later messages keep it. The store holds
the time of the change, so every replica removes the same.
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
    """The first use of a prompt, and its last change, in messages of the body.

    first: the number of messages when its record was first sent.
    since: the number of messages when anything before them last changed.
    front: a digest of the contents that were cut then.
    """

    first: int = 0
    since: int = 0
    front: str = ""


class ThinkingRemover:
    """Removes bound thinking. One per store."""

    def __init__(self, sealed: SealedStore, short_forms: ShortForms, memory: Memory) -> None:
        """Create a remover. Its cache counts against `memory`."""
        self._uses = Shelf(sealed, Use, Cache(memory, "thinking"))
        self._forms = short_forms

    async def use(self, plan_input: PlanInput, record: Record | None) -> Use | None:
        """Return the use of the prompt after this record; None if its thinking is not bound.

        It is stored before the prompt is first sent.
        """
        if not plan_input.binds_thinking:
            return None
        key = _key(plan_input, record)
        stored = await self._known_use(key)
        if stored is not None or record is None:
            return stored or Use()
        length = len(plan_input.conversation.body)
        return self._uses.keep(key, await self._uses.put_new(key, Use(length, length)))

    async def remove(
        self, plan_input: PlanInput, record: Record | None, view: PromptView, use: Use | None
    ) -> PromptView:
        """Return the conversation without the thinking that was made after another prompt."""
        if use is None:
            return view
        front = _front(view)
        if front != use.front:
            # Only cuts show a change, so short forms that were not sent before must not be part of it.
            use = Use(use.first, len(plan_input.conversation.body), front)
            await self._uses.put(_key(plan_input, record), use)
        return await self._without(plan_input, record, view, use.since)

    async def remove_all(self, plan_input: PlanInput, record: Record | None, view: PromptView) -> PromptView:
        """Return the conversation without any thinking, permanently, after a rejection."""
        length = len(plan_input.conversation.body)
        await self._uses.put(_key(plan_input, record), Use(length, length, _front(view)))
        return await self._without(plan_input, record, view, length)

    async def is_removed(self, plan_input: PlanInput) -> bool:
        """Return True if requests without a record have already lost their thinking."""
        return await self._known_use(_key(plan_input, None)) is not None

    async def _known_use(self, key: str) -> Use | None:
        """Return the stored use, which another replica may have raised, else the cached one."""
        (stored,) = await self._uses.look_up([key])
        return self._uses.recall(key) if stored is None else self._uses.keep(key, stored)

    async def _without(self, plan_input: PlanInput, record: Record | None, view: PromptView, since: int) -> PromptView:
        covered = record.covered if record else 0
        conversation = view.conversation
        anchors = (*conversation.loading(covered), *conversation.repeated_messages(covered))
        sent = (*anchors, *range(covered, min(since, len(conversation.body))))
        bound = [conversation.index(i) for i in sent if conversation.body[i].signed == "bound"]
        if not bound:
            return view
        return await self._forms.with_rewrites(
            plan_input, view, Step.THINKING, partial(_without_thinking, plan_input, view, bound)
        )


def _without_thinking(plan_input: PlanInput, view: PromptView, bound: list[MessageIndex]) -> dict[MessageIndex, bytes]:
    dialect = plan_input.request.dialect
    return {
        i: dialect.rewrite_items(
            view.replaced.get(i) or plan_input.request.message_bytes(i), dialect.items.without_thinking
        )
        for i in bound
    }


def _front(view: PromptView) -> str:
    """Return a digest of the contents that were cut; empty without any. Short forms are frozen, and need none."""
    if not view.is_cut:
        return ""
    content = b"".join(b"%d %d " % (index, len(raw)) + raw for index, raw in sorted(view.replaced.items()))
    return hashlib.sha256(content).hexdigest()[:32]


def _key(plan_input: PlanInput, record: Record | None) -> str:
    return f"lineage:{{{plan_input.chain.tag}}}:use:{record.digest if record else 'none'}"
