"""Quotations of covered messages before a user's message that refers to them (docs/design.md, "Recall").

A quotation depends on the covered messages, the record, and the kept messages up to its own. Later messages change
nothing, and every replica makes the same quotation.
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

# Maximum passages of a quotation, and the minimum score of one as a share of the best score.
_MOST = 12
_LEAST_SHARE = 0.25
# A term is searched for if at most this share of the passages contains it, and the sent texts fewer times than this.
_RARE = 0.03
_KNOWN = 2
# Minimum share of a question that its best passage must hold. Otherwise the question is about something new. The budget
# grows with the share, up to all of it.
_LEAST_HELD = 0.2
_ENOUGH_HELD = 0.5
# Tokens of a quotation for a small window, and the factor over the share for a large one.
_SMALL = 400
_SMALL_SHARE = 2
# Of a longer message, only the sentences that ask or refer are searched for.
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
    """The text before a message.

    tokens: of the text.
    passages: the quoted passages.
    """

    text: str
    tokens: int
    passages: tuple[Passage, ...]


def budget_for(room: int, settings: RecallSettings) -> int:
    """Return the maximum tokens of one quotation for a room of this size."""
    share = settings.budget_ratio * room
    return int(max(share, min(_SMALL, _SMALL_SHARE * share)))


def question_in(message: str) -> str:
    """Return the part of a user's message that asks for something or refers to it; empty if there is none."""
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
    """Return the quotation before this message; None if the message refers to nothing earlier.

    known: the record, and the kept messages before this one, as `without_accents` returns them.
    told: passages quoted before.
    budget: maximum tokens of the quotation.
    """
    question = question_in(message)
    wanted = terms(question)
    passages_by_term = index.find(wanted)
    if not any(_is_missing(index, term, passages, known) for term, passages in passages_by_term.items()):
        return None
    names = [name for name in names_of(question) if name in passages_by_term]
    ranked = index.rank(passages_by_term, told, names)
    share = _held_share(index, wanted, passages_by_term, ranked[0][1]) if ranked else 0.0
    if ranked and any(_is_missing(index, name, passages_by_term[name], known) for name in names):
        share = max(share, _ENOUGH_HELD)  # the named thing occurs there, however the question is worded
    if share < _LEAST_HELD:
        return None
    room = int(min(1.0, share / _ENOUGH_HELD) * budget) - count(f"{texts_for(language).recalled}\n{_CLOSING}\n\n")
    chosen = _best_within(index, ranked, room, count)
    if not chosen:
        return None
    text = "\n".join([texts_for(language).recalled, *_lines(index, chosen), _CLOSING])
    return Quotation(text, count(text), tuple(chosen))


def search_passages(index: Index, query: str, *, budget: int, count: CountTokens) -> list[str]:
    """Return the passages that a search finds, as lines, within a budget of tokens."""
    ranked = index.rank(index.find(terms(query)))
    return _lines(index, _best_within(index, ranked, budget, count))


def _held_share(index: Index, wanted: Sequence[str], passages_by_term: Found, best: Passage) -> float:
    """Return the share of a question that the best passage holds, by the weight of its terms."""
    known_terms = (term for term in wanted if term in passages_by_term or not index.holds(term))
    total = sum(index.weight(len(passages_by_term.get(term, (best,)))) for term in known_terms)
    return sum(index.weight(len(passages)) for passages in passages_by_term.values() if best in passages) / total


def _is_missing(index: Index, term: str, passages: Mapping[Passage, int], known: Sequence[str]) -> bool:
    """Return True if few passages hold the term, and the sent texts hardly contain it."""
    if len(passages) > max(_KNOWN, _RARE * index.count):
        return False
    occurrences = (at for text in known for at in places(term, text))
    return sum(1 for _ in islice(occurrences, _KNOWN)) < _KNOWN


def _best_within(
    index: Index, ranked: Sequence[tuple[float, Passage]], budget: int, count: CountTokens
) -> list[Passage]:
    """Return the best passages that fit the budget, in their order."""
    tokens_left = budget
    chosen: dict[str, Passage] = {}
    for score, passage in ranked:
        if score < _LEAST_SHARE * ranked[0][0] or len(chosen) == _MOST:
            break
        text = index.text_of(passage)
        cost = count(_line(index, [passage])) + 1
        if cost <= tokens_left and text not in chosen:
            chosen[text] = passage
            tokens_left -= cost
    return sorted(chosen.values())


def _lines(index: Index, chosen: Sequence[Passage]) -> list[str]:
    by_text: dict[int, list[Passage]] = {}
    for passage in chosen:
        by_text.setdefault(passage.text, []).append(passage)
    return [_line(index, passages) for passages in by_text.values()]


def _line(index: Index, passages: Sequence[Passage]) -> str:
    """Return the quoted passages of one message, with its position and role."""
    message = index.messages[passages[0].text]
    return escape(f"- [{message.position}] {message.who}: {''.join(_join_passages(index, passages))}")


def _join_passages(index: Index, passages: Sequence[Passage]) -> Iterator[str]:
    end = passages[0].start
    for passage in passages:
        yield "" if passage.start == end == passages[0].start else " " if passage.start == end else " … "
        yield index.text_of(passage)
        end = passage.end
