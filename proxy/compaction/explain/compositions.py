"""What prompts consist of, told to those who look at sessions: where it has changed, not for every request."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial

from msgspec import structs

from policies.decision.plan import soft_share
from proxy.compaction.explain.fates import fates, indexes_of, sent_with
from proxy.compaction.explain.shown_prompt import shown_prompt
from proxy.compaction.media import media_figures
from proxy.compaction.plan_input import PlanInput, RoutedRequest
from proxy.compaction.prompt import Prompt
from proxy.compaction.sent_prompts import HeldPrompt, SentPrompts, SessionName
from proxy.lru import remember
from proxy.runtime.workers import Workers
from proxy.telemetry.events import Hook, PromptComposed
from proxy.telemetry.message_fates import SentMessage, pack

_SESSIONS = 1_000
# A prompt that has grown by so much is looked at again: this share of its window, and not less than some tokens.
_SHARE = 0.1
_LEAST = 500
# Bytes that a message takes in memory beside its body, about.
_MESSAGE_BYTES = 500


class Compositions:
    """Knows what was told of each session; one per process. `clock` tells Unix seconds."""

    def __init__(self, observe: Hook, workers: Workers, clock: Callable[[], float], sent_prompts: SentPrompts) -> None:
        """`sent_prompts` holds the texts of what is told, for pages."""
        self._sent_prompts = sent_prompts
        self._observe = observe
        self._workers = workers
        self._clock = clock
        self._told: OrderedDict[tuple[str, bytes], tuple[str, int, int]] = OrderedDict()

    def is_news(self, named: RoutedRequest, sent: Prompt) -> bool:
        """Whether this prompt is made otherwise than the last one of its session that was told; then it counts as
        told."""
        key = named.caller.tenant, named.chain.session
        window = named.route.window
        step = max(_LEAST, int(_SHARE * window.tokens) if window else 0)
        state = (
            sent.record.digest if sent.record else "",
            len(sent.copy.replaced) if sent.copy else 0,
            sent.tokens // step,
        )
        is_news = self._told.get(key) != state
        remember(self._told, key, state, _SESSIONS)
        return is_news

    async def tell(self, case: PlanInput, sent: Prompt) -> None:
        """Every message is looked at, in a thread."""
        now = self._clock()
        self._observe(await self._workers.run(_composition_event, case, sent, now))
        name = SessionName(case.caller.tenant, case.chain.name, case.label)
        self._sent_prompts.hold(name, _held_prompt(case, sent, now))


def _held_prompt(case: PlanInput, sent: Prompt, now: float) -> HeldPrompt:
    """Return a prompt as it is held: without what was computed from it."""
    bare = structs.replace(case, request=structs.replace(case.request))
    size = len(case.request.body) + len(sent.body) + _MESSAGE_BYTES * len(case.request.messages)
    return HeldPrompt(partial(shown_prompt, bare, sent, now), size)


def _composition_event(case: PlanInput, prompt: Prompt, now: float) -> PromptComposed:
    sent = sent_with(prompt)
    found = [fate.sent_message for fate in fates(case, case.request, sent, indexes_of(case, case.request))]
    tokens = Counter[str]()
    for message in found:
        tokens[_part(message)] += message.after
    budget, policy, room = case.limits.budget, case.caller.policy, case.usable_input()
    return PromptComposed(
        at=now,
        tenant=case.caller.tenant,
        session=case.chain.name,
        label=case.label,
        media=media_figures(case, prompt),
        tools=case.request.tools_tokens,
        head=tokens["head"],
        record=prompt.record.text_tokens if prompt.record and sent.covered else 0,
        cooled=tokens["cooled"],
        results=tokens["results"],
        conversation=tokens["conversation"],
        window=room.window if room else None,
        usable=room.usable if room else None,
        soft=budget.at(soft_share(budget, policy)),
        due=budget.at(policy.compaction_threshold),
        messages=pack(found),
    )


def _part(message: SentMessage) -> str:
    if message.fate in ("head", "cooled"):
        return message.fate
    return "results" if message.role == "tool" else "conversation"
