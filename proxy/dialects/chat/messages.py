"""Chat messages as blocks, and their rewritten forms."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from policies.conversation.message import Message, Role
from policies.conversation.transcript import CountTokens
from policies.decision.assemble import Injected
from proxy.dialects.blocks import Block, Facts, Items, Json, View, leaves, to_text
from proxy.dialects.chat.canonical import message_digest, text_digest
from proxy.dialects.surrogates import readable
from proxy.dialects.texts import cut, cut_arguments, id_of, with_voices
from proxy.models.media import sealed_tokens

# Wire roles. `function` is the legacy tool role. An unknown role counts as a user's, which is never dropped.
_ROLES: Mapping[object, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_SPEAKERS = frozenset({"system", "developer", "user", "assistant"})
_SIGNED = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "provider_specific_fields")
_SIGNED_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning"})
_PLAIN = frozenset({"role", "content"})
_PLAIN_RESULT = frozenset({"role", "content", "tool_call_id"})
# Fields with thinking that is sent back: as text, or as parts with the text under one of these keys.
_REASONING = frozenset({"reasoning_content", "reasoning", "reasoning_details", "thinking_blocks"})
_THOUGHT = ("thinking", "text", "summary")
_LEGACY = "function:"
_MARK = "cache_control"

# Tokens per message, as OpenAI's cookbook counts them, rounded up.
MESSAGE_OVERHEAD = 4
# A reference to an audio response counts as a quarter of a minute, at a token for 50 ms.
_ANSWER_AUDIO_TOKENS = 300


class ChatItems(Items):
    """Chat messages. Content is a text or a list of parts, calls and reasoning are fields, and results are messages."""

    ITEM_OVERHEAD = MESSAGE_OVERHEAD

    def describe(self, item: object, count: CountTokens, family: str = "", /) -> Message | None:
        """Return the description of a message, with a fast path for a plain text."""
        if isinstance(item, dict) and item.keys() == _PLAIN:  # nearly all messages
            spoken_as, content = item["role"], item["content"]
            if isinstance(content, str) and isinstance(spoken_as, str) and spoken_as in _SPEAKERS:
                role = _ROLES[spoken_as]
                described = Message(role, MESSAGE_OVERHEAD + count(content), text_digest(role, content))
                return with_voices(described, [content], count)
        return super().describe(item, count, family)

    def read(self, message: Json, /) -> View:
        """Return the role and the blocks of a message."""
        role = _ROLES.get(message.get("role"), "user")
        content = message.get("content")
        blocks = [*map(_block, content)] if isinstance(content, list) else [_block(content)]
        if isinstance(content, dict) and blocks[0].kind == "thought":  # only parts of a list are thoughts
            blocks = [Block("hidden", content, blocks[0].text)]
        if isinstance(refusal := message.get("refusal"), str):
            blocks.append(Block("other", refusal, refusal))
        if role == "tool":
            parts = [block for block in blocks if block.kind != "thought"]
            result = Block("result", message, id=_answered_call(message), parts=parts, error=_error(message))
            blocks = [result, *(block for block in blocks if block.kind == "thought")]
        if not message.keys() <= _PLAIN_RESULT:
            if isinstance(thought := message.get("reasoning_content", message.get("reasoning")), str):
                blocks.insert(role == "tool", Block("thought", thought))
            blocks += [_call(call_id, function) for call_id, function in _functions(message)]
        return View(message, role, blocks, speaks=role != "tool")

    def facts(self, view: View, /) -> Facts:
        """Return whether the message is signed and whether it holds media."""
        message, facts = view.item, Facts()
        if any(message.get(key) for key in _SIGNED):
            facts["signed"] = "sealed"
        content = message.get("content")
        for block in leaves(view.blocks):
            if block.name is None and isinstance(block.value, dict):
                if block.text is None:
                    facts["media"] = True
                if block.kind == "thought" or (block.value.get("signature") and block.value is not content):
                    facts["signed"] = "sealed"
        return facts

    def digest(self, view: View, /) -> bytes:
        """Return the digest of the message's canonical form."""
        return message_digest(view.item)

    def tokens(self, view: View, count: CountTokens, family: str, /) -> int:
        """Return the tokens of a message, with its name, audio and reasoning fields."""
        message, tokens = view.item, super().tokens(view, count, family)
        if message.keys() <= _PLAIN_RESULT:
            return tokens
        name = message.get("name")
        tokens += count(name) if isinstance(name, str) else 0
        tokens += _ANSWER_AUDIO_TOKENS if isinstance(message.get("audio"), dict) else 0
        # The largest, since providers and gateways repeat the same reasoning in several fields.
        return tokens + max((_field_tokens(message[key], count) for key in _REASONING & message.keys()), default=0)

    def shown(self, block: Block, /) -> str | None:
        """Return the text of a block, or the kind of a part without text."""
        if block.kind == "result":
            texts = map(self.shown, block.parts or ())
            return "\n".join(text for text in texts if text is not None)
        part = block.value
        if block.kind == "hidden":
            return None
        if not isinstance(part, dict):
            return part if isinstance(part, str) else None
        if block.kind == "thought":
            thought = part.get("thinking", part.get("text"))
            return thought if isinstance(thought, str) else None
        text = part.get("text", part.get("refusal"))
        return text if isinstance(text, str) else f"[{part.get('type', 'media')}]"

    def inject(self, item: Injected, /) -> bytes:
        """Return an injected message."""
        return msgspec.json.encode({"role": item.role, "content": item.text})

    def text_part(self, text: str, _: object = None, /) -> dict[str, object]:
        """Return an injected text as a part. Chat has no cache mark on parts."""
        return {"type": "text", "text": text}

    def with_texts(self, raw: bytes | memoryview, texts: Sequence[str | None], /) -> bytes:
        """Return a message with another text for its content, in the form the content had. Nothing else changes."""
        (text,) = texts
        if text is None:
            return bytes(raw)
        message = msgspec.json.decode(readable(bytes(raw)))
        content = message.get("content")
        message["content"] = [{**self.text_part(text), **_mark_in(content)}] if isinstance(content, list) else text
        return msgspec.json.encode(message)

    def shorter(self, part: Json, share: float, /) -> Json:
        """Return a part with its text shortened, or a note for a medium."""
        text = part.get("text")
        return {**part, "text": cut(text, share)} if isinstance(text, str) else self.note_of(part)

    def shorten_fields(self, message: dict[str, object], share: float, /) -> None:
        """Shorten the arguments of the message's calls."""
        for _, function in _functions(message):
            for key, shorter in _CUT_CALLS.items():
                if isinstance(function, dict) and isinstance(function.get(key), str):
                    function[key] = shorter(function[key], share)


