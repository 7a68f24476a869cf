"""Refusals of the output's limit alone: which errors they are, and the most output that they allow.

They borrow the words of overflows ("reduce the length", "context window", a maximum beside a number). What the numbers
belong to decides: the output's own make no overflow, however the rest is worded; those of the prompt, or of both, do.
"""

from __future__ import annotations

from itertools import product

from proxy.wire import error_parts
from proxy.wire.overflow_rules import ASKS_FOR_LESS_OUTPUT, NEVER, VETOES, matches, patterns

_SERVER_ERROR = 500
_WORDS = {
    "OUT": r"\b(?:max(?:imum)? (?:(?:completion|new|output|response) )?tokens|max(?:imum)? output|[nm]um predict"
    r"|n predict|tokens to (?:be )?generated?|(?:completion|output|response|generation|answer) (?:tokens?|length|limit)"
    r"|completion of|generates)\b",
    "PROMPT": r"(?:\b(?:prompts?|inputs?(?! should)|messages?|conversation|history|chat|request)\b"
    r"|输入|提示|对话|消息)",
    # Up to a number that belongs to neither of them.
    "GAP": r"(?:(?!WINDOW|request|asked|got|provided|max (?:\w+ )?tokens)\D)",
}


def _rows(*rows: str) -> tuple[str, ...]:
    for name in ("GAP", "PROMPT", "OUT"):
        rows = tuple(row.replace(name, _WORDS[name]) for row in rows)
    return rows


# A field by whose name nothing but the output is meant.
_FIELDS = patterns(*_rows(r"^(?:body )?OUT$"))
# The output beside a number that is too much.
_REFUSED = patterns(
    *_rows(
        r"^(?!.*(?:\bat least\b|-\d))(?=.*OUT)(?=.*NUM)"
        r"(?=.*(?:OVER|BELOW|MUST|MOST|>|\btoo (?:large|long|high|big)\b|\brange\b|最大|超越))",
        r"OUT\W.{0,20}\babove max",
    )
)
# A number of the prompt, or of prompt and output together; or the prompt is what is too long.
_OF_THE_PROMPT = patterns(
    *_rows(
        r"PROMPT(?:(?!OUT)\D){0,40}NUM|NUM (?:tokens? )?(?:(?:of|in|from) )?(?:the |your )?PROMPT",
        r"NUM [+-] NUM|\btotal\b|\bsum\b|加上|总",
        r"^(?:(?!OUT).){0,40}\bmax(?:imum)? context (?:length|window|size)\b.{0,12}NUM|PROMPT with OUT",
        r"PROMPT.{0,40}(?:\+|\bplus\b|\band\b|与|和).{0,40}(?:tokens|output|completion).{0,40}(?:OVER|BELOW|MUST)",
        r"(?:\+|\bplus\b|\band\b).{0,20}PROMPT.{0,40}(?:OVER|BELOW|MUST)",
        r"PROMPT(?:(?!OUT).){0,60}(?:BIG|OVER|超越|[过太超]长)|PROMPT.{0,40}\bnot fit\b",
    )
)
# Where the most is stated, the surest wording first.
_MOST = patterns(
    *_rows(
        r"NUM > (?P<most>NUM)",
        r"\[\d+, ?(?P<most>NUM)\]",
        r"\bto (?P<most>NUM) ?\((?P<excluded>exclusive)",
        r"(?P<most>NUM) tokens at most",
        r"(?:<=?|\b(?:less than or equal to|at most|no more than|up to)\b)\D{0,12}(?P<most>NUM)",
        r"(?:OVER|超越)GAP{0,60}(?P<most>NUM)",
        r"(?<!is above the )(?:\b(?:limit|allowance|allows?|allowed)\b|最大)GAP{0,40}(?P<most>NUM)",
        r"\b(?!max (?:\w+ )?tokens)max(?:imum)?\bGAP{0,40}(?P<most>NUM)",
    )
)


def refuses_output(said: error_parts.Said, sentences: list[str]) -> bool:
    """Whether an error is about the output's limit and about nothing else."""
    if any(matches(_OF_THE_PROMPT, sentence) for sentence in sentences):
        return False
    return any(matches(_REFUSED, sentence) for sentence in sentences) or _names_output(said)


def most_output(status: int, body: bytes) -> int | None:
    """The output that such an error allows; None where it states none, or is something else."""
    if status in NEVER or status >= _SERVER_ERROR:
        return None
    error = error_parts.error_part(body, failed=True)
    said = error_parts.said(error)
    sentences = error_parts.sentences(said)
    if any(matches(VETOES, sentence) for sentence in sentences):
        return None
    asked = any(matches(ASKS_FOR_LESS_OUTPUT, sentence) for sentence in sentences)
    if not (asked or refuses_output(said, sentences)):
        return None
    found = (pattern.search(sentence) for pattern, sentence in product(_MOST, sentences))
    stated = next(filter(None, found), None)
    if stated is None:
        return None
    return int(stated["most"]) - bool(stated.groupdict().get("excluded"))


def _names_output(said: error_parts.Said) -> bool:
    return any(key == "param" and matches(_FIELDS, error_parts.plain(value)) for key, value in said)
