"""Parsing of a sentence by the words of its language alone: what it forbids, demands, prefers and states."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from policies.statements import words
from policies.statements.reading import CODE, IDENTIFYING, Reading, is_code
from policies.statements.scanning import matches
from policies.statements.words import Cue, Language

# Scripts without spaces between words: a word is a run of characters, and cues may begin anywhere.
_RUNS = frozenset({"kana", "hangul"})
_SCRIPT = re.compile(
    r"(?P<kana>[\u3040-\u309f\u30a0-\u30fa])|(?P<hangul>[\uac00-\ud7a3])|(?P<cyrillic>[\u0400-\u04ff])"
)
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_RUN = re.compile(r"[\u4e00-\u9fff々]+|[\u30a0-\u30ff]+|[\uac00-\ud7a3]+|[a-z]+")
# A text without any of these contains no value.
_SHAPED = re.compile(r"[\d`\"“「『《$€£¥/@#_]|\w\.\w|[a-z][A-Z]")
_CLAUSE_END = re.compile(r"[,;.!?，、；。！？](?!\w)")
_HIRAGANA = re.compile(r"[\u3041-\u3096]+")


class _Words(NamedTuple):
    """The lookup tables of a language.

    phrases: first word -> (the words after it, cue).
    cues: text -> cues, for scripts without spaces.
    """

    language: Language
    phrases: dict[str, list[tuple[tuple[str, ...], str]]]
    cues: dict[str, list[Cue]]
    pattern: re.Pattern[str]
    kinds: dict[str, str]


def _words(language: Language) -> _Words:
    phrases = {phrase for row in language.cues.values() for phrase in row}
    ordered = sorted(phrases, key=lambda phrase: (-len(phrase), phrase))
    return _Words(
        language,
        words.by_first_word(language.cues),
        {phrase: [words.as_cue(cue) for cue, row in language.cues.items() if phrase in row] for phrase in phrases},
        re.compile("|".join(map(re.escape, ordered))),
        {word: kind for kind, row in language.kinds.items() for word in row},
    )


_BY_SCRIPT = {
    language.script: _words(language)
    for language in words.LANGUAGES.values()
    if language.script not in ("ascii", "han", "latin")
}
_LATIN = [_words(language) for language in words.LANGUAGES.values() if language.script == "latin"]


def _marks(language: Language) -> frozenset[str]:
    """Return the words by which the language of a sentence is recognized."""
    parts = {
        part for row in (*language.cues.values(), *language.kinds.values()) for phrase in row for part in phrase.split()
    }
    return (
        language.stop | parts | frozenset(language.sets.get("heads", ())) | frozenset(language.sets.get("reports", ()))
    )


_MARKS = [_marks(each.language) for each in _LATIN]
_OWN = words.STOP | words.CUES.keys() | words.KINDS.keys()
# A sentence in Latin letters without any of these is parsed as English.
_TELLTALE = frozenset[str]().union(*_MARKS) - _OWN


def language_of(text: str) -> _Words | None:
    """Return the tables for the language of a sentence; None for languages that `reading` parses."""
    if not text.isascii() and (script := _SCRIPT.search(text)):
        return _BY_SCRIPT.get(script.lastgroup or "")
    spoken = text.lower().split()
    if _TELLTALE.isdisjoint(spoken):
        return None
    spoken = _WORD.findall(text.lower())
    counts = [sum(word in marks for word in spoken) for marks in _MARKS]
    most = max(counts)
    return _LATIN[counts.index(most)] if most > sum(word in _OWN for word in spoken) else None


def read_words(text: str, tables: _Words) -> Reading:
    """Return the reading of a sentence in this language. Indexes are those of characters."""
    reading = Reading()
    unparsed = [*text.lower()]
    for kind, start, end in _values(text):
        value = text[start:end].strip(words.QUOTES).lower()
        if kind in IDENTIFYING and not text[:start].strip():
            reading.about.add(start)
        reading.values.append((start, (kind, value)))
        if kind in CODE:
            stop = _CLAUSE_END.search(text, end)
            reading.behind_code = range(end, stop.start() if stop else len(text))
        unparsed[start:end] = " " * (end - start)
    spoken = "".join(unparsed)
    if tables.language.script in _RUNS:
        _read_runs(reading, spoken, tables)
    else:
        _read_phrases(reading, spoken, tables)
    first_cue = min(reading.cues.values(), default=0)
    if reading.cues:
        reading.about.update(index for index, (kind, _) in reading.values if index < first_cue and kind in IDENTIFYING)
    reading.values.sort()
    reading.words.sort()
    return reading


def _values(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield kind, start and end of each value that is recognized by its shape."""
    if not _SHAPED.search(text):
        return
    for match in matches(text):
        kind = match.lastgroup or ""
        if kind in ("word", "chinese", "stop") or (kind == "code" and not is_code(match.group())):
            continue
        yield kind, match.start(), match.end()


def _read_runs(reading: Reading, spoken: str, tables: _Words) -> None:
    for match in tables.pattern.finditer(spoken):
        for cue in tables.cues[match.group()]:
            reading.cue(cue, match.start())
    bare = tables.pattern.sub(
        lambda match: match[0] if _is_noun(tables.cues[match[0]]) else " " * len(match[0]), spoken
    )
    for match in _RUN.finditer(_HIRAGANA.sub(lambda run: " " * len(run.group()), bare)):
        ending = next((end for end in tables.language.endings if match.group().endswith(end)), "")
        _add_word(reading, match.start(), match.group().removesuffix(ending) or match.group(), tables)


def _read_phrases(reading: Reading, spoken: str, tables: _Words) -> None:
    tokens = [(match.start(), match.group().replace("’", "'")) for match in _WORD.finditer(spoken)]
    texts = [text for _, text in tokens]
    heads, reports = (tables.language.sets.get(name, ()) for name in ("heads", "reports"))
    head = next((at for at, text in enumerate(texts) if text in heads or text not in tables.language.stop), 0)
    if texts[head + 1 :] and texts[head] in heads and texts[head + 1] not in reports:
        reading.cue("forbids", tokens[head][0])
    number = 0
    while number < len(tokens):
        index, word = tokens[number]
        rows = [
            row for row in tables.phrases.get(word, ()) if tuple(texts[number + 1 : number + 1 + len(row[0])]) == row[0]
        ]
        for _, cue in rows:
            reading.cue(words.as_cue(cue), index)
        if not rows or _is_noun([cue for _, cue in rows]):
            _add_word(reading, index, word, tables)
        number += 1 + (len(rows[0][0]) if rows else 0)


def _is_noun(cues: Sequence[str]) -> bool:
    """Return True if a word with these cues is also part of the subject: the deadline, the budget."""
    return set(cues) == {"limits"}


def _add_word(reading: Reading, index: int, word: str, tables: _Words) -> None:
    """Add a word that is no cue: a value, or part of the subject."""
    if word in tables.kinds:
        reading.values.append((index, (tables.kinds[word], word)))
    elif word not in tables.language.stop:
        reading.word(index, word)
