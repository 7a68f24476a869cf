"""Rules for whether a later statement replaces an earlier one."""

import re
from collections.abc import Container

from policies.statements.reading import CODE
from policies.statements.statements import LABEL, Statement, read_statement

# Sorts of values of which a subject has one, also in a rule: "at most 3 retries". Names and paths may be many: "never
# touch /etc" and "never touch /var" are both valid.
_SINGULAR = frozenset({"quantity", "zone", "tone", "unit"})

# Kinds of values that identify their subject.
_TELLING = frozenset({"language", "tongue", "software", "zone", "tone", "unit", "indent", "color"})
# Every task has one, so a second one may belong to another task.
_NEXT_STEP = frozenset({"nextstep"})

# Where a sentence continues with another part. That part may need the verb before it.
JOINT = re.compile(
    r"[;，；、]|,(?!\d)|\b(?:and|und|y|e|et|en|dan|ve)\b|(?<!\w)и(?!\w)|和|以及|并且|并|及|そして|および"
)
# Minimum new words of an independent part of a sentence without a value.
_TELLING_WORDS = 2


def share_subject(later: Statement, earlier: Statement) -> bool:
    """Return True if a rule below may apply to a later statement without permission, old value and label.

    A cheap check, since most statements that share a word share nothing else.
    """
    later_subject, earlier_subject = later.subject, earlier.subject
    if later_subject <= earlier_subject or earlier_subject <= later_subject or later.content == earlier.content:
        return True
    return not later.values and len(later_subject - earlier_subject) == 1


def repeats(later: Statement, earlier: Statement) -> bool:
    """Return True if the later statement repeats the earlier one, perhaps in other words."""
    if later.question or earlier.question or later.forbids != earlier.forbids or later.permits != earlier.permits:
        return False
    if later.texts != earlier.texts or later.has("past") != earlier.has("past"):
        return False
    if _binds(earlier) and not _binds(later):
        return False
    if later.values:
        return later.subject == earlier.subject
    return bool(later.content) and later.content == earlier.content


def replaces(later: Statement, earlier: Statement) -> bool:
    """Return True if the later statement gives the same subject another value, or revokes it.

    In doubt return False: then both stay, in order.
    """
    if not asserts(later) or earlier.question or differ_in_names(later, earlier):
        return False
    if later.permits != earlier.permits:
        return _revokes(later, earlier)
    if _names_old(later, earlier):
        return True
    if later.texts == earlier.texts:
        return _inverts(later, earlier)
    if later.subject == earlier.subject and later.subject:
        return _restates(later, earlier)
    return later.has("corrects", "updates") and _corrects(later, earlier)


def asserts(statement: Statement) -> bool:
    """Return True if a statement may replace others: questions, additions, memories and suppositions may not."""
    past = statement.has("past") and not statement.has("corrects", "updates")
    return not (statement.question or past or statement.has("adds", "supposes"))


def differ_in_names(first_statement: Statement, second_statement: Statement) -> bool:
    """Return True if the statements are about different identifiers: parse_row and parse_page."""
    if (
        not first_statement.about
        or not second_statement.about
        or not first_statement.about.isdisjoint(second_statement.about)
    ):
        return False
    return first_statement.about.isdisjoint(second_statement.old) and second_statement.about.isdisjoint(
        first_statement.old
    )


def _may_differ_in_code(later: Statement, earlier: Statement) -> bool:
    """Return True if they name different code or files, and the later one does not replace the earlier name."""
    later_names, earlier_names = _named(later), _named(earlier)
    if not later_names or not earlier_names or later_names == earlier_names:
        return False
    return not (earlier.puts and (later.puts or later.has("corrects", "updates")))


def _named(statement: Statement) -> set[str]:
    return {text for kind, text in statement.values if kind in CODE}


def reaches_out(statement: Statement) -> bool:
    """Return True if it may replace statements with a different subject."""
    return statement.permits or bool(statement.old) or statement.has("corrects", "updates")


def _revokes(later: Statement, earlier: Statement) -> bool:
    """Return True if a permission revokes the earlier rule, or a rule the earlier permission."""
    if later.permits:
        rule = earlier.has("forbids", "demands", "only", "limits", "prefers", "suggests")
        subject = (later.subject or later.content) | later.texts
        return rule and bool(later.content) and subject <= earlier.content | earlier.texts
    return later.content == earlier.content


def _inverts(later: Statement, earlier: Statement) -> bool:
    """Return True for the same words with and without "never"."""
    rules = later.has("corrects", "updates") and earlier.has("demands", "forbids", "suggests")
    return rules and later.forbids != earlier.forbids and bool(later.content) and later.content == earlier.content


def _names_old(later: Statement, earlier: Statement) -> bool:
    """Return True if "from A to B" or "instead of A" replaces the earlier statement, which gave the value A."""
    if not later.old:
        return False
    shares = not later.subject.isdisjoint(earlier.subject)
    if not earlier.values:
        return shares and not earlier.subject <= later.subject and earlier.subject - later.subject <= later.old
    if not earlier.texts <= later.old:
        return False
    # "We publish to npm" does not say that A is in use.
    of_value = not earlier.subject or (not later.subject and earlier.stated and len(later.values) == 1)
    return shares or (of_value and not earlier.has("forbids", "demands", "only"))


