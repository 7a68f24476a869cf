"""The newest prompts as sent, for the pages of sessions: kept only in memory, and masked as records are.

They are read when a page is opened, since masking takes as long as a compaction.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from proxy.memory import Cache, Memory

MOST_BYTES = 32 * 1024 * 1024
"""Approximate bytes of all held prompts."""
PROMPTS = 3
"""The number of prompts of a session that are held, the newest."""


class ShownMessage(msgspec.Struct, frozen=True):
    """A message of a prompt.

    number:   that in the client's request, from 0 after the system prompt; None for all others.
    change:   the kind of difference from the client's message; empty if there is none.
    original: the client's text if it differs.
    text:     empty if it is not held.
    """

    role: str
    text: str
    number: int | None = None
    change: str = ""
    original: str = ""


class ShownPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as it was sent.

    at:       Unix seconds.
    tokens:   estimated.
    covered:  the number of messages that the record replaces.
    messages: as they were sent.
    record:   the text of the record; empty without one.
    replaced: the messages that the record replaces.
    is_cut:   True if some texts are not held in full.
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
    """A prompt that is read when it is shown. size: its approximate bytes."""

    read: Callable[[], ShownPrompt]
    size: int


class SessionName(NamedTuple):
    """A session as shown to people, like the `Key` of histories."""

    tenant: str
    id: str
    label: str


class SentPrompts:
    """Holds prompts of tenants whose content may be read. One per process. Nothing is stored.

    shows_content: returns True if a tenant's content may be read. Until it is set, nothing is held.
    """

    def __init__(self) -> None:
        """Create an empty holder."""
        self._memory = Memory(MOST_BYTES)
        self._held: Cache[SessionName, tuple[HeldPrompt, ...]] = Cache(self._memory, "sent_prompts")
        self.shows_content: Callable[[str], bool] = lambda _: False

    @property
    def held_bytes(self) -> dict[str, int]:
        """Return the bytes of the held prompts, by the name of the cache."""
        return dict(self._memory.held_bytes)

    def hold(self, name: SessionName, prompt: HeldPrompt) -> None:
        """Hold a prompt as the newest of its session."""
        if not self.shows_content(name.tenant):
            return
        prompts = (*(self._held.get(name) or ()), prompt)[-PROMPTS:]
        self._held.keep(name, prompts, sum(held_prompt.size for held_prompt in prompts) + sum(map(len, name)))

    def of(self, name: SessionName) -> list[ShownPrompt]:
        """Return the held prompts of a session, the newest first. It takes some tenths of a second."""
        return [prompt.read() for prompt in reversed(self._held.get(name) or ())]

    def forget(self, tenant: str, session: str, is_matching: Callable[[str], bool]) -> None:
        """Forget the prompts of a conversation's sessions whose label matches."""
        for name in self._names():
            if name[:2] == (tenant, session) and is_matching(name.label):
                self._held.drop(name)

    def _names(self) -> list[SessionName]:
        return [entry[0] for entry in self._held.items()]

    def forget_hidden(self) -> None:
        """Forget the prompts of tenants whose content may no longer be read."""
        for name in self._names():
            if not self.shows_content(name.tenant):
                self._held.drop(name)
