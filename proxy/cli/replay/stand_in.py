"""An offline summarizer: it answers with lines of the transcript, in the requested length."""

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
# A valid summary has less than half the tokens of its source.
_MOST_OF_SOURCE = 0.4


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call: its request, its dialect, and the requested number of tokens."""

    body: bytes
    dialect: Dialect
    written: int


class StandIn(Summarizer):
    """A summarizer with deterministic responses that stores its calls."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Create a summarizer that counts with this tokenizer."""
        super().__init__(UpstreamClient(), time.monotonic, lambda _: None)
        self._tokenizer = tokenizer
        self._calls: list[ModelCall] = []

    def take_calls(self) -> list[ModelCall]:
        """Return the calls since the last time."""
        calls, self._calls = self._calls, []
        return calls

    async def ask(self, target: SummaryTarget, prompt: Prompt, max_tokens: int, *_: object) -> SummaryAnswer:
        """Answer a summary request."""
        body = target.dialect.questions.ask(target.model, prompt, (target.output_key, max_tokens), None)
        return self._answer(target, body, prompt.system, prompt.user)

    async def send(self, target: SummaryTarget, body: bytes, *_: object, **__: object) -> SummaryAnswer:
        """Answer a session's own request that ends with the summary instruction."""
        texts = [text for item in msgspec.json.decode(body)[target.dialect.array.name] for text in _texts(item)]
        return self._answer(target, body, texts[-1], "\n".join(texts[:-1]))

    def _answer(self, target: SummaryTarget, body: bytes, instruction: str, source: str) -> SummaryAnswer:
        length_match = _LENGTH.search(instruction)
        length = int(length_match[1]) if length_match else 0
        self._calls.append(ModelCall(body, target.dialect, length))
        first_heading, *headings = [f"## {heading}" for heading in _HEADING.findall(instruction)] or [""]
        sections = "".join(f"\n\n{heading}\n(none)" for heading in headings)
        room = min(length, int(_MOST_OF_SOURCE * self._count(target, source))) - self._count(
            target, first_heading + sections
        )
        return SummaryAnswer(f"{first_heading}\n{self._newest(target, source, room)}{sections}".strip(), "stop")

    def _newest(self, target: SummaryTarget, source: str, room: int) -> str:
        """Return the newest lines of the source that fit, without lines that contain tags."""
        lines: list[str] = []
        for line in reversed(source.splitlines()):
            if not line.strip() or "<" in line:
                continue
            lines.append(f"- {line.strip()[:_LONGEST_LINE]}")
            room -= self._count(target, lines[-1]) + 1
            if room < 0:
                lines.pop()
                break
        return "\n".join(reversed(lines))

    def _count(self, target: SummaryTarget, text: str) -> int:
        return self._tokenizer.count(text, target.encoding)


def _texts(item: dict[str, object]) -> list[str]:
    content = item.get("content")
    parts = [part.get("text") for part in content] if isinstance(content, list) else [content]
    return [part for part in parts if isinstance(part, str)]
