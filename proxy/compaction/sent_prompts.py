"""The newest prompts as they were sent, for the pages of sessions: in memory alone, masked as records are.

They are held as they are and read when somebody looks, since masking takes as long as a compaction.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from proxy.memory import Cache, Memory

MOST_BYTES = 32 * 1024 * 1024
"""Bytes that all held prompts take together, about."""
PROMPTS = 3
"""Prompts of a session that are held, the newest."""


class ShownMessage(msgspec.Struct, frozen=True):
    """A message of a prompt. number: in the client's request, from 0 behind the system prompt; None for all others.

    change: in which way it differs from the client's message; empty if it is the same. original: what the client wrote
    instead. text: empty if it is not held.
    """

    role: str
    text: str
    number: int | None = None
    change: str = ""
    original: str = ""


class ShownPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as it was sent. at: Unix seconds. tokens: by our estimate. covered: messages that the record replaces.

    messages: as they were sent. record: text of the record; empty without one. replaced: what the record stands for.
    is_cut: True if not all of the texts are held.
    """

    at: float
    model: str
    tokens: int
    received: int
    covered: int
    messages: list[ShownMessage]
    record: str = ""
    replaced: list[ShownMessage] = []
    is_cut: bool = False


class HeldPrompt(NamedTuple):
    """A prompt that is read when it is shown. size: bytes that it takes, about."""

    read: Callable[[], ShownPrompt]
    size: int


class SessionName(NamedTuple):
    """A session for people, as `Key` of histories."""

    tenant: str
    id: str
    label: str


class SentPrompts:
    """Holds prompts of tenants whose content may be read; one per process. Nothing of it is stored.

    shows_content: says if the content of a tenant may be read. Until it is set, nothing is held.
    """

    def __init__(self) -> None:
        self._memory = Memory(MOST_BYTES)
        self._held: Cache[SessionName, tuple[HeldPrompt, ...]] = Cache(self._memory, "sent_prompts")
        self.shows_content: Callable[[str], bool] = lambda _: False

    @property
    def held_bytes(self) -> dict[str, int]:
        """Return the bytes that they take, by the name of the cache."""
        return dict(self._memory.held_bytes)

    def hold(self, name: SessionName, prompt: HeldPrompt) -> None:
        """Hold a prompt as the newest of its session."""
        if not self.shows_content(name.tenant):
            return
        held = (*(self._held.get(name) or ()), prompt)[-PROMPTS:]
        self._held.keep(name, held, sum(each.size for each in held) + sum(map(len, name)))

    def of(self, name: SessionName) -> list[ShownPrompt]:
        """Return the held prompts of a session, the newest first. It takes some tenths of a second."""
        return [prompt.read() for prompt in reversed(self._held.get(name) or ())]

    def forget(self, tenant: str, session: str, is_meant: Callable[[str], bool]) -> None:
        """Forget the prompts of the sessions of a conversation whose label is meant."""
        for name in self._names():
            if name[:2] == (tenant, session) and is_meant(name.label):
                self._held.drop(name)

    def _names(self) -> list[SessionName]:
        return [held[0] for held in self._held.items()]

    def forget_hidden(self) -> None:
        """Forget the prompts of tenants whose content may not be read any more."""
        for name in self._names():
            if not self.shows_content(name.tenant):
                self._held.drop(name)
