"""The part of a response that reports an error, in any form of upstreams, and its sentences.

Generated text and echoes of a request are never part of it. All work is bounded by the limits below.
"""

import html
import re
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from proxy.server.headers import Headers

# The rest of a longer event stream or string is not read.
_MAX_EVENTS = 16
_MAX_TEXT = 4_000
_MAX_SENTENCE = 240
_OVERLAP = 80
_MAX_SENTENCES = 24
_MAX_STRINGS = 64
_MAX_DEPTH = 8
_MAX_UNWRAP = 4

# Keys of an error within a response, the surest first ("Response": Tencent, "fault": Apigee).
_WRAPPERS = ("error", "errors", "base_resp", "response", "fault", "exception")
# Keys that only ordinary responses and their events have.
_ANSWERS = frozenset(
    {
        *("choices", "output", "outputs", "content", "content_block", "candidates", "delta", "generated_text"),
        *("completion", "completions", "generations", "text", "results", "part", "item", "embedding", "data"),
        *("role", "result", "reply", "response", "done"),
    }
)
# Fields in which an error echoes its input.
_ECHOES = frozenset(
    {
        *("input", "inputs", "messages", "prompt", "content", "tools", "request", "ctx", "instructions", "body"),
        *("choices", "output", "outputs", "candidates", "delta", "generated_text", "completion", "loc", "parameters"),
        *("original_request", "request_body", "received", "stack", "traceback", "metadata_request", "payload"),
    }
)
# Echoes within a text: a chat message as Python or JSON writes it, or a quoted value that was rejected.
_ECHOED = re.compile(
    r"""(?i)['"](?:content|text|input|prompt|messages|instructions)\\?['"] ?: ?|\binput_value ?="""
    r"""|\b(?:received|got|given|provided|your (?:prompt|message|input) was)\b:? ?\\?['"“‘`]|message=\{"""
)
_CODE_IN_TEXT = re.compile(r"""\b(code|type|status|error_type|reason)\\?['"]? ?[:=] ?\\?['"]([\w.]{5,60})""")
_MARKUP = re.compile(r"<[/!a-zA-Z][^<>]{0,200}>")
_PAGE = re.compile(r"(?i)<(?:!doctype|html|head|body|title)\b")
_BEGINS_WITH_ERROR = re.compile(r"(?i)(?:error|exception)(?: \d{3})?:")

_SENTENCE_END = re.compile(r"\n+|[.!?;](?=\s|$)|[。！？；]")
_SEPARATORS = re.compile(r"(?<=\d)[,_\u202f](?=\d{3}(?!\d))")
_HUMPS = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")
_SPACES = re.compile(r"\s{2,}")
# Traditional characters become simplified ones, as far as the tables need them.
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

Strings = list[tuple[str, str]]


def error_part(body: bytes, *, failed: bool) -> object:
    """Return the part that reports the error; None for an ordinary response without one.

    failed: True if the status already shows an error, so any object or text counts as one.
    """
    answer = _decode_body(body)
    if isinstance(answer, str):
        if _is_event_stream(answer):
            return next(_errors_in(answer), None)
        return answer if failed or _BEGINS_WITH_ERROR.search(answer, 0, 200) else None
    return _part_of(answer, failed=failed)


def strings_of(error: object) -> Strings:
    """Return every string of an error with its key.

    JSON inside strings is unwrapped, codes in Python's notation too.
    """
    return list(islice(_strings(error, 0), _MAX_STRINGS))


def sentences(texts: Strings) -> list[str]:
    """Return sentences in the plain form that patterns expect (see `plain`).

    Long ones are cut into overlapping pieces.
    """
    return list(dict.fromkeys(islice(_sentences(text for _, text in texts), _MAX_SENTENCES)))


def plain(text: str) -> str:
    """Return text in lower case, with split words, plain numbers, no quotes or markup, and simplified Chinese."""
    text = _HUMPS.sub(" ", html.unescape(_MARKUP.sub("\n", text)).replace("=>", "→"))
    return _SEPARATORS.sub("", text.lower().translate(_PLAIN))


