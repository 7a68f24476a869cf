"""Parsing of a sentence into a statement: its subject, its values, and what it does (forbid, correct, ask …)."""

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
# Characters of sentences in the cache: two to four thousand typical ones. The result needs 30 to 45 bytes a character.
_REMEMBERED = 240_000

LABEL = re.compile(r"\s{0,9}(?P<label>[A-Z][A-Z _/-]{1,30}|[\u4e00-\u9fff]{2,6})\s?[:：]\s{0,9}")
_HARD_LABEL = re.compile(r"SAFETY|RULE|CONSTRAINT|LIMIT|POLICY|MUST|NEVER|安全|规则|约束|禁止|限制|红线")
# The former value in a correction. `gone` and `away` name a value or nothing ("the code is retired").
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
# Matches every lower-case text that _OLD matches, and is much cheaper.
_CHANGED = re.compile(
    r"from [^,.;]{1,60} (?:in)?to\b|instead of|rather than|replac(?:es|ing)"
    r"|no longer(?! (?:have|need|appl|work|valid|requ))|not [^,.;]{1,60},? but\b"
    r"| (?:is|has been|was) (?:now )?(?:retired|obsolete|gone|dead|deprecated|replaced)"
    r"| (?:left|quit|resigned|is on leave|is out)\b"
    r"|从|不|弃用|->|→"
)
# "The target branch is develop": the maximum words of a value that no table has.
_SHORT_VALUE = 2
_NOTHING: frozenset[Never] = frozenset()
_TELLING = {"states", "owns", "updates", "corrects"}
_QUESTION = re.compile(r"[?？]\W{0,4}\Z")

# Interchangeable kinds: the same thing may be named by a word, a code or a path.
_CLASSES = {
    **dict.fromkeys(("number", "money", "version"), "quantity"),
    **dict.fromkeys(("date", "weekday", "time"), "date"),
    **dict.fromkeys(("name", "code", "quoted", "url", "email", "path", "host", "tag", "text"), "name"),
    **dict.fromkeys(("software", "language"), "name"),
}
# Kinds of values that a summary cannot repeat without loss.
IDENTIFIERS = frozenset(
    [
        *("quoted", "url", "email", "path", "host", "tag", "code", "software"),
        *("date", "time", "weekday", "zone", "money", "version", "number"),
    ]
)


