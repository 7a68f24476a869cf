"""The branches of a session: a client went back in its conversation and continued in another way."""

from collections.abc import Iterable

import msgspec

from proxy.telemetry.history_entries import RequestEntry

PREFIX_DIGITS = 6
"""Hex digits of each digest in `RequestEntry.prefixes`."""
_Prefix = tuple[int, str]


class Branch(msgspec.Struct, kw_only=True):
    """Requests that continue each other.

    number: from 1, in the order of their beginning. parent: the branch that it left; None for the first. depth: the
    number of its ancestors. parted: messages shared with its parent; None if unknown. messages, tokens: of its newest
    request, as received. began, seen: when its oldest and its newest request ended, in Unix seconds.
    """

    number: int
    parent: int | None
    depth: int
    parted: int | None
    began: float
    seen: float
    requests: int = 0
    messages: int = 0
    tokens: int = 0


def find_branches(requests: Iterable[RequestEntry]) -> list[Branch]:
    """Return the branches of a session from its requests in their order; empty if digests are missing."""
    branches: list[Branch] = []
    owners: dict[_Prefix, Branch] = {}
    newest: dict[int, _Prefix] = {}
    newest_branch: Branch | None = None
    for entry in requests:
        prefixes = _prefixes_of(entry)
        if not prefixes:
            continue
        owned_prefix = next((prefix for prefix in prefixes if prefix in owners), None)
        branch = newest_branch
        if owned_prefix is not None:
            branch = owners[owned_prefix]
            if owned_prefix != prefixes[0] and newest[branch.number] != owned_prefix:
                branch = _begin_branch(branches, branch, owned_prefix[0], entry.at)
        elif branch is None or prefixes[-1][0] <= branch.messages:
            branch = _begin_branch(branches, branch, None, entry.at)
        newest_branch = branch
        if prefixes[0] not in owners:
            owners[prefixes[0]] = branch
            newest[branch.number] = prefixes[0]
        branch.requests += 1
        branch.seen = entry.at
        branch.messages, branch.tokens = prefixes[0][0], entry.received or 0
    return branches


def _begin_branch(branches: list[Branch], parent: Branch | None, parted: int | None, at: float) -> Branch:
    branch = Branch(
        number=len(branches) + 1,
        parent=parent.number if parent else None,
        depth=parent.depth + 1 if parent else 0,
        parted=parted,
        began=at,
        seen=at,
    )
    branches.append(branch)
    return branch


def _prefixes_of(entry: RequestEntry) -> list[_Prefix]:
    """Return the longest prefixes of a request, each as its number of messages and its digest."""
    digests, messages = entry.prefixes or "", entry.messages or 0
    starts = range(0, len(digests), PREFIX_DIGITS)
    return [(messages - place, digests[at : at + PREFIX_DIGITS]) for place, at in enumerate(starts)]
