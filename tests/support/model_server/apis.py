"""The three APIs that the model server speaks, each of them by the same few functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from proxy.cli.demo.prompt import Chat, PromptMessage
from tests.support.model_server import answers, messages, prompt, responses
from tests.support.model_server.answers import Answer, ReplyUsage
from tests.support.model_server.replies import Reply


class _Refused(Protocol):
    def __call__(self, status: int, message: str, *, code: str | None = None) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Api:
    """What is read of a request, and how one is answered.

    path:     without the `/v1` that most clients put before it.
    read:     a request as a chat; None for what is none. `defects`: why one is refused.
    whole:    an answer in one piece; `stream`: event by event, without usage where none is wanted.
    too_long: by window, prompt and output.
    counted:  the answer at `count_path`, where there is one.
    """

    path: str
    read: Callable[[bytes], Chat | None]
    defects: Callable[[Sequence[PromptMessage]], Iterator[str]]
    whole: Callable[[Reply, str, int, ReplyUsage], Answer]
    stream: Callable[[Reply, str, int, ReplyUsage | None], Answer]
    too_long: Callable[[int, int, int], Answer]
    refused: _Refused
    count_path: str | None = None
    counted: Callable[[int], Answer] | None = None


CHAT = Api(
    "/chat/completions",
    prompt.read,
    prompt.defects,
    answers.completion,
    answers.stream,
    answers.too_long,
    answers.refused,
)
RESPONSES = Api(
    "/responses",
    responses.read,
    responses.defects,
    responses.whole,
    responses.stream,
    responses.too_long,
    responses.refusal,
    "/responses/input_tokens",
    responses.token_count,
)
MESSAGES = Api(
    "/messages",
    messages.read,
    messages.defects,
    messages.whole,
    messages.stream,
    messages.too_long,
    messages.refusal,
    "/messages/count_tokens",
    messages.token_count,
)
APIS = (CHAT, RESPONSES, MESSAGES)
