"""Reading a request: parse, describe and count it, off the event loop where much of it is new."""

from __future__ import annotations

import secrets
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, NewType

import msgspec
import xxhash
from msgspec.structs import replace

from policies.authorship.parts import parts_of
from policies.cached import cached_property
from policies.conversation.conversation import Conversation, MessageIndex
from policies.conversation.message import Message
from policies.conversation.timestamps import harness_spans
from policies.conversation.transcript import Utterance
from policies.decision.assemble import with_instructions
from policies.record.record import Record
from proxy.dialects import bounds, json_array, surrogates
from proxy.dialects.base import Dialect, RequestSettings
from proxy.dialects.frames import Frame, Repeated, frame_of, repeated_frame
from proxy.dialects.history import NO_HISTORY, History
from proxy.dialects.json_array import Array, Parsed
from proxy.dialects.media_parts import tokens_in_results
from proxy.dialects.prefixes import Prefix, PrefixCache, ReadBody, worth_remembering
from proxy.errors import InvalidJSONError
from proxy.memory import Cache, Memory
from proxy.models.tokenizer import Tokenizer
from proxy.runtime.workers import Workers

# Bytes that a description of a message takes with its key, each call in it, and a key alone.
_DESCRIBED = 600
_CALL = 200
_KEY = 150
_SEEDS = 2**64 - 1
# What a client may write around a separator: role, name, cache_control.
_AROUND_SEPARATOR = 400
# What a message takes beside its text, as time: what so many bytes take to be counted.
_MESSAGE_BYTES = 100

ContentKey = NewType("ContentKey", int)
"""A hash of some bytes and of how they are read."""


class _News(msgspec.Struct):
    """What is known of a request's items and definitions, by the keys of their contents, and what has to be learnt.

    size: bytes that take as long as what has to be learnt.
    """

    parsed: Parsed
    frame: Frame
    prefix: Prefix | None
    size: int
    items: list[ContentKey] = []
    messages: dict[ContentKey, Message] = {}
    unread: dict[ContentKey, memoryview] = {}
    definitions: list[ContentKey] = []
    tools: dict[ContentKey, int] = {}
    uncounted: dict[ContentKey, memoryview] = {}
    repeated: Repeated | None = None


class _Learnt(NamedTuple):
    """Of a request's news; text: tokens of what stands in the place of items."""

    messages: dict[ContentKey, Message]
    tools: dict[ContentKey, int]
    text: int


class Carried(msgspec.Struct, frozen=True):
    """A record that a client carries in its own history, in a compaction item; `index`: of the message that says it."""

    index: MessageIndex
    record: Record


