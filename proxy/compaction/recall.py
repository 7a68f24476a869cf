"""Quoting what a record stands for in front of a user's messages that come back to it (docs/design.md, "Recall").

A quotation depends on the request and its record alone: what is remembered here saves work, and every replica sends the
same. Messages that had their answer when the record was made get none.
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
# What a conversation that is ready to be searched takes in memory, for each character of it.
_GROWTH = 6

_Key = tuple[bytes, str, int, str, Secrets]


class _SentText(NamedTuple):
    """The record's text and that of the kept messages up to a position, `digest` of that prefix, without accents."""

    position: int
    digest: bytes
    texts: list[str]


class _PrecedingMessage(NamedTuple):
    """What stands before a message; None for nothing."""

    quotation: Quotation | None


@dataclass(eq=False, repr=False)
class Recall:
    """Quotes covered passages in front of messages that come back to them; one per process."""

    _tokenizer: Tokenizer
    _workers: Workers
    _observe: Hook
    _quotations: Cache[_Key, _PrecedingMessage]
    _indexes: Cache[tuple[str, Secrets], Index]
    _sent: Cache[tuple[str, Secrets], _SentText]

    async def quote(self, case: PlanInput, record: Record | None, view: PromptView) -> PromptView:
        """Return the view with quotations in front of the questions after the record."""
        settings = case.caller.policy.recall
        if record is None or settings.mode != "quote" or case.route.window is None:
            return view
        budget = budget_for(_room(case, case.route.window.tokens), settings)
        digests, how = case.chain.digests, (case.request.encoding, case.caller.policy.secrets)
        keys = {at: (digests[at + 1], record.digest, budget, *how) for at in _open_questions(case, record)}
        found = {at: self._quotations.get(key) for at, key in keys.items()}
        known = {at: one.quotation for at, one in found.items() if one is not None}
        if len(known) < len(keys):
            ready = self._indexes.get((record.digest, case.caller.policy.secrets))
            index, known = await self._workers.run(self._find_quotations, case, record, budget, [*keys], known, ready)
            self._keep(case, record, index, {keys[at]: one for at, one in known.items()})
        quotations = {case.conversation.index(at): one for at, one in known.items() if one is not None}
        return view.quoting(case.request, quotations) if quotations else view

    def _find_quotations(
        self,
        case: PlanInput,
        record: Record,
        budget: int,
        asked: list[int],
        known: Mapping[int, Quotation | None],
        index: Index | None,
    ) -> tuple[Index, dict[int, Quotation | None]]:
        """What stands before each of these messages, the oldest first: nothing is quoted twice."""
        index = index or _index(case, record)
        count = partial(self._tokenizer.count, encoding=case.request.encoding)
        found: dict[int, Quotation | None] = {}
        told: set[Passage] = set()
        unknown = [at for at in asked if at not in known]
        read, texts = self._texts_sent(case, record, unknown[0])
        for at in asked:
            if at in known or case.has_tools_in_text:
                found[at] = known.get(at)
            else:
                texts += (without_accents(one.text) for one in case.utterances(read, at))
                read = at
                said = "\n".join(one.text for one in case.utterances(at, at + 1) if one.voice == "person")
                found[at] = quotation(index, said, texts, told, language=record.language, budget=budget, count=count)
            told.update(quoted.passages if (quoted := found[at]) else ())
        sent = _SentText(read, case.chain.digests[read], texts)
        self._sent.keep((record.digest, case.caller.policy.secrets), sent, _KEY_BYTES + sum(map(len, texts)))
        return index, found

    def _texts_sent(self, case: PlanInput, record: Record, before: int) -> tuple[int, list[str]]:
        """Return a position up to `before` and the texts sent up to it, those of the last request if it began alike."""
        sent = self._sent.get((record.digest, case.caller.policy.secrets))
        if sent is None or sent.position > before or case.chain.digests[sent.position] != sent.digest:
            return record.covered, [without_accents(record.text)]
        return sent.position, [*sent.texts]

    def _keep(self, case: PlanInput, record: Record, index: Index, quotations: Mapping[_Key, Quotation | None]) -> None:
        for key, one in quotations.items():
            if one is not None and self._quotations.get(key) is None:
                model = case.request.settings.model
                self._observe(Recalled(case.caller.tenant, case.route.name, model, len(one.passages), one.tokens))
            self._quotations.keep(key, _PrecedingMessage(one), _KEY_BYTES + (0 if one is None else 4 * len(one.text)))
        self._indexes.keep((record.digest, case.caller.policy.secrets), index, _GROWTH * index.size)


def _room(case: PlanInput, window: int) -> int:
    """M of a request without a stated maximum output: what is frozen moves neither with that nor with a calibration."""
    return usable_input(window, None, exact=True).with_fixed(case.conversation.fixed_tokens).movable


def _open_questions(case: PlanInput, record: Record) -> list[int]:
    """Positions of the user's messages behind a record that had no answer when it was made."""
    conversation = case.conversation
    units = conversation.units[bisect_left(conversation.units, record.covered) :]
    if not units:
        return []
    newest = units[max(0, min(record.making.rounds.kept, len(units)) - 1)]
    users = [at for at in conversation.outline.spoken if conversation.body[at].role == "user"]
    since = users[max(0, bisect_right(users, newest) - 1)] if users else 0
    return [at for at in users if at >= max(since, record.covered)]


def _index(case: PlanInput, record: Record) -> Index:
    """Return the index of all that a record covers, without what a carried record says."""
    carried = case.carried.covered - 1 if case.carried else None
    return Index(one for one in case.utterances(0, record.covered) if one.position != carried)
