"""Whether an upstream's error says that the context window overflowed, and what it says about the limit.

Layers, in this order: codes that suffice, vetoes (rate limits, billing, output caps …), wordings. Only the error part
of an answer is read, never generated text or an echoed prompt. Any doubt is "no": the error is passed on.

Texts are read sentence by sentence, each cut to a length at which no pattern can take long on any input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from policies.ladder import StatedLimit

MAX_ERROR_BYTES = 64 * 1024
_MAX_TEXT = 4_000
_MAX_SENTENCE = 240
_OVERLAP = 80
_MAX_SENTENCES = 24
_MAX_UNWRAP = 4

# Statuses with which no true overflow was ever seen.
_NEVER = frozenset({401, 402, 403, 407, 408, 429, 499, 529})
# From here on a gateway speaks, who quotes half of what it heard: only what cannot be mistaken counts.
_GATEWAY = 502

_CODE_FIELDS = frozenset({"code", "type", "status", "error_type", "error_code"})
# Values of those that mean an overflow whatever else is said, and in no other case.
_SUFFICIENT = frozenset(
    {
        "context_length_exceeded",
        "exceed_context_size_error",
        "context_exceeded",
        "context_window_exceeded",
        "model_max_prompt_tokens_exceeded",
        "tokens_limit_reached",
        "token_quantity_exceeded",
        "outofcontexterror",
        "contextwindowexceedederror",
        "model_context_window_exceeded",
    }
)
# Fields in which validators send back what they were given.
_ECHOES = frozenset({"input", "inputs", "messages", "prompt", "content", "tools", "request", "ctx"})

# The vocabulary of the tables below, in which these names stand for it.
_VOCABULARY = {
    "WHAT": r"(?:SAID|\b(?:requests?|sequence|tokens?)\b)",
    "SAID": r"\b(?:prompt|inputs?|messages?|conversation|chat|history|context|quer(?:y|ies)|question|texts?)\b",
    "WINDOW": r"\bcontext (?:window|length|size|limit|len|capacity)\b",
    "OVER": r"\b(?:(?:exceed|surpass|overflow)\w*|over|above|beyond|(?:GREATER|more(?: tokens)?) than)\b",
    "GREATER": r"(?:long|great|larg|bigg)er",
    "BELOW": r"(?:<=|≤|< |\b(?:less|fewer|smaller|shorter) than\b|\b(?:at most|no more than|below|under|up to)\b)",
    "MOST": r"(?:\b(?:context|window|capacity|max(?:imum)?|allowed|supports?|permitted|threshold)\b|\blimit|NUM)",
    "MUST": r"\b(?:must|should|cannot|cant|can not|may not|has to)\b",
    "SHRINK": r"\b(?:reduc|shorten|decreas|trim|truncat|shrink|condens)\w*\b",
    # As a count of characters or bytes, or as an excess, a number is no limit.
    "LIMIT": r"(?P<n>NUM)(?! ?(?:char|byte|字符|字节|[kmg]b\b))",
    "GAP": r"(?:(?! by |prompt)[^\d.,])",
    "NUM": r"(?<![\d.])\d{3,9}(?!\d)(?!\.\d*[1-9])",
    "说": r"(?:输入|提示词?|prompt|消息|对话|文本|历史|tokens?)",
}


def _patterns(*rows: str) -> tuple[re.Pattern[str], ...]:
    """For texts in lower case, without quotes and thousands separators, with spaces for _ and =."""
    # In the order of the vocabulary, whose words are made of later ones.
    for name, words in _VOCABULARY.items():
        rows = tuple(row.replace(name, words) for row in rows)
    return tuple(re.compile(row) for row in rows)


# Codes that suffice, quoted in a text.
_QUOTED = _patterns(r"\bcontextwindowexceedederror\b|\bcode: ?context length exceeded")

# No overflow, whatever else is said: rates, money, time, keys, and caps on the answer alone.
_VETOES = _patterns(
    r"tokens? (?:per|/) ?(?:min|hour|day|second|month)|\b[tr]p[mdsh]\b|rate.?limit|throttl|retry.after|try again in",
    r"quota|credits?\b|billing|balance|afford|budget|usage limit|concurren|overload|max retries exceeded|batch size",
    r"deadline|timed? ?out\b|cancell?ed|api key|unauthori[sz]ed|permission|not found|content.?filter",
    r"content management",
    r"fewer (?:output|completion) tokens|maximum tokens (?:you|value)|supports? at most \d+ (?:completion|output)",
    r"速率|余额|频率|频繁|限流|鉴权|额度|充值|欠费|并发|配额|过载|次数",
)
# A sentence about something else: what may be generated, single fields, files, media, tool pairing.
_ELSEWHERE = _patterns(
    r"max(?:imum)? (?:output|completion|new|generated) (?:tokens?|length)|number of output tokens",
    r"max (?:completion )?tokens (?:is|must|should|value)",
    r"\b(?:output|completion) (?:tokens?|length)\b.{0,30}(?:must|exceed|at most|allowed|limit)",
    r"\bimages?\b(?! and text)|\b(?:pdfs?|pages?|audio|video|files?|pixels?|bytes|[kmg]i?b|megabytes|base64)\b",
    r"\b(?:array|string|schema|stop|metadata|user id|names?|description|enum|key|identifier)\b",
    r"\b(?:temperature|top p|top k|seed|logprobs)\b",
    r"tool (?:call id|use|result|choice)|tool calls|max(?:imum)? (?:number of )?(?:tools|functions|items)",
    r"minimum token|invalid (?:user|assistant) message|\brole\b|图片|文件|音频|视频|字段|名称",
)

# What cannot be mistaken, beside whatever else a sentence is about, and even from a gateway.
_CERTAIN = _patterns(
    r"\bmax(?:imum)? (?:\w+ ){0,2}(?:context|seq(?:uence)?|prompt|input|model) ?(?:length|len|size|window|tokens?)\b"
    r"[^\d]{0,60}NUM",
    r"NUM (?:tokens? )?max(?:imum)? context",
    r"(?:SAID.{0,80}|\brequests?\b.{0,60})OVER.{0,60}WINDOW",
    r"WINDOW (?:has been |have been |was |were |is |been )?(?:exceed|overflow|exhaust)",
    r"(?:prompt|input|request|context).{0,60}NUM (?:tokens? )?> (?:\w+ ){0,2}NUM|NUM > WINDOW",
    r"\b(?:inputs?|prompt)\b.{0,40}(?:\+|\bplus\b|\band\b).{0,40}\btokens\b.{0,40}(?:BELOW|OVER).{0,40}NUM",
)
# How overflows are worded, one row a family.
_WORDINGS = _patterns(
    r"SAID.{0,60}\btoo (?:long|large|big|lengthy|many tokens)\b|\btoo many (?:input|prompt) tokens\b",
    r"\brequests?\b.{0,30}\btoo (?:long|large|big)\b.{0,60}\b(?:tokens?|context)\b",
    r"WHAT.{0,90}OVER.{0,60}MOST.{0,60}\b(?:tokens?|length|context|window|size|len|limit|characters)\b",
    r"\b(?:tokens?|prompt|input|context)\b.{0,90}OVER.{0,60}MOST",
    r"WHAT.{0,60}OVER.{0,40}\btokens? (?:limit|max|count|length)",
    r"\btokens? (?:limit|count|length)\b.{0,30}OVER|\bmore tokens than\b.{0,60}MOST",
    r"\bexceed\w*.{0,30}\bby NUM tokens",
    r"^(?=.*\b(?:tokens?|length)\b).*?WHAT.{0,120}MUST.{0,40}(?:BELOW|OVER).{0,60}NUM",
    r"SHRINK.{0,40}\b(?:messages?|prompt|inputs?|conversation|context|history)\b",
    r"\b(?:doesnt|does not|cannot|cant|not|too \w+ to) fit\b.{0,40}\b(?:context|window|model|tokens?)\b",
    r"\b(?:ran|run|running) out of (?:room|space|context)\b.{0,40}\bcontext\b",
    r"\bcontext\b.{0,40}\b(?:overflow\w*|too (?:small|short)|insufficient|not enough|full|exhausted)\b",
    r"\bcontext\b.{0,30}\b(?:smaller|shorter|less) than\b.{0,30}SAID",
    r"\b(?:overflow\w*|exceed\w*)\b.{0,20}\bcontext\b",
    r"\b(?:input|prompt|tokens?)\b.{0,80}\b(?:supports?|accepts?|allows?|limited to|takes?)\b.{0,30}NUM",
    r"NUM (?:input |prompt )?tokens\b.{0,60}\bbut\b.{0,60}NUM",
    r"\bcontext limit\b.{0,10}NUM|\bleaves? (?:no|0|-\d+)\b.{0,20}\b(?:tokens?|room)\b",
    r"\bmax(?:imum)? input tokens?\b|\brange of input length\b",
    r"(?:上下文|窗口).{0,14}(?:[过太超]长|超出|超过|超限|溢出|不足|已满|压缩)",
    r"(?:超出|超过|大于|超限).{0,14}(?:上下文|窗口|(?:最大|输入|模型).{0,8}(?:长度|上限|限制)|tokens?.{0,6}(?:上限|限制|长度))",
    r"说.{0,16}(?:[过太超]长|超限)|说.{0,24}(?:超|大于).{0,20}(?:长度|token|上限|限制|最大)",
    r"(?:减少|缩短|精简).{0,8}(?:上下文|说)",
)

# The window where a sentence states it, the surest wording first.
_LIMITS = _patterns(
    r"(?:tokens?|\d) > (?:\w+:? ){0,3}LIMIT",
    r"(?:n ctx|context (?:window|length|size|limit))(?: is| of|:)? ?\(?LIMIT",
    r"LIMIT (?:tokens? )?max(?:imum)? context",
    r"max(?:imum)? (?!output|completion|new|tokens)(?:\w+ ){0,4}(?:length|len|size|window|tokens?|limit)(?! exceeded)"
    r"GAP{0,60}LIMIT",
    r"\b(?:supports?|accepts?|allows?|limited to)\bGAP{0,24}LIMIT",
    r"(?:\blimit|限制|上限|最大长度|上下文长度)(?: of| is| to|:|为|是|：)? ?\(?LIMIT",
    r"(?:BELOW|OVER|超过|超出|大于)GAP{0,24}LIMIT",
    r"\[\d+, ?LIMIT\]",
    r"context (?:window|length|size|limit)GAP{0,30}LIMIT",
)
_INPUTS = _patterns(
    r"\((?P<n>NUM) in (?:the|your) (?:messages|prompt)",
    r"\b(?:messages|prompt|input|request (?:has|contains))\b[^.\d]{0,30}?(?P<n>NUM) (?:input )?tokens",
    r"resulted in (?P<n>NUM) tokens",
    r"(?P<n>NUM) (?:input |prompt )tokens",
    r"\((?P<n>NUM) tokens\)",
    r"(?P<n>NUM) tokens? > ",
)
# Servers that stop counting at the limit, or only guess, say so; such a number calibrates nothing.
_VAGUE = re.compile(r"\b(?:at least|about)\b")

_SENTENCE_END = re.compile(r"\n+|[.!?;](?=\s|$)|[。！？；]")
_SEPARATORS = re.compile(r"(?<=\d),(?=\d{3})")
# Traditional characters become simple ones, as far as the tables need them.
_PLAIN = str.maketrans(
    {"_": " ", "=": " ", "`": None, "'": None, '"': None, "*": None, "’": None}
    | dict(zip("過長輸對話歷詞請減縮於", "过长输对话历词请减缩于", strict=True))
)


def classify(status: int, body: bytes) -> StatedLimit | None:
    """What an overflow error states (each part may be None), or None where the answer is no overflow."""
    if status in _NEVER or len(body) > MAX_ERROR_BYTES:
        return None
    error = error_part(body)
    if error is None:
        return None
    fields = list(_strings(error, 0))
    sentences = list(dict.fromkeys(islice(_sentences(value for _, value in fields), _MAX_SENTENCES)))
    return _stated(error, sentences) if _is_overflow(status, fields, sentences) else None


def _is_overflow(status: int, fields: list[tuple[str, str]], sentences: list[str]) -> bool:
    if any(value.lower() in _SUFFICIENT for key, value in fields if key in _CODE_FIELDS):
        return True
    elsewhere = [_matches(_ELSEWHERE, sentence) for sentence in sentences]
    judged = list(zip(sentences, elsewhere, strict=True))
    if any(_matches(_QUOTED, sentence) for sentence, other in judged if not other):
        return True
    if any(_matches(_VETOES, sentence) for sentence in sentences):
        return False
    if any(_matches(_CERTAIN, sentence) for sentence in sentences):
        return True
    return status < _GATEWAY and any(_matches(_WORDINGS, sentence) for sentence, other in judged if not other)


def _matches(patterns: tuple[re.Pattern[str], ...], sentence: str) -> bool:
    return any(pattern.search(sentence) for pattern in patterns)


def error_part(body: bytes) -> object:
    """The part of an answer that reports an error; None where it is an ordinary answer."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        text = body.decode("utf-8", "replace")
        return None if "data:" in text else text
    if isinstance(answer, list):
        return answer[0] if answer else None
    if not isinstance(answer, dict) or "choices" in answer or "output" in answer:
        return None
    for key in ("error", "errors", "detail"):
        if answer.get(key):
            return answer[key]
    return answer


