"""What an answer teaches: how its upstream counts, how much it takes, and what the next request will want."""

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

# Tokens below which nothing is asked, looked up or learned, so that small requests pay for nothing.
WORTH_LOOKING_UP = 1_500
_REDIRECTED = 300


class Lessons:
    """Taken from answers that came through; one per process."""

    def __init__(self, engine: Engine, asker: WindowAsker) -> None:
        self._engine = engine
        self._asker = asker
        self.compositions = Compositions(engine.observe, engine.workers, time.time, engine.sent_prompts)

    def tap(self, attempt: Attempt, answer: UpstreamAnswer) -> UsageTap | None:
        """Return what reads how many tokens the upstream bills; None if nobody wants to know."""
        named, answers = attempt.named, attempt.head.dialect.answers
        if attempt.status == 200 and named is not None:
            attempt.tap = UsageTap(answer, named.request.dialect.answers)
        elif attempt.caller.issued is not None and 200 <= attempt.status < _REDIRECTED:
            # Of a request that was not read the response names the model too, so that is read in any case.
            attempt.tap = UsageTap(structs.replace(answer, usage=None), answers)
        return attempt.tap

    def warning(self, attempt: Attempt, answer: UpstreamAnswer) -> str | None:
        """Return a warning if the upstream did not read the whole prompt.

        It is known by this response if that is complete, else by the last one.
        """
        named, sent = attempt.named, attempt.prompt
        if named is None or not _teaches(attempt, named):
            return None
        usage = usage_at_once(answer, named.request.dialect.answers)
        known = self._engine.windows.experience(named.place).cut_off
        cut_off = was_cut_off(sent.tokens, usage.prompt_tokens) if usage else known
        return "prompt_cut_off" if cut_off else sent.warning

    def take(self, attempt: Attempt) -> None:
        """Learn from an answer that came through whole, and see to what follows it."""
        named, sent, engine = attempt.named, attempt.prompt, self._engine
        attempt.usage = usage = attempt.tap.usage() if attempt.tap is not None else None
        if named is None:
            return
        if _teaches(attempt, named):
            engine.prefetch.learn(named, sent, usage)
            is_large = sent.record is not None or not named.is_far_below(sent.tokens)
            if is_large and is_worth_following(attempt.counted, sent):
                following = with_newest_lessons(attempt.counted, attempt.active.router)
                engine.background.start("follow_up", engine.prefetch.after(following, sent, usage))
        is_shown = sent.copy is not None or not named.is_far_below(sent.tokens)
        if is_shown and self.compositions.has_changed(named, sent):
            engine.background.start("compose", self.compositions.tell(attempt.counted, sent))
        if engine.windows.has_news(named.place):
            engine.background.start("share", engine.windows.share(named.place))
        self._ask_for_windows(attempt, named)

    def _ask_for_windows(self, attempt: Attempt, named: RoutedRequest) -> None:
        if attempt.status != 200 or named.request.tokens < WORTH_LOOKING_UP or named.route.is_login:
            return
        route, model = attempt.route, named.request.settings.model
        known = route.window
        is_configured = attempt.active.router.configured_window(model) is not None
        if is_configured or route.mount.model or (known and known.source == "learned"):
            return
        if self._asker.is_due(route.upstream, model):
            headers = for_questions(route.headers, named.request.dialect.questions.HEADERS)
            self._engine.background.start("ask", self._asker.ask(route.upstream, headers, model))


def _teaches(attempt: Attempt, named: RoutedRequest) -> bool:
    """Return True if its response teaches how the upstream counts and how much it takes."""
    request = named.request
    is_whole = not request.settings.is_partial
    return attempt.status == 200 and named.mode != "off" and request.tokens >= WORTH_LOOKING_UP and is_whole
