"""Reads a sentence once: what it is about, which values it holds, what it does (forbid, correct, ask …)."""

import re
from collections.abc import Iterator
from typing import Never

import msgspec

from policies.memo import memoize
from policies.statements import words
from policies.statements.foreign import language_of, read_words
from policies.statements.reading import CODE, IDENTIFYING, Reading, Value, take_apart
from policies.statements.words import Cue

_MAX_READ = 600
# Of sentences: two to four thousand usual ones. What is read of a character takes 30 to 45 bytes.
_REMEMBERED = 240_000

LABEL = re.compile(r"\s{0,9}(?P<label>[A-Z][A-Z _/-]{1,30}|[\u4e00-\u9fff]{2,6})\s?[:：]\s{0,9}")
_HARD_LABEL = re.compile(r"SAFETY|RULE|CONSTRAINT|LIMIT|POLICY|MUST|NEVER|安全|规则|约束|禁止|限制|红线")
# What a correction says held before; `gone` and `away` name a value or nothing ("the code is retired").
_OLD = re.compile(
    r"\bfrom (?P<source>[^,.;]{1,60}?) (?:in)?to\b"
    r"|\b(?:instead of|rather than|replac(?:es|ing)"
    r"|no longer(?! (?:have|need|appl|work|valid|requ))(?: be| use| at| in)?) (?P<instead>[^,.;]{1,60})"
    r"|\bnot (?P<but>[^,.;]{1,60}?),? but\b"
    r"|(?<![^\s,;:])(?P<gone>[^\s,;:]{1,60}) (?:is|has been|was) (?:now )?"
    r"(?:retired|obsolete|gone|dead|deprecated|replaced)"
    r"|(?:\A|[,.;] )(?P<away>[^,.;:]{1,40}?) (?:left|quit|resigned|is on leave|is out)\b"
    r"|从\s{0,3}(?P<origin>[^，。；]{1,40}?)\s{0,3}(?:改成|改为|换成|换到|迁移到|移到|搬到|调整为|变更为)"
    r"|(?:不再使用|不再用|不再是|不再|不是|不要|不用|弃用)\s{0,3}(?P<other>[^，。；]{1,40})[，,；](?=.{0,12}(?:改|换|而是|用))"
    r"|(?<![^\s,;:])(?P<arrow>[^\s,;:]{1,60})\s?(?:->|→)",
    re.IGNORECASE,
)
# Found in every text that _OLD matches, in lower case; looking for it is much cheaper.
_CHANGED = re.compile(
    r"from [^,.;]{1,60} (?:in)?to\b|instead of|rather than|replac(?:es|ing)"
    r"|no longer(?! (?:have|need|appl|work|valid|requ))|not [^,.;]{1,60},? but\b"
    r"| (?:is|has been|was) (?:now )?(?:retired|obsolete|gone|dead|deprecated|replaced)"
    r"| (?:left|quit|resigned|is on leave|is out)\b"
    r"|从|不|弃用|->|→"
)
# "The target branch is develop": as many words as a value in words of no table may have.
_SHORT_VALUE = 2
_NOTHING: frozenset[Never] = frozenset()
_TELLING = {"states", "owns", "updates", "corrects"}
_QUESTION = re.compile(r"[?？]\W{0,4}\Z")

# Kinds that stand for each other: the same thing may be named by a word, a code or a path.
_CLASSES = {
    **dict.fromkeys(("number", "money", "version"), "quantity"),
    **dict.fromkeys(("date", "weekday", "time"), "date"),
    **dict.fromkeys(("name", "code", "quoted", "url", "email", "path", "host", "tag", "text"), "name"),
    **dict.fromkeys(("software", "language"), "name"),
}
# Kinds that cannot be told again without loss.
IDENTIFIERS = frozenset(
    [
        *("quoted", "url", "email", "path", "host", "tag", "code", "software"),
        *("date", "time", "weekday", "zone", "money", "version", "number"),
    ]
)


class Statement(msgspec.Struct, frozen=True, gc=False):
    """What a sentence says, in comparable form.

    subject:    words and concepts it is about, without values and weak words.
    content:    all words that say anything; for telling repetition. spoken: the same in order.
    values:     what it states; a value before the verb belongs to the subject. texts, classes: theirs.
    stated:     whether it has a word such as "is" or "=".
    puts:       whether it says that something is a file or code, and no more: "the entry point is src/main.py".
    about:      identifiers and numbers among what it is about: two sentences with others are about different things.
    old:        values and words that it says held before.
    permits:    takes a rule back: "you may push now", "forget the rule about the changelog".
    stands:     an imperative that holds from now on.
    """

    subject: frozenset[str]
    content: frozenset[str]
    spoken: tuple[str, ...]
    values: frozenset[Value]
    texts: frozenset[str]
    classes: frozenset[str]
    stated: bool
    puts: bool
    about: frozenset[str]
    old: frozenset[str]
    cues: frozenset[Cue]
    label: str
    question: bool
    permits: bool
    forbids: bool
    stands: bool = False

    def has(self, *cues: Cue) -> bool:
        return not self.cues.isdisjoint(cues)

    @property
    def hard_label(self) -> bool:
        return bool(self.label and _HARD_LABEL.search(self.label))


