"""The things that a record covers and leaves out: statements, rules, items of the plan, failures and pins.

A statement that a later one replaced is not left out: the later one represents it. Pasted text is no statement.
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
# Minimum length in characters for finding a shown statement again in a prompt. "Yes." occurs in too many texts.
_LEAST_FOUND = 12
# Precedes the remainder of a shortened text. Its words alone may occur in other statements.
REST = "… "


class LeftOut(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A thing that is left out, or after `REST` the remainder of one that is shown shortened.

    position: of its message.
    text: at most `MOST_CHARACTERS`; for a pin its source.
    order: of a statement within its message.
    is_shown: True if the prompt contains it all the same. It is stored because later prompts may not contain it.
    """

    kind: LeftOutKind
    position: int
    text: str
    order: int = 0
    is_shown: bool = False


def left_out_of(entry: Entry) -> LeftOut | None:
    """Return the entry for a statement that is left out; None for pasted text."""
    if entry.kind == "pasted":
        return None
    return LeftOut("said", entry.position, " ".join(entry.text.split()), entry.order)


def list_left_out(entries: Iterable[Entry]) -> list[LeftOut]:
    """Return the entries for statements that are left out. Pasted text has none."""
    return [left_out for entry in entries if (left_out := left_out_of(entry)) is not None]


def rest_of(left_out: LeftOut, whole: str, shown: str) -> LeftOut | None:
    """Return the part of a line after its shown beginning; None if nothing is missing."""
    remainder = whole[len(shown) :].strip()[-len(left_out.text) :]
    return replace(left_out, text=f"{REST}{remainder}") if remainder else None


def list_unfitted(entries: Iterable[Entry], fitted: Iterable[Entry], mark: str) -> list[LeftOut]:
    """Return what is missing if only the fitted statements are stored. The last of them may end in `mark`."""
    texts_by_order = {order_of(entry): entry.text for entry in fitted}
    missing = []
    for entry in entries:
        text = texts_by_order.get(order_of(entry))
        if text != entry.text and (each := left_out_of(entry)) is not None:
            unfitted = each if text is None else rest_of(each, entry.text, text.removesuffix(mark))
            missing += [unfitted] if unfitted is not None else []
    return missing


def gather_left_out(
    parent: Sequence[LeftOut], known: Collection[tuple[int, int]], missing: Iterable[LeftOut],
    forgotten: Iterable[LeftOut], sent: Collection[int], prompt: Iterable[str],
) -> tuple[LeftOut, ...]:  # fmt: skip
    """Return what a record leaves out, in the order of the messages: at most `MOST`, the newest.

    parent:    of the previous record. Its statements are kept if they are not `known` there (see `order_of`).
    missing:   things without a line in the record, or with a shortened line.
    forgotten: statements that no later record has.
    sent:      positions of the messages sent next to the record.
    prompt:    the text of the record and of those messages.
    """
    lost = [each for each in parent if each.kind == "said" and (each.position, each.order) not in known]
    lost = [replace(each, is_shown=each.position in sent) for each in (*lost, *forgotten)]
    by_key = {(each.kind, each.position, each.order, each.text[:MOST_CHARACTERS]): each for each in (*missing, *lost)}
    newest = sorted(by_key.values(), key=lambda each: (each.is_shown, -each.position, -each.order))[: 2 * MOST]
    lasting = {(each.position, each.order) for each in lost}
    text = _folded("\n".join(prompt)) if newest else ""
    gathered, texts = list[LeftOut](), set[tuple[str, str]]()
    for each in newest:
        words, is_rest = _folded(each.text), each.text.startswith(REST)
        # The text of a pin is its source, which the record names.
        is_found = each.kind != "pin" and not is_rest and len(words) >= _LEAST_FOUND and words in text
        is_shown = each.is_shown or is_found
        is_lasting = each.kind == "said" and (each.position, each.order) in lasting
        if (not is_rest and (each.kind, words) in texts) or (is_shown and not is_lasting):
            continue
        texts.add((each.kind, words))
        gathered.append(replace(each, text=each.text[:MOST_CHARACTERS], is_shown=is_shown))
    gathered.sort(key=lambda each: each.is_shown)
    return tuple(sorted(gathered[:MOST], key=lambda each: (each.position, each.order)))


def not_shown(left_out: Iterable[LeftOut]) -> list[LeftOut]:
    """Return the things that no part of the prompt contains."""
    return [each for each in left_out if not each.is_shown]


def counts_of(left_out: Iterable[LeftOut]) -> dict[str, int]:
    """Return how many things of each kind no part of the prompt contains. Kinds without any are omitted."""
    return dict(Counter[str](each.kind for each in not_shown(left_out)))


def left_out_text(counts: Mapping[str, int]) -> str:
    """Return the counts in the format of a header: `said=3, pin=1`, or `none`."""
    return ", ".join(f"{kind}={counts[kind]}" for kind in KINDS if counts.get(kind)) or "none"


def _folded(text: str) -> str:
    return " ".join(text.split()).lower()
