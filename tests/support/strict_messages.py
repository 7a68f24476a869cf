"""A provider of /v1/messages that takes nothing for granted: what it refuses, in its words, and how it signs thinking.

As platform.claude.com/docs says, and as the clients that were seen rely on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tests.support.conversations import Json

MOST_MARKS = 4
_THINKING = ("thinking", "redacted_thinking")


def defects(body: Json, *, alternating: bool = False) -> list[str]:
    """Why a body is refused; nothing where it is taken. `alternating`: by a server that wants roles to take turns."""
    messages = _listed(body.get("messages"))
    found = [*_roles(messages, alternating=alternating), *_pairs(messages), *_contents(messages), *_marks(body)]
    found += _instructions(messages)
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "enabled":
        found += _thinking_leads(messages)
    return found


def _listed(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def blocks(message: Json) -> list[Json]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else _listed(content)


def _of_kind(message: Json, *kinds: str) -> list[Json]:
    return [block for block in blocks(message) if block["type"] in kinds]


def _roles(messages: Sequence[Json], *, alternating: bool) -> Iterator[str]:
    if not messages:
        yield "messages: at least one message is required"
        return
    if messages[0]["role"] != "user" and not any(_of_kind(message, "compaction") for message in messages[:1]):
        yield "messages: first message must use the user role"
    talk = [message["role"] for message in messages if message["role"] != "system"]
    if alternating and any(one == other for one, other in pairwise(talk)):
        yield "messages: roles must alternate between user and assistant"


def _pairs(messages: Sequence[Json]) -> Iterator[str]:
    """Users in a row are one; so are answers in a row."""
    open_calls: dict[str, int] = {}
    served: set[object] = set()
    for at, role, together in _turns(messages):
        kinds = [block["type"] for block in together]
        results = [str(block["tool_use_id"]) for block in together if block["type"] == "tool_result"]
        if role == "assistant":
            open_calls = {str(block["id"]): at for block in together if block["type"] == "tool_use"}
            served.update(block["id"] for block in together if block["type"] in ("server_tool_use", "mcp_tool_use"))
            yield from _server_results(at, together, served)
            continue
        if kinds[: len(results)] != ["tool_result"] * len(results):
            yield f"messages.{at}: `tool_result` blocks must come first in a message"
        for result in results:
            if open_calls.pop(result, None) is None:
                yield f"messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks: {result}"
        for call, made in open_calls.items():
            yield f"messages.{made}: `tool_use` ids were found without `tool_result` blocks immediately after: {call}"
        open_calls = {}
    for call, made in open_calls.items():
        yield f"messages.{made}: `tool_use` ids were found without `tool_result` blocks immediately after: {call}"


def _turns(messages: Sequence[Json]) -> list[tuple[int, str, list[Json]]]:
    """Where each side begins to speak, and all that it says at once; instructions are apart."""
    found: list[tuple[int, str, list[Json]]] = []
    for at, message in enumerate(messages):
        if message["role"] == "system":
            continue
        if found and found[-1][1] == message["role"]:
            found[-1][2].extend(blocks(message))
        else:
            found.append((at, str(message["role"]), blocks(message)))
    return found


def _server_results(at: int, together: Sequence[Json], made: set[object]) -> Iterator[str]:
    for block in together:
        kind = str(block["type"])
        if kind.endswith("_tool_result") and block["tool_use_id"] not in made:
            yield f"messages.{at}: unexpected `tool_use_id` found in `{kind}` blocks: {block['tool_use_id']}"


def _contents(messages: Sequence[Json]) -> Iterator[str]:
    for at, message in enumerate(messages):
        said = blocks(message)
        if not said:
            yield f"messages.{at}: all messages must have non-empty content"
        for number, block in enumerate(said):
            inner = _listed(block.get("content")) if block["type"] == "tool_result" else []
            if any(text["type"] == "text" and not str(text["text"]).strip() for text in (block, *inner)):
                yield f"messages.{at}.content.{number}: text content blocks must be non-empty"


def marks(body: Json) -> list[str]:
    """How long what each mark stands for is kept, in the order of the prompt."""
    places: list[object] = [body.get("tools"), body.get("system"), body.get("messages")]
    found = [str(mark.get("ttl", "5m")) for place in places for mark in _marks_in(place)]
    return [*found, "5m"] if body.get("cache_control") else found


def _marks_in(value: object) -> Iterator[Json]:
    if isinstance(value, list):
        for item in value:
            yield from _marks_in(item)
    elif isinstance(value, dict):
        if isinstance(value.get("content"), list):
            yield from _marks_in(value["content"])
        if isinstance(mark := value.get("cache_control"), dict):
            yield mark


def _marks(body: Json) -> Iterator[str]:
    found = marks(body)
    if len(found) > MOST_MARKS:
        yield f"A maximum of {MOST_MARKS} blocks with cache_control may be provided. Found {len(found)}."
    if "5m" in found and "1h" in found[found.index("5m") :]:
        yield "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"


def _instructions(messages: Sequence[Json]) -> Iterator[str]:
    """Neighbours count as one."""
    for at, message in enumerate(messages):
        if message["role"] != "system":
            continue
        before = next((other for other in reversed(messages[:at]) if other["role"] != "system"), None)
        behind = next((other for other in messages[at:] if other["role"] != "system"), None)
        if before is None or before["role"] != "user":
            yield f"messages.{at}: role 'system' must follow a user message"
        if behind is not None and behind["role"] != "assistant":
            yield f"messages.{at}: role 'system' must come before an assistant message or last"


def _thinking_leads(messages: Sequence[Json]) -> Iterator[str]:
    """The last tool loop begins with thinking: what the model said since the newest user message with words."""
    turns = _turns(messages)
    start = 0
    for number, (_, role, together) in enumerate(turns):
        if role == "user" and any(block["type"] != "tool_result" for block in together):
            start = number + 1
    loop = [turn for turn in turns[start:] if turn[1] == "assistant"]
    if loop and loop[0][2][0]["type"] not in _THINKING and turns[-1][1] == "user":
        found = loop[0][2][0]["type"]
        yield (
            f"messages.{loop[0][0]}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{found}`."
            " When `thinking` is enabled, a final `assistant` message must start with a thinking block."
        )


class Signer:
    """Signs thinking over everything before it. Blocks may be left out as an unbroken run from the first, for ever."""

    def __init__(self) -> None:
        self._prompts: dict[str, str] = {}
        self._before: dict[str, list[str]] = {}
        self._left_out: dict[str, set[str]] = {}

    def sign(self, body: Json, thought: str) -> Json:
        """A block for the answer to this body."""
        messages = _listed(body["messages"])
        prompt = _prompt(body, messages)
        signature = f"{thought}:{prompt}"
        self._prompts[signature] = prompt
        self._before[signature] = [earlier for _, earlier in _signatures(messages)]
        self._left_out[signature] = set()
        return {"type": "thinking", "thinking": thought, "signature": signature}

    def refused(self, body: Json) -> list[str]:
        """Why thinking in a body does not hold there."""
        messages = _listed(body["messages"])
        signed = list(_signatures(messages))
        found = []
        missing: dict[str, set[str]] = {}
        for number, (at, signature) in enumerate(signed):
            there = {earlier for _, earlier in signed[:number]}
            before = self._before.get(signature, [])
            missing[signature] = {*before} - there
            kept = [earlier in there for earlier in before]
            is_broken = True in kept and False in kept[kept.index(True) :]
            is_back = not there.isdisjoint(self._left_out.get(signature, ()))
            if is_broken or is_back or self._prompts.get(signature) != _prompt(body, messages[:at]):
                found.append(
                    f"messages.{at}: Invalid `signature` in `thinking` block."
                    " The block is bound to a different conversation."
                )
        if not found:
            for signature, gone in missing.items():
                self._left_out[signature] |= gone
        return found


def _signatures(messages: Sequence[Json]) -> Iterator[tuple[int, str]]:
    for at, message in enumerate(messages):
        yield from ((at, str(block.get("signature"))) for block in _of_kind(message, "thinking"))


def _prompt(body: Json, messages: Sequence[Json]) -> str:
    """Of all before a block but marks: other thinking is judged apart."""
    said = [{**m, "content": [block for block in blocks(m) if block["type"] not in _THINKING]} for m in messages]
    prompt = [body.get("system"), body.get("tools"), [message for message in said if message["content"]]]
    return hashlib.sha256(json.dumps(_unmarked(prompt), sort_keys=True).encode()).hexdigest()[:16]


def _unmarked(value: object) -> object:
    if isinstance(value, dict):
        return {key: _unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value
