"""One content: what the policies need to know of it, its text, and other forms of it."""

import json
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from policies.assembly import Injected
from policies.chain import digest_of
from policies.message import Call, Message, Role
from policies.stamps import without_stamps
from policies.transcript import CountTokens, ToolCall, Utterance
from policies.voices.foreign import brings_foreign_text
from policies.voices.tables import Voice
from proxy.dialects.json_array import decode, members_of, split_items
from proxy.dialects.surrogates import readable
from proxy.dialects.texts import cut, cut_values, id_of, texts_of_voice, with_voices
from proxy.models.media import media_tokens

Json = Mapping[str, object]

_SEED = b"gemini"
_ROLES: Mapping[object, Role] = {"user": "user", "model": "assistant", "function": "user"}
_CONTENT_TOKENS, _CALL_TOKENS = 4, 8
_SIGNATURE = "thoughtSignature"


def describe(content: object, count: CountTokens, family: str = "") -> Message | None:
    if not isinstance(content, dict) or not isinstance(content.get("parts"), list):
        return None
    parts = [part for part in content["parts"] if isinstance(part, dict)]
    calls, results = list(_of_kind(parts, "functionCall")), list(_of_kind(parts, "functionResponse"))
    role: Role = "tool" if results else _ROLES.get(content.get("role"), "user")
    described = Message(
        role=role,
        tokens=_CONTENT_TOKENS + sum(_tokens(part, count, family) for part in parts),
        digest=digest_of(_SEED, [role, _canonical(parts)]),
        calls=tuple(map(_call, calls)),
        results=tuple(map(_id, results)),
        joins=role == "tool",
        signed="sealed" if any(part.get("thought") or _SIGNATURE in part for part in parts) else "none",
        media=any("inlineData" in part or "fileData" in part for part in parts),
    )
    return with_voices(described, _texts(parts), count, has_media=described.media)


def _of_kind(parts: Sequence[Json], kind: str) -> Iterator[Json]:
    return (value for part in parts if isinstance(value := part.get(kind), dict))


def _id(value: Json) -> str:
    """Older models name no ids: then there is one call of a function at a time."""
    return id_of(value.get("id") or value.get("name", ""))


def _call(call: Json) -> Call:
    name = str(call.get("name", ""))
    return Call(_id(call), name, brings_foreign_text(name, call.get("args")))


def _output(response: Json) -> str:
    """What a function came back with."""
    told = response.get("response")
    output = told.get("output", told.get("error")) if isinstance(told, dict) else told
    return output if isinstance(output, str) else json.dumps(told)


def _texts(parts: Sequence[Json]) -> list[str]:
    said = (
        _output(part["functionResponse"])
        if isinstance(part.get("functionResponse"), dict)
        else None
        if part.get("thought")
        else part.get("text")
        for part in parts
    )
    return [text for text in said if isinstance(text, str)]


def _tokens(part: Json, count: CountTokens, family: str) -> int:
    match part:
        case {"text": str(text)}:
            return count(text)
        case {"functionCall": dict(call)}:
            return _CALL_TOKENS + count(str(call.get("name"))) + count(json.dumps(call.get("args")))
        case {"functionResponse": dict(response)}:
            return count(_output(response))
        case _:
            return media_tokens(part, count, family)


def _canonical(parts: Sequence[Json]) -> list[object]:
    forms: list[object] = []
    for part in parts:
        match part:
            case {"thought": True}:
                continue
            case {"functionCall": dict(call)}:
                forms.append(["call", call.get("name"), call.get("args")])
            case {"functionResponse": dict(response)}:
                forms.append(["result", without_stamps(_output(response))])
            case {"text": str(said)}:
                forms.append(said)
            case _:
                forms.append({key: value for key, value in part.items() if key != _SIGNATURE})
    return forms


