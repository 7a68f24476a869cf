"""Decides whether a response reports an overflow of the context window, and reads the limit in it.

Three layers in this order: sufficient codes, vetoes (rate limits, billing, output caps …), wordings. Only the error
    part of a response is read, never generated text or an echoed prompt. In doubt the answer is "no", and the error is
    relayed.
"""

from itertools import pairwise
from typing import Literal

from policies.decision.overflow_retries import StatedLimit
from proxy.upstreams.refusals import error_parts, rules
from proxy.upstreams.refusals.numbers import read_numbers
from proxy.upstreams.refusals.output_refusals import refuses_output
from proxy.upstreams.refusals.rules import matches, normal_code, suffices

MAX_ERROR_BYTES = 64 * 1024

_FAILED = 400
# Statuses of errors without a body, which some upstreams send if the prompt is too long.
_SILENT = frozenset({400, 413})
# Names of events that report an error, whatever their data is.
ERROR_EVENTS = frozenset({"error", "response.failed", "exception"})

# Finish reasons of a response without more to generate.
_ENDED = frozenset({"length", "max_tokens", "MAX_TOKENS"})
# The most tokens of an empty response, and the least share of a full window.
NEXT_TO_NOTHING = 1
_ALL = 0.99

# Finish reasons of a response that may be empty because the prompt did not fit. Servers report it as any other end.
_QUIET_ENDS = _ENDED | {"stop", "STOP", "end_turn", "stop_sequence", "completed", "incomplete"}

_UNCLEAR = StatedLimit(learnable=False, action="inspect")
_OUTSIZED = StatedLimit(learnable=False, action="outsized")
_Verdict = Literal["overflow", "unclear", "no"]


def classify(status: int, body: bytes) -> StatedLimit | None:
    """Return the limit that an overflow error states (each part may be None); None for any other response."""
    if status in rules.NEVER or len(body) > MAX_ERROR_BYTES:
        return None
    if status in _SILENT and not body.strip():
        return _UNCLEAR
    error = error_parts.error_part(body, failed=not 200 <= status < _FAILED)
    if error is None:
        return None
    strings = error_parts.strings_of(error)
    sentences = error_parts.sentences(strings)
    codes = frozenset(normal_code(value) for key, value in strings if key in rules.CODE_FIELDS)
    match _verdict(status, strings, codes, sentences):
        case "overflow":
            return _limit_stated(error, sentences, codes)
        case "unclear" if not error_parts.is_page(error):
            is_computed = any(matches(rules.COMPUTED_OUTPUT, sentence) for sentence in sentences)
            return _OUTSIZED if is_computed else _UNCLEAR
        case _:
            return None


def classify_event(data: bytes, event: str | None = None) -> StatedLimit | None:
    """Return the limit that one event of a stream states. event: its name, if it has one."""
    return classify(_FAILED if event in ERROR_EVENTS else 200, data) if data else None


def full_window(
    finish_reason: str | None, prompt: int | None, generated: int | None, *, is_empty: bool, window: int | None
) -> StatedLimit | None:
    """Return the overflow of a complete response whose window was so full that nothing was generated; else None.

    is_empty: it has neither text nor tool calls.
    window:   the model's, as far as it is known.
    An empty response without an explicit reason may be an overflow if the window is unknown, or if no prompt is
    reported (LM Studio, LiteLLM). That depends on the size of the sent prompt.
    """
    if not is_empty or (generated is not None and generated > NEXT_TO_NOTHING):
        return None
    if finish_reason is not None and (code := normal_code(finish_reason)) and suffices(code):
        return StatedLimit(None, prompt, learnable=False)
    is_reported = prompt is not None and prompt > NEXT_TO_NOTHING
    if window is None or not is_reported:
        return _OUTSIZED if finish_reason in _QUIET_ENDS else None
    return StatedLimit(None, prompt, learnable=False) if prompt is not None and prompt >= _ALL * window else None


def _verdict(status: int, strings: error_parts.Strings, codes: frozenset[str], sentences: list[str]) -> _Verdict:
    if any(suffices(code) or code in rules.NUMBERED for code in codes):
        return "overflow"
    if any(matches(rules.VETOES, sentence) or matches(rules.ASKS_FOR_LESS_OUTPUT, sentence) for sentence in sentences):
        return "no"
    if refuses_output(sentences):
        return "no"
    if codes & rules.LONG_STRING_CODES:
        refused = (value for key, value in strings if key == "param")
        return "overflow" if any(map(rules.CONVERSATION_FIELD.fullmatch, refused)) else "no"
    judged = [sentence for sentence in sentences if not matches(rules.OUTPUT_ONLY, sentence)]
    if any(matches(rules.CERTAIN, sentence) for sentence in judged):
        return "overflow"
    about_prompt = [
        sentence
        for sentence in judged
        if not matches(rules.ELSEWHERE, sentence) and not matches(rules.UNCLEAR, sentence)
    ]
    if status < rules.GATEWAY and _is_worded(about_prompt):
        return "overflow"
    return "unclear" if status < rules.GATEWAY and _is_unclear(codes, sentences) else "no"


def _is_worded(sentences: list[str]) -> bool:
    if any(matches(rules.WORDINGS, sentence) for sentence in sentences):
        return True
    return any(
        matches(rules.COMPARISONS, f"{sentence} . {next_sentence}")
        for sentence, next_sentence in pairwise([*sentences, ""])
    )


def _is_unclear(codes: frozenset[str], sentences: list[str]) -> bool:
    if any(matches(rules.BYTES, sentence) for sentence in sentences):
        return False
    return bool(codes & rules.UNCLEAR_CODES) or any(matches(rules.UNCLEAR, sentence) for sentence in sentences)


def _limit_stated(error: object, sentences: list[str], codes: frozenset[str]) -> StatedLimit:
    if codes & rules.LONG_STRING_CODES:
        return StatedLimit(learnable=False)  # its limit counts characters
    numbers = read_numbers(
        sentences,
        limit=error_parts.number(error, "n_ctx"),
        given=error_parts.number(error, "n_prompt_tokens"),
        tier=bool(codes & rules.TIER_CODES),
    )
    return StatedLimit(
        numbers.limit,
        numbers.input_tokens,
        numbers.kind,
        numbers.output_tokens,
        numbers.is_lower_bound,
        numbers.learnable,
        "lower_output" if numbers.fits_with_less_output else "compact",
    )
