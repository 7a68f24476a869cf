"""Parsing of a sentence: its words as concepts, its values with their kinds, and cues for what it does."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from policies.statements import words
from policies.statements.scanning import Token, scan
from policies.statements.words import Cue

Value = tuple[str, str]
"""A value's kind and its text in lower case."""

_ENDINGS = "了的吧啊呢"
# The longest text after a Chinese verb that counts as a value.
_LONGEST_TAIL = 10
# With one of these words in the sentence, a hyphenated word is a name: "call it atlas-api".
_NAMING = frozenset({"call", "called", "name", "named", "rename", "renamed"})
_CALLING = frozenset({"called", "named"})
# Kinds of names that identify one thing, whatever else two sentences share.
IDENTIFYING = frozenset({"path", "code", "quoted", "host", "tag", "url"})
CODE = frozenset({"code", "path"})
"""Kinds of values of which a task has many."""
_OWNING = frozenset({"is", "now", "owns", "takes", "took", "handles"})
# Maximum words to look back in a clause, and to look ahead in an imperative.
_CLAUSE = 24
# "End every short reply": maximum words between the quantifier and the recurring thing.
_NEAR = 3


@dataclass(slots=True)
class Reading:
    """The result of parsing a sentence. Each item has the index of its token.

    closed: True after the clause with the value, as in "never reveal k-22; the old code is retired".
    free:   True if the text after the stating word is the value, whatever it is, as in "set the log level to debug".
    stands: True for an imperative that says how to work from now on.
    about:  indexes of identifiers that are the subject, as in "parse_row must raise" and "raise in parse_row".
    behind_code: indexes of words after the last file or code, if they are not those of tokens.
    """

    words: list[tuple[int, str]] = field(default_factory=list)
    values: list[tuple[int, Value]] = field(default_factory=list)
    cues: dict[Cue, int] = field(default_factory=dict)
    about: set[int] = field(default_factory=set)
    closed: bool = False
    free: bool = False
    stands: bool = False
    behind_code: range | None = None

    def word(self, index: int, word: str) -> None:
        """Add a word unless the value's clause is over."""
        if not self.closed:
            self.words.append((index, word))

    def cue(self, cue: Cue, index: int) -> None:
        """Add a cue unless it states a value after the value's clause."""
        if not (self.closed and cue in ("states", "owns")):
            self.cues.setdefault(cue, index)


def take_apart(text: str) -> Reading:
    """Return the reading of a text of bounded length."""
    tokens = scan(text)
    return _EntityReader(tokens).read() if tokens else Reading()


