"""Items of every dialect as blocks: their descriptions and their rewritten forms.

A dialect is a subclass of `Items`. Its `read` returns the blocks of an item, and a few small methods write texts,
results and calls. Descriptions, transcripts and shortened items are built here for all dialects.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict

import msgspec

from policies.authorship.foreign import brings_foreign_text
from policies.authorship.wrappers import Voice
from policies.conversation.message import Call, Message, Role, Signature
from policies.conversation.transcript import CountTokens, ToolCall, Utterance
from policies.decision.assemble import Injected
from proxy.dialects.surrogates import readable
from proxy.dialects.texts import cut, texts_of_voice, with_beginning, with_voices
from proxy.models.media import KINDS, media_tokens

Json = Mapping[str, object]
Kind = Literal["text", "thought", "call", "result", "medium", "hidden", "other"]

CALL_OVERHEAD = 8
_HEARD = frozenset({"text", "thought", "hidden"})


class Block(msgspec.Struct, gc=False):
    """A part of an item.

    kind:        `hidden` is a text that the model reads and no transcript shows. `medium` is a part without a text.
    value:       the decoded part.
    text:        the text that the model reads; None without one.
    id:          the id of a call, or of the call that a result answers.
    name, given: the tool of a call and its arguments.
    parts:       the blocks of a result; None if it is counted by its JSON.
    error:       True if a result reports an error; None if it does not say.
    sealed:      the number of tokens of a thought that only its provider can read.
    """

    kind: Kind
    value: Any
    text: str | None = None
    id: str = ""
    name: str | None = None
    given: object = None
    parts: "list[Block] | None" = None
    error: bool | None = None
    sealed: int | None = None

    @property
    def arguments(self) -> str:
        """Return the arguments of a call as text."""
        return to_text(self.given)


class Facts(TypedDict, total=False):
    """The fields of a `Message` that only its dialect knows."""

    joins: bool
    continues: bool
    silent: bool
    signed: Signature
    media: bool
    loose: bytes | None
    lapses: bool
    loads: tuple[str, ...]
    scripts: tuple[str, ...]
    stored: bool
    barrier: bool
    bypass: str | None
    compacts: bool


class View(msgspec.Struct, gc=False):
    """An item as its dialect reads it.

    item:   the decoded item.
    role:   `tool` if it holds results of the client's tools.
    speaks: True if it has an utterance besides its results, even an empty one.
    kind:   the type of the item, in dialects whose items have one.
    """

    item: Json
    role: Role
    blocks: list[Block]
    speaks: bool = True
    kind: str = ""


class Items:
    """The items of one dialect. Subclasses override the methods of the first part.

    NAMES: keys of an item whose value is a name.
    LISTS: keys of an item whose value is a list of parts.
    ITEM_OVERHEAD, BLOCK_OVERHEAD: tokens of each item, and of each of its blocks, besides the content.
    """

    NAMES: Sequence[str] = ("role",)
    LISTS: Sequence[str] = ("content",)
    ITEM_OVERHEAD = 4
    BLOCK_OVERHEAD = 0

    def read(self, item: Json, /) -> View:
        """Return the role and the blocks of a decoded item."""
        raise NotImplementedError

    def digest(self, view: View, /) -> bytes:
        """Return the digest of the item's canonical form."""
        raise NotImplementedError

    def inject(self, item: Injected, /) -> bytes:
        """Return an injected item."""
        raise NotImplementedError

    def text_part(self, text: str, mark: object = None, /) -> dict[str, object]:
        """Return an injected text as a part of a user's content. mark: the cache mark, if parts may have one."""
        raise NotImplementedError

    def shorter(self, part: Json, share: float, /) -> Json:
        """Return a part of a content in which every text keeps this share of its length."""
        raise NotImplementedError

    def with_texts(self, raw: bytes | memoryview, texts: Sequence[str | None], /) -> bytes:
        """Return an item with other texts for its results in order, or for its content if it has no results.

        None keeps a text. Nothing else changes.
        """
        raise NotImplementedError

    def without_thinking(self, raw: bytes | memoryview, /) -> bytes | None:
        """Return an item without thinking that is bound to the prompt before it; None if nothing is left.

        Most dialects have no such thinking.
        """
        return bytes(raw)

    def facts(self, _: View, /) -> Facts:
        """Return the other facts about an item that the policies need."""
        return Facts()

    def shown(self, block: Block, /) -> str | None:
        """Return the text of a block in a transcript; None if it is not shown there."""
        return block.text if block.parts is None else "\n".join(texts_of(block.parts))

    def is_fixed(self, _: Json, /) -> bool:
        """Return True if no text of an item may be shortened."""
        return False

    def shorten_fields(self, item: dict[str, object], share: float, /) -> None:
        """Shorten the fields of an item other than its content."""

    # The second part is the same for all dialects. First: descriptions for the policies.

    def describe(self, item: object, count: CountTokens, family: str = "", /) -> Message | None:
        """Return the description of a decoded item for the policies; None if it is not an item of this dialect."""
        if not isinstance(item, dict) or not self.is_readable(item):
            return None
        view = self.read(item)
        calls, results = _links(view)
        facts = self.facts(view)
        if view.role == "tool":
            facts["joins"] = True
        tokens = self.tokens(view, count, family)
        message = Message(view.role, tokens, self.digest(view), calls, results, **facts)
        return self.hear(message, view, count)

    def is_readable(self, item: Json, /) -> bool:
        """Return True if role, type and kinds of parts are names, if they are given at all."""
        for key in self.NAMES:
            if (name := item.get(key)) is not None and not isinstance(name, str):
                return False
        for key in self.LISTS:
            content = item.get(key)
            if content is None or isinstance(content, str):
                continue
            for part in content if isinstance(content, list) else (content,):
                if isinstance(part, dict) and (name := part.get("type")) is not None and not isinstance(name, str):
                    return False
        return True

    def tokens(self, view: View, count: CountTokens, family: str, /) -> int:
        """Return how many tokens the model reads of an item."""
        tokens = self.ITEM_OVERHEAD
        for block in view.blocks:
            tokens += self.block_tokens(block, count, family)
        return tokens

    def block_tokens(self, block: Block, count: CountTokens, family: str, /) -> int:
        """Return the tokens of a block. Templates show the model only a few characters of an id."""
        if block.name is not None:
            return CALL_OVERHEAD + count(block.name) + count(block.arguments)
        if block.parts is not None:
            return self.BLOCK_OVERHEAD + sum(part_tokens(part, count, family) for part in block.parts)
        return self.BLOCK_OVERHEAD + part_tokens(block, count, family)

    def hear(self, message: Message, view: View, count: CountTokens, /) -> Message:
        """Return the description with the authors of the item's texts."""
        return with_voices(message, texts_of(view.blocks), count, has_media=message.media)

    # Transcripts.

    def utterances(self, item: object, position: int, tools: Sequence[str | None], /) -> list[Utterance]:
        """Return the utterances of a decoded item, by role. tools: those that its results answer, in order.

        Results come before a user's words, and after a model's. Each text of a user is its own utterance.
        """
        if not isinstance(item, dict):
            return [Utterance(position, "user", "")]
        view = self.read(item)
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        results: list[Block] = []
        for block in view.blocks:
            if block.kind == "call":
                calls.append(ToolCall(block.name or "", block.arguments, block.id))
            elif block.kind == "result":
                results.append(block)
            elif (text := self.shown(block)) is not None:
                (thoughts if block.kind == "thought" else texts).append(text)
        role: Role = "user" if view.role == "tool" else view.role
        utterances: list[Utterance] = []
        if role == "user" and len(texts) > 1:
            utterances = [Utterance(position, role, text) for text in texts]
        elif texts or view.speaks or (not results and (calls or thoughts)):
            utterances = [Utterance(position, role, "\n".join(texts), tuple(calls), reasoning="\n".join(thoughts))]
        if not results:
            return utterances
        hosted_tools = {} if role == "user" else {call.id: call.name for call in calls}
        names = iter(tools)
        result_utterances = [
            Utterance(
                position,
                "tool",
                self.shown(result) or "",
                answers=result.id,
                tool=hosted_tools[result.id] if result.id in hosted_tools else next(names, None),
                error=result.error,
            )
            for result in results
        ]
        if not utterances and (calls or thoughts):  # the whole item is a result
            result_utterances[0] = replace(result_utterances[0], calls=tuple(calls), reasoning="\n".join(thoughts))
        return [*result_utterances, *utterances] if role == "user" else [*utterances, *result_utterances]

    # Parts of an item.

    def words(self, raw: bytes | memoryview, /) -> bytes:
        """Return a user's item with only a person's words; empty if there are none."""
        return self._with_voice(raw, "person")

    def rules(self, raw: bytes | memoryview, /) -> bytes:
        """Return a user's item with only the files of rules; empty if it has none."""
        return self._with_voice(raw, "instructions")

    def _with_voice(self, raw: bytes | memoryview, voice: Voice) -> bytes:
        blocks = self.read(msgspec.json.decode(readable(bytes(raw)))).blocks
        is_result = bool(blocks) and blocks[0].kind == "result"
        if voice == "person" and not is_result:
            return bytes(raw)
        text = texts_of_voice(texts_of(blocks), voice, is_result=is_result)
        return self.inject(Injected(text)) if text else b""

    # Rewritten forms.

    def merge(self, text: str, raw: bytes | memoryview, /) -> bytes:
        """Return an item whose content begins with an injected text. Its own content keeps its bytes."""
        return with_beginning(raw, text, self.text_part(text))

    def shorten(self, raw: bytes | memoryview, /, share: float) -> bytes:
        """Return an item in which every text keeps this share of its length, head and tail, visibly marked.

        Ids, roles, names and order stay. Media become a note. Arguments stay JSON.
        """
        item = msgspec.json.decode(readable(bytes(raw)))
        if self.is_fixed(item):
            return bytes(raw)
        for key in self.LISTS:
            if key in item:
                item[key] = self.shorter_content(item[key], share)
        self.shorten_fields(item, share)
        return msgspec.json.encode(item)

    def shorter_content(self, content: object, share: float) -> object:
        """Return a content, a text or a list of parts, in which every text is shorter."""
        if isinstance(content, str):
            return cut(content, share)
        if not isinstance(content, list):
            return content
        return [
            self.shorter(part, share) if isinstance(part, dict) else cut(part, share) if isinstance(part, str) else part
            for part in content
        ]

    def note_of(self, part: Json) -> Json:
        """Return a note that replaces a medium; any other part unchanged."""
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in KINDS:
            return part
        return self.text_part(f"[{kind} left out]", part.get("cache_control"))


