"""Contents as lists of blocks."""

import json
from collections.abc import Mapping

import msgspec

from policies.conversation.message import Role
from policies.conversation.prefix_digests import digest_of
from policies.conversation.timestamps import without_stamps
from policies.decision.assemble import Injected
from proxy.dialects.block_lists import BlockListItems
from proxy.dialects.blocks import Block, Facts, Json, View
from proxy.dialects.surrogates import readable
from proxy.dialects.texts import cut, cut_values, id_of

_SEED = b"gemini"
_ROLES: Mapping[object, Role] = {"model": "assistant"}
_SIGNATURE = "thoughtSignature"


class Contents(BlockListItems):
    """A content is a list of parts, each known by its one key."""

    LISTS = ("parts",)

    def is_readable(self, item: Json, /) -> bool:
        return isinstance(item.get("parts"), list)

    def read(self, item: Json, /) -> View:
        blocks = [self.block(part) for part in item["parts"] if isinstance(part, dict)]  # type: ignore[attr-defined]
        if any(block.kind == "result" for block in blocks):
            return View(item, "tool", blocks, speaks=False)
        return View(item, _ROLES.get(item.get("role"), "user"), blocks)

    def block(self, part: Json, /) -> Block:
        match part:
            case {"text": str(text)}:
                return Block("thought" if part.get("thought") else "text", part, text)
            case {"functionCall": dict(call)}:
                return Block("call", part, id=_id(call), name=str(call.get("name", "")), given=call.get("args", {}))
            case {"functionResponse": dict(response)}:
                told = response.get("response")
                error = True if isinstance(told, dict) and told.get("error") else None
                return Block("result", part, id=_id(response), parts=[Block("text", told, _output(told))], error=error)
            case {"inlineData": _} | {"fileData": _}:
                return Block("medium", part)
            case _:
                return Block("other", part)

    def facts(self, view: View, /) -> Facts:
        is_signed = any(block.kind == "thought" or _SIGNATURE in block.value for block in view.blocks)
        media = any(block.kind == "medium" for block in view.blocks)
        return Facts(signed="sealed" if is_signed else "none", media=media)

    def digest(self, view: View, /) -> bytes:
        return digest_of(_SEED, [view.role, [_canonical(block) for block in view.blocks if block.kind != "thought"]])

    def inject(self, item: Injected, /) -> bytes:
        role = "model" if item.role == "assistant" else "user"
        return msgspec.json.encode({"role": role, "parts": [self.text_part(item.text)]})

    def text_part(self, text: str, _: object = None, /) -> dict[str, object]:
        return {"text": text}

    def with_result(self, written: bytes, block: Block, text: str, /) -> bytes:
        part = msgspec.json.decode(readable(written))
        part["functionResponse"]["response"] = {"output": text}
        return msgspec.json.encode(part)

    def shorter(self, part: Json, share: float, /) -> Json:
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


def _id(value: Json) -> str:
    """Older models name no ids: then there is one call of a function at a time."""
    return id_of(value.get("id") or value.get("name", ""))


def _output(told: object) -> str:
    """What a function came back with."""
    output = told.get("output", told.get("error")) if isinstance(told, dict) else told
    return output if isinstance(output, str) else json.dumps(told)


def _canonical(block: Block) -> object:
    match block.kind:
        case "call":
            return ["call", block.name, block.given]
        case "result":
            return ["result", without_stamps("".join(part.text or "" for part in block.parts or ()))]
        case "text":
            return block.text
        case _:
            return {key: value for key, value in block.value.items() if key != _SIGNATURE}


ITEMS = Contents()
