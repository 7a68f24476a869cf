"""Quotations of covered messages before user messages that refer to them (docs/design.md, "Recall").

A quotation depends only on the request and its record. The caches save work, and every replica sends the same. Messages
that already had a response when the record was made get no quotation.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from policies.decision.budget import usable_input
from policies.record.recall import Quotation, budget_for, quotation
from policies.record.record import Record
from policies.record.search import Index, Passage, without_accents
from policies.settings import Secrets
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.prompt_view import PromptView
from proxy.memory import Cache
from proxy.models.tokenizer import Tokenizer
from proxy.runtime.workers import Workers
from proxy.telemetry.events import Hook, Recalled

_KEY_BYTES = 400
# Memory of a searchable conversation, for each character of it.
_GROWTH = 6

_Key = tuple[bytes, str, int, str, Secrets]


class _SentText(NamedTuple):
    """The record's text and that of the kept messages up to a position, without accents. digest: that of the prefix."""

    position: int
    digest: bytes
    texts: list[str]


class _PrecedingMessage(NamedTuple):
    """The quotation before a message; None for none."""

    quotation: Quotation | None


@dataclass(eq=False, repr=False)
class Recall:
    """Quotes covered passages before messages that refer to them. One per process."""

    _tokenizer: Tokenizer
    _workers: Workers
    _observe: Hook
    _quotations: Cache[_Key, _PrecedingMessage]
    _indexes: Cache[tuple[str, Secrets], Index]
    _sent: Cache[tuple[str, Secrets], _SentText]

    async def quote(self, plan_input: PlanInput, record: Record | None, view: PromptView) -> PromptView:
        """Return the view with quotations before the questions after the record."""
        settings = plan_input.caller.policy.recall
        if record is None or settings.mode != "quote" or plan_input.route.window is None:
            return view
        budget = budget_for(_room(plan_input, plan_input.route.window.tokens), settings)
        digests, key_end = plan_input.chain.digests, (plan_input.request.encoding, plan_input.caller.policy.secrets)
        keys = {at: (digests[at + 1], record.digest, budget, *key_end) for at in _open_questions(plan_input, record)}
        cached = {at: self._quotations.get(key) for at, key in keys.items()}
        quotations_by_position = {at: quotation.quotation for at, quotation in cached.items() if quotation is not None}
        if len(quotations_by_position) < len(keys):
            cached_index = self._indexes.get((record.digest, plan_input.caller.policy.secrets))
            index, quotations_by_position = await self._workers.run(
                self._find_quotations, plan_input, record, budget, [*keys], quotations_by_position, cached_index
            )
            self._keep(
                plan_input, record, index, {keys[at]: quotation for at, quotation in quotations_by_position.items()}
            )
        quotations = {
            plan_input.conversation.index(at): quotation
            for at, quotation in quotations_by_position.items()
            if quotation is not None
        }
        return view.with_quotations(plan_input.request, quotations) if quotations else view

    def _find_quotations(
        self,
        plan_input: PlanInput,
        record: Record,
        budget: int,
        questions: list[int],
        known: Mapping[int, Quotation | None],
        index: Index | None,
    ) -> tuple[Index, dict[int, Quotation | None]]:
        """Return the index and the quotation before each of these messages, the oldest first.

        No passage is quoted twice.
        """
        index = index or _index(plan_input, record)
        count = partial(self._tokenizer.count, encoding=plan_input.request.encoding)
        quotations: dict[int, Quotation | None] = {}
        quoted_passages: set[Passage] = set()
        unknown = [at for at in questions if at not in known]
        end, texts = self._texts_sent(plan_input, record, unknown[0])
        for at in questions:
            if at in known or plan_input.has_tools_in_text:
                quotations[at] = known.get(at)
            else:
                texts += (without_accents(utterance.text) for utterance in plan_input.utterances(end, at))
                end = at
                text = "\n".join(
                    utterance.text for utterance in plan_input.utterances(at, at + 1) if utterance.voice == "person"
                )
                quotations[at] = quotation(
                    index, text, texts, quoted_passages, language=record.language, budget=budget, count=count
                )
            quoted_passages.update(quoted.passages if (quoted := quotations[at]) else ())
        sent = _SentText(end, plan_input.chain.digests[end], texts)
        self._sent.keep((record.digest, plan_input.caller.policy.secrets), sent, _KEY_BYTES + sum(map(len, texts)))
        return index, quotations

    def _texts_sent(self, plan_input: PlanInput, record: Record, before: int) -> tuple[int, list[str]]:
        """Return a position up to `before` and the texts sent up to it, cached if the last request began alike."""
        sent = self._sent.get((record.digest, plan_input.caller.policy.secrets))
        if sent is None or sent.position > before or plan_input.chain.digests[sent.position] != sent.digest:
            return record.covered, [without_accents(record.text)]
        return sent.position, [*sent.texts]

    def _keep(
        self, plan_input: PlanInput, record: Record, index: Index, quotations: Mapping[_Key, Quotation | None]
    ) -> None:
        for key, quoted in quotations.items():
            if quoted is not None and self._quotations.get(key) is None:
                model = plan_input.request.settings.model
                self._observe(
                    Recalled(
                        plan_input.caller.tenant, plan_input.route.name, model, len(quoted.passages), quoted.tokens
                    )
                )
            self._quotations.keep(
                key, _PrecedingMessage(quoted), _KEY_BYTES + (0 if quoted is None else 4 * len(quoted.text))
            )
        self._indexes.keep((record.digest, plan_input.caller.policy.secrets), index, _GROWTH * index.size)


def _room(plan_input: PlanInput, window: int) -> int:
    """Return M for a request without a maximum output. Neither that nor a calibration changes frozen content."""
    return usable_input(window, None, exact=True).with_fixed(plan_input.conversation.fixed_tokens).movable


def _open_questions(plan_input: PlanInput, record: Record) -> list[int]:
    """Return the positions of user messages after a record that had no response when it was made."""
    conversation = plan_input.conversation
    units = conversation.units[bisect_left(conversation.units, record.covered) :]
    if not units:
        return []
    newest = units[max(0, min(record.making.rounds.kept, len(units)) - 1)]
    user_positions = [at for at in conversation.outline.spoken if conversation.body[at].role == "user"]
    since = user_positions[max(0, bisect_right(user_positions, newest) - 1)] if user_positions else 0
    return [at for at in user_positions if at >= max(since, record.covered)]


def _index(plan_input: PlanInput, record: Record) -> Index:
    """Return the index of all messages that a record covers, without the text of a carried record."""
    carried = plan_input.carried.covered - 1 if plan_input.carried else None
    return Index(utterance for utterance in plan_input.utterances(0, record.covered) if utterance.position != carried)
