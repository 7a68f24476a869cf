"""Sessions of screenshots, in the forms in which agents send them, and servers with limits of their bytes or number."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.model_server import Fault, answers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.conversations import Json

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
_HEADER = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 1280, 800, 8, 2, 0, 0, 0)


def picture(number: int, size: int) -> str:
    """The base64 of one that no other number has, of about so many characters."""
    noise = hashlib.shake_128(b"%d" % number).digest(size * 3 // 4 - len(_HEADER))
    return base64.b64encode(_HEADER + noise).decode()


def _data(data: str) -> str:
    return f"data:image/png;base64,{data}"


def _user_chat(data: str, number: int) -> list[Json]:
    content: list[Json] = [
        {"type": "text", "text": f"screen {number}"},
        {"type": "image_url", "image_url": {"url": _data(data)}},
    ]
    return [{"role": "assistant", "content": f"step {number}"}, {"role": "user", "content": content}]


def _tool_messages(data: str, number: int) -> list[Json]:
    source = {"type": "base64", "media_type": "image/png", "data": data}
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": [{"type": "image", "source": source}]}
    use = {"type": "tool_use", "id": f"t{number}", "name": "screenshot", "input": {"n": number}}
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]


def _user_messages(data: str, number: int) -> list[Json]:
    source = {"type": "base64", "media_type": "image/png", "data": data}
    said = [{"type": "image", "source": source}, {"type": "text", "text": f"screen {number}"}]
    return [{"role": "assistant", "content": f"step {number}"}, {"role": "user", "content": said}]


def _tool_responses(data: str, number: int) -> list[Json]:
    output = [{"type": "input_image", "image_url": _data(data)}]
    return [
        {"type": "function_call", "call_id": f"t{number}", "name": "screenshot", "arguments": f'{{"n":{number}}}'},
        {"type": "function_call_output", "call_id": f"t{number}", "output": output},
    ]


def _computer(data: str, number: int) -> list[Json]:
    shot = {"type": "computer_screenshot", "image_url": _data(data)}
    return [
        {"type": "computer_call", "id": f"c{number}", "call_id": f"t{number}", "action": {"type": "screenshot"}},
        {"type": "computer_call_output", "call_id": f"t{number}", "output": shot},
    ]


@dataclass(frozen=True)
class Form:
    """How one kind of agent sends them. round_of: from the data and the number of one."""

    path: str
    round_of: Callable[[str, int], list[Json]]

    def body(self, messages: list[Json], **more: object) -> bytes:
        key = "input" if self.path == RESPONSES else "messages"
        return json.dumps({"model": "pictures", "max_tokens": 100, key: messages, **more}).encode()


FORMS = {
    "chat, user": Form(CHAT, _user_chat),
    "messages, tool": Form(MESSAGES, _tool_messages),
    "messages, user": Form(MESSAGES, _user_messages),
    "responses, tool": Form(RESPONSES, _tool_responses),
    "responses, computer": Form(RESPONSES, _computer),
}


@dataclass
class Limit:
    """What a server takes; `refused` counts what it has not taken. words: of the refusal, with its status."""

    status: int
    words: str
    bytes: int | None = None
    pictures: int | None = None
    refused: int = 0
    bad: set[str] = field(default_factory=set)

    def __call__(self, _: int, body: bytes) -> Fault | None:
        pictures = pictures_in(body)
        is_over = (self.bytes is not None and len(body) > self.bytes) or (
            self.pictures is not None and len(pictures) > self.pictures
        )
        if not is_over and not self.bad & {*pictures}:
            return None
        self.refused += 1
        if not self.words.startswith("<"):
            error = {"error": {"type": "invalid_request_error", "message": self.words}}
            return Fault(answer=answers.plain(self.status, error))
        return Fault(answer=answers.Answer(self.status, ((b"content-type", b"text/html"),), (self.words.encode(),)))


def pictures_in(body: bytes) -> list[str]:
    """Their data, but for the grey point that stands for a screenshot."""
    begin = base64.b64encode(_HEADER)[:28]
    return [body[at : body.index(b'"', at)].decode() for at in _places(body, begin)]


def _places(body: bytes, begin: bytes) -> list[int]:
    found, at = [], body.find(begin)
    while at >= 0:
        found.append(at)
        at = body.find(begin, at + 1)
    return found
