"""What an answer teaches: how its upstream counts, how much it takes, and what the next request will want."""

from policies.experience import was_cut_off
from proxy.engine.ahead import is_worth_following
from proxy.engine.case import Named, learned
from proxy.engine.engine import Engine
from proxy.gateway.answers import Answer
from proxy.gateway.incoming import Incoming
from proxy.gateway.usage import UsageTap
from proxy.server.headers import for_questions
from proxy.upstream.asker import WindowAsker

# Tokens below which nothing is asked, looked up or learned, so that small requests pay for nothing.
WORTH_LOOKING_UP = 1_500


class Lessons:
    """Taken from answers that came through; one per process."""

    def __init__(self, engine: Engine, asker: WindowAsker) -> None:
        self._engine = engine
        self._asker = asker

    def tap(self, incoming: Incoming, answer: Answer) -> UsageTap | None:
        """What reads how many tokens the upstream bills."""
        named = incoming.named
        if incoming.status == 200 and named is not None:
            incoming.tap = UsageTap(answer, named.request.dialect.answers)
        return incoming.tap

    def warning(self, incoming: Incoming, answer: Answer, tap: UsageTap) -> str | None:
        """Whether the upstream read the prompt whole: by this answer where it is all there, else by the last one."""
        named, sent = incoming.named, incoming.sent
        if named is None or not _teaches(incoming, named):
            return None
        usage = tap.usage() if answer.response.at_end else None
        known = self._engine.windows.experience(named.place).cut_off
        cut_off = was_cut_off(sent.tokens, usage.prompt_tokens) if usage else known
        return "prompt_cut_off" if cut_off else sent.warning

    def take(self, incoming: Incoming, tap: UsageTap | None) -> None:
        """Learn from an answer that came through whole, and see to what follows it."""
        named, sent, engine = incoming.named, incoming.sent, self._engine
        if named is None:
            return
        incoming.usage = usage = tap.usage() if tap is not None else None
        if _teaches(incoming, named):
            engine.ahead.learn(named, sent, usage)
            if not named.is_far_below(sent.tokens) and is_worth_following(incoming.counted, sent):
                following = learned(incoming.counted, incoming.active.router)
                engine.background.start("follow_up", engine.ahead.after(following, sent, usage))
        is_shown = sent.copy is not None or not named.is_far_below(sent.tokens)
        if is_shown and engine.compositions.is_news(named, sent):
            engine.background.start("compose", engine.compositions.tell(incoming.counted, sent))
        if engine.windows.has_news(named.place):
            engine.background.start("share", engine.windows.share(named.place))
        self._ask_for_windows(incoming, named)

    def _ask_for_windows(self, incoming: Incoming, named: Named) -> None:
        if incoming.status != 200 or named.request.tokens < WORTH_LOOKING_UP or named.route.is_login:
            return
        route, model = incoming.to, named.request.settings.model
        known = route.window
        is_configured = incoming.active.router.configured_window(model) is not None
        if is_configured or route.mount.model or (known and known.source == "learned"):
            return
        if self._asker.is_due(route.upstream, model):
            headers = for_questions(route.headers, named.request.dialect.questions.HEADERS)
            self._engine.background.start("ask", self._asker.ask(route.upstream, headers, model))


def _teaches(incoming: Incoming, named: Named) -> bool:
    """Whether something is learned from its answer."""
    return incoming.status == 200 and named.mode != "off" and named.request.tokens >= WORTH_LOOKING_UP
