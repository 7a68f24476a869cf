"""Whether a later statement replaces an earlier one: few rules over what was read of both."""

import re
from collections.abc import Container

from policies.statements.reading import CODE
from policies.statements.statements import LABEL, Statement, read_statement

# Values of these sorts are one a subject also in a rule: "at most 3 retries". Names and paths may be many:
# "never touch /etc" and "never touch /var" both hold.
_SINGULAR = frozenset({"quantity", "zone", "tone", "unit"})

# Kinds of values that say what they are values of.
_TELLING = frozenset({"language", "tongue", "software", "zone", "tone", "unit", "indent", "color"})
# Every piece of work has one, so a second one may be of another.
_NEXT_STEP = frozenset({"nextstep"})

# Where a sentence goes on with something else; what stands behind it may need the verb before it.
JOINT = re.compile(
    r"[;，；、]|,(?!\d)|\b(?:and|und|y|e|et|en|dan|ve)\b|(?<!\w)и(?!\w)|和|以及|并且|并|及|そして|および"
)
# Words by which a part of a sentence says something of its own, without a value.
_TELLING_WORDS = 2


def share_subject(later: Statement, earlier: Statement) -> bool:
    """Cheap, and true wherever a rule below holds for a later statement without permission, old value and label.

    Most statements that share a word share nothing else.
    """
    mine, others = later.subject, earlier.subject
    if mine <= others or others <= mine or later.content == earlier.content:
        return True
    return not later.values and len(mine - others) == 1


def repeats(later: Statement, earlier: Statement) -> bool:
    """Says the same again, in other words perhaps."""
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
    """Gives the same thing another value, or takes it back. In doubt not: both stay, in order."""
    if not asserts(later) or earlier.question or differ_in_names(later, earlier):
        return False
    if later.permits != earlier.permits:
        return _takes_back(later, earlier)
    if _names_old(later, earlier):
        return True
    if later.texts == earlier.texts:
        return _turns_round(later, earlier)
    if later.subject == earlier.subject and later.subject:
        return _restates(later, earlier)
    return later.has("corrects", "updates") and _corrects(later, earlier)


def asserts(statement: Statement) -> bool:
    """Questions, additions, memories and suppositions replace nothing."""
    past = statement.has("past") and not statement.has("corrects", "updates")
    return not (statement.question or past or statement.has("adds", "supposes"))


def differ_in_names(one: Statement, other: Statement) -> bool:
    """Return True if they are about different identifiers: parse_row and parse_page."""
    if not one.about or not other.about or not one.about.isdisjoint(other.about):
        return False
    return one.about.isdisjoint(other.old) and other.about.isdisjoint(one.old)


def _may_be_apart(later: Statement, earlier: Statement) -> bool:
    """Return True if they name different code or files, and the later one does not put its own in that place."""
    mine, others = _named(later), _named(earlier)
    if not mine or not others or mine == others:
        return False
    return not (earlier.puts and (later.puts or later.has("corrects", "updates")))


def _named(statement: Statement) -> set[str]:
    return {text for kind, text in statement.values if kind in CODE}


def reaches_out(statement: Statement) -> bool:
    """Whether it may replace statements whose subject is not the very same."""
    return statement.permits or bool(statement.old) or statement.has("corrects", "updates")


def _takes_back(later: Statement, earlier: Statement) -> bool:
    """A permission ends the rule that it is about, and a rule ends the permission it names."""
    if later.permits:
        rule = earlier.has("forbids", "demands", "only", "limits", "prefers", "suggests")
        about = (later.subject or later.content) | later.texts
        return rule and bool(later.content) and about <= earlier.content | earlier.texts
    return later.content == earlier.content


def _turns_round(later: Statement, earlier: Statement) -> bool:
    """The same words with and without "never"."""
    rules = later.has("corrects", "updates") and earlier.has("demands", "forbids", "suggests")
    return rules and later.forbids != earlier.forbids and bool(later.content) and later.content == earlier.content


