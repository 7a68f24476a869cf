"""What is said of a request: headers to the client, an event to those who observe. No content, no keys."""

import time
from contextlib import AbstractContextManager, nullcontext

from msgspec.structs import replace

from proxy.engine.case import Case, Named
from proxy.engine.draft import Draft
from proxy.errors import ClientGoneError, ProxyError, RequestDeadlineError, ShuttingDownError
from proxy.gateway.incoming import Incoming
from proxy.models.table import MAX_NAME
from proxy.observing.events import End, RequestEnded
from proxy.runtime.fail_open import FailOpen
from proxy.server.headers import Headers
from proxy.upstream.http import TruncatedError

# Headers that cannot be known yet when comments begin an answer.
_KNOWN_LATER = (b"x-compaction-tokens-sent", b"x-compaction-overhead-ms", b"server-timing")
# The first that fits; any other error is a fault of ours, or the end of the process.
_ENDS: tuple[tuple[type[BaseException], End], ...] = (
    (ShuttingDownError, "shut_down"),
    (RequestDeadlineError, "deadline"),
    (ProxyError, "refused"),
    (ClientGoneError, "client_gone"),
    (TruncatedError, "truncated"),
)


def headers_of(incoming: Incoming) -> Headers:
    """`x-compaction*` and `Server-Timing`, for the answer to a request of a conversation."""
    sent, named, route = incoming.draft, incoming.named, incoming.route
    if sent is None:
        return []
    overhead = b"%.1f" % _overhead_ms(incoming)
    headers = [
        (b"x-compaction", sent.outcome.encode()),
        (b"x-compaction-reason", sent.reason.encode()),
        (b"x-compaction-overhead-ms", overhead),
        (b"server-timing", b"concertina;dur=" + overhead),
    ]
    if named is not None:
        headers += [
            (b"x-compaction-session", named.chain.name.encode()),
            (b"x-compaction-tokens-received", b"%d" % named.request.received_tokens),
            (b"x-compaction-tokens-sent", b"%d" % sent.tokens),
        ]
        if named.label:
            headers.append((b"x-compaction-label", named.label.encode()))
    if route is not None and route.window is not None:
        headers.append((b"x-compaction-window", b"%d" % route.window.tokens))
    if incoming.warning is not None:
        headers.append((b"x-compaction-warning", incoming.warning.encode()))
    if sent.max_output is not None:
        headers.append((b"x-compaction-max-output", b"%d" % sent.max_output))
    if sent.record is not None:
        headers.append((b"x-compaction-checkpoint", sent.record.digest[:16].encode()))
    return headers


def commenting(incoming: Incoming, case: Case, fail_open: FailOpen) -> AbstractContextManager[None]:
    """A streaming client that waits for us inside gets comments, as often as its policy says."""
    interval = incoming.caller.policy.keepalive

    def headers() -> Headers:
        draft = Draft(b"", case.request.tokens, "pending", "compacting")
        waiting = replace(incoming, route=case.route, named=case, draft=draft, prepared=time.perf_counter())
        known: Headers = fail_open.call(lambda: headers_of(waiting), [])
        return [(name, value) for name, value in known if name not in _KNOWN_LATER]

    if not (interval and case.request.settings.stream and case.request.dialect.answers.STREAM == "events"):
        return nullcontext()
    return incoming.exchange.commenting(interval, headers)


def ended(incoming: Incoming, error: BaseException | None) -> RequestEnded:
    """How a request ended, and all that became known of it."""
    exchange, caller, route = incoming.exchange, incoming.known_caller, incoming.route
    named, sent, usage = incoming.named, incoming.draft, incoming.usage
    end: End = "complete" if error is None else next((end for kind, end in _ENDS if isinstance(error, kind)), "aborted")
    refusal = error if isinstance(error, ProxyError) and end == "refused" else None
    payoff = sent.view.payoff if sent and sent.copy and sent.view else None
    window, spoken = route.window if route else None, exchange.head.conversation
    return RequestEnded(
        at=round(time.time(), 3), end=end, tenant=caller.tenant if caller else None,
        policy=caller.policy_name if caller else None, method=exchange.head.method,
        path=exchange.head.shown_path, route=exchange.head.reading.route, wire=spoken.name if spoken else "relay",
        stream=named.request.settings.stream if named else None, id=exchange.id, client_request_id=exchange.client_id,
        upstream_request_id=exchange.upstream_id, trace_id=exchange.head.trace.id if exchange.head.trace else None,
        status=refusal.status if refusal else _status(incoming, error),
        ms=_ms(time.perf_counter() - incoming.started),
        first_byte_ms=_ms(incoming.first_byte - incoming.started) if incoming.first_byte else None,
        overhead_ms=round(_overhead_ms(incoming), 2) if route else None,
        own_ms=round(1000 * incoming.own, 2) if route else None,
        wait_ms=_ms(incoming.waited) if incoming.waited else None, stages=incoming.stages, attempts=incoming.attempts,
        bytes=exchange.sent, comments=exchange.comments, upstream=route.name if route else None,
        model=_model(incoming), compaction=sent.outcome if sent else None, reason=sent.reason if sent else None,
        tokens_sent=sent.tokens if named and sent else None,
        tokens_received=named.request.received_tokens if named else None,
        calibration=_calibration(named) if named else None, window=window.tokens if window else None,
        window_source=window.source if window else None, usable=named.usable if named else None,
        messages=len(named.request.messages) if named else None, billed=usage.prompt_tokens if usage else None,
        cached=usage.cached if usage else None, cache_written=usage.cache_written if usage else None,
        cache_written_long=usage.cache_written_long if usage else None,
        output=usage.completion_tokens if usage else None, reasoning=usage.reasoning if usage else None,
        session=named.chain.name if named else None,
        label=(named.label or None) if named else None, max_output=sent.max_output if sent else None,
        checkpoint=sent.record.digest[:16] if sent and sent.record else None,
        removed=payoff.removed if payoff else None, rewritten=payoff.rewritten if payoff else None,
        pays_after=payoff.pays_after if payoff else None, overflow=incoming.overflow,
        warning=incoming.warning, code=refusal.code if refusal else None, cause=_cause(error),
    )  # fmt: skip


def _cause(error: BaseException | None) -> str | None:
    """Why the upstream failed, in one word."""
    return error.cause if isinstance(error, ProxyError | TruncatedError) else None


def _calibration(named: Named) -> float | None:
    calibration = named.experience.calibration
    return None if calibration == 1 else calibration


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)


def _status(incoming: Incoming, error: BaseException | None) -> int:
    return incoming.status or incoming.exchange.status or (error.status if isinstance(error, ProxyError) else 0)


def _overhead_ms(incoming: Incoming) -> float:
    return 1000 * (incoming.prepared - incoming.started)


def _model(incoming: Incoming) -> str | None:
    """The model that was asked for, if it has answered or is known: a client may send its key in that place."""
    named, window = incoming.named, incoming.route.window if incoming.route else None
    if named is None or not (name := named.request.settings.model):
        return None
    is_known = (window is not None and window.source != "policy") or incoming.active.router.names(name)
    return name[:MAX_NAME] if is_known or 200 <= incoming.status < 300 else None