def _strings(value: object, depth: int, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string of an error with its key; JSON inside a string is unwrapped."""
    if depth > 2 * _MAX_UNWRAP:
        return
    if isinstance(value, str):
        yield key, value[:_MAX_TEXT]
        start = value.find("{")
        if 0 <= start < _MAX_TEXT and depth < _MAX_UNWRAP:
            inner = _embedded(value[start:])
            if inner is not None:
                yield from _strings(inner, depth + 1)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _ECHOES:
                yield from _strings(item, depth + 1, str(name))
    elif isinstance(value, list):
        for item in value[:20]:
            yield from _strings(item, depth + 1, key)


def _embedded(text: str) -> object:
    end = text.rfind("}")
    try:
        return msgspec.json.decode(text[: end + 1]) if end > 0 else None
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    """Sentences in the plain writing that the patterns expect; long ones in pieces that overlap."""
    for text in texts:
        plain = _SEPARATORS.sub("", text.lower().translate(_PLAIN))
        for sentence in _SENTENCE_END.split(plain):
            for start in range(0, max(1, len(sentence) - _OVERLAP), _MAX_SENTENCE - _OVERLAP):
                yield sentence[start : start + _MAX_SENTENCE]


def _stated(error: object, sentences: list[str]) -> StatedLimit:
    structured = error if isinstance(error, dict) else {}
    limit = _number(structured.get("n_ctx")) or _search(_LIMITS, sentences)
    given = _number(structured.get("n_prompt_tokens")) or _search(_INPUTS, sentences)
    if any(_VAGUE.search(sentence) for sentence in sentences) or (limit and given and given <= limit):
        given = None
    return StatedLimit(limit, given)


def _search(patterns: tuple[re.Pattern[str], ...], sentences: list[str]) -> int | None:
    found = (match for pattern in patterns for sentence in sentences if (match := pattern.search(sentence)))
    return next((int(match["n"]) for match in found), None)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1_000_000_000 else None
