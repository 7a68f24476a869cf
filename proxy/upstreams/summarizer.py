"""One call to a summarizer model: the request, its retries, and pauses after failures."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from policies.decision.overflow_retries import StatedLimit
from policies.price import Tokens
from policies.record.prompting import Prompt
from policies.record.validation import SummaryAnswer
from proxy.callers.api_paths import question_url
from proxy.errors import ProxyError
from proxy.lru import remember
from proxy.models.windows import ModelKey
from proxy.runtime.deadlines import within
from proxy.server.headers import HOP
from proxy.telemetry.events import CallResult, Hook, SummarizerCalled, note
from proxy.telemetry.hooks import observe_traced
from proxy.upstreams.http import TruncatedError, UpstreamClient, UpstreamResponse
from proxy.upstreams.refusals.classify import classify
from proxy.upstreams.refusals.form_refusals import refuses_form
from proxy.upstreams.routes import SummaryTarget

_MAX_ANSWER = 1024 * 1024
_ATTEMPTS = 2
# The most seconds between attempts, chosen at random. A summarizer that asks for more is paused.
_PAUSE = 1.0
_BAD_OUTPUT_COOLDOWN = 30.0
# Pauses of a failing summarizer in seconds, by failures in a row (docs/design.md, "When to compact").
_COOLDOWNS = (60.0, 300.0, 900.0)
# Pauses for questions after a session's prompt. They are longer, so that a plain question is tried in between.
_ALIGNED_COOLDOWNS = (300.0, 900.0)
# The same after a transient error, which says nothing about their form. After two in a row a plain question is next.
_ALIGNED_TRANSIENT_COOLDOWNS = (0.0, 900.0)
# Pause for questions that are rejected for their form, which does not change by itself.
_FORM_COOLDOWN = 24 * 3600.0
_REMEMBERED = 10_000
_SHOWN = 100

Kind = Literal["transient", "timeout", "refused", "invalid", "cooling_down", "bounded"]
"""`bounded`: the policy's limits for calls or depth were reached, which is not the summarizer's fault."""
_Key = tuple[str, ModelKey, bool]


class SummarizerError(Exception):
    """No usable summary was written. `kind` is the reason."""

    def __init__(self, kind: Kind, reason: str) -> None:
        """Create an error with a kind and a text."""
        super().__init__(reason)
        self.kind = kind


class FormRefusedError(SummarizerError):
    """The form of the question was rejected, e.g. a user's message after a tool's result.

    Other forms may be accepted.
    """

    def __init__(self, reason: str) -> None:
        """Create an error with a text."""
        super().__init__("refused", reason)


class SummarizerOverflowError(Exception):
    """The call was too large for the summarizer. `stated` is the limit it named, in its own tokens."""

    def __init__(self, stated: StatedLimit) -> None:
        """Create an error with the stated limit."""
        super().__init__("the summarizer's context window overflowed")
        self.stated = stated


class _TransientError(Exception):
    """A temporary failure: of the connection, or 408, 409, 429 and 5xx. soon: True if a retry makes sense now."""

    def __init__(self, reason: str, *, soon: bool = True) -> None:
        super().__init__(reason)
        self.soon = soon


class Summarizer:
    """Calls summarizers and remembers their recent failures."""

    def __init__(self, client: UpstreamClient, clock: Callable[[], float], observe: Hook) -> None:
        """Create a caller. clock: returns monotonic seconds."""
        self._client = client
        self._clock = clock
        self._observe = observe
        self._failures: OrderedDict[_Key, tuple[int, float]] = OrderedDict()
        self._paused: OrderedDict[tuple[str, str], float] = OrderedDict()

    def is_cooling_down(self, target: SummaryTarget, *, is_aligned: bool = False) -> bool:
        """Return True if it failed recently and is paused.

        is_aligned: only for questions at the end of a session's own prompt.
        """
        return self._clock() < self._failures.get(_key(target, is_aligned), (0, 0.0))[1]

    def cooling_down(self) -> set[tuple[str, str]]:
        """Return upstream and model of the summarizers that are paused now, by any caller."""
        now = self._clock()
        return {paused for paused, until in self._paused.copy().items() if now < until}

    async def ask(
        self, target: SummaryTarget, prompt: Prompt, max_tokens: int, deadline: within | None = None
    ) -> SummaryAnswer:
        """Return a response without validation. Raises SummarizerError or SummarizerOverflowError."""
        body = target.dialect.questions.ask(target.model, prompt, (target.output_key, max_tokens), target.temperature)
        return await self.send(target, body, deadline)

    async def send(
        self, target: SummaryTarget, body: bytes, deadline: within | None = None, *, is_aligned: bool = False
    ) -> SummaryAnswer:
        """Send a complete request to the summarizer. Raises SummarizerError or SummarizerOverflowError.

        deadline:   a call that it ended is reported as `timeout`, any other cancelled call as `cancelled`.
        is_aligned: the body is a client's prompt with a question at its end. If it is rejected, a plain question may be
                    accepted.
        """
        if self.is_cooling_down(target):
            raise SummarizerError("cooling_down", "the summarizer failed lately")
        started = self._clock()
        try:
            answer = await self._send_with_retries(target, body, is_aligned=is_aligned)
        except (SummarizerError, SummarizerOverflowError, asyncio.CancelledError) as error:
            self._report_call(target, _result(error, deadline), self._ms_since(started), Tokens(0))
            raise
        return replace(answer, ms=self._ms_since(started))

    def note_answer(self, target: SummaryTarget, answer: SummaryAnswer, used: Tokens, result: CallResult) -> None:
        """Report the usage of a response, and whether the response was usable."""
        self._report_call(target, result, answer.ms, used)

    def _report_call(self, target: SummaryTarget, result: CallResult, ms: float, used: Tokens) -> None:
        called = SummarizerCalled(
            tenant=target.place.tenant,
            upstream=target.name,
            model=target.model,
            wire=target.dialect.name,
            result=result,
            ms=ms,
            tokens_in=used.prompt,
            tokens_out=used.output,
            cached=used.cached,
            cache_written=used.written + used.written_long,
            key=target.key,
        )
        observe_traced(self._observe, called, target.trace)

    def _ms_since(self, started: float) -> float:
        return 1000 * (self._clock() - started)

    async def _send_with_retries(self, target: SummaryTarget, body: bytes, *, is_aligned: bool) -> SummaryAnswer:
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, _TransientError) and error.soon),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_random_exponential(multiplier=_PAUSE, max=_PAUSE),
            reraise=True,
        )
        try:
            return await retrying(self._ask_once, target, body)
        except _TransientError as error:
            self.note_failure(target, "transient")
            raise SummarizerError("transient", str(error)) from None
        except SummarizerError as error:
            if not is_aligned:
                self.note_failure(target, error.kind)
            raise

    def note_failure(
        self, target: SummaryTarget, kind: Kind, *, is_aligned: bool = False, of_form: bool = False
    ) -> None:
        """Pause this summarizer, or only its questions at the end of a session's prompt.

        The pause gets longer with each failure in a row. It is a day if the form of the question was rejected.
        """
        key = _key(target, is_aligned)
        failures, _ = self._failures.pop(key, (0, 0.0))
        pauses = (_FORM_COOLDOWN,) if is_aligned and of_form else _pauses(kind, is_aligned=is_aligned)
        pause = pauses[min(failures, len(pauses) - 1)]
        remember(self._failures, key, (failures + 1, self._clock() + pause), _REMEMBERED)
        if not pause:
            return
        if not is_aligned:
            remember(self._paused, (target.name, target.model), self._clock() + pause, _SHOWN)
        upstream_and_model = {"upstream": target.name, "model": target.model}
        self._observe(note("summarizer_paused", target.place.tenant, **upstream_and_model, kind=kind, seconds=pause))

    def note_success(self, target: SummaryTarget, *, is_aligned: bool = False) -> None:
        """Forget the failures of this summarizer."""
        self._failures.pop(_key(target, is_aligned), None)
        if not is_aligned:
            self._paused.pop((target.name, target.model), None)

    async def _ask_once(self, target: SummaryTarget, body: bytes) -> SummaryAnswer:
        names = target.dialect.question_path(target.model)
        url = question_url(target.upstream.base_url, names, target.mount, target.model)
        headers = [*target.headers, (b"content-type", b"application/json"), (HOP, b"1")]
        try:
            response = await self._client.send(target.upstream, "POST", url, headers, body)
        except ProxyError as error:
            raise _TransientError(error.message) from None
        try:
            answer = await response.read(_MAX_ANSWER)
        except TruncatedError:
            raise _TransientError("the summarizer's response was cut off") from None
        finally:
            response.close()
        if answer is None or response.header(b"content-encoding") not in (None, b"identity"):
            raise SummarizerError("refused", "the summarizer's response cannot be read")
        return self._read(target, response, answer)

    def _read(self, target: SummaryTarget, response: UpstreamResponse, answer: bytes) -> SummaryAnswer:
        status = response.status
        stated = classify(status, answer)
        if stated is not None and stated.action != "inspect":
            raise SummarizerOverflowError(stated)
        read = target.dialect.questions.read(answer) if status == 200 else None
        if read is None and refuses_form(status, answer):
            raise FormRefusedError(f"the summarizer rejected the form of a question with {status}")
        if status in (408, 409, 429) or status >= 500:
            soon = _is_soon(response.header(b"retry-after"))
            raise _TransientError(f"the summarizer responded with {status}", soon=soon)
        if status != 200:
            raise SummarizerError("refused", f"the summarizer responded with {status}")
        if read is None:
            raise _TransientError("the summarizer did not return a model response")
        return read


def _result(error: BaseException, deadline: within | None) -> CallResult:
    match error:
        case SummarizerOverflowError():
            return "overflow"
        case SummarizerError(kind="refused"):
            return "refused"
        case SummarizerError():
            return "failed"
        case _:
            return "timeout" if deadline is not None and deadline.has_expired else "cancelled"


def _is_soon(retry_after: bytes | None) -> bool:
    """Return True if a summarizer may be called again within the pause. A date counts as never."""
    try:
        return retry_after is None or float(retry_after) <= _PAUSE
    except ValueError:
        return False


def _pauses(kind: Kind, *, is_aligned: bool) -> Sequence[float]:
    if is_aligned:
        return _ALIGNED_TRANSIENT_COOLDOWNS if kind == "transient" else _ALIGNED_COOLDOWNS
    return (_BAD_OUTPUT_COOLDOWN,) if kind == "invalid" else _COOLDOWNS


def _key(target: SummaryTarget, is_aligned: bool) -> _Key:
    return target.dialect.name, target.place, is_aligned
