"""Reports about a request: headers for the client, and an event for listeners. No content, no keys."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from msgspec.structs import force_setattr

from policies.record.left_out import left_out_text
from proxy.callers.key_usage import prompt_by_size
from proxy.compaction.media import media_figures, media_left
from proxy.compaction.plan_input import PlanInput, RoutedRequest
from proxy.compaction.prompt import Prompt
from proxy.dialects import other_answers
from proxy.errors import ClientGoneError, ProxyError, RequestDeadlineError, ShuttingDownError
from proxy.models.table import MAX_NAME
from proxy.pipeline.stages import PASSED_THROUGH, Attempt, Received
from proxy.runtime.fail_open import FailOpen
from proxy.server.exchange import Exchange
from proxy.server.headers import Headers
from proxy.server.waiting import KeepAlive
from proxy.telemetry.branches import PREFIX_DIGITS
from proxy.telemetry.events import End, RequestEnded
from proxy.upstreams.http import TruncatedError
from proxy.upstreams.response import is_event_stream
from proxy.upstreams.routes import Route

# The first match applies. Any other error is internal, or the end of the process.
_ENDS: tuple[tuple[type[BaseException], End], ...] = (
    (ShuttingDownError, "shut_down"),
    (RequestDeadlineError, "deadline"),
    (ProxyError, "refused"),
    (ClientGoneError, "client_gone"),
    (TruncatedError, "truncated"),
)


def headers_of(attempt: Attempt) -> Headers:
    """Return `x-compaction*` and `Server-Timing` for the response to a request of a conversation."""
    routed, prompt = attempt.routed, attempt.prompt
    overhead = b"%.1f" % _overhead_ms(attempt)
    headers = _base_headers(prompt, routed, attempt.route)
    headers += [(b"x-compaction-overhead-ms", overhead), (b"server-timing", b"concertina;dur=" + overhead)]
    if routed is not None:
        headers.append((b"x-compaction-tokens-sent", b"%d" % prompt.tokens))
    if attempt.warning is not None:
        headers.append((b"x-compaction-warning", attempt.warning.encode()))
    if prompt.max_output is not None:
        headers.append((b"x-compaction-max-output", b"%d" % prompt.max_output))
    if prompt.view is not None and prompt.view.left_out:
        headers.append(
            (b"x-compaction-media", b"%d/%d" % (len(media_left(prompt, prompt.view.media)), len(prompt.view.media)))
        )
    if prompt.view is not None and prompt.view.shortened:
        number = b"%d/%d" % (len(prompt.view.shortened), prompt.view.saved_tokens)
        headers.append((b"x-compaction-shortened", number))
    if prompt.view is not None and prompt.view.restored:
        headers.append((b"x-compaction-restored", b"%d" % len(prompt.view.restored)))
    if (pins := prompt.pins) is not None:
        headers.append((b"x-compaction-pins", b"%d/%d" % (len(pins.kept), len(pins.pins))))
    if prompt.record is not None:
        headers.append((b"x-compaction-checkpoint", prompt.record.digest[:16].encode()))
        headers.append((b"x-compaction-left-out", left_out_text(prompt.record.left_out_counts).encode()))
    return headers


def _base_headers(prompt: Prompt, routed: RoutedRequest | None, route: Route) -> Headers:
    """Return the headers that do not depend on the prompt."""
    headers = [(b"x-compaction", prompt.outcome.encode()), (b"x-compaction-reason", prompt.reason.encode())]
    if routed is not None:
        headers.append((b"x-compaction-session", routed.chain.name.encode()))
        headers.append((b"x-compaction-tokens-received", b"%d" % routed.request.received_tokens))
        if routed.label:
            headers.append((b"x-compaction-label", routed.label.encode()))
    if route.window is not None:
        headers.append((b"x-compaction-window", b"%d" % route.window.tokens))
    return headers


def item_headers(how: Literal["made", "read"]) -> Headers:
    """Return `x-compaction-item`: `made` if the response has an item, `read` if the request had one."""
    return [(b"x-compaction-item", how.encode())]


@contextmanager
def waiting(exchange: Exchange, plan_input: PlanInput, fail_open: FailOpen) -> Iterator[None]:
    """Write keep-alives to a streaming client if the block takes longer than an interval of its policy."""
    signs = keep_alive_of(exchange, plan_input)
    if signs is None:
        yield
        return
    signs.start(1, _pending(plan_input, "compacting", fail_open))
    try:
        yield
    finally:
        signs.cancel()


def wait_for_upstream(exchange: Exchange, routed: RoutedRequest, intervals: int, fail_open: FailOpen) -> None:
    """Write keep-alives to a streaming client if its upstream is silent for this many intervals of its policy."""
    if (keep_alive := keep_alive_of(exchange, routed)) is not None:
        keep_alive.start(intervals, _pending(routed, "waiting", fail_open))


def keep_alive_of(exchange: Exchange, routed: RoutedRequest) -> KeepAlive | None:
    """Return the keep-alive of a request; None if the client reads none or the policy has none."""
    if exchange.waiting is None:
        answers, interval = routed.request.dialect.answers, routed.caller.policy.keepalive
        if interval and routed.request.settings.stream and answers.STREAM == "events":
            exchange.waiting = KeepAlive(exchange, answers, interval)
    return exchange.waiting


def _pending(routed: RoutedRequest, reason: str, fail_open: FailOpen) -> Callable[[], Headers]:
    """Return a function for the headers of a response that a keep-alive begins."""
    prompt = Prompt(b"", routed.request.tokens, "pending", reason)
    return lambda: fail_open.call(lambda: _base_headers(prompt, routed, routed.route), [])


def ended_event(received: Received, error: BaseException | None) -> RequestEnded:
    """Return the event about a request's end, with all that is known about it."""
    exchange, head, attempt = received.exchange, received.head, received.attempt
    caller = received.known_sender.caller if received.known_sender else None
    route = attempt.route if attempt else None
    spoken, window = head.conversation, route.window if route else None
    is_passed_through = attempt is not None and attempt.prompt is PASSED_THROUGH
    prompt = None if attempt is None or is_passed_through else attempt.prompt
    routed, usage = (attempt.routed, attempt.usage) if attempt else (None, None)
    request = routed.request if routed else None
    event = RequestEnded(
        at=round(1000 * time.time()) / 1000,
        end="complete",
        tenant=caller.tenant if caller else None,
        policy=caller.policy_name if caller else None,
        method=head.method,
        path=head.shown_path,
        route=head.reading.route,
        wire=spoken.name if spoken else "relay",
        stream=request.settings.stream if request else None,
        id=exchange.id,
        client_request_id=exchange.client_id,
        upstream_request_id=exchange.upstream_id,
        status=(attempt.status if attempt else 0) or exchange.status,
        ms=_ms(time.perf_counter() - exchange.began),
        first_byte_ms=_ms(attempt.first_byte - exchange.began) if attempt and attempt.first_byte else None,
        overhead_ms=_hundredths(_overhead_ms(attempt)) if attempt else None,
        own_ms=_hundredths(1000 * attempt.own) if attempt else None,
        stages=attempt.stages if attempt else None,
        attempts=attempt.tries if attempt else 0,
        bytes=exchange.sent,
        comments=exchange.comments,
        upstream=route.name if route else None,
        model=_model(attempt) if attempt and prompt else None,
        compaction=prompt.outcome if prompt else None,
        reason=prompt.reason if prompt else None,
        tokens_sent=prompt.tokens if prompt and request else None,
        tokens_received=request.received_tokens if request else None,
        calibration=_calibration(routed) if routed else None,
        window=window.tokens if window else None,
        window_source=window.source if window else None,
        usable=routed.usable if routed else None,
        messages=len(request.messages) if request else None,
        billed=usage.prompt_tokens if usage else None,
        cached=usage.cached if usage else None,
        cache_written=usage.cache_written if usage else None,
        cache_written_long=usage.cache_written_long if usage else None,
        output=usage.completion_tokens if usage else None,
        reasoning=usage.reasoning if usage else None,
        session=routed.chain.name if routed else None,
        label=(routed.label or None) if routed else None,
    )
    for field, value in _build_rare_fields(received, attempt if prompt else None, error).items():
        force_setattr(event, field, value)
    if routed is not None and (digests := routed.chain.newest_digests):
        force_setattr(event, "prefixes", "".join(digest[: PREFIX_DIGITS // 2].hex() for digest in digests))
    return event


def _build_rare_fields(received: Received, attempt: Attempt | None, error: BaseException | None) -> dict[str, object]:
    """Return the event's rare fields. Each argument of its constructor would cost every request."""
    fields: dict[str, object] = {}
    sender, trace = received.known_sender, received.head.trace
    if error is not None:
        fields |= _build_failure_fields(received, error)
    if trace is not None:
        fields["trace_id"] = trace.id
    if sender is not None and (issued := sender.caller.issued) is not None:
        fields["key"] = issued.id
        if attempt and not attempt.routed:  # an issued key pays for unread requests too
            fields |= {"stream": _is_stream(attempt), "tokens_by_size": _tokens_by_size(attempt)}
    if attempt is not None:
        if attempt.waited:
            fields["wait_ms"] = _ms(attempt.waited)
        if attempt.overflow is not None or attempt.warning is not None:
            fields |= {"overflow": attempt.overflow, "warning": attempt.warning}
        prompt = attempt.prompt
        if (pins := prompt.pins) is not None:
            fields |= {"pins": len(pins.pins), "pins_left_out": len(pins.missing)}
        if prompt.view is not None or prompt.record is not None or prompt.max_output is not None:
            fields |= _build_rewrite_fields(attempt, prompt)
    return fields


def _build_rewrite_fields(attempt: Attempt, prompt: Prompt) -> dict[str, object]:
    """Return the fields of a rewritten request."""
    fields: dict[str, object] = {"max_output": prompt.max_output}
    if prompt.record is not None:
        fields |= {"checkpoint": prompt.record.digest[:16], "left_out": prompt.record.left_out_counts}
    if prompt.view is not None:
        fields["media"] = media_figures(attempt.routed, prompt) if attempt.routed else None
        if prompt.view.shortened:
            fields |= {"shortened": len(prompt.view.shortened), "shortened_tokens": prompt.view.saved_tokens}
        if prompt.view.restored or prompt.view.unresolved:
            fields |= {"restored": len(prompt.view.restored), "unresolved": prompt.view.unresolved}
        if prompt.copy and (payoff := prompt.view.payoff):
            fields |= {"removed": payoff.removed, "rewritten": payoff.rewritten, "pays_after": payoff.pays_after}
    return fields


def _build_failure_fields(received: Received, error: BaseException) -> dict[str, object]:
    end: End = next((end for kind, end in _ENDS if isinstance(error, kind)), "aborted")
    fields: dict[str, object] = {"end": end, "cause": _cause(error)}
    if isinstance(error, ProxyError):
        if end == "refused":
            return {**fields, "code": error.code, "status": error.status}
        if not (received.attempt and received.attempt.status) and not received.exchange.status:
            fields["status"] = error.status
    return fields


def _is_stream(attempt: Attempt) -> bool:
    return any(is_event_stream(response.headers) for response in attempt.responses[-1:])


def _tokens_by_size(attempt: Attempt) -> int:
    """Estimate the tokens of a prompt that was not read."""
    is_coded = attempt.head.header(b"content-encoding") is not None
    return prompt_by_size(len(attempt.received.body), is_coded=is_coded)


def _cause(error: BaseException) -> str | None:
    """Return the cause of the upstream's failure in one word; None for any other error."""
    return error.cause if isinstance(error, ProxyError | TruncatedError) else None


def _calibration(routed: RoutedRequest) -> float | None:
    calibration = routed.calibration
    return None if calibration == 1 else calibration


def _ms(seconds: float) -> float:
    """Return milliseconds in tenths. `round` with digits takes four times as long."""
    return round(10_000 * seconds) / 10


def _hundredths(ms: float) -> float:
    return round(100 * ms) / 100


def _overhead_ms(attempt: Attempt) -> float:
    return 1000 * (attempt.ready - attempt.exchange.began)


def _model(attempt: Attempt) -> str | None:
    """Return the requested model if it responded or is known; else None, since a client may send a key in its place."""
    routed, window = attempt.routed, attempt.route.window
    if not (name := _unread_model(attempt) if routed is None else routed.request.settings.model):
        return None
    has_answered, is_listed = 200 <= attempt.status < 300, window is not None and window.source != "policy"
    return name[:MAX_NAME] if has_answered or is_listed or attempt.active.router.names(name) else None


def _unread_model(attempt: Attempt) -> str:
    """Return the model in the response, else in the request's body; empty if there is none or no issued key."""
    if attempt.caller.issued is None:
        return ""
    answered = other_answers.model_in(attempt.tap.ends) if attempt.tap is not None else ""
    return answered or attempt.head.model_of(attempt.received.body)
