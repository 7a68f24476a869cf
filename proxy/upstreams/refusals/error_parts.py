"""The part of an answer that reports an error, in any shape that upstreams give it, and the sentences it says.

Generated text and what is echoed of a request are never part of it. All work is bounded by the limits below.
"""

import html
import re
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from proxy.server.headers import Headers

# Beyond this an event stream's or a string's rest is not read.
_MAX_EVENTS = 16
_MAX_TEXT = 4_000
_MAX_SENTENCE = 240
_OVERLAP = 80
_MAX_SENTENCES = 24
_MAX_STRINGS = 64
_MAX_DEPTH = 8
_MAX_UNWRAP = 4

# Where an error is found inside an answer, the surest place first ("Response": Tencent, "fault": Apigee).
_WRAPPERS = ("error", "errors", "base_resp", "response", "fault", "exception")
# What only ordinary answers and their events have.
_ANSWERS = frozenset(
    {
        *("choices", "output", "outputs", "content", "content_block", "candidates", "delta", "generated_text"),
        *("completion", "completions", "generations", "text", "results", "part", "item", "embedding", "data"),
        *("role", "result", "reply", "response", "done"),
    }
)
# Fields in which an error sends back what it was given.
_ECHOES = frozenset(
    {
        *("input", "inputs", "messages", "prompt", "content", "tools", "request", "ctx", "instructions", "body"),
        *("choices", "output", "outputs", "candidates", "delta", "generated_text", "completion", "loc", "parameters"),
        *("original_request", "request_body", "received", "stack", "traceback", "metadata_request", "payload"),
    }
)
# The same inside a text: a chat message as Python or JSON writes it, or a quoted value that was refused.
_ECHOED = re.compile(
    r"""(?i)['"](?:content|text|input|prompt|messages|instructions)\\?['"] ?: ?|\binput_value ?="""
    r"""|\b(?:received|got|given|provided|your (?:prompt|message|input) was)\b:? ?\\?['"“‘`]|message=\{"""
)
_CODE_IN_TEXT = re.compile(r"""\b(code|type|status|error_type|reason)\\?['"]? ?[:=] ?\\?['"]([\w.]{5,60})""")
_MARKUP = re.compile(r"<[/!a-zA-Z][^<>]{0,200}>")
_PAGE = re.compile(r"(?i)<(?:!doctype|html|head|body|title)\b")
_SAYS_ERROR = re.compile(r"(?i)(?:error|exception)(?: \d{3})?:")

_SENTENCE_END = re.compile(r"\n+|[.!?;](?=\s|$)|[。！？；]")
_SEPARATORS = re.compile(r"(?<=\d)[,_\u202f](?=\d{3}(?!\d))")
_HUMPS = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")
_SPACES = re.compile(r"\s{2,}")
# Traditional characters become simple ones, as far as the tables need them.
_PLAIN = str.maketrans(
    {"_": " ", "=": " ", "`": None, "'": None, '"': None, "*": None, "’": None, "\\": None, "，": ", ", "：": ": "}
    | {"（": " (", "）": ") ", "≤": "<=", "≥": ">="}
    | dict(
        zip(
            "過長輸對話歷詞請減縮於視數總請達現為內麼個並發額頻圖檔與應體過訊",
            "过长输对话历词请减缩于视数总请达现为内么个并发额频图档与应体过讯",
            strict=True,
        )
    )
)

_QUOTED = re.compile(r"""["'`“‘].{0,400}?["'`”’]""", re.DOTALL)
_MOST_WORDS = 200
_NAMES_OF_SECRETS = re.compile(rb"auth|cookie|key|secret|token")
# Shorter values are no secrets.
_LEAST_SECRET = 8

Said = list[tuple[str, str]]


def error_part(body: bytes, *, failed: bool) -> object:
    """What reports the error; None where the body is an ordinary answer, as any is that says nothing of an error.

    failed: the status says already that this is an error, so any object or text is taken for one.
    """
    answer = _decode_body(body)
    if isinstance(answer, str):
        if _is_event_stream(answer):
            return next(_errors_in(answer), None)
        return answer if failed or _SAYS_ERROR.search(answer, 0, 200) else None
    return _part_of(answer, failed=failed)


def strings_of(error: object) -> Said:
    """Every string of an error with its key; JSON inside strings is unwrapped, codes in Python's writing too."""
    return list(islice(_strings(error, 0), _MAX_STRINGS))


def sentences(texts: Said) -> list[str]:
    """Sentences in the plain writing that patterns expect (see `plain`); long ones in pieces that overlap."""
    return list(dict.fromkeys(islice(_sentences(text for _, text in texts), _MAX_SENTENCES)))


def plain(text: str) -> str:
    """Lower case, words apart, numbers without separators, no quotes and no markup, simple Chinese characters."""
    text = _HUMPS.sub(" ", html.unescape(_MARKUP.sub("\n", text)).replace("=>", "→"))
    return _SEPARATORS.sub("", text.lower().translate(_PLAIN))


def is_page(error: object) -> bool:
    return isinstance(error, str) and _PAGE.search(error) is not None