def _links(view: View) -> tuple[tuple[Call, ...], tuple[str, ...]]:
    """Return the calls that another item answers, and the ids of the calls that are answered here."""
    calls_made = [block for block in view.blocks if block.kind == "call"] if view.role == "assistant" else []
    answered = [block.id for block in view.blocks if block.kind == "result"]
    if not calls_made:
        return (), tuple(answered)
    if answered:  # the provider ran its own calls
        ids = {block.id for block in calls_made}
        calls_made = [block for block in calls_made if block.id not in answered]
        answered = [name for name in answered if name not in ids]
    calls = [Call(call.id, call.name or "", brings_foreign_text(call.name or "", call.given)) for call in calls_made]
    return tuple(calls), tuple(answered)


def part_tokens(block: Block, count: CountTokens, family: str) -> int:
    """Return the tokens of a block that is not a call, without its overhead."""
    if block.text is not None:
        return count(block.text)
    if block.sealed is not None:
        return block.sealed
    return media_tokens(block.value, count, family) if isinstance(block.value, dict) else 0


def texts_of(blocks: Iterable[Block]) -> list[str]:
    """Return the texts that may hold words of a person or a model, including those inside results."""
    texts: list[str] = []
    for block in blocks:
        if block.parts is not None:
            texts += texts_of(block.parts)
        elif block.text is not None and block.kind in _HEARD:
            texts.append(block.text)
    return texts


def leaves(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks, with a result replaced by its parts."""
    return [leaf for block in blocks for leaf in ((block,) if block.parts is None else block.parts)]


def to_text(value: object) -> str:
    """Return a value as text: itself, or its JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
