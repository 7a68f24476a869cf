"""Shortens results without loss (policies/lossless.py), past the floor or behind a record.

Nothing is stored: the forms depend on the messages behind the record, on the floor, and on what else changed them.
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

# Bytes that a result and a form take in memory, beside the form's text.
_RESULT_BYTES, _FORM_BYTES = 300, 400


class _WholeResult(NamedTuple):
    """The newest result of its kind that stands whole. made: the position of its call. is_line: whether one followed
    that is a line."""

    place: Place
    made: int
    is_line: bool


class _Findings(NamedTuple):
    """What was found in the messages up to `digest`, which stand before `position`. mark: of messages with forms."""

    digest: bytes
    position: int
    said: Mapping[bytes, _WholeResult]
    forms: Mapping[Place, tuple[str, int]]
    mark: int


# A session, the first position that is sent and the first that may have forms, results that have other texts already,
# what is pinned, the encoding and the settings.
_Key = tuple[bytes, int, int, tuple[int, ...], Matches, str, ShortenSettings]


class LosslessShortener:
    """Shortens results without loss; one per engine."""

    def __init__(
        self, tokenizer: Tokenizer, workers: Workers, findings: Cache[_Key, _Findings], fail_open: FailOpen
    ) -> None:
        self._tokenizer = tokenizer
        self._workers = workers
        self._findings = findings
        self._fail_open = fail_open

    async def shorten(self, case: PlanInput, record: Record | None, view: PromptView) -> PromptView:
        """Return the view with shorter results; the same view if it has none, and after a fault of ours."""
        settings = case.caller.policy.shorten
        if not (settings.repeats or settings.json_ or settings.terminal):
            return view
        start = record.covered if record else 0
        first = _first(case, start)
        if first >= len(case.conversation.body):
            return view
        return await self._fail_open.run(self._workers.run(self._shorten, case, view, start, first), view)

    def _shorten(self, case: PlanInput, view: PromptView, start: int, first: int) -> PromptView:
        head, body = case.conversation.head_length, case.conversation.body
        replaced = tuple(sorted(at - head for at in view.replaced if at >= head + start and body[at - head].results))
        pins = Matches(case.caller.policy.pins.match, case.caller.pins)
        key = case.chain.session, start, first, replaced, pins, case.request.encoding, case.caller.policy.shorten
        known = self._findings.get(key)
        if known is None or not _is_of(case, known):
            known = _Findings(b"", start, {}, {}, 0)
        if known.position < len(body):
            known = self._walk(case, known, first, case.pinned_positions.union(replaced))
            size = _RESULT_BYTES * len(known.said) + sum(_FORM_BYTES + len(text) for text, _ in known.forms.values())
            self._findings.keep(key, known, size)
        if not known.forms:
            return view
        short = with_results(case, view, Step.LOSSLESS, known.forms)
        made = tuple(
            Shortened(case.conversation.index(place.position), -gain)
            for place, (_, gain) in known.forms.items()
            if case.conversation.index(place.position) in short.replaced
        )
        return replace(short, shortened=made)

    def _walk(self, case: PlanInput, known: _Findings, first: int, without: frozenset[int]) -> _Findings:
        """Return what is found in the messages up to the end, of which some were read already.

        without: positions of results that stay as they are sent now.
        """
        body, settings = case.conversation.body, case.caller.policy.shorten
        said, forms = dict(known.said), dict(known.forms)
        for position in range(known.position, len(body)):
            if not body[position].results or body[position].media or position in without:
                continue
            for number, answer in enumerate(case.request.contents_at(position)):
                made = None if answer.error else call_of(case, position, number)
                if made is None:
                    continue
                exchange = Exchange(made[1], made[0], position, number, answer)
                is_due = position >= first
                text = self._line(case, exchange, said, is_due=is_due) if settings.repeats else None
                if text is None and is_due:
                    text = compacted(exchange, answer.text, settings)
                if text is not None:
                    count = partial(self._tokenizer.count, encoding=case.request.encoding)
                    forms[Place(position, number)] = text, count(text) - count(answer.text)
        return _Findings(case.chain.digests[len(body)], len(body), said, forms, _mark(case, forms))

    def _line(
        self, case: PlanInput, exchange: Exchange, said: dict[bytes, _WholeResult], *, is_due: bool
    ) -> str | None:
        """Return the line for a result that repeats one which stands whole; None if it is to stand whole itself."""
        assert exchange.answer is not None  # noqa: S101 - the caller's condition
        text = exchange.answer.text
        if len(text) < LEAST_REPEAT:
            return None
        name = "\0".join((exchange.call.name, exchange.call.arguments, text))
        key = xxhash.xxh3_128(name.encode("utf-8", "surrogatepass")).digest()
        earlier = said.get(key)
        if is_due and earlier is not None and not earlier.is_line and self._repeats(case, exchange, earlier):
            said[key] = earlier._replace(is_line=True)
            return repeat_text(exchange.call)
        # Who asks once more gets it whole.
        said[key] = _WholeResult(Place(exchange.position, exchange.number), exchange.made, is_line=False)
        return None

    def _repeats(self, case: PlanInput, exchange: Exchange, earlier: _WholeResult) -> bool:
        assert exchange.answer is not None  # noqa: S101 - the caller's condition
        if self._tokenizer.count(exchange.answer.text, encoding=case.request.encoding) < LEAST_REPEAT:
            return False
        between = [*_between(case, earlier, exchange)]
        return len(between) <= MOST_BETWEEN and is_repeat(exchange, between)


def _first(case: PlanInput, start: int) -> int:
    """Return the first position whose results may have forms: one behind a record, or past the floor.

    The floor is that of the short forms, which neither a stated maximum output nor a calibration moves.
    """
    policy, window, conversation = case.caller.policy, case.route.window, case.conversation
    if start or policy.shorten.from_start:
        return start
    if window is None:
        return len(conversation.body)
    floor = usable_input(window.tokens, None, exact=True).with_fixed(conversation.fixed_tokens).at(policy.apply_floor)
    total = conversation.total_tokens
    return bisect_left(conversation.tokens_from, floor - total, key=lambda behind: -behind)


def _between(case: PlanInput, earlier: _WholeResult, exchange: Exchange) -> Iterator[Exchange]:
    """Yield the calls between two, those beside either of them included; not many more than may be looked at."""
    left = MOST_BETWEEN
    ends = (earlier.place, Place(exchange.position, exchange.number))
    for made in range(earlier.made, exchange.made + 1):
        if not case.conversation.body[made].calls:
            continue
        for other in exchanges_at(case, made):
            if (other.position, other.number) not in ends:
                left -= 1
                yield other
        if left < 0:
            return


def _is_of(case: PlanInput, known: _Findings) -> bool:
    """Return True if what was found is true of this request: it begins with the same messages."""
    if known.position > len(case.conversation.body) or case.chain.digests[known.position] != known.digest:
        return False
    return _mark(case, known.forms) == known.mark


def _mark(case: PlanInput, forms: Mapping[Place, object]) -> int:
    positions: Sequence[int] = [place.position for place in forms]
    return mark_of(case, positions) if positions else 0