class _EntityReader:
    """Reads a sentence. Each method parses what begins at an index and returns the number of tokens used."""

    __slots__ = ("_chinese", "concepts", "cueing", "kinds", "lowered", "reading", "tokens")

    def __init__(self, tokens: Sequence[Token]) -> None:
        """Create a reader of these tokens."""
        self.kinds, self.tokens, self.lowered, self.concepts, self.cueing = zip(*tokens, strict=True)
        self.reading = Reading()
        self._chinese = "chinese" in self.kinds

    def read(self) -> Reading:
        """Return the reading of all tokens."""
        reading, concepts, cueing = self.reading, self.concepts, self.cueing
        closer = self._chinese or not _CALLING.isdisjoint(self.lowered)
        index = 0
        while index < len(concepts):
            concept = concepts[index]
            if concept is None or closer:
                index += self._take(index)
            elif cueing[index] and (used := self._cues(index)):
                index += used
            else:
                if concept and not reading.closed:
                    reading.words.append((index, concept))
                index += 1
        if self._chinese:
            reading.stands = {"orders", "recurs"} <= reading.cues.keys()
        elif self.lowered[0] in words.OPENING:
            reading.stands = _stands(self.lowered, self.kinds)
        return reading

    def _take(self, index: int) -> int:
        match self.kinds[index]:
            case "word" | "code":
                return self._cues(index) or self._value_in_words(index) or self._word(index)
            case "chinese":
                _chinese(self.reading, self.tokens[index], index)
                return 1
            case "stop":
                self._stop(index)
                return 1
            case kind:
                return self._value(kind, index)

    def _at(self, index: int) -> str:
        return self.lowered[index] if 0 <= index < len(self.lowered) else ""

    def _stop(self, index: int) -> None:
        if self.tokens[index] in ":：=":
            self.reading.cue("states", index)
        if self.tokens[index] in ";；" and self.reading.values:
            self.reading.closed = True

    def _value(self, kind: str, index: int) -> int:
        """Add a value recognized by its shape. A unit after a number is part of it."""
        text = self.lowered[index].strip(words.QUOTES).rstrip(".")
        used = 1
        following = self._at(index + 1)
        if kind in ("number", "version") and following:
            if following in words.CURRENCY:
                kind, used = "money", 2
            elif words.stem(following) in words.UNITS:
                text, used = f"{text} {words.stem(following)}", 2
            elif following in words.MONTHS:
                kind, text, used = "date", f"{words.MONTHS[following]} {text}", 2
        elif kind == "host" and self.tokens[index].replace(".", "").istitle():
            kind = "name"
        if kind in IDENTIFYING and self._is_about(index):
            self.reading.about.add(index)
        self.reading.values.append((index, (kind, text)))
        return used

    def _is_about(self, index: int) -> bool:
        """Return True if the identifier is the subject: it begins the sentence, or something is "in" it."""
        if self._at(index - 1) in words.PLACING:
            return True
        if self.reading.words or self.reading.values or index + 1 >= len(self.tokens):
            return False
        return bool(self.concepts[index + 1]) or self._at(index + 1) in words.DEONTIC

    def _cues(self, index: int) -> int:
        """Add the cues that begin here. Return the length of a phrase with its own concept, else 0."""
        word, following = self.lowered[index], self._at(index + 1)
        for following_words, cue in words.CUES.get(word, ()):
            if not following_words or (following_words[0] == following and self._follow(index, following_words)):
                self.reading.cue(self._cue_after_pronoun(cue, index) if cue in ("forbids", "demands") else cue, index)
        if word in ("only", "no"):
            self._opens(word, following, index)
        if word == "to" and self.reading.words and self._changes(index):
            self.reading.cues["states"] = index
            self.reading.free = True
        return self._phrase(index) if word in words.PHRASES else 0

    def _opens(self, word: str, following: str, index: int) -> None:
        """Add the cue of "Only Alice may …" or "no calls from …" at the beginning of a sentence."""
        if self.reading.words or self.reading.values:
            return
        if (
            following[:1].isalpha()
            and following not in words.NOTHING
            and not _clause_before(self.lowered, self.kinds, index)
        ):
            self.reading.cue("only" if word == "only" else "forbids", index)

    def _phrase(self, index: int) -> int:
        word = self.lowered[index]
        for following_words, concept in words.PHRASES[word]:
            if self._follow(index, following_words):
                self.reading.word(index, concept)
                if word in words.KINDS:
                    self.reading.values.append((index, (words.KINDS[word], word)))
                return 1 + len(following_words)
        return 0

    def _changes(self, index: int) -> bool:
        return "corrects" in self.reading.cues or not words.CHANGES.isdisjoint(self.lowered[:index])

    def _follow(self, index: int, following_words: tuple[str, ...]) -> bool:
        return self.lowered[index + 1 : index + 1 + len(following_words)] == following_words

    def _cue_after_pronoun(self, cue: Cue, index: int) -> Cue:
        """Return the cue of "never", "always" and "don't" after a pronoun.

        "We don't deploy on Fridays" is a standing practice. "They always push" and "it doesn't start" only report.
        """
        previous, word = self._at(index - 1), self.lowered[index]
        lasting = word in ("never", "always")
        if previous not in words.PRONOUNS or not (lasting or (cue == "forbids" and "'" not in previous)):
            return cue
        if previous == "we":
            return cue if lasting else "standing"
        return "past"

    def _value_in_words(self, index: int) -> int:
        """Add "five hundred dollars", "May 5", "Friday" or "Rust". Return its length; 0 if there is none."""
        word = self.lowered[index]
        if word in words.NUMBERS:
            return self._number_in_words(index)
        if word in words.KINDS and (word != "go" or (index and self.tokens[index] == "Go")):
            self.reading.values.append((index, (words.KINDS[word], word)))
            return 1
        if word in words.MONTHS and (day := _day(self._at(index + 1))):
            self.reading.values.append((index, ("date", f"{words.MONTHS[word]} {day}")))
            return 2
        return 0

    def _number_in_words(self, index: int) -> int:
        end = index
        while self._at(end) in words.NUMBERS or (self._at(end) == "and" and self._at(end + 1) in words.NUMBERS):
            end += 1
        text, kind = " ".join(self.lowered[index:end]), "number"
        if self._at(end) in words.CURRENCY:
            kind, end = "money", end + 1
        elif words.stem(self._at(end)) in words.UNITS:
            text, end = f"{text} {words.stem(self._at(end))}", end + 1
        self.reading.values.append((index, (kind, text)))
        return end - index

    def _word(self, index: int) -> int:
        token, word = self.tokens[index], self.lowered[index]
        if word in words.STOP or word.removesuffix("s") in words.STOP:
            return 1
        if is_code(token):
            if self._is_about(index):
                self.reading.about.add(index)
            self.reading.values.append((index, ("code", word)))
        elif self._chinese or self._is_name(index) or self._is_named(index):
            self.reading.values.append((index, ("name", word)))
        else:
            for part in word.split("-"):
                if part and part not in words.STOP:
                    self.reading.word(index, words.concept(part))
        return 1

    def _is_named(self, index: int) -> bool:
        """Return True for a name in "called mainline" or "rename it to borealis-api"."""
        is_hyphenated_name = "-" in self.lowered[index] and not _NAMING.isdisjoint(self.lowered)
        return is_hyphenated_name or self._at(index - 1) in _CALLING

    def _is_name(self, index: int) -> bool:
        """Return True for a capitalized word, unless it only begins the sentence.

        At the beginning another capitalized word, or a word such as "is" or "owns", must follow.
        """
        token = self.tokens[index]
        base = words.stem(self.lowered[index])
        if not token[0].isupper() or base in words.CONCEPTS or base in words.WEAK:
            return False
        if index and self.tokens[index - 1] not in ":：":
            return True
        following = self.tokens[index + 1] if index + 1 < len(self.tokens) else ""
        owning = following.lower() in _OWNING and token.istitle()
        return owning or (following.istitle() and following.lower() not in words.STOP)


