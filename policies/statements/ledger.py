"""The ledger: the user's task, rules and facts, stored verbatim by code (docs/design.md, "The ledger").

Summaries lose constraints, paths and numbers first. Sentences of user messages with a rule or an identifier are
therefore stored verbatim with their positions through any number of compactions. No model rewrites them.
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

# Maximum entries of one message by kind, half of them from either end: a pasted book is no conversation.
_MOST_OF_A_KIND = {"task": 200, "directive": 400, "fact": 200, "message": 40, "pasted": 40}
_MOST_ENTRIES = 4_000
# A new entry is compared with this many newest entries for each of its words.
_COMPARED = 12
# The distance of two user messages with one assistant message in between.
_ADJACENT = 2
_MAX_TASK = 2_000
# A rule is short. A longer sentence counts as a narrative, because it would take the room of many rules.
_LONG_RULE = 400
# Tokens of the shortest entry. Less remaining room is not used.
_LEAST_LINE = 4
# The order in which entries are kept over budget, by kind and rank.
_GROUPS: dict[tuple[Kind, int], int] = {
    ("directive", HARD): 0,
    ("task", HARD): 1,
    ("directive", PREFERENCE): 2,
    ("directive", WEAK): 3,
    ("fact", WEAK): 4,
    ("message", WEAK): 5,
    ("pasted", WEAK): 6,
}
# The end of a shortened entry.
CUT_OFF = " …"
_CLAUSE = re.compile(r"[,;，；]")
_PART = re.compile(r"[;；]")
_ARGUMENT = re.compile(r"[^\s\"'`,:;(){}\[\]<>=|]{4,200}")
_MAX_ARGUMENTS = 1_500


class LedgerEntries(NamedTuple):
    """Entries, and a person's statements that are dropped because there are too many."""

    entries: list[Entry]
    forgotten: list[Entry]


def statements_in(
    utterances: Sequence[Utterance], directives: Sequence[str], *, first_user: int | None
) -> Iterator[Entry]:
    """Yield the entries of a person's statements.

    first_user: position of the first message of a person. Entries are yielded singly, so that a merge parses each only
    once.
    """
    return (entry for message in _by_message(utterances, directives, first_user) for entry in message.entries)


