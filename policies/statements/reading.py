"""Takes a sentence apart: its words as concepts, its values with their kinds, and the cues of what it does."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from policies.statements import words
from policies.statements.scanning import Token, scan
from policies.statements.words import Cue

Value = tuple[str, str]
"""A value's kind and its text in lower case."""

_ENDINGS = "了的吧啊呢"
# The longest value that is read as what stands behind a Chinese verb.
_LONGEST_TAIL = 10
# A hyphenated word beside one of these is a name: "call it atlas-api".
_NAMING = frozenset({"call", "called", "name", "named", "rename", "renamed"})
_CALLING = frozenset({"called", "named"})
# Kinds of names that stand for one thing, whatever else is the same in two sentences.
IDENTIFYING = frozenset({"path", "code", "quoted", "host", "tag", "url"})
CODE = frozenset({"code", "path"})
"""Kinds of values of which a piece of work has many."""
_OWNING = frozenset({"is", "now", "owns", "takes", "took", "handles"})
# A clause is looked back on, and an imperative looked into, for so many words.
_CLAUSE = 24
# "End every short reply": as many words may stand between the quantifier and what comes again.
_NEAR = 3


@dataclass(slots=True)
class Reading:
    """What was found, each with the place of its token.

    closed: past the clause that holds the value, as in "never reveal k-22; the old code is retired".
    free:   what follows the stating word is the value, whatever it is, as in "set the log level to debug".
    stands: an imperative that says how to work from now on.
    about:  places of identifiers that the sentence is about, as in "parse_row must raise" and "raise in parse_row".
    behind_code: places of words that go on behind the last file or code, if they are not those of tokens.
    """

    words: list[tuple[int, str]] = field(default_factory=list)
    values: list[tuple[int, Value]] = field(default_factory=list)
    cues: dict[Cue, int] = field(default_factory=dict)
    about: set[int] = field(default_factory=set)
    closed: bool = False
    free: bool = False
    stands: bool = False
    behind_code: range | None = None

    def word(self, place: int, word: str) -> None:
        if not self.closed:
            self.words.append((place, word))

    def cue(self, cue: Cue, place: int) -> None:
        if not (self.closed and cue in ("states", "owns")):
            self.cues.setdefault(cue, place)


def take_apart(text: str) -> Reading:
    """The reading of a text of bounded length."""
    tokens = scan(text)
    return _EntityReader(tokens).read() if tokens else Reading()


