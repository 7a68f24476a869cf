"""What must not be lost whatever a summarizer writes: the task, rules, facts, carried as data by code (section 7).

Summaries lose constraints, paths and numbers first. So sentences of user messages that state a rule or hold an
identifier are kept verbatim, with their position, through any number of compactions; no model re-tells them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from policies.transcript import CountTokens, Utterance, escape, shorten

Kind = Literal["task", "directive", "fact", "message"]

_MAX_TASK_CHARACTERS = 8_000
_MAX_SENTENCE = 600
_MAX_SENTENCES = 400

# Words that make a sentence a rule, a limit, a preference, a decision or a correction. One row a language.
_DIRECTIVES = {
    "en": re.compile(
        r"\b(?:never|always|must(?:n't)?|mustn|only|don't|do not|does not|doesn't|should(?:n't)?|shall|cannot|can't|"
        r"may not|avoid|prefer(?:s|red|ably)?|require[sd]?|required|forbidden|prohibited|not allowed|make sure|ensure|"
        r"remember|important|from now on|instead|rather than|no longer|unless|without|keep|use|budget|deadline|limit|"
        r"at most|at least|no more than|no less than|until|before you|decided|decision|agreed|changed my mind|"
        r"correction|actually|rule|constraint|policy|ask (?:me|first)|confirm|approval)\b",
        re.IGNORECASE,
    ),
    "zh": re.compile(
        r"必须|务必|不要|不得|不能|不可|不许|禁止|严禁|始终|总是|永远|只能|只用|只许|仅限|切勿|请勿|别再|别用|改为|改成|"
        r"换成|不再|优先|偏好|尽量|预算|上限|下限|截止|期限|至少|至多|最多|最少|不超过|超过|从现在起|以后|记住|注意|"
        r"要求|规则|约束|限制|先问|确认|批准|决定|除非"
    ),
}
# What cannot be re-told without loss: one row an identifier's shape. Searched in texts of _MAX_SENTENCE only.
_IDENTIFIER = re.compile(
    r"https?://\S+"
    r"|(?:[\w.~-]*/)+[\w.~-]+"
    r"|\b[\w.+-]+@[\w-]+\.[\w.]+"
    r"|\b[\w-]+\.(?:py|js|ts|go|rs|java|md|json|ya?ml|toml|sh|sql|txt|csv|html|css|cfg|ini|env|lock)\b"
    r"|\b[0-9a-f]{7,64}\b"
    r"|\bv?\d+(?:\.\d+)+\b"
    r"|\b[A-Za-z]+[_-]?\d[\w-]*"
    r"|\b\w+_\w+"
    r"|\b[a-z]+[A-Z]\w+"
    r"|[$€£¥]\s?\d"
    r"|\d"
    r"|`[^`\n]+`"
    r"|[\"“'][^\"”'\n]{2,80}[\"”']"
)
_VOLATILE = re.compile(r"`[^`\n]*`|[\"“][^\"”\n]*[\"”]|\S*\d\S*|https?://\S+|(?:[\w.~-]*/)+[\w.~-]+")
# What stands before it is the subject, what stands after it the value.
_STATES_A_VALUE = re.compile(r"\b(?:is|are|was|equals)\b|=|是|为")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？；])|\n+")


class Entry(msgspec.Struct, frozen=True):
    """One thing a user said, ordered by (position, order). `position` is the message's index in the body."""

    kind: Kind
    text: str
    position: int
    order: int = 0


def extract(utterances: Iterable[Utterance], directives: Sequence[str], *, first_user: int | None) -> list[Entry]:
    """Entries of the user messages among `utterances`; `first_user` is the position of the conversation's first."""
    entries: list[Entry] = []
    for utterance in utterances:
        if utterance.role == "user" and utterance.text.strip():
            if utterance.position == first_user:
                entries.append(Entry("task", shorten(utterance.text.strip(), _MAX_TASK_CHARACTERS), first_user))
            entries.extend(_sentences(utterance, directives))
    return entries


def _sentences(utterance: Utterance, directives: Sequence[str]) -> list[Entry]:
    sentences = [s.strip() for s in _SENTENCE_END.split(utterance.text) if s.strip()]
    short = [shorten(sentence, _MAX_SENTENCE) for sentence in sentences[:_MAX_SENTENCES]]
    return [
        Entry(_kind(sentence, directives), sentence, utterance.position, order)
        for order, sentence in enumerate(short, start=1)
    ]


def _kind(sentence: str, directives: Sequence[str]) -> Kind:
    marked = any(pattern.search(sentence) for pattern in _DIRECTIVES.values())
    if marked or any(word in sentence for word in directives):
        return "directive"
    return "fact" if _IDENTIFIER.search(sentence) else "message"


def merge(older: Sequence[Entry], newer: Sequence[Entry]) -> list[Entry]:
    """Both in order; what a later entry repeats, or states anew with another value, is gone from the earlier ones."""
    latest: dict[str, Entry] = {}
    for entry in [*older, *newer]:
        latest[_subject(entry)] = entry
    return sorted(latest.values(), key=lambda e: (e.position, e.order))


def _subject(entry: Entry) -> str:
    """What an entry is about: its words with the values masked where it states one, else its words."""
    if entry.kind == "task":
        return "task"
    words = " ".join(entry.text.lower().split())
    stated = _STATES_A_VALUE.search(words)
    return words if stated is None else words[: stated.end()] + _VOLATILE.sub("#", words[stated.end() :])


def fit(entries: Sequence[Entry], budget: int, count: CountTokens) -> list[Entry]:
    """The entries that stay within `budget` tokens: the task, then directives, facts and messages, newest first.

    Entries are left out whole; only the task is cut, head and tail, to a third of the budget.
    """
    kept: list[Entry] = []
    left = budget
    for kind in ("task", "directive", "fact", "message"):
        for entry in sorted((e for e in entries if e.kind == kind), key=lambda e: (-e.position, e.order)):
            whole = _cut_task(entry, budget // 3, count) if kind == "task" else entry
            cost = count(line(whole)) + 1
            if cost <= left:
                kept.append(whole)
                left -= cost
    return sorted(kept, key=lambda e: (e.position, e.order))


def _cut_task(entry: Entry, budget: int, count: CountTokens) -> Entry:
    text = entry.text
    while len(text) > 80 and count(text) > budget:
        text = shorten(entry.text, len(text) // 2)
    return msgspec.structs.replace(entry, text=text)


def line(entry: Entry) -> str:
    """One entry as the record shows it."""
    return f"- [{entry.position}] {escape(' '.join(entry.text.split()) if entry.kind != 'task' else entry.text)}"