def _mark_in(parts: Sequence[object]) -> Json:
    """Return the cache mark of the last part, with its key; empty without one."""
    last_part = parts[-1] if parts else None
    return {_MARK: last_part[_MARK]} if isinstance(last_part, dict) and last_part.get(_MARK) else {}


def _block(part: object) -> Block:
    """Return the block of a content part."""
    if isinstance(part, str):
        return Block("text", part, part)
    if not isinstance(part, dict):
        return Block("other", part)
    value = part.get("text", part.get("refusal", part.get("thinking")))
    text = value if isinstance(value, str) else None
    if isinstance(kind := part.get("type"), str) and kind in _SIGNED_PARTS:
        return Block("thought", part, text)
    return Block("medium" if text is None else "text", part, text)


def _call(call_id: str, function: object) -> Block:
    if not isinstance(function, dict):
        return Block("call", function, id=call_id, name="", given="")
    given = to_text(function.get("arguments", function.get("input", "")))
    return Block("call", function, id=call_id, name=str(function.get("name", "")), given=given)


def _functions(message: Json) -> Iterator[tuple[str, object]]:
    """Yield the id of every call and its function, the legacy one last."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict):
            yield id_of(call.get("id", "")), call.get("function") or call.get("custom")
        else:
            yield "", None
    if isinstance(legacy := message.get("function_call"), dict):
        yield id_of(_LEGACY + str(legacy.get("name", ""))), legacy


def _answered_call(message: Json) -> str:
    answered_id = message.get("tool_call_id")
    return id_of(answered_id if answered_id is not None else _LEGACY + str(message.get("name", "")))


def _error(message: Json) -> bool | None:
    """Return True if a result reports an error. Chat has no such field, and some clients send their own."""
    if isinstance(is_error := message.get("is_error"), bool):
        return is_error
    return True if message.get("status") == "error" else None


def _field_tokens(value: object, count: CountTokens) -> int:
    """Return the tokens of a reasoning field."""
    if isinstance(value, str):
        return count(value)
    total = 0
    for part in value if isinstance(value, list) else []:
        texts = part if isinstance(part, dict) else {}
        total += sum(count(text) for key in _THOUGHT if isinstance(text := texts.get(key), str))
        total += sealed_tokens(data) if isinstance(data := texts.get("data"), str) else 0
    return total


# A function takes JSON, a custom tool any text.
_CUT_CALLS = {"arguments": cut_arguments, "input": cut}

ITEMS = ChatItems()
