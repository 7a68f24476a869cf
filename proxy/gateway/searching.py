"""Answering the model's searches in its own conversation before the client has anything of its answer.

An answer is held back until it shows something: some words, or a call of the client's own. One that searches before
that is answered here, and the next one takes its place; the client sees the last, with the tokens of all. What searches
later than that goes on without the search.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import msgspec
from msgspec import structs

from policies.record.recall import found_for
from policies.record.search import Index
from proxy.dialects.reader import CountedRequest, RequestReader
from proxy.dialects.searching import (
    NAME,
    Hider,
    Json,
    Searches,
    Turn,
    add_spent,
    continued,
    offered_in,
    spent_in,
    withdrawn,
)
from proxy.engine.case import Case
from proxy.engine.draft import Draft
from proxy.errors import UpstreamConnectionError
from proxy.gateway.answers import Answer
from proxy.gateway.forwarder import Forwarder
from proxy.gateway.incoming import Incoming
from proxy.models.tokenizer import Tokenizer
from proxy.observing.events import Hook, Searched
from proxy.runtime.workers import Workers
from proxy.server.headers import without
from proxy.server.sse import EVENT_END, data_of, name_of
from proxy.upstream.response import TruncatedError, WholeBody

# Searches of one answer; the next request offers no further one.
_MOST_TURNS = 3
# What a model says before it calls a tool is rarely longer; the rest of a longer answer is not held back.
_MOST_CHARACTERS = 400
_MOST_HELD = 4 * 1024 * 1024
# Share of the window that the results of a search may take, and tokens where it is unknown.
_SHARE = 0.05
_TOKENS = 1_000
_NOTHING = "Nothing was found. Other words may stand in what is looked for."
_FAILED = 400
_KEY = NAME.encode()
_USAGE = b'"usage"'
# What events of a client's own calls hold, which are numbered anew behind one of ours.
_CALLS = (b"call", b"tool_use")

_decode = msgspec.json.Decoder(Json).decode


async def read_offering(incoming: Incoming, reader: RequestReader, body: bytes) -> CountedRequest | None:
    """The counted request, with the tool in it where that is offered."""
    how = (incoming.caller.scope, incoming.active.router.encoding, incoming.exchange.head.dialect)
    request = await reader.read(body, *how)
    offering = None if request is None else _offered(incoming, request)
    if offering is None:
        return request
    offered = await reader.read(offering, *how)
    return offered and structs.replace(offered, offers_search=True)


def _offered(incoming: Incoming, request: CountedRequest) -> bytes | None:
    policy, router = incoming.caller.policy, incoming.active.router
    if policy.recall.mode != "tool" or incoming.mode not in ("on", "force"):
        return None
    settings = request.settings
    if settings.passthrough or settings.reactive or any(message.signed == "bound" for message in request.messages):
        return None
    if not router.takes_copies(router.place(incoming.exchange.head, incoming.caller, settings.model)):
        return None
    return offered_in(request.body, request.dialect.searches)


@dataclass(frozen=True, slots=True)
class _Look:
    """An answer to pass on, or one that searches; spent: its tokens."""

    answer: Answer
    turn: Turn | None = None
    spent: Mapping[str, int] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class Searching:
    """Goes on with answers until one is for the client; one per process."""

    _forwarder: Forwarder
    _tokenizer: Tokenizer
    _workers: Workers
    _observe: Hook

    async def forward(self, incoming: Incoming) -> tuple[Answer, Draft]:
        """What `Forwarder.forward` does, until the answer is one for the client."""
        answer, sent = await self._forwarder.forward(incoming)
        return await self._settled(incoming, answer, sent), sent

    async def _settled(self, incoming: Incoming, answer: Answer, sent: Draft) -> Answer:
        if sent.body is incoming.body or (case := incoming.case) is None or not case.request.offers_search:
            return answer
        searches, body, spent = case.request.dialect.searches, sent.body, dict[str, int]()
        for left in range(_MOST_TURNS, -1, -1):
            look = await _looked(answer, searches, spent, may_search=left > 0)
            answer = look.answer
            if look.turn is None:
                break
            answer.response.close()
            spent = {key: spent.get(key, 0) + look.spent.get(key, 0) for key in {*spent, *look.spent}}
            incoming.searches += len(look.turn.searches)
            body = await self._workers.run(self._answered, case, body, look.turn, sent.tokens)
            answer = await self._forwarder.again(incoming, body if left > 1 else withdrawn(body))
        if not incoming.searches:
            return answer
        where = {"tenant": case.caller.tenant, "upstream": case.route.name, "model": case.request.settings.model}
        self._observe(Searched(**where, searches=incoming.searches))
        if answer.response.status < _FAILED and answer.overflow is None:
            return answer
        # What the search found is not taken: the answer is one without it.
        return await self._forwarder.again(incoming, withdrawn(sent.body))

    def _answered(self, case: Case, body: bytes, turn: Turn, tokens: int) -> bytes:
        """The request with the turn and what it finds behind it."""
        index = Index(case.utterances(0, len(case.conversation.body)))
        count = partial(self._tokenizer.count, encoding=case.request.encoding)
        room = _room(case, tokens) // len(turn.searches)
        found = ("\n".join(found_for(index, search.query, budget=room, count=count)) for search in turn.searches)
        dialect = case.request.dialect
        return continued(body, dialect.array, dialect.searches.results(turn, [text or _NOTHING for text in found]))


def _room(case: Case, tokens: int) -> int:
    """Tokens that the results of a turn's searches may take beside a prompt of so many."""
    real = case.limits.real
    return _TOKENS if real is None else min(max(_TOKENS, int(_SHARE * real.movable)), max(0, real.usable - tokens))