def number(error: object, name: str) -> int | None:
    """A count that an error states as a field of its own."""
    value = error.get(name) if isinstance(error, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1_000_000_000 else None


def _decode_body(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return body.decode("utf-8", "replace")


def _part_of(answer: object, *, failed: bool, depth: int = 0) -> object:
    if isinstance(answer, list):
        return _part_of(answer[0], failed=failed, depth=depth + 1) if answer and depth < _MAX_DEPTH else None
    if isinstance(answer, str):
        return answer if failed else None
    if not isinstance(answer, dict):
        return None
    names = {str(name).lower(): name for name in answer}
    for wrapper in _WRAPPERS:
        inner = answer.get(names.get(wrapper))
        if isinstance(inner, dict | list) and wrapper == "response" and depth < _MAX_DEPTH:
            # A failed response of the Responses API repeats its instructions beside its error.
            return _part_of(inner, failed=False, depth=depth + 1)
        if inner and wrapper != "response":
            return _with_codes(answer, inner)
    choice = _first(answer.get("choices"))
    if isinstance(choice, dict) and choice.get("error"):
        return choice["error"]
    if not failed and (_ANSWERS & names.keys() or isinstance(answer.get("message"), dict)):
        return None
    return answer


def _with_codes(answer: dict[object, object], inner: object) -> object:
    """An error and the flat fields beside it, where some upstreams put their code or their sentence."""
    beside = {key: value for key, value in answer.items() if isinstance(value, str) and str(key).lower() in _BESIDE}
    return {"error": inner, **{key: value for key, value in beside.items() if key != "error"}} if beside else inner


_BESIDE = frozenset({"message", "code", "type", "error_type", "error_code", "reason", "detail", "msg", "status"})


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) and value else None


def _is_event_stream(text: str) -> bool:
    return text.lstrip().startswith(("data:", "event:", "id:", ":", "retry:")) or "\ndata:" in text


def _errors_in(stream: str) -> Iterator[object]:
    """The errors of an event stream, whose other events are an answer."""
    for event in islice(re.split(r"\r?\n\r?\n", stream), _MAX_EVENTS):
        lines = event.splitlines()
        data = "\n".join(line[5:].strip() for line in lines if line.startswith("data:"))
        named = any(line.startswith("event:") and "error" in line for line in lines)
        part = _part_of(_decode_body(data.encode("utf-8", "replace")), failed=named) if data else None
        if part is not None:
            yield part


def _strings(value: object, depth: int, key: str = "") -> Iterator[tuple[str, str]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, str):
        yield from _unwrap_texts(value, depth, key)
    elif isinstance(value, dict):
        for name, item in islice(value.items(), _MAX_STRINGS):
            if str(name).lower() not in _ECHOES:
                yield from _strings(item, depth + 1, str(name).lower())
        if isinstance(place := value.get("loc"), list) and place and isinstance(place[-1], str):
            yield "param", place[-1][:_MAX_SENTENCE]  # which field a validator means
    elif isinstance(value, list):
        for item in value[:20]:
            yield from _strings(item, depth + 1, key)


def _unwrap_texts(text: str, depth: int, key: str) -> Iterator[tuple[str, str]]:
    start, end = text.find("{"), text.rfind("}") + 1
    inner = _embedded_object(text[start:end]) if 0 <= start < min(end, _MAX_TEXT) and depth < _MAX_UNWRAP else None
    kept = f"{text[:start]}\n{text[end:]}" if inner is not None else text
    if (echo := _ECHOED.search(kept, 0, _MAX_TEXT)) is not None:
        kept = kept[: echo.start()]
    yield key, kept[:_MAX_TEXT]
    yield from ((match[1], match[2]) for match in islice(_CODE_IN_TEXT.finditer(kept, 0, _MAX_TEXT), 8))
    if inner is not None:
        yield from _strings(inner, depth + 1)


def _embedded_object(text: str) -> object:
    """An object in JSON; inside a string of a string its quotes may still be escaped."""
    for written in (text, text.replace('\\"', '"').replace("\\n", " ")):
        try:
            return msgspec.json.decode(written)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            continue
    return None


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for sentence in _SENTENCE_END.split(plain(text)):
            tidy = _SPACES.sub(" ", sentence).strip()
            for start in range(0, max(len(tidy) - _OVERLAP, len(tidy) > 0), _MAX_SENTENCE - _OVERLAP):
                yield tidy[start : start + _MAX_SENTENCE]


def words_of(body: bytes) -> str:
    """What an error says, fit for a log: cut, and without what it quotes, which may be the client's."""
    return _QUOTED.sub("…", _text_of(body))[:_MOST_WORDS]


def error_text(body: bytes, headers: Headers) -> str:
    """Return what an error says, without what it repeats of the headers that were sent: a server may echo a key."""
    text = _text_of(body)
    for name, value in headers:
        secret = value.decode("latin-1").removeprefix("Bearer ")
        if len(secret) >= _LEAST_SECRET and _NAMES_OF_SECRETS.search(name):
            text = text.replace(secret, "…")
    return text


def _text_of(body: bytes) -> str:
    return " ".join(value for _, value in strings_of(error_part(body, failed=True)))