class _EntityReader:
    """Every part of it reads what begins at a place and says how many tokens it took."""

    __slots__ = ("_chinese", "concepts", "cueing", "found", "kinds", "lowered", "tokens")

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.kinds, self.tokens, self.lowered, self.concepts, self.cueing = zip(*tokens, strict=True)
        self.found = Reading()
        self._chinese = "chinese" in self.kinds

    def read(self) -> Reading:
        found, concepts, cueing = self.found, self.concepts, self.cueing
        closer = self._chinese or not _CALLING.isdisjoint(self.lowered)
        place = 0
        while place < len(concepts):
            concept = concepts[place]
            if concept is None or closer:
                place += self._take(place)
            elif cueing[place] and (taken := self._cues(place)):
                place += taken
            else:
                if concept and not found.closed:
                    found.words.append((place, concept))
                place += 1
        if self._chinese:
            found.stands = {"orders", "recurs"} <= found.cues.keys()
        elif self.lowered[0] in words.OPENING:
            found.stands = _stands(self.lowered, self.kinds)
        return found

    def _take(self, place: int) -> int:
        match self.kinds[place]:
            case "word" | "code":
                return self._cues(place) or self._value_in_words(place) or self._word(place)
            case "chinese":
                _chinese(self.found, self.tokens[place], place)
                return 1
            case "stop":
                self._stop(place)
                return 1
            case kind:
                return self._value(kind, place)

    def _at(self, place: int) -> str:
        return self.lowered[place] if 0 <= place < len(self.lowered) else ""

    def _stop(self, place: int) -> None:
        if self.tokens[place] in ":：=":
            self.found.cue("states", place)
        if self.tokens[place] in ";；" and self.found.values:
            self.found.closed = True

    def _value(self, kind: str, place: int) -> int:
        """A value by its shape; a unit after a number is part of it."""
        text = self.lowered[place].strip(words.QUOTES).rstrip(".")
        taken = 1
        following = self._at(place + 1)
        if kind in ("number", "version") and following:
            if following in words.CURRENCY:
                kind, taken = "money", 2
            elif words.stem(following) in words.UNITS:
                text, taken = f"{text} {words.stem(following)}", 2
            elif following in words.MONTHS:
                kind, text, taken = "date", f"{words.MONTHS[following]} {text}", 2
        elif kind == "host" and self.tokens[place].replace(".", "").istitle():
            kind = "name"
        if kind in IDENTIFYING and self._is_about(place):
            self.found.about.add(place)
        self.found.values.append((place, (kind, text)))
        return taken

    def _is_about(self, place: int) -> bool:
        """Return True if a sentence is about the identifier at a place: it is at its head, or something is "in" it."""
        if self._at(place - 1) in words.PLACING:
            return True
        if self.found.words or self.found.values or place + 1 >= len(self.tokens):
            return False
        return bool(self.concepts[place + 1]) or self._at(place + 1) in words.DEONTIC

    def _cues(self, place: int) -> int:
        """Note the cues that begin here; the length of a phrase that is a concept of its own, else 0."""
        word, following = self.lowered[place], self._at(place + 1)
        for rest, cue in words.CUES.get(word, ()):
            if not rest or (rest[0] == following and self._follow(place, rest)):
                self.found.cue(self._meant(cue, place) if cue in ("forbids", "demands") else cue, place)
        if word in ("only", "no"):
            self._opens(word, following, place)
        if word == "to" and self.found.words and self._changes(place):
            self.found.cues["states"] = place
            self.found.free = True
        return self._phrase(place) if word in words.PHRASES else 0

    def _opens(self, word: str, following: str, place: int) -> None:
        """ "Only Alice may …", "no calls from …" at the head of a sentence."""
        if self.found.words or self.found.values:
            return
        if following[:1].isalpha() and following not in words.NOTHING and not _before(self.lowered, self.kinds, place):
            self.found.cue("only" if word == "only" else "forbids", place)

    def _phrase(self, place: int) -> int:
        word = self.lowered[place]
        for rest, concept in words.PHRASES[word]:
            if self._follow(place, rest):
                self.found.word(place, concept)
                if word in words.KINDS:
                    self.found.values.append((place, (words.KINDS[word], word)))
                return 1 + len(rest)
        return 0

    def _changes(self, place: int) -> bool:
        return "corrects" in self.found.cues or not words.CHANGES.isdisjoint(self.lowered[:place])

    def _follow(self, place: int, rest: tuple[str, ...]) -> bool:
        return self.lowered[place + 1 : place + 1 + len(rest)] == rest

    def _meant(self, cue: Cue, place: int) -> Cue:
        """Return what "never", "always" and "don't" do behind a pronoun.

        "We don't deploy on Fridays" is how it is done. "They always push" and "it doesn't start" only report.
        """
        last, word = self._at(place - 1), self.lowered[place]
        lasting = word in ("never", "always")
        if last not in words.PRONOUNS or not (lasting or (cue == "forbids" and "'" not in last)):
            return cue
        if last == "we":
            return cue if lasting else "standing"
        return "past"

    def _value_in_words(self, place: int) -> int:
        """ "five hundred dollars", "May 5", "Friday", "Rust"; 0 if there is none."""
        word = self.lowered[place]
        if word in words.NUMBERS:
            return self._number_in_words(place)
        if word in words.KINDS and (word != "go" or (place and self.tokens[place] == "Go")):
            self.found.values.append((place, (words.KINDS[word], word)))
            return 1
        if word in words.MONTHS and (day := _day(self._at(place + 1))):
            self.found.values.append((place, ("date", f"{words.MONTHS[word]} {day}")))
            return 2
        return 0

    def _number_in_words(self, place: int) -> int:
        end = place
        while self._at(end) in words.NUMBERS or (self._at(end) == "and" and self._at(end + 1) in words.NUMBERS):
            end += 1
        text, kind = " ".join(self.lowered[place:end]), "number"
        if self._at(end) in words.CURRENCY:
            kind, end = "money", end + 1
        elif words.stem(self._at(end)) in words.UNITS:
            text, end = f"{text} {words.stem(self._at(end))}", end + 1
        self.found.values.append((place, (kind, text)))
        return end - place

    def _word(self, place: int) -> int:
        token, word = self.tokens[place], self.lowered[place]
        if word in words.STOP or word.removesuffix("s") in words.STOP:
            return 1
        if is_code(token):
            if self._is_about(place):
                self.found.about.add(place)
            self.found.values.append((place, ("code", word)))
        elif self._chinese or self._is_name(place) or self._is_named(place):
            self.found.values.append((place, ("name", word)))
        else:
            for part in word.split("-"):
                if part and part not in words.STOP:
                    self.found.word(place, words.concept(part))
        return 1

    def _is_named(self, place: int) -> bool:
        """ "called mainline", "rename it to borealis-api"."""
        beside = "-" in self.lowered[place] and not _NAMING.isdisjoint(self.lowered)
        return beside or self._at(place - 1) in _CALLING

    def _is_name(self, place: int) -> bool:
        """A capitalized word in mid-sentence; the first word if another follows or it "is", "owns" something."""
        token = self.tokens[place]
        base = words.stem(self.lowered[place])
        if not token[0].isupper() or base in words.CONCEPTS or base in words.WEAK:
            return False
        if place and self.tokens[place - 1] not in ":：":
            return True
        following = self.tokens[place + 1] if place + 1 < len(self.tokens) else ""
        owning = following.lower() in _OWNING and token.istitle()
        return owning or (following.istitle() and following.lower() not in words.STOP)


