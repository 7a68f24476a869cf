"""The numbers in an overflow error: the limit and its kind, the prompt, and the requested output."""

import re
from dataclasses import dataclass
from itertools import count

from policies.decision.overflow_retries import LimitKind
from proxy.upstreams.refusals.rules import matches, patterns

# A count of characters or bytes, an excess, a term of a sum, or MiniMax's status is not a limit.
_NOUN = r"(?! ?(?:char|byte|字符|字节|字|[kmg]i?b\b%s))"
_NAMES = {"LIMIT": r"(?<!\(2013)" + _NOUN % r"|\+|pages", "INPUT": _NOUN % "", "OUTPUT": ""}
# Some words without a number or an excess.
_GAP = r"(?:(?! by |prompt)[^\d.,])"


def _readings(*rows: str) -> tuple[re.Pattern[str], ...]:
    """Return compiled rows, in which LIMIT, INPUT and OUTPUT match numbers and capture them."""
    return patterns(*(_bound(row.replace("GAP", _GAP)) for row in rows))


def _bound(row: str) -> str:
    """Return a pattern with a group for each number, named after it and its position, since names must be unique."""
    places = count()
    return re.sub("|".join(_NAMES), lambda name: f"(?P<{name[0].lower()}{next(places)}>NUM){_NAMES[name[0]]}", row)


