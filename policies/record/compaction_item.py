"""The history that a compaction item represents, and the messages to send for it (docs/design.md, "Items")."""

import hashlib
from collections.abc import Collection, Iterable, Sequence

from policies.conversation.message import INSTRUCTION_ROLES, Message


def history_digest(messages: Iterable[Message]) -> str:
    """Return the digest of the history that an item represents: 64 hex digits, the same for every client.

    Instructions are not included: some clients change theirs with every request.
    """
    digest = hashlib.sha256(b"compaction item")
    for message in messages:
        if message.role not in INSTRUCTION_ROLES:
            digest.update(message.digest)
    return digest.hexdigest()


def without_kept(
    tail: Sequence[Message], anchors: int, kept: Collection[bytes], behind: Collection[bytes]
) -> list[int]:
    """Return the indexes of the tail's messages to send, without those that the client sends itself.

    anchors: how many of the tail's first messages repeat messages from before the cut.
    kept, behind: digests of the client's messages before and after the item. An anchor is left out if it is in either,
    any other message if it is in `behind`.
    """
    sent: list[int] = []
    for at in range(len(tail) - 1, -1, -1):
        message = tail[at]
        if message.silent:  # a silent message is sent with the message after it
            is_sent = at + 1 == len(tail) or sent[-1:] == [at + 1]
        else:
            is_sent = message.digest not in behind and not (at < anchors and message.digest in kept)
        sent += [at] if is_sent else []
    return sent[::-1]


def without_tail(kept: Sequence[Message], tail: Sequence[Message], anchors: int) -> list[int]:
    """Return the indexes of the kept messages to send. A user's message that is also in the tail is left out."""
    tail_digests = {message.digest for message in tail[anchors:] if message.is_user}
    return [at for at, message in enumerate(kept) if not (message.is_user and message.digest in tail_digests)]
