"""One chat message: what the policies need to know of it, its text for a transcript, and a shortened copy."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

import msgspec

from policies.assembly import Injected
from policies.message import Call, Message, Role
from policies.transcript import CountTokens, ToolCall, Utterance
from policies.voices.foreign import brings_foreign_text
from policies.voices.tables import Voice
from proxy.dialects.chat.canonical import Json, message_digest, text_digest
from proxy.dialects.surrogates import readable
from proxy.dialects.texts import cut, cut_arguments, id_of, texts_of_voice, with_beginning, with_voices
from proxy.models.media import KINDS, media_tokens, sealed_tokens

# Wire roles; `function` is the legacy tool role, and an unknown role is treated as a user's, which is never dropped.
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
# Where thinking that is sent back stands: as text, or as parts with it under one of these keys.
_REASONING = frozenset({"reasoning_content", "reasoning", "reasoning_details", "thinking_blocks"})
_THOUGHT = ("thinking", "text", "summary")
_LEGACY = "function:"

# Per message and per call, as OpenAI's cookbook counts them, rounded up.
MESSAGE_OVERHEAD = 4
CALL_OVERHEAD = 8
# An answer in audio that is named by its id: a quarter of a minute, at a token for 50 ms.
_ANSWER_AUDIO_TOKENS = 300


def describe(message: object, count: CountTokens, family: str = "") -> Message | None:
    if not isinstance(message, dict) or not _has_names(message):
        return None
    spoken_as, content = message.get("role"), message.get("content")
    role = _ROLES.get(spoken_as, "user")
    if spoken_as in _SPEAKERS and isinstance(content, str) and message.keys() == _PLAIN:
        described = Message(role, MESSAGE_OVERHEAD + count(content), text_digest(role, content))
        return with_voices(described, [content], count)
    described = Message(
        role=role,
        tokens=_tokens(message, count, family),
        digest=message_digest(message),
        calls=tuple(map(_describe_call, _calls(message))) if role == "assistant" else (),
        results=(_answered_call(message),) if role == "tool" else (),
        joins=role == "tool",
        signed="sealed" if _is_signed(message) else "none",
        media=_has_media(message),
    )
    return with_voices(described, _texts(message), count, has_media=described.media)


def _has_names(message: Json) -> bool:
    """Whether role and kinds of parts are what the tables here are about: names, if anything."""
    role, content = message.get("role"), message.get("content")
    if isinstance(content, str):
        return role is None or isinstance(role, str)
    parts = content if isinstance(content, list) else [content]
    names = (role, *(part.get("type") for part in parts if isinstance(part, dict)))
    return all(name is None or isinstance(name, str) for name in names)


def _has_media(message: Json) -> bool:
    return any(not isinstance(part, str) for part in _parts(message.get("content")))


def _tokens(message: Json, count: CountTokens, family: str) -> int:
    """What is sent of a message. Ids are not: no template shows the model more than a few characters of one."""
    parts = _parts(message.get("content"))
    said = sum(count(part) if isinstance(part, str) else media_tokens(part, count, family) for part in parts)
    return MESSAGE_OVERHEAD + said + (0 if message.keys() <= _PLAIN else _tokens_beside(message, count))


def _tokens_beside(message: Json, count: CountTokens) -> int:
    calls = list(_calls(message))
    texts = [text for key in ("name", "refusal") if isinstance(text := message.get(key), str)]
    texts += [text for call in calls for text in (call.name, call.arguments)]
    spoken = _ANSWER_AUDIO_TOKENS if isinstance(message.get("audio"), dict) else 0
    return CALL_OVERHEAD * len(calls) + spoken + sum(map(count, texts)) + _reasoning_tokens(message, count)


def _reasoning_tokens(message: Json, count: CountTokens) -> int:
    """The largest, since providers and gateways say the same in several fields."""
    return max((_field_tokens(message[key], count) for key in _REASONING & message.keys()), default=0)


def _field_tokens(value: object, count: CountTokens) -> int:
    if isinstance(value, str):
        return count(value)
    total = 0
    for part in value if isinstance(value, list) else []:
        texts = part if isinstance(part, dict) else {}
        total += sum(count(text) for key in _THOUGHT if isinstance(text := texts.get(key), str))
        total += sealed_tokens(data) if isinstance(data := texts.get("data"), str) else 0
    return total


def _parts(content: object) -> Iterator[str | Json]:
    """Texts as strings, other parts as objects."""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            text = part.get("text", part.get("refusal", part.get("thinking")))
            yield text if isinstance(text, str) else part


def _calls(message: Json) -> Iterator[ToolCall]:
    return (_call(call_id, function) for call_id, function in _functions(message))


def _functions(message: Json) -> Iterator[tuple[str, object]]:
    """The id of every call and what it calls, the legacy one last."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict):
            yield id_of(call.get("id", "")), call.get("function") or call.get("custom")
        else:
            yield "", None
    if isinstance(legacy := message.get("function_call"), dict):
        yield id_of(_LEGACY + str(legacy.get("name", ""))), legacy


def _describe_call(call: ToolCall) -> Call:
    return Call(call.id, call.name, brings_foreign_text(call.name, call.arguments))


