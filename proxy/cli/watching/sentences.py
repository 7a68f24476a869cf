"""Describe a request in sentences on one line, for `concertina tail`."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from proxy.admin import words
from proxy.admin.why import ENDS, OVERFLOWS, REASONS, reason, troubles
from proxy.telemetry.events import RequestEnded
from proxy.telemetry.text_lines import printable, tokens

_SESSION_DIGITS = 8
_LONG_WAIT_MS = 1_000
_UNCHANGED = ("none", "bypass", "pending", "failed-open", "shadow")
# Reasons that mean only that nothing else was needed.
_ROUTINE = ("below_floor", "below_threshold", "unknown_window")
# Reasons for changed tool results and pictures other than their size.
_SHORTENED = ("said_once", "cleared", "media_aged", "media_shed")

# By the `code` of the proxy's errors.
CODES: Mapping[str, str] = MappingProxyType(
    {
        "internal_error": "a fault of the proxy; see its log",
        "invalid_request": "the request is not valid",
        "invalid_json": "its body is not valid JSON",
        "request_too_large": "its body is larger than server.max_body_bytes",
        "invalid_api_key": "its key is not known",
        "too_many_failures": "too many wrong keys came from this address",
        "not_allowed": "its key may not do this",
        "content_hidden": "the tenant's settings hide the content of conversations",
        "not_found": "the address does not exist",
        "erased": "the requested data was erased",
        "method_not_allowed": "this address needs another method",
        "websocket_not_supported": "WebSockets are not served",
        "store_unavailable": "the store does not respond",
        "invalid_value": "a value in it is not valid",
        "unknown_url": "the address does not exist",
        "compaction_item_unavailable": "it contains a compaction that this proxy cannot open",
        "upstream_unreachable": "the upstream could not be reached",
        "upstream_timeout": "the upstream did not answer in time",
        "upstream_error": "the upstream's response was an error in the middle of a stream",
        "compaction_failed": "it could not be compacted, and its policy forbids to send it unchanged",
        "context_length_exceeded": "it does not fit the model's context window",
        "loop_detected": "an upstream's base_url leads back to this proxy",
        "uri_too_long": "its address is too long",
        "headers_too_large": "its headers are too large",
        "request_timeout": "the client sent it too slowly",
        "server_overloaded": "too many requests are in flight",
        "too_many_open_files": "too many connections are open",
        "rate_limit_exceeded": "its tenant or key sends too many requests at once",
        "insufficient_quota": "its key has used up its budget",
        "nothing_to_undo": "its session has no record to undo",
        "request_deadline": "it took longer than server.request_deadline",
        "server_shutting_down": "the proxy is shutting down",
    }
)


def request_sentences(event: RequestEnded) -> str:
    """Return `billing  gpt-4o  161k tokens, 44.0k sent (window 128k). … Answered in 1.4 s. $0.12.` on one line."""
    subject = event.label or (event.session or "")[:_SESSION_DIGITS] or f"{event.method} {event.path}"
    sentences = " ".join(filter(None, [_size(event), *_changes(event), *_end(event), _money(event)]))
    return printable("  ".join(filter(None, [subject, event.model, sentences])))


def _size(event: RequestEnded) -> str:
    if event.received is None or event.sent is None:
        return ""
    window = f" (window {tokens(event.window)})" if event.window else ""
    if event.sent == event.received:
        return f"{tokens(event.received)} tokens{window}."
    return f"{tokens(event.received)} tokens, {tokens(event.sent)} sent{window}."


def _changes(event: RequestEnded) -> Iterator[str]:
    """Yield the changes of the prompt and their reasons."""
    why = _reason(event.reason)
    match event.compaction:
        case None:
            return
        case "reused":
            yield "Older messages were replaced by the stored record."
            yield "" if event.reason in _ROUTINE else why
        case "cooled":
            yield why if event.reason in _SHORTENED else "Large tool results were shortened."
        case "applied":
            yield why or "Older messages were replaced by a new record."
        case _:
            yield why
    if event.pins_left_out:
        yield f"{words.plural(event.pins_left_out, 'pinned text')} did not fit."
    if (event.wait_ms or 0) >= _LONG_WAIT_MS:
        yield f"It waited {words.span((event.wait_ms or 0) / 1000)} for a summary."


def _reason(code: str | None) -> str:
    sentence = reason(code or "")
    return sentence if sentence in REASONS.values() else f"Reason: {sentence.replace('_', ' ')}." if sentence else ""


def _end(event: RequestEnded) -> Iterator[str]:
    """Yield the sentences about the end of the request."""
    time = words.span(event.ms / 1000)
    if event.overflow is not None:
        yield OVERFLOWS[event.overflow]
    if event.end == "refused" or (event.code in CODES and event.end == "complete"):
        why = CODES.get(event.code or "", (event.code or "").replace("_", " ")) or "the request is not valid"
        yield f"The proxy refused it with {event.status}: {why}."
    elif event.end != "complete":
        yield f"{ENDS[event.end]} After {time}."
    elif event.status >= 400:
        yield f"The upstream refused it with {event.status} after {time}."
    else:
        yield f"Answered in {time}."
    yield from troubles(event)


def _money(event: RequestEnded) -> str:
    if event.usd is None:
        return ""
    saved = 0.0 if event.usd_received is None or event.sent == event.received else event.usd_received - event.usd
    return f"{words.usd(event.usd)}, {words.usd(saved)} saved." if saved > 0 else f"{words.usd(event.usd)}."
