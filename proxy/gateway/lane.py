"""The lane of requests that are far below their windows: sent at once, and answered in callbacks where that is all.

Nothing is waited for here. What needs more than an idle connection and a plain answer that comes whole goes on to the
gateway's line, in a task, with what is there already.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

from proxy.callers.admission import Admission, Admitted
from proxy.callers.session_label import label_given
from proxy.dialects.reader import CountedRequest
from proxy.engine.case import named_as
from proxy.engine.engine import Engine
from proxy.errors import EndedError, ProxyError
from proxy.gateway.answers import Answer, is_event_stream, known_at_once
from proxy.gateway.incoming import Incoming
from proxy.gateway.lessons import WORTH_LOOKING_UP, Lessons
from proxy.gateway.relay import Passing
from proxy.gateway.report import ended, headers_of
from proxy.gateway.sender import sender_of
from proxy.gateway.usage import UsageTap
from proxy.runtime.fail_open import FailOpen
from proxy.server.exchange import Exchange
from proxy.server.headers import Headers, to_client
from proxy.upstream.active import Active
from proxy.upstream.http import Asked, Question, UpstreamClient, UpstreamResponse, response_of

# Larger ones are for the line, which reads them off the event loop where that takes long.
_MOST_BYTES = 8 * 1024 * 1024
# How often it is looked for requests over their deadline.
_SWEEP_SECONDS = 1.0
_PLAIN = 200
# Of a stream, before anything is said in it.
_MOST_ANNOUNCED = 16 * 1024


class Lane:
    """One per process."""

    def __init__(
        self,
        active: Callable[[], Active],
        engine: Engine,
        admission: Admission,
        client: UpstreamClient,
        lessons: Lessons,
        fail_open: FailOpen,
    ) -> None:
        self._active = active
        self._engine = engine
        self._admission = admission
        self._client = client
        self._lessons = lessons
        self._fail_open = fail_open
        # What strikes here strikes nobody: the line takes over.
        self._leave = fail_open.named("lane_failed")
        self._open: dict[Exchange, Incoming] = {}
        # What is there already of those that were left to the line: what was read, by which config; their places.
        self._read: WeakKeyDictionary[Exchange, tuple[Active, CountedRequest]] = WeakKeyDictionary()
        self._places: WeakKeyDictionary[Exchange, Admitted] = WeakKeyDictionary()
        # Those whose bodies are still to come.
        self._coming: dict[Exchange, Incoming] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    def take(self, exchange: Exchange) -> bool:
        """Whether a request is answered here, or by the line when it goes on; else nothing was done about it."""
        try:
            work = self._awaited if exchange.request.is_coming else self._sent
            return self._leave.call(lambda: work(exchange), False)
        except ProxyError:  # which the line meets again, and tells
            return False

    def handed_over(self, exchange: Exchange) -> Incoming | None:
        """What was sent for a request that goes on in the line; None for any other."""
        return self._open.pop(exchange, None)

    def leave(self, incoming: Incoming) -> None:
        """Give the line what is there already of a request that is left to it."""
        active, request = self._read.pop(incoming.exchange, (None, None))
        if active is incoming.active:
            incoming.request = request
        incoming.admitted = self._places.pop(incoming.exchange, None)

    def end(self, error: EndedError) -> None:
        """End every request now, each with an error its client can read."""
        for exchange in [*self._coming]:
            exchange.end(error)
            self._leave_coming(exchange)
        for exchange, incoming in [*self._open.items()]:
            exchange.end(error)
            self._hand_over(incoming)

    def _awaited(self, exchange: Exchange) -> bool:
        """Wait for a body that is about to come whole."""
        active, size = self._active(), exchange.request.declared
        if size is None or size > min(_MOST_BYTES, active.server.max_body_bytes) or exchange.head.trace is not None:
            return False
        exchange.memo = sender = sender_of(exchange.head, active, exchange.memo)
        incoming = Incoming(exchange, active, exchange.began, known_caller=sender.caller)
        admitted = incoming.admit(self._admission)
        if not admitted.reserve(size):
            admitted.close()
            return False
        self._coming[exchange] = incoming
        exchange.on_lost = partial(self._leave_coming, exchange)
        exchange.request.collect(size, partial(self._came, exchange))
        self._watch()
        return True

    def _came(self, exchange: Exchange) -> None:
        if self.take(exchange):
            del self._coming[exchange]  # whose place it has taken
        else:
            self._leave_coming(exchange)

    def _leave_coming(self, exchange: Exchange) -> None:
        """Leave it to the line, with its place."""
        if (admitted := self._coming.pop(exchange).admitted) is not None:
            admitted.let_go()
            self._places[exchange] = admitted
        exchange.go_on()

    def _sent(self, exchange: Exchange) -> bool:
        """Identify, count and send what is small, plain, and has come whole."""
        body, active, head = exchange.request.whole(), self._active(), exchange.head
        if body is None or len(body) > min(_MOST_BYTES, active.server.max_body_bytes) or head.trace is not None:
            return False
        exchange.memo = sender = sender_of(head, active, exchange.memo)
        caller, policy = sender.caller, sender.caller.policy
        if policy.separator or head.header(b"content-encoding") is not None:
            return False
        read, encoding_of = self._engine.reader.read_at_once, active.router.encoding
        request = read(body, caller.scope, encoding_of, head.dialect, sender.repeated)
        if request is None:
            return False
        sender.repeated = request.repeated
        way = sender.way(head, request.settings.model, self._client, exchange.began)
        label = sender.label or label_given(request)
        named = named_as(request, caller, sender.mode, label, way.route, way.experience)
        is_known = request.tokens < WORTH_LOOKING_UP or self._engine.windows.is_looked_up(way.route.place)
        is_plain = named.is_plain and not active.router.has_overflowed(named.place, named.chain)
        if way.question is None or not (is_plain and is_known) or self._engine.manual.may_be_due(named.chain):
            self._read[exchange] = active, request
            return False
        incoming = Incoming(exchange, active, exchange.began, known_caller=caller, mode=sender.mode, body=body)
        incoming.ready(way.route, self._engine.drafter.plain(named), named)
        return self._asked(incoming, way.question)

    def _asked(self, incoming: Incoming, question: Question) -> bool:
        exchange, coming = incoming.exchange, self._coming.get(incoming.exchange)
        incoming.admitted = admitted = coming.admitted if coming is not None else incoming.admit(self._admission)
        try:
            if coming is None:
                incoming.hold(len(incoming.body))
            incoming.asked = asked = question.ask(incoming.body)
        finally:
            if incoming.asked is None and coming is None and admitted is not None:
                admitted.close()
        if asked is None:
            return False
        incoming.attempts += 1
        self._open[exchange] = incoming
        asked.on_news = partial(self._heard, incoming)
        exchange.on_lost = partial(self._hand_over, incoming)
        self._watch()
        return True

    def _heard(self, incoming: Incoming) -> None:
        """Something has come of an answer, or nothing will."""
        asked, passing = incoming.asked, incoming.passing
        if asked is None or (asked.is_coming and not _streams(asked)):
            return
        if passing is not None:
            if not (asked.reader.is_complete and self._leave.call(lambda: self._ended(incoming, passing), False)):
                self._hand_over(incoming)
            return
        if asked.reader.is_begun and not asked.has_failed:
            body, response = asked.taken(), response_of(asked)
            work = self._answered if asked.reader.is_complete else self._flows
            if self._leave.call(lambda: work(incoming, response, body), False):
                return
            asked.untake(body)
        self._hand_over(incoming)

    def _answered(self, incoming: Incoming, response: UpstreamResponse, body: bytes) -> bool:
        """Pass on an answer that is there whole, unless it has to be looked into."""
        answer = self._known(incoming, response, body)
        if answer is None or answer.is_refusal:
            return False
        tap, headers = self._told(incoming, answer)
        incoming.exchange.answer(response.status, headers, body)
        self._close(incoming, tap)
        return True

    def _flows(self, incoming: Incoming, response: UpstreamResponse, begun: bytes) -> bool:
        """Begin to pass on a stream, unless it has to be looked into; what follows goes from transport to transport."""
        asked = incoming.asked
        if asked is None or not is_event_stream(response) or response.header(b"content-encoding") is not None:
            return False
        answer = self._known(incoming, response, begun)
        if answer is None:
            return self._announces(incoming, asked, begun)
        if answer.is_refusal:
            return False
        tap, headers = self._told(incoming, answer)
        passing = Passing(incoming.exchange, answer, asked, tap)
        incoming.exchange.begin(response.status, headers)
        passing.begin(begun, is_last=False)
        asked.flow(passing)
        incoming.passing = passing
        return True

    def _announces(self, incoming: Incoming, asked: Asked, begun: bytes) -> bool:
        """Whether a stream has said nothing yet, and may do so soon."""
        if asked.reader.status != _PLAIN or len(begun) > _MOST_ANNOUNCED or not incoming.exchange.has_room:
            return False
        incoming.heard = incoming.heard or time.perf_counter()
        asked.untake(begun)
        return True

    def _ended(self, incoming: Incoming, passing: Passing) -> bool:
        passing.end()
        self._close(incoming, passing.tap)
        return True

    def _known(self, incoming: Incoming, response: UpstreamResponse, begun: bytes) -> Answer | None:
        """An answer of which enough has come; None where more has to be known of it."""
        exchange, window = incoming.exchange, incoming.to.window
        if response.status != _PLAIN or not exchange.has_room or exchange.disconnected:
            return None
        return known_at_once(response, begun, exchange.head.dialect.answers, window.tokens if window else None)

    def _told(self, incoming: Incoming, answer: Answer) -> tuple[UsageTap | None, Headers]:
        """What reads its usage, and the headers for the client."""
        incoming.answered(answer.response.status)
        tap = self._lessons.tap(incoming, answer)
        if tap is not None:
            incoming.warning = self._lessons.warning(incoming, answer, tap)
        return tap, [*to_client(answer.response.headers), *headers_of(incoming)]

    def _close(self, incoming: Incoming, tap: UsageTap | None) -> None:
        """It is answered: nothing is to be heard of it any more."""
        del self._open[incoming.exchange]
        incoming.exchange.on_lost = None
        if (asked := incoming.asked) is not None:  # each holds the other
            asked.on_news = None
            asked.flow(None)
        incoming.asked = incoming.passing = None
        if incoming.admitted is not None:
            incoming.admitted.close()
        self._fail_open.call(lambda: self._lessons.take(incoming, tap), None)
        self._fail_open.call(lambda: self._engine.observe(ended(incoming, None)), None)

    def _hand_over(self, incoming: Incoming) -> None:
        """Have the line go on with it, once."""
        if incoming.exchange.on_lost is None:
            return
        if (asked := incoming.asked) is not None:
            asked.on_news = None
            incoming.opened.callback(asked.close)
        incoming.exchange.go_on()

    def _watch(self) -> None:
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Leave those to the line whose bodies take long to come, or whose streams to say something, and those whose
        deadline has come."""
        self._sweeping = None
        now = time.perf_counter()
        for exchange, incoming in [*self._coming.items()]:
            if now >= incoming.started + _SWEEP_SECONDS:
                self._leave_coming(exchange)
        for incoming in [*self._open.values()]:
            is_late = now >= incoming.started + incoming.active.server.request_deadline
            is_slow = incoming.heard and incoming.passing is None and now >= incoming.heard + _SWEEP_SECONDS
            if is_late or is_slow:
                self._hand_over(incoming)
        if self._open or self._coming:
            self._watch()


def _streams(asked: Asked) -> bool:
    """Whether it is passed on as it comes, however little of it is to come."""
    return asked.reader.is_begun and is_event_stream(response_of(asked))
