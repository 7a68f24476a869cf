"""What a record covers and leaves out: statements of a person, rules, items of the plan, failures.

A statement that a later one replaced is not left out: the later one stands for it. What was pasted is no statement.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, get_args

import msgspec
from msgspec.structs import replace

from policies.statements.entries import Entry, order_of

LeftOutKind = Literal["said", "rules", "plan", "failures", "pin"]

KINDS: tuple[LeftOutKind, ...] = get_args(LeftOutKind)

MOST = 500
MOST_CHARACTERS = 300
# Of a statement that is shown, so many characters are found again in a prompt. "Yes." stands in too many texts.
_LEAST_FOUND = 12
# In front of the rest of a thing that is shown cut short. Its words alone may stand in other statements.
REST = "… "


class LeftOut(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One thing that is left out, or the rest of one that is shown cut short, behind `REST`.

    text: at most `MOST_CHARACTERS`; of a pin its source.

    position: of its message. order: of a statement in its message. is_shown: True if it stands in the prompt all the
    same now. It is stored since a later prompt may not have it, and nothing else is left of it.
    """

    kind: LeftOutKind
    position: int
    text: str
    order: int = 0
    is_shown: bool = False


def left_out_of(entry: Entry) -> LeftOut | None:
    """Return a statement as it would be left out, None for what was pasted."""
    if entry.kind == "pasted":
        return None
    return LeftOut("said", entry.position, " ".join(entry.text.split()), entry.order)


def list_left_out(entries: Iterable[Entry]) -> list[LeftOut]:
    """Return statements as they would be left out, without what was pasted."""
    return [found for entry in entries if (found := left_out_of(entry)) is not None]


def rest_of(left_out: LeftOut, whole: str, shown: str) -> LeftOut | None:
    """Return what is missing of one thing of whose line only a beginning is shown, None if nothing is."""
    rest = whole[len(shown) :].strip()[-len(left_out.text) :]
    return replace(left_out, text=f"{REST}{rest}") if rest else None


def list_unfitted(entries: Iterable[Entry], fitted: Iterable[Entry], mark: str) -> list[LeftOut]:
    """Return what is missing of these statements if only the fitted ones are left, of which one may end in a mark."""
    kept = {order_of(entry): entry.text for entry in fitted}
    found = []
    for entry in entries:
        text = kept.get(order_of(entry))
        if text != entry.text and (each := left_out_of(entry)) is not None:
            rest = each if text is None else rest_of(each, entry.text, text.removesuffix(mark))
            found += [rest] if rest is not None else []
    return found


def gather_left_out(
    parent: Sequence[LeftOut], known: Collection[tuple[int, int]], missing: Iterable[LeftOut],
    forgotten: Iterable[LeftOut], sent: Collection[int], prompt: Iterable[str],
) -> tuple[LeftOut, ...]:  # fmt: skip
    """Return what a record leaves out, in the order of the messages: at most `MOST`, the newest.

    parent:    of the record before: its statements stay that are not `known` there (`order_of`), or anywhere else.
    missing:   what has no line in the record, or a shorter one. forgotten: statements that no later record has.
    sent:      positions of the messages that are sent next to the record. prompt: its text, and theirs.
    """
    lost = [each for each in parent if each.kind == "said" and (each.position, each.order) not in known]
    lost = [replace(each, is_shown=each.position in sent) for each in (*lost, *forgotten)]
    found = {(each.kind, each.position, each.order, each.text[:MOST_CHARACTERS]): each for each in (*missing, *lost)}
    newest = sorted(found.values(), key=lambda each: (each.is_shown, -each.position, -each.order))[: 2 * MOST]
    lasting = {(each.position, each.order) for each in lost}
    text = _folded("\n".join(prompt)) if newest else ""
    kept, texts = list[LeftOut](), set[tuple[str, str]]()
    for each in newest:
        words, is_rest = _folded(each.text), each.text.startswith(REST)
        # Of a pin this is its source, which the record names.
        is_found = each.kind != "pin" and not is_rest and len(words) >= _LEAST_FOUND and words in text
        is_shown = each.is_shown or is_found
        is_lasting = each.kind == "said" and (each.position, each.order) in lasting
        if (not is_rest and (each.kind, words) in texts) or (is_shown and not is_lasting):
            continue
        texts.add((each.kind, words))
        kept.append(replace(each, text=each.text[:MOST_CHARACTERS], is_shown=is_shown))
    kept.sort(key=lambda each: each.is_shown)
    return tuple(sorted(kept[:MOST], key=lambda each: (each.position, each.order)))


def not_shown(left_out: Iterable[LeftOut]) -> list[LeftOut]:
    """Return what is in no part of the prompt."""
    return [each for each in left_out if not each.is_shown]


def counts_of(left_out: Iterable[LeftOut]) -> dict[str, int]:
    """Return how many things of each kind are in no part of the prompt, without kinds that have none."""
    return dict(Counter[str](each.kind for each in not_shown(left_out)))


def left_out_text(counts: Mapping[str, int]) -> str:
    """Return the counts as a header has them: `said=3, pin=1`, or `none`."""
    return ", ".join(f"{kind}={counts[kind]}" for kind in KINDS if counts.get(kind)) or "none"


def _folded(text: str) -> str:
    return " ".join(text.split()).lower()
