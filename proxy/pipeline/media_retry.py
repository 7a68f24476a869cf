"""Retries with fewer images and documents, if an upstream rejects a request because of them."""

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from policies.decision.media import MediaLimits
from policies.decision.overflow_retries import StatedLimit
from proxy.compaction.media import is_mostly_media, media_left
from proxy.compaction.plan_input import PlanInput, with_newest_lessons
from proxy.compaction.prompt import Prompt
from proxy.compaction.prompt_builder import PromptBuilder
from proxy.errors import ProxyError, UpstreamConnectionError
from proxy.models.windows import Windows
from proxy.pipeline.answers import UpstreamAnswer
from proxy.pipeline.stages import Attempt
from proxy.runtime.fail_open import FailOpen
from proxy.telemetry.events import Hook, note
from proxy.upstreams.refusals.media_refusals import MediaRefusal, What

# Bedrock says "Input is too long." of 34 MB with 324 tokens. From this size an overflow may mean bytes.
_LARGE_PROMPT = 10_000_000
# The lowest default byte limit of a server is 100 kB, so a smaller request is not rejected for its bytes.
_LEAST_BODY = 100_000
# Bytes from which a disconnect may mean that the body is too large, and the causes of such a disconnect.
_LARGE = 1_000_000
_DISCONNECTS = ("reset", "closed")
_SUCCESS = range(200, 300)

Deliver = Callable[[Attempt, Prompt], Awaitable[tuple[UpstreamAnswer, Prompt]]]


class MediaRetry:
    """Sends a request again that was rejected for its media. `deliver` sends a prompt."""

    def __init__(
        self, prompt_builder: PromptBuilder, windows: Windows, fail_open: FailOpen, observe: Hook, deliver: Deliver
    ) -> None:
        """Create a retry that learns through `windows`."""
        self._prompt_builder = prompt_builder
        self._windows = windows
        self._fail_open = fail_open
        self._observe = observe
        self._deliver = deliver

    async def send_first(self, attempt: Attempt) -> tuple[UpstreamAnswer, Prompt]:
        """Return the response to the first prompt. Raises ProxyError.

        If the upstream disconnects on a large prompt, it is sent again with only the newest turn's media.
        """
        try:
            return await self._deliver(attempt, attempt.first)
        except UpstreamConnectionError as error:
            plan_input, prompt = attempt.plan_input, attempt.first
            if (
                error.cause not in _DISCONNECTS
                or plan_input is None
                or not plan_input.retries
                or len(prompt.body) < _LARGE
            ):
                raise
            fewer = None
            if is_mostly_media(plan_input, prompt):
                fewer = await self._with_fewer(attempt, replace(plan_input, newest_media_only=True), prompt)
            if fewer is None:
                raise
            return await self._deliver(attempt, fewer)

    async def mend(self, attempt: Attempt, refused: tuple[UpstreamAnswer, Prompt]) -> tuple[UpstreamAnswer, Prompt]:
        """Return the response to fewer media if those are not rejected too; else the given one.

        A limit in the rejection is learned, and the next prompt keeps it. Without a limit, or if that prompt is
        rejected too, one prompt has only the newest turn's media. If that is accepted, a request as large as the
        rejected one, or with as many media, is too large from then on. A rejection of a single image teaches nothing.
        """
        answer, sent = refused
        if not answer.is_refusal or (plan_input := attempt.plan_input) is None or not plan_input.retries:
            return refused
        if (refusal := _media_refusal(plan_input, answer, sent)) is None:
            return refused
        is_learned = self._learn(attempt, refusal)
        is_of_texts = refusal.what == "bytes" and not is_mostly_media(plan_input, sent)
        if is_of_texts or not plan_input.request.history.has_media:
            return refused
        first_refusal = refusal
        upstream_and_model = {"upstream": plan_input.route.name, "model": plan_input.request.settings.model}
        self._observe(
            note(
                "media_refused", plan_input.caller.tenant, **upstream_and_model, what=refusal.what, limit=refusal.limit
            )
        )
        for newest_only in (False, True) if is_learned else (True,):
            fewer = await self._with_fewer(attempt, replace(attempt.counted, newest_media_only=newest_only), sent)
            if fewer is None:
                continue
            try:
                answer, sent = await self._deliver(attempt, fewer)
            except ProxyError:
                return refused
            if (refusal := _media_refusal(plan_input, answer, sent)) is None:
                if first_refusal.limit is None and answer.response.status in _SUCCESS:
                    self._learn(
                        attempt,
                        MediaRefusal(first_refusal.what, _less_than_refused(first_refusal.what, refused[1], sent)),
                    )
                return answer, sent
            self._learn(attempt, refusal)
        return refused

    async def _with_fewer(self, attempt: Attempt, plan_input: PlanInput, refused: Prompt) -> Prompt | None:
        building = self._prompt_builder.with_fewer_media(plan_input, refused)
        return await self._fail_open.run(building, None, attempt.received.timeout)

    def _learn(self, attempt: Attempt, refusal: MediaRefusal) -> bool:
        """Learn the limit of a rejection. Returns True if it has one of bytes or images."""
        plan_input = attempt.counted
        if refusal.limit is None or refusal.what not in ("bytes", "pictures"):
            return False
        learned = MediaLimits(**{refusal.what: refusal.limit})

        def learn() -> PlanInput:
            self._windows.saw_media_limit(plan_input.place, learned)
            return with_newest_lessons(plan_input, attempt.active.router)

        attempt.routed = self._fail_open.call(learn, plan_input)
        return True


def _less_than_refused(kind: What, refused: Prompt, answered: Prompt) -> int:
    """Return the most bytes, or else media, of a request: fewer than the rejected prompt has."""
    if kind == "bytes":
        return len(refused.body) - 1
    return len(media_left(refused, answered.view.media if answered.view else ())) - 1


def stated_excess(plan_input: PlanInput, answer: UpstreamAnswer, sent: Prompt) -> StatedLimit | None:
    """Return the stated limit of a rejected long prompt: of tokens, or of bytes if they are mostly text."""
    refusal, weight = answer.media, len(sent.body)
    if answer.overflow is not None or refusal is None or refusal.what != "bytes" or weight < _LEAST_BODY:
        return answer.overflow
    if (refusal.limit is not None and refusal.limit >= weight) or is_mostly_media(plan_input, sent):
        return None
    return StatedLimit(learnable=False, share_of_bytes=(refusal.limit or weight) / weight)


def _media_refusal(plan_input: PlanInput, answer: UpstreamAnswer, sent: Prompt) -> MediaRefusal | None:
    """Return the media limit that a response states. An overflow may mean media too if the prompt has few tokens."""
    overflow, media = answer.overflow, answer.media
    if overflow is None or overflow.action == "inspect":
        return media
    # A rejection that names tokens and a body's size means tokens, unless it states a number of bytes.
    if media is not None and (media.what != "bytes" or media.limit is not None):
        return media
    window = plan_input.route.window
    if overflow.limit is not None or window is None or len(sent.body) < _LARGE_PROMPT:
        return None
    return MediaRefusal("bytes") if plan_input.real_tokens(sent.tokens) < window.tokens / 2 else None