def _clause_before(lowered: Sequence[str], kinds: Sequence[str], index: int) -> list[str]:
    """Return the words before an index in its clause, without those that open an order."""
    start = max(0, index - _CLAUSE)
    if "stop" in kinds[start:index] or not words.BREAKS.isdisjoint(lowered[start:index]):
        breaks = (i for i in range(index, start, -1) if kinds[i - 1] == "stop" or lowered[i - 1] in words.BREAKS)
        start = next(breaks)
    return [word for word in lowered[start:index] if word not in words.OPENERS]


def _stands(lowered: Sequence[str], kinds: Sequence[str]) -> bool:
    """Return True for an imperative that applies from now on.

    "reply in bullet points", "before you answer, restate the question".
    """
    if words.RECURRING.isdisjoint(lowered):
        return False
    start = _head(lowered, 0)
    if start < len(lowered) and lowered[start] in words.CONDITIONS:
        end = kinds.index("stop", start) if "stop" in kinds[start:] else len(lowered)
        order = _head(lowered, end + 1)
        recurring = "you" in lowered[start:end] or any(_recurs(lowered, index) for index in range(start, end))
        return recurring and _imperative(lowered, order)
    if not _imperative(lowered, start):
        return False
    if lowered[start] in words.REPLYING and _in_manner(lowered, start + 1):
        return True
    return any(_recurs(lowered, index) for index in range(start + 1, min(len(lowered), start + _CLAUSE)))


