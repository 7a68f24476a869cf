"""Items of the Responses API as blocks, and their rewritten forms."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from policies.conversation.message import Message
from policies.conversation.transcript import CountTokens
from policies.decision.assemble import Injected
from proxy.dialects.blocks import CALL_OVERHEAD, Block, Facts, Items, Kind, View, to_text
from proxy.dialects.json_array import with_fields
from proxy.dialects.responses.canonical import MARKS, Json, item_digest
from proxy.dialects.responses.kinds import (
    COMPACTIONS,
    DEFINING,
    HOSTED,
    TRIGGER,
    call_id,
    call_input,
    is_call,
    is_message,
    is_result,
    kind_of,
    role_of,
    scripts_of,
    speaker_of,
    tool_of,
    tools_of,
)
from proxy.dialects.surrogates import readable
from proxy.dialects.texts import cut, cut_arguments, cut_values
from proxy.models.media import KINDS, media_tokens, sealed_tokens

# As in chat. A message is an item, and so is a call.
ITEM_OVERHEAD = 4

_CALL_KEYS = ("name", "namespace", "arguments", "input")
_FUNCTIONS = frozenset({"function_call", "custom_tool_call"})
# Fields with the result of a call that holds it. The first one present counts.
_RESULT_KEYS = ("output", "error", "outputs", "results", "result")
_STREAMS = ("stdout", "stderr")
_FACTS: Mapping[str, Facts] = {
    "reasoning": Facts(silent=True, signed="sealed"),
    "item_reference": Facts(stored=True),
    "image_generation_call": Facts(media=True),
    TRIGGER: Facts(bypass="provider_compaction", compacts=True),
    **dict.fromkeys(COMPACTIONS, Facts(barrier=True, compacts=True)),
}


class ResponsesItems(Items):
    """Items. A message is a list of parts or a text. Calls, results and reasoning are items of their own."""

    NAMES = ("type", "role")
    LISTS = ("content", "output")
    ITEM_OVERHEAD = ITEM_OVERHEAD

    def read(self, item: Json, /) -> View:
        """Return the role and the blocks of an item by its type."""
        kind = kind_of(item)
        if is_message(item, kind):
            content = item.get("content")
            blocks = [] if content is None else [*map(_block, _content_parts(content))]
            role = speaker_of(item)
            return View(item, role, blocks, role != "user" or len(blocks) < 2, kind)
        if kind == "reasoning":
            return View(item, "assistant", [Block("thought", item)], False, kind)
        name, role = call_id(item, kind), role_of(item, kind)
        if is_result(item, kind):
            parts = [*map(_block, _content_parts(item.get("output")))]
            result = Block("result", item, id=name, parts=parts, error=_error(item, kind))
            return View(item, role, [result], False, kind)
        if kind in HOSTED or is_call(item, kind):
            blocks = [Block("call", item, id=name, name=tool_of(item, kind), given=call_input(item))]
            if kind in HOSTED:  # it holds its result
                blocks.append(Block("result", item, id=name, error=_error(item, kind)))
            return View(item, role, blocks, True, kind)
        return View(item, role, [Block("other", item)], True, kind)

    def digest(self, view: View, /) -> bytes:
        """Return the digest of the item's canonical form."""
        return item_digest(view.item, view.kind)

    def facts(self, view: View, /) -> Facts:
        """Return the facts of an item by its type."""
        item, kind = view.item, view.kind
        facts = Facts(continues=view.role == "assistant")
        if kind in DEFINING:
            facts["loads"] = tools_of(item, kind)
        if "caller" in item:
            facts["scripts"] = scripts_of(item)
        parts = view.blocks
        if _first_kind(view) == "result":
            parts = parts[0].parts or []
            facts["media"] = isinstance(item.get("output"), dict)
        for block in parts:
            if block.kind == "medium":
                facts["media"] = True
        if kind in _FACTS:
            facts.update(_FACTS[kind])
        return facts

    def tokens(self, view: View, count: CountTokens, family: str, /) -> int:
        """Return the tokens of an item by its type."""
        item, kind = view.item, view.kind
        match _first_kind(view):
            case "text" | "medium":
                return super().tokens(view, count, family)
            case "result" if isinstance(item.get("output"), str | list):
                return super().tokens(view, count, family)
            case "call" if kind in _FUNCTIONS:
                texts = (to_text(item[key]) for key in _CALL_KEYS if item.get(key) is not None)
                return CALL_OVERHEAD + sum(map(count, texts))
        if kind == "reasoning" or kind in COMPACTIONS:
            return ITEM_OVERHEAD + max(_sealed_tokens(item), sum(map(count, _thoughts(item))))
        if kind == "item_reference":
            return ITEM_OVERHEAD
        overhead = CALL_OVERHEAD if kind.endswith("_call") else ITEM_OVERHEAD
        return overhead + _other_tokens(item, kind, count, family)

    def hear(self, message: Message, view: View, count: CountTokens, /) -> Message:
        """Return the description with the authors of the item's texts, if it may hold a person's."""
        is_known = _first_kind(view) in ("thought", "call", "other")
        return message if is_known else super().hear(message, view, count)

    def shown(self, block: Block, /) -> str | None:
        """Return the text of a block in a transcript; None if it is not shown."""
        match block.kind:
            case "result":
                return _result_text(block.value)
            case "thought":
                return "\n".join(_thoughts(block.value)) or None
            case "other":
                return _text_of_content(block.value.get("content")) or f"[{kind_of(block.value)}]"
            case _:
                return None if block.value is None else _text_of_part(block.value)

    def inject(self, item: Injected, /) -> bytes:
        """Return an injected item. Some servers' encoders require the type."""
        kind = "output_text" if item.role == "assistant" else "input_text"
        content = [{"type": kind, "text": item.text}]
        return msgspec.json.encode({"type": "message", "role": item.role, "content": content})

    def text_part(self, text: str, _: object = None, /) -> dict[str, object]:
        """Return an injected text as a part. It has no cache mark."""
        return {"type": "input_text", "text": text}

    def with_texts(self, raw: bytes | memoryview, texts: Sequence[str | None], /) -> bytes:
        """Return an item with another text in the form of the old one.

        Results of shells and the like stay unchanged.
        """
        (text,) = texts
        item = msgspec.json.decode(readable(bytes(raw)))
        kind = kind_of(item)
        key = "content" if is_message(item, kind) else "output"
        content = item.get(key)
        if text is None or not (isinstance(content, str) or _is_plain(content)):
            return bytes(raw)
        item[key] = text if isinstance(content, str) else [_text_part(text, role_of(item, kind), content)]
        return msgspec.json.encode(item)

    def is_fixed(self, item: Json, /) -> bool:
        """Return True for reasoning, compactions, and items that define tools."""
        kind = kind_of(item)
        return kind == "reasoning" or kind in COMPACTIONS or bool(tools_of(item, kind))

    def shorter(self, part: Json, share: float, /) -> Json:
        """Return a part with its texts shortened, or a note for a medium."""
        noted = self.note_of(part)
        return {key: _cut_text(value, share) if key in ("text", *_STREAMS) else value for key, value in noted.items()}

    def shorten_fields(self, item: dict[str, object], share: float, /) -> None:
        """Shorten the arguments and inputs of a call, and drop a generated image."""
        for key, value in item.items():
            if key == "arguments":
                item[key] = cut_arguments(value, share) if isinstance(value, str) else cut_values(value, share)
            elif key == "operation":
                item[key] = cut_values(value, share)
            elif key == "input":
                item[key] = _cut_text(value, share)
        if kind_of(item) == "image_generation_call":
            item["result"] = None


