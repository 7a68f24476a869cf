"""One message: what the policies need to know of it, and its text for a transcript."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from policies.message import Call, Message, Role
from policies.transcript import CountTokens, ToolCall, Utterance
from policies.voices.foreign import brings_foreign_text
from policies.voices.heard import heard_in, heard_in_results
from proxy.dialects.messages.canonical import instruction_digest, message_digest
from proxy.dialects.messages.forms import inject, merge, rules, shorten, with_texts, without_thinking, words
from proxy.dialects.messages.kinds import (
    THINKING,
    Json,
    content_of,
    is_call,
    is_compaction,
    is_result,
    join_blocks,
    kind_of,
    script_of,
    shown_in,
    text_of,
    text_of_block,
    tools_changed,
    tools_loaded,
)
from proxy.dialects.texts import as_heard, id_of, with_text_call
from proxy.models.media import media_tokens, sealed_tokens

__all__ = [
    "describe",
    "inject",
    "merge",
    "rules",
    "shorten",
    "utterances",
    "with_texts",
    "without_thinking",
    "words",
]

# An unknown role is treated as a user's, which is never dropped.
_ROLES: Mapping[object, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
_MEDIA = frozenset({"image", "document"})

BLOCK_OVERHEAD = 4
CALL_OVERHEAD = 8

_Weigh = Callable[[Json], int]


def describe(message: object, count: CountTokens, family: str = "") -> Message | None:
    if not isinstance(message, dict):
        return None
    blocks = content_of(message)
    if not _has_names(message, blocks):
        return None
    describe_role = _DESCRIBED.get(message.get("role"), _of_user)
    return describe_role(message, blocks, partial(_tokens, count=count, family=family))


def _has_names(message: Json, blocks: Sequence[Json]) -> bool:
    """Whether role and kinds of blocks are what the tables here are about: names, if anything."""
    names = (message.get("role"), *(block.get("type") for block in blocks))
    return all(name is None or isinstance(name, str) for name in names)


def _of_user(message: Json, blocks: Sequence[Json], weigh: _Weigh) -> Message:
    tokens, digest = _weight(blocks, weigh), message_digest(message)
    results = [block for block in blocks if is_result(block)]
    rest = [block for block in blocks if not is_result(block)]
    heard = heard_in([text for block in rest if (text := text_of(block)) is not None])
    weight = partial(_text_weight, weigh=weigh)
    told = Message("user", tokens, digest, compacts=any(kind_of(block) == "compaction" for block in blocks))
    if not results:
        media = any(text_of(block) is None for block in blocks)
        told = msgspec.structs.replace(told, media=media)
        return as_heard(told, heard, weight, has_media=media)
    typed = heard_in_results([shown_in(block) for block in results])
    parts = (part for block in results for part in content_of(block))
    return msgspec.structs.replace(
        as_heard(told, heard, weight),
        role="tool",
        results=tuple(map(_answered_call, results)),
        # Media alone go with a result: of a page that a tool has read.
        words=weight(heard.words) + weight(typed.words),
        speech=heard.speech if heard.words else typed.speech,
        is_typed=not heard.words,
        joins=True,
        media=any(text_of(part) is None for part in parts),
        loads=_names(tools_loaded, results),
    )


def _text_weight(text: str, weigh: _Weigh) -> int:
    return weigh({"type": "text", "text": text}) if text else 0


def _of_model(message: Json, blocks: Sequence[Json], weigh: _Weigh) -> Message:
    """Calls of the provider's own tools hold their results, now or in what the same answer goes on with."""
    kinds = [kind_of(block) for block in blocks]
    calls = [_call(block) for block in blocks if is_call(block)]
    results = [block for block in blocks if is_result(block)]
    answered = [_answered_call(block) for block in results]
    made = {call.id for call in calls}
    thinks = not THINKING.isdisjoint(kinds)
    described = Message(
        role="assistant",
        tokens=_weight(blocks, weigh),
        digest=message_digest(message),
        calls=tuple(call for call in calls if call.id not in answered),
        results=tuple(result for result in answered if result not in made),
        continues=True,
        silent=thinks and THINKING.issuperset(kinds),
        signed="bound" if thinks else "none",
        media=not _MEDIA.isdisjoint(kinds),
        loads=_names(tools_loaded, results),
        barrier=any(map(is_compaction, blocks)),
        compacts="compaction" in kinds,
        scripts=tuple(script for block in blocks if (script := script_of(block)) is not None),
    )
    return with_text_call(described, [text for block in blocks[-1:] if (text := text_of(block)) is not None])


def _call(block: Json) -> Call:
    name = str(block.get("name", ""))
    return Call(id_of(block.get("id", "")), name, brings_foreign_text(name, block.get("input")))