def _restates(later: Statement, earlier: Statement) -> bool:
    """Return True for the same subject with another value of the same sort."""
    if not later.classes or not earlier.classes <= later.classes or _may_differ_in_code(later, earlier):
        return False
    if later.forbids or earlier.forbids:
        return later.forbids == earlier.forbids and (earlier.classes <= _SINGULAR or later.has("corrects"))
    if later.has("corrects", "updates") or earlier.classes.isdisjoint({"name"}):
        return True
    if later.subject == _NEXT_STEP:
        return False
    return (later.stated and earlier.stated) and not (later.has("demands") and earlier.has("demands"))


def _corrects(later: Statement, earlier: Statement) -> bool:
    """Return True if it reports a change of the earlier subject, or of part of it."""
    strong = later.has("corrects")
    shared = (later.subject & earlier.subject) - later.old
    fits = bool(earlier.classes) and earlier.classes <= later.classes
    if earlier.forbids and not (strong and later.forbids and fits):
        return False
    if earlier.has("demands", "only", "guards") and not earlier.classes.isdisjoint({"name"}) and not _binds(later):
        return False
    if not later.subject and not earlier.subject:
        return fits and _same_sort(later, earlier)
    if not shared:
        return False
    if fits and (later.subject < earlier.subject or (strong and earlier.subject < later.subject)):
        return True
    return strong and _one_slot(later, earlier)


def _same_sort(later: Statement, earlier: Statement) -> bool:
    """Return True if both consist only of values: "use MySQL", "we upgraded to React 18"."""
    kinds = {kind for kind, _ in earlier.values} & {kind for kind, _ in later.values}
    return not kinds.isdisjoint(_TELLING) or not later.texts.isdisjoint(earlier.texts)


def _binds(statement: Statement) -> bool:
    return statement.forbids or statement.has("demands", "only", "guards", "limits")


def _one_slot(later: Statement, earlier: Statement) -> bool:
    """Return True if one plain word replaces another and neither has a value: "run the formatter first instead"."""
    if _binds(later) or _binds(earlier) or later.values:
        return False
    missing, put = earlier.subject - later.subject, later.subject - earlier.subject
    return len(put) == 1 and len(missing) == (0 if earlier.values else 1)


def restates_with_label(later: Statement, earlier: Statement) -> bool:
    """Return True for the same label with one slot changed ("SAFETY RULE: …"). Only for adjacent messages.

    Either both have a value and one subject is part of the other. Or they share at least two words and half of the
    shorter sentence, not counting one word that may be the slot.
    """
    if not later.label or later.label != earlier.label or not asserts(later) or differ_in_names(later, earlier):
        return False
    if later.texts == earlier.texts and later.texts:
        return False
    smaller, larger = sorted((later.subject, earlier.subject), key=len)
    if later.texts and earlier.texts and smaller and smaller <= larger:
        return True
    if later.texts and earlier.texts and _are_parallel(later.spoken, earlier.spoken):
        return False
    later_words, earlier_words = later.content | later.texts, earlier.content | earlier.texts
    shared = later_words & earlier_words
    return (
        later_words != earlier_words
        and len(shared) >= 2
        and 2 * len(shared) >= min(len(later_words), len(earlier_words)) - 1
    )


def _are_parallel(later_words: tuple[str, ...], earlier_words: tuple[str, ...]) -> bool:
    """Return True if one word replaces another, as in "staging server" and "production server"."""
    return (
        len(later_words) == len(earlier_words)
        and sum(a != b for a, b in zip(later_words, earlier_words, strict=True)) == 1
    )


def given_anew(earlier: Statement, later: Statement) -> frozenset[str]:
    """Return the earlier values that the later statement replaces: those it names, else those of the same kinds."""
    kinds = {kind for kind, _ in later.values}
    return earlier.texts & later.old or frozenset(text for kind, text in earlier.values if kind in kinds)


def holds_more(text: str, earlier: Statement, later: Statement, beside: Container[str] = ()) -> bool:
    """Return True if a statement says more than values that a later one gives anew. Parts `beside` do not count."""
    values = given_anew(earlier, later)
    if len(values) > max(1, len(later.values), len(later.old)):
        return True
    parts, parts_without_values = parts_of(JOINT, text, values)
    return len(parts_without_values) < len(parts) and any(
        tells_more(part, later) for part in parts_without_values if part not in beside
    )


def parts_of(joint: re.Pattern[str], text: str, values: frozenset[str]) -> tuple[list[str], list[str]]:
    """Return the parts of a text after its label, and those of them without any of the values."""
    label = LABEL.match(text)
    text = text[label.end() :] if label else text
    parts = [part for piece in joint.split(text) if (part := piece.strip())]
    return parts, [part for part in parts if not any(value in part.lower() for value in values)]


def tells_more(part: str, later: Statement) -> bool:
    """Return True if a part of a statement says something that the later one does not."""
    statement = read_statement(part)
    return bool(statement.texts - later.texts) or len(statement.content - later.content) >= _TELLING_WORDS
