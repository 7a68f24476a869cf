"""Whom a sentence directs: whether a word such as "never" gives an order or tells of somebody, and for how long."""

from collections.abc import Sequence

from policies.ledger import words

# A clause is looked back on, and an imperative looked into, for so many words.
_CLAUSE = 24
# "End every short reply": as many words may stand between the quantifier and what comes again.
_NEAR = 3


def before(lowered: Sequence[str], kinds: Sequence[str], place: int) -> list[str]:
    """The words of its clause that stand before it, without those that open an order."""
    start = max(0, place - _CLAUSE)
    if "stop" in kinds[start:place] or not words.BREAKS.isdisjoint(lowered[start:place]):
        breaks = (i for i in range(place, start, -1) if kinds[i - 1] == "stop" or lowered[i - 1] in words.BREAKS)
        start = next(breaks)
    return [word for word in lowered[start:place] if word not in words.OPENERS]


def stands(lowered: Sequence[str], kinds: Sequence[str]) -> bool:
    """Whether it is an imperative for good: "reply in bullet points", "before you answer, restate the question"."""
    if words.RECURRING.isdisjoint(lowered):
        return False
    start = _head(lowered, 0)
    if start < len(lowered) and lowered[start] in words.CONDITIONS:
        end = kinds.index("stop", start) if "stop" in kinds[start:] else len(lowered)
        order = _head(lowered, end + 1)
        recurring = "you" in lowered[start:end] or any(_recurs(lowered, place) for place in range(start, end))
        return recurring and _imperative(lowered, order)
    if not _imperative(lowered, start):
        return False
    if lowered[start] in words.REPLYING and _in_manner(lowered, start + 1):
        return True
    return any(_recurs(lowered, place) for place in range(start + 1, min(len(lowered), start + _CLAUSE)))


def _head(lowered: Sequence[str], start: int) -> int:
    while start < len(lowered) and (lowered[start] in words.OPENERS or lowered[start] in ",，"):
        start += 1
    return start


def _imperative(lowered: Sequence[str], place: int) -> bool:
    if place >= len(lowered) or lowered[place] not in words.IMPERATIVES:
        return False
    return place + 1 == len(lowered) or lowered[place + 1] not in words.BEING


def _in_manner(lowered: Sequence[str], place: int) -> bool:
    if place < len(lowered) and lowered[place] in ("me", "us"):
        place += 1
    return place < len(lowered) and lowered[place] in words.MANNERS


def _recurs(lowered: Sequence[str], place: int) -> bool:
    """ "every reply", "each new file", "your answers", "responses", "dates as …": what comes again and again."""
    word = lowered[place]
    if word in ("every", "each", "your"):
        again = words.TURNS if place and lowered[place - 1] == "for" else words.THINGS
        return any(words.stem(other) in again for other in lowered[place + 1 : place + 1 + _NEAR])
    if word in words.MEASURES:
        return place + 1 < len(lowered) and lowered[place + 1] in words.MANNERS
    return word in words.REPLIES and lowered[place - 1] not in words.PARTS
