"""Reading a request: parse, describe and count it, off the event loop if much of it is new."""

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

# Bytes of a message's description with its key, of each call in it, and of a key alone.
_DESCRIBED = 600
_CALL = 200
_KEY = 150
_SEEDS = 2**64 - 1
# Bytes that a client may write around a separator: role, name, cache_control.
_AROUND_SEPARATOR = 400
# The time that a message takes besides its text, in bytes of text that take as long to count.
_MESSAGE_BYTES = 100

ContentKey = NewType("ContentKey", int)
"""A hash of some bytes and of the way they are read."""


class _Contents(msgspec.Struct):
    """The known and the new items and definitions of a request, by the keys of their contents.

    size: bytes that take as long to read as the new contents.
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


class _NewContents(NamedTuple):
    """The results of reading new contents. text: tokens of a text in place of the items."""

    messages: dict[ContentKey, Message]
    tools: dict[ContentKey, int]
    text: int


class Carried(msgspec.Struct, frozen=True):
    """A record that a client sends in its own history, in a compaction item. index: that of its message."""

    index: MessageIndex
    record: Record


class CountedRequest(msgspec.Struct, frozen=True, dict=True):
    """A counted request of a conversation. `messages[i]` is at `parsed.spans[i]` of `body`.

    dropped_tokens: tokens that the client sent before its separator or in a compaction item, and that are not sent on.
    repeated:       the frame around its items, to look for in the next request; None if there is no previous one.
    carried:        the newest record among its messages; None without one.
    is_ours:        True if the proxy has changed the body.
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
        """Return True if it asks for a provider's compaction, or holds the result of one."""
        return self.history.compacts or self.settings.compacts

    @property
    def messages(self) -> list[Message]:
        """Return its messages."""
        return self.history.messages

    @cached_property
    def conversation(self) -> Conversation:
        """Return its conversation, as the policies see it."""
        return Conversation(self.messages, self.tools_tokens, self.settings.order, outline=self.history.outline)

    @cached_property
    def tokens(self) -> int:
        """Return the tokens of its prompt."""
        return self.tools_tokens + self.history.tokens

    @property
    def received_tokens(self) -> int:
        """Return the tokens that the client sent, including the part before a separator."""
        return self.tokens + self.dropped_tokens

    def utterances(self, start: int, end: int) -> list[Utterance]:
        """Return the utterances of body[start:end] for a transcript. Results have the names of their calls' tools.

        Roles are those of the wire. `policies.conversation.apart` separates the authors within a user's text.
        """
        tools = self.conversation.tools_answered
        return [utterance for at in range(start, end) for utterance in self._utterances(at, tools[at])]

    def contents_at(self, position: int) -> list[Utterance]:
        """Return the contents of one message: its results, or all its text as one utterance."""
        utterances = self.utterances(position, position + 1)
        if self.conversation.body[position].results:
            return [utterance for utterance in utterances if utterance.answers is not None]
        text = "\n".join(utterance.text for utterance in utterances)
        return (
            utterances if len(utterances) == 1 else [Utterance(position, self.conversation.body[position].role, text)]
        )

    def harness_shares(self, positions: Iterable[int]) -> dict[MessageIndex, float]:
        """Return a harness's share of the text of user messages at these positions, by message index.

        Zeros are left out.
        """
        body = self.conversation.body
        by_position = {at: self.contents_at(at) for at in positions if body[at].role == "user"}
        shares = {
            self.conversation.index(at): _harness_share(utterance.text)
            for at, (utterance, *_) in by_position.items()
            if by_position[at]
        }
        return {index: share for index, share in shares.items() if share}

    def after_separator(self, separator: str) -> CountedRequest:
        """Return the request from the newest user message that is exactly `separator`; self if there is none.

        Earlier instructions stay: the user's own cut overrides every checkpoint, but removes no authority (R4). Late
            results of earlier calls are dropped with the calls, since upstreams reject a result without its call.
        """
        conversation = self.conversation
        position = next((i for i in reversed(conversation.users) if self._is_separator(i, separator)), None)
        if position is None:
            return self
        late = conversation.late_results(position)
        later = [conversation.index(i) for i in range(position, len(conversation.body)) if i not in late]
        items = [*conversation.indexes[: conversation.head_length], *with_instructions(conversation, position, later)]
        body, parsed = json_array.select(self.body, self.parsed, items)
        messages = [self.messages[i] for i in items]
        dropped = self.tokens - self.tools_tokens - sum(message.tokens for message in messages)
        *_, history = NO_HISTORY.longer(messages, ())
        carried = self.carried
        if carried is not None:
            at = items.index(carried.index) if carried.index in items else None
            carried = None if at is None else replace(carried, index=MessageIndex(at))
        return replace(self, body=body, parsed=parsed, history=history, dropped_tokens=dropped, carried=carried)

    def _is_separator(self, position: int, text: str) -> bool:
        raw = self.readable_bytes(self.conversation.index(position))
        # Escapes make a text at most six times as long. A longer message cannot be the separator alone.
        if len(raw) > 6 * len(text) + _AROUND_SEPARATOR:
            return False
        texts = [utterance.text for utterance in self._utterances(position, ()) if utterance.role == "user"]
        return [part.text for part in parts_of(texts) if part.voice == "person"] == [text]

    def _utterances(self, position: int, tools: Sequence[str | None]) -> list[Utterance]:
        raw = self.readable_bytes(self.conversation.index(position))
        items = json_array.split_items(raw)
        read = self.dialect.items.utterances
        return [utterance for item in items for utterance in read(json_array.decode(item), position, tools)]

    def message_bytes(self, index: MessageIndex) -> memoryview:
        """Return the bytes of a message as the client wrote them."""
        start, end = self.parsed.spans[index]
        return memoryview(self.body)[start:end]

    def readable_bytes(self, index: MessageIndex) -> memoryview:
        """Return the bytes of a message with lone surrogates replaced."""
        start, end = self.parsed.spans[index]
        return memoryview(self.parsed.text)[start:end]