def _names_old(later: Statement, earlier: Statement) -> bool:
    """ "From A to B", "instead of A": replaces what gave the value A and nothing else."""
    if not later.old:
        return False
    shares = not later.subject.isdisjoint(earlier.subject)
    if not earlier.values:
        return shares and not earlier.subject <= later.subject and earlier.subject - later.subject <= later.old
    if not earlier.texts <= later.old:
        return False
    # "We publish to npm" says something else of A than that it is in use.
    of_value = not earlier.subject or (not later.subject and earlier.stated and len(later.values) == 1)
    return shares or (of_value and not earlier.has("forbids", "demands", "only"))


def _restates(later: Statement, earlier: Statement) -> bool:
    """The same subject with another value of the same sort."""
    if not later.classes or not earlier.classes <= later.classes or _may_be_apart(later, earlier):
        return False
    if later.forbids or earlier.forbids:
        return later.forbids == earlier.forbids and (earlier.classes <= _SINGULAR or later.has("corrects"))
    if later.has("corrects", "updates") or earlier.classes.isdisjoint({"name"}):
        return True
    if later.subject == _NEXT_STEP:
        return False
    return (later.stated and earlier.stated) and not (later.has("demands") and earlier.has("demands"))


def _corrects(later: Statement, earlier: Statement) -> bool:
    """Says that something changed, about a subject that is the earlier one, or part of it."""
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
    """About nothing but their values: "use MySQL", "we upgraded to React 18"."""
    kinds = {kind for kind, _ in earlier.values} & {kind for kind, _ in later.values}
    return not kinds.isdisjoint(_TELLING) or not later.texts.isdisjoint(earlier.texts)


def _binds(statement: Statement) -> bool:
    return statement.forbids or statement.has("demands", "only", "guards", "limits")


def _one_slot(later: Statement, earlier: Statement) -> bool:
    """One plain word in place of another, where neither names a value: "run the formatter first instead"."""
    if _binds(later) or _binds(earlier) or later.values:
        return False
    missing, put = earlier.subject - later.subject, later.subject - earlier.subject
    return len(put) == 1 and len(missing) == (0 if earlier.values else 1)


def restates_with_label(later: Statement, earlier: Statement) -> bool:
    """The same label with one slot changed, in whatever words ("SAFETY RULE: …"); for adjacent messages only.

    Either both hold a value and one subject is part of the other, or two words at least and half of the shorter
    sentence are shared, where one word may be the slot.
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
    mine, others = later.content | later.texts, earlier.content | earlier.texts
    shared = mine & others
    return mine != others and len(shared) >= 2 and 2 * len(shared) >= min(len(mine), len(others)) - 1


def _are_parallel(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return True if one word stands in place of another, as in "staging server" and "production server"."""
    return len(one) == len(other) and sum(a != b for a, b in zip(one, other, strict=True)) == 1


def given_anew(earlier: Statement, later: Statement) -> frozenset[str]:
    """The values of the earlier one in whose place the later puts others: those it names, else those of its kinds."""
    kinds = {kind for kind, _ in later.values}
    return earlier.texts & later.old or frozenset(text for kind, text in earlier.values if kind in kinds)


def holds_more(text: str, earlier: Statement, later: Statement, beside: Container[str] = ()) -> bool:
    """Whether a statement of this text says more than values that a later one gives anew; parts `beside` are not it."""
    values = given_anew(earlier, later)
    if len(values) > max(1, len(later.values), len(later.old)):
        return True
    parts, others = parts_of(JOINT, text, values)
    return len(others) < len(parts) and any(tells_more(part, later) for part in others if part not in beside)


def parts_of(joint: re.Pattern[str], text: str, values: frozenset[str]) -> tuple[list[str], list[str]]:
    """The parts of a text behind its label, and those of them that hold none of the values."""
    label = LABEL.match(text)
    text = text[label.end() :] if label else text
    parts = [part for piece in joint.split(text) if (part := piece.strip())]
    return parts, [part for part in parts if not any(value in part.lower() for value in values)]


def tells_more(part: str, later: Statement) -> bool:
    """Whether a part of a statement says what the later one does not."""
    said = read_statement(part)
    return bool(said.texts - later.texts) or len(said.content - later.content) >= _TELLING_WORDS
