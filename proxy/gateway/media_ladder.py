"""Sending fewer pictures and papers where an upstream refuses them: for their bytes, their number, or one by itself."""

from collections.abc import Awaitable, Callable

from policies.ladder import StatedLimit
from proxy.engine.case import CompactionContext, with_newest_lessons
from proxy.engine.draft import Draft
from proxy.engine.drafter import Drafter
from proxy.engine.media import MOST_SHED, media_left
from proxy.engine.media_lessons import learned_from
from proxy.errors import ProxyError, UpstreamConnectionError
from proxy.gateway.answers import UpstreamAnswer
from proxy.gateway.stages import Delivery
from proxy.models.windows import Windows
from proxy.observing.events import Hook, note
from proxy.overflow.media_refusals import MediaRefusal
from proxy.runtime.fail_open import FailOpen

_FAILED = 400
# Bytes of a request from which on "too long" may be said of them.
_MUCH = 10_000_000
# Bytes below which none was ever refused for them: the least bound that servers have by default is 100 kB.
_TEXTS = 100_000
# From so many on an upstream that hangs up without a word may mean them; as the connection's errors call that.
_LARGE = 1_000_000
_HUNG_UP = ("reset", "closed")

Deliver = Callable[[Delivery, Draft], Awaitable[tuple[UpstreamAnswer, Draft]]]


class MediaLadder:
    """The way from a refusal of media to an answer to fewer of them; `deliver` sends a draft."""

    def __init__(
        self, drafter: Drafter, windows: Windows, fail_open: FailOpen, observe: Hook, deliver: Deliver
    ) -> None:
        self._drafter = drafter
        self._windows = windows
        self._fail_open = fail_open
        self._observe = observe
        self._deliver = deliver

    async def first(self, delivery: Delivery) -> tuple[UpstreamAnswer, Draft]:
        """The answer to the first draft; where the upstream hangs up on a large one, that to half of its media."""
        try:
            return await self._deliver(delivery, delivery.first)
        except UpstreamConnectionError as error:
            case, draft = delivery.case, delivery.first
            if error.cause not in _HUNG_UP or case is None or not case.retries or len(draft.body) < _LARGE:
                raise
            shed = self._drafter.shed(case, draft, MediaRefusal("bytes", is_certain=False), attempt=0)
            fewer = await self._fail_open.run(shed, None, delivery.received.patience)
            if fewer is None:
                raise
            return await self._deliver(delivery, fewer)

    async def lighter(self, delivery: Delivery, refused: tuple[UpstreamAnswer, Draft]) -> tuple[UpstreamAnswer, Draft]:
        """The first answer to fewer media that does not refuse them; where there is none, and where they were not
        refused, what is given."""
        (answer, sent), case = refused, delivery.case
        if case is None or not (case.retries and self._windows.may_send_fewer_media(case.place)):
            return refused
        refusal = _refusal_of_media(case, answer, sent)
        attempt, patience = 0, delivery.received.patience
        while refusal is not None and attempt < MOST_SHED:
            if refusal.what == "one":
                await self._learn_medium(delivery, sent, refusal)
            shed = self._drafter.shed(delivery.counted, sent, refusal, attempt=attempt)
            fewer = await self._fail_open.run(shed, None, patience)
            if fewer is not None or refusal.is_certain:
                self._observe_refusal(delivery.counted, refusal)
            if fewer is None:
                if attempt:
                    self._windows.saw_media_in_vain(delivery.counted.place)
                return refused
            smallest, taught, attempt = sent, refusal, attempt + 1
            try:
                answer, sent = await self._deliver(delivery, fewer)
            except ProxyError:
                return refused
            refusal = _refusal_of_media(delivery.counted, answer, sent)
            if answer.response.status < _FAILED and not answer.error:
                self._learn_media(delivery, taught, smallest, sent)
                await self._fail_open.run(self._drafter.mark_media(delivery.counted), None, patience)
        if refusal is None:
            return answer, sent
        self._windows.saw_media_in_vain(delivery.counted.place)
        return refused

    def _observe_refusal(self, case: CompactionContext, refusal: MediaRefusal) -> None:
        where = {"upstream": case.route.name, "model": case.request.settings.model}
        self._observe(note("media_refused", case.caller.tenant, **where, what=refusal.what, limit=refusal.limit))

    async def _learn_medium(self, delivery: Delivery, sent: Draft, refusal: MediaRefusal) -> None:
        case = delivery.counted
        finding = self._drafter.refused_medium(case, sent, refusal)
        found = await self._fail_open.run(finding, None, delivery.received.patience)
        if found is not None:
            self._windows.saw_medium_refused(case.place, found, refusal.words)
            delivery.named = with_newest_lessons(case, delivery.active.router)

    def _learn_media(self, delivery: Delivery, refusal: MediaRefusal, refused: Draft, taken: Draft) -> None:
        case = delivery.counted

        def learn() -> CompactionContext:
            media = taken.view.media if taken.view else ()
            learned = learned_from(refusal, len(refused.body), media_left(refused, media))
            self._windows.saw_media_refused(case.place, learned)
            return with_newest_lessons(case, delivery.active.router)

        delivery.named = self._fail_open.call(learn, case)

    async def excess(self, delivery: Delivery, answer: UpstreamAnswer, sent: Draft) -> StatedLimit | None:
        """What an answer states of a prompt that it refuses for its length: in tokens, or in bytes, mostly of texts."""
        refusal, weight = answer.media, len(sent.body)
        if answer.overflow is not None or refusal is None or refusal.what != "bytes" or weight < _TEXTS:
            return answer.overflow
        if refusal.limit is not None and refusal.limit >= weight:
            return None
        looking = self._drafter.is_of_texts(delivery.counted, sent)
        if not await self._fail_open.run(looking, False, delivery.received.patience):
            return None
        return StatedLimit(learnable=False, share_of_bytes=(refusal.limit or weight) / weight)


def _refusal_of_media(case: CompactionContext, answer: UpstreamAnswer, sent: Draft) -> MediaRefusal | None:
    """What an answer states of media; also what says of a few tokens that they are too many."""
    overflow, media = answer.overflow, answer.media
    if overflow is None or overflow.action == "inspect":
        return media
    # Words of tokens are believed before those of a body's size, which stand beside them, but for a number of bytes.
    if media is not None and media.is_certain and (media.what != "bytes" or media.limit is not None):
        return media
    window = case.route.window
    if overflow.limit is not None or window is None or len(sent.body) < _MUCH:
        return None
    return MediaRefusal("bytes", is_certain=False) if case.real_tokens(sent.tokens) < window.tokens / 2 else None