def _call(call_id: str, function: object) -> ToolCall:
    if not isinstance(function, dict):
        return ToolCall("", "", call_id)
    arguments = function.get("arguments", function.get("input", ""))
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return ToolCall(str(function.get("name", "")), text, call_id)


def _answered_call(message: Json) -> str:
    answered = message.get("tool_call_id")
    return id_of(answered if answered is not None else _LEGACY + str(message.get("name", "")))


def _is_signed(message: Json) -> bool:
    if any(message.get(key) for key in _SIGNED):
        return True
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(part, dict) and (part.get("type") in _SIGNED_PARTS or part.get("signature")) for part in content
    )


def utterances(message: object, position: int, tools: Sequence[str | None]) -> list[Utterance]:
    """Without media; of a user's message every part by itself."""
    if not isinstance(message, dict):
        return [Utterance(position, "user", "")]
    texts = _shown_parts(message)
    role = _ROLES.get(message.get("role"), "user")
    if role == "user" and len(texts) > 1:
        return [Utterance(position, role, text) for text in texts]
    said = Utterance(position, role, "\n".join(texts), tuple(_calls(message)), reasoning=_reasoning(message))
    if role == "tool":
        said = replace(said, answers=_answered_call(message), tool=next(iter(tools), None), error=_error(message))
    return [said]


def _texts(message: Json) -> list[str]:
    return [part for part in _parts(message.get("content")) if isinstance(part, str)]


def _shown_parts(message: Json) -> list[str]:
    """Texts, and the kinds of what is none."""
    texts = []
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and not _is_reasoning(part):
            text = part.get("text", part.get("refusal"))
            texts.append(text if isinstance(text, str) else f"[{part.get('type', 'media')}]")
    if isinstance(refusal := message.get("refusal"), str):
        texts.append(refusal)
    return texts


def _error(message: Json) -> bool | None:
    """Chat has no field for it; some clients send their own. That a result came in order says nothing of the call."""
    if isinstance(told := message.get("is_error"), bool):
        return told
    return True if message.get("status") == "error" else None


def _reasoning(message: Json) -> str:
    """What a message says of the model's thinking, in the fields that providers put it in."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    texts = [message.get("reasoning_content", message.get("reasoning"))]
    texts += [part.get("thinking", part.get("text")) for part in parts if _is_reasoning(part)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _is_reasoning(part: object) -> TypeGuard[Json]:
    return isinstance(part, dict) and part.get("type") in _SIGNED_PARTS


def inject(item: Injected) -> bytes:
    return msgspec.json.encode({"role": item.role, "content": item.text})


def merge(text: str, raw: bytes | memoryview) -> bytes:
    return with_beginning(raw, text, {"type": "text", "text": text})


def words(raw: bytes | memoryview) -> bytes:
    return _with_voice(raw, "person")


def rules(raw: bytes | memoryview) -> bytes:
    return _with_voice(raw, "instructions")


def _with_voice(raw: bytes | memoryview, voice: Voice) -> bytes:
    message = msgspec.json.decode(readable(bytes(raw)))
    texts = _texts(message)
    is_result = _ROLES.get(message.get("role"), "user") == "tool"
    if voice == "person" and not is_result:
        return bytes(raw)
    text = texts_of_voice(texts, voice, is_result=is_result)
    return inject(Injected(text)) if text else b""


def without_thinking(raw: bytes | memoryview) -> bytes | None:
    """Chat's providers bind no thinking to the prompt before it."""
    return bytes(raw)


def with_texts(raw: bytes | memoryview, texts: Sequence[str | None]) -> bytes:
    """A copy of a message with another text for its content, in the form the content had; nothing else changes."""
    (text,) = texts
    if text is None:
        return bytes(raw)
    message = msgspec.json.decode(readable(bytes(raw)))
    message["content"] = [{"type": "text", "text": text}] if isinstance(message.get("content"), list) else text
    return msgspec.json.encode(message)


def shorten(raw: bytes | memoryview, share: float) -> bytes:
    """A copy of a message in which every text keeps `share` of its length, head and tail, visibly marked.

    Ids, roles, names and order stay; media become a note; arguments stay JSON.
    """
    message = msgspec.json.decode(readable(bytes(raw)))
    if isinstance(message.get("content"), str):
        message["content"] = cut(message["content"], share)
    elif isinstance(message.get("content"), list):
        message["content"] = [_cut_part(part, share) for part in message["content"]]
    for _, function in _functions(message):
        for key, shorter in _CUT_CALLS.items():
            if isinstance(function, dict) and isinstance(function.get(key), str):
                function[key] = shorter(function[key], share)
    return msgspec.json.encode(message)


def _cut_part(part: object, share: float) -> object:
    if isinstance(part, str):
        return cut(part, share)
    if not isinstance(part, dict):
        return part
    if isinstance(part.get("text"), str):
        return {**part, "text": cut(part["text"], share)}
    if part.get("type") in KINDS:
        return {"type": "text", "text": f"[{part['type']} left out]"}
    return part


# A function takes JSON, a custom tool any text.
_CUT_CALLS = {"arguments": cut_arguments, "input": cut}
