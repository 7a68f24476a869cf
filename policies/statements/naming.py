"""Superseded statements that a summarizer names by number in its response. Each is checked before it is dropped."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from policies.conversation.transcript import escape
from policies.statements.entries import HARD, Entry, order_of
from policies.statements.statements import Statement, read_statement
from policies.statements.superseding import asserts, differ_in_names

# Limits of the list for the summarizer: the newest statements, each shortened to what identifies it.
_MOST_SHOWN = 200
_MOST_CHARACTERS = 300
# A new value rarely replaces more statements. A summarizer that names everything is not trusted.
_MOST_REPLACED = 3
_MOST_LINES = 400

_TITLE = re.compile(
    r"\A\s{0,3}(?P<mark>#{1,6}\s{0,9}|\*\*|[-*•]\s{1,9})?(?:\d{1,2}[.)]\s{0,9})?\*{0,9}\s{0,9}"
    r"(?:superseded|已被取代|被取代|已取代)[^:：\n\d]{0,40}?\*{0,9}\s{0,9}(?:[:：]\*{0,9}\s{0,9}(?P<rest>.*)|\Z)",
    re.IGNORECASE,
)
_HEADING = re.compile(r"\s{0,3}(?:#{1,6}\s|\*\*[^*]+\*\*\s*[:：]?\s*\Z)")
_NUMBER = r"[\[(#【]{0,2}(\d{1,5})[\])】]{0,2}"
_PAIR = re.compile(
    rf"{_NUMBER}\s{{0,3}}(?:->|-->|→|=>|⇒|➜|(?:is |was )?(?:superseded |replaced )?by|(?:已)?被)\s{{0,3}}{_NUMBER}",
    re.IGNORECASE,
)
_LONE = re.compile(rf"\A\s{{0,9}}(?:[-*•]\s{{1,9}})?{_NUMBER}\s{{0,9}}(?:[:：.)、]|\Z)")
_LIST = re.compile(r"\A\s{0,9}(?:[-*•]\s)?[\[\]()#\d\s,;，、和and]++[.。]?\s{0,9}\Z")


def numbered_lines(entries: Sequence[Entry]) -> list[str]:
    """Return directives and facts as lines "12. [position] text" for the summarizer, oldest first; see `supersede`."""
    lines = [
        f"{number}. [{entry.position}] {escape(' '.join(entry.text.split())[:_MOST_CHARACTERS])}"
        for number, entry in _numbers(entries).items()
    ]
    return lines[-_MOST_SHOWN:]


def _numbers(entries: Sequence[Entry]) -> dict[int, Entry]:
    return dict(enumerate((entry for entry in entries if entry.kind in ("directive", "fact")), start=1))


def supersede(entries: Sequence[Entry], answer: str) -> list[Entry]:
    """Return the entries without those that `answer` plausibly names as superseded.

    Under a heading or line "Superseded" (also 被取代, 已取代) it reads "3 -> 12", "3 by 12", "[3] superseded by [12]",
    "3 被 12 取代", and lone numbers: "3, 7" and "- 3: …". It is trusted only if a later statement has the same
    subject. The two share a word of the subject, and only a rule replaces a rule. They may also share a kind of value,
    unless the earlier one is a hard rule. One later entry replaces at most _MOST_REPLACED.
    """
    statements = _numbers(entries)
    superseded: set[int] = set()
    replaced: Counter[int] = Counter()
    for earlier, later in _named_options(answer):
        if earlier not in statements or earlier in superseded:
            continue
        number = later if later is not None else _successor(statements, earlier)
        if (
            number in statements
            and replaced[number] < _MOST_REPLACED
            and _is_plausible(statements[earlier], statements[number])
        ):
            superseded.add(earlier)
            replaced[number] += 1
    dropped = {id(statements[number]) for number in superseded}
    return [entry for entry in entries if id(entry) not in dropped]


def _is_plausible(earlier: Entry, later: Entry) -> bool:
    earlier_statement, later_statement = read_statement(earlier.text), read_statement(later.text)
    if (
        order_of(later) <= order_of(earlier)
        or not asserts(later_statement)
        or differ_in_names(earlier_statement, later_statement)
    ):
        return False
    if not _words(earlier_statement).isdisjoint(_words(later_statement)):
        return earlier.rank != HARD or earlier.kind == "fact" or later.kind == "directive"
    return not (earlier.kind == "directive" and earlier.rank == HARD) and not _kinds(earlier_statement).isdisjoint(
        _kinds(later_statement)
    )


def _successor(statements: dict[int, Entry], number: int) -> int:
    """Return the next later statement with the same subject and kind of value; 0 if there is none."""
    earlier = read_statement(statements[number].text)
    for later in range(number + 1, len(statements) + 1):
        statement = read_statement(statements[later].text)
        if not _words(earlier).isdisjoint(_words(statement)) and not earlier.classes.isdisjoint(statement.classes):
            return later
    return 0


def _words(statement: Statement) -> frozenset[str]:
    return statement.subject | statement.content


def _kinds(statement: Statement) -> frozenset[str]:
    """Return the kinds of its values that identify a subject. Any two statements may contain a number."""
    return frozenset(kind for kind, _ in statement.values) - {"number"}


def _named_options(answer: str) -> Iterator[tuple[int, int | None]]:
    for text in _split(answer)[1][:_MOST_LINES]:
        pairs = _PAIR.findall(text[:1_000])
        if pairs:
            yield from ((int(earlier), int(later)) for earlier, later in pairs)
        elif _LIST.match(text[:1_000]):
            yield from ((int(number), None) for number in re.findall(r"\d{1,5}", text[:1_000]))
        elif lone := _LONE.match(text[:1_000]):
            yield int(lone[1]), None


def without_superseded_section(text: str) -> str:
    """Return the summary without the section that `supersede` reads. It only concerns the list in the prompt."""
    return "\n".join(_split(text)[0]).strip()


def _split(text: str) -> tuple[list[str], list[str]]:
    """Return the lines of the summary, and the lines of the section from its title to the next heading.

    If the title is no heading ("Superseded: 3 -> 12"), only lines with numbers belong to it.
    """
    summary_lines: list[str] = []
    section: list[str] = []
    inside: str | None = None
    for text_line in text.splitlines():
        title = _TITLE.match(text_line[:200])
        if title:
            inside = "heading" if (title["mark"] or "").strip()[:1] in ("#", "*") else "line"
            section.append(text_line[title.start("rest") :] if title["rest"] else "")
        elif inside and not _HEADING.match(text_line[:200]) and (inside == "heading" or _is_naming(text_line)):
            section.append(text_line)
        else:
            inside = None
            summary_lines.append(text_line)
    return summary_lines, section


def _is_naming(text: str) -> bool:
    return bool(_PAIR.search(text[:200]) or _LIST.match(text[:200]))