class CountedRequest(msgspec.Struct, frozen=True, dict=True):
    """A counted request of a conversation. `messages[i]` stands at `parsed.spans[i]` of `body`.

    dropped_tokens: what the client sent and is not sent on: before its separator, or in the place of a compaction item.
    repeated: what stands around its items, for the next request; None where nobody has asked for that.
    carried: the newest record among its messages; None without one.
    is_ours: whether its body is no longer the client's.
    """

    dialect: Dialect
    body: bytes
    parsed: Parsed
    history: History
    tools_tokens: int
    settings: RequestSettings
    encoding: str
    dropped_tokens: int = 0
    repeated: Repeated | None = None
    carried: Carried | None = None
    is_ours: bool = False

    @property
    def compacts(self) -> bool:
        """Whether it asks for a provider's compaction, or holds what one has made."""
        return self.history.compacts or self.settings.compacts

    @property
    def messages(self) -> list[Message]:
        return self.history.messages

    @cached_property
    def conversation(self) -> Conversation:
        return Conversation(self.messages, self.tools_tokens, self.settings.order, outline=self.history.outline)

    @cached_property
    def tokens(self) -> int:
        return self.tools_tokens + self.history.tokens

    @property
    def received_tokens(self) -> int:
        """What the client sent, its part before a separator included."""
        return self.tokens + self.dropped_tokens

    def utterances(self, start: int, end: int) -> list[Utterance]:
        """The text of body[start:end], decoded for a transcript; results are named after the calls they answer.

        As the roles say it: `policies.conversation.apart` tells whose words stand in a user's."""
        tools = self.conversation.tools_answered
        return [said for at in range(start, end) for said in self._utterances(at, tools[at])]

    def said_in(self, position: int) -> list[Utterance]:
        """The contents of one message: its results, or all that it says."""
        said = self.utterances(position, position + 1)
        if self.conversation.body[position].results:
            return [one for one in said if one.answers is not None]
        whole = "\n".join(one.text for one in said)
        return said if len(said) == 1 else [Utterance(position, self.conversation.body[position].role, whole)]

    def harness_shares(self, positions: Iterable[int]) -> dict[MessageIndex, float]:
        """Which share of the user messages at these positions of the body a harness says, by index of a message."""
        body = self.conversation.body
        said = {at: self.said_in(at) for at in positions if body[at].role == "user"}
        shares = {self.conversation.index(at): _harness_share(one.text) for at, (one, *_) in said.items() if said[at]}
        return {index: share for index, share in shares.items() if share}

    def behind(self, separator: str) -> CountedRequest:
        """The request from the newest user message on that says exactly `separator`; itself where there is none.

        Instructions from before it stay (R4: the user's own cut wins over every checkpoint, but gives no authority up).
        Late results of calls from before it go with them: upstreams refuse a result without its call.
        """
        conversation = self.conversation
        position = next((i for i in reversed(conversation.users) if self._says(i, separator)), None)
        if position is None:
            return self
        late = conversation.late_results(position)
        kept = [conversation.index(i) for i in range(position, len(conversation.body)) if i not in late]
        items = [*conversation.indexes[: conversation.head_length], *with_instructions(conversation, position, kept)]
        body, parsed = json_array.select(self.body, self.parsed, items)
        messages = [self.messages[i] for i in items]
        dropped = self.tokens - self.tools_tokens - sum(message.tokens for message in messages)
        *_, history = NO_HISTORY.longer(messages, ())
        carried = self.carried
        if carried is not None:
            at = items.index(carried.index) if carried.index in items else None
            carried = None if at is None else replace(carried, index=MessageIndex(at))
        return replace(self, body=body, parsed=parsed, history=history, dropped_tokens=dropped, carried=carried)

    def _says(self, position: int, text: str) -> bool:
        raw = self.readable_bytes(self.conversation.index(position))
        # Escapes make a text up to six times as long as it is; more than that cannot be the separator alone.
        if len(raw) > 6 * len(text) + _AROUND_SEPARATOR:
            return False
        said = [one.text for one in self._utterances(position, ()) if one.role == "user"]
        return [part.text for part in parts_of(said) if part.voice == "person"] == [text]

    def _utterances(self, position: int, tools: Sequence[str | None]) -> list[Utterance]:
        raw = self.readable_bytes(self.conversation.index(position))
        items = json_array.split_items(raw)
        read = self.dialect.items.utterances
        return [said for item in items for said in read(json_array.decode(item), position, tools)]

    def message_bytes(self, index: MessageIndex) -> memoryview:
        """As the client wrote it, to be sent."""
        first, last = self.parsed.spans[index]
        return memoryview(self.body)[first:last]

    def readable_bytes(self, index: MessageIndex) -> memoryview:
        """The same with lone surrogates made readable."""
        first, last = self.parsed.spans[index]
        return memoryview(self.parsed.text)[first:last]


