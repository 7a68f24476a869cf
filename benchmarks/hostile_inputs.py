"""Hostile requests of at most a megabyte, and some marked larger ones, for `python -m benchmarks.hostile`."""

from __future__ import annotations

import base64
import functools
import gzip
import json
import random
import string
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

_SIZE = 960_000

Json = Mapping[str, object]


@dataclass(frozen=True)
class Input:
    """One hostile request; `make` is given a seed, so that no two tries are the same. larger: over 1 MB once read."""

    name: str
    make: Callable[[int], bytes]
    coding: str = ""
    size: int = 0
    larger: bool = False


def _chat(messages: bytes, more: bytes = b"") -> bytes:
    return b'{"model":"gpt-4o"' + more + b',"messages":[' + messages + b"]}"


def _user(content: bytes) -> bytes:
    return _chat(b'{"role":"user","content":' + content + b"}," + _TAIL)


def _messages(messages: Sequence[Json]) -> bytes:
    return json.dumps(messages, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")[1:-1]


# Enough rounds behind what is hostile that a cut can cover it.
_TAIL = _messages([{"role": role, "content": f"Round {i}."} for i in range(8) for role in ("assistant", "user")])


def _filled(unit: bytes, size: int = _SIZE) -> bytes:
    return unit * (size // len(unit))


def _listed(unit: bytes, count: int) -> bytes:
    return b"[" + b",".join([unit] * count) + b"]"


def _numbered(unit: bytes, count: int) -> bytes:
    return b",".join(unit.replace(b"#", b"%d" % i) for i in range(count))


def _nested(levels: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * levels + b"1" + closing * levels


def _called(arguments: bytes) -> bytes:
    return _conversation("Go.", "I do.", arguments.decode(), "done")


def _said(text: str) -> bytes:
    """The text half by the user, and by the assistant, in arguments and by a tool."""
    half, part = len(text) // 2, len(text) // 6
    arguments = json.dumps({"path": text[:part]}, ensure_ascii=False)
    return _conversation(text[:half], text[half : half + part], arguments, text[half + part : half + 2 * part])


def _conversation(asked: str, said: str, arguments: str, result: str) -> bytes:
    call = {"id": "c", "type": "function", "function": {"name": "write_file", "arguments": arguments}}
    messages: list[Json] = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": said, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": result},
    ]
    return _chat(_messages(messages) + b"," + _TAIL)


def _repeated(unit: str) -> Callable[[int], bytes]:
    size = len(json.dumps(unit, ensure_ascii=False).encode("utf-8", "surrogatepass")) - 2
    return lambda seed: _said(f"{seed}" + unit * (int(_SIZE * 0.88) // size))


def _random(alphabet: str, length: int) -> Callable[[int], bytes]:
    return lambda seed: _said("".join(random.Random(seed).choices(alphabet, k=length)))


def _sentences(pattern: str, *, apart: bool = False) -> Callable[[int], bytes]:
    """Sentences with a number and words of their own, in one message or in one each."""

    def make(seed: int) -> bytes:
        chance = random.Random(seed)
        texts: list[str] = []
        size = 0
        while size < _SIZE and not (apart and len(texts) == 4_900):
            name = "".join(chance.choices(string.ascii_lowercase, k=7))
            texts.append(pattern.replace("#", str(chance.randrange(10**6))).replace("@", name))
            size += len(texts[-1].encode()) + (75 if apart else 3)
        if not apart:
            return _said(" ".join(texts))
        turns: list[Json] = []
        for text in texts:
            turns += [{"role": "user", "content": text}, {"role": "assistant", "content": "OK"}]
        return _chat(_messages(turns) + b"," + _TAIL)

    return make


def _results(calls: int, results: int, answered: str) -> bytes:
    made = [{"id": f"c{i}", "function": {"name": "f", "arguments": "{}"}} for i in range(calls)]
    found = [{"role": "tool", "tool_call_id": answered.replace("#", str(i)), "content": "x"} for i in range(results)]
    start: list[Json] = [{"role": "user", "content": "Go."}, {"role": "assistant", "tool_calls": made}]
    return _chat(_messages([*start, *found]) + b"," + _TAIL)


def _file(content: bytes) -> bytes:
    data = base64.b64encode(content)
    return _user(b'[{"type":"file","file":{"file_data":"data:;base64,' + data + b'"}}]')


def _images(data: bytes, count: int) -> bytes:
    url = b"data:image/png;base64," + data
    return _user(_listed(b'{"type":"image_url","image_url":{"url":"' + url + b'"}}', count))


_PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIB", 13, b"IHDR", 2**31 - 1, 2**31 - 1, 8))


def _bomb(size: int) -> bytes:
    """Gzip that becomes `size` zeros: one compressed block again and again."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(bytes(10_000_000)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + block * (size // 10_000_000)


def _zstd_bomb() -> bytes:
    """A gigabyte in blocks that repeat one byte (RFC 8878, section 3.1.1.2)."""
    block = struct.pack("<I", (128 * 1024) << 3 | 1 << 1)[:3] + b"a"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * 8_192


def _whole(size: int) -> bytes:
    empty = _chat(b'{"role":"user","content":""}')
    return empty.replace(b'""', b'"' + b"a" * (size - len(empty)) + b'"')


_PART = b'{"type":"text","text":"a"}'
_CALL = b'{"role":"assistant","tool_calls":'
_EMPTY = b'{"role":"user","content":""},'
_WIDE = b"{" + _numbered(b'"k#":1', 70_000) + b"}"
_SAME = b"{" + b",".join([b'"k":1'] * 150_000) + b"}"
_TOOL = b'{"type":"function","function":{"name":"f#","parameters":{}}}'
_ROUND = (
    rb'{"role":"assistant","tool_calls":[{"id":"#","function":{"name":"write_file","arguments":"{\"path\":\"f#\"}"}}]}'
    b',{"role":"tool","tool_call_id":"#","content":"Error: exit code 1"}'
)
_UNICODE = "".join(map(chr, [*range(0x20, 0xD800, 7), *range(0xE000, 0x30000, 97)]))

# fmt: off
_STRUCTURES: dict[str, Callable[[], bytes]] = {
    "arrays 99 deep": lambda: _user(_nested(99)),
    "arrays 101 deep": lambda: _user(_nested(101)),
    "arrays 1,000 deep": lambda: _user(_nested(1_000)),
    "arrays 100,000 deep": lambda: _user(_nested(100_000)),
    "objects 90 deep": lambda: _user(_nested(90, b'{"a":', b"}")),
    "objects 100,000 deep": lambda: _user(_nested(100_000, b'{"a":', b"}")),
    "arrays 99 deep in arguments": lambda: _called(_nested(99)),
    "arrays 1,000 deep in arguments": lambda: _called(_nested(1_000)),
    "arrays 100,000 deep in arguments": lambda: _called(_nested(100_000)),
    "objects 100,000 deep in arguments": lambda: _called(_nested(100_000, b"[[", b"]]")),
    "arrays 100,000 deep in tools": lambda: _chat(_TAIL, b',"tools":' + _nested(100_000)),
    "arrays 100,000 deep, unread": lambda: _chat(_TAIL, b',"x":' + _nested(100_000)),
    "900 arrays 500 deep": lambda: _user(_listed(_nested(500), 900)),
    "5,000 arrays 95 deep": lambda: _user(_listed(_nested(94), 5_000)),
    "5,000 arrays 95 deep in tools": lambda: _chat(_TAIL, b',"tools":' + _listed(_nested(94), 5_000)),
    "480,000 numbers as content": lambda: _user(_listed(b"0", 480_000)),
    "480,000 numbers as metadata": lambda: _chat(_TAIL, b',"metadata":' + _listed(b"0", 480_000)),
    "480,000 numbers as n": lambda: _chat(_TAIL, b',"n":' + _listed(b"0", 480_000)),
    "480,000 numbers as messages": lambda: _chat(_listed(b"0", 480_000)[1:-1]),
    "100,000 tiny messages": lambda: _chat(_listed(b"{}", 100_000)[1:-1]),
    "10,000 tiny messages": lambda: _chat(_listed(b"{}", 10_000)[1:-1]),
    "10,000 system messages": lambda: _chat(_numbered(b'{"role":"system","content":"Be nice #"},', 9_980) + _TAIL),
    "10,000 signed answers": lambda: _chat(_numbered(b'{"role":"assistant","content":"#","reasoning":"x"}', 9_999)),
    "4,500 rounds": lambda: _chat(_numbered(_ROUND, 4_500) + b"," + _TAIL),
    "35 messages of 9,000 empty objects": lambda: _chat(_EMPTY.replace(b'""', _listed(b"{}", 9_000)) * 35 + _TAIL),
    "200,000 empty objects": lambda: _user(_listed(b"{}", 200_000)),
    "300,000 empty objects in arguments": lambda: _called(_listed(b"{}", 300_000)),
    "30,000 text parts": lambda: _user(_listed(_PART, 30_000)),
    "9,900 text parts": lambda: _user(_listed(_PART, 9_900)),
    "200,000 strings": lambda: _user(_listed(b'"a"', 200_000)),
    "30,000 unknown parts": lambda: _user(_listed(b'{"type":"x","x":["y",{"z":1}]}', 30_000)),
    "3,000 unknown parts": lambda: _user(_listed(b'{"type":"x","x":["y",{"z":1}]}', 3_000)),
    "10,000 tools": lambda: _chat(_TAIL, b',"tools":[' + _numbered(_TOOL, 10_000) + b"]"),
    "one tool of 1 MB": lambda: _chat(_TAIL, b',"tools":[{"type":"function","function":' + _WIDE + b"}]"),
    "70,000 keys in a part": lambda: _user(b'[{"type":"x","x":' + _WIDE + b"}]"),
    "70,000 keys in arguments": lambda: _called(_WIDE),
    "70,000 keys in a message": lambda: _chat(b'{"role":"user","content":"a",' + _WIDE[1:] + b"," + _TAIL),
    "70,000 keys in metadata": lambda: _chat(_TAIL, b',"metadata":' + _WIDE),
    "70,000 keys at the top": lambda: _chat(_TAIL, b"," + _WIDE[1:-1]),
    "150,000 times the same key": lambda: _chat(b'{"role":"user","content":"a",' + _SAME[1:] + b"," + _TAIL),
    "70,000 times the key messages": lambda: _chat(_TAIL, _filled(b',"messages":0')),
    '70,000 times "messages" in a text': lambda: _user(b'"' + _filled(rb"\"messages\":[") + b'"'),
    "an integer of 1 MB": lambda: _user(b"9" * _SIZE),
    "an integer of 1 MB as seed": lambda: _chat(_TAIL, b',"seed":' + b"9" * _SIZE),
    "180 integers of 5,000 digits": lambda: _user(_listed(b"9" * 5_000, 180)),
    "150,000 times 1e999": lambda: _user(_listed(b"1e999", 150_000)),
    "NaN behind 1 MB": lambda: _user(_listed(b"0", 400_000)[:-1] + b",NaN]"),
    "160,000 lone surrogates": lambda: _user(b'"' + _filled(rb"\ud83d") + b'"'),
    "backslashes and lone surrogates": lambda: _user(b'"' + _filled(rb"\\\\ud83d\ud83d") + b'"'),
    "1 MB of backslashes and a surrogate": lambda: _user(b'"' + _filled(rb"\\") + rb'\ud83d"'),
    "160,000 escapes": lambda: _user(b'"' + _filled(rb"\u0061") + b'"'),
    "160,000 escaped NULs": lambda: _user(b'"' + _filled(rb"\u0000") + b'"'),
    "1 MB of NULs": lambda: bytes(_SIZE),
    "UTF-16": lambda: _user(b'"' + _filled(b"a", _SIZE // 2) + b'"').decode().encode("utf-16"),
    "a byte order mark": lambda: b"\xef\xbb\xbf" + _user(b'"' + _filled(b"a") + b'"'),
    "1 MB of whitespace between messages": lambda: _chat(_filled(b" \n\t") + _TAIL),
    "14,000 images without bytes": lambda: _images(b"", 14_000),
    "4,900 images without bytes": lambda: _images(b"", 4_900),
    "9,900 short image parts": lambda: _user(_listed(b'{"type":"image","image":"data:;base64,iVBO"}', 9_900)),
    "4,900 broken images": lambda: _images(b"!!!!not base64####" * 6, 4_900),
    "4,900 images that claim 2^31 pixels a side": lambda: _images(_PNG * 3, 4_900),
    "JPEGs of fill bytes": lambda: _images(base64.b64encode(b"\xff\xd8" + b"\xff" * 66_000), 10),
    "JPEGs of empty segments": lambda: _images(base64.b64encode(b"\xff\xd8" + b"\xff\xe0\x00\x00" * 16_500), 10),
    "one broken image of 1 MB": lambda: _images(b"A" * _SIZE, 1),
    "a file that looks like text": lambda: _file(b"word " * 140_000),
    "a PDF of pages": lambda: _file(b"%PDF" + b"/Type   /Page " * 50_000),
    "a PDF of spaces": lambda: _file(b"%PDF/Type" + b" " * 700_000),
    "17,000 calls, no results": lambda: _results(17_000, 0, ""),
    "4,900 calls and results": lambda: _results(4_900, 4_900, "c#"),
    "4,900 calls, 9,000 results of the last": lambda: _results(4_900, 9_000, "c4899"),
    "4,900 calls, 9,000 results of none": lambda: _results(4_900, 9_000, "x#"),
    "300,000 empty calls": lambda: _chat(_CALL + _listed(b"{}", 300_000) + b"}," + _TAIL),
    "9,900 empty calls, 9,000 results": lambda: _chat(
        _CALL + _listed(b"{}", 9_900) + b"}," + _numbered(b'{"role":"tool","tool_call_id":"#"}', 9_000) + b"," + _TAIL
    ),
    "80,000 times the same id": lambda: _chat(_CALL + _listed(b'{"id":"a"}', 80_000) + b"}," + _TAIL),
}
_REPEATED = {
    "a": "a", "spaces": " ", "tabs": "\t", "U+3000": "\u3000", "zero-width joiners": "👩‍👩‍👧‍👦",
    "combining marks": "e" + "\u0301" * 40, "<|endoftext|>": "<|endoftext|>", "newlines": "\n",
    "lines of one letter": "a\n", "(((": "(", "aaaa!": "aaaa!", "= = =": "= ", "colons": "a: ", "chinese colons": "：",
    "quotes": '"', "half quotes": '"a ', "urls": "http://a.b/c?d=e ", "one url": "http://a/" + "b" * 300,
    "commas": "a, ", "sentence ends": "a. ", "only sentence ends": ". ", "!?": "!?", "e.g.": "e.g. ", "Mr.": "Mr.",
    "our own tags": "<conversation_record>", "fences": "```\n", "quoted lines": "> a\n", "bullets": "- 1. a\n",
    "braces": "{", "brackets": "[[(", "backslashes": "\\", "paths": "/a", "slashes": "/", "dots": "a.",
    "versions": "1.",
    "at signs": "a@", "hyphens": "a-", "apostrophes": "a'", "hashes": "#a", "arrows": "a->", "from to": "from a to ",
    "not, but": "not a ", "replaced": "was replaced by ", "A is B and C is D": "the a is b and the c is d, ",
    "the the": "the a ", "and": " and", "Chinese": "必须用中文回答", "Chinese sentences": "预算改为五百元。",
    "Chinese commas": "不要，", "从": "从", "不": "不", "must": "must ", "emoji": "😀", "numbers": "1 ", "digits": "7",
    "commas in numbers": "1,", "percent": "%", "dates": "2024-01-01 ",
}
_RANDOM = {
    "random Unicode": (_UNICODE, _SIZE // 4), "base64": (string.ascii_letters + string.digits + "+/", _SIZE),
    "random digits": (string.digits, _SIZE), "one word": (string.ascii_lowercase, _SIZE),
    "punctuation": ("!#$%&'()*+,-./:;<=>?@[]^_`{|}~", _SIZE),
}
# fmt: on
_SENTENCES = {
    "words without an end": "@",
    "rules": "You must never use port # for @.",
    "values": "The @ budget is # dollars.",
    "corrections": "Change the port of @ from # to 80 instead of 90.",
    "Chinese rules": "必须把 @ 的预算从 # 改为五百元。",
    "rules in lines": "RULE: never touch @ before #\n",
}
_MESSAGES = {
    "numbers": "#",
    "rules": "You must never use port # for @, and always ask me before you exceed # dollars.",
    "values": "The budget of @ is now # dollars and the owner of it is @.",
    "the same value": "The budget is now # dollars.",
    "corrections": "Change the port of the server from # to 80 instead of 90, not @, but #.",
    "permissions": "You may use port # again; forget the rule about @, it no longer applies.",
    "labels": "SAFETY RULE: never use port # for the server of @.",
    "Chinese": "必须把 @ 的预算从 # 改为五百元，不要超过上限，负责人是王明。",
}


# The limit, and what is just read (proxy/dialects/bounds.py).
_LARGE, _READ = 64 * 1024 * 1024 - 4_096, 23 * 1024 * 1024


def _lots(
    size: int, unit: bytes, around: Callable[[bytes], bytes] = _user, opening: bytes = b'"', closing: bytes = b'"'
) -> bytes:
    """As many of these as it takes."""
    return around(opening + unit * (size // len(unit)) + unit.rstrip(b",") + closing)


def _lots_listed(size: int, unit: bytes, around: Callable[[bytes], bytes] = _user) -> bytes:
    return _lots(size, unit + b",", around, b"[", b"]")


def _at_the_top(key: bytes) -> Callable[[bytes], bytes]:
    return lambda value: _chat(_TAIL, b',"' + key + b'":' + value)


def _of_messages(value: bytes) -> bytes:
    return b'{"model":"gpt-4o","messages":' + value + b"}"


def _as_model(value: bytes) -> bytes:
    return b'{"messages":[' + _TAIL + b'],"model":' + value + b"}"


def _in_arguments(value: bytes) -> bytes:
    quoted = value.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    made = b'{"id":"c","type":"function","function":{"name":"write_file","arguments":"' + quoted + b'"}}'
    return _chat(_CALL + b"[" + made + b'}],"content":"a"},{"role":"tool","tool_call_id":"c","content":"ok"},' + _TAIL)


# Up to `server.max_body_bytes`, each also compressed.
_LARGE_BODIES: dict[str, Callable[[int], bytes]] = {
    "numbers as messages": lambda n: _lots_listed(n, b"1", _of_messages),
    "objects as messages": lambda n: _lots_listed(n, b"{}", _of_messages),
    "arrays as messages": lambda n: _lots_listed(n, b"[]", _of_messages),
    "strings as messages": lambda n: _lots_listed(n, b'""', _of_messages),
    "small messages": lambda n: _lots_listed(n, b'{"role":"user","content":"a"}', _of_messages),
    "messages of 20 kB": lambda n: _lots_listed(
        n, b'{"role":"user","content":"%s"}' % (b"a b c " * 3_400), _of_messages
    ),
    "messages of 2 MB": lambda n: _lots_listed(n, b'{"role":"user","content":"%s"}' % (b"a" * 2_000_000), _of_messages),
    "one letter": lambda n: _lots(n, b"a"),
    "words": lambda n: _lots(n, b"words and words "),
    "commas in a text": lambda n: _lots(n, b"1,2,3,"),
    "line ends": lambda n: _lots(n, rb"\n"),
    "quotes": lambda n: _lots(n, rb"\""),
    "backslashes": lambda n: _lots(n, rb"\\"),
    "escapes": lambda n: _lots(n, rb"\u6587"),
    "Chinese": lambda n: _lots(n, "文".encode()),
    "half emoji": lambda n: _lots(n, rb"\ud83d"),
    "emoji": lambda n: _lots(n, rb"\ud83d\ude00"),
    "half an emoji behind 60 MB": lambda n: _user(b'"' + b"a" * (n - 200) + rb'\ud83d"'),
    "spaces": lambda n: _lots(n, b" ", _chat, b"", _TAIL),
    "numbers as content": lambda n: _lots_listed(n, b"1"),
    "objects as content": lambda n: _lots_listed(n, b"{}"),
    "parts": lambda n: _lots_listed(n, b'{"type":"text","text":"a"}'),
    "images of 2 MB": lambda n: _lots_listed(
        n, b'{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}' % (b"A" * 2_000_000)
    ),
    "one image": lambda n: _lots(
        n, b"A", _user, b'[{"type":"image_url","image_url":{"url":"data:image/png;base64,', b'"}}]'
    ),
    "objects in arguments": lambda n: _in_arguments(_listed(b"{}", n // 4)),
    "numbers in arguments": lambda n: _in_arguments(_listed(b"1", n // 2)),
    "arrays as the model": lambda n: _lots_listed(n, b"[]", _as_model),
    "a word as the model": lambda n: _lots(n, b"a", _as_model),
    "objects as metadata": lambda n: _lots_listed(n, b"{}", _at_the_top(b"metadata")),
    "arrays as n": lambda n: _lots_listed(n, b"[]", _at_the_top(b"n")),
    "objects as tools": lambda n: _lots_listed(n, b'{"a":1}', _at_the_top(b"tools")),
    "deep arrays": lambda n: _user(b"[" * (n // 2) + b"]" * (n // 2)),
    "no JSON": lambda n: b"1" * n,
}


def _larger(name: str, make: Callable[[int], bytes]) -> Iterator[Input]:
    """At the limit, compressed, and at the size that is just read."""
    yield Input(f"64 MB: {name}", lambda _: make(_LARGE), larger=True)
    yield Input(
        f"64 MB in gzip: {name}", functools.cache(lambda _: gzip.compress(make(_LARGE), 1)), "gzip", larger=True
    )
    yield Input(f"23 MB: {name}", lambda _: make(_READ), larger=True)


def _unseeded(body: Callable[[], bytes]) -> Callable[[int], bytes]:
    return lambda _: body()


INPUTS = [
    *(Input(name, _unseeded(body)) for name, body in _STRUCTURES.items()),
    *(Input(f"text: {name}", _repeated(unit)) for name, unit in _REPEATED.items()),
    *(Input(f"text: {name}", _random(*of)) for name, of in _RANDOM.items()),
    *(Input(f"text: {name}", _sentences(pattern)) for name, pattern in _SENTENCES.items()),
    *(Input(f"4,900 turns: {name}", _sentences(pattern, apart=True)) for name, pattern in _MESSAGES.items()),
    *(each for name, make in _LARGE_BODIES.items() for each in _larger(name, make)),
    Input(
        "64 kB of gzip: numbers as messages", lambda _: gzip.compress(_lots_listed(_LARGE, b"1", _of_messages)), "gzip"
    ),
    Input(
        "64 kB of gzip: objects as messages", lambda _: gzip.compress(_lots_listed(_LARGE, b"{}", _of_messages)), "gzip"
    ),
    Input("64 kB of gzip: half emoji", lambda _: gzip.compress(_lots(_LARGE, rb"\ud83d")), "gzip"),
    Input(
        "64 kB of gzip: arrays as the model", lambda _: gzip.compress(_lots_listed(_LARGE, b"[]", _as_model)), "gzip"
    ),
    Input("larger: 100 MB, refused", lambda _: _whole(100_000_000), larger=True),
    Input("larger: gzip of 1 GB", lambda _: _bomb(10**9), "gzip", 64 * 1024 * 1024, larger=True),
    Input("gzip of gzip of 1 GB", lambda _: gzip.compress(_bomb(10**9), 1), "gzip"),
    Input("zstd of 1 GB", lambda _: _zstd_bomb(), "zstd"),
]