# Sums, which have all three numbers, then each number by itself. The surest wording comes first.
_SUMS = _readings(
    r"INPUT \+ OUTPUT (?:> |(?:is |are )?(?:GREATER than|OVER) (?:\w+ ){0,4})LIMIT",
    r"max tokens:? OUTPUT > context window:? LIMIT - input tokens:? INPUT",
    r"\(OUTPUT > LIMIT - INPUT\)",
    r"max tokens:? \(?OUTPUT\)? (?:\+|plus|and|with)\D{0,40}INPUT\b.{0,60}?(?:WINDOW|limit|max\w*|len|"
    r"context)\D{0,16}LIMIT",
    r"(?:tokens?|prompt|length|input)\D{0,12}INPUT\D{0,12}(?:\+|plus|and|with)\D{0,40}(?:tokens?|output|"
    r"completion)\D{0,4}OUTPUT\b.{0,60}?(?:WINDOW|limit|max\w*|len)\D{0,16}LIMIT",
    r"\(INPUT tokens\) (?:and|plus|\+)\D{0,40}\(OUTPUT tokens\)",
    r"max tokens \+ (?:prompt|input) tokens.{0,40}?LIMIT\D{0,12}OUTPUT \+ INPUT",
    r"INPUT (?:prompt|input) tokens (?:and|\+|plus) OUTPUT (?:max|output|completion)",
    r"limit is \[?LIMIT\]?.{0,30}?INPUT \+ OUTPUT",
    r"\(INPUT \+ OUTPUT\)",
)
_LIMITS = _readings(
    r"cache allocated is .{0,20}? LIMIT tokens",
    r"(?:tokens?|\d) > (?:\w+:? ){0,3}LIMIT",
    r"LIMIT (?:tokens? )?(?:th(?:e|is) model (?:offers|allows|has|can)"
    r"|supported|allowed|available|permitted|or (?:less|fewer))",
    r"NUM(?: tokens)? vs\.? LIMIT",
    r"(?:超过|超出|大于)[^\d,.]{0,24}(?:最大|上限|限制)(?:(?!prompt|输入|当前)[^\d,.]){0,12}LIMIT",
    r"(?:exceed(?:s|ed|ing)?\b(?!:)|GREATER than)(?! max tokens)GAP{3,40}LIMIT",
    r"(?:(?:n ctx|context (?:window|length|size|limit))(?: is| of|:)?|context(?: of| is| \()) ?(?:only )?\(?LIMIT",
    r"LIMIT(?:-| )?(?:tokens? )?(?:max(?:imum)?\b(?! (?:new|completion|output|tokens))|context)",
    r"max(?:imum)? (?!output|completion|new|tokens)(?:\w+ ){0,4}(?:length|len|size|window|tokens?|limit|"
    r"position|context)(?! exceeded)GAP{0,60}LIMIT",
    r"^\W{0,3}max tokens of LIMIT exceeded",
    r"\b(?:supports?|accepts?|allows?|limited to|handle|can take)\bGAP{0,24}LIMIT",
    r"(?:\blimit|限制|上限|最大长度|上下文长度|支持)(?: of| is| to|:|为|是|：)? ?\(?LIMIT",
    r"\(?\bmax(?:imum)?(?: allowed| supported)?(?: of| is| was| are)?:? \(?LIMIT|\bwindow(?: of| is|:)? LIMIT",
    r"(?:BELOW|OVER|超过|超出|大于|最多支持|最多|最大)(?! max tokens)GAP{0,24}LIMIT",
    r"\[\d+, ?LIMIT\]",
    r"(?:context (?:window|length|size|limit)|\bmax len(?:gth)?|limit)GAP{0,30}LIMIT",
    # A model's name may have digits.
    r"(?:length|window|limit|size) (?:of|for) (?:\S{1,60} ){1,3}?is LIMIT",
    r"(?:of|\bx) LIMIT tokens",
)
_PARTS_IN = patterns(r"(NUM) (?:in (?:the|your) (?:messages|prompt|functions|tools)|of (?:\w+ )?(?:input|prompt))")
_PARTS_OUT = patterns(
    r"(NUM) (?:in (?:the|your) (?:completion|output)|(?:for the|of) (?:completion|output|max tokens))"
)
_INPUTS = _readings(
    r"parameter input tokens, value INPUT",
    r"\b(?:passed|contains|has|sent|used|with) (?:at least |about )?INPUT input tokens",
    r"\bcurrent length (?:is )?INPUT\b|\bfirst INPUT tokens when\b|\bfit INPUT tokens\b",
    r"INPUT (?:tokens )?(?:from|in) the (?:input|messages|prompt)",
    r"\b(?:messages|prompt|input|inputs|(?:request|payload|it) (?:has|had|of|contains|"
    r"is))\b(?:(?! by )[^.\d>]){0,30}?INPUT (?:input |prompt )?tokens",
    r"resulted in INPUT tokens|\brequested INPUT tokens in the\b",
    r"(?<!bound for )INPUT (?:input |prompt )tokens|\((?:total )?length INPUT\)",
    r"given:? INPUT\b|\breceived:? INPUT\b|\bgot:? INPUT\b|NUM, got INPUT|INPUT (?:were |was )?given",
    r"(?:当前|目前|实际|您的|请求)(?:输入|请求)?(?:为|了|:)? ?INPUT",
    r"(?<!output tokens )(?<!max tokens )(?<!completion )(?<!output )\((?:total )?(?:length )?"
    r"INPUT(?: tokens)?\)[^.]{0,24}?(?:OVER|BELOW|MUST|too )",
    r"(?:length|(?<!output )(?<!max )tokens?|count|size|prompt)(?: of| is|"
    r":)? ?\(?INPUT(?: tokens)?\)?(?: \w+){0,3} (?:OVER|MUST|too\b)",
    r"(?:length|tokens?|prompt) \(?INPUT\)? > |too (?:long|large|big)\D{0,30}INPUT tokens",
    r"INPUT tokens? > |\(INPUT > NUM\)|too long:? INPUT\b|too many tokens in (?:the )?prompt:? INPUT",
    r"\b(?:prompt|input) ?(?:length|size|tokens?)?(?: count)?(?:s| is| of|:)? ?\(?INPUT\b",
    r"\b(?:prompt|input)\D{0,40}?(?:is|has|contains|used?|sent|with|needs|totals|have) INPUT\b",
    r"\b(?:you (?:sent|gave)|yours (?:is|has|was)|request (?:used|totals|has|needs)|used) INPUT\b",
    r"\(INPUT tokens\)|\b(?:tokens?|contains|needs|require) (?:INPUT tokens|INPUT)\b|^context[^.\d]{0,20}INPUT tokens",
    r"INPUT(?: tokens)? vs\b|INPUT-tokens? (?:prompt|input)|长度 ?INPUT ?超越|数 ?\(?INPUT\)? ?超越",
    r"prompt ?(?:uses )?INPUT\b|\brequest length INPUT",
)
_OUTPUTS = _readings(
    r"requested OUTPUT output tokens|OUTPUT (?:tokens )?for the completion|OUTPUT (?:max new tokens|output tokens)",
    r"max (?:completion |new |output )?tokens(?: is too large)?(?::| is)? ?\(?OUTPUT|\bgeneration length OUTPUT",
)
# Texts of servers that stop counting at the limit, or only estimate.
_VAGUE = patterns(
    r"\b(?:at least|about|approximately|roughly|around|estimated)\b:? (?:\w+ ){0,2}?NUM|\bover NUM|~ ?NUM|\bestimated\b"
)
# Limits of a server's memory, which requests share. They say nothing about the model's window.
_POOLS = patterns(
    r"\bcache (?:size|allocated|capacity)\b|\bkv cache\b|block manager|max num tokens|auto.truncate",
    r"origin input ids|\bpool\b",
)
# A limit with such a name covers prompt and output together …
_WINDOWS = patterns(
    r"WINDOW|\btotal\b|\bcompletion\b|max new tokens|\boutput\b|seq(?:uence)? len|上下文|窗口|\bcontext\b"
)
# … and one with such a name covers only the prompt, whatever else is named.
_ALONE = patterns(
    r"max(?:imum)? (?:allowed )?(?:input|prompt) (?:length|tokens?|size)|range of input length",
    r"input length limit|tokens in (?:the|your) prompt cannot",
    r"(?:prompt|input)s? (?:is |are )?too long:? NUM tokens? > NUM|input tokens? (?:count|exceed)|最大输入",
)
_PROMPT_NOUNS = patterns(r"SAID")
# Anthropic checks the sum against its window of 200000 with an allowance.
_ALLOWANCES = frozenset({204_648})

