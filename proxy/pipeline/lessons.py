"""Learning from a response: the upstream's token counts, its limits, and the needs of the next request."""

import time

from msgspec import structs

from policies.model_profile import was_cut_off
from proxy.callers.api_headers import for_questions
from proxy.compaction.engine import Engine
from proxy.compaction.explain.compositions import Compositions
from proxy.compaction.plan_input import RoutedRequest, with_newest_lessons
from proxy.compaction.prefetch import is_worth_following
from proxy.pipeline.answers import UpstreamAnswer
from proxy.pipeline.stages import Attempt
from proxy.pipeline.usage import UsageTap, usage_at_once
from proxy.upstreams.asker import WindowAsker

# Requests with fewer tokens cause no lookups and no learning, so that they cost nothing.
WORTH_LOOKING_UP = 1_500
_REDIRECTED = 300


class Lessons:
    """Learns from complete responses. One per process."""

    def __init__(self, engine: Engine, asker: WindowAsker) -> None:
        """Create a learner."""
        self._engine = engine
        self._asker = asker
        self.compositions = Compositions(engine.observe, engine.workers, time.time, engine.sent_prompts)

    def tap(self, attempt: Attempt, answer: UpstreamAnswer) -> UsageTap | None:
        """Return a reader of the billed usage; None if it is not needed."""
        routed, answers = attempt.routed, attempt.head.dialect.answers
        if attempt.status == 200 and routed is not None:
            attempt.tap = UsageTap(answer, routed.request.dialect.answers)
        elif attempt.caller.issued is not None and 200 <= attempt.status < _REDIRECTED:
            # If the request was not read, the model's name comes from the response, so that is read in any case.
            attempt.tap = UsageTap(structs.replace(answer, usage=None), answers)
        return attempt.tap

    def warning(self, attempt: Attempt, answer: UpstreamAnswer) -> str | None:
        """Return a warning if the upstream did not read the whole prompt.

        The usage in this response shows it if it is complete, else that in the last one.
        """
        routed, sent = attempt.routed, attempt.prompt
        if routed is None or not _teaches(attempt, routed):
            return None
        usage = usage_at_once(answer, routed.request.dialect.answers)
        was_cut = self._engine.windows.experience(routed.place).cut_off
        cut_off = was_cut_off(sent.tokens, usage.prompt_tokens) if usage else was_cut
        return "prompt_cut_off" if cut_off else sent.warning

    def take(self, attempt: Attempt) -> None:
        """Learn from a complete response, and start the work that follows it."""
        routed, sent, engine = attempt.routed, attempt.prompt, self._engine
        attempt.usage = usage = attempt.tap.usage() if attempt.tap is not None else None
        if routed is None:
            return
        if _teaches(attempt, routed):
            engine.prefetch.learn(routed, sent, usage)
            is_large = sent.record is not None or not routed.is_far_below(sent.tokens)
            if is_large and is_worth_following(attempt.counted, sent):
                following = with_newest_lessons(attempt.counted, attempt.active.router)
                engine.background.start("follow_up", engine.prefetch.follow_up(following, sent, usage))
        is_shown = sent.copy is not None or not routed.is_far_below(sent.tokens)
        if is_shown and self.compositions.has_changed(routed, sent):
            engine.background.start("compose", self.compositions.emit(attempt.counted, sent))
        if engine.windows.has_news(routed.place):
            engine.background.start("share", engine.windows.share(routed.place))
        self._ask_for_windows(attempt, routed)

    def _ask_for_windows(self, attempt: Attempt, routed: RoutedRequest) -> None:
        if attempt.status != 200 or routed.request.tokens < WORTH_LOOKING_UP or routed.route.is_login:
            return
        route, model = attempt.route, routed.request.settings.model
        window = route.window
        is_configured = attempt.active.router.configured_window(model) is not None
        if is_configured or route.mount.model or (window and window.source == "learned"):
            return
        if self._asker.is_due(route.upstream, model):
            headers = for_questions(route.headers, routed.request.dialect.questions.HEADERS)
            self._engine.background.start("ask", self._asker.ask(route.upstream, headers, model))


def _teaches(attempt: Attempt, routed: RoutedRequest) -> bool:
    """Return True if the response shows how the upstream counts and how much it accepts."""
    request = routed.request
    is_whole = not request.settings.is_partial
    return attempt.status == 200 and routed.mode != "off" and request.tokens >= WORTH_LOOKING_UP and is_whole