def utterances(content: object, position: int, tools: Sequence[str | None]) -> list[Utterance]:
    if not isinstance(content, dict):
        return [Utterance(position, "user", "")]
    parts = [part for part in content.get("parts", []) if isinstance(part, dict)]
    names, role = iter(tools), _ROLES.get(content.get("role"), "user")
    results = [
        Utterance(position, "tool", _output(each), answers=_id(each), tool=next(names, None), error=_error(each))
        for each in _of_kind(parts, "functionResponse")
    ]
    texts = [str(part["text"]) for part in parts if "text" in part and not part.get("thought")]
    if role == "user":
        return [*results, *(Utterance(position, role, text) for text in texts)] or [Utterance(position, role, "")]
    calls = tuple(
        ToolCall(str(call.get("name", "")), json.dumps(call.get("args", {})), _id(call))
        for call in _of_kind(parts, "functionCall")
    )
    thoughts = "\n".join(str(part.get("text")) for part in parts if part.get("thought"))
    return [Utterance(position, role, "\n".join(texts), calls, reasoning=thoughts)]


def _error(response: Json) -> bool | None:
    told = response.get("response")
    return True if isinstance(told, dict) and told.get("error") else None


# other forms


def inject(item: Injected) -> bytes:
    role = "model" if item.role == "assistant" else "user"
    return msgspec.json.encode({"role": role, "parts": [{"text": item.text}]})


def merge(text: str, raw: bytes | memoryview) -> bytes:
    members, parts = _opened(raw)
    return _closed(members, [msgspec.json.encode({"text": text}), *parts])


def words(raw: bytes | memoryview) -> bytes:
    return _with_voice(raw, "person")


def rules(raw: bytes | memoryview) -> bytes:
    return _with_voice(raw, "instructions")


def _with_voice(raw: bytes | memoryview, voice: Voice) -> bytes:
    parts = [part for part in decode(readable(bytes(raw)))["parts"] if isinstance(part, dict)]  # type: ignore[index]
    is_result = any("functionResponse" in part for part in parts)
    if voice == "person" and not is_result:
        return bytes(raw)
    text = texts_of_voice(_texts(parts), voice, is_result=is_result)
    return inject(Injected(text)) if text else b""


def with_texts(raw: bytes | memoryview, texts: Sequence[str | None]) -> bytes:
    members, parts = _opened(raw)
    if not any(b'"functionResponse"' in part for part in parts):
        (text,) = texts
        return bytes(raw) if text is None else _closed(members, [msgspec.json.encode({"text": text})])
    left = iter(texts)
    return _closed(
        members, [_with_output(part, next(left)) if b'"functionResponse"' in part else part for part in parts]
    )


def _with_output(part: bytes, text: str | None) -> bytes:
    if text is None:
        return part
    read = msgspec.json.decode(readable(part))
    read["functionResponse"]["response"] = {"output": text}
    return msgspec.json.encode(read)


def shorten(raw: bytes | memoryview, share: float) -> bytes:
    content = msgspec.json.decode(readable(bytes(raw)))
    content["parts"] = [_cut(part, share) for part in content["parts"]]
    return msgspec.json.encode(content)


def _cut(part: object, share: float) -> object:
    match part:
        case {"text": str(text)}:
            return {**part, "text": cut(text, share)}
        case {"functionCall": dict(call)}:
            return {**part, "functionCall": {**call, "args": cut_values(call.get("args"), share)}}
        case {"functionResponse": dict(response)}:
            told = cut_values(response.get("response"), share)
            return {**part, "functionResponse": {**response, "response": told}}
        case {"inlineData": _} | {"fileData": _}:
            return {"text": "[media left out]"}
        case _:
            return part


def without_thinking(raw: bytes | memoryview) -> bytes | None:
    """It is not bound to the prompt before it."""
    return bytes(raw)


def _opened(raw: bytes | memoryview) -> tuple[dict[str, bytes], list[bytes]]:
    members = members_of(bytes(raw))
    return members, split_items(members["parts"].partition(b":")[2].strip()[1:-1])


def _closed(members: Mapping[str, bytes], parts: Sequence[bytes]) -> bytes:
    return b"{" + b",".join({**members, "parts": b'"parts":[' + b",".join(parts) + b"]"}.values()) + b"}"
