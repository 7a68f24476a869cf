"""Whether an upstream's answer says that the context window overflowed, and what it says about the limit.

Layers, in this order: codes that suffice, vetoes (rate limits, billing, output caps …), wordings. Only the error part
of an answer is read, never generated text or an echoed prompt. Any doubt is "no": the error is passed on.
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
# An error without a body, which some upstreams send where the prompt is too long.
_SILENT = frozenset({400, 413})
# Names of events that report an error, whatever their data looks like.
ERROR_EVENTS = frozenset({"error", "response.failed", "exception"})

# Why an answer ends that has no more to say.
_ENDED = frozenset({"length", "max_tokens", "MAX_TOKENS"})
# So many tokens are next to nothing, and so much of the window is all of it.
NEXT_TO_NOTHING = 1
_ALL = 0.99

# Why a response ends that may be empty because the prompt did not fit: servers report it as any other end.
_QUIET_ENDS = _ENDED | {"stop", "STOP", "end_turn", "stop_sequence", "completed", "incomplete"}

_UNCLEAR = StatedLimit(learnable=False, action="inspect")
_OUTSIZED = StatedLimit(learnable=False, action="outsized")
_Verdict = Literal["overflow", "unclear", "no"]


def classify(status: int, body: bytes) -> StatedLimit | None:
    """What an overflow error states (each part may be None), or None where the answer is no overflow."""
    if status in rules.NEVER or len(body) > MAX_ERROR_BYTES:
        return None
    if status in _SILENT and not body.strip():
        return _UNCLEAR
    error = error_parts.error_part(body, failed=not 200 <= status < _FAILED)
    if error is None:
        return None
    said = error_parts.strings_of(error)
    sentences = error_parts.sentences(said)
    codes = frozenset(normal_code(value) for key, value in said if key in rules.CODE_FIELDS)
    match _verdict(status, said, codes, sentences):
        case "overflow":
            return _limit_stated(error, sentences, codes)
        case "unclear" if not error_parts.is_page(error):
            is_computed = any(matches(rules.COMPUTED_OUTPUT, sentence) for sentence in sentences)
            return _OUTSIZED if is_computed else _UNCLEAR
        case _:
            return None


def classify_event(data: bytes, event: str | None = None) -> StatedLimit | None:
    """The same of one event of a stream: its data, and its name where it has one."""
    return classify(_FAILED if event in ERROR_EVENTS else 200, data) if data else None


def full_window(
    finish_reason: str | None, prompt: int | None, generated: int | None, *, is_empty: bool, window: int | None
) -> StatedLimit | None:
    """What a finished answer says of a window so full that nothing was generated: why it ended, and its tokens.

    is_empty: neither text nor tool calls came.
    window:       the model's, as far as it is known.

    An empty response without an explicit reason may be an overflow if the window is not known, or no prompt is reported
    (LM Studio, LiteLLM): that depends on how much was sent.
    """
    if not is_empty or (generated is not None and generated > NEXT_TO_NOTHING):
        return None
    if finish_reason is not None and (named := normal_code(finish_reason)) and suffices(named):
        return StatedLimit(None, prompt, learnable=False)
    is_reported = prompt is not None and prompt > NEXT_TO_NOTHING
    if window is None or not is_reported:
        return _OUTSIZED if finish_reason in _QUIET_ENDS else None
    return StatedLimit(None, prompt, learnable=False) if prompt is not None and prompt >= _ALL * window else None


def _verdict(status: int, said: error_parts.Said, codes: frozenset[str], sentences: list[str]) -> _Verdict:
    if any(suffices(code) or code in rules.NUMBERED for code in codes):
        return "overflow"
    if any(matches(rules.VETOES, sentence) or matches(rules.ASKS_FOR_LESS_OUTPUT, sentence) for sentence in sentences):
        return "no"
    if refuses_output(sentences):
        return "no"
    if codes & rules.LONG_STRING_CODES:
        refused = (value for key, value in said if key == "param")
        return "overflow" if any(map(rules.CONVERSATION_FIELD.fullmatch, refused)) else "no"
    judged = [sentence for sentence in sentences if not matches(rules.OUTPUT_ONLY, sentence)]
    if any(matches(rules.CERTAIN, sentence) for sentence in judged):
        return "overflow"
    about = [each for each in judged if not matches(rules.ELSEWHERE, each) and not matches(rules.UNCLEAR, each)]
    if status < rules.GATEWAY and _is_worded(about):
        return "overflow"
    return "unclear" if status < rules.GATEWAY and _is_unclear(codes, sentences) else "no"


def _is_worded(sentences: list[str]) -> bool:
    if any(matches(rules.WORDINGS, sentence) for sentence in sentences):
        return True
    return any(matches(rules.COMPARISONS, f"{one} . {other}") for one, other in pairwise([*sentences, ""]))


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
