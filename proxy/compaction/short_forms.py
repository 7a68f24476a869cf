"""Short forms of large messages in the cool zone. A batch is frozen, so its bytes never change again."""

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

# Share to cut beyond the required amount, since characters are cut and tokens are counted.
_CUT_MARGIN = 0.05
# The most cuts of one message: the omitted text may have fewer tokens than the kept one.
_MOST_CUTS = 4

_Texts = tuple[str | None, ...]
# The inputs of a batch's short forms: its key, summaries, encoding and secrets.
_MadeKey = tuple[str, _Texts, str, Secrets]


class ShortForms:
    """Replaces large messages by short forms; one per engine."""

    def __init__(
        self, sealed: SealedStore, tokenizer: Tokenizer, workers: Workers, stored: Memory, memory: Memory
    ) -> None:
        """Create a replacer. stored: caches the short forms in the store. memory: caches those made here."""
        self._frozen = Shelf(sealed, _Texts, Cache(stored, "short_forms"))
        # An engine that stores its short forms caches them as stored, and needs no second cache.
        self._made: Cache[_MadeKey, _Texts] = Cache(Memory(0) if stored is memory else memory, "made_short_forms")
        self._sealed = sealed
        self._tokenizer = tokenizer
        self._workers = workers

    async def use(self, plan_input: PlanInput, covered: int, until: int | None = None) -> PromptView:
        """Return the conversation with short forms, after a record of its first `covered` messages.

        The window must be known. until: the position in the body from which no batch is made; None for no such
            position.
        """
        conversation, window = plan_input.conversation, plan_input.route.window
        assert window is not None  # noqa: S101 - the caller's condition
        zone = zone_of(conversation, window.tokens, plan_input.caller.policy, plan_input.pinned_positions)
        following = tuple(coming for coming in zone.next if coming.position >= covered)
        batches = [batch for batch in zone.batches if batch.last >= covered and (until is None or batch.seen < until)]
        media = {position: batch.seen for batch in batches for position in batch.media}
        batches = [batch for batch in batches if batch.members]
        if not batches:
            return PromptView(conversation, next=following, cooled_media=media)
        forms, new_batches = await self._forms(plan_input, batches)
        view = PromptView(conversation, next=following, payoff=_total_payoff(new_batches), cooled_media=media)
        return await self._workers.run(self._replace_with_forms, plan_input, view, forms)

    def counter(self, plan_input: PlanInput) -> CountTokens:
        """Return a function that counts the tokens of a text in the request's encoding."""
        return partial(self._tokenizer.count, encoding=plan_input.request.encoding)

    async def cut(self, plan_input: PlanInput, view: PromptView, limits: Mapping[MessageIndex, int]) -> PromptView:
        """Return the conversation with contents cut to head and tail. limits: tokens by message index."""
        return await self._workers.run(self._cut, plan_input, view, limits)

    async def with_rewrites(
        self, plan_input: PlanInput, view: PromptView, step: Step, change: Callable[[], Mapping[MessageIndex, bytes]]
    ) -> PromptView:
        """Return the conversation with other bytes for some messages. A worker computes them."""

        def work() -> PromptView:
            return view.with_rewrites(step, self._weigh_messages(plan_input, change()))

        return await self._workers.run(work)

    async def keep_summary(self, key: str, summary: str) -> None:
        """Store a summary of one message for the next batches (R4's summary_cache)."""
        await self._sealed.put(key, summary.encode(), only_new=True)

    async def summaries(self, keys: Sequence[str]) -> list[str | None]:
        """Return the stored summaries of these keys (`content_key`)."""
        opened = await self._sealed.open_many(keys)
        return [None if plain is None else plain.decode("utf-8", "replace") for plain in opened]

    async def _forms(self, plan_input: PlanInput, batches: Sequence[Batch]) -> tuple[dict[int, _Texts], list[Batch]]:
        """Return the short forms of every replaced message by position, and the batches frozen now.

        A batch is frozen once and is then the same for every request.
        """
        keys = [_batch_key(plan_input.chain, batch) for batch in batches]
        texts_by_key = {key: self._frozen.recall(key) for key in keys}
        unknown = [key for key, texts in texts_by_key.items() if texts is None]
        texts_by_key |= zip(unknown, await self._frozen.look_up(unknown), strict=True)
        forms: dict[int, _Texts] = {}
        new_batches: list[Batch] = []
        for key, batch in zip(keys, batches, strict=True):
            texts = texts_by_key[key]
            if texts is None:
                new_batches.append(batch)
                texts = self._frozen.recall(key) or await self._freeze(key, plan_input, batch)
            remaining = iter(self._frozen.keep(key, texts))
            for member in batch.members:
                member_texts = tuple(
                    None if text is None else plan_input.allowed_text(text)
                    for text in islice(remaining, len(contents_of(plan_input, member)))
                )
                if any(text is not None for text in member_texts):
                    forms[member] = member_texts
        return forms, new_batches

    async def _freeze(self, key: str, plan_input: PlanInput, batch: Batch) -> _Texts:
        """Return the texts of a batch, and store them unless another replica was first."""
        contents = [content for i in batch.members for content in contents_of(plan_input, i)]
        summaries = await self.summaries([content_key(plan_input, content) for content in contents])
        name = key, tuple(summaries), plan_input.request.encoding, plan_input.caller.policy.secrets
        texts = self._made.get(name)
        if texts is None:
            texts = await self._workers.run(self._shorten, plan_input, batch, summaries)
            size = sum(len(text) for text in (key, *summaries, *texts) if text)
            self._made.keep(name, texts, size)
        return await self._frozen.put_new(key, texts)

    def _shorten(self, plan_input: PlanInput, batch: Batch, summaries: Sequence[str | None]) -> _Texts:
        count, summaries_left = self.counter(plan_input), iter(summaries)
        texts: list[str | None] = []
        for position in batch.members:
            utterances = plan_input.contents_at(position)
            is_brought = position in plan_input.conversation.outline.foreign
            for utterance in utterances:
                tokens = (
                    plan_input.request.conversation.body[position].tokens
                    if len(utterances) == 1
                    else count(utterance.text)
                )
                summary = next(summaries_left)
                allowed = None if summary is None else plan_input.allowed_text(summary)
                form = short_form(utterance.text, utterance.tool, allowed, tokens, is_brought=is_brought)
                texts.append(form if is_short_enough(form, tokens, count) else None)
        return tuple(texts)

    def _replace_with_forms(self, plan_input: PlanInput, view: PromptView, forms: Mapping[int, _Texts]) -> PromptView:
        with_texts = plan_input.request.dialect.items.with_texts
        texts_by_index = {plan_input.conversation.index(position): texts for position, texts in forms.items()}
        raws = {
            index: with_texts(plan_input.request.message_bytes(index), texts) for index, texts in texts_by_index.items()
        }
        return view.with_rewrites(Step.SHORT_FORM, self._weigh_messages(plan_input, raws))

    def _cut(self, plan_input: PlanInput, view: PromptView, limits: Mapping[MessageIndex, int]) -> PromptView:
        messages = view.conversation.messages
        cut = {i: self._cut_one(plan_input, view, i, limit) for i, limit in limits.items()}
        smaller = {i: (raw, tokens) for i, (raw, tokens) in cut.items() if tokens < messages[i].tokens}
        return view.with_rewrites(Step.CUT, smaller)

    def _cut_one(self, plan_input: PlanInput, view: PromptView, index: MessageIndex, limit: int) -> tuple[bytes, int]:
        """Return a message cut to its limit, and its tokens. A user's words are cut only if nothing else is enough."""
        message, dialect = view.conversation.messages[index], plan_input.request.dialect
        raw, tokens = bytes(view.replaced.get(index) or plan_input.request.message_bytes(index)), message.tokens
        if message.words:
            raw, tokens = self._cut_results(plan_input, raw, index, limit)
        elif message.role == "user":
            position = index - plan_input.conversation.index(0)
            harness = plan_input.request.harness_shares([position]).get(index, 0.0)
            raw, tokens = self._cut_to(plan_input, raw, tokens, limit, harness, partial(shorten_harness_texts, raw))
        if tokens <= limit:
            return raw, tokens
        uncut = raw

        def shorter(share: float) -> bytes:
            return dialect.rewrite_items(uncut, partial(dialect.items.shorten, share=share))

        return self._cut_to(plan_input, raw, tokens, limit, 1.0, shorter)

    def _cut_results(self, plan_input: PlanInput, raw: bytes, index: MessageIndex, limit: int) -> tuple[bytes, int]:
        """Return a message with shorter results. A user's words next to them stay."""
        message = plan_input.conversation.messages[index]
        texts = [utterance.text for utterance in plan_input.contents_at(index - plan_input.conversation.index(0))]

        def shorter(share: float) -> bytes:
            return plan_input.request.dialect.items.with_texts(raw, [cut(text, share) for text in texts])

        part = 1 - message.words / message.tokens
        return self._cut_to(plan_input, raw, message.tokens, limit, part, shorter)

    def _cut_to(
        self,
        plan_input: PlanInput,
        raw: bytes,
        tokens: int,
        limit: int,
        part: float,
        shorter: Callable[[float], bytes],
    ) -> tuple[bytes, int]:
        """Return a message cut to `limit` tokens, and its tokens. part: the share of it that may be cut."""
        cut_bytes, weight = raw, tokens
        cuttable = tokens * part
        aim = limit - _CUT_MARGIN * min(limit, tokens - limit)
        for _ in range(_MOST_CUTS):
            if weight <= limit or cuttable <= 0:
                break
            cut_bytes = shorter(max(0.0, 1 - (tokens - aim) / cuttable))
            weight = self.tokens(plan_input, cut_bytes)
            aim -= 1.1 * (weight - limit)
        return cut_bytes, weight

    def _weigh_messages(
        self, plan_input: PlanInput, raws: Mapping[MessageIndex, bytes]
    ) -> dict[MessageIndex, tuple[bytes, int]]:
        """Return messages with their tokens, by index."""
        return {index: (raw, self.tokens(plan_input, raw)) for index, raw in raws.items()}

    def tokens(self, plan_input: PlanInput, raw: bytes) -> int:
        """Return the tokens of a message, which may have several items."""
        count, describe = self.counter(plan_input), plan_input.request.dialect.items.describe
        described = (describe(json_array.decode(item), count) for item in json_array.split_items(readable(raw)))
        return sum(message.tokens for message in described if message is not None)


