"""What must not be lost: the task, rules and facts, carried as data by code (docs/design.md, "The ledger").

Summaries lose constraints, paths and numbers first. So sentences of user messages that state a rule or hold an
identifier are kept verbatim, with their position, through any number of compactions; no model re-tells them.
"""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import NamedTuple

import msgspec

from policies.conversation.transcript import CountTokens, Utterance
from policies.statements.entries import HARD, PREFERENCE, WEAK, Entry, Kind, folded, line, order_of, statements
from policies.statements.naming import numbered_lines, supersede, without_superseded_section
from policies.statements.sentences import sentences
from policies.statements.statements import IDENTIFIERS, Statement, read_statement
from policies.statements.superseding import (
    JOINT,
    given_anew,
    holds_more,
    parts_of,
    reaches_out,
    repeats,
    replaces,
    restates_with_label,
    share_subject,
    tells_more,
)
from policies.statements.words import WEAK as WEAK_WORDS

__all__ = [
    "Entry",
    "by_precedence",
    "fit",
    "line",
    "merge",
    "merge_ledgers",
    "numbered_lines",
    "rank_of",
    "said_in",
    "sentence_of_user",
    "statements",
    "statements_in",
    "supersede",
    "without_superseded_section",
]

# Of one message and kind, the first and the last: a pasted book is not a conversation.
_MOST_OF_A_KIND = {"task": 200, "directive": 400, "fact": 200, "message": 40, "pasted": 40}
_MOST_ENTRIES = 4_000
# Earlier entries that a new one is compared with, for each of its words: the newest.
_COMPARED = 12
# Two user messages with one answer between them.
_ADJACENT = 2
_MAX_TASK = 2_000
# A rule is short; what is longer is told, not demanded, and would take the place of many.
_LONG_RULE = 400
# Tokens that the shortest entry takes; nothing is tried for what is left below that.
_LEAST_LINE = 4
# What goes first over budget, by kind and rank.
_GROUPS: dict[tuple[Kind, int], int] = {
    ("directive", HARD): 0,
    ("task", HARD): 1,
    ("directive", PREFERENCE): 2,
    ("directive", WEAK): 3,
    ("fact", WEAK): 4,
    ("message", WEAK): 5,
    ("pasted", WEAK): 6,
}
# At the end of an entry that is cut.
CUT_OFF = " …"
_CLAUSE = re.compile(r"[,;，；]")
_PART = re.compile(r"[;；]")
_ARGUMENT = re.compile(r"[^\s\"'`,:;(){}\[\]<>=|]{4,200}")
_MAX_ARGUMENTS = 1_500


class LedgerEntries(NamedTuple):
    """Entries, and the statements of a person that are not among them since there are too many."""

    entries: list[Entry]
    forgotten: list[Entry]


def statements_in(
    utterances: Sequence[Utterance], directives: Sequence[str], *, first_user: int | None
) -> Iterator[Entry]:
    """Entries of what a person said among `utterances`; `first_user` is the position of the first message in which one
    speaks. One by one: merged at once, a sentence is read once, however many there are.
    """
    return (entry for said in _by_message(utterances, directives, first_user) for entry in said.entries)


def said_in(utterances: Sequence[Utterance], directives: Sequence[str], *, first_user: int | None) -> LedgerEntries:
    """Return the statements of a person, and those for which there is no room; parameters as above."""
    messages = [*_by_message(utterances, directives, first_user)]
    return LedgerEntries(
        [entry for said in messages for entry in said.entries],
        [entry for said in messages for entry in said.forgotten],
    )


def _by_message(
    utterances: Sequence[Utterance], directives: Sequence[str], first_user: int | None
) -> Iterator[LedgerEntries]:
    arguments = {
        word
        for utterance in utterances
        for call in utterance.calls
        for word in _ARGUMENT.findall(call.arguments[:_MAX_ARGUMENTS].lower())
    }
    persons = (utterance for utterance in utterances if utterance.is_persons)
    for position, said in groupby(persons, key=attrgetter("position")):
        found = [*_entries([*said], directives, arguments, first=position == first_user)]
        kept = _bound_entries(found)
        orders = {entry.order for entry in kept} if len(kept) < len(found) else set()
        yield LedgerEntries(kept, [entry for entry in found if entry.order not in orders] if orders else [])


