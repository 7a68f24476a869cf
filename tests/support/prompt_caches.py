"""A provider's prompt cache, as far as one session needs it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from proxy.dialects.base import Dialect
from proxy.dialects.table import MESSAGES
from tests.support import strict_messages
from tests.support.conversations import Json
from tests.support.dialects import taken_apart
from tests.support.worlds import MARKS, unmarked

LOOK_BACK = 20
# What changes the messages' part of Anthropic's cache, beside them (platform.claude.com, prompt-caching).
_READ_ANEW = ("tool_choice", "thinking", "output_config")
_MARK = {"cache_control": {"type": "ephemeral"}}


@dataclass
class PromptCache:
    """It reads what the longest prefix holds that it knows, in characters.

    Every prefix of items is known of chat and Responses. Of Messages it is those that end at a mark, which are looked
    for over 20 blocks back from every mark.
    """

    dialect: Dialect
    read: int = 0
    prompts: int = 0
    _known: set[bytes] = field(default_factory=set)

    def take(self, body: Json) -> float:
        """The share of the next prompt that is read."""
        blocks = list(_blocks(self.dialect, body))
        texts = [json.dumps(unmarked(block)) for block in blocks]
        sizes = list(accumulate(map(len, texts)))
        names = list(accumulate(texts, _name, initial=b""))[1:]
        by_marks = self.dialect is MESSAGES
        ends = [at for at, block in enumerate(blocks) if not by_marks or _is_marked(block)]
        reach = LOOK_BACK if by_marks else 0
        found = [i for end in ends for i in range(max(0, end - reach), end + 1) if names[i] in self._known]
        read = sizes[max(found)] if found else 0
        self.read += read
        self.prompts += sizes[-1]
        self._known.update(names[end] for end in ends)
        return read / sizes[-1]


def _name(before: bytes, text: str) -> bytes:
    return hashlib.sha256(before + text.encode()).digest()


def _blocks(dialect: Dialect, body: Json) -> Iterator[object]:
    """In the order in which a model reads them; before the items what makes a provider read them anew."""
    instructions, items = taken_apart(dialect, body)
    yield body.get("response_format", body.get("text"))
    yield body.get("tools")
    yield from instructions if isinstance(instructions, list) else [instructions]
    if dialect is MESSAGES:
        yield [body.get(field) for field in _READ_ANEW]
    for item in items:
        if dialect is MESSAGES:
            yield from ({"role": item["role"], **block} for block in strict_messages.blocks(item))
        else:
            yield item


def _is_marked(block: object) -> bool:
    return isinstance(block, dict) and any(mark in block for mark in MARKS)


def marked(body: Json) -> Json:
    """A Messages request with the marks that its clients put: on the instructions and on the newest message."""
    messages = body["messages"]
    assert isinstance(messages, list)
    *before, last = messages
    newest = {**last, "content": _marked_last(last["content"])}
    return {**body, "system": _marked_last(body["system"]), "messages": [*before, newest]}


def _marked_last(content: object) -> list[Json]:
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return [*blocks[:-1], {**blocks[-1], **_MARK}]
