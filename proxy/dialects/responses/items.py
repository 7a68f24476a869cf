"""One item: what the policies need to know of it, its text for a transcript, and a shortened copy."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from policies.assembly import Injected
from policies.message import Message
from policies.transcript import CountTokens, ToolCall, Utterance
from policies.voices.tables import Voice
from proxy.dialects.json_array import with_fields
from proxy.dialects.responses.canonical import MARKS, Json, item_digest
from proxy.dialects.responses.kinds import (
    COMPACTIONS,
    HOSTED,
    TRIGGER,
    asked_in,
    call_id,
    calls_of,
    is_message,
    is_result,
    kind_of,
    role_of,
    scripts_of,
    tool_of,
    tools_of,
)
from proxy.dialects.surrogates import readable
from proxy.dialects.texts import cut, cut_arguments, cut_values, texts_of_voice, with_beginning, with_voices
from proxy.models.media import KINDS, media_tokens, sealed_tokens

# As chat's: a message is an item, and a call is one of its own.
ITEM_OVERHEAD = 4
CALL_OVERHEAD = 8

_SPOKEN = ("name", "namespace", "arguments", "input")
_FUNCTIONS = frozenset({"function_call", "custom_tool_call"})
# What a call asks for, and what one that holds its result was answered; the first that is there.
_ANSWERED = ("output", "error", "outputs", "results", "result")
_STREAMS = ("stdout", "stderr")


def describe(item: object, count: CountTokens, family: str = "") -> Message | None:
    if not isinstance(item, dict) or not _has_names(item):
        return None
    kind = kind_of(item)
    role = role_of(item, kind)
    described = Message(
        role=role,
        tokens=_tokens(item, kind, count, family),
        digest=item_digest(item, kind),
        calls=calls_of(item, kind),
        results=(call_id(item, kind),) if is_result(item, kind) else (),
        joins=role == "tool",
        continues=role == "assistant",
        silent=kind == "reasoning",
        signed="sealed" if kind == "reasoning" else "none",
        media=_has_media(item, kind),
        loads=tools_of(item, kind),
        stored=kind == "item_reference",
        barrier=kind in COMPACTIONS,
        bypass="provider_compaction" if kind == TRIGGER else None,
        compacts=kind in COMPACTIONS or kind == TRIGGER,
        scripts=scripts_of(item),
    )
    if is_message(item, kind) or is_result(item, kind):
        return with_voices(described, _texts(item, kind), count, has_media=described.media)
    # What is known by its kind alone is no person's.
    return msgspec.structs.replace(described, speech="none") if role == "user" else described


def _has_names(item: Json) -> bool:
    """Whether type, role and kinds of parts are what the tables here are about: names, if anything."""
    parts = [part for key in ("content", "output") for part in _content_parts(item.get(key)) if isinstance(part, dict)]
    names = (item.get("type"), item.get("role"), *(part.get("type") for part in parts))
    return all(name is None or isinstance(name, str) for name in names)


def _content_parts(content: object) -> Sequence[object]:
    return content if isinstance(content, list) else [content]


def _content(item: Json, kind: str) -> object:
    """What an item says to the model, where it is no call."""
    return item.get("content") if is_message(item, kind) else item.get("output")


def _texts(item: Json, kind: str) -> list[str]:
    return [text for part in _content_parts(_content(item, kind)) if (text := _text(part)) is not None]


def _text(part: object) -> str | None:
    """Of a part of a content; None for what is no text."""
    if isinstance(part, str):
        return part
    said = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
    return said if isinstance(said, str) else None


def _has_media(item: Json, kind: str) -> bool:
    """Whether a part of what it says is no text, so that no other text may take its place."""
    content = _content(item, kind)
    if is_message(item, kind):
        return content is not None and any(_text(part) is None for part in _content_parts(content))
    if is_result(item, kind):
        return isinstance(content, dict) or any(_text(part) is None for part in _content_parts(content))
    return kind == "image_generation_call"


def _tokens(item: Json, kind: str, count: CountTokens, family: str) -> int:
    """What is sent of an item. Ids are not: no template shows the model more than a few characters of one."""
    if kind in _FUNCTIONS:
        texts = (_as_text(item[key]) for key in _SPOKEN if item.get(key) is not None)
        return CALL_OVERHEAD + sum(map(count, texts))
    if kind == "reasoning" or kind in COMPACTIONS:
        return ITEM_OVERHEAD + max(_sealed_tokens(item), sum(map(count, _thoughts(item))))
    if kind == "item_reference":
        return ITEM_OVERHEAD
    content = _content(item, kind)
    if is_message(item, kind) or (is_result(item, kind) and isinstance(content, str | list)):
        return ITEM_OVERHEAD + sum(_part_tokens(part, count, family) for part in _content_parts(content))
    return _overhead(kind) + _other_tokens(item, kind, count, family)


def _overhead(kind: str) -> int:
    return CALL_OVERHEAD if kind.endswith("_call") else ITEM_OVERHEAD


def _part_tokens(part: object, count: CountTokens, family: str) -> int:
    text = _text(part)
    if text is not None:
        return count(text)
    return media_tokens(part, count, family) if isinstance(part, dict) else 0


def _other_tokens(item: Json, kind: str, count: CountTokens, family: str) -> int:
    """Its JSON, or something close to it, and the images in it."""
    image: object = item.get("output") if kind == "computer_call_output" else None
    if kind == "image_generation_call":
        image, item = {"data": item.get("result")}, {**item, "result": None}
    if isinstance(image, dict):
        item = {key: value for key, value in item.items() if key != "output"}
        return media_tokens({**image, "type": "input_image"}, count, family) + media_tokens(item, count, family)
    return media_tokens(item, count, family)


def _sealed_tokens(item: Json) -> int:
    sealed = item.get("encrypted_content")
    return sealed_tokens(sealed) if isinstance(sealed, str) else 0


def _thoughts(item: Json) -> Iterator[str]:
    """What is told of a thought, in short and as it was."""
    for key in ("summary", "content"):
        yield from (text for part in _content_parts(item.get(key)) if (text := _text(part)) is not None)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def utterances(item: object, position: int, tools: Sequence[str | None]) -> list[Utterance]:
    """Without media. A call that holds its result says both."""
    if not isinstance(item, dict):
        return [Utterance(position, "user", "")]
    kind = kind_of(item)
    if is_message(item, kind):
        role, parts = role_of(item, kind), _content_parts(item.get("content"))
        if role == "user" and len(parts) > 1:
            return [Utterance(position, role, _text_of_part(part)) for part in parts if part is not None]
        return [Utterance(position, role, _text_of_content(item.get("content")))]
    if kind == "reasoning":
        thought = "\n".join(_thoughts(item))
        return [Utterance(position, "assistant", "", reasoning=thought)] if thought else []
    if is_result(item, kind):
        tool = next(iter(tools), None)
        answers = call_id(item, kind)
        return [Utterance(position, "tool", _answer(item), answers=answers, tool=tool, error=_error(item, kind))]
    if kind in HOSTED or calls_of(item, kind):
        return _call_utterances(item, kind, position)
    text = _text_of_content(item.get("content")) or f"[{kind}]"
    return [Utterance(position, role_of(item, kind), text)]


def _call_utterances(item: Json, kind: str, position: int) -> list[Utterance]:
    call = ToolCall(tool_of(item, kind), _as_text(asked_in(item)), call_id(item, kind))
    said = Utterance(position, "assistant", "", (call,))
    if kind not in HOSTED:
        return [said]
    result = Utterance(position, "tool", _answer(item), answers=call.id, tool=call.name, error=_error(item, kind))
    return [said, result]


def _error(item: Json, kind: str) -> bool | None:
    """What a result says of itself. Of a function's, `completed` says only that it is there."""
    if item.get("error"):
        return True
    status = item.get("status")
    if status in ("failed", "incomplete"):
        return True
    output = item.get("output")
    ends = [end for part in (output if isinstance(output, list) else []) if (end := _exit_of(part)) is not None]
    if ends:
        return any(ends)
    return False if status == "completed" and (kind in HOSTED or kind == "apply_patch_call_output") else None


