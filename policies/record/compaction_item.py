"""What a compaction item stands for, and what becomes of a history that holds one (docs/design.md, "Items")."""

import hashlib
from collections.abc import Collection, Iterable, Sequence

from policies.conversation.message import INSTRUCTION_ROLES, Message


def covers(messages: Iterable[Message]) -> str:
    """Names the history that an item stands for, whoever sends it: 64 hex digits.

    Instructions do not count: some clients make theirs anew with every request.
    """
    digest = hashlib.sha256(b"compaction item")
    for message in messages:
        if message.role not in INSTRUCTION_ROLES:
            digest.update(message.digest)
    return digest.hexdigest()


def without_kept(
    tail: Sequence[Message], anchors: int, kept: Collection[bytes], behind: Collection[bytes]
) -> list[int]:
    """Return the indices of a tail's messages to send, without those that the client sends itself.

    anchors: how many of the tail's first messages repeat messages from before the cut. kept, behind: digests of the
    client's messages before and behind the item. An anchor is left out if it is in either, others if in `behind`.
    """
    sent: list[int] = []
    for at in range(len(tail) - 1, -1, -1):
        message = tail[at]
        if message.silent:  # goes with what it stands before
            is_sent = at + 1 == len(tail) or sent[-1:] == [at + 1]
        else:
            is_sent = message.digest not in behind and not (at < anchors and message.digest in kept)
        sent += [at] if is_sent else []
    return sent[::-1]


def without_tail(kept: Sequence[Message], tail: Sequence[Message], anchors: int) -> list[int]:
    """Which of the messages that a client has kept before an item are sent, by index: none that stands in its tail,
    which has it in its place."""
    later = {message.digest for message in tail[anchors:] if message.is_user}
    return [at for at, message in enumerate(kept) if not (message.is_user and message.digest in later)]