def _first_kind(view: View) -> Kind:
    """Return the kind of the first block; `text` if a message has none."""
    return view.blocks[0].kind if view.blocks else "text"


def _block(part: object) -> Block:
    text = _text_or_none(part)
    return Block("medium" if text is None else "text", part, text)


def _content_parts(content: object) -> Sequence[object]:
    return content if isinstance(content, list) else [content]


def _text_or_none(part: object) -> str | None:
    """Return the text of a content part; None if it has none."""
    if isinstance(part, str):
        return part
    text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
    return text if isinstance(text, str) else None


def _other_tokens(item: Json, kind: str, count: CountTokens, family: str) -> int:
    """Return the tokens of an item's JSON, and of the images in it."""
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
    """Yield the texts of a thought: its summary and its content."""
    for key in ("summary", "content"):
        yield from (text for part in _content_parts(item.get(key)) if (text := _text_or_none(part)) is not None)


def _error(item: Json, kind: str) -> bool | None:
    """Return True if a result reports an error. A function's status `completed` does not mean success."""
    if item.get("error"):
        return True
    status = item.get("status")
    if status in ("failed", "incomplete"):
        return True
    output = item.get("output")
    ends = [end for part in (output if isinstance(output, list) else []) if (end := _is_failed(part)) is not None]
    if ends:
        return any(ends)
    return False if status == "completed" and (kind in HOSTED or kind == "apply_patch_call_output") else None


