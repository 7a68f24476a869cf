"""Search of a conversation for the passages that share the rarest words with a question.

There is no index: the texts are joined in lower case and searched for the words of each question. A word matches by its
beginning, so endings matter in no language. Chinese, Japanese and Korean, which do not separate words, are searched by
pairs of characters.
"""

import re
import unicodedata
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from math import log
from typing import NamedTuple

from policies.conversation.transcript import Utterance
from policies.statements.words import STOP

# Characters of a passage: a whole sentence, line or message. Shorter ones are joined with the next.
LONGEST = 300
_SHORTEST = 60
_USUAL = 150
# BM25: how fast repetitions of a word stop counting, and how much less a long passage counts.
_SATURATION = 1.2
_LENGTH = 0.5
# The share of a passage's score that its neighbours get: the reply to a question, other messages after and before it,
# and the sentences around it.
_ANSWER = 0.9
_BEHIND = 0.4
_BEFORE = 0.4
_SAME_MESSAGE = 0.15
# If a message names the subject of the question, the next messages get these shares of its score. The reply may come
# some turns later.
_FOLLOWING = (0.9, 0.8, 0.7, 0.6)
# In a response or result of at least this many characters, a word says less about the subject.
_LONG_TEXT = 600
_OF_LONG_TEXT = 0.5
# A term in a larger share of the passages than this is not searched for.
_COMMON = 0.1
_MOST_TERMS = 24
# Voices in a user's role that no question refers to.
_UNASKED = ("harness", "instructions")
# Words of up to this many letters match only themselves: "art" does not match "article".
_SHORT = 3
# Characters searched in one call, which takes a few milliseconds.
_BLOCK = 1 << 18

# Question marks of every script.
QUESTION_MARK = re.compile("[?？؟\u037e՞፧⸮¿]")
_END = re.compile(r"[.!?…][\"'”’)\]]{0,3}\s+|[。！？；]|\n+")
_WORD = re.compile(r"[^\W_]+(?:['’._-][^\W_]+)*")
_PARTS = re.compile(r"['’._-]")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]+")
# Words of up to this many letters are kept whole. Longer words lose one or two letters at the end, where forms differ.
_ROOT = 4


def _plain_letters() -> dict[str, str]:
    letters = {}
    for code in (*range(0xC0, 0x250), *range(0x386, 0x3CF), *range(0x400, 0x460), *range(0x1E00, 0x2000)):
        sign = chr(code).lower() if len(chr(code).lower()) == 1 else chr(code)
        base = "".join(part for part in unicodedata.normalize("NFKD", sign) if not unicodedata.combining(part))
        if len(base) == 1 and base != sign and sign not in _LETTERS_OF_THEIR_OWN:
            letters[sign] = base.lower()
    return letters


_LETTERS_OF_THEIR_OWN = "й"
_PLAIN = _plain_letters()
_accented = re.compile(f"[{''.join(_PLAIN)}]").sub


def without_accents(text: str) -> str:
    """Return the text in lower case and without accents. Its length stays the same."""
    lower = text.lower()
    if len(lower) != len(text):
        lower = "".join(sign.lower() if len(sign.lower()) == 1 else sign for sign in text)
    return lower if lower.isascii() else _accented(lambda match: _PLAIN[match[0]], lower)


# Stop words of questions about earlier messages.
_ASKING = """
i im s t re ve ll d m many kind type sort different number total amount previous previously earlier conversation
mention mentioned discuss discussed remind recall remembered wonder wondering want wanted ago recently chat talked talk
"""
_STOP = frozenset(map(without_accents, (*STOP, *_ASKING.split())))


def _root(word: str) -> str:
    """Return the beginning that all forms of a word presumably share, judged by its length alone."""
    if len(word) <= _ROOT or not word.isalpha():
        return word
    return word[: max(_ROOT, len(word) - (1 if len(word) <= _ROOT + 2 else 2))]


def terms(text: str) -> list[str]:
    """Return the search terms of a text: its words except stop words, each once."""
    plain = without_accents(text)
    found_terms: dict[str, None] = {}
    for run in _CJK.findall(plain):
        found_terms |= dict.fromkeys(run[at : at + 2] for at in range(max(1, len(run) - 1)))
    for word in _WORD.findall(_CJK.sub(" ", plain)):
        parts = [] if word.isalnum() else [part for part in _PARTS.split(word) if len(part) > 1]
        for each in (word.removesuffix("'s").removesuffix("’s"), *parts):
            if each not in _STOP and (len(each) > 1 or each.isdigit()):
                found_terms[_root(each)] = None
    return list(found_terms)


