"""What calls cost at a provider: its prompt cache, simulated to the byte, and the bill of a session.

Anthropic (platform.claude.com, "Prompt caching"): a prefix is kept where a block is marked, and found again at a mark
or at one of the 20 blocks up to it. OpenAI (platform.openai.com, "Prompt caching"): the longest known beginning of
1,024 tokens or more is found by itself, in steps of 128. Nothing expires: all requests come within minutes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal, Protocol

from policies.price import Price, Tokens
from tests.support.conversations import Json
from tests.support.strict_messages import blocks

LEAST_CACHED = 1_024
_STEP = 128
_LOOKBACK = 20
# A prompt that finds so many tokens less than the one before it had is a break; less is a last message of its own.
BREAK = 2_048

Count = Callable[[str], int]
Kind = Literal["work", "own summary", "our summary", "beside"]


@dataclass(frozen=True, slots=True)
class Unit:
    """What a provider reads in one piece; mark: for how long a cache is asked to keep all up to it."""

    text: str
    mark: Literal["", "5m", "1h"] = ""


class Cache(Protocol):
    def size(self, body: Json) -> int:
        """Tokens of a prompt."""

    def take(self, body: Json) -> Tokens:
        """A prompt's tokens, by what is kept of earlier ones; it is kept from now on."""


@dataclass
class MarkedCache:
    """Of Messages."""

    count: Count
    _kept: set[bytes] = field(default_factory=set)

    def size(self, body: Json) -> int:
        return sum(self.count(unit.text) for unit in marked_units(body))

    def take(self, body: Json) -> Tokens:
        units = [*marked_units(body)]
        ends, digests, total = [], [], 0
        digest = hashlib.sha256(str(body.get("model")).encode())
        for unit in units:
            digest.update(unit.text.encode() + b"\n")
            total += self.count(unit.text)
            ends.append(total)
            digests.append(digest.digest())
        marks = [at for at, unit in enumerate(units) if unit.mark and ends[at] >= LEAST_CACHED]
        looked_at = {at for mark in marks for at in range(mark, max(-1, mark - _LOOKBACK), -1)}
        cached = max((ends[at] for at in looked_at if digests[at] in self._kept), default=0)
        long = max((ends[at] for at in marks if units[at].mark == "1h"), default=0)
        last = ends[marks[-1]] if marks else 0
        self._kept.update(digests[at] for at in marks)
        written_long = max(0, long - cached)
        return Tokens(total, 0, cached, max(0, last - max(long, cached)), written_long)


def marked_units(body: Json) -> Iterator[Unit]:
    """Tools, system, and blocks of messages, in the order in which they are cached.

    What the model may call and how it thinks are read before the messages: a change breaks the cache of these.
    """
    system = body.get("system") or []
    for block in [*_listed(body.get("tools")), *(_listed(system) if isinstance(system, list) else [{"text": system}])]:
        yield _unit("", block)
    how = json.dumps([body.get("tool_choice"), body.get("thinking")])
    for message in _listed(body["messages"]):
        for block in blocks(message):
            yield _unit(f"{how}{message['role']}: ", block)
            how = ""


def _unit(before: str, block: Json) -> Unit:
    rest = {name: value for name, value in block.items() if name != "cache_control"}
    control = block.get("cache_control")
    mark: Literal["", "5m", "1h"] = ""
    if isinstance(control, dict):
        mark = "1h" if control.get("ttl") == "1h" else "5m"
    return Unit(before + json.dumps(rest, ensure_ascii=False), mark)


def _listed(value: object) -> list[Json]:
    return value if isinstance(value, list) else []


@dataclass
class _Node:
    behind: dict[str, _Node] = field(default_factory=dict)


@dataclass
class PrefixCache:
    """Of OpenAI's dialects. array: where a body's items stand."""

    count: Count
    array: str
    _known: dict[str, _Node] = field(default_factory=dict)

    def size(self, body: Json) -> int:
        return sum(map(self.count, self._texts(body)))

    def take(self, body: Json) -> Tokens:
        texts = self._texts(body)
        weights = [*map(self.count, texts)]
        cached = self._found(str(body.get("model")), texts, weights)
        return Tokens(sum(weights), 0, cached - cached % _STEP if cached >= LEAST_CACHED else 0)

    def _texts(self, body: Json) -> list[str]:
        before = [*_listed(body.get("tools")), *([body["instructions"]] if body.get("instructions") else [])]
        return [json.dumps(item, ensure_ascii=False) for item in [*before, *_listed(body[self.array])]]

    def _found(self, model: str, texts: Sequence[str], weights: Sequence[int]) -> int:
        """Tokens of the longest known beginning; the rest becomes known."""
        node, found, is_known = self._known.setdefault(model, _Node()), 0, True
        for text, tokens in zip(texts, weights, strict=True):
            if is_known and text not in node.behind:
                is_known = False
                shared = max((_shared(text, other) for other in node.behind), default=0)
                found += self.count(text[:shared])
            elif is_known:
                found += tokens
            node = node.behind.setdefault(text, _Node())
        return found


def _shared(one: str, other: str) -> int:
    """Characters with which both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@dataclass(frozen=True, slots=True)
class Call:
    """One that was answered. lost: tokens that the call of its kind before it had and that were not found again."""

    kind: Kind
    model: str
    tokens: Tokens
    lost: int = 0


@dataclass
class Bill:
    """Every call of a session, at list price."""

    price: Callable[[str], Price | None]
    calls: list[Call] = field(default_factory=list)
    _before: int = 0

    def add(self, kind: Kind, model: str, tokens: Tokens) -> None:
        lost = 0
        if kind == "work":
            lost = max(0, min(self._before, tokens.prompt) - tokens.cached) if self._before else 0
            self._before = tokens.prompt
        self.calls.append(Call(kind, model, tokens, lost))

    def usd(self, *kinds: Kind) -> float:
        """Of these kinds of calls, of all where none is named. Raises LookupError for a model without a price."""
        return sum(self._usd(call) for call in self.calls if not kinds or call.kind in kinds)

    def _usd(self, call: Call) -> float:
        price = self.price(call.model)
        if price is None:
            raise LookupError(f"{call.model} has no price")
        return price.of(call.tokens)

    def number(self, kind: Kind) -> int:
        return sum(call.kind == kind for call in self.calls)

    @property
    def breaks(self) -> int:
        return sum(call.lost > BREAK for call in self.calls)