def _entries(
    said: Sequence[Utterance], directives: Sequence[str], arguments: set[str], *, first: bool
) -> Iterator[Entry]:
    """Of one message."""
    spoken = ((utterance, *sentence) for utterance in said for sentence in sentences(utterance.text))
    for order, (utterance, sentence, prose) in enumerate(spoken, start=1):
        if not prose:
            yield Entry("pasted", sentence, utterance.position, order, WEAK)
            continue
        entry = Entry("task" if first else "message", sentence, utterance.position, order, WEAK)
        entry = _entry(entry, directives, arguments, first=first)
        # What is typed while the agent works is to steer it.
        steers = utterance.by and entry.kind == "message"
        yield msgspec.structs.replace(entry, kind="directive", rank=PREFERENCE) if steers else entry


def _entry(entry: Entry, directives: Sequence[str], arguments: set[str], *, first: bool) -> Entry:
    """What its sentence is. Beside hard rules and what may be stated anew, the first message is the task."""
    statement = read_statement(entry.text)
    rank = HARD if directives and any(word in entry.text for word in directives) else _rank(statement)
    if rank is not None and len(entry.text) > _LONG_RULE:
        rank = WEAK
    place = (entry.text, entry.position, entry.order)
    if first and rank != HARD and not (statement.values or statement.about):
        return Entry("task", *place)
    if rank is not None:
        return Entry("directive", *place, rank, opening=first)
    if _is_fact(statement):
        return Entry("fact", *place, used=not arguments.isdisjoint(statement.texts | statement.about), opening=first)
    return Entry(entry.kind, *place)


def sentence_of_user(text: str, position: int, order: int, *, first: bool) -> Entry:
    """The entry of one sentence alone; `first`: of the first message in which a person speaks."""
    return _entry(Entry("task" if first else "message", text, position, order, WEAK), (), set(), first=first)


def _rank(statement: Statement) -> int | None:
    """How binding a directive is; None for a sentence that directs nothing."""
    said = statement.cues or statement.label or statement.stands or "budget" in statement.subject
    if statement.question or not said:
        return None
    if statement.hard_label or statement.permits or statement.forbids or statement.has("demands", "only", "guards"):
        return HARD
    if statement.stands:
        return HARD
    limits = statement.has("limits") or "budget" in statement.subject
    if limits and not statement.classes.isdisjoint(("quantity", "date")):
        return HARD
    about = statement.values or not statement.content <= WEAK_WORDS
    if statement.label or (statement.has("prefers") and about):
        return PREFERENCE
    if statement.has("corrects") and (statement.values or statement.old):
        return PREFERENCE
    if statement.has("progress") or (statement.values and statement.has("updates")):
        return PREFERENCE
    if statement.has("standing") and not statement.classes.isdisjoint(("zone", "tone", "unit", "tongue", "date")):
        return PREFERENCE
    return WEAK if statement.has("suggests", "limits") and not statement.content <= WEAK_WORDS else None


def rank_of(sentence: str) -> int | None:
    """How binding a sentence is that stands by itself, see `HARD`; None for one that directs nothing."""
    return _rank(read_statement(sentence))


def _is_fact(statement: Statement) -> bool:
    if statement.question or not (statement.values or statement.about):
        return False
    return (
        bool(statement.about)
        or any(kind in IDENTIFIERS for kind, _ in statement.values)
        or statement.has("states", "owns", "standing")
    )


