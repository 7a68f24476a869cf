"""What a summary must not make up: paths, numbers and a person's will are looked for in the text that it was made from.

A sentence that is not borne out is left out. The verbs of each language are in `evidence.toml`.
"""

import re
from collections.abc import Iterator

from policies.conversation.transcript import CLOSING, OPENING
from policies.tables import read_table

# Things that stand in the source as they are: paths and hashes. A run of a path's signs is looked at once.
_NAMED = re.compile(
    r"(?<![\w./~-])/*+(?P<path>[\w.~-]++(?:/[\w.~-]++)++)|\b(?=[0-9a-f]{0,63}\d)(?=[0-9a-f]{0,63}[a-f])[0-9a-f]{7,64}\b"
)
# Numbers of two digits and more, and versions; a model may count up to nine things itself.
_NUMBER = re.compile(r"(?<![\w.,])(?<!\w:)v?(?P<number>\d{1,3}(?:[,_'\u202f ]\d{3})++(?!\d)|\d++(?:\.\d++)*+)(?![\w-])")
_GROUPING = re.compile(r"[,_'\u202f ]")
_DIGITS = re.compile(r"\d++(?:\.\d++)*+")
_LEAST_DIGITS = 2
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=\S)|(?<=[。！？；])|(?<=;)\s+")
_MOST_READ = 2_000
_UTTERANCE = re.compile(r"^\[\d{1,9}\] (?P<label>[^\n:]{1,120}):", re.MULTILINE)
_WORD = re.compile(
    r"(?=(?P<pair>[\u3400-\u9fff]{2}))|(?P<word>[\u30a1-\u30fc]{2,20}|[\uac00-\ud7a3]{2,20}|[a-z\u00df-\u024f\u0400-\u04ff]{4,40})"
)
# Words of up to three letters tell languages apart that share their letters.
_SHORT = re.compile(r"(?<![^\W\d_])[a-z\u00df-\u024f]{1,3}(?![^\W\d_])")
_OTHER_SCRIPTS = tuple(map(re.compile, ("[\u3041-\u30ff]", "[\u3400-\u9fff]", "[\uac00-\ud7a3]", "[\u0400-\u04ff]")))
# Characters of a word by which its forms are one.
_STEM = 5
# The share of a sentence's words that a person's words must have, and of short words in texts of one language.
_SHARE = 0.6
_SHORT_SHARE = 0.25
_LEAST_WORDS = 2
_TABLES = read_table("policies.record", "evidence")
_WILL = re.compile("|".join(f"(?:{row['pattern']})" for row in _TABLES["wills"]), re.IGNORECASE)
_ORDER = re.compile("|".join(f"(?:{row['pattern']})" for row in _TABLES["orders"]), re.IGNORECASE)


def proven(summary: str, source: str) -> str:
    """Return the summary without lines of made-up paths, and without sentences that the source does not bear out."""
    evidence = _Evidence(source)
    lines: list[str] = []
    for line in summary.splitlines():
        if not all(named in source for named in _named(line[:_MOST_READ])):
            continue
        sentences = [*_sentences(line)]
        kept = [sentence for sentence in sentences if evidence.bears_out(sentence)]
        if kept or not line.strip():
            lines.append(line if kept == sentences else "".join(kept).rstrip())
    return "\n".join(lines).strip()


class _Evidence:
    """The numbers of a source, and the words of a person in it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._numbers = frozenset(_DIGITS.findall(source))
        self._groups = frozenset(_DIGITS.findall(_GROUPING.sub("", source)))
        persons = _words_of_persons(source).lower()
        self._words = _stems(persons)
        self._short = frozenset(_SHORT.findall(persons))
        self._persons = " ".join(persons.split())

    def bears_out(self, sentence: str) -> bool:
        sentence = sentence[:_MOST_READ]
        if not all(self._has(found["number"]) for found in _NUMBER.finditer(sentence)):
            return False
        if _ORDER.search(sentence):
            return " ".join(sentence.lower().split()).strip("-*> .") in self._persons
        will = _WILL.search(sentence)
        if will is None or not self._is_in_a_persons_language(sentence.lower()):
            return True
        words = _stems(sentence[will.end() :])
        return len(words) < _LEAST_WORDS or len(words & self._words) >= _SHARE * len(words)

    def _is_in_a_persons_language(self, sentence: str) -> bool:
        """Return False for a summary in another language than a person's, whose words cannot be compared."""
        for script in _OTHER_SCRIPTS:
            if script.search(sentence):
                return script.search(self._persons) is not None
        short = frozenset(_SHORT.findall(sentence))
        return len(short & self._short) >= _SHORT_SHARE * len(short)

    def _has(self, number: str) -> bool:
        plain = _GROUPING.sub("", number)
        if sum(map(str.isdigit, plain)) < _LEAST_DIGITS:
            return True
        return number in self._source or plain in self._numbers or plain in self._groups


def _named(line: str) -> Iterator[str]:
    return (found["path"].rstrip("./~-") if found["path"] else found[0] for found in _NAMED.finditer(line))


def _sentences(line: str) -> Iterator[str]:
    """Return the sentences of a line with the spaces behind them."""
    start = 0
    for end in _SENTENCE_END.finditer(line):
        yield line[start : end.end()]
        start = end.end()
    yield line[start:]


def _words_of_persons(source: str) -> str:
    """Return what the source shows of persons: their messages, and what is not of the transcript."""
    before, opening, rest = source.partition(OPENING)
    if not opening:
        return source
    transcript, _, after = rest.partition(CLOSING)
    starts = [*_UTTERANCE.finditer(transcript)]
    ends = [*(found.start() for found in starts[1:]), len(transcript)]
    said = [transcript[one.end() : end] for one, end in zip(starts, ends, strict=False) if one["label"] == "user"]
    return "\n".join([before, *said, after])


def _stems(text: str) -> frozenset[str]:
    return frozenset((found["pair"] or found["word"])[:_STEM] for found in _WORD.finditer(text.lower()))
