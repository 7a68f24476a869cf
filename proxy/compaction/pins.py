"""Finds the texts that stay in every prompt of a conversation, and looks whether they are in one.

What is found is a function of the messages, the policy and the request's header. It is remembered to save work.
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

# Where dialects have a system prompt beside the messages.
_SYSTEM = ("system", "instructions")
# Tokens that a record needs around a pinned text, and around all of them.
_AROUND, _HEADING = 16, 60
_KEY_BYTES = 500
# From so many bytes on a worker looks into a prompt.
_QUICK = 256 * 1024


class _Found(msgspec.Struct, frozen=True):
    """What the first messages of a conversation pin, and the tokens of that in a record."""

    pinned: Pinned
    tokens: int


_Key = tuple[bytes, str, Matches, str]


class KeptPins(NamedTuple):
    """The pins of a conversation, and those of them whose text is in its prompt."""

    pins: tuple[Pin, ...]
    kept: frozenset[str]

    @property
    def missing(self) -> list[Pin]:
        return [pin for pin in self.pins if pin.key not in self.kept]


class PinFinder:
    """Finds pins; one per engine."""

    def __init__(self, tokenizer: Tokenizer, workers: Workers, found: Cache[_Key, _Found], fail_open: FailOpen) -> None:
        self._tokenizer = tokenizer
        self._workers = workers
        self._found = found
        self._fail_open = fail_open

    async def find(self, case: PlanInput) -> PlanInput:
        """Return the plan input with its pins; the same if it has none, and after a fault of ours."""
        return await self._fail_open.run(self._find(case), case)

    async def _find(self, case: PlanInput) -> PlanInput:
        known, at = self._remembered(case)
        if at < len(case.conversation.body) or known is None:
            if known is not None and not any(_matches(case)) and not _has_marks(case, at):
                self._keep(case, known)
            else:
                known = await self._workers.run(self._read_on, case, known or _before(case), at)
        if not known.pinned.pins and not known.pinned.matched:
            return case
        return structs.replace(case, pinned=known.pinned, pins_tokens=known.tokens)

    def _remembered(self, case: PlanInput) -> tuple[_Found | None, int]:
        """Return what is known of the most messages of a request, and how many they are; None if that is nothing."""
        first, digests = _first(case), case.chain.digests
        for end in range(len(case.conversation.body), first, -1):
            if (found := self._found.get(_key(case, digests[end]))) is not None:
                return found, end
        return (None if case.carried is not None and case.carried.pins else _Found(Pinned(), 0)), first

    def _read_on(self, case: PlanInput, known: _Found, start: int) -> _Found:
        """Return what all messages pin, if that is known of those before `start`."""
        said = case.unmasked_utterances(start, len(case.conversation.body))
        said = [replace(one, position=case.absolute(one.position)) for one in said] if case.shift else said
        pinned = update_pins(known.pinned, said, _matches(case))
        if case.carried is not None:
            pinned = without_shortened(pinned)
        is_same = pinned.pins == known.pinned.pins and known.tokens > 0
        return self._keep(case, _Found(pinned, known.tokens if is_same else self._tokens(case, pinned)))

    def _keep(self, case: PlanInput, found: _Found) -> _Found:
        size = _KEY_BYTES + sum(2 * len(pin.text) for pin in found.pinned.pins)
        return self._found.keep(_key(case, case.chain.digests[-1]), found, size)

    def _tokens(self, case: PlanInput, pinned: Pinned) -> int:
        count = partial(self._tokenizer.count, encoding=case.request.encoding)
        texts = [(pin.text, pin.source) for pin in pinned.pins if pin.text]
        each = sum(count(text) + count(source) + _AROUND for text, source in texts)
        return each + _HEADING if pinned.pins else 0

    async def kept(self, case: PlanInput, body: bytes) -> KeptPins | None:
        """Return which pins of a request are in the body of its prompt; None if it has none."""
        none: KeptPins | None = None
        if len(body) < _QUICK:
            return self._fail_open.call(lambda: kept_pins(case, body), none)
        return await self._fail_open.run(self._workers.run(kept_pins, case, body), none)


def _key(case: PlanInput, digest: bytes) -> _Key:
    return digest, case.carried.digest if case.carried else "", _matches(case), case.request.encoding


def _matches(case: PlanInput) -> Matches:
    return Matches(case.caller.policy.pins.match, case.caller.pins)


def _first(case: PlanInput) -> int:
    """Return the position of the first message that no record which the client carries stands for."""
    return case.carried.covered if case.carried else 0


def _before(case: PlanInput) -> _Found:
    """Return what the record that the client carries pins."""
    return _Found(Pinned(case.carried.pins if case.carried else ()), 0)


def _has_marks(case: PlanInput, start: int) -> bool:
    """Return True if a message from a position on may hold a mark."""
    text, spans = case.request.parsed.text, case.request.parsed.spans
    first = case.conversation.head_length + start
    return first < len(spans) and any(text.find(piece, spans[first][0], spans[-1][1]) >= 0 for piece in HOLDS)


def all_pins(case: PlanInput) -> tuple[Pin, ...]:
    """Return the pins of a request, those of its system prompt first."""
    return with_head_pins(case.pinned.pins, _system_texts(case))


def kept_pins(case: PlanInput, body: bytes) -> KeptPins | None:
    """Return which pins of a request are in the body of its prompt, by the texts of that; None if it has none."""
    pins = all_pins(case)
    if not pins:
        return None
    look = _Look(case, body)
    return KeptPins(pins, frozenset(pin.key for pin in pins if pin.text and look.finds(pin.text)))


class _Look:
    """A look for texts in the body of a prompt, as they are or as a record holds them."""

    def __init__(self, case: PlanInput, body: bytes) -> None:
        self._case = case
        self._body = body
        self._text: str | None = None

    def finds(self, text: str) -> bool:
        if _as_json(text) in self._body:
            return True
        carried = carried_text(self._case.allowed_text(text))
        if _as_json(carried) in self._body:
            return True
        if self._text is None:
            self._text = "\n".join(_texts_of(self._case, self._body))
        return text in self._text or carried in self._text


def _as_json(text: str) -> bytes:
    """Return a text as we and most clients write it into JSON."""
    return msgspec.json.encode(text)[1:-1]


def _texts_of(case: PlanInput, body: bytes) -> Iterator[str]:
    """Yield all that the messages of a body say, and its system prompt."""
    parsed = json_array.parse(readable(body), case.request.dialect.array)
    for first, last in parsed.spans if parsed is not None else ():
        for said in _said_in(case, parsed.text[first:last] if parsed is not None else b""):
            yield said.text
    yield from _system_texts(case)


def _said_in(case: PlanInput, raw: bytes) -> list[Utterance]:
    return case.request.dialect.items.utterances(json_array.decode(raw), 0, ())


def _system_texts(case: PlanInput) -> Iterator[str]:
    """Yield the texts with marks of the system prompt, which every prompt has as the client wrote them."""
    request, head = case.request, case.conversation.head_length
    for raw in filter(None, map(request.parsed.envelope.fields.get, _SYSTEM)):
        if _may_mark(given := bytes(raw)):
            with suppress(UnreadError):
                yield from strings_in(read(given.decode("utf-8", "replace")))
    for index in request.conversation.indexes[:head]:
        if request.messages[index].role in INSTRUCTION_ROLES and _may_mark(bytes(request.readable_bytes(index))):
            yield from (said.text for said in request.utterances(index - head, index - head + 1))


def _may_mark(raw: bytes) -> bool:
    return any(piece in raw for piece in HOLDS)