def _is_failed(part: object) -> bool | None:
    """Return True if a command of a shell's results failed; None if this is not a command."""
    outcome = part.get("outcome") if isinstance(part, dict) else None
    if not isinstance(outcome, dict):
        return None
    return outcome.get("type") == "timeout" or outcome.get("exit_code") not in (0, None)


def _result_text(item: Json) -> str:
    """Return the text of a result, or the names of the tools that it defines."""
    if names := tools_of(item, kind_of(item)):
        return ", ".join(names)
    if kind_of(item) == "image_generation_call":
        return "[image]"
    output = next((item[key] for key in _RESULT_KEYS if item.get(key) is not None), None)
    if output is not None:
        return _text_of_content(output)
    return to_text({key: item[key] for key in ("approve", "reason", "status") if item.get(key) is not None})


def _text_of_content(content: object) -> str:
    return "\n".join(_text_of_part(part) for part in _content_parts(content) if part is not None)


def _text_of_part(part: object) -> str:
    text = _text_or_none(part)
    if text is not None or not isinstance(part, dict):
        return text if text is not None else to_text(part)
    kind = part.get("type")
    if kind in KINDS or kind == "computer_screenshot":
        return f"[{kind}]"
    streams = [stream for key in _STREAMS if isinstance(stream := part.get(key), str) and stream]
    return "\n".join(streams) if streams else to_text(part)


def without_sealed(raw: bytes) -> bytes | None:
    """Return an item without sealed reasoning; None for an item of such reasoning.

    Items without ids do not require the reasoning before them.
    """
    item = msgspec.json.decode(readable(raw))
    if not isinstance(item, dict):
        return raw
    if kind_of(item) == "reasoning":
        return None if item.get("encrypted_content") else raw
    is_models = item.get("call_id") is not None or role_of(item, kind_of(item)) == "assistant"
    has_id = item.get("id") is not None and is_models
    return with_fields(raw, {}, without=("id",)) if has_id else raw


def _is_plain(content: object) -> bool:
    """Return True if this is a list of texts and media."""
    return isinstance(content, list) and all(
        _text_or_none(part) is not None or (isinstance(part, dict) and part.get("type") in KINDS) for part in content
    )


def _text_part(text: str, role: str, replaced: Sequence[object]) -> Json:
    """Return a part with this text, and the cache marks of the last replaced part."""
    last_part = replaced[-1] if replaced else None
    marks = {key: last_part[key] for key in sorted(MARKS & last_part.keys())} if isinstance(last_part, Mapping) else {}
    return {"type": "output_text" if role == "assistant" else "input_text", "text": text, **marks}


def _cut_text(value: object, share: float) -> object:
    return cut(value, share) if isinstance(value, str) else value


ITEMS = ResponsesItems()
