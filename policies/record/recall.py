"""Quoting what a record stands for where a user's message comes back to it (docs/design.md, "Recall").

A quotation is a function of what is covered, of the record, and of the kept messages up to the one it stands before:
what is said later changes nothing, and every replica makes the same.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from policies.conversation.transcript import CountTokens, escape
from policies.record.search import QUESTION_MARK, Found, Index, Passage, names_of, places, terms, without_accents
from policies.record.texts import Language, texts_for
from policies.settings import RecallSettings
from policies.statements.words import QUESTION_WORDS

# Passages that are quoted at once, and what one must score of the best one's.
_MOST = 12
_LEAST_SHARE = 0.25
# A term in at most this share of the passages is worth a search, if it stands fewer times than this in what is sent.
_RARE = 0.03
_KNOWN = 2
# The share of a question that its best passage must hold: elsewhere a question is about something new. The less it
# holds, the less is quoted; from so much on, all that the budget takes.
_LEAST_HELD = 0.2
_ENOUGH_HELD = 0.5
# Tokens that a quotation may take on a small window, and how much more of it than of a large one.
_SMALL = 400
_SMALL_SHARE = 2
# Of a longer message only the sentences that ask or refer are searched for.
_SHORT_MESSAGE = 400
_LONGEST_MESSAGE = 20_000

_SENTENCE = re.compile(r"(?<=[.!?…;。！？；])\s*|\n+")
_OPENERS = "and|so|but|then|ok(?:ay)?|well|hey|hi|also|btw"
_REFERS = (
    "remember|recall|remind|forgot(?:ten)?|again|earlier|previous(?:ly)?|before|back (?:to|then)|last time"
    "|original(?:ly)?|as (?:usual|always)|once more|tell me|give me"
    "|(?:you|we|i)(?: had| have|'ve)? (?:also )?(?:said|told|mentioned|discussed|talked|decided|agreed|wrote)"
    r"|same (?:\w+ )?as"
)
_ENGLISH = re.compile(rf"\A\W*(?:(?:{_OPENERS})\W+)?(?:{'|'.join(sorted(QUESTION_WORDS))})\b|\b(?:{_REFERS})\b")
_CHINESE = re.compile(
    "吗|呢|什么|多少|哪个|哪里|哪些|哪位|几点|谁|为什么|怎么|如何|是否|记得|回忆|之前|以前|刚才|上次|先前|前面|早些|再次|再说"
    "|提到|提过|说过|讲过|讨论过|告诉过|原来|当初|照旧|忘了"
)

_CLOSING = "</recalled>"


@dataclass(frozen=True, slots=True)
class Quotation:
    """What stands before a message. tokens: of the text. passages: what is quoted in it."""

    text: str
    tokens: int
    passages: tuple[Passage, ...]


def budget_for(room: int, settings: RecallSettings) -> int:
    """Tokens that one quotation may take of a room of so many."""
    share = settings.budget_ratio * room
    return int(max(share, min(_SMALL, _SMALL_SHARE * share)))


def question_in(message: str) -> str:
    """What of a user's message asks for something, or refers to it; empty where nothing does."""
    message = message[:_LONGEST_MESSAGE]
    asking = [sentence for sentence in _SENTENCE.split(message) if sentence and _asks(sentence)]
    if not asking:
        return ""
    return message if len(message) <= _SHORT_MESSAGE else " ".join(asking)


def _asks(sentence: str) -> bool:
    plain = without_accents(sentence)
    return any(pattern.search(plain) for pattern in (QUESTION_MARK, _CHINESE, _ENGLISH))


def quotation(
    index: Index,
    message: str,
    known: Sequence[str],
    told: Collection[Passage],
    *,
    language: Language,
    budget: int,
    count: CountTokens,
) -> Quotation | None:
    """What stands before this message; None where it comes back to nothing.

    known: the record, and the kept messages before this one, as `without_accents` returns them. told: what was
    quoted before. budget: tokens that a quotation may take.
    """
    question = question_in(message)
    wanted = terms(question)
    found = index.find(wanted)
    if not any(_is_missing(index, term, passages, known) for term, passages in found.items()):
        return None
    names = [name for name in names_of(question) if name in found]
    ranked = index.rank(found, told, names)
    held = _held_share(index, wanted, found, ranked[0][1]) if ranked else 0.0
    if ranked and any(_is_missing(index, name, found[name], known) for name in names):
        held = max(held, _ENOUGH_HELD)  # what it is about stands there, however it is asked
    if held < _LEAST_HELD:
        return None
    room = int(min(1.0, held / _ENOUGH_HELD) * budget) - count(f"{texts_for(language).recalled}\n{_CLOSING}\n\n")
    chosen = _within(index, ranked, room, count)
    if not chosen:
        return None
    text = "\n".join([texts_for(language).recalled, *_lines(index, chosen), _CLOSING])
    return Quotation(text, count(text), tuple(chosen))


def found_for(index: Index, query: str, *, budget: int, count: CountTokens) -> list[str]:
    """The passages that a search for these words finds, as lines, within a budget of tokens."""
    ranked = index.rank(index.find(terms(query)))
    return _lines(index, _within(index, ranked, budget, count))


def _held_share(index: Index, wanted: Sequence[str], found: Found, best: Passage) -> float:
    """The share of a question, by the weight of its terms, that the best passage holds: little of what is new."""
    said = (term for term in wanted if term in found or not index.holds(term))
    whole = sum(index.weight(len(found.get(term, (best,)))) for term in said)
    return sum(index.weight(len(passages)) for passages in found.values() if best in passages) / whole


def _is_missing(index: Index, term: str, passages: Mapping[Passage, int], known: Sequence[str]) -> bool:
    """Return True if few passages hold the term, and what is sent anyway hardly does."""
    if len(passages) > max(_KNOWN, _RARE * index.count):
        return False
    in_known = (at for text in known for at in places(term, text))
    return sum(1 for _ in islice(in_known, _KNOWN)) < _KNOWN


def _within(index: Index, ranked: Sequence[tuple[float, Passage]], budget: int, count: CountTokens) -> list[Passage]:
    """The best that fit, in their order."""
    left = budget
    chosen: dict[str, Passage] = {}
    for score, passage in ranked:
        if score < _LEAST_SHARE * ranked[0][0] or len(chosen) == _MOST:
            break
        text = index.text_of(passage)
        cost = count(_line(index, [passage])) + 1
        if cost <= left and text not in chosen:
            chosen[text] = passage
            left -= cost
    return sorted(chosen.values())


def _lines(index: Index, chosen: Sequence[Passage]) -> list[str]:
    by_text: dict[int, list[Passage]] = {}
    for passage in chosen:
        by_text.setdefault(passage.text, []).append(passage)
    return [_line(index, passages) for passages in by_text.values()]


def _line(index: Index, passages: Sequence[Passage]) -> str:
    """What one message said, with where it stands and who said it."""
    said = index.said[passages[0].text]
    return escape(f"- [{said.position}] {said.who}: {''.join(_join_passages(index, passages))}")


def _join_passages(index: Index, passages: Sequence[Passage]) -> Iterator[str]:
    end = passages[0].start
    for passage in passages:
        yield "" if passage.start == end == passages[0].start else " " if passage.start == end else " … "
        yield index.text_of(passage)
        end = passage.end