class Statement(msgspec.Struct, frozen=True, gc=False):
    """The meaning of a sentence in comparable form.

    subject:    words and concepts of its subject, without values and weak words.
    content:    all meaningful words, to detect repetition. spoken: the same in order.
    values:     the stated values. A value before the verb belongs to the subject. texts, classes: of the values.
    stated:     True if it has a word such as "is" or "=".
    puts:       True if it only says that something is a file or code: "the entry point is src/main.py".
    about:      identifiers and numbers in its subject. Statements with different ones have different subjects.
    old:        values and words that were valid before.
    permits:    True if it revokes a rule: "you may push now", "forget the rule about the changelog".
    stands:     True for an imperative that applies from now on.
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
        """Return True if it has any of these cues."""
        return not self.cues.isdisjoint(cues)

    @property
    def hard_label(self) -> bool:
        """Return True if its label marks a hard rule."""
        return bool(self.label and _HARD_LABEL.search(self.label))


# Each statement is compared with later ones, in this compaction and the next.
@memoize(characters=_REMEMBERED)
def read_statement(sentence: str) -> Statement:
    """Return the statement in a sentence. Only the beginning of a very long sentence is parsed."""
    text = sentence[:_MAX_READ]
    label = LABEL.match(text)
    unlabelled = text[label.end() :] if label else text
    if language := language_of(text):
        question = bool(_QUESTION.search(text[-8:]))
        return _statement(
            read_words(unlabelled, language), label["label"] if label else "", _NOTHING, question=question
        )
    reading = take_apart(unlabelled)
    if label and not (reading.words and (reading.values or len(reading.words) > 1)):
        reading = take_apart(text)  # "API: https://…": what looks like a label is the subject
    elif label and not label["label"].isascii():
        for cue in take_apart(label["label"]).cues:
            reading.cue(cue, 0)
    question = _is_question(unlabelled, reading)
    return _statement(reading, label["label"] if label else "", _old(unlabelled), question=question)


def _is_question(text: str, reading: Reading) -> bool:
    """Return True for a question. "Could you always use tabs?" is a request."""
    if "asks" in reading.cues and not text.isascii():
        return True
    if not _QUESTION.search(text[-8:]):
        return False
    first_word = text.split(maxsplit=1)[0].lower()
    return first_word in words.QUESTION_WORDS or first_word not in words.REQUESTS


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
    stated, subject_values = _split(reading)
    if not stated and (free := _free_value(reading)):
        stated = [free]
    values = frozenset([value for value in stated if value[1] not in old]) if stated else _NOTHING
    content = frozenset([word for _, word in reading.words])
    if subject_values:
        content |= {text for _, text in subject_values} - {text for _, text in stated}
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
        about=frozenset(
            [text for kind, text in subject_values if kind in IDENTIFYING or kind == "number"] if subject_values else ()
        ),
        old=old,
        cues=cues,
        label=label,
        question=question,
        permits=permits,
        stands=reading.stands and not question,
        forbids=not permits and ("forbids" in cues or ("nobody" in cues and "modal" in cues)),
    )


def _subject(content: frozenset[str], values: frozenset[Value], old: frozenset[str]) -> frozenset[str]:
    """Return the content without weak words, old values and words that the values imply, unless nothing is left."""
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
    """Return the stated values, and the values of the subject, which precede the verb ("server1 is down").

    A name before the verb is stated if nothing else is: "Priya Natarajan owns the pager". Without such a verb,
    identifiers of the subject and numbers before "must" belong to the subject.
    """
    at = reading.cues.get("states")
    if at is None:
        must = reading.cues.get("demands", 0)
        subject_values = [
            value
            for index, value in reading.values
            if index in reading.about or (index < must and value[0] == "number")
        ]
        return [value for _, value in reading.values if value not in subject_values], subject_values
    stated_values = [value for index, value in reading.values if index >= at]
    subject_values = [value for index, value in reading.values if index < at]
    named_values = [value for index, value in reading.values if index >= at and index in reading.about]
    if len(named_values) < len(stated_values):
        stated_values, subject_values = (
            [value for value in stated_values if value not in named_values],
            subject_values + named_values,
        )
    if not stated_values and "owns" in reading.cues:
        return [value for value in subject_values if value[0] == "name"], [
            value for value in subject_values if value[0] != "name"
        ]
    return stated_values, subject_values


def _ends_clause_with_code(reading: Reading) -> bool:
    """Return True if the clause with the last file or code of a sentence ends with it."""
    last_index = max((index for index, (kind, _) in reading.values if kind in CODE), default=-1)
    indexes_after = reading.behind_code or range(last_index + 1, last_index + 2)
    other_indexes = [index for cue, index in reading.cues.items() if cue not in _TELLING] + [
        index for index, _ in reading.words
    ]
    return last_index >= 0 and not any(index in indexes_after for index in other_indexes)


def _free_value(reading: Reading) -> Value | None:
    """Return the value of a slot in words of no table: "the next step is drafting the plan"."""
    at = reading.cues.get("states")
    if at is None:
        return None
    words_before = [word for index, word in reading.words if index < at]
    words_after = [word for index, word in reading.words if index > at]
    slot = reading.free or any(word in words.SLOTS for word in words_before)
    if not slot and not (words_before and 0 < len(words_after) <= _SHORT_VALUE and not reading.cues.keys() - _TELLING):
        return None
    reading.words[:] = [item for item in reading.words if item[0] < at]
    return ("text", " ".join(words_after)) if words_after else None