def is_page(error: object) -> bool:
    """Return True if the error is an HTML page."""
    return isinstance(error, str) and _PAGE.search(error) is not None


def number(error: object, name: str) -> int | None:
    """Return a count that is a field of an error; None without one."""
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
            # A failed response of the Responses API repeats its instructions next to its error.
            return _part_of(inner, failed=False, depth=depth + 1)
        if inner and wrapper != "response":
            return _with_codes(answer, inner)
    choice = _first_item(answer.get("choices"))
    if isinstance(choice, dict) and choice.get("error"):
        return choice["error"]
    if not failed and (_ANSWERS & names.keys() or isinstance(answer.get("message"), dict)):
        return None
    return answer


def _with_codes(answer: dict[object, object], inner: object) -> object:
    """Return an error with the flat fields next to it, in which some upstreams put their code or text."""
    flat_fields = {
        key: value for key, value in answer.items() if isinstance(value, str) and str(key).lower() in _FLAT_FIELDS
    }
    return (
        {"error": inner, **{key: value for key, value in flat_fields.items() if key != "error"}}
        if flat_fields
        else inner
    )


_FLAT_FIELDS = frozenset({"message", "code", "type", "error_type", "error_code", "reason", "detail", "msg", "status"})


def _first_item(value: object) -> object:
    return value[0] if isinstance(value, list) and value else None


def _is_event_stream(text: str) -> bool:
    return text.lstrip().startswith(("data:", "event:", "id:", ":", "retry:")) or "\ndata:" in text


def _errors_in(stream: str) -> Iterator[object]:
    """Yield the errors of an event stream, whose other events are a response."""
    for event in islice(re.split(r"\r?\n\r?\n", stream), _MAX_EVENTS):
        lines = event.splitlines()
        data = "\n".join(line[5:].strip() for line in lines if line.startswith("data:"))
        is_error = any(line.startswith("event:") and "error" in line for line in lines)
        part = _part_of(_decode_body(data.encode("utf-8", "replace")), failed=is_error) if data else None
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
        if isinstance(location := value.get("loc"), list) and location and isinstance(location[-1], str):
            yield "param", location[-1][:_MAX_SENTENCE]  # the field that a validator means
    elif isinstance(value, list):
        for item in value[:20]:
            yield from _strings(item, depth + 1, key)


def _unwrap_texts(text: str, depth: int, key: str) -> Iterator[tuple[str, str]]:
    start, end = text.find("{"), text.rfind("}") + 1
    inner = _embedded_object(text[start:end]) if 0 <= start < min(end, _MAX_TEXT) and depth < _MAX_UNWRAP else None
    remaining = f"{text[:start]}\n{text[end:]}" if inner is not None else text
    if (echo := _ECHOED.search(remaining, 0, _MAX_TEXT)) is not None:
        remaining = remaining[: echo.start()]
    yield key, remaining[:_MAX_TEXT]
    yield from ((match[1], match[2]) for match in islice(_CODE_IN_TEXT.finditer(remaining, 0, _MAX_TEXT), 8))
    if inner is not None:
        yield from _strings(inner, depth + 1)


def _embedded_object(text: str) -> object:
    """Return an object in JSON; None for any other text. Quotes in a nested string may still be escaped."""
    for candidate in (text, text.replace('\\"', '"').replace("\\n", " ")):
        try:
            return msgspec.json.decode(candidate)
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
    """Return the text of an error for a log: cut, and without quotations, which may be the client's."""
    return _QUOTED.sub("…", _text_of(body))[:_MOST_WORDS]


def error_text(body: bytes, headers: Headers) -> str:
    """Return the text of an error without the secrets of the headers that were sent: a server may echo a key."""
    text = _text_of(body)
    for name, value in headers:
        secret = value.decode("latin-1").removeprefix("Bearer ")
        if len(secret) >= _LEAST_SECRET and _NAMES_OF_SECRETS.search(name):
            text = text.replace(secret, "…")
    return text


def _text_of(body: bytes) -> str:
    return " ".join(value for _, value in strings_of(error_part(body, failed=True)))