class RequestReader:
    """Reads requests and remembers what it learnt, by content; one per process."""

    def __init__(self, tokenizer: Tokenizer, workers: Workers, memory: Memory | None = None) -> None:
        memory = memory or Memory()
        self._tokenizer = tokenizer
        self._workers = workers
        self._prefixes = PrefixCache(memory)
        self._messages: Cache[ContentKey, Message] = Cache(memory, "messages")
        self._tools: Cache[ContentKey, int] = Cache(memory, "definitions")
        self._seed = secrets.randbits(64)

    async def read(
        self,
        body: bytes,
        scope: bytes,
        encoding_of: Callable[[str], str],
        dialect: Dialect,
        before: Repeated | None = None,
    ) -> CountedRequest | None:
        """The request, counted; None for valid JSON of a shape that is not understood.

        before: what stood around the items of the last request of the same sender. Waits only if reading takes more
        than a few milliseconds. Raises InvalidJSONError.
        """
        body = body.removeprefix(BOM_UTF8)
        found = self._prefixes.find(scope, body, dialect.array, before)
        parsed = found[1] if found else None
        if parsed is None and before is not None and bounds.is_quick(body):
            parsed = before.parse(body)
        if parsed is None:
            parsed = await self._parse(body, dialect.array)
        if parsed is None:
            return None
        if before is None or not before.is_around(parsed):
            before = repeated_frame(parsed, dialect, encoding_of)
            frame = frame_of(parsed.envelope, dialect, encoding_of)
        else:
            frame = before.frame
        news = self._news(parsed, found and found[0], frame)
        news.repeated = before
        learnt = self._learn(news) if self._is_quick(news) else await self._workers.run(self._learn, news)
        return None if learnt is None else self._count_request(body, scope, found and found[0], news, learnt)

    async def _parse(self, body: bytes, array: Array) -> Parsed | None:
        """Inline what takes a millisecond. Making lone surrogates readable may take a hundred for each megabyte."""
        try:
            if bounds.is_quick(body):
                return json_array.parse(body, array)
            return await self._workers.run(json_array.parse, body, array)
        except InvalidJSONError:
            readable = await self._workers.run(_readable, body)
            if readable == body:
                raise
            return None if readable is None else await self._parse(readable, array)

    def _news(self, parsed: Parsed, prefix: Prefix | None, frame: Frame) -> _News:
        """What is known of a request that was parsed, and what has to be learnt."""
        name, encoding = frame.name, frame.measure.encoding
        prefix = prefix if prefix is not None and prefix.measure == name else None
        news = _News(parsed, frame, prefix, size=len(frame.envelope.text))
        view = memoryview(parsed.text)
        for first, last in parsed.spans[len(news.prefix.items) if news.prefix else 0 :]:
            news.items.append(key := self._key(view[first:last], name))
            if (message := self._messages.get(key)) is not None:
                news.messages[key] = message
            elif key not in news.unread:
                news.unread[key] = view[first:last]
                news.size += last - first + _MESSAGE_BYTES
        for raw in [memoryview(raw) for raw in frame.settings.definitions if raw]:
            news.definitions.append(key := self._key(raw, encoding))
            if (tokens := self._tools.get(key)) is not None:
                news.tools[key] = tokens
            else:
                news.uncounted[key] = raw
                news.size += len(raw)
        return news

    def _is_quick(self, news: _News) -> bool:
        """Whether an event loop can wait for what has to be learnt."""
        return self._tokenizer.is_quick(news.size, news.frame.measure.encoding)

    def _learn(self, news: _News) -> _Learnt | None:
        """None where something among them is no message object, or none of a conversation."""
        encoding, family = news.frame.measure.encoding, news.frame.measure.family
        count = partial(self._tokenizer.count, encoding=encoding)
        describe = news.frame.measure.dialect.items.describe
        messages = {}
        try:
            for key, raw in news.unread.items():
                item = None if json_array.is_crowded(raw) else json_array.decode(raw)
                message = describe(item, count, family)
                if message is None:
                    return None
                if message.media:
                    message = replace(message, media_tokens=tokens_in_results(item, count, family))
                messages[key] = message
            tools = {key: self._count_json(bytes(raw), encoding) for key, raw in news.uncounted.items()}
        except json_array.HugeNumberError:
            return None
        text = news.parsed.envelope.text
        return _Learnt(messages, tools, count(text) if text else 0)

    def _count_request(
        self, body: bytes, scope: bytes, found: Prefix | None, news: _News, learnt: _Learnt
    ) -> CountedRequest:
        for key, message in learnt.messages.items():
            self._messages.keep(key, message, _DESCRIBED + _CALL * (len(message.calls) + len(message.results)))
        for key, tokens in learnt.tools.items():
            self._tools.keep(key, tokens, _KEY)
        read, counted = learnt.messages, news.tools | learnt.tools
        read.update(news.messages)
        parsed, known = news.parsed, news.prefix.items if news.prefix else []
        messages = [*known, *map(read.__getitem__, news.items)]
        lengths = worth_remembering(body, parsed)
        history = news.prefix.history if news.prefix else NO_HISTORY
        *histories, whole = history.longer(messages, lengths)
        frame, dialect = news.frame, news.frame.measure.dialect
        if histories:
            now = ReadBody(dialect.array, parsed, frame.name, messages)
            self._prefixes.remember(scope, body, now, histories, found)
        settings = frame.settings
        if reason := settings.passthrough or ("unknown_shape" if parsed.envelope.text else whole.bypass):
            is_partial = settings.is_partial or reason == "stored_items"
            settings = replace(settings, passthrough=reason, is_partial=is_partial)
        return CountedRequest(
            dialect,
            body,
            parsed if len(whole.ends) == len(parsed.spans) else replace(parsed, spans=whole.spans(parsed.spans)),
            whole,
            learnt.text + sum(map(counted.__getitem__, news.definitions)),
            settings,
            frame.measure.encoding,
            repeated=news.repeated,
        )

    def _count_json(self, raw: bytes, encoding: str) -> int:
        """Definitions are sent as their JSON or something close to it, so its tokens are counted."""
        if not json_array.is_crowded(raw):
            json_array.decode(raw)
        return self._tokenizer.count(raw.decode("utf-8", "replace"), encoding)

    def _key(self, raw: memoryview, measure: str) -> ContentKey:
        return ContentKey(xxhash.xxh3_128_intdigest(raw, self._seed ^ (hash(measure) & _SEEDS)))


def _harness_share(text: str) -> float:
    return sum(end - start for start, end in harness_spans(text)) / len(text) if text else 0.0


def _readable(body: bytes) -> bytes | None:
    """The body with something else in the place of lone surrogates; None where there are too many."""
    return None if surrogates.has_many(body) else surrogates.readable(body)
