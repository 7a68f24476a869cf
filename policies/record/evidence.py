"""Removal of claims in a summary without evidence: paths, numbers and a person's wishes must occur in its source.

A sentence without evidence is left out. The verbs of each language are in `evidence.toml`.
"""

import re
from collections.abc import Iterator

from policies.conversation.transcript import CLOSING, OPENING
from policies.tables import read_table

# Names that must occur in the source verbatim: paths and hashes. Each run of path characters is matched once.
_NAMED = re.compile(
    r"(?<![\w./~-])/*+(?P<path>[\w.~-]++(?:/[\w.~-]++)++)|\b(?=[0-9a-f]{0,63}\d)(?=[0-9a-f]{0,63}[a-f])[0-9a-f]{7,64}\b"
)
# Numbers of at least two digits, and versions. A model may count up to nine things itself.
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
# Words of up to three letters distinguish languages that share an alphabet.
_SHORT = re.compile(r"(?<![^\W\d_])[a-z\u00df-\u024f]{1,3}(?![^\W\d_])")
_OTHER_SCRIPTS = tuple(map(re.compile, ("[\u3041-\u30ff]", "[\u3400-\u9fff]", "[\uac00-\ud7a3]", "[\u0400-\u04ff]")))
# Words are compared by this many first characters.
_STEM = 5
# Minimum shares: of a sentence's words that must occur in a person's words, and of short words for the same language.
_SHARE = 0.6
_SHORT_SHARE = 0.25
_LEAST_WORDS = 2
_TABLES = read_table("policies.record", "evidence")
_WILL = re.compile("|".join(f"(?:{row['pattern']})" for row in _TABLES["wills"]), re.IGNORECASE)
_ORDER = re.compile("|".join(f"(?:{row['pattern']})" for row in _TABLES["orders"]), re.IGNORECASE)


def proven(summary: str, source: str) -> str:
    """Return the summary without lines that name invented paths, and without sentences that lack evidence."""
    evidence = _Evidence(source)
    lines: list[str] = []
    for line in summary.splitlines():
        if not all(name in source for name in _names_in(line[:_MOST_READ])):
            continue
        sentences = [*_sentences(line)]
        proven_sentences = [sentence for sentence in sentences if evidence.has_evidence_for(sentence)]
        if proven_sentences or not line.strip():
            lines.append(line if proven_sentences == sentences else "".join(proven_sentences).rstrip())
    return "\n".join(lines).strip()


class _Evidence:
    """The numbers of a source, and the words of persons in it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._numbers = frozenset(_DIGITS.findall(source))
        self._groups = frozenset(_DIGITS.findall(_GROUPING.sub("", source)))
        persons = _words_of_persons(source).lower()
        self._words = _stems(persons)
        self._short = frozenset(_SHORT.findall(persons))
        self._persons = " ".join(persons.split())

    def has_evidence_for(self, sentence: str) -> bool:
        sentence = sentence[:_MOST_READ]
        if not all(self._has(match["number"]) for match in _NUMBER.finditer(sentence)):
            return False
        if _ORDER.search(sentence):
            return " ".join(sentence.lower().split()).strip("-*> .") in self._persons
        will = _WILL.search(sentence)
        if will is None or not self._is_in_a_persons_language(sentence.lower()):
            return True
        words = _stems(sentence[will.end() :])
        return len(words) < _LEAST_WORDS or len(words & self._words) >= _SHARE * len(words)

    def _is_in_a_persons_language(self, sentence: str) -> bool:
        """Return True if the sentence may be in the person's language. Words of other languages cannot be compared."""
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


def _names_in(line: str) -> Iterator[str]:
    return (match["path"].rstrip("./~-") if match["path"] else match[0] for match in _NAMED.finditer(line))


def _sentences(line: str) -> Iterator[str]:
    """Yield the sentences of a line, each with the spaces after it."""
    start = 0
    for match in _SENTENCE_END.finditer(line):
        yield line[start : match.end()]
        start = match.end()
    yield line[start:]


def _words_of_persons(source: str) -> str:
    """Return the persons' messages in a source, and all text outside the transcript."""
    preamble, opening, remainder = source.partition(OPENING)
    if not opening:
        return source
    transcript, _, postscript = remainder.partition(CLOSING)
    labels = [*_UTTERANCE.finditer(transcript)]
    ends = [*(start.start() for start in labels[1:]), len(transcript)]
    messages = [
        transcript[label.end() : end] for label, end in zip(labels, ends, strict=False) if label["label"] == "user"
    ]
    return "\n".join([preamble, *messages, postscript])


def _stems(text: str) -> frozenset[str]:
    return frozenset((match["pair"] or match["word"])[:_STEM] for match in _WORD.finditer(text.lower()))
