"""Short forms of large messages in the cool zone, frozen by batch so that their bytes never change again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from policies.conversation.conversation import MessageIndex
from policies.conversation.prefix_digests import Chain
from policies.conversation.transcript import CountTokens
from policies.decision.large_results import Batch, is_short_enough, short_form, zone_of
from policies.price import Payoff, payoff_of
from policies.settings import Secrets
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.prompt_view import PromptView, Step
from proxy.dialects import json_array
from proxy.dialects.surrogates import readable
from proxy.dialects.texts import cut, shorten_harness_texts
from proxy.memory import Cache, Memory
from proxy.models.tokenizer import Tokenizer
from proxy.runtime.workers import Workers
from proxy.sessions.shelf import Shelf
from proxy.sessions.stores.sealing import SealedStore

# What is cut off beyond what must be, as a share of it: characters are cut where tokens are counted.
_CUT_MARGIN = 0.05
# Cuts of one message until it is as short as it must be: what is left out may weigh less than what stays.
_MOST_CUTS = 4

_Texts = tuple[str | None, ...]
# All that the short forms of a batch are made from: its key, summaries, encoding and secrets.
_MadeKey = tuple[str, _Texts, str, Secrets]


class ShortForms:
    """Replaces large messages by short forms; one per engine."""

    def __init__(
        self, sealed: SealedStore, tokenizer: Tokenizer, workers: Workers, stored: Memory, memory: Memory
    ) -> None:
        """stored: remembers the short forms that the store has. memory: remembers those that were made."""
        self._frozen = Shelf(sealed, _Texts, Cache(stored, "short_forms"))
        # An engine that stores what it makes remembers it as stored, and needs it once.
        self._made: Cache[_MadeKey, _Texts] = Cache(Memory(0) if stored is memory else memory, "made_short_forms")
        self._sealed = sealed
        self._tokenizer = tokenizer
        self._workers = workers

    async def use(self, case: PlanInput, covered: int, until: int | None = None) -> PromptView:
        """Return the conversation with short forms, after a record of its first `covered` messages.

        The window must be known. until: the position in the body from which on no batch is made, None for no such
        position.
        """
        conversation, window = case.conversation, case.route.window
        assert window is not None  # noqa: S101 - the caller's condition
        zone = zone_of(conversation, window.tokens, case.caller.policy, case.pinned_positions)
        following = tuple(coming for coming in zone.next if coming.position >= covered)
        batches = [batch for batch in zone.batches if batch.last >= covered and (until is None or batch.seen < until)]
        media = {position: batch.seen for batch in batches for position in batch.media}
        batches = [batch for batch in batches if batch.members]
        if not batches:
            return PromptView(conversation, next=following, cooled_media=media)
        forms, fresh = await self._forms(case, batches)
        view = PromptView(conversation, next=following, payoff=_together(fresh), cooled_media=media)
        return await self._workers.run(self._replace_with_forms, case, view, forms)

    def counter(self, case: PlanInput) -> CountTokens:
        return partial(self._tokenizer.count, encoding=case.request.encoding)

    async def cut(self, case: PlanInput, view: PromptView, limits: Mapping[MessageIndex, int]) -> PromptView:
        """Return the conversation with contents cut to head and tail. `limits` are tokens by index of a message."""
        return await self._workers.run(self._cut, case, view, limits)

    async def rewritten(
        self, case: PlanInput, view: PromptView, step: Step, change: Callable[[], Mapping[MessageIndex, bytes]]
    ) -> PromptView:
        """Return the conversation with other bytes for some messages. A worker makes them."""

        def work() -> PromptView:
            return view.rewritten(step, self._weigh_messages(case, change()))

        return await self._workers.run(work)

    async def keep_summary(self, key: str, summary: str) -> None:
        """Store a summary of one message for the next batches (R4's summary_cache)."""
        await self._sealed.put(key, summary.encode(), only_new=True)

    async def summaries(self, keys: Sequence[str]) -> list[str | None]:
        """Return the stored summaries of these keys (`content_key`)."""
        opened = await self._sealed.open_many(keys)
        return [None if plain is None else plain.decode("utf-8", "replace") for plain in opened]

    async def _forms(self, case: PlanInput, batches: Sequence[Batch]) -> tuple[dict[int, _Texts], list[Batch]]:
        """The short forms of every replaced message, by its position: frozen once, then the same for everybody; and the
        batches that were frozen now."""
        keys = [_batch_key(case.chain, batch) for batch in batches]
        known = {key: self._frozen.recall(key) for key in keys}
        unknown = [key for key, texts in known.items() if texts is None]
        known |= zip(unknown, await self._frozen.look_up(unknown), strict=True)
        forms: dict[int, _Texts] = {}
        fresh: list[Batch] = []
        for key, batch in zip(keys, batches, strict=True):
            texts = known[key]
            if texts is None:
                fresh.append(batch)
                texts = self._frozen.recall(key) or await self._freeze(key, case, batch)
            left = iter(self._frozen.keep(key, texts))
            for member in batch.members:
                of_one = tuple(
                    None if text is None else case.allowed_text(text)
                    for text in islice(left, len(contents_of(case, member)))
                )
                if any(text is not None for text in of_one):
                    forms[member] = of_one
        return forms, fresh

    async def _freeze(self, key: str, case: PlanInput, batch: Batch) -> _Texts:
        """Return the texts of a batch, and store them unless another replica was first."""
        contents = [content for i in batch.members for content in contents_of(case, i)]
        summaries = await self.summaries([content_key(case, content) for content in contents])
        name = key, tuple(summaries), case.request.encoding, case.caller.policy.secrets
        texts = self._made.get(name)
        if texts is None:
            texts = await self._workers.run(self._shorten, case, batch, summaries)
            size = sum(len(text) for text in (key, *summaries, *texts) if text)
            self._made.keep(name, texts, size)
        return await self._frozen.put_new(key, texts)

    def _shorten(self, case: PlanInput, batch: Batch, summaries: Sequence[str | None]) -> _Texts:
        count, known = self.counter(case), iter(summaries)
        texts: list[str | None] = []
        for position in batch.members:
            said = case.contents_at(position)
            is_brought = position in case.conversation.outline.foreign
            for one in said:
                tokens = case.request.conversation.body[position].tokens if len(said) == 1 else count(one.text)
                summary = next(known)
                allowed = None if summary is None else case.allowed_text(summary)
                form = short_form(one.text, one.tool, allowed, tokens, is_brought=is_brought)
                texts.append(form if is_short_enough(form, tokens, count) else None)
        return tuple(texts)

    def _replace_with_forms(self, case: PlanInput, view: PromptView, forms: Mapping[int, _Texts]) -> PromptView:
        with_texts = case.request.dialect.items.with_texts
        at = {case.conversation.index(position): texts for position, texts in forms.items()}
        raws = {index: with_texts(case.request.message_bytes(index), texts) for index, texts in at.items()}
        return view.rewritten(Step.SHORT_FORM, self._weigh_messages(case, raws))

    def _cut(self, case: PlanInput, view: PromptView, limits: Mapping[MessageIndex, int]) -> PromptView:
        messages = view.conversation.messages
        cut = {i: self._cut_one(case, view, i, limit) for i, limit in limits.items()}
        smaller = {i: (raw, tokens) for i, (raw, tokens) in cut.items() if tokens < messages[i].tokens}
        return view.rewritten(Step.CUT, smaller)

    def _cut_one(self, case: PlanInput, view: PromptView, index: MessageIndex, limit: int) -> tuple[bytes, int]:
        """A message with its tokens: what is no user's word is cut first, and words only where that is not enough."""
        message, dialect = view.conversation.messages[index], case.request.dialect
        raw, tokens = bytes(view.replaced.get(index) or case.request.message_bytes(index)), message.tokens
        if message.words:
            raw, tokens = self._cut_results(case, raw, index, limit)
        elif message.role == "user":
            position = index - case.conversation.index(0)
            harness = case.request.harness_shares([position]).get(index, 0.0)
            raw, tokens = self._cut_to(case, raw, tokens, limit, harness, partial(shorten_harness_texts, raw))
        if tokens <= limit:
            return raw, tokens
        before = raw

        def shorter(share: float) -> bytes:
            return dialect.rewritten(before, partial(dialect.items.shorten, share=share))

        return self._cut_to(case, raw, tokens, limit, 1.0, shorter)

    def _cut_results(self, case: PlanInput, raw: bytes, index: MessageIndex, limit: int) -> tuple[bytes, int]:
        """A message with shorter results; what the user says beside them is whole."""
        message = case.conversation.messages[index]
        texts = [one.text for one in case.contents_at(index - case.conversation.index(0))]

        def shorter(share: float) -> bytes:
            return case.request.dialect.items.with_texts(raw, [cut(text, share) for text in texts])

        part = 1 - message.words / message.tokens
        return self._cut_to(case, raw, message.tokens, limit, part, shorter)

    def _cut_to(
        self,
        case: PlanInput,
        raw: bytes,
        tokens: int,
        limit: int,
        part: float,
        shorter: Callable[[float], bytes],
    ) -> tuple[bytes, int]:
        """A message of so many tokens, of which this part can be cut, with the share of it that makes it fit."""
        made, weight = raw, tokens
        able = tokens * part
        aim = limit - _CUT_MARGIN * min(limit, tokens - limit)
        for _ in range(_MOST_CUTS):
            if weight <= limit or able <= 0:
                break
            made = shorter(max(0.0, 1 - (tokens - aim) / able))
            weight = self.tokens(case, made)
            aim -= 1.1 * (weight - limit)
        return made, weight

    def _weigh_messages(
        self, case: PlanInput, raws: Mapping[MessageIndex, bytes]
    ) -> dict[MessageIndex, tuple[bytes, int]]:
        """Messages with their tokens, by index."""
        return {index: (raw, self.tokens(case, raw)) for index, raw in raws.items()}

    def tokens(self, case: PlanInput, raw: bytes) -> int:
        """Return the tokens of a message, which may be more than one item."""
        count, describe = self.counter(case), case.request.dialect.items.describe
        described = (describe(json_array.decode(item), count) for item in json_array.split_items(readable(raw)))
        return sum(message.tokens for message in described if message is not None)


def _together(batches: Sequence[Batch]) -> Payoff | None:
    """Of several at once the cache is broken once, before the first."""
    if not batches:
        return None
    payoffs = [batch.payoff for batch in batches]
    return payoff_of(sum(each.removed for each in payoffs), max(each.rewritten for each in payoffs))


class Content(NamedTuple):
    """One content of a message: the result of so many before it in the same, or all that it says."""

    position: int
    number: int


def contents_of(case: PlanInput, position: int) -> list[Content]:
    """Those of the message at this position of the body."""
    return [Content(position, number) for number in range(len(case.conversation.body[position].results) or 1)]


def content_key(case: PlanInput, content: Content) -> str:
    """Where the summary of one content lies, wherever in its conversation its message stands."""
    first, message = case.chain.digests[1], case.conversation.body[content.position]
    name = first + message.digest + (b"%d" % content.number if content.number else b"")
    return f"summary:{{{case.chain.tag}}}:{hashlib.sha256(name).hexdigest()}"


def _batch_key(chain: Chain, batch: Batch) -> str:
    members = hashlib.sha256(repr(batch.members).encode()).hexdigest()[:16]
    return f"cool:{{{chain.tag}}}:{chain.digests[batch.seen].hex()}:{members}"
