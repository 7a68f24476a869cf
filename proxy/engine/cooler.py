"""Carrying out the cool zone: short forms of large messages, frozen by batch so that the bytes never change again."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from policies.conversation import Conversation
from policies.cool_zone import Batch, Coming, is_short_enough, short_form, zone_of
from policies.settings import PolicySettings
from policies.transcript import CountTokens
from proxy.dialects import json_array
from proxy.dialects.chat.messages import describe, shortened, with_text
from proxy.dialects.reader import ChatRequest
from proxy.lru import remember
from proxy.models.tokenizer import Tokenizer
from proxy.records.checkpoints import hash_tag
from proxy.stores.base import Store
from proxy.stores.sealing import Sealer

_REMEMBERED = 5_000
# Cutting to a share of the characters leaves a little more than that share of the tokens.
_CUT_MARGIN = 0.85

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[str | None, ...]).decode


@dataclass(frozen=True, slots=True)
class Cooled:
    """A conversation in which large messages weigh what their short forms do.

    replaced: index of a message -> its other bytes. next: what the next batch takes.
    is_cut: whether some are contents that would not have fitted, cut to their beginning and end.
    """

    conversation: Conversation
    replaced: dict[int, bytes]
    next: tuple[Coming, ...] = ()
    is_cut: bool = False

    def with_shorter(self, shorter: Mapping[int, tuple[bytes, int]], *, is_cut: bool = False) -> Cooled:
        """The same with other bytes, of so many tokens, for these messages."""
        conversation = self.conversation
        messages = list(conversation.messages)
        for index, (_, tokens) in shorter.items():
            messages[index] = replace(messages[index], tokens=tokens)
        described = Conversation(
            messages,
            conversation.tools_tokens,
            instructions_covered=conversation.instructions_covered,
            pinned=conversation.pinned,
        )
        replaced = self.replaced | {index: raw for index, (raw, _) in shorter.items()}
        return Cooled(described, replaced, self.next, self.is_cut or is_cut)


class Cooler:
    """Replaces what has cooled down; one per process."""

    def __init__(self, store: Store, sealer: Sealer, ttl: float, tokenizer: Tokenizer, workers: Executor) -> None:
        self._store = store
        self._sealer = sealer
        self._ttl = ttl
        self._tokenizer = tokenizer
        self._workers = workers
        self._frozen: OrderedDict[str, tuple[str | None, ...]] = OrderedDict()

    async def cool(
        self,
        request: ChatRequest,
        digests: Sequence[bytes],
        conversation: Conversation,
        window: int,
        policy: PolicySettings,
        covered: int,
    ) -> Cooled:
        """The conversation as it is sent. `digests` are of its prefixes; its first `covered` messages are not sent."""
        zone = zone_of(conversation, window, policy)
        following = tuple(coming for coming in zone.next if coming.position >= covered)
        batches = [batch for batch in zone.batches if batch.members[-1] >= covered]
        if not batches:
            return Cooled(conversation, {}, following)
        forms = await self._forms(request, digests, batches)
        return await asyncio.get_running_loop().run_in_executor(
            self._workers, partial(self._replaced, request, conversation, forms, following)
        )

    def counter(self, request: ChatRequest) -> CountTokens:
        """What counts tokens as this request's are counted."""
        return partial(self._tokenizer.count, encoding=request.encoding)

    async def cut(self, request: ChatRequest, view: Cooled, limits: Mapping[int, int]) -> Cooled:
        """The conversation with contents cut, head and tail; `limits` are tokens by index of a message."""
        work = partial(self._cut, request, view, limits)
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)

    async def keep_summary(self, key: str, summary: str) -> None:
        """Put a summary of one message into the cache that the next batches look into (R4's summary_cache)."""
        await self._store.put_new(key, self._sealer.seal(key, summary.encode()), self._ttl)

    async def summaries(self, keys: Sequence[str]) -> list[str | None]:
        """The cached summaries of these messages, as `content_key` names them."""
        values = await self._store.get_many(keys)
        opened = [self._sealer.open(key, value) for key, value in zip(keys, values, strict=True)]
        return [None if plain is None else plain.decode("utf-8", "replace") for plain in opened]

    async def _forms(self, request: ChatRequest, digests: Sequence[bytes], batches: Sequence[Batch]) -> dict[int, str]:
        """The short form of every replaced message, by its position: frozen once, then the same for everybody."""
        keys = [_batch_key(digests, batch) for batch in batches]
        unknown = [key for key in keys if key not in self._frozen]
        values = await self._store.get_many(unknown)
        for key, value in zip(unknown, values, strict=True):
            if (texts := self._sealer.read(key, value, _decode)) is not None:
                remember(self._frozen, key, texts, _REMEMBERED)
        forms: dict[int, str] = {}
        for key, batch in zip(keys, batches, strict=True):
            texts = self._frozen.get(key) or await self._freeze(key, request, digests, batch)
            remember(self._frozen, key, texts, _REMEMBERED)
            forms |= {member: text for member, text in zip(batch.members, texts, strict=False) if text is not None}
        return forms

    async def _freeze(
        self, key: str, request: ChatRequest, digests: Sequence[bytes], batch: Batch
    ) -> tuple[str | None, ...]:
        """Decide the texts of a batch, unless another replica was first."""
        summaries = await self.summaries([content_key(digests, request, i) for i in batch.members])
        texts = await asyncio.get_running_loop().run_in_executor(
            self._workers, partial(self._shorten, request, batch, summaries)
        )
        taken = await self._store.put_new(key, self._sealer.seal(key, _encode(texts)), self._ttl)
        return self._sealer.read(key, taken, _decode) or texts

    def _shorten(self, request: ChatRequest, batch: Batch, summaries: Sequence[str | None]) -> tuple[str | None, ...]:
        count = self.counter(request)
        head = request.conversation.head_length
        texts: list[str | None] = []
        for position, summary in zip(batch.members, summaries, strict=True):
            tokens = request.messages[head + position].tokens
            (said,) = request.utterances(position, position + 1)
            form = short_form(said.text, said.tool, summary, tokens)
            texts.append(form if is_short_enough(form, tokens, count) else None)
        return tuple(texts)

    def _replaced(
        self, request: ChatRequest, conversation: Conversation, forms: Mapping[int, str], following: tuple[Coming, ...]
    ) -> Cooled:
        head = conversation.head_length
        raws = {head + i: with_text(request.message_bytes(head + i), form) for i, form in forms.items()}
        return Cooled(conversation, {}, following).with_shorter(self._weighed(request, raws))

    def _cut(self, request: ChatRequest, view: Cooled, limits: Mapping[int, int]) -> Cooled:
        messages = view.conversation.messages
        raws = {
            i: shortened(view.replaced.get(i) or request.message_bytes(i), _CUT_MARGIN * limit / messages[i].tokens)
            for i, limit in limits.items()
        }
        weighed = self._weighed(request, raws)
        smaller = {i: (raw, tokens) for i, (raw, tokens) in weighed.items() if tokens < messages[i].tokens}
        return view.with_shorter(smaller, is_cut=True)

    def _weighed(self, request: ChatRequest, raws: Mapping[int, bytes]) -> dict[int, tuple[bytes, int]]:
        """Messages with their tokens, by index."""
        count = self.counter(request)
        described = ((index, raw, describe(json_array.decode(raw), count)) for index, raw in raws.items())
        return {index: (raw, message.tokens) for index, raw, message in described if message is not None}


def content_key(digests: Sequence[bytes], request: ChatRequest, position: int) -> str:
    """Where the summary of one message's content lies, wherever in its conversation it stands."""
    message = request.messages[request.conversation.head_length + position]
    return f"summary:{{{hash_tag(digests[1])}}}:{hashlib.sha256(digests[1] + message.digest).hexdigest()}"


def _batch_key(digests: Sequence[bytes], batch: Batch) -> str:
    members = hashlib.sha256(repr(batch.members).encode()).hexdigest()[:16]
    return f"cool:{{{hash_tag(digests[1])}}}:{digests[batch.seen].hex()}:{members}"