def _exit_of(part: object) -> bool | None:
    """Whether one command of a shell's results failed; None for what is none."""
    outcome = part.get("outcome") if isinstance(part, dict) else None
    if not isinstance(outcome, dict):
        return None
    return outcome.get("type") == "timeout" or outcome.get("exit_code") not in (0, None)


def _answer(item: Json) -> str:
    """What a result says; of tools that it brings, their names."""
    if names := tools_of(item, kind_of(item)):
        return ", ".join(names)
    if kind_of(item) == "image_generation_call":
        return "[image]"
    said = next((item[key] for key in _ANSWERED if item.get(key) is not None), None)
    if said is not None:
        return _text_of_content(said)
    return _as_text({key: item[key] for key in ("approve", "reason", "status") if item.get(key) is not None})


def _text_of_content(content: object) -> str:
    return "\n".join(_text_of_part(part) for part in _content_parts(content) if part is not None)


def _text_of_part(part: object) -> str:
    text = _text(part)
    if text is not None or not isinstance(part, dict):
        return text if text is not None else _as_text(part)
    kind = part.get("type")
    if kind in KINDS or kind == "computer_screenshot":
        return f"[{kind}]"
    streams = [stream for key in _STREAMS if isinstance(stream := part.get(key), str) and stream]
    return "\n".join(streams) if streams else _as_text(part)