def _bound_entries(found: list[Entry]) -> list[Entry]:
    if len(found) <= min(_MOST_OF_A_KIND.values()):
        return found
    kept: set[int] = set()
    for kind, most in _MOST_OF_A_KIND.items():
        orders = [entry.order for entry in found if entry.kind == kind]
        kept.update(orders if len(orders) <= most else [*orders[: most // 2], *orders[-most // 2 :]])
    return [entry for entry in found if entry.order in kept]


def merge(older: Sequence[Entry], newer: Iterable[Entry]) -> list[Entry]:
    """Both in order; what a later entry repeats, or states anew with another value, is gone from the earlier ones.

    `newer` comes in order; `older` is the result of a merge. A fold over `newer`: one step over a history or five give
    the same entries.
    """
    return merge_ledgers(older, newer).entries


def merge_ledgers(older: Sequence[Entry], newer: Iterable[Entry]) -> LedgerEntries:
    """Merge new entries into those of a ledger. Return all that hold, and the oldest, for which there is no room."""
    live = _Live(older)
    for entry in newer:
        live.say(entry)
    entries = live.entries()
    return LedgerEntries(entries[-_MOST_ENTRIES:], entries[:-_MOST_ENTRIES])


class _Live:
    """The entries that still hold, found by what they are about."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries: dict[int, Entry] = {}
        self._read: dict[int, Statement] = {}
        self._by_text: dict[str, int] = {}
        self._said: Counter[int] = Counter()
        self._by_key: defaultdict[object, list[int]] = defaultdict(list)
        self._lately: deque[int] = deque(maxlen=_COMPARED + 1)
        self._next = 0
        for entry in entries:
            self._add(entry)

    def entries(self) -> list[Entry]:
        return sorted(self._entries.values(), key=order_of)

    def say(self, entry: Entry) -> None:
        """Take in what was said later than all the rest."""
        same = self._by_text.get(folded(entry))
        if same is not None:
            earlier = self._entries[same]
            if earlier.kind == "task" and entry.kind == "message":
                return
            if not self._has_company(earlier):
                self._remove(same)
            entry = msgspec.structs.replace(entry, used=entry.used or earlier.used, replaced=earlier.replaced)
        gone = 0
        if entry.kind in ("directive", "fact"):
            for number in self._replaced_by(entry):
                replaced = self._entries[number]
                rest = _what_still_holds(replaced, self._read[number], read_statement(entry.text))
                if rest is replaced:
                    continue
                self._remove(number)
                gone += 1 + replaced.replaced
                if rest is not None:
                    self._add(rest)
        self._add(msgspec.structs.replace(entry, replaced=entry.replaced + gone) if gone else entry)

    def _has_company(self, entry: Entry) -> bool:
        """Return True if its message says something else: without this sentence that would mean less."""
        return self._said[entry.position] > 1

    def _remove(self, number: int) -> None:
        entry = self._entries.pop(number)
        self._said[entry.position] -= 1
        if self._by_text.get(folded(entry)) == number:
            del self._by_text[folded(entry)]

    def _add(self, entry: Entry) -> None:
        number = self._next = self._next + 1
        self._entries[number] = entry
        self._said[entry.position] += 1
        self._by_text[folded(entry)] = number
        if entry.kind in ("directive", "fact"):
            statement = self._read[number] = read_statement(entry.text)
            for numbers in map(self._by_key.__getitem__, (*_same(statement), *_words(statement))):
                numbers.append(number)
            self._lately.append(number)

    def _replaced_by(self, entry: Entry) -> list[int]:
        later = read_statement(entry.text)
        gone: list[int] = []
        perhaps: list[int] = []
        for number in self._candidates(later):
            earlier = self._read[number]
            other = self._entries[number]
            if other.position >= entry.position:  # what is said in one breath replaces nothing of it
                continue
            if repeats(later, earlier):
                if folded(entry) != folded(other) or not self._has_company(other):
                    gone.append(number)
            elif replaces(later, earlier) or (
                entry.position - other.position <= _ADJACENT and restates_with_label(later, earlier)
            ):
                (gone if later.subject == earlier.subject else perhaps).append(number)
        return gone + self._nearest(later, perhaps)

    def _candidates(self, later: Statement) -> list[int]:
        """Numbers of entries that it may repeat or replace, oldest first."""
        found = self._entries.keys() & self._lately if later.label else set()
        keys = (*_same(later), *_words(later), *later.old) if reaches_out(later) else _same(later)
        for key in keys:
            if key in self._by_key:
                newest = islice(reversed(self._by_key[key]), 4 * _COMPARED)
                found.update(islice(filter(self._entries.__contains__, newest), _COMPARED))
        if not (later.permits or later.old or later.label):
            found = {number for number in found if share_subject(later, self._read[number])}
        return sorted(found)

    def _nearest(self, later: Statement, numbers: Sequence[int]) -> list[int]:
        """Those whose subject is nearest; none if different things are equally near: code cannot tell which."""
        if len(numbers) < 2:
            return list(numbers)
        subjects = {number: self._read[number].subject for number in numbers}
        shared = {number: len(subject & later.subject) for number, subject in subjects.items()}
        nearest = [number for number in numbers if shared[number] == max(shared.values())]
        return nearest if len({subjects[number] for number in nearest}) == 1 else []


def _what_still_holds(replaced: Entry, earlier: Statement, later: Statement) -> Entry | None:
    """What is left of a statement when a later one gives its value anew.

    The rules beside it ("the budget is 500, ask me before you exceed it"), what is a sentence of its own, or all of it,
    where what else it says may need the words around the value ("the api listens on 8080 and the admin on 9090").
    """
    values = given_anew(earlier, later)
    clauses, beside = parts_of(JOINT if values else _CLAUSE, replaced.text, values or earlier.texts)
    rules = [clause for clause in beside if _rank(read_statement(clause)) == HARD] if len(beside) < len(clauses) else []
    if values and not (later.permits or repeats(later, earlier)):
        parts, others = parts_of(_PART, replaced.text, values)
        if len(others) < len(parts) and (own := [part for part in others if tells_more(part, later)]):
            return msgspec.structs.replace(replaced, text="; ".join(own))
        if holds_more(replaced.text, earlier, later, beside=rules):
            return replaced
    if not rules:
        return None
    text = ("，" if "，" in replaced.text else ", ").join(rules)
    return msgspec.structs.replace(replaced, kind="directive", text=text, rank=HARD)


def _same(statement: Statement) -> tuple[object, object]:
    return statement.subject, (statement.content, "content")


def _words(statement: Statement) -> Iterable[str]:
    """Single words, and the kinds of values where a statement is about nothing else: "use Rust"."""
    said = (*statement.content, *(statement.texts - statement.content))
    return said if statement.subject else {*said, *(f"kind {kind}" for kind in statement.classes)}


def fit(entries: Sequence[Entry], budget: int, count: CountTokens) -> list[Entry]:
    """Return the entries that stay within `budget` tokens, in order, each whole unless one alone exceeds the budget.

    First the task's first sentence, then hard rules (first message ahead, up to a third of the budget; general ones
    before those for what is at hand, the oldest and the newest first), the rest of the task (head and tail, up to a
    third of the budget and _MAX_TASK), preferences, weaker directives, facts that tool calls used or the first message
    holds, other facts, other messages; of each the newest first.
    """
    kept: list[Entry] = []
    left = budget
    task_left = min(budget // 3, _MAX_TASK)
    for entry in by_precedence(entries, budget, count):
        if left < _LEAST_LINE:
            break
        whole = _cut(entry, budget, count) if not kept else entry
        cost = count(line(whole)) + 1
        if cost > left or (entry.kind == "task" and kept and cost > task_left):
            continue
        kept.append(whole)
        left -= cost
        task_left -= cost if entry.kind == "task" else 0
    return sorted(kept, key=order_of)


def _opening_rules(entries: Sequence[Entry], budget: int, count: CountTokens) -> set[int]:
    """Orders of the hard rules of the first message that go ahead of all others."""
    ahead: set[int] = set()
    for entry in entries:
        if entry.opening and entry.rank == HARD and (cost := count(line(entry)) + 1) <= budget:
            ahead.add(entry.order)
            budget -= cost
    return ahead


def by_precedence(entries: Sequence[Entry], budget: int, count: CountTokens) -> list[Entry]:
    """Return the entries in the order in which they fill `budget` tokens, see `fit`."""
    ahead = _opening_rules(entries, budget // 3, count)
    task = sorted((entry for entry in entries if entry.kind == "task"), key=order_of)
    place = _from_both_ends(task) | _from_both_ends(sorted(filter(_is_general, entries), key=order_of))

    def precedence(entry: Entry) -> tuple[float, float, int, int]:
        if entry.kind == "task":
            first = entry is task[0]
            return (-1 if first else _GROUPS["task", HARD], place[id(entry)], 0, 0)
        group: float = _GROUPS.get((entry.kind, entry.rank), _GROUPS[entry.kind, WEAK])
        if entry.opening and entry.rank == HARD and entry.order in ahead:
            group -= 0.5
        if id(entry) in place:
            return (group, place[id(entry)], entry.position, entry.order)
        if entry.kind == "directive" and entry.rank == HARD:
            group += 0.5
        return (group, not (entry.used or entry.opening), -entry.position, entry.order)

    return sorted(entries, key=precedence)


def _is_general(entry: Entry) -> bool:
    """A hard rule, not a permission."""
    return entry.kind == "directive" and entry.rank == HARD and not read_statement(entry.text).permits


def _from_both_ends(entries: Sequence[Entry]) -> dict[int, float]:
    """By identity, what goes first of entries in order, highest: the middle; head and tail are kept as 60 to 40."""
    last = len(entries) - 1
    return {id(entry): min(i / 0.6, (last - i) / 0.4) for i, entry in enumerate(entries)}


def _cut(entry: Entry, budget: int, count: CountTokens) -> Entry:
    text = entry.text
    while len(text) > 40 and count(line(entry)) >= budget:
        text = text[: len(text) * 2 // 3]
        entry = msgspec.structs.replace(entry, text=f"{text}{CUT_OFF}")
    return entry