# Names in scripts without case: quoted or bracketed text, and words before a possessive or subject particle.
_QUOTED = re.compile(r"[「『《“\"【（(]([^「」『』《》“”\"【】（）()\n]{2,24})[」』》”\"】）)]")
_BELONGS = re.compile(
    r"([\u3400-\u9fff\u30a0-\u30ff]{2,12}?)(?=[的はをがのに])|([\uac00-\ud7af]{2,12})(?=[의은는이가을를에])"
)
_CAPITAL = re.compile(r"(?<=[\w,;:] )[^\W\d_a-z][\w'’-]{1,30}")


def names_of(question: str) -> list[str]:
    """Return the terms of the names in a question; an empty list if its script does not mark names."""
    quotations = _QUOTED.findall(question)
    possessors = [
        before_chinese_particle or before_korean_particle
        for before_chinese_particle, before_korean_particle in _BELONGS.findall(question)
    ]
    capitalized = [word for word in _CAPITAL.findall(question) if word[0].isupper()]
    return terms(" ".join([*quotations, *possessors, *capitalized]))


def places(term: str, plain: str) -> Iterator[int]:
    """Yield the positions in an unaccented text where a word begins with `term`."""
    is_cjk, is_whole, length = _CJK.match(term), len(term) <= _SHORT or term.isdigit(), len(term)
    at = plain.find(term)
    while at >= 0:
        end = at + length
        inside = at > 0 and plain[at - 1].isalnum()
        if is_cjk or not (inside or (is_whole and _continues_after(plain, end))):
            yield at
        at = plain.find(term, end)


def _continues_after(plain: str, end: int) -> bool:
    """Return True if the word continues after `end` with more than a plural s."""
    end += plain.startswith("s", end)
    return plain[end : end + 1].isalnum()


class Passage(NamedTuple):
    """A part of a text.

    text: index of the text among those searched.
    start, end: in characters.
    """

    text: int
    start: int
    end: int


class SearchedMessage(NamedTuple):
    """A message that can be searched.

    position: of the message in the body.
    who: its role, and the tool of a result.
    """

    position: int
    who: str
    text: str


Found = Mapping[str, Mapping[Passage, int]]
"""term -> passage -> number of occurrences."""