# What was read is compared with what follows, in this compaction and the next.
@memoize(characters=_REMEMBERED)
def read_statement(sentence: str) -> Statement:
    """The reading of one sentence; of a very long one, of its beginning."""
    text = sentence[:_MAX_READ]
    found = LABEL.match(text)
    rest = text[found.end() :] if found else text
    if language := language_of(text):
        question = bool(_QUESTION.search(text[-8:]))
        return _statement(read_words(rest, language), found["label"] if found else "", _NOTHING, question=question)
    reading = take_apart(rest)
    if found and not (reading.words and (reading.values or len(reading.words) > 1)):
        reading = take_apart(text)  # "API: https://…": what looks like a label is the subject
    elif found and not found["label"].isascii():
        for cue in take_apart(found["label"]).cues:
            reading.cue(cue, 0)
    question = _is_question(rest, reading)
    return _statement(reading, found["label"] if found else "", _old(rest), question=question)


def _is_question(text: str, reading: Reading) -> bool:
    """ "Could you always use tabs?" asks for something and is none."""
    if "asks" in reading.cues and not text.isascii():
        return True
    if not _QUESTION.search(text[-8:]):
        return False
    first = text.split(maxsplit=1)[0].lower()
    return first in words.QUESTION_WORDS or first not in words.REQUESTS


def _old(text: str) -> frozenset[str]:
    if not _CHANGED.search(text.lower()):
        return frozenset()
    return frozenset(
        word
        for match in _OLD.finditer(text)
        for group, part in match.groupdict().items()
        if part
        for word in _names_in(part, only_values=group in ("gone", "away"))
    )


def _names_in(text: str, *, only_values: bool) -> Iterator[str]:
    reading = take_apart(text)
    yield from (value for _, (_, value) in reading.values)
    if not only_values:
        yield from (word for _, word in reading.words)
        yield from text.lower().split()


def _statement(reading: Reading, label: str, old: frozenset[str], *, question: bool) -> Statement:
    stated, before = _split(reading)
    if not stated and (free := _free_value(reading)):
        stated = [free]
    values = frozenset([value for value in stated if value[1] not in old]) if stated else _NOTHING
    content = frozenset([word for _, word in reading.words])
    if before:
        content |= {text for _, text in before} - {text for _, text in stated}
    cues = frozenset(reading.cues)
    permits = "only" not in cues and ("permits" in cues or "retracts" in cues)
    return Statement(
        subject=_subject(content, values, old),
        content=content,
        spoken=tuple([word for _, word in reading.words]),
        values=values,
        texts=frozenset([text for _, text in values]) if values else _NOTHING,
        classes=frozenset([_CLASSES.get(kind, kind) for kind, _ in values]) if values else _NOTHING,
        stated="states" in cues,
        puts="states" in cues and _ends_clause_with_code(reading),
        about=frozenset([text for kind, text in before if kind in IDENTIFYING or kind == "number"] if before else ()),
        old=old,
        cues=cues,
        label=label,
        question=question,
        permits=permits,
        stands=reading.stands and not question,
        forbids=not permits and ("forbids" in cues or ("nobody" in cues and "modal" in cues)),
    )


def _subject(content: frozenset[str], values: frozenset[Value], old: frozenset[str]) -> frozenset[str]:
    """The content without weak words, old values and what the values say by themselves, if anything is left."""
    subject = content - words.WEAK or (_NOTHING if values else content)
    if not (values or old):
        return subject
    for kind, _ in values:
        if kind == "zone":
            subject = subject | {"timezone"}
        if kind in words.IMPLIED:
            subject = subject - words.IMPLIED[kind] or subject
    return subject - old or subject


def _split(reading: Reading) -> tuple[list[Value], list[Value]]:
    """The values that are stated, and those before the verb, which belong to the subject ("server1 is down").

    A name before it is stated if nothing else is: "Priya Natarajan owns the pager". Without such a verb, identifiers
    that the sentence is about belong to the subject, and numbers before "must".
    """
    at = reading.cues.get("states")
    if at is None:
        must = reading.cues.get("demands", 0)
        before = [
            value
            for place, value in reading.values
            if place in reading.about or (place < must and value[0] == "number")
        ]
        return [value for _, value in reading.values if value not in before], before
    after = [value for place, value in reading.values if place >= at]
    before = [value for place, value in reading.values if place < at]
    about = [value for place, value in reading.values if place >= at and place in reading.about]
    if len(about) < len(after):
        after, before = [value for value in after if value not in about], before + about
    if not after and "owns" in reading.cues:
        return [value for value in before if value[0] == "name"], [value for value in before if value[0] != "name"]
    return after, before


def _ends_clause_with_code(reading: Reading) -> bool:
    """Return True if the clause with the last file or code of a sentence ends with it."""
    last = max((place for place, (kind, _) in reading.values if kind in CODE), default=-1)
    behind = reading.behind_code or range(last + 1, last + 2)
    said = [place for cue, place in reading.cues.items() if cue not in _TELLING] + [place for place, _ in reading.words]
    return last >= 0 and not any(place in behind for place in said)


def _free_value(reading: Reading) -> Value | None:
    """What a slot is filled with, in words of no table: "the next step is drafting the plan"."""
    at = reading.cues.get("states")
    if at is None:
        return None
    before = [word for place, word in reading.words if place < at]
    after = [word for place, word in reading.words if place > at]
    slot = reading.free or any(word in words.SLOTS for word in before)
    if not slot and not (before and 0 < len(after) <= _SHORT_VALUE and not reading.cues.keys() - _TELLING):
        return None
    reading.words[:] = [item for item in reading.words if item[0] < at]
    return ("text", " ".join(after)) if after else None