def _before(lowered: Sequence[str], kinds: Sequence[str], place: int) -> list[str]:
    """Return the words of its clause that stand before it, without those that open an order."""
    start = max(0, place - _CLAUSE)
    if "stop" in kinds[start:place] or not words.BREAKS.isdisjoint(lowered[start:place]):
        breaks = (i for i in range(place, start, -1) if kinds[i - 1] == "stop" or lowered[i - 1] in words.BREAKS)
        start = next(breaks)
    return [word for word in lowered[start:place] if word not in words.OPENERS]


def _stands(lowered: Sequence[str], kinds: Sequence[str]) -> bool:
    """Return True for an imperative that holds for good.

    "reply in bullet points", "before you answer, restate the question".
    """
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


def _day(word: str) -> str:
    day = word[:-2] if word[-2:] in ("st", "nd", "rd", "th") else word
    return day if day.isdigit() and len(day) <= 2 else ""


def is_code(token: str) -> bool:
    """ "parse_v2", "fetchAll", "ABCD-123", "a1b2c3d": nothing that a dictionary holds."""
    if token.isalpha():
        return not token.islower() and not token.istitle() and not token.isupper()
    return any(char.isdigit() or char == "_" for char in token)


def _chinese(found: Reading, run: str, place: int) -> None:
    """A run of Chinese characters: words of the tables, and pairs of characters for the rest."""
    here = Reading()
    unknown = ""
    stating = subject = 0
    for match in words.HAN.finditer(run):
        kind, text = match.lastgroup, match.group()
        if kind == "other":
            unknown += text
            continue
        _pairs(here, unknown, place)
        unknown = ""
        if kind != "word":
            here.values.append((place, (kind or "number", text)))
        elif _meanings(here, text, place):
            stating, subject = match.end(), len(here.words)
    _pairs(here, unknown, place)
    tail = run[stating:].rstrip(_ENDINGS)
    if stating and 0 < len(tail) <= _LONGEST_TAIL and not here.values:
        # "客户是环宇科技": what follows the verb is the value.
        del here.words[subject:]
        here.values.append((place, ("text", tail)))
    for _, word in here.words:
        found.word(place, word)
    found.values += here.values
    for cue in here.cues:
        found.cue(cue, place)


def _meanings(here: Reading, text: str, place: int) -> bool:
    """Take in what the tables say of a word; whether what follows it is a value."""
    for what, name in words.LEXICON_HAN[text]:
        if what == "concept":
            here.word(place, name)
        elif what == "kind":
            here.values.append((place, (name, text)))
        else:
            here.cue(words.as_cue(name), place)
    return ("cue", "states") in words.LEXICON_HAN[text]


def _pairs(found: Reading, chars: str, place: int) -> None:
    if len(chars) == 1:
        found.word(place, chars)
    for start in range(len(chars) - 1):
        found.word(place, chars[start : start + 2])
