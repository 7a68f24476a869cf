"""Rejections of only the output limit: recognizing them, and the most output that they allow.

Their texts resemble overflows ("reduce the length", "context window", a maximum and a number). The owner of the numbers
decides: numbers of the output alone mean no overflow, whatever the wording. Numbers of the prompt, or of both, mean
one.
"""

import re
from itertools import product

from proxy.upstreams.refusals import error_parts
from proxy.upstreams.refusals.rules import ASKS_FOR_LESS_OUTPUT, NEVER, VETOES, matches, patterns

_FAILED, _SERVER_ERROR = 400, 500
_UNPAID = 402
_CAN_AFFORD = re.compile(r"\bfewer max tokens\b.{0,120}?\bcan only afford (\d+)\b")
_WORDS = {
    "OUT": r"\b(?:max(?:imum)? (?:(?:completion|new|output|response) )?tokens|max(?:imum)? output|[nm]um predict"
    r"|n predict|tokens to (?:be )?generated?|(?:completion|output|response|generation|answer) (?:tokens?|length|limit)"
    r"|completion of|generates)\b",
    "PROMPT": r"(?:\b(?:prompts?|inputs?(?! should)|messages?|conversation|history|chat|request)\b"
    r"|输入|提示|对话|消息)",
    # The output is rejected as too small: it is the part of the window that the prompt leaves.
    "LEAST": r"(?:\bat least\b|(?<!\w)-\d)",
    # Up to a number that belongs to neither of them.
    "GAP": r"(?:(?!WINDOW|request|asked|got|provided|max (?:\w+ )?tokens)\D)",
}


def _rows(*rows: str) -> tuple[str, ...]:
    for name in ("GAP", "LEAST", "PROMPT", "OUT"):
        rows = tuple(row.replace(name, _WORDS[name]) for row in rows)
    return rows


# Field names that mean only the output.
_FIELDS = patterns(*_rows(r"^(?:body )?OUT$"))
# With these words, the text is about the room that the prompt leaves.
_LEAVES_TOO_LITTLE = patterns(*_rows(r"LEAST|\b(?:messages|prompt)\b"))
# The output next to a number that is too large.
_REFUSED = patterns(
    *_rows(
        r"^(?!.*LEAST)(?=.*OUT)(?=.*NUM)"
        r"(?=.*(?:OVER|BELOW|MUST|MOST|>|\btoo (?:large|long|high|big)\b|\brange\b|最大|超越))",
        r"OUT\W.{0,20}\babove max",
    )
)
# A number of the prompt, or of prompt and output together, or a prompt that is too long.
_OF_THE_PROMPT = patterns(
    *_rows(
        r"PROMPT(?:(?!OUT)\D){0,40}NUM|NUM (?:tokens? )?(?:(?:of|in|from) )?(?:the |your )?PROMPT",
        r"NUM [+-] (?:NUM|OUT)|\btotal\b|\bsum\b|(?<!增)加|总|剩余",
        r"^(?:(?!OUT).){0,40}\bmax(?:imum)? context (?:length|window|size)\b.{0,12}NUM|PROMPT with OUT",
        r"PROMPT.{0,40}(?:\+|\bplus\b|\band\b|与|和).{0,40}(?:tokens|output|completion).{0,40}(?:OVER|BELOW|MUST)",
        r"(?:\+|\bplus\b|\band\b).{0,20}PROMPT.{0,40}(?:OVER|BELOW|MUST)",
        r"PROMPT(?:(?!OUT).){0,60}(?:BIG|OVER|超越|[过太超]长)|PROMPT.{0,40}\bnot fit\b",
        r"\b(?:query|text|your context|current context|(?<!max )(?<!maximum )(?<!supported )sequence)\b"
        r"(?: (?:length|size))?\W{0,2}(?:(?:of|is|has) )?NUM",
        r"(?:OVER|超越)(?:(?!OUT)\D){0,30}(?:\bcontext(?: (?:of|size|length|window)){0,2}|\bnum ctx"
        r"|上下文(?:长度|窗口)?)\W{0,3}NUM",
        r"NUM (?:\w+ )?tokens (?:in\b(?! \w)|sent\b)|\b(?:sent|after)\b\W{0,2}NUM",
        r"NUM (?:\w+ ){0,4}(?:in use|used|already|evaluated|taken|occupied|needed|required|left|remain\w*)\b",
        r"\b(?:in use|used|needs?|needed|requires?|left|remain\w*)\b\W{0,3}NUM|NUM of (?:the )?NUM",
        r"\bremaining\b|\bminus\b|(?:\bincluding|\bof which|含|包括) ?(?:the |your )?OUT",
    )
)
# The stated maximum, the surest wording first.
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


def _affordable(body: bytes) -> int | None:
    """Return the tokens that a credit can pay for (OpenRouter); None without such a number."""
    for _, text in error_parts.strings_of(error_parts.error_part(body, failed=True)):
        if (match := _CAN_AFFORD.search(error_parts.plain(text[:2_000]))) is not None:
            return int(match[1]) or None
    return None


def refuses_output(sentences: list[str]) -> bool:
    """Return True if an error is only about the output limit."""
    if any(matches(_OF_THE_PROMPT, sentence) for sentence in sentences):
        return False
    return any(matches(_REFUSED, sentence) for sentence in sentences)


def _names_output(strings: error_parts.Strings, sentences: list[str]) -> bool:
    """Return True if an error names the output's field, and nothing in it is about a prompt."""
    if any(matches(_OF_THE_PROMPT, sentence) or matches(_LEAVES_TOO_LITTLE, sentence) for sentence in sentences):
        return False
    return any(key == "param" and matches(_FIELDS, error_parts.plain(value)) for key, value in strings)


def most_output(status: int, body: bytes) -> int | None:
    """Return the output that such an error allows; None if it states none or is another error."""
    if status == _UNPAID:
        return _affordable(body)
    if status in NEVER or status >= _SERVER_ERROR:
        return None
    error = error_parts.error_part(body, failed=not 200 <= status < _FAILED)
    strings = error_parts.strings_of(error)
    sentences = error_parts.sentences(strings)
    if any(matches(VETOES, sentence) for sentence in sentences):
        return None
    is_asked = any(matches(ASKS_FOR_LESS_OUTPUT, sentence) for sentence in sentences)
    if not (is_asked or refuses_output(sentences) or _names_output(strings, sentences)):
        return None
    matches_in_order = (pattern.search(sentence) for pattern, sentence in product(_MOST, sentences))
    stated = next(filter(None, matches_in_order), None)
    if stated is None:
        return None
    return int(stated["most"]) - bool(stated.groupdict().get("excluded"))
