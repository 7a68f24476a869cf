"""What is said of a request: headers to the client, an event to those who observe. No content, no keys."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

from msgspec.structs import replace

from proxy.callers.key_usage import prompt_by_size
from proxy.dialects import other_answers
from proxy.engine.case import CompactionContext, RoutedRequest
from proxy.engine.draft import Draft
from proxy.engine.media import media_figures, media_left
from proxy.errors import ClientGoneError, ProxyError, RequestDeadlineError, ShuttingDownError
from proxy.gateway.answers import UpstreamAnswer
from proxy.gateway.silence import BetweenEvents, signs
from proxy.gateway.stages import Delivery, Progress, Sent
from proxy.models.table import MAX_NAME
from proxy.observing.events import End, RequestEnded
from proxy.runtime.fail_open import FailOpen
from proxy.server.exchange import Exchange
from proxy.server.headers import Headers
from proxy.upstream.http import TruncatedError
from proxy.upstream.response import is_event_stream
from proxy.upstream.routes import Route

# The first that fits; any other error is a fault of ours, or the end of the process.
_ENDS: tuple[tuple[type[BaseException], End], ...] = (
    (ShuttingDownError, "shut_down"),
    (RequestDeadlineError, "deadline"),
    (ProxyError, "refused"),
    (ClientGoneError, "client_gone"),
    (TruncatedError, "truncated"),
)


def headers_of(delivery: Delivery) -> Headers:
    """`x-compaction*` and `Server-Timing`, for the answer to a request of a conversation."""
    named, draft = delivery.named, delivery.draft
    overhead = b"%.1f" % _overhead_ms(delivery)
    headers = _base_headers(draft, named, delivery.route)
    headers += [(b"x-compaction-overhead-ms", overhead), (b"server-timing", b"concertina;dur=" + overhead)]
    if named is not None:
        headers.append((b"x-compaction-tokens-sent", b"%d" % draft.tokens))
    if delivery.warning is not None:
        headers.append((b"x-compaction-warning", delivery.warning.encode()))
    if draft.max_output is not None:
        headers.append((b"x-compaction-max-output", b"%d" % draft.max_output))
    if draft.view is not None and draft.view.left_out:
        headers.append(
            (b"x-compaction-media", b"%d/%d" % (len(media_left(draft, draft.view.media)), len(draft.view.media)))
        )
    if draft.record is not None:
        headers.append((b"x-compaction-checkpoint", draft.record.digest[:16].encode()))
    return headers


def _base_headers(draft: Draft, named: RoutedRequest | None, route: Route) -> Headers:
    """Those that do not depend on what is sent."""
    headers = [(b"x-compaction", draft.outcome.encode()), (b"x-compaction-reason", draft.reason.encode())]
    if named is not None:
        headers.append((b"x-compaction-session", named.chain.name.encode()))
        headers.append((b"x-compaction-tokens-received", b"%d" % named.request.received_tokens))
        if named.label:
            headers.append((b"x-compaction-label", named.label.encode()))
    if route.window is not None:
        headers.append((b"x-compaction-window", b"%d" % route.window.tokens))
    return headers


def item_headers(how: Literal["made", "read"]) -> Headers:
    """`x-compaction-item`: whether the answer has an item, or the request had."""
    return [(b"x-compaction-item", how.encode())]


def commenting(exchange: Exchange, case: CompactionContext, fail_open: FailOpen) -> AbstractContextManager[None]:
    """While the block lasts, a streaming client is sent comments, as often as its policy says."""
    interval = _interval(case)
    if not interval:
        return nullcontext()
    answers = case.request.dialect.answers
    return exchange.commenting(interval, _pending(case, "compacting", fail_open), signs(answers, interval))


def comment_in(exchange: Exchange, named: RoutedRequest, silences: int, fail_open: FailOpen) -> None:
    """Have a streaming client sent comments after so many intervals in which its upstream says nothing."""
    if interval := _interval(named):
        sign = signs(named.request.dialect.answers, interval)
        exchange.comment_in(silences * interval, interval, _pending(named, "waiting", fail_open), sign)


def between_events(delivery: Delivery, answer: UpstreamAnswer, may: Callable[[], bool]) -> BetweenEvents | None:
    """What speaks in the pauses of an answer; None where nothing may."""
    named = delivery.named
    if named is None or delivery.status != 200 or not (interval := _interval(named)) or not answer.is_event_stream:
        return None
    return BetweenEvents(delivery.exchange, named.request.dialect.answers, interval, may)


def _interval(named: RoutedRequest) -> float:
    """Seconds after which its client wants a sign of life; 0 for none."""
    is_heard = named.request.settings.stream and named.request.dialect.answers.STREAM == "events"
    return named.caller.policy.keepalive if is_heard else 0.0


def _pending(named: RoutedRequest, reason: str, fail_open: FailOpen) -> Callable[[], Headers]:
    """The headers of an answer that comments begin."""
    draft = Draft(b"", named.request.tokens, "pending", reason)
    return lambda: fail_open.call(lambda: _base_headers(draft, named, named.route), [])


def ended_event(progress: Progress, error: BaseException | None) -> RequestEnded:
    """How a request ended, and all that became known of it."""
    exchange, head, caller, sent = progress.exchange, progress.head, progress.caller, progress.sent
    end: End = "complete" if error is None else next((end for kind, end in _ENDS if isinstance(error, kind)), "aborted")
    refusal = error if isinstance(error, ProxyError) and end == "refused" else None
    spoken = head.conversation
    event = RequestEnded(
        at=round(1000 * time.time()) / 1000, end=end, tenant=caller.tenant if caller else None,
        key=caller.issued.id if caller and caller.issued else None,
        policy=caller.policy_name if caller else None, method=head.method,
        path=head.shown_path, route=head.reading.route, wire=spoken.name if spoken else "relay",
        id=exchange.id, client_request_id=exchange.client_id, upstream_request_id=exchange.upstream_id,
        trace_id=head.trace.id if head.trace else None,
        status=refusal.status if refusal else _status(exchange, sent, error),
        ms=_ms(time.perf_counter() - exchange.began), bytes=exchange.sent, comments=exchange.comments,
        code=refusal.code if refusal else None, cause=_cause(error),
    )  # fmt: skip
    if sent is None:
        return event
    window = sent.route.window
    event = replace(
        event, first_byte_ms=_ms(sent.first_byte - exchange.began) if sent.first_byte else None,
        overhead_ms=_hundredths(_overhead_ms(sent)), own_ms=0.0, attempts=sent.attempts, upstream=sent.route.name,
        window=window.tokens if window else None, window_source=window.source if window else None,
    )  # fmt: skip
    return _with_conversation(event, sent) if isinstance(sent, Delivery) else event


def _with_conversation(event: RequestEnded, delivery: Delivery) -> RequestEnded:
    """With what became known of a request of a conversation that was ready to be sent."""
    named, sent, usage = delivery.named, delivery.draft, delivery.usage
    event = replace(
        event, own_ms=_hundredths(1000 * delivery.own), wait_ms=_ms(delivery.waited) if delivery.waited else None,
        stages=delivery.stages, model=_model(delivery), compaction=sent.outcome, reason=sent.reason,
        max_output=sent.max_output, overflow=delivery.overflow, warning=delivery.warning,
        checkpoint=sent.record.digest[:16] if sent.record else None,
    )  # fmt: skip
    if named is not None:
        request = named.request
        event = replace(
            event, stream=request.settings.stream, tokens_sent=sent.tokens, tokens_received=request.received_tokens,
            calibration=_calibration(named), usable=named.usable, messages=len(request.messages),
            media=media_figures(named, sent) if sent.view else None, session=named.chain.name,
            label=named.label or None,
        )  # fmt: skip
    elif event.key is not None:
        is_coded = delivery.head.header(b"content-encoding") is not None
        event = replace(
            event, stream=any(is_event_stream(response.headers) for response in delivery.responses[-1:]),
            tokens_by_size=prompt_by_size(len(delivery.received.body), is_coded=is_coded),
        )  # fmt: skip
    if usage is not None:
        event = replace(
            event, billed=usage.prompt_tokens, cached=usage.cached, cache_written=usage.cache_written,
            cache_written_long=usage.cache_written_long, output=usage.completion_tokens, reasoning=usage.reasoning,
        )  # fmt: skip
    payoff = sent.view.payoff if sent.copy and sent.view else None
    if payoff is None:
        return event
    return replace(event, removed=payoff.removed, rewritten=payoff.rewritten, pays_after=payoff.pays_after)


def _cause(error: BaseException | None) -> str | None:
    """Why the upstream failed, in one word."""
    return None if error is None or not isinstance(error, ProxyError | TruncatedError) else error.cause


def _calibration(named: RoutedRequest) -> float | None:
    calibration = named.calibration
    return None if calibration == 1 else calibration


def _ms(seconds: float) -> float:
    """To tenths; `round` to digits takes four times as long."""
    return round(10_000 * seconds) / 10


def _hundredths(ms: float) -> float:
    return round(100 * ms) / 100


def _status(exchange: Exchange, sent: Sent | None, error: BaseException | None) -> int:
    return (sent.status if sent else 0) or exchange.status or (error.status if isinstance(error, ProxyError) else 0)


def _overhead_ms(sent: Sent) -> float:
    return 1000 * (sent.prepared - sent.exchange.began)


def _model(delivery: Delivery) -> str | None:
    """Return the model that was asked for, if it has answered or is known: a client may send its key in that place."""
    named, window = delivery.named, delivery.route.window
    if not (name := _unread_model(delivery) if named is None else named.request.settings.model):
        return None
    has_answered, is_listed = 200 <= delivery.status < 300, window is not None and window.source != "policy"
    return name[:MAX_NAME] if has_answered or is_listed or delivery.active.router.names(name) else None


def _unread_model(delivery: Delivery) -> str:
    """Return the model that the response names, else the request's body; empty if there is none, or no issued key."""
    if delivery.caller.issued is None:
        return ""
    answered = other_answers.model_in(delivery.tap.ends) if delivery.tap is not None else ""
    return answered or delivery.head.model_of(delivery.received.body)