def _head(lowered: Sequence[str], start: int) -> int:
    while start < len(lowered) and (lowered[start] in words.OPENERS or lowered[start] in ",，"):
        start += 1
    return start


def _imperative(lowered: Sequence[str], index: int) -> bool:
    if index >= len(lowered) or lowered[index] not in words.IMPERATIVES:
        return False
    return index + 1 == len(lowered) or lowered[index + 1] not in words.BEING


def _in_manner(lowered: Sequence[str], index: int) -> bool:
    if index < len(lowered) and lowered[index] in ("me", "us"):
        index += 1
    return index < len(lowered) and lowered[index] in words.MANNERS


def _recurs(lowered: Sequence[str], index: int) -> bool:
    """Return True for recurring things: "every reply", "each new file", "your answers", "responses", "dates as …"."""
    word = lowered[index]
    if word in ("every", "each", "your"):
        recurring_words = words.TURNS if index and lowered[index - 1] == "for" else words.THINGS
        return any(words.stem(following) in recurring_words for following in lowered[index + 1 : index + 1 + _NEAR])
    if word in words.MEASURES:
        return index + 1 < len(lowered) and lowered[index + 1] in words.MANNERS
    return word in words.REPLIES and lowered[index - 1] not in words.PARTS


def _day(word: str) -> str:
    day = word[:-2] if word[-2:] in ("st", "nd", "rd", "th") else word
    return day if day.isdigit() and len(day) <= 2 else ""


def is_code(token: str) -> bool:
    """Return True for code-like tokens: "parse_v2", "fetchAll", "ABCD-123", "a1b2c3d"."""
    if token.isalpha():
        return not token.islower() and not token.istitle() and not token.isupper()
    return any(char.isdigit() or char == "_" for char in token)


def _chinese(reading: Reading, run: str, index: int) -> None:
    """Parse a run of Chinese characters: words of the tables, and pairs of characters for everything else."""
    run_reading = Reading()
    unknown = ""
    stating = subject = 0
    for match in words.HAN.finditer(run):
        kind, text = match.lastgroup, match.group()
        if kind == "other":
            unknown += text
            continue
        _pairs(run_reading, unknown, index)
        unknown = ""
        if kind != "word":
            run_reading.values.append((index, (kind or "number", text)))
        elif _meanings(run_reading, text, index):
            stating, subject = match.end(), len(run_reading.words)
    _pairs(run_reading, unknown, index)
    tail = run[stating:].rstrip(_ENDINGS)
    if stating and 0 < len(tail) <= _LONGEST_TAIL and not run_reading.values:
        # "客户是环宇科技": the text after the verb is the value.
        del run_reading.words[subject:]
        run_reading.values.append((index, ("text", tail)))
    for _, word in run_reading.words:
        reading.word(index, word)
    reading.values += run_reading.values
    for cue in run_reading.cues:
        reading.cue(cue, index)


def _meanings(reading: Reading, text: str, index: int) -> bool:
    """Add the meanings of a word in the tables. Return True if a value follows it."""
    for meaning, name in words.LEXICON_HAN[text]:
        if meaning == "concept":
            reading.word(index, name)
        elif meaning == "kind":
            reading.values.append((index, (name, text)))
        else:
            reading.cue(words.as_cue(name), index)
    return ("cue", "states") in words.LEXICON_HAN[text]


def _pairs(reading: Reading, chars: str, index: int) -> None:
    if len(chars) == 1:
        reading.word(index, chars)
    for start in range(len(chars) - 1):
        reading.word(index, chars[start : start + 2])
