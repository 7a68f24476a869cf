"""Summaries of single large messages, made before they are needed (R4; docs/design.md, "Large messages")."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from policies.conversation.transcript import Utterance, shorten
from policies.numbers import MOST_EXCERPT_TOKENS
from policies.price import Tokens
from policies.record.prompting import Prompts, fill_excerpt
from policies.record.texts import language_of, texts_for
from policies.record.validation import Invalid, SummaryAnswer, Valid, validate_excerpt
from proxy.callers.spending import Spending
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.short_forms import Content, ShortForms, content_key, contents_of
from proxy.models.tokenizer import Tokenizer
from proxy.runtime.workers import Workers
from proxy.upstreams.routes import SummaryTarget
from proxy.upstreams.summarizer import Summarizer, SummarizerError, SummarizerOverflowError

# For each response of the upstream. The rest waits for the next one.
_AT_ONCE = 4
_CHARACTERS_PER_TOKEN = 3
# Share of the summarizer's window that a message may take. Its middle is left out if it is longer.
_USED_WINDOW = 0.6


@dataclass(eq=False, repr=False)
class ExcerptWriter:
    """Fills the store of single messages' summaries; one per process."""

    _short_forms: ShortForms
    _summarizer: Summarizer
    _tokenizer: Tokenizer
    _prompts: Prompts
    _spending: Spending
    _workers: Workers
    _in_flight: set[str] = field(default_factory=set)

    async def prepare(self, plan_input: PlanInput, target: SummaryTarget, positions: Sequence[int]) -> None:
        """Summarize the messages at these positions that have no summary yet, a few at a time.

        Without a summary, the short form of a message is its beginning and end.
        """
        contents = [content for position in positions for content in contents_of(plan_input, position)]
        keys = [content_key(plan_input, content) for content in contents]
        summaries = await self._short_forms.summaries(keys)
        missing = [
            (content, key)
            for content, key, summary in zip(contents, keys, summaries, strict=True)
            if summary is None and key not in self._in_flight
        ]
        for content, key in missing[:_AT_ONCE]:
            if key in self._in_flight:
                continue
            self._in_flight.add(key)
            try:
                if not await self._summarize(plan_input, target, content, key):
                    return
            finally:
                self._in_flight.discard(key)

    async def _summarize(self, plan_input: PlanInput, target: SummaryTarget, content: Content, key: str) -> bool:
        """Return True if the content has a summary, from this process or another one, or needs none."""
        if (await self._short_forms.summaries([key]))[0] is not None:
            return True
        utterance = (await self._workers.run(plan_input.contents_at, content.position))[content.number]
        if (
            self._tokenizer.count(utterance.text, target.encoding) <= MOST_EXCERPT_TOKENS
        ):  # one of several in a large message
            return True
        if not self._spending.allows(plan_input.caller.tenant, plan_input.caller.summary_tokens_per_day):
            return False
        try:
            verdict = await self._ask(plan_input, target, utterance)
        except (SummarizerError, SummarizerOverflowError):
            return False
        if isinstance(verdict, Invalid):
            self._summarizer.note_failure(target, "invalid")
            return False
        await self._short_forms.keep_summary(key, plan_input.allowed_text(verdict.text))
        return True

    async def _ask(self, plan_input: PlanInput, target: SummaryTarget, utterance: Utterance) -> Valid | Invalid:
        window = target.window or plan_input.limits.budget.window
        text = shorten(utterance.text, int(_USED_WINDOW * window * _CHARACTERS_PER_TOKEN / target.calibration))
        prompt = fill_excerpt(self._prompts, text, texts_for(language_of([text])), MOST_EXCERPT_TOKENS)
        answer = await self._summarizer.ask(target, prompt, int(2 * MOST_EXCERPT_TOKENS * target.calibration))
        verdict, used = await self._workers.run(self._verdict, plan_input, target, prompt.user, answer)
        self._summarizer.note_answer(target, answer, used, "invalid" if isinstance(verdict, Invalid) else "ok")
        return verdict

    def _verdict(
        self, plan_input: PlanInput, target: SummaryTarget, source: str, answer: SummaryAnswer
    ) -> tuple[Valid | Invalid, Tokens]:
        count = partial(self._tokenizer.count, encoding=target.encoding)
        tokens = count(source)
        used = answer.usage or Tokens(tokens, count(answer.text[:100_000]))
        self._spending.add(plan_input.caller.tenant, used.prompt + used.output)
        return validate_excerpt(answer, source_tokens=tokens, cap=2 * MOST_EXCERPT_TOKENS, count=count), used