class RequestReader:
    """Reads requests and remembers the results by content. One per process."""

    def __init__(self, tokenizer: Tokenizer, workers: Workers, memory: Memory | None = None) -> None:
        """Create a reader. Its caches count against `memory`."""
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
        """Return the counted request; None for valid JSON of an unsupported shape.

        before: the frame of the sender's last request. Yields to the event loop only if reading takes more than a few
                milliseconds. Raises InvalidJSONError.
        """
        body = body.removeprefix(BOM_UTF8)
        match = self._prefixes.find(scope, body, dialect.array, before)
        parsed = match[1] if match else None
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
        contents = self._sort_contents(parsed, match and match[0], frame)
        contents.repeated = before
        results = (
            self._read_new(contents) if self._is_quick(contents) else await self._workers.run(self._read_new, contents)
        )
        return None if results is None else self._count_request(body, scope, match and match[0], contents, results)

    async def _parse(self, body: bytes, array: Array) -> Parsed | None:
        """Parse on the event loop if it takes a millisecond. Replacing lone surrogates may take 100 ms per megabyte."""
        try:
            if bounds.is_quick(body):
                return json_array.parse(body, array)
            return await self._workers.run(json_array.parse, body, array)
        except InvalidJSONError:
            readable = await self._workers.run(_readable, body)
            if readable == body:
                raise
            return None if readable is None else await self._parse(readable, array)

    def _sort_contents(self, parsed: Parsed, prefix: Prefix | None, frame: Frame) -> _Contents:
        """Return the known and the new contents of a parsed request."""
        name, encoding = frame.name, frame.measure.encoding
        prefix = prefix if prefix is not None and prefix.measure == name else None
        contents = _Contents(parsed, frame, prefix, size=len(frame.envelope.text))
        view = memoryview(parsed.text)
        for start, end in parsed.spans[len(contents.prefix.items) if contents.prefix else 0 :]:
            contents.items.append(key := self._key(view[start:end], name))
            if (message := self._messages.get(key)) is not None:
                contents.messages[key] = message
            elif key not in contents.unread:
                contents.unread[key] = view[start:end]
                contents.size += end - start + _MESSAGE_BYTES
        for raw in [memoryview(raw) for raw in frame.settings.definitions if raw]:
            contents.definitions.append(key := self._key(raw, encoding))
            if (tokens := self._tools.get(key)) is not None:
                contents.tools[key] = tokens
            else:
                contents.uncounted[key] = raw
                contents.size += len(raw)
        return contents

    def _is_quick(self, contents: _Contents) -> bool:
        """Return True if the new contents can be read on the event loop."""
        return self._tokenizer.is_quick(contents.size, contents.frame.measure.encoding)

    def _read_new(self, contents: _Contents) -> _NewContents | None:
        """Read the new contents; None if one of them is not a message."""
        encoding, family = contents.frame.measure.encoding, contents.frame.measure.family
        count = partial(self._tokenizer.count, encoding=encoding)
        describe = contents.frame.measure.dialect.items.describe
        messages = {}
        try:
            for key, raw in contents.unread.items():
                item = None if json_array.is_crowded(raw) else json_array.decode(raw)
                message = describe(item, count, family)
                if message is None:
                    return None
                if message.media:
                    message = replace(message, media_tokens=tokens_in_results(item, count, family))
                messages[key] = message
            tools = {key: self._count_json(bytes(raw), encoding) for key, raw in contents.uncounted.items()}
        except json_array.HugeNumberError:
            return None
        text = contents.parsed.envelope.text
        return _NewContents(messages, tools, count(text) if text else 0)

    def _count_request(
        self, body: bytes, scope: bytes, prefix: Prefix | None, contents: _Contents, new: _NewContents
    ) -> CountedRequest:
        for key, message in new.messages.items():
            self._messages.keep(key, message, _DESCRIBED + _CALL * (len(message.calls) + len(message.results)))
        for key, tokens in new.tools.items():
            self._tools.keep(key, tokens, _KEY)
        messages_by_key, counted = new.messages, contents.tools | new.tools
        messages_by_key.update(contents.messages)
        parsed, known_messages = contents.parsed, contents.prefix.items if contents.prefix else []
        messages = [*known_messages, *map(messages_by_key.__getitem__, contents.items)]
        lengths = worth_remembering(body, parsed)
        history = contents.prefix.history if contents.prefix else NO_HISTORY
        *histories, full_history = history.longer(messages, lengths)
        frame, dialect = contents.frame, contents.frame.measure.dialect
        if histories:
            read_body = ReadBody(dialect.array, parsed, frame.name, messages)
            self._prefixes.remember(scope, body, read_body, histories, prefix)
        settings = frame.settings
        if reason := settings.passthrough or ("unknown_shape" if parsed.envelope.text else full_history.bypass):
            is_partial = settings.is_partial or reason == "stored_items"
            settings = replace(settings, passthrough=reason, is_partial=is_partial)
        return CountedRequest(
            dialect,
            body,
            parsed
            if len(full_history.ends) == len(parsed.spans)
            else replace(parsed, spans=full_history.spans(parsed.spans)),
            full_history,
            new.text + sum(map(counted.__getitem__, contents.definitions)),
            settings,
            frame.measure.encoding,
            repeated=contents.repeated,
        )

    def _count_json(self, raw: bytes, encoding: str) -> int:
        """Return the tokens of a definition's JSON, since it is sent to the model in this form or a similar one."""
        if not json_array.is_crowded(raw):
            json_array.decode(raw)
        return self._tokenizer.count(raw.decode("utf-8", "replace"), encoding)

    def _key(self, raw: memoryview, measure: str) -> ContentKey:
        return ContentKey(xxhash.xxh3_128_intdigest(raw, self._seed ^ (hash(measure) & _SEEDS)))


def _harness_share(text: str) -> float:
    return sum(end - start for start, end in harness_spans(text)) / len(text) if text else 0.0


def _readable(body: bytes) -> bytes | None:
    """Return the body with lone surrogates replaced; None if there are too many."""
    return None if surrogates.has_many(body) else surrogates.readable(body)