class Index:
    """The texts of a conversation to search. Only the ends of passages are cached."""

    def __init__(self, utterances: Iterable[Utterance]) -> None:
        """Create an index of these utterances."""
        self.messages = [
            SearchedMessage(
                utterance.position,
                " ".join(f"{utterance.role} ({utterance.tool})".split()) if utterance.tool else utterance.role,
                utterance.text,
            )
            for utterance in utterances
            if utterance.role in ("user", "assistant", "tool")
            and utterance.voice not in _UNASKED
            and utterance.text.strip()
        ]
        plain = [without_accents(utterance.text) for utterance in self.messages]
        self._blocks = [*join_blocks(plain)]
        self._starts = [*accumulate((len(text) + 1 for text in plain), initial=0)][:-1]
        self._passages_by_text: dict[int, list[Passage]] = {}
        self.count = sum(max(1, len(text) // _USUAL) for text in plain)

    @property
    def size(self) -> int:
        """Return the number of characters it holds."""
        return sum(map(len, self._blocks))

    def text_of(self, passage: Passage) -> str:
        """Return the text of a passage in one line."""
        return " ".join(self.messages[passage.text].text[passage.start : passage.end].split())

    def find(self, wanted: Iterable[str]) -> Found:
        """Return the passages with the rarest of these terms."""
        most = 2 * _COMMON * self.count + 20
        counted = sorted((sum(block.count(term) for block in self._blocks), term) for term in set(wanted))
        found = {}
        for term in [term for times, term in counted if 0 < times <= most][:_MOST_TERMS]:
            passages: dict[Passage, int] = defaultdict(int)
            for at in self._places(term):
                passages[self._passage_at(at)] += 1
            if passages:
                found[term] = passages
        return found

    def rank(
        self, found: Found, without: Collection[Passage] = (), names: Collection[str] = ()
    ) -> list[tuple[float, Passage]]:
        """Return passages with any of these terms and their neighbours, the best first.

        A name also counts for some later messages if they contain another term.
        """
        scores: dict[Passage, float] = defaultdict(float)
        for passages in found.values():
            weight = self.weight(len(passages))
            for passage, times in passages.items():
                scores[passage] += weight * _saturate(times, passage.end - passage.start) * self._share(passage)
        name_scores = self._scores_after_names({term: passages for term, passages in found.items() if term in names})
        for passage in scores.keys() & name_scores.keys():
            scores[passage] += name_scores[passage]
        ranked = [(score, passage) for passage, score in self._spread(scores).items() if passage not in without]
        return sorted(ranked, key=lambda pair: (-pair[0], pair[1]))

    def _scores_after_names(self, found: Found) -> dict[Passage, float]:
        """Return the scores that passages get from names in the messages before them."""
        shares: dict[Passage, float] = {}
        by_text: dict[int, float] = defaultdict(float)
        for passages in found.values():
            weight = self.weight(len(passages))
            for number in {passage.text for passage in passages}:
                by_text[number] += weight
        for number, weight in by_text.items():
            for share, later in zip(_FOLLOWING, range(number + 1, len(self.messages)), strict=False):
                for passage in self.passages(later):
                    shares[passage] = max(shares.get(passage, 0.0), share * weight)
        return shares

    def holds(self, term: str) -> bool:
        """Return True if any text contains the term."""
        return any(term in block for block in self._blocks)

    def _places(self, term: str) -> Iterator[int]:
        start = 0
        for block in self._blocks:
            yield from (start + at for at in places(term, block))
            start += len(block) + 1

    def weight(self, passages: int) -> float:
        """Return the weight of a term that occurs in `passages` passages."""
        return log(1 + (max(self.count, passages) - passages + 0.5) / (passages + 0.5))

    def _share(self, passage: Passage) -> float:
        message = self.messages[passage.text]
        return _OF_LONG_TEXT if message.who != "user" and len(message.text) > _LONG_TEXT else 1.0

    def _spread(self, scores: dict[Passage, float]) -> dict[Passage, float]:
        """Return the scores, with a share of each added to the neighbours of its passage."""
        spread = dict(scores)
        for passage, score in scores.items():
            for neighbour, share in self._neighbours(passage):
                spread[neighbour] = max(spread.get(neighbour, 0.0), scores.get(neighbour, 0.0) + share * score)
        return spread

    def _neighbours(self, passage: Passage) -> Iterator[tuple[Passage, float]]:
        own, (number, start, end) = self.passages(passage.text), passage
        at = own.index(passage)
        yield from ((own[i], _SAME_MESSAGE) for i in (at - 1, at + 1) if 0 <= i < len(own))
        if number + 1 < len(self.messages):
            reply_share = _ANSWER if QUESTION_MARK.search(self.messages[number].text, start, end) else _BEHIND
            yield from (
                (neighbour, reply_share * self._share(neighbour)) for neighbour in self.passages(number + 1)[:2]
            )
        if number:
            yield from ((neighbour, _BEFORE * self._share(neighbour)) for neighbour in self.passages(number - 1)[-2:])

    def passages(self, number: int) -> list[Passage]:
        """Return the passages of the text with this index."""
        passages = self._passages_by_text.get(number)
        if passages is None:
            passages = self._passages_by_text[number] = list(_split_passages(number, self.messages[number].text))
        return passages

    def _passage_at(self, at: int) -> Passage:
        number = bisect_right(self._starts, at) - 1
        passages = self.passages(number)
        index = bisect_right(passages, at - self._starts[number], key=lambda passage: passage.start)
        return passages[max(0, index - 1)]


def join_blocks(texts: Iterable[str], most: int = _BLOCK) -> Iterator[str]:
    """Yield the texts joined by line ends in blocks of at most `most` characters.

    A longer text is a block of its own and is not copied: copying would block all threads.
    """
    block: list[str] = []
    room_left = most
    for text in texts:
        if block and len(text) > room_left:
            yield "\n".join(block)
            block, room_left = [], most
        block.append(text)
        room_left -= len(text) + 1
    yield "\n".join(block)


def _saturate(times: int, length: int) -> float:
    slack = _SATURATION * (1 - _LENGTH + _LENGTH * length / _USUAL)
    return times * (_SATURATION + 1) / (times + slack)


def _split_passages(number: int, text: str) -> Iterator[Passage]:
    if len(text) <= LONGEST:
        yield Passage(number, 0, len(text))
        return
    start = end = 0
    for stop in (*(match.end() for match in _END.finditer(text)), len(text)):
        if end > start and (end - start >= _SHORTEST or stop - start > LONGEST):
            yield Passage(number, start, end)
            start = end
        while stop - start > LONGEST:
            cut = text.rfind(" ", start + LONGEST // 2, start + LONGEST) + 1 or start + LONGEST
            yield Passage(number, start, cut)
            start = cut
        end = stop
    if end > start:
        yield Passage(number, start, end)
