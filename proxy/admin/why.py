"""The reasons for what was sent and for compactions, in sentences."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from policies.decision.plan import AHEAD
from proxy.admin import words
from proxy.telemetry.events import CompactionEnded, RequestEnded

# By the codes of `x-compaction-reason`.
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "below_floor": "It is small, so it was not changed.",
        "below_threshold": "It fits, so it was not changed.",
        "output_lowered": "Prompt and response did not fit together, so the limit of the response was lowered.",
        "unknown_window": "The model's window is unknown, so a compaction follows only a refusal by the upstream.",
        "nothing_to_compact": "The conversation has no place where it may be cut.",
        "gain_too_small": "A summary would free too little.",
        "no_gain": "The summary would be larger than the messages that it replaces.",
        "irreducible": "The messages that must stay fill the window, so no summary helps.",
        "ineffective": "The last summaries freed too little, so none is made for now.",
        "proactive": "Its window was nearly full, so it was sent with a new record.",
        "tool_execution": "Its window was nearly full in the middle of tool calls, so it was sent with a new record.",
        "manual": "An operator or a header requested a compaction.",
        "overflow_retry": "The upstream refused it as too long, so it was compacted and sent again.",
        "halved": "Nothing else helped, so a note replaced half of the history.",
        "separator": "It begins after the separator of its policy.",
        "said_once": "Repeated or padded tool results were shortened without loss.",
        "media_aged": "The upstream accepts no more pictures, so notes replaced the oldest ones.",
        "media_shed": "The upstream refused its pictures, so it was sent again with fewer of them.",
        "too_large": "A single message was larger than the window, so its content was cut.",
        "would_reuse": "In shadow mode: the stored record would have been used.",
        "would_cool": "In shadow mode: large tool results would have been shortened.",
        "would_compact_N_messages": "In shadow mode: a summary would have been made.",
        "off": "Compaction is off for it.",
        "several_choices": "It requests several responses (n > 1), so it was relayed unchanged.",
        "previous_response_id": "The provider stores its history, so it was relayed unchanged.",
        "thread": "The provider stores its history, so it was relayed unchanged.",
        "conversation": "The provider stores its history, so it was relayed unchanged.",
        "stored_items": "Only the provider has the messages to summarise, so it was relayed unchanged.",
        "provider_compaction": "It requests the provider's own compaction, so it was relayed unchanged.",
        "provider_context_management": "The provider shortens it, so a compaction follows only an overflow.",
        "bound_body": "It depends on the exact bytes sent before, so it was relayed unchanged.",
        "refused": "The upstream recently refused a changed request, so it was sent unchanged.",
        "body_too_large": "It is too large to parse without delaying others, so it was relayed unchanged.",
        "too_many_values": "It has too many values to parse without delaying others, so it was relayed unchanged.",
        "unknown_shape": "Its format is unknown, so it was relayed unchanged.",
        "pending": "Another request is making its summary, and it still fits.",
        "client_request": "The client requested a compaction.",
        "client_threshold": "It reached the client's own limit, so it was compacted before the response.",
        "cleared": "The client requests that old tool results are left out.",
        "waiting": "The upstream sent nothing for so long that the client got keepalive comments.",
        "compacting": "The client waited for its summary.",
        "over_budget": "The tenant's summary budget for today is used up.",
        "internal_error": "After a fault of the proxy it was sent unchanged. The log has the reason.",
        "summarizer_timeout": "The summarizer timed out.",
        "summarizer_transient": "The summarizer was unreachable, or failed temporarily.",
        "summarizer_refused": "The summarizer refused the request.",
        "summarizer_invalid": "The summarizer's responses were not valid summaries.",
        "summarizer_bounded": "It was too long for the summarizer within the policy's limit of calls.",
        "summarizer_cooling_down": "The summarizer failed recently and is paused.",
        "cancelled": "The client disconnected.",
    }
)
# By `end` in the log.
ENDS: Mapping[str, str] = MappingProxyType(
    {
        "complete": "The response is complete.",
        "truncated": "The upstream broke off its response.",
        "client_gone": "The client disconnected before the end.",
        "refused": "The proxy refused it.",
        "deadline": "It took longer than server.request_deadline.",
        "shut_down": "The process stopped before the end.",
        "aborted": "A fault of the proxy ended it; see the log.",
    }
)
OVERFLOWS: Mapping[str, str] = MappingProxyType(
    {
        "solved": "The upstream refused it as too long. A smaller request was sent and answered.",
        "output_lowered": "Prompt and response did not fit together. It was sent again with a lower response limit.",
        "observed": "The upstream refused it as too long, and its mode leaves overflows to the client.",
        "passed_on": "The upstream refused it as too long, and no retry fitted: the client got the error.",
    }
)
# By `cause` in the log.
CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "dns": "the upstream's name was not found",
        "refused": "the upstream refused the connection",
        "tls": "no TLS connection could be made",
        "unreachable": "the upstream was unreachable",
        "connect_timeout": "the connection took too long",
        "idle_timeout": "the upstream sent nothing for too long",
        "total_timeout": "the response took too long",
        "reset": "the upstream reset the connection",
        "closed": "the upstream closed the connection",
        "not_http": "the response was not HTTP",
        "proxy": "the HTTP proxy to the upstream was unreachable",
        "proxy_credentials": "the HTTP proxy to the upstream requires credentials (407)",
        "proxy_refused": "the HTTP proxy to the upstream refused",
        "undecodable": "the response could not be decompressed",
        "too_large": "the response was too large",
    }
)
# By `x-compaction-warning`. Pins and media have figures and sentences of their own.
_WARNINGS: Mapping[str, str] = MappingProxyType(
    {
        "prompt_cut_off": "The upstream read less than half of the prompt, without an error.",
        "unstable_history": "The client changed earlier messages, so records are lost; the log names the message.",
    }
)


def troubles(event: RequestEnded) -> Iterator[str]:
    """Yield the cause of an upstream's failure, and the response's warning."""
    if event.cause is not None:
        yield f"Cause: {CAUSES.get(event.cause, event.cause.replace('_', ' '))}."
    if text := _WARNINGS.get(event.warning or ""):
        yield text


_TRIGGERS: Mapping[str, str] = MappingProxyType(
    {
        "proactive": "a request filled {used} of its room (compaction starts at {threshold})",
        "tool_execution": "during tool calls a request filled {used} of its room (compaction starts at {threshold})",
        "many": "a request of many messages filled {used} of its room",
        "background": "the upstream reported {used} of the room used (preparation starts at {threshold})",
        "economy": "{used} of its room were used, and {reading}",
        "manual": "a compaction was requested at {used} of the room",
        "client": "the client requested it at {used} of the room",
        "overflow_retry": "the upstream refused a request as too long at {used} of the assumed room",
    }
)
_CUTS: Mapping[str, str] = MappingProxyType(
    {
        "turn-boundary": "cut at the end of a turn",
        "round-boundary": "cut between two rounds of tool calls",
        "best-effort": "cut before the minimum that must stay",
    }
)
_WOULD_COMPACT = re.compile(r"would_compact_\d+_messages")


def reason(word: str) -> str:
    """Return the sentence for a reason, or an unknown reason itself."""
    word = _WOULD_COMPACT.sub("would_compact_N_messages", word)
    return REASONS.get(word, word)


def compaction(event: CompactionEnded) -> str:
    """Return why a conversation was compacted, and the result. Old records lack the fill level."""
    by_size = event.threshold is not None or event.trigger not in ("proactive", "tool_execution")
    if event.used is None:
        cause = f"it was compacted ({event.trigger.replace('_', ' ')})"
    else:
        shares = {"used": words.share(event.used), "threshold": words.share(event.threshold)}
        cause = _TRIGGERS[event.trigger if by_size else "many"].format(**shares, reading=words.reading(event))
    return f"At {words.clock(event.at)} {cause}. {_outcome(event)}"


def _outcome(event: CompactionEnded) -> str:
    summarizer_text = (f" {_summarizer_text(event)}" if event.calls else "") + _refusal_text(event)
    if event.digest is None:
        return f"No summary was made: {reason(event.reason or event.result)}{summarizer_text}"
    where = "in the background " if event.trigger in AHEAD else ""
    cut = _CUTS[event.strategy]
    text = (
        f"So {where}the first {words.plural(event.covered, 'message')} became a record of"
        f" {words.exact(event.tokens_summary)} tokens, {cut}."
    )
    if payoff := words.payoff(event):
        text += f" {payoff}"
    if event.result != "deterministic":
        return text + summarizer_text
    cause = f" {reason(event.reason)}" if event.reason else ""
    return f"{text} It was written without a model.{cause}{summarizer_text}"


def _refusal_text(event: CompactionEnded) -> str:
    """Return why responses of the model were rejected, or why it was not called."""
    if not event.refused:
        return ""
    if event.refused == ("login",):
        return " A client's login must not be used to call a model."
    return f" Rejected: {'; '.join(event.refused)}."


def _summarizer_text(event: CompactionEnded) -> str:
    cost = f", {words.usd(event.usd)}" if event.usd is not None else ""
    return (
        f"{event.model or 'The model'} was called {words.plural(event.calls, 'time')} in {words.span(event.ms / 1000)}:"
        f" {words.exact(event.tokens_in)} tokens in, {words.exact(event.tokens_out)} out{cost}."
    )
