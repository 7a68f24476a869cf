"""Why a request went out as it did, and why a conversation was compacted, in sentences."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from policies.decision.plan import AHEAD
from proxy.admin import words
from proxy.telemetry.events import CompactionEnded, RequestEnded

# By the words of `x-compaction-reason`.
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "below_floor": "It is small: nothing of it was changed.",
        "below_threshold": "It fits: nothing of it was changed.",
        "output_lowered": "Prompt and answer did not fit together, so the limit of the answer was lowered.",
        "unknown_window": "The model's window is not known, so nothing is done before the upstream refuses.",
        "nothing_to_compact": "There is no place where the conversation may be cut.",
        "gain_too_small": "A summary would free too little.",
        "no_gain": "The summary would weigh more than what it stands for.",
        "irreducible": "What must stay fills the window alone, so that no summary helps.",
        "ineffective": "The last summaries did not help, so none is made for now.",
        "proactive": "Its window was nearly full, so it was sent with a new record.",
        "tool_execution": "Its window was nearly full in the middle of tool calls, so it was sent with a new record.",
        "manual": "A compaction was asked for.",
        "overflow_retry": "The upstream refused it as too long, so it was compacted and sent again.",
        "halved": "Nothing else was left: half of the history gave way to a note.",
        "separator": "It begins behind the separator that its policy names.",
        "said_once": "Results that repeat earlier ones, or are padded, were shortened without loss.",
        "media_aged": "Its upstream takes no more pictures, so the oldest of them gave way to notes.",
        "media_shed": "The upstream refused its pictures, so it was sent again with fewer of them.",
        "too_large": "A single message was larger than the window, so its content was cut.",
        "would_reuse": "In shadow mode: a summary would have been used again.",
        "would_cool": "In shadow mode: large tool results would have been shortened.",
        "would_compact_N_messages": "In shadow mode: a summary would have been made.",
        "off": "Compaction is off for it.",
        "several_choices": "It asks for several answers (n > 1), which are relayed as they come.",
        "previous_response_id": "The provider holds its history, so it was relayed as it came.",
        "thread": "The provider holds its history, so it was relayed as it came.",
        "conversation": "The provider holds its history, so it was relayed as it came.",
        "stored_items": "Only the provider has what would be summarised, so it was relayed as it came.",
        "provider_compaction": "The provider is asked to compact it, so it was relayed as it came.",
        "provider_context_management": "The provider shortens it, so it is compacted after an overflow only.",
        "bound_body": "It counts on the bytes that were sent before, so it was relayed as it came.",
        "refused": "The upstream refused a copy lately, so it was sent as it came.",
        "body_too_large": "It is too large to be read without holding up others, so it was relayed as it came.",
        "too_many_values": "It holds more values than are read without holding up others: relayed as it came.",
        "unknown_shape": "Its shape is not understood, so it was relayed as it came.",
        "pending": "Its summary is being made elsewhere, and it still fits.",
        "client_request": "The client asked for a compaction, and got one.",
        "client_threshold": "It was as long as its client lets it become, so it got a compaction before its answer.",
        "cleared": "Its client wants old results of tools to be left out.",
        "waiting": "Its upstream said nothing for so long that the client was sent signs of life.",
        "compacting": "Its summary was being made while the client waited.",
        "over_budget": "The tenant's budget for summaries is spent for today.",
        "internal_error": "A fault of ours: it was forwarded as it came. The log says where.",
        "summarizer_timeout": "The summarizer took too long.",
        "summarizer_transient": "The summarizer could not be reached, or failed for a moment.",
        "summarizer_refused": "The summarizer refused.",
        "summarizer_invalid": "The summarizer's answers were no summaries.",
        "summarizer_bounded": "It was too long for the summarizer in as many calls as the policy allows.",
        "summarizer_cooling_down": "The summarizer failed lately and rests.",
        "cancelled": "Whoever waited for it left.",
    }
)
# By `end` of the log.
ENDS: Mapping[str, str] = MappingProxyType(
    {
        "complete": "The answer passed whole.",
        "truncated": "The upstream broke off its answer.",
        "client_gone": "The client left before its end.",
        "refused": "The proxy answered it with an error of its own.",
        "deadline": "It took longer than server.request_deadline.",
        "shut_down": "The process ended before it.",
        "aborted": "A fault of ours ended it; the log says where.",
    }
)
OVERFLOWS: Mapping[str, str] = MappingProxyType(
    {
        "solved": "The upstream refused it as too long; a smaller copy was sent and answered.",
        "output_lowered": "Prompt and answer did not fit together: it was sent again with a lower limit of the answer.",
        "observed": "The upstream refused it as too long, and its mode leaves that to the client.",
        "passed_on": "The upstream refused it as too long, and nothing helped: the client got the error.",
    }
)
# By `cause` of the log.
CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "dns": "the upstream's name was not found",
        "refused": "the upstream refused the connection",
        "tls": "no TLS connection could be made",
        "unreachable": "the upstream was not reached",
        "connect_timeout": "the connection took too long",
        "idle_timeout": "nothing came for too long",
        "total_timeout": "the answer took too long",
        "reset": "the upstream reset the connection",
        "closed": "the upstream closed the connection",
        "not_http": "what came was not HTTP",
        "proxy": "the proxy in between was not there",
        "proxy_credentials": "the proxy in between asked for credentials (407)",
        "proxy_refused": "the proxy in between refused",
        "undecodable": "the answer's coding could not be undone",
        "too_large": "the answer was too large to be read",
    }
)
# By `x-compaction-warning`. What is said of pins and media has figures, and its own sentences.
_WARNINGS: Mapping[str, str] = MappingProxyType(
    {
        "prompt_cut_off": "The upstream read less than half of the prompt, without an error.",
        "unstable_history": "The client changed messages that it had sent before, so records are lost; the log names"
        " the message.",
    }
)


def troubles(event: RequestEnded) -> Iterator[str]:
    """Yield why the upstream failed, and what the response warned of."""
    if event.cause is not None:
        yield f"Cause: {CAUSES.get(event.cause, event.cause.replace('_', ' '))}."
    if said := _WARNINGS.get(event.warning or ""):
        yield said


_TRIGGERS: Mapping[str, str] = MappingProxyType(
    {
        "proactive": "a request filled {used} of its room (it is compacted from {threshold})",
        "tool_execution": "amid tool calls a request filled {used} of its room (it is compacted from {threshold})",
        "many": "a request of many messages filled {used} of its room",
        "background": "the upstream reported {used} of the room used (prepared from {threshold})",
        "economy": "{used} of its room were used, and {reading}",
        "manual": "a compaction was asked for at {used} of the room",
        "client": "the client asked for it at {used} of the room",
        "overflow_retry": "the upstream refused a request as too long at {used} of the room that we believed in",
    }
)
_CUTS: Mapping[str, str] = MappingProxyType(
    {
        "turn-boundary": "cut at the end of a turn",
        "round-boundary": "cut between two rounds of tool calls",
        "best-effort": "cut where the least stays that must",
    }
)
_WOULD_COMPACT = re.compile(r"would_compact_\d+_messages")


def reason(word: str) -> str:
    """A reason as a sentence; itself where it is not one of ours."""
    word = _WOULD_COMPACT.sub("would_compact_N_messages", word)
    return REASONS.get(word, word)


def compaction(event: CompactionEnded) -> str:
    """Return what made a compaction necessary, and what came of it. Old records do not say how full the room was."""
    by_size = event.threshold is not None or event.trigger not in ("proactive", "tool_execution")
    if event.used is None:
        cause = f"it was compacted ({event.trigger.replace('_', ' ')})"
    else:
        shares = {"used": words.share(event.used), "threshold": words.share(event.threshold)}
        cause = _TRIGGERS[event.trigger if by_size else "many"].format(**shares, reading=words.reading(event))
    return f"At {words.clock(event.at)} {cause}. {_outcome(event)}"


def _outcome(event: CompactionEnded) -> str:
    asked = (f" {_summarizer_text(event)}" if event.calls else "") + _refusal_text(event)
    if event.digest is None:
        return f"No summary was made: {reason(event.reason or event.result)}{asked}"
    where = "in the background " if event.trigger in AHEAD else ""
    cut = _CUTS[event.strategy]
    made = (
        f"So {where}the first {words.plural(event.covered, 'message')} became a record of"
        f" {words.exact(event.tokens_summary)} tokens, {cut}."
    )
    if told := words.payoff(event):
        made += f" {told}"
    if event.result != "deterministic":
        return made + asked
    cause = f" {reason(event.reason)}" if event.reason else ""
    return f"{made} It was written without a model.{cause}{asked}"


def _refusal_text(event: CompactionEnded) -> str:
    """Why answers of the model were of no use, or why it was not asked."""
    if not event.refused:
        return ""
    if event.refused == ("login",):
        return " No model may be asked with a client's login."
    return f" Of no use: {'; '.join(event.refused)}."


def _summarizer_text(event: CompactionEnded) -> str:
    cost = f", {words.usd(event.usd)}" if event.usd is not None else ""
    return (
        f"{event.model or 'The model'} was asked {words.plural(event.calls, 'time')} in {words.span(event.ms / 1000)}:"
        f" {words.exact(event.tokens_in)} tokens in, {words.exact(event.tokens_out)} out{cost}."
    )
