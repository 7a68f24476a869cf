"""Search for the texts that stay in every prompt of a conversation, and for them in a prompt.

The results depend only on the messages, the policy and the request's header. They are cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import structs

from policies.authorship.arguments import UnreadError, read, strings_in
from policies.conversation.message import INSTRUCTION_ROLES
from policies.conversation.transcript import Utterance
from policies.record.pins import (
    HOLDS,
    Matches,
    Pin,
    Pinned,
    carried_text,
    update_pins,
    with_head_pins,
    without_shortened,
)
from proxy.compaction.plan_input import PlanInput
from proxy.dialects import json_array
from proxy.dialects.surrogates import readable
from proxy.memory import Cache
from proxy.models.tokenizer import Tokenizer
from proxy.runtime.fail_open import FailOpen
from proxy.runtime.workers import Workers

# Fields of a system prompt outside the messages.
_SYSTEM = ("system", "instructions")
# Tokens that a record needs around a pinned text, and around all of them together.
_AROUND, _HEADING = 16, 60
_KEY_BYTES = 500
# A larger prompt is searched by a worker.
_QUICK = 256 * 1024


class _PinFindings(msgspec.Struct, frozen=True):
    """The pins of the first messages of a conversation, and their tokens in a record."""

    pinned: Pinned
    tokens: int


_Key = tuple[bytes, str, Matches, str]


class KeptPins(NamedTuple):
    """The pins of a conversation, and the keys of those whose text is in its prompt."""

    pins: tuple[Pin, ...]
    kept: frozenset[str]

    @property
    def missing(self) -> list[Pin]:
        """Return the pins whose text is not in the prompt."""
        return [pin for pin in self.pins if pin.key not in self.kept]


class PinFinder:
    """Finds pins; one per engine."""

    def __init__(
        self, tokenizer: Tokenizer, workers: Workers, cache: Cache[_Key, _PinFindings], fail_open: FailOpen
    ) -> None:
        """Create a finder. cache: the cache of earlier results."""
        self._tokenizer = tokenizer
        self._workers = workers
        self._cache = cache
        self._fail_open = fail_open

    async def find(self, plan_input: PlanInput) -> PlanInput:
        """Return the plan input with its pins; the same if it has none, or after an internal error."""
        return await self._fail_open.run(self._find(plan_input), plan_input)

    async def _find(self, plan_input: PlanInput) -> PlanInput:
        pins, end = self._find_cached(plan_input)
        if end < len(plan_input.conversation.body) or pins is None:
            if pins is not None and not any(_matches(plan_input)) and not _has_marks(plan_input, end):
                self._keep(plan_input, pins)
            else:
                pins = await self._workers.run(self._read_rest, plan_input, pins or _carried_pins(plan_input), end)
        if not pins.pinned.pins and not pins.pinned.matched:
            return plan_input
        return structs.replace(plan_input, pinned=pins.pinned, pins_tokens=pins.tokens)

    def _find_cached(self, plan_input: PlanInput) -> tuple[_PinFindings | None, int]:
        """Return the cached pins of the longest known prefix and its length; None without any."""
        start, digests = _first_position(plan_input), plan_input.chain.digests
        for end in range(len(plan_input.conversation.body), start, -1):
            if (cached := self._cache.get(_key(plan_input, digests[end]))) is not None:
                return cached, end
        return (
            None if plan_input.carried is not None and plan_input.carried.pins else _PinFindings(Pinned(), 0)
        ), start

    def _read_rest(self, plan_input: PlanInput, earlier: _PinFindings, start: int) -> _PinFindings:
        """Return the pins of all messages, given those before `start`."""
        utterances = plan_input.unmasked_utterances(start, len(plan_input.conversation.body))
        utterances = (
            [replace(utterance, position=plan_input.absolute(utterance.position)) for utterance in utterances]
            if plan_input.shift
            else utterances
        )
        pinned = update_pins(earlier.pinned, utterances, _matches(plan_input))
        if plan_input.carried is not None:
            pinned = without_shortened(pinned)
        is_same = pinned.pins == earlier.pinned.pins and earlier.tokens > 0
        return self._keep(
            plan_input, _PinFindings(pinned, earlier.tokens if is_same else self._tokens(plan_input, pinned))
        )

    def _keep(self, plan_input: PlanInput, findings: _PinFindings) -> _PinFindings:
        size = _KEY_BYTES + sum(2 * len(pin.text) for pin in findings.pinned.pins)
        return self._cache.keep(_key(plan_input, plan_input.chain.digests[-1]), findings, size)

    def _tokens(self, plan_input: PlanInput, pinned: Pinned) -> int:
        count = partial(self._tokenizer.count, encoding=plan_input.request.encoding)
        texts = [(pin.text, pin.source) for pin in pinned.pins if pin.text]
        tokens = sum(count(text) + count(source) + _AROUND for text, source in texts)
        return tokens + _HEADING if pinned.pins else 0

    async def find_kept(self, plan_input: PlanInput, body: bytes) -> KeptPins | None:
        """Return the pins of a request and those in the body of its prompt; None if it has none."""
        none: KeptPins | None = None
        if len(body) < _QUICK:
            return self._fail_open.call(lambda: kept_pins(plan_input, body), none)
        return await self._fail_open.run(self._workers.run(kept_pins, plan_input, body), none)


def _key(plan_input: PlanInput, digest: bytes) -> _Key:
    return (
        digest,
        plan_input.carried.digest if plan_input.carried else "",
        _matches(plan_input),
        plan_input.request.encoding,
    )


def _matches(plan_input: PlanInput) -> Matches:
    return Matches(plan_input.caller.policy.pins.match, plan_input.caller.pins)


def _first_position(plan_input: PlanInput) -> int:
    """Return the position of the first message that a carried record does not replace."""
    return plan_input.carried.covered if plan_input.carried else 0


def _carried_pins(plan_input: PlanInput) -> _PinFindings:
    """Return the pins of the record that the client carries."""
    return _PinFindings(Pinned(plan_input.carried.pins if plan_input.carried else ()), 0)


def _has_marks(plan_input: PlanInput, start: int) -> bool:
    """Return True if a message from this position on may hold a mark."""
    text, spans = plan_input.request.parsed.text, plan_input.request.parsed.spans
    first_index = plan_input.conversation.head_length + start
    return first_index < len(spans) and any(
        text.find(piece, spans[first_index][0], spans[-1][1]) >= 0 for piece in HOLDS
    )


def all_pins(plan_input: PlanInput) -> tuple[Pin, ...]:
    """Return the pins of a request, those of its system prompt first."""
    return with_head_pins(plan_input.pinned.pins, _system_texts(plan_input))


def kept_pins(plan_input: PlanInput, body: bytes) -> KeptPins | None:
    """Return the pins of a request and those in the body of its prompt, by its texts; None if it has none."""
    pins = all_pins(plan_input)
    if not pins:
        return None
    search = _BodySearch(plan_input, body)
    return KeptPins(pins, frozenset(pin.key for pin in pins if pin.text and search.finds(pin.text)))


class _BodySearch:
    """A search for texts in the body of a prompt, in their own form or in that of a record."""

    def __init__(self, plan_input: PlanInput, body: bytes) -> None:
        """Create a search in this body."""
        self._case = plan_input
        self._body = body
        self._text: str | None = None

    def finds(self, text: str) -> bool:
        """Return True if the body has this text."""
        if _as_json(text) in self._body:
            return True
        carried = carried_text(self._case.allowed_text(text))
        if _as_json(carried) in self._body:
            return True
        if self._text is None:
            self._text = "\n".join(_texts_of(self._case, self._body))
        return text in self._text or carried in self._text


def _as_json(text: str) -> bytes:
    """Return a text as most JSON encoders write it."""
    return msgspec.json.encode(text)[1:-1]


def _texts_of(plan_input: PlanInput, body: bytes) -> Iterator[str]:
    """Yield the texts of the messages of a body, and of its system prompt."""
    parsed = json_array.parse(readable(body), plan_input.request.dialect.array)
    for start, end in parsed.spans if parsed is not None else ():
        for utterance in _utterances_in(plan_input, parsed.text[start:end] if parsed is not None else b""):
            yield utterance.text
    yield from _system_texts(plan_input)


def _utterances_in(plan_input: PlanInput, raw: bytes) -> list[Utterance]:
    return plan_input.request.dialect.items.utterances(json_array.decode(raw), 0, ())


def _system_texts(plan_input: PlanInput) -> Iterator[str]:
    """Yield the marked texts of the system prompt. Every prompt has them as the client wrote them."""
    request, head = plan_input.request, plan_input.conversation.head_length
    for raw in filter(None, map(request.parsed.envelope.fields.get, _SYSTEM)):
        if _may_mark(system := bytes(raw)):
            with suppress(UnreadError):
                yield from strings_in(read(system.decode("utf-8", "replace")))
    for index in request.conversation.indexes[:head]:
        if request.messages[index].role in INSTRUCTION_ROLES and _may_mark(bytes(request.readable_bytes(index))):
            yield from (utterance.text for utterance in request.utterances(index - head, index - head + 1))


def _may_mark(raw: bytes) -> bool:
    return any(piece in raw for piece in HOLDS)