# A sentence, the position of a number in it, and the number.
_Position = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers that an error states. None for a number that is missing."""

    limit: int | None
    kind: LimitKind | None
    input_tokens: int | None
    output_tokens: int | None
    is_lower_bound: bool

    @property
    def learnable(self) -> bool:
        """Return True if the limit is one of the model, so that it can be learned."""
        return self.limit is not None and self.kind != "pool" and self.limit not in _ALLOWANCES

    @property
    def fits_with_less_output(self) -> bool:
        """Return True if the prompt alone, as stated, would have fitted."""
        if self.limit is None or self.kind in ("input", "tier"):
            return False
        return self.input_tokens is not None and self.input_tokens < self.limit and self.output_tokens is not None


def read_numbers(sentences: list[str], *, limit: int | None, given: int | None, tier: bool) -> Numbers:
    """Return the stated numbers. limit, given: fields of the error itself, which take precedence."""
    summed = _sum(sentences)
    limit_position = _first_number(_LIMITS, sentences)
    limit = limit or summed.get("limit") or _value(limit_position)
    output_position = _first_number(_OUTPUTS, sentences, limit_position)
    output = _sum_of_parts(_PARTS_OUT, sentences) or summed.get("output") or _value(output_position)
    # A number that reads as both is their sum.
    input_position = _first_number(_INPUTS, sentences, limit_position, output_position)
    given = given or _sum_of_parts(_PARTS_IN, sentences) or summed.get("input") or _value(input_position)
    is_vague = given is not None and any(matches(_VAGUE, sentence) for sentence in sentences)
    return Numbers(limit, _kind(sentences, output, tier=tier) if limit else None, given, output, is_vague)


def _value(position: _Position | None) -> int | None:
    return position[2] if position else None


def _sum(sentences: list[str]) -> dict[str, int]:
    for pattern in _SUMS:
        for sentence in sentences:
            if (match := pattern.search(sentence)) is not None:
                return {name.rstrip("0123456789"): int(value) for name, value in match.groupdict().items()}
    return {}


def _first_number(
    table: tuple[re.Pattern[str], ...], sentences: list[str], *taken: _Position | None
) -> _Position | None:
    """Return the number that the surest pattern reads. taken: positions of numbers with another meaning."""
    positions = (
        (sentence, match.start(name), int(value))
        for pattern in table
        for sentence in sentences
        for match in pattern.finditer(sentence)
        for name, value in match.groupdict().items()
        if value
    )
    return next((position for position in positions if position not in taken), None)


def _sum_of_parts(table: tuple[re.Pattern[str], ...], sentences: list[str]) -> int | None:
    """Return the sum of the parts that a sentence lists."""
    for sentence in sentences:
        if parts := [int(part) for pattern in table for part in pattern.findall(sentence)]:
            return sum(parts)
    return None


def _kind(sentences: list[str], output: int | None, *, tier: bool) -> LimitKind:
    if tier:
        return "tier"
    if any(matches(_POOLS, sentence) for sentence in sentences):
        return "pool"
    if output is None and any(matches(_ALONE, sentence) for sentence in sentences):
        return "input"
    is_window = output is not None or any(matches(_WINDOWS, sentence) for sentence in sentences)
    return "window" if is_window or not any(matches(_PROMPT_NOUNS, sentence) for sentence in sentences) else "input"