def said_in(utterances: Sequence[Utterance], directives: Sequence[str], *, first_user: int | None) -> LedgerEntries:
    """Return a person's statements, and those without room. Parameters as for `statements_in`."""
    messages = [*_by_message(utterances, directives, first_user)]
    return LedgerEntries(
        [entry for message in messages for entry in message.entries],
        [entry for message in messages for entry in message.forgotten],
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
    for position, message_utterances in groupby(persons, key=attrgetter("position")):
        message_entries = [*_entries([*message_utterances], directives, arguments, first=position == first_user)]
        bounded = _bound_entries(message_entries)
        orders = {entry.order for entry in bounded} if len(bounded) < len(message_entries) else set()
        yield LedgerEntries(
            bounded, [entry for entry in message_entries if entry.order not in orders] if orders else []
        )


def _entries(
    utterances: Sequence[Utterance], directives: Sequence[str], arguments: set[str], *, first: bool
) -> Iterator[Entry]:
    """Yield the entries of one message."""
    spoken = ((utterance, *sentence) for utterance in utterances for sentence in sentences(utterance.text))
    for order, (utterance, sentence, prose) in enumerate(spoken, start=1):
        if not prose:
            yield Entry("pasted", sentence, utterance.position, order, WEAK)
            continue
        entry = Entry("task" if first else "message", sentence, utterance.position, order, WEAK)
        entry = _entry(entry, directives, arguments, first=first)
        # Text typed while the agent works is meant to steer it.
        steers = utterance.by and entry.kind == "message"
        yield msgspec.structs.replace(entry, kind="directive", rank=PREFERENCE) if steers else entry


def _entry(entry: Entry, directives: Sequence[str], arguments: set[str], *, first: bool) -> Entry:
    """Return the entry with its kind and rank. The first message is the task, except for hard rules and facts."""
    statement = read_statement(entry.text)
    rank = HARD if directives and any(word in entry.text for word in directives) else _rank(statement)
    if rank is not None and len(entry.text) > _LONG_RULE:
        rank = WEAK
    location = (entry.text, entry.position, entry.order)
    if first and rank != HARD and not (statement.values or statement.about):
        return Entry("task", *location)
    if rank is not None:
        return Entry("directive", *location, rank, opening=first)
    if _is_fact(statement):
        return Entry("fact", *location, used=not arguments.isdisjoint(statement.texts | statement.about), opening=first)
    return Entry(entry.kind, *location)


def sentence_of_user(text: str, position: int, order: int, *, first: bool) -> Entry:
    """Return the entry of a single sentence. first: True if it is in the first message of a person."""
    return _entry(Entry("task" if first else "message", text, position, order, WEAK), (), set(), first=first)


def _rank(statement: Statement) -> int | None:
    """Return the rank of a directive; None for a sentence that is no directive."""
    is_directive = statement.cues or statement.label or statement.stands or "budget" in statement.subject
    if statement.question or not is_directive:
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
    """Return the rank of a single sentence, see `HARD`; None if it is no directive."""
    return _rank(read_statement(sentence))


def _is_fact(statement: Statement) -> bool:
    if statement.question or not (statement.values or statement.about):
        return False
    return (
        bool(statement.about)
        or any(kind in IDENTIFIERS for kind, _ in statement.values)
        or statement.has("states", "owns", "standing")
    )


def _bound_entries(entries: list[Entry]) -> list[Entry]:
    if len(entries) <= min(_MOST_OF_A_KIND.values()):
        return entries
    kept_orders: set[int] = set()
    for kind, most in _MOST_OF_A_KIND.items():
        orders = [entry.order for entry in entries if entry.kind == kind]
        kept_orders.update(orders if len(orders) <= most else [*orders[: most // 2], *orders[-most // 2 :]])
    return [entry for entry in entries if entry.order in kept_orders]


def merge(older: Sequence[Entry], newer: Iterable[Entry]) -> list[Entry]:
    """Return older and newer entries in order, without earlier ones that later ones repeat or give another value.

    `newer` is in order, `older` the result of a merge. Merging a history in one step or in five gives the same entries.
    """
    return merge_ledgers(older, newer).entries


def merge_ledgers(older: Sequence[Entry], newer: Iterable[Entry]) -> LedgerEntries:
    """Merge new entries into those of a ledger. Return all valid ones, and the oldest ones without room."""
    live = _Live(older)
    for entry in newer:
        live.add_latest(entry)
    entries = live.entries()
    return LedgerEntries(entries[-_MOST_ENTRIES:], entries[:-_MOST_ENTRIES])


class _Live:
    """The valid entries, indexed by their subjects."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        """Create the index with these entries."""
        self._entries: dict[int, Entry] = {}
        self._read: dict[int, Statement] = {}
        self._by_text: dict[str, int] = {}
        self._said: Counter[int] = Counter()
        self._by_key: defaultdict[object, list[int]] = defaultdict(list)
        self._newest: deque[int] = deque(maxlen=_COMPARED + 1)
        self._next = 0
        for entry in entries:
            self._add(entry)

    def entries(self) -> list[Entry]:
        return sorted(self._entries.values(), key=order_of)

    def add_latest(self, entry: Entry) -> None:
        """Add an entry that is later than all others."""
        same_text = self._by_text.get(folded(entry))
        if same_text is not None:
            earlier = self._entries[same_text]
            if earlier.kind == "task" and entry.kind == "message":
                return
            if not self._has_other_sentences(earlier):
                self._remove(same_text)
            entry = msgspec.structs.replace(entry, used=entry.used or earlier.used, replaced=earlier.replaced)
        replaced_count = 0
        if entry.kind in ("directive", "fact"):
            for number in self._replaced_by(entry):
                replaced = self._entries[number]
                remainder = _remaining_part(replaced, self._read[number], read_statement(entry.text))
                if remainder is replaced:
                    continue
                self._remove(number)
                replaced_count += 1 + replaced.replaced
                if remainder is not None:
                    self._add(remainder)
        self._add(msgspec.structs.replace(entry, replaced=entry.replaced + replaced_count) if replaced_count else entry)

    def _has_other_sentences(self, entry: Entry) -> bool:
        """Return True if its message has other sentences, which would mean less without this one."""
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
            self._newest.append(number)

    def _replaced_by(self, entry: Entry) -> list[int]:
        later = read_statement(entry.text)
        replaced: list[int] = []
        uncertain: list[int] = []
        for number in self._candidates(later):
            earlier = self._read[number]
            earlier_entry = self._entries[number]
            if earlier_entry.position >= entry.position:  # sentences of one message do not replace each other
                continue
            if repeats(later, earlier):
                if folded(entry) != folded(earlier_entry) or not self._has_other_sentences(earlier_entry):
                    replaced.append(number)
            elif replaces(later, earlier) or (
                entry.position - earlier_entry.position <= _ADJACENT and restates_with_label(later, earlier)
            ):
                (replaced if later.subject == earlier.subject else uncertain).append(number)
        return replaced + self._nearest(later, uncertain)

    def _candidates(self, later: Statement) -> list[int]:
        """Return the numbers of entries that it may repeat or replace, oldest first."""
        candidates = self._entries.keys() & self._newest if later.label else set()
        keys = (*_same(later), *_words(later), *later.old) if reaches_out(later) else _same(later)
        for key in keys:
            if key in self._by_key:
                newest = islice(reversed(self._by_key[key]), 4 * _COMPARED)
                candidates.update(islice(filter(self._entries.__contains__, newest), _COMPARED))
        if not (later.permits or later.old or later.label):
            candidates = {number for number in candidates if share_subject(later, self._read[number])}
        return sorted(candidates)

    def _nearest(self, later: Statement, numbers: Sequence[int]) -> list[int]:
        """Return the numbers with the nearest subject; none if different subjects are equally near."""
        if len(numbers) < 2:
            return list(numbers)
        subjects = {number: self._read[number].subject for number in numbers}
        shared = {number: len(subject & later.subject) for number, subject in subjects.items()}
        nearest = [number for number in numbers if shared[number] == max(shared.values())]
        return nearest if len({subjects[number] for number in nearest}) == 1 else []


def _remaining_part(replaced: Entry, earlier: Statement, later: Statement) -> Entry | None:
    """Return the part of a statement that is still valid after a later one gives its value anew.

    That is its rules ("the budget is 500, ask me before you exceed it") or its independent sentences. The whole
    statement
    stays if the remainder may need the words around the value ("the api listens on 8080 and the admin on 9090").
    """
    values = given_anew(earlier, later)
    clauses, other_clauses = parts_of(JOINT if values else _CLAUSE, replaced.text, values or earlier.texts)
    rules = (
        [clause for clause in other_clauses if _rank(read_statement(clause)) == HARD]
        if len(other_clauses) < len(clauses)
        else []
    )
    if values and not (later.permits or repeats(later, earlier)):
        parts, other_parts = parts_of(_PART, replaced.text, values)
        if len(other_parts) < len(parts) and (independent := [part for part in other_parts if tells_more(part, later)]):
            return msgspec.structs.replace(replaced, text="; ".join(independent))
        if holds_more(replaced.text, earlier, later, beside=rules):
            return replaced
    if not rules:
        return None
    text = ("，" if "，" in replaced.text else ", ").join(rules)
    return msgspec.structs.replace(replaced, kind="directive", text=text, rank=HARD)


def _same(statement: Statement) -> tuple[object, object]:
    return statement.subject, (statement.content, "content")


def _words(statement: Statement) -> Iterable[str]:
    """Return single words, and the kinds of values if there is no other subject: "use Rust"."""
    words = (*statement.content, *(statement.texts - statement.content))
    return words if statement.subject else {*words, *(f"kind {kind}" for kind in statement.classes)}


def fit(entries: Sequence[Entry], budget: int, count: CountTokens) -> list[Entry]:
    """Return the entries within `budget` tokens, in order. An entry is shortened only if it exceeds the budget alone.

    The order of precedence is:
    1. the first sentence of the task,
    2. hard rules: first those of the first message (up to a third of the budget), then general ones before those for
    the
       current work, the oldest and newest first,
    3. the rest of the task from both ends (up to a third of the budget and _MAX_TASK),
    4. preferences, then weaker directives,
    5. facts that tool calls used or the first message has, then other facts,
    6. other messages.
    Within each group the newest come first.
    """
    fitted: list[Entry] = []
    tokens_left = budget
    task_left = min(budget // 3, _MAX_TASK)
    for entry in by_precedence(entries, budget, count):
        if tokens_left < _LEAST_LINE:
            break
        candidate = _cut(entry, budget, count) if not fitted else entry
        cost = count(line(candidate)) + 1
        if cost > tokens_left or (entry.kind == "task" and fitted and cost > task_left):
            continue
        fitted.append(candidate)
        tokens_left -= cost
        task_left -= cost if entry.kind == "task" else 0
    return sorted(fitted, key=order_of)


def _opening_rules(entries: Sequence[Entry], budget: int, count: CountTokens) -> set[int]:
    """Return the orders of hard rules in the first message that precede all others."""
    orders: set[int] = set()
    for entry in entries:
        if entry.opening and entry.rank == HARD and (cost := count(line(entry)) + 1) <= budget:
            orders.add(entry.order)
            budget -= cost
    return orders


def by_precedence(entries: Sequence[Entry], budget: int, count: CountTokens) -> list[Entry]:
    """Return the entries in the order in which they fill `budget` tokens, see `fit`."""
    opening_orders = _opening_rules(entries, budget // 3, count)
    task = sorted((entry for entry in entries if entry.kind == "task"), key=order_of)
    rank_within_group = _from_both_ends(task) | _from_both_ends(sorted(filter(_is_general, entries), key=order_of))

    def precedence(entry: Entry) -> tuple[float, float, int, int]:
        if entry.kind == "task":
            is_first = entry is task[0]
            return (-1 if is_first else _GROUPS["task", HARD], rank_within_group[id(entry)], 0, 0)
        group: float = _GROUPS.get((entry.kind, entry.rank), _GROUPS[entry.kind, WEAK])
        if entry.opening and entry.rank == HARD and entry.order in opening_orders:
            group -= 0.5
        if id(entry) in rank_within_group:
            return (group, rank_within_group[id(entry)], entry.position, entry.order)
        if entry.kind == "directive" and entry.rank == HARD:
            group += 0.5
        return (group, not (entry.used or entry.opening), -entry.position, entry.order)

    return sorted(entries, key=precedence)


def _is_general(entry: Entry) -> bool:
    """Return True for a hard rule that is no permission."""
    return entry.kind == "directive" and entry.rank == HARD and not read_statement(entry.text).permits


def _from_both_ends(entries: Sequence[Entry]) -> dict[int, float]:
    """Return precedences by identity: both ends first, the middle last. Head and tail are kept as 60 to 40."""
    last_index = len(entries) - 1
    return {id(entry): min(i / 0.6, (last_index - i) / 0.4) for i, entry in enumerate(entries)}


def _cut(entry: Entry, budget: int, count: CountTokens) -> Entry:
    text = entry.text
    while len(text) > 40 and count(line(entry)) >= budget:
        text = text[: len(text) * 2 // 3]
        entry = msgspec.structs.replace(entry, text=f"{text}{CUT_OFF}")
    return entry