def inject(item: Injected) -> bytes:
    """With its type, which an encoder of a server may want."""
    kind = "output_text" if item.role == "assistant" else "input_text"
    content = [{"type": kind, "text": item.text}]
    return msgspec.json.encode({"type": "message", "role": item.role, "content": content})


def merge(text: str, raw: bytes | memoryview) -> bytes:
    return with_beginning(raw, text, {"type": "input_text", "text": text})


def words(raw: bytes | memoryview) -> bytes:
    return _with_voice(raw, "person")


def rules(raw: bytes | memoryview) -> bytes:
    return _with_voice(raw, "instructions")


def _with_voice(raw: bytes | memoryview, voice: Voice) -> bytes:
    item = msgspec.json.decode(readable(bytes(raw)))
    kind = kind_of(item)
    if voice == "person" and not is_result(item, kind):
        return bytes(raw)
    text = texts_of_voice(_texts(item, kind), voice, is_result=is_result(item, kind))
    return inject(Injected(text)) if text else b""


def without_thinking(raw: bytes | memoryview) -> bytes | None:
    """Reasoning is not bound to the prompt before it."""
    return bytes(raw)


def without_sealed(raw: bytes) -> bytes | None:
    """Return an item of a prompt whose sealed reasoning is left out, None for such reasoning.

    Without their ids other items do not ask for the reasoning that came before them.
    """
    item = msgspec.json.decode(readable(raw))
    if not isinstance(item, dict):
        return raw
    if kind_of(item) == "reasoning":
        return None if item.get("encrypted_content") else raw
    is_models = item.get("call_id") is not None or role_of(item, kind_of(item)) == "assistant"
    has_id = item.get("id") is not None and is_models
    return with_fields(raw, {}, without=("id",)) if has_id else raw


def with_texts(raw: bytes | memoryview, texts: Sequence[str | None]) -> bytes:
    """A copy of an item with another text for what it says, in the form that had; what has a form of its own, as a
    shell's results, stays as it is."""
    (text,) = texts
    item = msgspec.json.decode(readable(bytes(raw)))
    kind = kind_of(item)
    key = "content" if is_message(item, kind) else "output"
    said = item.get(key)
    if text is None or not (isinstance(said, str) or _is_plain(said)):
        return bytes(raw)
    item[key] = text if isinstance(said, str) else [_text_part(text, role_of(item, kind), said)]
    return msgspec.json.encode(item)


def _is_plain(content: object) -> bool:
    """Whether it is a list of texts and media."""
    return isinstance(content, list) and all(
        _text(part) is not None or (isinstance(part, dict) and part.get("type") in KINDS) for part in content
    )


def _text_part(text: str, role: str, instead: Sequence[object]) -> Json:
    """A cache's mark stays where the client has it now."""
    last = instead[-1] if instead else None
    marks = {key: last[key] for key in MARKS & last.keys()} if isinstance(last, Mapping) else {}
    return {"type": "output_text" if role == "assistant" else "input_text", "text": text, **marks}


def shorten(raw: bytes | memoryview, share: float) -> bytes:
    """A copy of an item in which every text keeps `share` of its length, head and tail, visibly marked.

    Ids, types, names and reasoning stay; media become a note; arguments stay JSON.
    """
    item = msgspec.json.decode(readable(bytes(raw)))
    kind = kind_of(item)
    if kind == "reasoning" or kind in COMPACTIONS or tools_of(item, kind):
        return bytes(raw)
    for key, value in item.items():
        if key in ("content", "output"):
            item[key] = [_cut_part(part, share) for part in value] if isinstance(value, list) else _cut(value, share)
        elif key == "arguments":
            item[key] = cut_arguments(value, share) if isinstance(value, str) else cut_values(value, share)
        elif key == "operation":
            item[key] = cut_values(value, share)
        elif key == "input":
            item[key] = _cut(value, share)
    if kind == "image_generation_call":
        item["result"] = None
    return msgspec.json.encode(item)


def _cut(value: object, share: float) -> object:
    return cut(value, share) if isinstance(value, str) else value


def _cut_part(part: object, share: float) -> object:
    if not isinstance(part, dict):
        return _cut(part, share)
    if part.get("type") in KINDS:
        return {"type": "input_text", "text": f"[{part['type']} left out]"}
    return {key: _cut(value, share) if key in ("text", *_STREAMS) else value for key, value in part.items()}
