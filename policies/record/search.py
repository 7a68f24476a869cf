"""Search in what was said: the passages of a conversation that share the rarest words with a question.

Nothing is sorted into an index: the texts lie joined and in lower case, and the words of a question are looked for when
it is asked. A word is found by how it begins, so that its endings matter in no language; Chinese, Japanese and Korean,
which part no words, are found by pairs of characters.
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

# A passage is a whole sentence or line, or a message, of at most so many characters; shorter ones go with the next.
LONGEST = 300
_SHORTEST = 60
_USUAL = 150
# BM25: how soon a word said more often counts no more, and how much less a long passage counts.
_SATURATION = 1.2
_LENGTH = 0.5
# What a passage gets of the score of one beside it: an answer behind a question, anything else behind or before a
# message that was found, and the sentences around one.
_ANSWER = 0.9
_BEHIND = 0.4
_BEFORE = 0.4
_SAME_MESSAGE = 0.15
# What the messages behind one that names what a question is about get of that name's score: an answer may stand some
# turns behind it.
_FOLLOWING = (0.9, 0.8, 0.7, 0.6)
# In an answer or a result of so many characters a word says less of what it is about.
_LONG_TEXT = 600
_OF_LONG_TEXT = 0.5
# A word in more passages than this says nothing of any.
_COMMON = 0.1
_MOST_TERMS = 24
# In a user's role, what nobody comes back to.
_UNASKED = ("harness", "instructions")
# Words of so many letters stand for themselves alone: "art" is no beginning of "article".
_SHORT = 3
# Characters that are searched at once: a few milliseconds' work.
_BLOCK = 1 << 18

# How questions end, in any script.
QUESTION_MARK = re.compile("[?？؟\u037e՞፧⸮¿]")
_END = re.compile(r"[.!?…][\"'”’)\]]{0,3}\s+|[。！？；]|\n+")
_WORD = re.compile(r"[^\W_]+(?:['’._-][^\W_]+)*")
_PARTS = re.compile(r"['’._-]")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]+")
# Words of so many letters are whole as they are; longer ones lose one or two at the end, where forms differ.
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
    return lower if lower.isascii() else _accented(lambda found: _PLAIN[found[0]], lower)


# Beside what carries no subject, what questions about something earlier are asked with.
_ASKING = """
i im s t re ve ll d m many kind type sort different number total amount previous previously earlier conversation
mention mentioned discuss discussed remind recall remembered wonder wondering want wanted ago recently chat talked talk
"""
_STOP = frozenset(map(without_accents, (*STOP, *_ASKING.split())))


def _root(word: str) -> str:
    """What all forms of a word begin with, in any language, as far as its length tells."""
    if len(word) <= _ROOT or not word.isalpha():
        return word
    return word[: max(_ROOT, len(word) - (1 if len(word) <= _ROOT + 2 else 2))]


def terms(text: str) -> list[str]:
    """What a text is searched by: its words that may say something, each once."""
    plain = without_accents(text)
    found: dict[str, None] = {}
    for run in _CJK.findall(plain):
        found |= dict.fromkeys(run[at : at + 2] for at in range(max(1, len(run) - 1)))
    for word in _WORD.findall(_CJK.sub(" ", plain)):
        parts = [] if word.isalnum() else [part for part in _PARTS.split(word) if len(part) > 1]
        for each in (word.removesuffix("'s").removesuffix("’s"), *parts):
            if each not in _STOP and (len(each) > 1 or each.isdigit()):
                found[_root(each)] = None
    return list(found)


# Names in scripts without case: what is quoted or bracketed, and what stands before a particle of belonging or subject.
_QUOTED = re.compile(r"[「『《“\"【（(]([^「」『』《》“”\"【】（）()\n]{2,24})[」』》”\"】）)]")
_BELONGS = re.compile(
    r"([\u3400-\u9fff\u30a0-\u30ff]{2,12}?)(?=[的はをがのに])|([\uac00-\ud7af]{2,12})(?=[의은는이가을를에])"
)
_CAPITAL = re.compile(r"(?<=[\w,;:] )[^\W\d_a-z][\w'’-]{1,30}")


def names_of(question: str) -> list[str]:
    """The terms of what a question names; none where its script does not tell."""
    quoted = _QUOTED.findall(question)
    belongs = [one or other for one, other in _BELONGS.findall(question)]
    capital = [word for word in _CAPITAL.findall(question) if word[0].isupper()]
    return terms(" ".join([*quoted, *belongs, *capital]))


def places(term: str, plain: str) -> Iterator[int]:
    """Where words begin with it in a unaccented text."""
    is_cjk, is_whole, length = _CJK.match(term), len(term) <= _SHORT or term.isdigit(), len(term)
    at = plain.find(term)
    while at >= 0:
        end = at + length
        inside = at > 0 and plain[at - 1].isalnum()
        if is_cjk or not (inside or (is_whole and _goes_on(plain, end))):
            yield at
        at = plain.find(term, end)


def _goes_on(plain: str, end: int) -> bool:
    """Whether a word is another one than what ends here, and no plural of it."""
    end += plain.startswith("s", end)
    return plain[end : end + 1].isalnum()


class Passage(NamedTuple):
    """The part of a text, by its number among those searched, that begins and ends at these characters."""

    text: int
    start: int
    end: int


class SearchedMessage(NamedTuple):
    """position: of the message, in the body. who: its role, with the tool of a result."""

    position: int
    who: str
    text: str


Found = Mapping[str, Mapping[Passage, int]]
"""term -> passage -> how often it stands there."""


class Index:
    """What is searched; a value: searching changes nothing but what is remembered of where passages end."""

    def __init__(self, utterances: Iterable[Utterance]) -> None:
        self.said = [
            SearchedMessage(
                one.position, " ".join(f"{one.role} ({one.tool})".split()) if one.tool else one.role, one.text
            )
            for one in utterances
            if one.role in ("user", "assistant", "tool") and one.voice not in _UNASKED and one.text.strip()
        ]
        plain = [without_accents(one.text) for one in self.said]
        self._blocks = [*join_blocks(plain)]
        self._starts = [*accumulate((len(text) + 1 for text in plain), initial=0)][:-1]
        self._passages: dict[int, list[Passage]] = {}
        self.count = sum(max(1, len(text) // _USUAL) for text in plain)

    @property
    def size(self) -> int:
        """Characters that it holds."""
        return sum(map(len, self._blocks))

    def text_of(self, passage: Passage) -> str:
        return " ".join(self.said[passage.text].text[passage.start : passage.end].split())

    def find(self, wanted: Iterable[str]) -> Found:
        """Where the rarest of these terms stand."""
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
        """The passages that hold any of these terms or stand beside one that does, the best first; a name counts for
        some messages behind it, too, where they hold another term."""
        scores: dict[Passage, float] = defaultdict(float)
        for passages in found.values():
            weight = self.weight(len(passages))
            for passage, times in passages.items():
                scores[passage] += weight * _saturate(times, passage.end - passage.start) * self._share(passage)
        named = self._scores_behind_names({term: passages for term, passages in found.items() if term in names})
        for passage in scores.keys() & named.keys():
            scores[passage] += named[passage]
        ranked = [(score, passage) for passage, score in self._spread(scores).items() if passage not in without]
        return sorted(ranked, key=lambda pair: (-pair[0], pair[1]))

    def _scores_behind_names(self, found: Found) -> dict[Passage, float]:
        """What the messages behind a name get of its score, each of the nearest."""
        shares: dict[Passage, float] = {}
        by_text: dict[int, float] = defaultdict(float)
        for passages in found.values():
            weight = self.weight(len(passages))
            for number in {passage.text for passage in passages}:
                by_text[number] += weight
        for number, weight in by_text.items():
            for share, behind in zip(_FOLLOWING, range(number + 1, len(self.said)), strict=False):
                for passage in self.passages(behind):
                    shares[passage] = max(shares.get(passage, 0.0), share * weight)
        return shares

    def holds(self, term: str) -> bool:
        return any(term in block for block in self._blocks)

    def _places(self, term: str) -> Iterator[int]:
        start = 0
        for block in self._blocks:
            yield from (start + at for at in places(term, block))
            start += len(block) + 1

    def weight(self, passages: int) -> float:
        """Of a term that stands in so many passages."""
        return log(1 + (max(self.count, passages) - passages + 0.5) / (passages + 0.5))

    def _share(self, passage: Passage) -> float:
        one = self.said[passage.text]
        return _OF_LONG_TEXT if one.who != "user" and len(one.text) > _LONG_TEXT else 1.0

    def _spread(self, scores: dict[Passage, float]) -> dict[Passage, float]:
        """With a part of each score for what stands beside it."""
        spread = dict(scores)
        for passage, score in scores.items():
            for other, share in self._beside(passage):
                spread[other] = max(spread.get(other, 0.0), scores.get(other, 0.0) + share * score)
        return spread

    def _beside(self, passage: Passage) -> Iterator[tuple[Passage, float]]:
        own, (number, start, end) = self.passages(passage.text), passage
        at = own.index(passage)
        yield from ((own[i], _SAME_MESSAGE) for i in (at - 1, at + 1) if 0 <= i < len(own))
        if number + 1 < len(self.said):
            behind = _ANSWER if QUESTION_MARK.search(self.said[number].text, start, end) else _BEHIND
            yield from ((other, behind * self._share(other)) for other in self.passages(number + 1)[:2])
        if number:
            yield from ((other, _BEFORE * self._share(other)) for other in self.passages(number - 1)[-2:])

    def passages(self, number: int) -> list[Passage]:
        """Of the text with this number."""
        known = self._passages.get(number)
        if known is None:
            known = self._passages[number] = list(_passages(number, self.said[number].text))
        return known

    def _passage_at(self, at: int) -> Passage:
        number = bisect_right(self._starts, at) - 1
        passages = self.passages(number)
        found = bisect_right(passages, at - self._starts[number], key=lambda passage: passage.start)
        return passages[max(0, found - 1)]


def join_blocks(texts: Iterable[str], most: int = _BLOCK) -> Iterator[str]:
    """Texts, a line end between them, in blocks of at most so many characters, or of one longer text, which is not
    copied: that keeps all threads waiting."""
    block: list[str] = []
    left = most
    for text in texts:
        if block and len(text) > left:
            yield "\n".join(block)
            block, left = [], most
        block.append(text)
        left -= len(text) + 1
    yield "\n".join(block)


def _saturate(times: int, length: int) -> float:
    slack = _SATURATION * (1 - _LENGTH + _LENGTH * length / _USUAL)
    return times * (_SATURATION + 1) / (times + slack)


def _passages(number: int, text: str) -> Iterator[Passage]:
    if len(text) <= LONGEST:
        yield Passage(number, 0, len(text))
        return
    start = end = 0
    for stop in (*(found.end() for found in _END.finditer(text)), len(text)):
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
