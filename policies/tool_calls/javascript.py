"""JavaScript as tokens: names, signs, and literals with their values."""

import re
from collections.abc import Generator, Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"(?P<space>[^\S\n]+|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)|(?P<newline>\n)"
    r"|(?P<string>\"(?:[^\"\\\n]|\\[\s\S])*+\"|'(?:[^'\\\n]|\\[\s\S])*+')"
    r"|(?P<name>[A-Za-z_$][\w$]*+)|(?P<number>\d[\w.]*+)"
    r"|(?P<sign>=>|===?|!==?|[<>]=|\+\+|--|[-+*/%]=|&&=?|\|\|=?|\?\?=?|\?\.|\.\.\.|[\s\S])"
)
_TEMPLATE = re.compile(r"(?:[^`\\$]|\\[\s\S]|\$(?!\{))*+")
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(\r?\n)|([\s\S]))")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}
_SUBSTITUTION = "${"


class Token(NamedTuple):
    """A token of a script.

    kind: `name`, `number`, `sign`, `newline`, `string`, `template`, or `opaque` for a literal that is not parsed.
    A template with substitutions is a `head`, a `middle` between two substitutions, and a `tail`.
    text: the source text; for a template without its quotes.
    value: the value of a string or template.
    """

    kind: str
    text: str
    value: str | None = None


def tokens_of(code: str) -> Iterator[Token]:
    """Yield the tokens of a script. An unclosed string ends with its line, an unclosed template with the script."""
    at, braces = 0, list[str]()
    while at < len(code):
        sign = code[at]
        if sign == "}" and braces[-1:] == [_SUBSTITUTION]:
            braces.pop()
            at = yield from _template(code, at + 1, braces, is_whole=False)
        elif sign == "`":
            at = yield from _template(code, at + 1, braces, is_whole=True)
        else:
            if braces and sign == "{":
                braces.append(sign)
            elif braces and sign == "}":
                braces.pop()
            at = yield from _token(code, at)


def _template(code: str, start: int, braces: list[str], *, is_whole: bool) -> Generator[Token, None, int]:
    """Yield a template, or a part of one with substitutions. Return its end."""
    match = _TEMPLATE.match(code, start)
    end = match.end() if match else start
    if code.startswith(_SUBSTITUTION, end):
        braces.append(_SUBSTITUTION)
        yield Token("head" if is_whole else "middle", "`", _unescape(code[start:end]))
        return end + len(_SUBSTITUTION)
    if end < len(code):
        kind = "template" if is_whole else "tail"
        yield Token(kind, code[start:end] if is_whole else "`", _unescape(code[start:end]))
    else:
        yield Token("opaque", "`")
    return end + 1


def _token(code: str, at: int) -> Generator[Token, None, int]:
    """Yield the token at a position unless it is a space. Return its end."""
    match = _TOKEN.match(code, at)
    if match is None:
        return len(code)
    if match.lastgroup == "sign" and match[0] in "\"'":  # unclosed, or within a regular expression
        end = code.find("\n", at)
        yield Token("opaque", match[0])
        return len(code) if end < 0 else end
    if match.lastgroup == "string":
        yield Token("string", match[0], _unescape(match[0][1:-1]))
    elif match.lastgroup != "space":
        yield Token(match.lastgroup or "sign", match[0])
    return match.end()


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_unescaped, text) if "\\" in text else text


def _unescaped(match: re.Match[str]) -> str:
    if (digits := match[1] or match[2] or match[3]) is not None:
        number = int(digits, 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "\N{REPLACEMENT CHARACTER}"
    return "" if match[4] is not None else _ESCAPED.get(match[5], match[5])
