"""Shortening of results without loss (policies/lossless.py), past the floor or after a record.

Nothing is stored: the forms depend on the messages after the record, the floor, and the other changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import xxhash

from policies.decision.budget import usable_input
from policies.lossless import LEAST_REPEAT, MOST_BETWEEN, compacted, is_repeat, repeat_text
from policies.pointers import Exchange, Place
from policies.record.pins import Matches
from policies.record.record import Record
from policies.settings import ShortenSettings
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.prompt_view import PromptView, Shortened, Step
from proxy.compaction.results import call_of, exchanges_at, mark_of, with_results
from proxy.memory import Cache
from proxy.models.tokenizer import Tokenizer
from proxy.runtime.fail_open import FailOpen
from proxy.runtime.workers import Workers

# Bytes of a result and of a form in memory, besides the form's text.
_RESULT_BYTES, _FORM_BYTES = 300, 400


class _WholeResult(NamedTuple):
    """The newest result of its kind that is sent in full.

    made:    the position of its call.
    is_line: True if a later repeat was replaced by a line.
    """

    place: Place
    made: int
    is_line: bool


class _Findings(NamedTuple):
    """The findings in the messages before `position`.

    digest: that of these messages.
    mark:   that of the messages with forms.
    """

    digest: bytes
    position: int
    said: Mapping[bytes, _WholeResult]
    forms: Mapping[Place, tuple[str, int]]
    mark: int


# The session, the first sent position, the first position that may have forms, results with other texts, pins, the
# encoding, and the settings.
_Key = tuple[bytes, int, int, tuple[int, ...], Matches, str, ShortenSettings]


class LosslessShortener:
    """Shortens results without loss; one per engine."""

    def __init__(
        self, tokenizer: Tokenizer, workers: Workers, findings: Cache[_Key, _Findings], fail_open: FailOpen
    ) -> None:
        """Create a shortener. findings: the cache of earlier findings."""
        self._tokenizer = tokenizer
        self._workers = workers
        self._findings = findings
        self._fail_open = fail_open

    async def shorten(self, plan_input: PlanInput, record: Record | None, view: PromptView) -> PromptView:
        """Return the view with shorter results; the same view if there are none, or after an internal error."""
        settings = plan_input.caller.policy.shorten
        if not (settings.repeats or settings.json_ or settings.terminal):
            return view
        start = record.covered if record else 0
        first_due = _first_due_position(plan_input, start)
        if first_due >= len(plan_input.conversation.body):
            return view
        return await self._fail_open.run(self._workers.run(self._shorten, plan_input, view, start, first_due), view)

    def _shorten(self, plan_input: PlanInput, view: PromptView, start: int, first_due: int) -> PromptView:
        head, body = plan_input.conversation.head_length, plan_input.conversation.body
        replaced = tuple(sorted(at - head for at in view.replaced if at >= head + start and body[at - head].results))
        pins = Matches(plan_input.caller.policy.pins.match, plan_input.caller.pins)
        key = (
            plan_input.chain.session,
            start,
            first_due,
            replaced,
            pins,
            plan_input.request.encoding,
            plan_input.caller.policy.shorten,
        )
        findings = self._findings.get(key)
        if findings is None or not _is_of(plan_input, findings):
            findings = _Findings(b"", start, {}, {}, 0)
        if findings.position < len(body):
            findings = self._walk(plan_input, findings, first_due, plan_input.pinned_positions.union(replaced))
            size = _RESULT_BYTES * len(findings.said) + sum(
                _FORM_BYTES + len(text) for text, _ in findings.forms.values()
            )
            self._findings.keep(key, findings, size)
        if not findings.forms:
            return view
        short = with_results(plan_input, view, Step.LOSSLESS, findings.forms)
        shortened = tuple(
            Shortened(plan_input.conversation.index(place.position), -gain)
            for place, (_, gain) in findings.forms.items()
            if plan_input.conversation.index(place.position) in short.replaced
        )
        return replace(short, shortened=shortened)

    def _walk(self, plan_input: PlanInput, findings: _Findings, first_due: int, unchanged: frozenset[int]) -> _Findings:
        """Return the findings in all messages, some of which were read already.

        without: positions of results that keep their current text.
        """
        body, settings = plan_input.conversation.body, plan_input.caller.policy.shorten
        whole_results, forms = dict(findings.said), dict(findings.forms)
        for position in range(findings.position, len(body)):
            if not body[position].results or body[position].media or position in unchanged:
                continue
            for number, result in enumerate(plan_input.request.contents_at(position)):
                call = None if result.error else call_of(plan_input, position, number)
                if call is None:
                    continue
                exchange = Exchange(call[1], call[0], position, number, result)
                is_due = position >= first_due
                text = self._line(plan_input, exchange, whole_results, is_due=is_due) if settings.repeats else None
                if text is None and is_due:
                    text = compacted(exchange, result.text, settings)
                if text is not None:
                    count = partial(self._tokenizer.count, encoding=plan_input.request.encoding)
                    forms[Place(position, number)] = text, count(text) - count(result.text)
        return _Findings(plan_input.chain.digests[len(body)], len(body), whole_results, forms, _mark(plan_input, forms))

    def _line(
        self, plan_input: PlanInput, exchange: Exchange, whole_results: dict[bytes, _WholeResult], *, is_due: bool
    ) -> str | None:
        """Return the line for a result that repeats one sent in full; None if it is sent in full itself."""
        assert exchange.answer is not None  # noqa: S101 - the caller's condition
        text = exchange.answer.text
        if len(text) < LEAST_REPEAT:
            return None
        name = "\0".join((exchange.call.name, exchange.call.arguments, text))
        key = xxhash.xxh3_128(name.encode("utf-8", "surrogatepass")).digest()
        earlier = whole_results.get(key)
        if is_due and earlier is not None and not earlier.is_line and self._repeats(plan_input, exchange, earlier):
            whole_results[key] = earlier._replace(is_line=True)
            return repeat_text(exchange.call)
        # A third identical call gets the full result.
        whole_results[key] = _WholeResult(Place(exchange.position, exchange.number), exchange.made, is_line=False)
        return None

    def _repeats(self, plan_input: PlanInput, exchange: Exchange, earlier: _WholeResult) -> bool:
        assert exchange.answer is not None  # noqa: S101 - the caller's condition
        if self._tokenizer.count(exchange.answer.text, encoding=plan_input.request.encoding) < LEAST_REPEAT:
            return False
        between = [*_between(plan_input, earlier, exchange)]
        return len(between) <= MOST_BETWEEN and is_repeat(exchange, between)


def _first_due_position(plan_input: PlanInput, start: int) -> int:
    """Return the first position whose results may have forms: the first after a record, or past the floor.

    The floor is that of the short forms. Neither a requested maximum output nor a calibration changes it.
    """
    policy, window, conversation = plan_input.caller.policy, plan_input.route.window, plan_input.conversation
    if start or policy.shorten.from_start:
        return start
    if window is None:
        return len(conversation.body)
    floor = usable_input(window.tokens, None, exact=True).with_fixed(conversation.fixed_tokens).at(policy.apply_floor)
    total = conversation.total_tokens
    return bisect_left(conversation.tokens_from, floor - total, key=lambda tokens: -tokens)


def _between(plan_input: PlanInput, earlier: _WholeResult, exchange: Exchange) -> Iterator[Exchange]:
    """Yield the calls between two results, including their neighbours, up to about the number to check."""
    remaining = MOST_BETWEEN
    ends = (earlier.place, Place(exchange.position, exchange.number))
    for position in range(earlier.made, exchange.made + 1):
        if not plan_input.conversation.body[position].calls:
            continue
        for other in exchanges_at(plan_input, position):
            if (other.position, other.number) not in ends:
                remaining -= 1
                yield other
        if remaining < 0:
            return


def _is_of(plan_input: PlanInput, findings: _Findings) -> bool:
    """Return True if the findings apply to this request, because it begins with the same messages."""
    if (
        findings.position > len(plan_input.conversation.body)
        or plan_input.chain.digests[findings.position] != findings.digest
    ):
        return False
    return _mark(plan_input, findings.forms) == findings.mark


def _mark(plan_input: PlanInput, forms: Mapping[Place, object]) -> int:
    positions: Sequence[int] = [place.position for place in forms]
    return mark_of(plan_input, positions) if positions else 0
