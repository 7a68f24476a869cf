"""Events about the composition of prompts, for the pages of sessions. One is emitted per change, not per request."""

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
# A prompt that has grown by this share of its window, or by at least `_LEAST` tokens, is reported again.
_SHARE = 0.1
_LEAST = 500
# Approximate bytes of a message in memory besides its body.
_MESSAGE_BYTES = 500


class Compositions:
    """Emits events and remembers what it emitted for each session. One per process. `clock` returns Unix seconds."""

    def __init__(self, observe: Hook, workers: Workers, clock: Callable[[], float], sent_prompts: SentPrompts) -> None:
        """Create an emitter. sent_prompts: holds the prompts' texts for pages."""
        self._sent_prompts = sent_prompts
        self._observe = observe
        self._workers = workers
        self._clock = clock
        self._emitted: OrderedDict[tuple[str, bytes], tuple[str, int, int]] = OrderedDict()

    def has_changed(self, routed: RoutedRequest, sent: Prompt) -> bool:
        """Return True if a prompt differs from the last reported one of its session. It then counts as reported."""
        key = routed.caller.tenant, routed.chain.session
        window = routed.route.window
        step = max(_LEAST, int(_SHARE * window.tokens) if window else 0)
        state = (
            sent.record.digest if sent.record else "",
            len(sent.copy.replaced) if sent.copy else 0,
            sent.tokens // step,
        )
        has_changed = self._emitted.get(key) != state
        remember(self._emitted, key, state, _SESSIONS)
        return has_changed

    async def emit(self, plan_input: PlanInput, sent: Prompt) -> None:
        """Emit the composition of a prompt. A worker reads all its messages."""
        now = self._clock()
        self._observe(await self._workers.run(_composition_event, plan_input, sent, now))
        name = SessionName(plan_input.caller.tenant, plan_input.chain.name, plan_input.label)
        self._sent_prompts.hold(name, _held_prompt(plan_input, sent, now))


def _held_prompt(plan_input: PlanInput, sent: Prompt, now: float) -> HeldPrompt:
    """Return a prompt to hold, without computed values."""
    bare = structs.replace(plan_input, request=structs.replace(plan_input.request))
    size = len(plan_input.request.body) + len(sent.body) + _MESSAGE_BYTES * len(plan_input.request.messages)
    return HeldPrompt(partial(shown_prompt, bare, sent, now), size)


def _composition_event(plan_input: PlanInput, prompt: Prompt, now: float) -> PromptComposed:
    sent = sent_with(prompt)
    messages = [
        fate.sent_message
        for fate in fates(plan_input, plan_input.request, sent, indexes_of(plan_input, plan_input.request))
    ]
    tokens = Counter[str]()
    for message in messages:
        tokens[_part(message)] += message.after
    budget, policy, budget_of_window = plan_input.limits.budget, plan_input.caller.policy, plan_input.usable_input()
    return PromptComposed(
        at=now,
        tenant=plan_input.caller.tenant,
        session=plan_input.chain.name,
        label=plan_input.label,
        media=media_figures(plan_input, prompt),
        tools=plan_input.request.tools_tokens,
        head=tokens["head"],
        record=prompt.record.text_tokens if prompt.record and sent.covered else 0,
        cooled=tokens["cooled"],
        results=tokens["results"],
        conversation=tokens["conversation"],
        window=budget_of_window.window if budget_of_window else None,
        usable=budget_of_window.usable if budget_of_window else None,
        soft=budget.at(soft_share(budget, policy)),
        due=budget.at(policy.compaction_threshold),
        messages=pack(messages),
    )


def _part(message: SentMessage) -> str:
    if message.fate in ("head", "cooled"):
        return message.fate
    return "results" if message.role == "tool" else "conversation"
