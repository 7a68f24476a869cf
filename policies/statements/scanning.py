"""Splitting of a sentence into words, values recognized by their shape, and clause separators."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from policies.statements import words

# Plain words come first because most tokens are words. Every repetition is bounded, so time stays linear for hostile
# input.
_TOKEN = re.compile(
    r"(?P<word>[A-Za-z]{1,24}(?![\w./:@'’\\#-]))"
    r"|(?P<quoted>`[^`\n]{1,120}`|[\"“「『《][^\"“”「」『』《》\n]{1,80}[\"”」』》])"
    r"|(?P<url>[a-z][a-z0-9+]{1,8}://[^\s<>\"'，。；、）)]{1,200})"
    r"|(?P<email>[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,4})"
    r"|(?P<date>\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{4}年(?:\d{1,2}月)?(?:\d{1,2}[日号])?|\d{1,2}月\d{1,2}[日号]"
    r"|\d\d-\d\d(?![\w-])|\d{1,2}/\d{1,2}(?:/\d{2,4})?(?![\w/]))"
    r"|(?P<time>\d{1,2}:\d\d(?::\d\d)?(?:\s?[ap]m)?|\d{1,2}\s?[ap]m\b)"
    r"|(?P<money>[$€£¥]\s?\d{1,12}(?:[.,]\d{1,6}){0,4}[kKmM]?|\d{1,12}(?:[.,]\d{1,6}){0,4}\s?(?:万元|元|块|美元|欧元))"
    r"|(?P<zone>[A-Z][a-z]{2,20}/[A-Z][A-Za-z_]{2,30})"
    r"|(?P<path>(?:~|\.{1,2})?/?[\w.-]{1,80}(?:/[\w.-]{1,80}){1,12}/?|/[\w.-]{1,80})"
    r"|(?P<version>[vV]?\d{1,6}(?:\.\d{1,6}){1,3}(?![\w.]{0,9}[A-Za-z]))"
    r"|(?P<number>\d[\d,]{0,20}(?:\.\d{1,9})?%?(?![\w-]))"
    r"|(?P<host>[\w-]{1,63}(?:\.[A-Za-z][\w-]{0,62}){1,6}(?::\d{2,5})?)"
    r"|(?P<tag>[#@][\w-]{2,40})"
    r"|(?P<code>[A-Za-z0-9_]{1,64}(?:[-'’][A-Za-z0-9_]{1,64}){0,6})"
    r"|(?P<chinese>[\u4e00-\u9fff]+)"
    r"|(?P<stop>[:：=;；,，]|->|→)",
    re.ASCII,
)
# Texts in which a token may contain a space: quotes, "$ 5", "5 pm", "5 元".
_SPACED = re.compile(r"[`\"“「『《$€£¥0-9](?:(?<![$€£¥0-9])| (?:[0-9]|[ap]m|[万元块美欧]))")
# The maximum digits that _TOKEN accepts as a number.
_LONGEST_NUMBER = 20
# The maximum length of cached words. Hundreds of characters without a space are data of many tokens.
_LONGEST_WORD = 40
# Words that may begin a cue although no table of phrases has them.
_OPENING = ("only", "no", "to")


class Token(NamedTuple):
    """A token of a sentence.

    concept: the meaning of a plain word; "" for a stop word; None if the word needs more context.
    cueing: True if a cue may begin with it.
    """

    kind: str
    text: str
    lowered: str
    concept: str | None
    cueing: bool


def scan(text: str) -> Sequence[Token]:
    """Return the tokens of a text. Words are cached singly unless a token may contain a space."""
    if _SPACED.search(text):
        return _matches(text)
    return [token for part in text.split(" ") for token in (_part if len(part) <= _LONGEST_WORD else _matches)(part)]


@lru_cache(maxsize=2_048)
def _part(text: str) -> tuple[Token, ...]:
    number = text.rstrip(".")
    if number.isdecimal() and number.isascii() and len(number) <= _LONGEST_NUMBER:
        return (Token("number", number, number, None, cueing=False),)
    return _matches(text)


def matches(text: str) -> Iterator[re.Match[str]]:
    """Return the tokens of a text of bounded length as matches, whose last group is the kind."""
    return _TOKEN.finditer(text)


def _matches(text: str) -> tuple[Token, ...]:
    return tuple([_token(match.lastgroup or "", match.group()) for match in matches(text)])


def _token(kind: str, text: str) -> Token:
    word = text.lower().replace("’", "'")
    concept = _plain(text, word) if kind in ("word", "code") else None
    cueing = word in words.CUES or word in words.PHRASES or word in _OPENING
    return Token(kind, text, word, concept, cueing)


def _plain(text: str, word: str) -> str | None:
    """Return the concept of a word whose meaning does not depend on its neighbours; None for other words."""
    if word in words.NUMBERS or word in words.KINDS or word in words.MONTHS:
        return None
    if word in words.STOP or word.removesuffix("s") in words.STOP:
        return ""
    return words.concept(word) if text.isalpha() and text.islower() else None