async def _looked(answer: Answer, searches: Searches, spent: Mapping[str, int], *, may_search: bool) -> _Look:
    """Read an answer until it shows something; of one that searches instead all. Raises UpstreamConnectionError."""
    response = answer.response
    coded = response.header(b"content-encoding") or b"identity"
    if response.status >= _FAILED or answer.overflow is not None or answer.error or coded.lower() != b"identity":
        return _Look(answer)
    try:
        if answer.is_event_stream:
            return await _stream(answer, searches, spent, may_search=may_search)
        return await _whole(answer, searches, spent, may_search=may_search)
    except TruncatedError:
        raise UpstreamConnectionError("The upstream closed the connection in the middle of its answer.") from None


async def _whole(answer: Answer, searches: Searches, spent: Mapping[str, int], *, may_search: bool) -> _Look:
    chunks, content = answer.chunks(), bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > _MOST_HELD:
            return _Look(structs.replace(answer, head=bytes(content), rest=chunks))
    read = _read(bytes(content))
    turn = searches.whole(read) if read is not None and may_search else None
    if turn is not None and read is not None:
        return _Look(answer, turn, spent_in([read]))
    if read is not None and spent:
        add_spent(read, spent)
        body = msgspec.json.encode(read)
        headers = [*without(answer.response.headers, b"content-length"), (b"content-length", b"%d" % len(body))]
        response = structs.replace(answer.response, headers=headers, body=WholeBody(body))
        return _Look(structs.replace(answer, response=response, head=b"", rest=response.chunks()))
    return _Look(structs.replace(answer, head=bytes(content), rest=_none()))


async def _stream(answer: Answer, searches: Searches, spent: Mapping[str, int], *, may_search: bool) -> _Look:
    chunks, held, events, start, characters = answer.chunks(), bytearray(), list[Json](), 0, 0
    is_ours = False
    passed = partial(_shown, answer, chunks, searches.hider(), spent)
    async for chunk in chunks:
        held += chunk
        for end in EVENT_END.finditer(held, start):
            event = _read(data_of(held[start : end.start()])) or {}
            start = end.end()
            events.append(event)
            said = searches.said(event)
            characters += said.characters
            is_ours = is_ours or (may_search and NAME in said.calls)
            if not is_ours and (said.calls or said.other or characters > _MOST_CHARACTERS):
                return _Look(structs.replace(answer, head=b"", rest=passed(held)))
        if len(held) > _MOST_HELD:
            return _Look(structs.replace(answer, head=b"", rest=passed(held)))
    turn = searches.turn(events) if is_ours else None
    return _Look(structs.replace(answer, head=b"", rest=passed(held)), turn, spent_in(events))


async def _shown(
    answer: Answer, chunks: AsyncIterator[bytes], hider: Hider, spent: Mapping[str, int], held: bytearray
) -> AsyncIterator[bytes]:
    """Whole events as they come, without searches; the last of them in one piece, since then nothing may follow."""
    chunk: bytes | None = b""
    while chunk is not None:
        held += chunk
        end = (
            len(held) if answer.response.at_end else max((found.end() for found in EVENT_END.finditer(held)), default=0)
        )
        if end:
            shown = b"".join(_of_event(event, hider, spent) for event in _events(bytes(held[:end])))
            del held[:end]
            yield shown
        chunk = await anext(chunks, None)
    if held:
        yield bytes(held)


def _events(read: bytes) -> list[bytes]:
    """Events with their ends, as they came."""
    ends = [found.end() for found in EVENT_END.finditer(read)]
    return [read[start:end] for start, end in pairwise([0, *ends, *([len(read)] if len(read) not in ends else [])])]


def _of_event(event: bytes, hider: Hider, spent: Mapping[str, int]) -> bytes:
    """An event as the client gets it; one of which nothing changes keeps its bytes."""
    is_usage = bool(spent) and _USAGE in event
    if not (hider.is_hiding or is_usage or any(key in event for key in (_KEY, *_CALLS))):
        return event
    read = _read(data := data_of(event))
    if read is None:
        return event
    shown = hider.shown(read)
    if shown is None:
        return b""
    add_spent(shown, spent)
    changed = msgspec.json.encode(shown)
    return event if _read(data) == shown else _with_data(event, changed)


def _with_data(event: bytes, data: bytes) -> bytes:
    named = name_of(event)
    return (b"event: " + named.encode() + b"\n" if named else b"") + b"data: " + data + b"\n\n"


def _read(data: bytes) -> Json | None:
    """An object; None for anything else, such as the mark that ends a stream."""
    with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _decode(data)
    return None


async def _none() -> AsyncIterator[bytes]:
    """No further chunk."""
    for chunk in tuple[bytes, ...]():
        yield chunk