def _of_operator(message: Json, blocks: Sequence[Json], weigh: _Weigh) -> Message:
    changes = _names(tools_changed, blocks)
    is_special = bool(changes) or message.get("output_config") is not None
    return Message(
        role="system",
        tokens=_weight(blocks, weigh),
        digest=message_digest(message),
        joins=True,
        loose=None if is_special else instruction_digest(message),
        lapses=message.get("clear_at") == "next_user_message",
        loads=changes,
    )


_DESCRIBED: Mapping[object, Callable[[Json, Sequence[Json], _Weigh], Message]] = {
    "system": _of_operator,
    "assistant": _of_model,
}


def _names(of_block: Callable[[Json], Iterator[str]], blocks: Sequence[Json]) -> tuple[str, ...]:
    return tuple(name for block in blocks for name in of_block(block))


def _answered_call(block: Json) -> str:
    return id_of(block.get("tool_use_id", ""))


def _weight(blocks: Sequence[Json], weigh: _Weigh) -> int:
    return sum(map(weigh, blocks)) or BLOCK_OVERHEAD


def _tokens(block: Json, count: CountTokens, family: str) -> int:
    """What is sent of a block. Ids are not: no template shows the model more than a few characters of one."""
    kind = kind_of(block)
    if (text := text_of(block)) is not None:
        return BLOCK_OVERHEAD + count(text)
    if is_call(block):
        return CALL_OVERHEAD + count(str(block.get("name", ""))) + count(_arguments(block))
    if kind == "tool_result":
        return BLOCK_OVERHEAD + sum(_part_tokens(part, count, family) for part in content_of(block))
    if kind in THINKING:
        return BLOCK_OVERHEAD + _thought_tokens(block, count)
    return BLOCK_OVERHEAD + media_tokens(block, count, family)


def _part_tokens(part: Json, count: CountTokens, family: str) -> int:
    text = text_of(part)
    return media_tokens(part, count, family) if text is None else count(text)


def _thought_tokens(block: Json, count: CountTokens) -> int:
    """Of thinking that is not shown, its signature holds all."""
    if isinstance(text := block.get("thinking"), str) and text:
        return count(text)
    return sum(sealed_tokens(sealed) for key in ("data", "signature") if isinstance(sealed := block.get(key), str))


def _arguments(block: Json) -> str:
    asked = block.get("input", {})
    return asked if isinstance(asked, str) else msgspec.json.encode(asked).decode()


def utterances(message: object, position: int, tools: Sequence[str | None]) -> list[Utterance]:
    """Without media: results first, then every other block of a user; of a model its words and calls, then what the
    provider's own tools came back with."""
    if not isinstance(message, dict):
        return [Utterance(position, "user", "")]
    role = _ROLES.get(message.get("role"), "user")
    blocks = content_of(message)
    if role == "system":
        return [Utterance(position, role, join_blocks(blocks))]
    apart = [block for block in blocks if is_result(block)]
    rest = [block for block in blocks if not is_result(block)]
    if role == "assistant":
        said = _answer(rest, position)
        return [said, *_results(apart, position, {call.id: call.name for call in said.calls}, tools)]
    said_before = _results(apart, position, {}, tools)
    said_before += [Utterance(position, role, text_of_block(block)) for block in rest]
    return said_before or [Utterance(position, role, "")]


def _answer(blocks: Sequence[Json], position: int) -> Utterance:
    """All but the results in it."""
    calls = tuple(
        ToolCall(str(block.get("name", "")), _arguments(block), id_of(block.get("id", "")))
        for block in blocks
        if is_call(block)
    )
    thoughts = [block.get("thinking") for block in blocks if kind_of(block) in THINKING]
    reasoning = "\n".join(thought for thought in thoughts if isinstance(thought, str) and thought)
    text = join_blocks([block for block in blocks if not is_call(block) and kind_of(block) not in THINKING])
    return Utterance(position, "assistant", text, calls, reasoning=reasoning)


def _results(
    blocks: Sequence[Json], position: int, made: Mapping[str, str], tools: Sequence[str | None]
) -> list[Utterance]:
    """Results of calls in this very message, by name, and of earlier ones: `tools` are theirs, in their order."""
    earlier = iter(tools)
    said = []
    for block in blocks:
        answered = _answered_call(block)
        tool = made[answered] if answered in made else next(earlier, None)
        said.append(Utterance(position, "tool", shown_in(block), answers=answered, tool=tool, error=_error(block)))
    return said


def _error(block: Json) -> bool | None:
    """What a result says of itself: by its own field, or as the provider's own tools do, by code or kind of content."""
    if isinstance(told := block.get("is_error"), bool):
        return told
    content = block.get("content")
    if not isinstance(content, dict):
        return None
    if isinstance(code := content.get("return_code"), int):
        return code != 0
    return True if kind_of(content).endswith("_error") or content.get("error_code") else None