def _total_payoff(batches: Sequence[Batch]) -> Payoff | None:
    """Return the payoff of several batches together. The cache is broken only once, before the first."""
    if not batches:
        return None
    payoffs = [batch.payoff for batch in batches]
    return payoff_of(sum(payoff.removed for payoff in payoffs), max(payoff.rewritten for payoff in payoffs))


class Content(NamedTuple):
    """One content of a message: the result with this number, or all its text."""

    position: int
    number: int


def contents_of(plan_input: PlanInput, position: int) -> list[Content]:
    """Return the contents of the message at this position of the body."""
    return [Content(position, number) for number in range(len(plan_input.conversation.body[position].results) or 1)]


def content_key(plan_input: PlanInput, content: Content) -> str:
    """Return the store key of a content's summary. It does not depend on the message's position."""
    first, message = plan_input.chain.digests[1], plan_input.conversation.body[content.position]
    name = first + message.digest + (b"%d" % content.number if content.number else b"")
    return f"summary:{{{plan_input.chain.tag}}}:{hashlib.sha256(name).hexdigest()}"


def _batch_key(chain: Chain, batch: Batch) -> str:
    members = hashlib.sha256(repr(batch.members).encode()).hexdigest()[:16]
    return f"cool:{{{chain.tag}}}:{chain.digests[batch.seen].hex()}:{members}"
