"""A server as most are: it knows none of the providers' compaction protocols, and refuses what asks for them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

from tests.agents.speaking import Said
from tests.agents.working import Answered, WorkingServer, nothing_at, refused
from tests.support.conversations import Json

_FIELDS = ("context_management", "compaction")
_ITEMS = ("compaction_trigger", "compaction")


@dataclass
class WithoutProtocols(WorkingServer):
    """turns:   whether each part is a turn of its own: the user asks, the model calls, and says that it has read.

    answers: how often it said so. asked: how often each protocol was asked for.
    """

    turns: bool = False
    answers: int = 0
    asked: Counter[str] = field(default_factory=Counter)

    def _answered(self, method: str, path: str, raw: bytes) -> Answered:
        if path == f"{self.speech.path}/compact":
            self.asked["endpoint"] += 1
            return nothing_at(method, path)
        if path == self.speech.path and (unknown := self._unknown(json.loads(raw))) is not None:
            self.asked[unknown] += 1
            return refused(self.speech.refusal(f"Unknown parameter or type: '{unknown}'"))
        return super()._answered(method, path, raw)

    def _unknown(self, body: Json) -> str | None:
        items = body[self.speech.array]
        assert isinstance(items, list)
        blocks = [block for item in items if isinstance(item.get("content"), list) for block in item["content"]]
        kinds = {item.get("type") for item in [*items, *blocks]}
        return next((name for name in _FIELDS if name in body), next((kind for kind in _ITEMS if kind in kinds), None))

    def _worked(self, body: Json) -> Said | None:
        if not self.turns:
            return super()._worked(body)
        items = body[self.speech.array]
        assert isinstance(items, list)
        last = json.dumps(items[-1])
        if '"function_call_output"' not in last and '"tool_result"' not in last:
            return None
        if self.marker(self.done) not in last:
            self.problems.append(f"the result of round {self.done} is not at the end: {last[-300:]}")
        self.answers += 1
        return Said(1_000 + self.answers, f"Part {self.done} is read.")
