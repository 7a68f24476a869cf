"""A summarizer for where no model may be asked: it answers with lines of the transcript, as long as was wanted."""

import re
import time
from dataclasses import dataclass

import msgspec

from policies.record.prompting import Prompt
from policies.record.validation import SummaryAnswer
from proxy.dialects.base import Dialect
from proxy.models.tokenizer import Tokenizer
from proxy.upstreams.http import UpstreamClient
from proxy.upstreams.routes import SummaryTarget
from proxy.upstreams.summarizer import Summarizer

_LENGTH = re.compile(r"At most (\d+) tokens")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_LONGEST_LINE = 300
# A summary must weigh less than half of its source.
_MOST_OF_SOURCE = 0.4


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call: its request, what that is written in, and the tokens that a model was asked to write."""

    body: bytes
    dialect: Dialect
    written: int


class StandIn(Summarizer):
    """Answers at once, always the same, and remembers what it was asked."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(UpstreamClient(), time.monotonic, lambda _: None)
        self._tokenizer = tokenizer
        self._calls: list[ModelCall] = []

    def take_calls(self) -> list[ModelCall]:
        """The calls since this was asked last."""
        calls, self._calls = self._calls, []
        return calls

    async def ask(self, target: SummaryTarget, prompt: Prompt, max_tokens: int, *_: object) -> SummaryAnswer:
        body = target.dialect.questions.ask(target.model, prompt, (target.output_key, max_tokens), None)
        return self._answer(target, body, prompt.system, prompt.user)

    async def send(self, target: SummaryTarget, body: bytes, *_: object, **__: object) -> SummaryAnswer:
        """Answer a session's own request that ends with our instruction."""
        texts = [text for item in msgspec.json.decode(body)[target.dialect.array.name] for text in _texts(item)]
        return self._answer(target, body, texts[-1], "\n".join(texts[:-1]))

    def _answer(self, target: SummaryTarget, body: bytes, instruction: str, source: str) -> SummaryAnswer:
        asked = _LENGTH.search(instruction)
        length = int(asked[1]) if asked else 0
        self._calls.append(ModelCall(body, target.dialect, length))
        first, *others = [f"## {heading}" for heading in _HEADING.findall(instruction)] or [""]
        rest = "".join(f"\n\n{heading}\n(none)" for heading in others)
        room = min(length, int(_MOST_OF_SOURCE * self._count(target, source))) - self._count(target, first + rest)
        return SummaryAnswer(f"{first}\n{self._newest(target, source, room)}{rest}".strip(), "stop")

    def _newest(self, target: SummaryTarget, source: str, room: int) -> str:
        """The newest lines of the source that fit, without those that hold tags."""
        kept: list[str] = []
        for line in reversed(source.splitlines()):
            if not line.strip() or "<" in line:
                continue
            kept.append(f"- {line.strip()[:_LONGEST_LINE]}")
            room -= self._count(target, kept[-1]) + 1
            if room < 0:
                kept.pop()
                break
        return "\n".join(reversed(kept))

    def _count(self, target: SummaryTarget, text: str) -> int:
        return self._tokenizer.count(text, target.encoding)


def _texts(item: dict[str, object]) -> list[str]:
    content = item.get("content")
    parts = [part.get("text") for part in content] if isinstance(content, list) else [content]
    return [part for part in parts if isinstance(part, str)]
